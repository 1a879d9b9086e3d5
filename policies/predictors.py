"""Predictors of the output length, for queue orders (rule 57)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from sim.errors import ConfigError
from sim.request import Arrival

_DRAWS = 4096


@dataclass
class Oracle:
    """The true output length: a bound for what prediction can give."""

    is_static = True

    def start(self, rng: np.random.Generator) -> None:
        """Draws nothing."""

    def predict(self, arrival: Arrival) -> int:
        """The truth."""
        return arrival.output_tokens


@dataclass
class Noisy:
    """The truth times a log-normal error: max(1, round(o * exp(sigma * z))).

    One draw z of the standard normal per request, in trace order, so that the prediction for a
    request is the same in every variant.

    Args:
        sigma: Standard deviation of the logarithm of the error.
    """

    is_static = True

    sigma: float = field(default=0.5, metadata={"maximum": 10})  # far beyond, exp() overflows
    _z: list[float] = field(default_factory=list, init=False, repr=False)
    _rng: np.random.Generator | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.sigma >= 0:
            raise ConfigError(f"predictor.sigma: {self.sigma} is not a number of at least 0")

    def start(self, rng: np.random.Generator) -> None:
        """Draws come from `rng`."""
        self._rng, self._z = rng, []

    def predict(self, arrival: Arrival) -> int:
        """The truth with this request's error."""
        if self._rng is None:
            raise RuntimeError("Noisy.predict before start(rng): a predictor belongs to one run")
        while arrival.index >= len(self._z):
            self._z.extend(self._rng.standard_normal(_DRAWS).tolist())
        error = float(np.exp(self.sigma * self._z[arrival.index]))
        return max(1, round(arrival.output_tokens * error))


@dataclass
class Bucket:
    """The upper edge of the bucket that the truth falls in, as a classifier would tell.

    Args:
        edges_tokens: Upper edges, ascending; above the last one, the last edge is doubled until it
            covers the truth.
    """

    is_static = True

    edges_tokens: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)

    def __post_init__(self) -> None:
        edges = tuple(self.edges_tokens)
        if not edges or edges[0] < 1 or any(a >= b for a, b in pairwise(edges)):
            raise ConfigError(f"predictor.edges_tokens: {list(edges)} must be ascending, from 1 on")
        self.edges_tokens = edges

    def start(self, rng: np.random.Generator) -> None:
        """Draws nothing."""

    def predict(self, arrival: Arrival) -> int:
        """Upper edge of the bucket."""
        at = bisect_left(self.edges_tokens, arrival.output_tokens)
        if at < len(self.edges_tokens):
            return self.edges_tokens[at]
        edge = self.edges_tokens[-1]
        while edge < arrival.output_tokens:
            edge *= 2
        return edge
