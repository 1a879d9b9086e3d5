"""Search the edge of every variant, all at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from experiments.capacity.drawn import nothing_is_drawn
from experiments.capacity.evaluate import Evaluator, Tell, Wanted, differ_by_seed
from experiments.capacity.goal import Goal
from experiments.capacity.judge import (
    Evaluation,
    Finding,
    behind,
    findings,
    judge,
    untold,
    verdicts_said,
)
from experiments.capacity.said import counted
from experiments.capacity.search import Search
from experiments.capacity.varied import Varied
from experiments.config import slug
from experiments.schema import Experiment
from sim.errors import ConfigError

_START_DOUBLINGS = 10
"""Steps of two from the start in which a value is looked for that the config allows at all."""

_RUNS_OF_AN_OVERLOAD = 3
"""Runs with other seeds that all have to be overloaded for an overload to be the edge for certain:
fewer, or backlogs, go by the requests that happen to be the last ones."""


@dataclass(frozen=True)
class Point:
    """One value with all its runs.

    Attributes:
        value: Of what is varied.
        meets: Whether the goal holds.
        clear: Whether noise is excluded.
        behind: Runs that were overloaded or backlogged.
        untold: Runs that are too short to tell whether they keep up.
        found: What the runs say of each term.
        runs: In the order of replications.
    """

    value: float
    meets: bool
    clear: bool
    behind: int
    untold: int
    found: tuple[Finding, ...]
    runs: tuple[Evaluation, ...]

    @property
    def arrival_rate(self) -> float:
        """Requests per second measured, mean over the runs."""
        return math.fsum(run.arrival_rate for run in self.runs) / len(self.runs)

    @property
    def meets_goal_itself(self) -> bool:
        """Whether every term holds, whatever the verdicts on the runs are."""
        return all(each.meets for each in self.found)


@dataclass(frozen=True)
class Edge:
    """What a search found for one variant.

    Attributes:
        label: Of the variant.
        varied: What was changed.
        best: Hardest value that meets the goal; None if none does.
        next: Easiest value that misses it; None if none does.
        settled: The bracket is as narrow as asked for, and both ends rest on several runs (one, of
            one recorded trace).
        drawn: Runs with other seeds differ; else one run of a value says all.
        flat: Nothing meets the goal, and easier values change no number.
        points: All values looked at, ascending.
        refused: Values that the config does not allow, and why.
    """

    label: str
    varied: Varied
    best: Point | None
    next: Point | None
    settled: bool
    drawn: bool
    flat: bool
    points: tuple[Point, ...]
    refused: Mapping[float, str] = field(default_factory=dict)

    @property
    def is_bound(self) -> bool:
        """Whether runs are too short to tell where the edge is, only that it is not easier."""
        return self.next is not None and self.next.meets_goal_itself and self.next.untold > 0

    @property
    def is_of_verdict(self) -> bool:
        """Whether the goal itself holds beyond the edge, and how long the runs are may have set it.

        Not where `_RUNS_OF_AN_OVERLOAD` runs or more with other seeds are all overloaded.
        """
        if self.next is None or not self.next.meets_goal_itself:
            return False
        verdicts = [run.verdict for run in self.next.runs]
        several = self.drawn and len(verdicts) >= _RUNS_OF_AN_OVERLOAD
        return not (several and set(verdicts) == {"overloaded"})

    @property
    def refusal(self) -> tuple[float, str] | None:
        """A refused value between both ends of the edge, or beyond the only one, and why."""
        scale, best, missed = self.varied.scale, self.best, self.next
        beside = [
            value
            for value in self.refused
            if (best is None or scale.is_harder(value, best.value))
            and (missed is None or scale.is_harder(missed.value, value))
        ]
        if not beside:
            return None
        # The last step that was tried, and not one of those that were halved on the way back.
        value = (max if scale.hard_is_high == (missed is None) else min)(beside)
        return value, self.refused[value]


@dataclass(eq=False)
class _Ongoing:
    """The search of one variant."""

    label: str
    varied: Varied
    search: Search
    points: dict[float, Point] = field(default_factory=dict)
    drawn: bool = True
    experiments: dict[float, Experiment] = field(default_factory=dict)
    refused: dict[float, str] = field(default_factory=dict)

    def folder(self, value: float) -> str:
        return slug(f"{self.varied.name.rpartition('.')[2]}={value:.6g}")

    def at(self, value: float) -> Experiment:
        """The variant with a value, under its own label.

        Raises:
            ConfigError: The config refuses it.
        """
        if value not in self.experiments:
            made = self.varied.at(value).model_copy(update={"label": self.label})
            self.experiments[value] = made
        return self.experiments[value]

    def allowed(self, value: float) -> bool:
        """Whether the config takes a value; why not is kept."""
        if value not in self.refused:
            try:
                self.at(value)
            except ConfigError as error:
                self.refused[value] = str(error)
        return value not in self.refused

    def begin(self) -> None:
        """Begin at a value that is allowed: of whole numbers, the start or a double or half of it.

        Raises:
            ConfigError: None is.
        """
        start = self.search.start
        powers = range(_START_DOUBLINGS + 1) if self.varied.scale.whole else range(1)
        steps = [start * 2**k for k in powers] + [float(start // 2**k) for k in powers]
        low, high = self.varied.scale.low, self.varied.scale.high
        inside = (value for value in steps if low <= value <= high)
        self.search.start = next(filter(self.allowed, inside), start)
        self.at(self.search.start)


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
    for one in ongoing:
        one.search.allowed = one.allowed
        one.begin()
        if nothing_is_drawn(one.at(one.search.start), evaluator.plan.folder):
            one.drawn, one.search.repeats = False, 1
    while wanted := [(one, run) for one in ongoing for run in one.search.wanted()]:
        evaluator.run(
            [
                Wanted(one.at(value), one.folder(value), replication)
                for one, (value, replication) in wanted
            ]
        )
        for at, value in dict.fromkeys((ongoing.index(one), value) for one, (value, _) in wanted):
            tell(_judge(ongoing[at], value, goal, evaluator))
    return [_edge(one) for one in ongoing]


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
        behind(runs),
        untold(runs),
        tuple(findings(runs, goal)),
        tuple(runs),
    )
    one.points[value] = point
    return f"{one.label}: {one.varied.said(value)}: {said(point)}"


def said(point: Point) -> str:
    """What the runs of a point say, in one line."""
    numbers = ", ".join(f"{each.term.quantity.text} {each.value:.4g}" for each in point.found)
    runs = counted(len(point.runs), "run") + verdicts_said(point.runs)
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
        one.refused,
    )
