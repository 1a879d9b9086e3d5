"""Points drawn from the unit cube: at random, or a scrambled Sobol sequence."""

from __future__ import annotations

import warnings
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

METHODS = ("random", "sobol")


def draw(method: str, points: int, dimensions: int, seed: int) -> npt.NDArray[np.float64]:
    """Points of the unit cube, shape (points, dimensions), each coordinate in [0, 1).

    Args:
        method: ``random``: independent and uniform. ``sobol``: the first points of a Sobol
            sequence, scrambled (Owen 1998; scipy.stats.qmc.Sobol), which fill the cube more evenly,
            most so where their number is a power of 2.
        points: How many.
        dimensions: Of the cube.
        seed: Of the draws, or of the scrambling.
    """
    rng = np.random.default_rng([seed, crc32(f"sweep.{method}".encode())])
    if method == "random":
        return rng.random((points, dimensions))
    from scipy.stats import qmc

    with warnings.catch_warnings():
        # Whoever asks for another number is told so in our own words.
        warnings.simplefilter("ignore", UserWarning)
        drawn: Any = qmc.Sobol(dimensions, scramble=True, rng=rng).random(points)
    return np.asarray(drawn, dtype=np.float64)


def is_even(points: int) -> bool:
    """Whether so many points of a Sobol sequence are as even as they can be: a power of 2."""
    return points & (points - 1) == 0
