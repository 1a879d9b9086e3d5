"""Bands of distribution functions: how often they hold the truth, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.statistics.bands import band_of_gaps, band_of_values
from experiments.statistics.intervals import LEAST_BEYOND, Interval, quantile


@pytest.mark.parametrize("replications", [5, 10, pytest.param(30, marks=pytest.mark.slow)])
def test_a_band_holds_the_true_share_as_often_as_it_says(replications: int) -> None:
    rng = np.random.default_rng(11)
    x = -np.log(1 - np.array([0.25, 0.5, 0.9]))  # of the exponential distribution
    held = np.zeros(3)
    for _ in range(1000):
        groups = list(rng.exponential(size=(replications, 200)))
        band = band_of_values(groups, x)
        assert band is not None
        held += (band.low <= [0.25, 0.5, 0.9]) & (band.high >= [0.25, 0.5, 0.9])
    assert np.all((held >= 920) & (held <= 980)), held


def test_a_band_is_the_interval_of_a_percentile_turned() -> None:
    groups = list(np.random.default_rng(3).exponential(size=(8, 500)))
    interval = quantile(groups, 0.9)
    assert isinstance(interval, Interval)

    band = band_of_values(groups, np.array([interval.low, interval.estimate, interval.high]))

    assert band is not None
    # The percentile lies at its ends where the share of 0.9 leaves the band.
    assert band.high[0] == pytest.approx(0.9, abs=0.004)
    assert band.low[2] == pytest.approx(0.9, abs=0.004)
    assert band.low[1] < 0.9 < band.high[1]


def test_there_is_no_band_where_too_few_values_lie_beyond() -> None:
    groups = list(np.random.default_rng(5).exponential(size=(4, 250)))
    ordered = np.sort(np.concatenate(groups))
    x = ordered[[0, LEAST_BEYOND // 2, 500, -LEAST_BEYOND // 2, -1]]

    band = band_of_values(groups, x)

    assert band is not None
    assert np.isnan(band.low).tolist() == [True, True, False, True, True]
    assert np.isnan(band.high).tolist() == [True, True, False, True, True]


def test_values_that_depend_on_each_other_have_a_band_only_where_they_are_enough() -> None:
    independent = list(np.random.default_rng(7).exponential(size=(5, 100)))
    repeated = [np.repeat(values[:5], 20) for values in independent]  # 5 values, each twenty times

    alone, together = (
        band_of_values(groups, np.array([1.0])) for groups in (independent, repeated)
    )

    assert alone is not None
    assert together is not None
    assert not np.isnan(alone.low[0])
    assert np.isnan(together.low[0])


def test_gaps_have_the_band_of_the_values_that_they_count() -> None:
    rng = np.random.default_rng(9)
    values = [rng.integers(1, 50, 400) * 1_000_000 for _ in range(5)]
    x = np.array([0.010, 0.025, 0.040])

    gaps = [np.unique(each, return_counts=True) for each in values]
    band, same = band_of_gaps(gaps, x), band_of_values([each / 1e9 for each in values], x)

    assert band is not None
    assert same is not None
    np.testing.assert_allclose(band.low, same.low)
    np.testing.assert_allclose(band.high, same.high)


def test_two_runs_have_no_band() -> None:
    assert band_of_values([np.ones(90), np.ones(90)], np.ones(1)) is None
