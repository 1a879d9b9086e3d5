"""Run what a figure needs: every variant at every value of the x axis, and what goals search.

Both go through the evaluator of `experiments.capacity`, which makes runs, keeps them and reads
samples of quantities from them; the searches are its own. `experiments.sweep` is not used for the x
axis: its rows hold the summary of a run and not the samples that measures of replications are made
of, each figure would keep a data set beside its searches, and several keys along one axis, scaled
together, are a list of points there, so that the code would be longer by what reads them back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.capacity.evaluate import Evaluator, Tell, Wanted
from experiments.capacity.goal import Goal, Term, read_goal
from experiments.capacity.highest import search_edges
from experiments.capacity.judge import Evaluation
from experiments.capacity.varied import rate_of
from experiments.cluster import pools_of
from experiments.config import Plan, slug
from experiments.papers.block import Measure, Redone, quantities_of, value_of
from experiments.quantity import read_quantity
from experiments.schema import Experiment

ALONE = 0.0
"""The x of runs where nothing is varied."""

_REPEATS, _MOST_RUNS = 3, 60


@dataclass(frozen=True)
class Point:
    """One variant at one x.

    Attributes:
        values: Quantity to its number in each replication.
        behind: Whether each replication was overloaded or backlogged.
    """

    values: Mapping[str, tuple[float, ...]]
    behind: tuple[bool, ...]


@dataclass(frozen=True)
class Bracket:
    """What a search of the highest rate found.

    Attributes:
        meets: The highest rate that meets the goal; None if none does.
        misses: The lowest that misses it; None if none does.
    """

    meets: float | None
    misses: float | None


@dataclass(frozen=True)
class Evaluated:
    """All that was run for one figure.

    Attributes:
        redone: What for.
        points: Label, then x, to what came out there.
        edges: Measure with a goal, then label, to what the search found.
        gpus: Label to its GPUs.
        requests: Simulated now, in all runs.
        simulate_s: Seconds of one core that they took.
    """

    redone: Redone
    points: Mapping[str, Mapping[float, Point]]
    edges: Mapping[str, Mapping[str, Bracket]]
    gpus: Mapping[str, int]
    requests: int
    simulate_s: float

    @property
    def xs(self) -> list[float]:
        """The x axis, ascending."""
        return sorted(next(iter(self.points.values()), {}))


def evaluate(
    redone: Redone, out: Path, processes: int = 1, tell: Tell = lambda text: None
) -> Evaluated:
    """Run what the measures of a figure need; what an earlier call left in `out` is reused.

    Args:
        redone: The figure.
        out: Folder of all its runs.
        processes: Runs at a time.
        tell: Given one line now and then.

    Raises:
        PhasewiseError: A run failed; one line.
    """
    done: list[Evaluation] = []
    points: dict[str, dict[float, Point]] = {}
    for names, labels in _groups(redone).items():
        evaluator = Evaluator(redone.plan, _sampled(names), out / "points", processes)
        points |= _points(redone, names, labels, evaluator, tell)
        done += evaluator.done.values()
    edges = {}
    for key, measure in redone.paper.measures.items():
        if measure.searched:
            goal = goal_of(measure, points)
            searcher = Evaluator(redone.plan, goal, out / "searches", processes)
            edges[key] = _edges(redone, measure, searcher, tell)
            done += searcher.done.values()
    made = [run for run in done if not run.reused]
    return Evaluated(
        redone,
        points,
        edges,
        {each.label: gpus_of(each) for each in redone.plan.variants},
        sum(run.arrived for run in made),
        math.fsum(run.simulate_s for run in made),
    )


def gpus_of(experiment: Experiment) -> int:
    """GPUs of all its pools."""
    pools = pools_of(experiment).values()
    return sum(each.replicas * each.tensor_parallel * each.pipeline_parallel for each in pools)


def _groups(redone: Redone) -> dict[tuple[str, ...], list[str]]:
    """The quantities that are sampled, to the variants that have just these."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for label in redone.labels:
        names = tuple(_quantities(redone, label))
        if names:
            groups.setdefault(names, []).append(label)
    return groups


def _quantities(redone: Redone, label: str) -> list[str]:
    paper = redone.paper
    named = [
        name
        for measure in paper.measures.values()
        for name in quantities_of(measure)
        if measure.is_of(label) or (measure.slowdown is not None and measure.slowdown.of == label)
    ]
    drawn = [name for name in paper.draw if name not in paper.measures]
    return list(dict.fromkeys([*named, *drawn]))


def _sampled(names: Sequence[str]) -> Goal:
    quantities = [read_quantity(name, "paper") for name in names]
    return Goal(tuple(Term(each, "<=", math.inf) for each in quantities))


def goal_of(measure: Measure, points: Mapping[str, Mapping[float, Point]]) -> Goal:
    """What a search is after: the goal as written, or the bounds, relative ones as numbers.

    Args:
        measure: With a goal, or with bounds to be searched.
        points: What ran, by label and x; relative bounds go by the mean at the lowest x.
    """
    if measure.goal is not None:
        return read_goal(measure.goal)
    bounds = {name: float(bound) for name, bound in measure.bounds.items()}
    if measure.slowdown is not None:
        alone = points[measure.slowdown.of]
        for name, times in measure.slowdown.times.items():
            runs = alone[min(alone)].values[name]
            bounds[name] = times * math.fsum(runs) / len(runs)
    terms = []
    for name, bound in bounds.items():
        quantity = read_quantity(name, "paper")
        relation = ">=" if quantity.metric.better == "higher" else "<="
        terms.append(Term(quantity, relation, bound))
    return Goal(tuple(terms))


def _plans(redone: Redone) -> dict[float, Plan]:
    """The config at each x."""
    vary = redone.paper.vary
    if vary is None:
        return {ALONE: redone.plan}
    plans = {}
    for x in vary.values:
        keys = {} if vary.key is None else {vary.key: x}
        for key in vary.scale:
            keys[key] = float(f"{x * value_of(redone.config, key, redone.name):.9g}")
        plans[float(x)] = redone.load(keys)
    return plans


def _points(
    redone: Redone,
    names: Sequence[str],
    labels: Sequence[str],
    evaluator: Evaluator,
    tell: Tell,
) -> dict[str, dict[float, Point]]:
    """Every variant of some at every x."""
    plans = _plans(redone)
    wanted = [
        Wanted(experiment, _folder(x), replication)
        for x, plan in plans.items()
        for experiment in plan.variants
        if experiment.label in labels
        for replication in range(experiment.replications)
    ]
    tell(f"{redone.name}: {len(wanted)} runs")
    evaluator.run(wanted)
    return {
        label: {x: _point(names, evaluator.of(label, _folder(x)), evaluator.goal) for x in plans}
        for label in labels
    }


def _folder(x: float) -> str:
    return slug(f"x={x:.6g}")


def _point(names: Sequence[str], runs: list[Evaluation], goal: Goal) -> Point:
    values = {
        name: tuple(term.quantity.value([run.samples[at]]) for run in runs)
        for at, (name, term) in enumerate(zip(names, goal.terms, strict=True))
    }
    return Point(values, tuple(run.verdict in ("overloaded", "backlogged") for run in runs))


def _edges(
    redone: Redone, measure: Measure, evaluator: Evaluator, tell: Tell
) -> dict[str, Bracket]:
    varied = [
        (each.label, rate_of(each, redone.paper.precision, None, redone.plan.source))
        for each in redone.plan.variants
        if measure.is_of(each.label)
    ]
    found = search_edges(
        varied,
        evaluator.goal,
        evaluator,
        repeats=_REPEATS,
        most_runs=_MOST_RUNS,
        tell=lambda text: tell(f"{redone.name}: {text}"),
    )
    return {
        edge.label: Bracket(
            None if edge.best is None else edge.best.value,
            None if edge.next is None else edge.next.value,
        )
        for edge in found
    }
