"""Numbers of the runs: a metric at a point, how far bounds hold, the rate that a goal allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.papers.block import Measure, better_of
from experiments.papers.evaluate import ALONE, Bracket, Evaluated
from experiments.quantity import read_quantity
from experiments.tables import three_digits


@dataclass(frozen=True)
class Value:
    """A measure of one variant.

    Attributes:
        runs: Of each replication; of a search only one, the middle of its bracket.
        low: The least that it can be, as far as the search or the grid of x tells.
        high: The most.
    """

    runs: tuple[float, ...]
    low: float
    high: float

    @property
    def estimate(self) -> float:
        """Mean over the replications."""
        return math.fsum(self.runs) / len(self.runs)

    @property
    def mark(self) -> str:
        """``>`` or ``<`` where the grid of x ends before the number does."""
        if math.isinf(self.high):
            return "> "
        return "< " if self.low == -math.inf else ""

    def said(self) -> str:
        """The number, for people."""
        return self.mark + number_said(self.estimate)


def number_said(value: float) -> str:
    """Three digits; what was never served has no end."""
    if math.isnan(value):
        return "none"
    return "never served" if math.isinf(value) else three_digits(value)


def value_of(evaluated: Evaluated, key: str, label: str) -> Value:
    """A measure of one variant.

    Args:
        evaluated: What was run.
        key: Of the measure.
        label: Of the variant.
    """
    measure = evaluated.redone.paper.measures[key]
    value = _value(evaluated, key, measure, label)
    if not measure.per_gpu:
        return value
    gpus = evaluated.gpus[label]
    return Value(tuple(run / gpus for run in value.runs), value.low / gpus, value.high / gpus)


def _value(evaluated: Evaluated, key: str, measure: Measure, label: str) -> Value:
    if measure.searched:
        return _of_edge(evaluated.edges[key][label])
    if measure.quantity is not None:
        at = ALONE if measure.at is None else float(measure.at)
        runs = evaluated.points[label][at].values[measure.quantity]
        return Value(runs, min(runs), max(runs))
    replications = len(evaluated.points[label][evaluated.xs[0]].behind)
    reached = [_reached(evaluated, measure, label, k) for k in range(replications)]
    return Value(
        tuple(each.x for each in reached),
        -math.inf if all(each.below for each in reached) else min(each.x for each in reached),
        math.inf if all(each.beyond for each in reached) else max(each.x for each in reached),
    )


def _of_edge(edge: Bracket) -> Value:
    """The middle of the bracket, geometric as the search goes; its end where it has only one."""
    meets, misses = edge.meets, edge.misses
    if meets is None or misses is None:
        end = (misses if meets is None else meets) or 0.0
        return Value((end,), -math.inf if meets is None else meets, misses or math.inf)
    return Value((math.sqrt(meets * misses),), meets, misses)


# --- how far along the x axis bounds hold


@dataclass(frozen=True)
class _Reached:
    x: float
    below: bool = False
    beyond: bool = False


def _reached(evaluated: Evaluated, measure: Measure, label: str, replication: int) -> _Reached:
    """The last x up to which all bounds hold and the variant keeps up with its arrivals.

    From the first x on, each point has to hold. Between the last that does and the first that does
    not, each quantity is taken to change exponentially (linearly, if it is a share or not positive)
    and the least x counts at which one meets its bound; a point that only fails since it is
    overloaded, or infinite, adds nothing.
    """
    xs = evaluated.xs[::-1] if measure.falling else evaluated.xs
    bounds = bounds_of(evaluated, measure, replication)
    points = [evaluated.points[label][x] for x in xs]
    columns = {name: [p.values[name][replication] for p in points] for name in bounds}
    last = -1
    for at, point in enumerate(points):
        held = all(_holds(name, columns[name][at], bound) for name, bound in bounds.items())
        if not held or (point.behind[replication] and not measure.falling):
            break
        last = at
    if last < 0:
        return _Reached(xs[0], below=not measure.falling, beyond=measure.falling)
    if last == len(xs) - 1:
        return _Reached(xs[-1], below=measure.falling, beyond=not measure.falling)
    shares = [
        _share(name, column[last], column[last + 1], bounds[name])
        for name, column in columns.items()
        if not _holds(name, column[last + 1], bounds[name])
    ]
    return _Reached(xs[last] + min(shares, default=0.0) * (xs[last + 1] - xs[last]))


def bounds_of(evaluated: Evaluated, measure: Measure, replication: int) -> dict[str, float]:
    """All bounds as numbers: relative ones by the first x of the variant that they name."""
    bounds = {name: float(bound) for name, bound in measure.bounds.items()}
    if measure.slowdown is not None:
        alone = evaluated.points[measure.slowdown.of][evaluated.xs[0]]
        for name, times in measure.slowdown.times.items():
            bounds[name] = times * alone.values[name][replication]
    return bounds


def _holds(name: str, value: float, bound: float) -> bool:
    if read_quantity(name, "paper").metric.better == "higher":
        return value >= bound
    return value <= bound


def _share(name: str, before: float, after: float, bound: float) -> float:
    """Where between two points, 0 to 1, a quantity meets its bound."""
    if not math.isfinite(after) or before == after:
        return 0.0
    if min(before, after, bound) > 0 and read_quantity(name, "paper").of_time:
        before, after, bound = math.log(before), math.log(after), math.log(bound)
    return min(1.0, max(0.0, (bound - before) / (after - before)))


def bars_of(evaluated: Evaluated, keys: Sequence[str]) -> dict[str, dict[str, Value]]:
    """Measure, then label, to the value."""
    return {
        key: {
            label: value_of(evaluated, key, label)
            for label in evaluated.redone.labels
            if evaluated.redone.paper.measures[key].is_of(label)
        }
        for key in keys
    }


def larger_is_better(evaluated: Evaluated, key: str) -> bool:
    """Whether more of a measure is good."""
    return better_of(evaluated.redone.paper.measures[key]) == "higher"
