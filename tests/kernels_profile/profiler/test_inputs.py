"""Inputs have the distribution that their table's columns say."""

from __future__ import annotations

import numpy as np
import pytest

from kernels_profile.profiler.grids import FULL
from kernels_profile.profiler.inputs import assign_experts, can_be_skewed, unequal_contexts


@pytest.mark.parametrize(
    ("batch", "mean", "skew"),
    [(16, 1024, 1.0), (128, 512, 0.5), (512, 2048, 1.5), (2, 4096, 0.5), (32, 8192, 0.25)],
)
def test_contexts_have_their_mean_and_skew(batch: int, mean: int, skew: float) -> None:
    contexts = np.array(unequal_contexts(batch, mean, skew))
    assert len(contexts) == batch
    assert contexts.min() >= 1
    assert contexts.mean() == pytest.approx(mean, rel=0.01)
    assert contexts.std() / contexts.mean() == pytest.approx(skew, rel=0.02)


def test_equal_contexts_are_equal() -> None:
    assert unequal_contexts(4, 100, 0) == [100] * 4
    assert unequal_contexts(1, 100, 1.0) == [100]


def test_a_skew_that_so_few_cannot_have_is_refused() -> None:
    assert not can_be_skewed(2, 1.5)
    with pytest.raises(ValueError, match=r"2 contexts cannot have a skew of 1\.5"):
        unequal_contexts(2, 100, 1.5)


def test_every_skew_of_the_grid_can_be_made() -> None:
    for _, values in FULL.skewed.points():
        assert can_be_skewed(int(values["batch"]), float(values["skew"])), values


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "touched"),
    [(1, 8, 2, 2), (64, 8, 2, 8), (64, 8, 2, 5), (16, 128, 8, 80), (3, 8, 2, 6), (4096, 256, 8, 8)],
)
def test_exactly_so_many_experts_are_touched(
    tokens: int, experts: int, top_k: int, touched: int
) -> None:
    chosen = assign_experts(tokens, experts, top_k, touched)
    assert chosen.shape == (tokens, top_k)
    assert len(np.unique(chosen)) == touched
    assert all(len(set(row)) == top_k for row in chosen.tolist())
    assert chosen.min() >= 0
    assert chosen.max() < experts


def test_more_experts_than_tokens_can_reach_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot touch 5"):
        assign_experts(2, 8, 2, 5)
