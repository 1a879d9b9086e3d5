"""Differences between variants, in numbers worked by hand, and the words for them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.statistics import intervals
from experiments.statistics.intervals import Interval, Refusal
from experiments.statistics.pairs import Difference, paired_difference


def test_a_difference_by_hand() -> None:
    # Differences -2, -1, -3: mean -2, standard deviation 1, error 1 / sqrt(3), t(2) = 4.3027.
    found = paired_difference([10, 11, 12], [8, 10, 9])

    assert isinstance(found, Difference)
    assert found.interval.estimate == -2
    assert found.interval.half_width == pytest.approx(4.302653 / math.sqrt(3))
    assert not found.separable
    assert found.relative == pytest.approx(-2 / 11)
    assert found.said("lower", of_time=True) == "not separable (-18 % ± 23)"


@pytest.mark.parametrize(
    ("better", "of_time", "sign", "said"),
    [
        ("lower", True, -1, "faster by 12 % ± 3"),
        ("lower", True, 1, "slower by 12 % ± 3"),
        ("higher", False, 1, "higher by 12 % ± 3"),
        ("lower", False, -1, "lower by 12 % ± 3"),
    ],
)
def test_words(better: str, of_time: bool, sign: int, said: str) -> None:
    interval = Interval(sign * 0.12, sign * 0.12 - 0.03, sign * 0.12 + 0.03, 0.95, "", 5)

    assert Difference(1.0, 1.0, interval).said(better, of_time=of_time) == said  # type: ignore[arg-type]


def test_a_difference_from_nothing_is_absolute() -> None:
    found = paired_difference([0, 0, 0, 0], [2, 2.1, 1.9, 2])

    assert isinstance(found, Difference)
    assert found.said("lower", of_time=False) == "higher by +2 ± 0.13"


def test_common_random_numbers_separate_what_independent_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    workload = rng.normal(100, 20, 5)
    paired = paired_difference(workload.tolist(), (workload * 0.97).tolist())
    independent = paired_difference(workload.tolist(), (rng.normal(100, 20, 5) * 0.97).tolist())

    assert isinstance(paired, Difference)
    assert isinstance(independent, Difference)
    assert paired.separable
    assert not independent.separable


def test_two_runs_are_too_few() -> None:
    refused = paired_difference([1, 2], [3, 4])

    assert isinstance(refused, Refusal)
    assert refused.needs_replications == 3
    assert str(refused) == "2 runs say nothing of how much runs differ; needs 3 replications"


def test_runs_of_unequal_number_are_no_pairs() -> None:
    with pytest.raises(ValueError, match="2 and 3 runs cannot be paired"):
        paired_difference([1, 2], [1, 2, 3])


def test_the_mean_of_groups_by_hand() -> None:
    # Means 1, 2, 3 of 600 values each: mean 2, error 1 / sqrt(3).
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(3, 600))
    groups = list(noise - noise.mean(axis=1, keepdims=True) + np.array([[1], [2], [3]]))

    found = intervals.mean(groups)

    # Each group lies apart from the others, as if neighbours depended on each other for ever.
    assert isinstance(found, Refusal)
    alike = intervals.mean([group * 1e-3 + noise[0] for group in groups])
    assert isinstance(alike, Interval)
    assert alike.half_width == pytest.approx(4.302653e-3 / math.sqrt(3))


def test_groups_of_unequal_size_are_weighted() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.exponential(size=size) for size in (500, 1000, 1500, 400)]

    found = intervals.mean(groups)

    assert isinstance(found, Interval)
    assert found.estimate == pytest.approx(np.concatenate(groups).mean())
    assert found.contains(1.0)


def test_a_share_has_an_interval_only_where_both_outcomes_occur() -> None:
    rng = np.random.default_rng(0)
    met = [(rng.random(2000) < 0.95).astype(float) for _ in range(5)]

    found = intervals.share(met)
    turned = intervals.share([1 - values for values in met])

    assert isinstance(found, Interval)
    assert isinstance(turned, Interval)
    assert found.contains(0.95)
    assert (turned.low, turned.high) == pytest.approx((1 - found.high, 1 - found.low))
    always = intervals.share([np.ones(2000)] * 5)
    assert isinstance(always, Refusal)
    assert always.reason == "all 10,000 are alike"


def test_a_share_of_one_has_an_exact_end_where_near_misses_are_known_to_be_independent() -> None:
    rng = np.random.default_rng(0)
    near = [rng.random(2000) for _ in range(3)]
    ones = [np.ones(2000)] * 3

    found = intervals.share(ones, closeness=near)
    none = intervals.share([np.zeros(2000)] * 3, closeness=near)
    clustered = intervals.share(ones, closeness=[np.repeat(x[:10], 200) for x in near])
    constant = intervals.share(ones, closeness=ones)

    assert isinstance(found, Interval)
    assert isinstance(none, Interval)
    # Clopper and Pearson of 6,000 independent ones: 0.025^(1/6000); no factor is below 1.
    assert 0.998 < found.low <= 0.025 ** (1 / 6000)
    assert found.high == 1
    assert (none.low, none.high < 0.002) == (0, True)
    assert isinstance(clustered, Refusal)
    assert clustered.needs_requests is not None
    assert isinstance(constant, Refusal)
    assert isinstance(intervals.share(ones[:2], closeness=near[:2]), Refusal)


def test_values_that_are_all_equal_have_no_percentile_interval() -> None:
    refused = intervals.quantile([np.full(1000, 0.01)] * 5, 0.99)

    assert isinstance(refused, Refusal)
    assert refused.estimate == 0.01
    assert refused.reason == "no value lies beyond it"


def test_batches_leave_the_first_values_out() -> None:
    parts = intervals.batches(np.arange(23.0), 10)

    assert next(part.tolist() for part in parts) == [3.0, 4.0]
    assert len(parts) == 10
    assert intervals.batches(np.arange(5.0), 10) == []
