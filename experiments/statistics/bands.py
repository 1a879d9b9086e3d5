"""Bands around a distribution function: how sure the share of values up to each x is.

A band is pointwise: at each x alone, it holds the true share with the stated confidence (not the
whole curve at once). It is the interval of `intervals.quantile` turned by a right angle, Student's
t over the groups on the logit scale of the rarer side (values up to x, or beyond), and there is
none where that side holds too few effectively independent values (`LEAST_BEYOND`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.statistics.intervals import (
    CONFIDENCE,
    LEAST_BEYOND,
    LEAST_GROUPS,
    Groups,
    correlation_factor,
    student,
)
from sim.metrics import Floats, Gaps

_PLACES = 24
"""Places at which the dependence of values on each other is measured; in between it is interpolated
(it takes a pass over all values, and changes slowly)."""


@dataclass(frozen=True)
class Band:
    """Where the true distribution function lies.

    Attributes:
        low: Lower end of the share at each x; NaN where there is no band, shape (k,).
        high: Upper end, shape (k,).
        groups: Replications that it rests on.
        confidence: At each x alone.
    """

    low: Floats
    high: Floats
    groups: int
    confidence: float = CONFIDENCE


def band_of_values(groups: Groups, x: Floats, confidence: float = CONFIDENCE) -> Band | None:
    """The band at ascending x of values in groups; None of fewer than `LEAST_GROUPS`.

    Args:
        groups: Values of each replication in the order in which they came, none of them NaN.
        x: Where the distribution is wanted, shape (k,).
        confidence: Two-sided.
    """
    if len(groups) < LEAST_GROUPS or not len(x) or any(not len(each) for each in groups):
        return None
    below = np.array([np.searchsorted(np.sort(each), x, side="right") for each in groups])
    sizes = np.array([len(each) for each in groups])
    return _band(below, sizes, _factors(groups, x), confidence)


def band_of_gaps(
    groups: Sequence[Gaps], x_s: Floats, confidence: float = CONFIDENCE
) -> Band | None:
    """The same of counted gaps, whose order is not known: all gaps of a run count as independent
    where it is asked whether there are enough of them (not for the width of the band).

    Args:
        groups: Distinct gaps in ns and their counts, of each replication.
        x_s: Where the distribution is wanted, seconds, shape (k,).
        confidence: Two-sided.
    """
    if len(groups) < LEAST_GROUPS or not len(x_s) or any(not len(gaps) for gaps, _ in groups):
        return None
    x_ns = np.rint(x_s * 1e9)
    below = []
    for gap_ns, count in groups:
        summed = np.concatenate(([0], np.cumsum(count)))
        below.append(summed[np.searchsorted(gap_ns, x_ns, side="right")])
    sizes = np.array([int(count.sum()) for _, count in groups])
    return _band(np.array(below), sizes, np.ones(len(x_s)), confidence)


def _factors(groups: Groups, x: Floats) -> Floats:
    """How many successive values count as one, for the share up to each x."""
    at = np.unique(np.linspace(0, len(x) - 1, _PLACES).astype(int))
    measured = [
        correlation_factor([(values <= x[i]).astype(np.float64) for values in groups]) for i in at
    ]
    return np.interp(np.arange(len(x)), at, measured)


def _band(
    below: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], factors: Floats, confidence: float
) -> Band:
    """Ends from counts up to each x, shape (groups, k), of groups of these sizes."""
    count, total = len(sizes), int(sizes.sum())
    share = below.sum(axis=0) / total
    residual = below - share * sizes[:, None]
    error = np.sqrt((residual**2).sum(axis=0) * count / (count - 1)) / total
    rarer = np.minimum(share, 1 - share)
    enough = rarer * total / factors >= LEAST_BEYOND
    t = student(count, confidence)
    with np.errstate(divide="ignore", invalid="ignore"):
        logit, spread = np.log(rarer / (1 - rarer)), error / (rarer * (1 - rarer))
        low, high = (1 / (1 + np.exp(-(logit + sign * t * spread))) for sign in (-1, 1))
    low = np.maximum(np.minimum(low, rarer - t * error), 0.0)
    few = share <= 0.5
    return Band(
        np.where(enough, np.where(few, low, 1 - high), np.nan),
        np.where(enough, np.where(few, high, 1 - low), np.nan),
        count,
        confidence,
    )
