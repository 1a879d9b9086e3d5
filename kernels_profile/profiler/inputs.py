"""Inputs with a stated distribution: unequal contexts, and which experts tokens go to."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

MOST_SIGMA = 12.0
"""Of the log-normal distribution, for the search: far beyond any skew that is measured."""


def unequal_contexts(batch: int, mean: int, skew: float) -> list[int]:
    """Contexts of a batch of decodes, tokens, with a mean and a coefficient of variation.

    They are the quantiles of a log-normal distribution at the middle of `batch` equal shares, its
    width such that *these* contexts (not the distribution) have that skew; so no random number is
    in them, and the longest is part of the skew. Rounding to tokens, at least 1, leaves both a
    little off where contexts are short.

    Raises:
        ValueError: so few contexts cannot be that skewed: at most sqrt(batch - 1).
    """
    if skew <= 0 or batch == 1:
        return [mean] * batch
    if skew > 0.95 * math.sqrt(batch - 1):
        raise ValueError(f"{batch} contexts cannot have a skew of {skew:g}")
    places = _places(batch)
    low, high = 0.0, MOST_SIGMA
    for _ in range(45):
        sigma = (low + high) / 2
        shares = _shares(places, sigma)
        low, high = (sigma, high) if shares.std() < skew else (low, sigma)
    return [max(1, round(mean * share)) for share in _shares(places, (low + high) / 2).tolist()]


def _places(batch: int) -> npt.NDArray[np.float64]:
    """The normal distribution's quantiles at the middle of equal shares."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / batch) for i in range(batch)])


def _shares(places: npt.NDArray[np.float64], sigma: float) -> npt.NDArray[np.float64]:
    """Quantiles of a log-normal distribution, scaled to a mean of 1 (so `std` is the skew)."""
    raw = np.exp(sigma * places)
    shares: npt.NDArray[np.float64] = raw / raw.mean()
    return shares


def can_be_skewed(batch: int, skew: float) -> bool:
    """Whether `unequal_contexts` has an answer."""
    return skew <= 0 or (batch > 1 and skew <= 0.95 * math.sqrt(batch - 1))


def assign_experts(
    tokens: int, experts: int, top_k: int, touched: int, seed: int = 0
) -> npt.NDArray[np.int64]:
    """Experts of each token, (tokens, top_k), such that exactly `touched` distinct ones occur.

    The first tokens deal out the touched experts in turn; each later one draws `top_k` different
    ones among them, all equally likely.

    Raises:
        ValueError: so many cannot be touched.
    """
    if not top_k <= touched <= min(experts, tokens * top_k):
        raise ValueError(f"{tokens} tokens with {top_k} experts each cannot touch {touched}")
    rng = np.random.default_rng([seed, tokens, experts, touched])
    held = rng.permutation(experts)[:touched]
    drawn = rng.random((tokens, touched)).argsort(axis=1)[:, :top_k]
    dealers = -(-touched // top_k)
    turns = np.arange(dealers * top_k).reshape(dealers, top_k) % touched
    drawn[:dealers] = turns
    return np.asarray(held[drawn], np.int64)
