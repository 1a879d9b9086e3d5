"""Points of empirical distribution functions: exact, with ties, and few enough to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.metrics import NS_PER_S, Floats, Gaps, Ints, gap_quantiles_s, quantiles

MARKED = (0.5, 0.9, 0.99)
"""Percentiles that are marked on every curve."""

MAX_POINTS = 1_000
"""Most points of one curve. Of more distinct values these are drawn: the least and the largest, the
marked percentiles, three quarters evenly in rank and one quarter ever closer towards the largest.
A point that is drawn is exact; between two of them the curve is off by at most 1 / 740 of all
values, unless a single value is more frequent than that.
"""


@dataclass(frozen=True)
class Curve:
    """A distribution function as drawn: a staircase that rises at each x to `share`.

    Attributes:
        x: Ascending distinct values, shape (k,).
        share: Values up to and including x / all values, shape (k,); the last is 1.
        marks: The percentiles `MARKED`.
    """

    x: Floats
    share: Floats
    marks: Floats


def curve_of_values(values: Floats) -> Curve | None:
    """The distribution of the values that are not NaN; None where there are none."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    x, count = np.unique(defined, return_counts=True)
    return _curve(x, count, quantiles(defined, MARKED))


def curve_of_gaps(gaps: Gaps) -> Curve | None:
    """The distribution of counted gaps, in seconds; None where there are none."""
    gap_ns, count = gaps
    if not len(gap_ns):
        return None
    return _curve(gap_ns / NS_PER_S, count, gap_quantiles_s(gaps, MARKED))


def _curve(x: Floats, count: Ints, marks: Floats) -> Curve:
    below = np.cumsum(count)
    share = below / below[-1]
    kept = _kept(x, share, marks)
    return Curve(x[kept], share[kept], marks)


def _kept(x: Floats, share: Floats, marks: Floats) -> Ints:
    """Positions that are drawn, ascending."""
    if len(x) <= MAX_POINTS:
        return np.arange(len(x))
    marked = np.searchsorted(x, marks)
    room = MAX_POINTS - len(marked) - 2
    tail = room // 4
    even = np.linspace(0, 1, room - tail)
    late = 1 - np.geomspace(1 - share[-2], 1, tail)
    position = np.searchsorted(share, np.concatenate((even, late)))
    ends = [0, len(x) - 1]
    return np.unique(np.concatenate((np.minimum(position, len(x) - 1), marked, ends)))
