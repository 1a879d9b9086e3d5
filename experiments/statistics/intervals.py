"""Confidence intervals of means, percentiles and shares, or why there is none.

Values of requests that follow each other in a queue depend on each other, so no interval here takes
them for independent, but `independent_quantile`. What is independent are *groups* of them: runs
with other seeds (replications), or long batches of one run (`batches`). Between groups an interval
takes Student's t with groups - 1 degrees of freedom.

How much the values within a group depend on each other is measured (`correlation_factor`), and an
interval is refused where a group holds too few effectively independent values for the t
distribution to hold: `LEAST_PER_GROUP` for a mean, `LEAST_BEYOND` beyond a percentile, all groups
together. With fewer, intervals of a mean and P99 of M/M/1 queues were found to contain the truth in
60 to 91 % of experiments instead of 95 %; see ``tests/experiments/statistics/test_coverage.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.metrics import Floats

CONFIDENCE = 0.95
"""Two-sided, of every interval that does not say another."""

LEAST_GROUPS = 3
"""Fewer groups have no interval: with two, Student's t is 12.7."""

LEAST_PER_GROUP = 50
"""Effectively independent values in a group for the mean of each to be nearly normal: queues give
skewed values, of which fewer do not do."""

LEAST_BEYOND = 20
"""Effectively independent values beyond a percentile, in all groups together."""

BATCHES = 10
"""Parts of one run (Schmeiser, Operations Research 30, 1982: 10 to 30; fewer are longer, and so
depend less on each other)."""

_NEAR = (0.9, 0.95, 0.99)
"""Percentiles beyond which a value is a near miss."""

_PARTS = (4, 16)
"""Blocks within a group whose means tell how much neighbours depend on each other."""


@dataclass(frozen=True)
class Interval:
    """A number and where its true value lies.

    Attributes:
        estimate: The number.
        low: Lower end.
        high: Upper end.
        confidence: Share of such intervals that contain the true value.
        method: How it was made, a few words.
        groups: Replications or batches that it rests on; 0 for independent values.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    method: str
    groups: int

    @property
    def half_width(self) -> float:
        """Half the distance of its ends."""
        return (self.high - self.low) / 2

    def contains(self, value: float) -> bool:
        """Whether a value lies in it, ends included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Refusal:
    """A number without an interval, and what one would take.

    Attributes:
        estimate: The number; NaN where there is not even that.
        reason: What is lacking, a few words.
        needs_replications: Runs of this length that would do; None if more runs do not help.
        needs_requests: Requests of each run (of one trace: in all) that would do; None if longer
            runs do not help.
    """

    estimate: float
    reason: str
    needs_replications: int | None = None
    needs_requests: int | None = None

    def __str__(self) -> str:
        ways = []
        if self.needs_replications is not None:
            ways.append(f"{self.needs_replications:,} replications")
        if self.needs_requests is not None:
            ways.append(f"{self.needs_requests:,} requests a run")
        return f"{self.reason}; needs {' or '.join(ways)}" if ways else self.reason


Groups = Sequence[Floats]
"""Values of each replication or batch, in the order in which they came, none of them NaN."""


def mean(groups: Groups, confidence: float = CONFIDENCE) -> Interval | Refusal:
    """Mean of all values, with Student's t over the groups.

    Groups of unequal size are weighted by it, as a ratio estimator: with n_i values and sum s_i the
    mean is m = sum s_i / sum n_i, and its variance follows from the residuals s_i - m n_i
    (Cochran, Sampling Techniques, 3rd ed., section 6.4). With equal sizes this is t over the means.

    Args:
        groups: Of equally many values, roughly.
        confidence: Two-sided.
    """
    pooled = _pooled(groups)
    if isinstance(pooled, Refusal):
        return pooled
    estimate = float(pooled.mean())
    if len(groups) < LEAST_GROUPS:
        return _too_few_groups(estimate, len(groups))
    if (refusal := _too_dependent(groups, estimate)) is not None:
        return refusal
    half = student(len(groups), confidence) * _error(groups, estimate)
    method = f"t over {len(groups)} groups"
    return Interval(estimate, estimate - half, estimate + half, confidence, method, len(groups))


def over_runs(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | Refusal:
    """Mean of a number that each run has once, such as its throughput, with Student's t."""
    numbers = np.asarray(values, dtype=np.float64)
    if not len(numbers) or np.isnan(numbers).any():
        return Refusal(math.nan, "a run does not have this number")
    estimate = float(numbers.mean())
    if len(numbers) < LEAST_GROUPS:
        return _too_few_groups(estimate, len(numbers))
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    half = student(len(numbers), confidence) * error
    method = f"t over {len(numbers)} groups"
    return Interval(estimate, estimate - half, estimate + half, confidence, method, len(numbers))


def quantile(groups: Groups, p: float, confidence: float = CONFIDENCE) -> Interval | Refusal:
    """Percentile of all values, from an interval of the share of values beyond it.

    Woodruff's method (Journal of the American Statistical Association 47, 1952) over groups: at
    the estimate q, the share a of values beyond q has an interval by Student's t over the groups,
    and its ends are read from the pooled distribution. A share is never biased, whereas the P99 of
    each short run is too low on average, so that intervals around the mean of those miss.

    The share's ends: on the logit scale, which suits few values beyond q; the lower end, from which
    the upper end of the percentile follows, is the lower of that and a - t se, since large values
    of queues come in clusters of very unequal size.

    Args:
        groups: Of equally many values, roughly.
        p: Between 0 and 1.
        confidence: Two-sided.
    """
    if (refusal := quantile_refused(groups, p)) is not None:
        return refusal
    ordered = np.sort(np.concatenate(list(groups)))
    total = len(ordered)
    estimate = float(ordered[_rank(p, total)])
    beyond = [(values > estimate).astype(np.float64) for values in groups]
    low_share, high_share = _ends_of_share(beyond, student(len(groups), confidence))
    low, high = _rank(1 - high_share, total), math.ceil((1 - low_share) * total)
    if low_share <= 0 or high >= total:
        twice = 2 * len(groups)
        return Refusal(estimate, "the upper end lies beyond the largest value", twice)
    method = f"share beyond it, t over {len(groups)} groups"
    ends = float(ordered[low]), float(ordered[high])
    return Interval(estimate, *ends, confidence, method, len(groups))


def quantile_refused(groups: Groups, p: float) -> Refusal | None:
    """Why `quantile` has no interval, as far as that can be said before one is made."""
    pooled = _pooled(groups)
    if isinstance(pooled, Refusal):
        return pooled
    rank = _rank(p, len(pooled))
    estimate = float(np.partition(pooled, rank)[rank])
    if len(groups) < LEAST_GROUPS:
        return _too_few_groups(estimate, len(groups))
    beyond = [(values > estimate).astype(np.float64) for values in groups]
    if not any(values.any() for values in beyond):
        return Refusal(estimate, "no value lies beyond it")
    return _too_few_beyond(beyond, p, estimate)


def share(
    groups: Groups, confidence: float = CONFIDENCE, closeness: Groups | None = None
) -> Interval | Refusal:
    """Share of ones among zeros and ones, such as SLO attainment; both have to be frequent enough.

    Or one of them is not there at all, and `closeness` is given: then the other end is exact
    (Clopper and Pearson, Biometrika 26, 1934: of n independent ones, the share is at least
    ((1 - confidence) / 2)^(1 / n)), with n the values that count as independent. Of what never
    happened no dependence can be measured: that of near misses stands for it, the largest
    `correlation_factor` of being beyond one of `_NEAR` of the values of closeness, and with fewer
    than `LEAST_BEYOND` independent ones beyond the middle one of these there is no interval. Where
    misses would come in larger clusters than near misses do, this claims too much.

    Args:
        groups: Of zeros and ones.
        confidence: Two-sided.
        closeness: Of each value, how near it came to being a zero: larger is nearer.
    """
    pooled = _pooled(groups)
    if isinstance(pooled, Refusal):
        return pooled
    estimate = float(pooled.mean())
    if len(groups) < LEAST_GROUPS:
        return _too_few_groups(estimate, len(groups))
    rarer = list(groups) if estimate <= 0.5 else [1 - values for values in groups]
    few = min(estimate, 1 - estimate)
    if few == 0:
        return _all_alike(groups, estimate, confidence, closeness)
    what = "the rarer outcome counts"
    if (refusal := _too_few_beyond(rarer, 1 - few, estimate, what)) is not None:
        return refusal
    low, high = _ends_of_share(rarer, student(len(groups), confidence))
    low = max(low, 0.0)
    ends = (low, high) if estimate <= 0.5 else (1 - high, 1 - low)
    return Interval(estimate, *ends, confidence, f"t over {len(groups)} groups", len(groups))


def independent_quantile(
    values: Floats, p: float, confidence: float = CONFIDENCE
) -> Interval | Refusal:
    """Percentile of *independent* values, between two of them; free of any distribution.

    The number of values up to the true percentile is binomial, so that the ends are order
    statistics, each missed with probability (1 - confidence) / 2 at most (David and Nagaraja, Order
    Statistics, 3rd ed., section 7.1).

    Args:
        values: Independent, such as one number of each replication.
        p: Between 0 and 1.
        confidence: Two-sided; at least this.
    """
    from scipy.special import bdtr

    n = len(values)
    estimate = float(np.quantile(values, p, method="inverted_cdf")) if n else math.nan
    tail = (1 - confidence) / 2
    needed = math.ceil(math.log(tail) / math.log(max(p, 1 - p)))
    if n < needed:
        why = f"{n:,} independent values have no such interval of P{100 * p:g}"
        return Refusal(estimate, why, needs_requests=needed)
    below = bdtr(np.arange(n), n, p)  # P(at most k values up to the percentile)
    # The low end X_(l) is too high if fewer than l values lie below: P(B <= l - 1) <= tail.
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    if low < 1 or high > n:
        return Refusal(estimate, f"{n:,} independent values do not do", needs_requests=needed + 1)
    ordered = np.sort(values)
    ends = float(ordered[low - 1]), float(ordered[high - 1])
    return Interval(estimate, *ends, confidence, "order statistics", 0)


def batches(values: Floats, count: int = BATCHES) -> list[Floats]:
    """One run cut into equally long parts, the first values left out where it does not go up.

    Args:
        values: In the order in which they came, warm-up removed.
        count: Parts.
    """
    blocks = _blocks(values, count)
    return list(blocks) if blocks.size else []


def correlation_factor(groups: Groups) -> float:
    """How many successive values count as one independent value, at least 1.

    The largest, over blocks of a quarter and a sixteenth of a group, of block length x variance of
    block means / variance of the values: 1 for independent ones, and where blocks are long against
    the correlation, the sum of all autocorrelations (Law, Simulation Modeling and Analysis,
    5th ed., section 4.4). Blocks within groups, and not the groups themselves, so that whether an
    interval is refused depends little on how wide it would be.
    """
    spread = float(np.concatenate(list(groups)).var())
    if spread == 0:
        return 1.0
    factors = [1.0]
    for parts in _PARTS:
        cut = [_blocks(values, parts) for values in groups]
        length = float(np.mean([blocks.shape[1] for blocks in cut]))
        if length >= 2:
            means = np.concatenate([blocks.mean(axis=1) for blocks in cut if blocks.size])
            factors.append(length * float(means.var(ddof=1)) / spread)
    return max(factors)


# --- parts of the above


def _pooled(groups: Groups) -> Floats | Refusal:
    if not groups or any(len(values) == 0 for values in groups):
        return Refusal(math.nan, "a group has no values")
    return np.concatenate(list(groups))


def _blocks(values: Floats, count: int) -> Floats:
    """The last values as `count` equal parts, shape (count, length of a part)."""
    length = len(values) // count
    return values[len(values) - length * count :].reshape(count, length)


def _rank(p: float, n: int) -> int:
    """Position of the percentile among n ordered values, as `sim.metrics.quantiles` has it."""
    return min(max(math.ceil(p * n) - 1, 0), n - 1)


def _ranks(groups: Groups) -> list[Floats]:
    """Values replaced by their mean rank among all."""
    _, place, count = np.unique(
        np.concatenate(list(groups)), return_inverse=True, return_counts=True
    )
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    return np.split(rank, np.cumsum([len(values) for values in groups])[:-1])


def student(groups: int, confidence: float) -> float:
    """Student's t of so many groups, two-sided."""
    from scipy.special import stdtrit

    return float(stdtrit(groups - 1, (1 + confidence) / 2))


def _error(groups: Groups, estimate: float) -> float:
    """Standard error of the pooled mean, from the residuals of the groups."""
    residual = np.array([float(values.sum()) - estimate * len(values) for values in groups])
    total, count = sum(len(values) for values in groups), len(groups)
    return math.sqrt(float(residual @ residual) * count / (count - 1)) / total


def _ends_of_share(ones: Groups, t: float) -> tuple[float, float]:
    """Ends of the interval of a share below 1/2, as `quantile` says; the lower may be below 0."""
    middle = float(np.concatenate(list(ones)).mean())
    error = _error(ones, middle)
    logit, spread = math.log(middle / (1 - middle)), error / (middle * (1 - middle))
    low, high = (1 / (1 + math.exp(-x)) for x in (logit - t * spread, logit + t * spread))
    return min(low, middle - t * error), high


def _all_alike(
    groups: Groups, estimate: float, confidence: float, closeness: Groups | None
) -> Interval | Refusal:
    """The exact interval of a share of 0 or 1, as `share` says."""
    total = sum(len(values) for values in groups)
    alike = Refusal(estimate, f"all {total:,} are alike")
    if closeness is None:
        return alike
    nearest = [values if estimate == 1 else -values for values in closeness]
    pooled = np.sort(np.concatenate(nearest))
    levels = [pooled[_rank(p, total)] for p in _NEAR]
    beyond = [[(values > level).astype(np.float64) for values in nearest] for level in levels]
    if not any(values.any() for values in beyond[1]):
        return alike
    factor = max(correlation_factor(each) for each in beyond)
    effective = total / factor
    most = 1 - _NEAR[1]
    if effective * most < LEAST_BEYOND:
        more = LEAST_BEYOND / (effective * most)
        shortest = min(len(values) for values in groups)
        why = f"all {total:,} are alike, and count as {effective:.2g} independent ones"
        return Refusal(estimate, why, math.ceil(len(groups) * more), math.ceil(shortest * more))
    bound = ((1 - confidence) / 2) ** (1 / effective)
    low, high = (bound, 1.0) if estimate == 1 else (0.0, 1 - bound)
    method = f"exact, {total:,} alike that count as {effective:,.0f}"
    return Interval(estimate, low, high, confidence, method, len(groups))


def _too_few_groups(estimate: float, groups: int) -> Refusal:
    why = f"{groups} run{' says' if groups == 1 else 's say'} nothing of how much runs differ"
    return Refusal(estimate, why, needs_replications=LEAST_GROUPS)


def _too_dependent(groups: Groups, estimate: float) -> Refusal | None:
    shortest = min(len(values) for values in groups)
    # Of ranks, which a few very large values, rare and decisive for the mean, do not sway.
    effective = shortest / correlation_factor(_ranks(groups))
    if effective >= LEAST_PER_GROUP:
        return None
    why = f"{shortest:,} successive values count as {effective:.3g} independent ones"
    needed = math.ceil(shortest * LEAST_PER_GROUP / effective)
    return Refusal(estimate, why, needs_requests=needed)


def _too_few_beyond(
    beyond: Groups, p: float, estimate: float, what: str = "values beyond it count"
) -> Refusal | None:
    total = sum(len(values) for values in beyond)
    effective = total * min(p, 1 - p) / correlation_factor(beyond)
    if effective >= LEAST_BEYOND:
        return None
    more = LEAST_BEYOND / effective
    shortest = min(len(values) for values in beyond)
    why = f"{what} as {effective:.2g} independent ones"
    return Refusal(estimate, why, math.ceil(len(beyond) * more), math.ceil(shortest * more))
