"""MSER on series whose start is known."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.statistics.warm_up import WarmUp, mser


def by_definition(values: np.ndarray) -> int:
    """The truncation, computed straight from the definition."""
    count = len(values) // 5
    means = values[: 5 * count].reshape(count, 5).mean(axis=1)
    spread = [((means[d:] - means[d:].mean()) ** 2).sum() / (count - d) ** 2 for d in range(count)]
    return 5 * int(np.argmin(spread[: count // 2 + 1]))


@pytest.mark.parametrize("start", [0, 200, 400])
def test_a_start_from_elsewhere_is_left_out(start: int) -> None:
    rng = np.random.default_rng(start)
    values = rng.normal(10, 1, 2000)
    values[:start] += 8 * np.exp(-np.arange(start) / 60)

    found = mser(values)

    assert found.skip == by_definition(values)
    assert found.found
    if start:
        assert 100 <= found.skip <= start + 100
        assert found.shift > 0.01
    else:
        assert abs(found.shift) < 0.01


def test_a_series_that_keeps_rising_has_no_steady_state() -> None:
    found = mser(np.arange(1000.0))

    assert not found.found


def test_an_offset_does_not_matter() -> None:
    values = np.random.default_rng(0).normal(0, 1, 1000)
    values[:100] += 5

    assert mser(values).skip == mser(values + 1e9).skip == by_definition(values)


@pytest.mark.parametrize("values", [np.ones(1000), np.ones(3), np.empty(0)])
def test_equal_or_few_values_have_nothing_to_leave_out(values: np.ndarray) -> None:
    assert mser(values) == WarmUp(0, True, 0.0)
