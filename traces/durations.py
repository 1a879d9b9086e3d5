"""Durations drawn for each request: think times, and how long clients wait."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError, nearest

Distribution = Literal["constant", "exponential", "gamma", "lognormal"]
DISTRIBUTIONS: tuple[str, ...] = get_args(Distribution)

LONGEST_S = 1e7
"""116 days; a longer one is a slip, and sums of many still fit 64-bit integers."""


def draw_ns(
    n: int,
    distribution: str,
    mean_s: float,
    cv: float | None,
    rng: np.random.Generator,
    *,
    key: str,
    what: str,
) -> npt.NDArray[np.int64]:
    """Draw durations, shape (n,), ns.

    They are drawn at mean 1, so that another mean scales the same pattern.

    Args:
        n: How many.
        distribution: ``constant``, ``exponential``, ``gamma`` or ``lognormal``.
        mean_s: Mean, seconds; above 0 unless ``constant``.
        cv: Coefficient of variation, above 0, of ``gamma`` and ``lognormal``.
        rng: Where draws come from.
        key: Name of what is drawn, for messages about arguments.
        what: The same, as a phrase such as ``sessions: a delay``.

    Raises:
        ValueError: An argument out of bounds, or no such distribution.
        TraceError: A drawn duration is beyond belief.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"{key}: {distribution!r}{nearest(distribution, DISTRIBUTIONS)}")
    if not 0 <= mean_s <= LONGEST_S or (mean_s == 0 and distribution != "constant"):
        raise ValueError(f"{key}: mean_s {mean_s}; expected above 0, or 0 of constant")
    if distribution in ("gamma", "lognormal") and not (cv is not None and cv > 0):
        raise ValueError(f"{key}: cv {cv}; expected above 0 for {distribution}")
    drawn_s = _of_mean_one(n, distribution, cv, rng) * mean_s
    if n and drawn_s.max() > LONGEST_S:
        raise TraceError(
            f"{what} of {drawn_s.max():.3g} s was drawn; expected at most"
            f" {LONGEST_S:.3g} s: give a lower mean_s or cv"
        )
    ns: npt.NDArray[np.int64] = np.rint(drawn_s * 1e9).astype(np.int64)
    return ns


def _of_mean_one(
    n: int, distribution: str, cv: float | None, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    if distribution == "constant":
        return np.ones(n)
    if distribution == "exponential":
        return rng.standard_exponential(n)
    assert cv is not None
    if distribution == "gamma":
        return rng.standard_gamma(1 / cv**2, n) * cv**2
    variance = math.log1p(cv**2)
    return np.exp(rng.standard_normal(n) * math.sqrt(variance) - variance / 2)


def said(distribution: str, mean_s: float, cv: float | None) -> str:
    """The distribution in words, for notes."""
    shape = "" if cv is None else f", CV {cv:g}"
    return f"{distribution}, mean {mean_s:g} s{shape}"
