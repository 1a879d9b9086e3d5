"""Step-time noise: a factor for each iteration of each replica, the same in any order of asking."""

from __future__ import annotations

import math
from zlib import crc32

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BLOCK = 1024
"""Iterations whose factors are drawn at once; those of a block do not depend on who asks first."""

_NAME = crc32(b"step_time")


class Noise:
    """Log-normal factors of mean 1, keyed by seed, replication, replica and iteration number.

    Args:
        cv: Standard deviation over mean of the factors, above 0.
        seed: Of the experiment.
        replication: Which repetition of it.
        place: Position of the replica in its cluster.
    """

    def __init__(self, cv: float, seed: int, replication: int, place: int) -> None:
        self._sigma = math.sqrt(math.log1p(cv * cv))
        self._key = [seed, replication, place, _NAME]
        self._number = -1
        self._block: Floats = np.zeros(0)
        self._list: list[float] = []

    def factor(self, iteration: int) -> float:
        """Of one iteration."""
        number, at = divmod(iteration, BLOCK)
        if number != self._number:
            self._draw(number)
        return self._list[at]

    def factors(self, first: int, n: int) -> Floats:
        """Of `n` iterations, (n,)."""
        parts = []
        while n:
            number, at = divmod(first, BLOCK)
            if number != self._number:
                self._draw(number)
            part = self._block[at : at + n]
            parts.append(part)
            first, n = first + len(part), n - len(part)
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def _draw(self, number: int) -> None:
        rng = np.random.default_rng([*self._key, number])
        normal = rng.standard_normal(BLOCK)
        self._block = np.exp(self._sigma * normal - self._sigma**2 / 2)
        self._list = self._block.tolist()
        self._number = number
