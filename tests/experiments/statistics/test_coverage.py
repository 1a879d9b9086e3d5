"""95 % intervals contain the truth in 92 to 98 % of experiments, or are refused; so are pairs.

The truth is known: independent exponential times, and the stationary time in system of M/M/1, which
is exponential with rate 1 - load, but depends on that of the customers before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from experiments.statistics import intervals
from experiments.statistics.intervals import Interval, Refusal
from experiments.statistics.pairs import Difference, paired_difference
from sim.metrics import Floats

EXPERIMENTS = 1000


def exponential(runs: int, requests: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_exponential((runs, requests))


def m_m_1(runs: int, requests: int, load: float, seed: int) -> Floats:
    """Times in system of successive customers from a stationary start; service takes 1."""
    rng = np.random.default_rng(seed)
    wait = np.where(rng.random(runs) < load, rng.exponential(1 / (1 - load), runs), 0.0)
    spent = np.empty((requests, runs))
    for customer in range(requests):  # Lindley's recursion, for all runs at once
        spent[customer] = wait + rng.standard_exponential(runs)
        wait = np.maximum(spent[customer] - rng.standard_exponential(runs) / load, 0.0)
    return np.ascontiguousarray(spent.T)


@dataclass
class Counted:
    """How many experiments gave an interval, and how many of these contain the truth."""

    given: int = 0
    right: int = 0

    def add(self, found: Interval | Refusal, truth: float) -> None:
        if isinstance(found, Interval):
            self.given += 1
            self.right += found.contains(truth)
        else:
            assert found.needs_replications or found.needs_requests

    def check(self, experiments: int = EXPERIMENTS) -> None:
        """Covered in 92 to 98 % where most have an interval; else few have a wrong one."""
        if self.given >= 0.8 * experiments:
            assert 0.92 <= self.right / self.given <= 0.98, self
        else:
            assert self.given - self.right <= 0.05 * experiments, self


Statistic = Callable[[Sequence[Floats]], Interval | Refusal]
STATISTICS: dict[str, Statistic] = {
    "mean": intervals.mean,
    "P50": lambda groups: intervals.quantile(groups, 0.5),
    "P99": lambda groups: intervals.quantile(groups, 0.99),
}


def truths(mean: float) -> dict[str, float]:
    return {"mean": mean, "P50": mean * math.log(2), "P99": mean * math.log(100)}


def counted(values: Floats, replications: int, mean: float) -> dict[str, Counted]:
    counts = {name: Counted() for name in STATISTICS}
    for first in range(0, len(values), replications):
        groups = list(values[first : first + replications])
        for name, statistic in STATISTICS.items():
            counts[name].add(statistic(groups), truths(mean)[name])
    return counts


@pytest.mark.parametrize(
    ("replications", "requests", "given"),
    [
        (10, 300, 0.9),
        pytest.param(5, 1000, 0.99, marks=pytest.mark.slow),
        pytest.param(30, 200, 0.99, marks=pytest.mark.slow),
    ],
)
def test_independent_values(replications: int, requests: int, given: float) -> None:
    values = exponential(EXPERIMENTS * replications, requests, seed=replications)

    for count in counted(values, replications, 1.0).values():
        count.check()
        assert count.given >= given * EXPERIMENTS


def test_runs_too_short_for_their_p99_are_refused() -> None:
    values = exponential(EXPERIMENTS * 5, 200, seed=0)

    counts = counted(values, 5, 1.0)

    assert counts["mean"].given == counts["P50"].given == EXPERIMENTS
    assert counts["P99"].given == 0
    refused = intervals.quantile(list(values[:5]), 0.99)
    assert isinstance(refused, Refusal)
    # 1,000 values have 10 beyond their P99; twice as many at least are needed.
    assert refused.needs_requests >= 400  # type: ignore[operator]
    assert refused.needs_replications >= 10  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replications", "requests"),
    [(5, 1000), (5, 3000), (10, 1000), (10, 3000), (30, 300), (30, 1000)],
)
@pytest.mark.parametrize("load", [0.5, 0.8])
def test_times_in_a_queue(replications: int, requests: int, load: float) -> None:
    counts = {name: Counted() for name in STATISTICS}
    for part in range(8):  # 2,000 experiments; a part of them at a time keeps the memory small
        runs = EXPERIMENTS // 4 * replications
        values = m_m_1(runs, requests, load, seed=100 * replications + part)
        for name, more in counted(values, replications, 1 / (1 - load)).items():
            counts[name].given += more.given
            counts[name].right += more.right

    for count in counts.values():
        count.check(2 * EXPERIMENTS)
    if load == 0.5 and requests * replications >= 30_000:
        assert min(count.given for count in counts.values()) >= 0.9 * 2 * EXPERIMENTS


@pytest.mark.slow
def test_batches_of_one_long_run() -> None:
    counts = {name: Counted() for name in STATISTICS}
    for part in range(10):
        for run in m_m_1(EXPERIMENTS // 10, 20_000, 0.5, seed=part):
            for name, statistic in STATISTICS.items():
                counts[name].add(statistic(intervals.batches(run)), truths(2.0)[name])

    for count in counts.values():
        count.check()
    assert counts["mean"].given == counts["P50"].given == EXPERIMENTS


@pytest.mark.parametrize("size", [5, 10, 30, 400, 2000])
@pytest.mark.parametrize("p", [0.5, 0.99])
def test_order_statistics_of_independent_values(size: int, p: float) -> None:
    count = Counted()
    for values in exponential(EXPERIMENTS, size, seed=size):
        count.add(intervals.independent_quantile(values, p), -math.log(1 - p))

    assert count.given == (0 if math.log(0.025) / math.log(max(p, 1 - p)) > size else EXPERIMENTS)
    if count.given:
        # At least 95 %; few values have no interval close to it.
        assert count.right / count.given >= 0.935
        assert size < 30 or count.right / count.given <= 0.98


@pytest.mark.parametrize("replications", [5, 10, 30])
@pytest.mark.parametrize("p", [None, 0.99])
def test_a_against_a_is_not_separable(replications: int, p: float | None) -> None:
    one, other = (
        exponential(EXPERIMENTS * replications, 200, seed=seed) for seed in (replications, 99)
    )
    of_runs = [
        values.mean(axis=1) if p is None else np.quantile(values, p, axis=1)
        for values in (one, other)
    ]

    apart = [
        _compared(of_runs[0][at : at + replications], of_runs[1][at : at + replications]).separable
        for at in range(0, EXPERIMENTS * replications, replications)
    ]

    assert 0.93 <= 1 - np.mean(apart) <= 0.97


@pytest.mark.parametrize("replications", [5, 10, 30])
def test_a_difference_of_twice_the_half_width_is_found(replications: int) -> None:
    one, other = (
        exponential(EXPERIMENTS * replications, 200, seed=seed).mean(axis=1) for seed in (7, 8)
    )
    pairs = [
        (one[at : at + replications], other[at : at + replications])
        for at in range(0, EXPERIMENTS * replications, replications)
    ]
    half = float(np.mean([_compared(*pair).interval.half_width for pair in pairs]))

    found = [_compared(a, b + 2 * half) for a, b in pairs]

    assert np.mean([each.separable and each.interval.estimate > 0 for each in found]) >= 0.9


@pytest.mark.parametrize("missing", [0.0003, 0.001, 0.003])
def test_a_share_without_a_miss_is_bounded_from_below(missing: float) -> None:
    """Where the true share of misses is `missing`, few experiments see none and claim a smaller."""
    experiments, target = 150, -math.log(missing) / 0.2
    spent = m_m_1(3 * experiments, 10_000, 0.8, seed=1).reshape(experiments, 3, -1)
    without = [groups for groups in spent if groups.max() <= target]

    found = [intervals.share([np.ones(10_000)] * 3, closeness=list(each)) for each in without]

    given = [each for each in found if isinstance(each, Interval)]
    assert sum(each.low > 1 - missing for each in given) <= 0.025 * experiments
    assert all(each.low > 0.99 and each.high == 1 for each in given)
    if missing == 0.0003:
        assert len(given) > 0.4 * experiments


def _compared(first: Floats, second: Floats) -> Difference:
    found = paired_difference(first.tolist(), second.tolist())
    assert isinstance(found, Difference)
    return found
