"""Search the edge of every variant, all at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from experiments.capacity.evaluate import Evaluator, Tell, Wanted, differ_by_seed
from experiments.capacity.goal import Goal
from experiments.capacity.judge import Evaluation, Finding, findings, growing, judge
from experiments.capacity.search import Search
from experiments.capacity.varied import Varied
from experiments.config import slug
from experiments.schema import Experiment


@dataclass(frozen=True)
class Point:
    """One value with all its runs.

    Attributes:
        value: Of what is varied.
        meets: Whether the goal holds.
        clear: Whether noise is excluded.
        behind: Runs that were overloaded or backlogged.
        found: What the runs say of each term.
        runs: In the order of replications.
    """

    value: float
    meets: bool
    clear: bool
    behind: int
    found: tuple[Finding, ...]
    runs: tuple[Evaluation, ...]

    @property
    def arrival_rate(self) -> float:
        """Requests per second measured, mean over the runs."""
        return math.fsum(run.arrival_rate for run in self.runs) / len(self.runs)


@dataclass(frozen=True)
class Edge:
    """What a search found for one variant.

    Attributes:
        label: Of the variant.
        varied: What was changed.
        best: Hardest value that meets the goal; None if none does.
        next: Easiest value that misses it; None if none does.
        settled: The bracket is as narrow as asked for, and both ends rest on several runs.
        drawn: Runs with other seeds differ; else one run of a value says all.
        flat: Nothing meets the goal, and easier values change no number.
        points: All values looked at, ascending.
    """

    label: str
    varied: Varied
    best: Point | None
    next: Point | None
    settled: bool
    drawn: bool
    flat: bool
    points: tuple[Point, ...]


@dataclass(eq=False)
class _Ongoing:
    """The search of one variant."""

    label: str
    varied: Varied
    search: Search
    points: dict[float, Point] = field(default_factory=dict)
    drawn: bool = True

    def folder(self, value: float) -> str:
        return slug(f"{self.varied.name.rpartition('.')[2]}={value:.6g}")


def search_edges(
    varied: Sequence[tuple[str, Varied]],
    goal: Goal,
    evaluator: Evaluator,
    *,
    repeats: int,
    most_runs: int,
    tell: Tell = lambda text: None,
) -> list[Edge]:
    """Find the edge of each variant (the rule is in `search.py`).

    Runs that the variants ask for at one time are made side by side. Replication k of any value and
    variant has the same seed, so that noise does not move values against each other.

    Args:
        varied: Label of each variant, and what is changed in it.
        goal: What has to hold.
        evaluator: Makes and keeps the runs.
        repeats: Runs of the ends of a bracket that noise leaves in doubt.
        most_runs: Of a variant.
        tell: Given one line for each point that has new runs.

    Raises:
        PhasewiseError: A run failed.
    """
    ongoing = [
        _Ongoing(label, each, Search(each.scale, each.start, repeats, most_runs))
        for label, each in varied
    ]
    while wanted := [(one, run) for one in ongoing for run in one.search.wanted()]:
        evaluator.run(
            [
                Wanted(_labelled(one, value), one.folder(value), replication)
                for one, (value, replication) in wanted
            ]
        )
        for at, value in dict.fromkeys((ongoing.index(one), value) for one, (value, _) in wanted):
            tell(_judge(ongoing[at], value, goal, evaluator))
    return [_edge(one) for one in ongoing]


def _labelled(one: _Ongoing, value: float) -> Experiment:
    return one.varied.at(value).model_copy(update={"label": one.label})


def _judge(one: _Ongoing, value: float, goal: Goal, evaluator: Evaluator) -> str:
    """Judge a value anew on all its runs; one line on it."""
    runs = evaluator.of(one.label, one.folder(value))
    if not differ_by_seed(runs):
        one.drawn, one.search.repeats = False, 1
    judged = judge(runs, goal)
    one.search.tell(value, judged, len(runs))
    point = Point(
        value,
        judged.meets,
        judged.clear,
        growing(runs),
        tuple(findings(runs, goal)),
        tuple(runs),
    )
    one.points[value] = point
    return f"{one.label}: {one.varied.said(value)}: {said(point)}"


def said(point: Point) -> str:
    """What the runs of a point say, in one line."""
    numbers = ", ".join(f"{each.term.quantity.text} {each.value:.4g}" for each in point.found)
    behind = f", {point.behind} overloaded or backlogged" if point.behind else ""
    runs = f"{len(point.runs)} run{'s' if len(point.runs) > 1 else ''}{behind}"
    word = "meets" if point.meets else "misses"
    doubt = "" if point.clear or len(point.runs) == 1 else ", not for certain"
    return f"{numbers} ({runs}): {word} the goal{doubt}"


def _edge(one: _Ongoing) -> Edge:
    easy, hard = one.search.bracket()
    return Edge(
        one.label,
        one.varied,
        None if easy is None else one.points[easy],
        None if hard is None else one.points[hard],
        one.search.settled,
        one.drawn,
        one.search.flat,
        tuple(one.points[value] for value in sorted(one.points)),
    )
