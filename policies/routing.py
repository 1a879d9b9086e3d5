"""Routers: which replica of a pool gets a request (rules 25, 26, 56, 88)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sim.policy import ReplicaView, Router
from sim.request import Request


@dataclass
class RoundRobin(Router):
    """Each replica in turn, those that can never run the request left out."""

    sees_state = False
    is_static = True

    _turn: int = field(default=0, init=False, repr=False)

    def start(self, rng: np.random.Generator) -> None:
        """The first replica is first."""
        self._turn = 0

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The first replica from the one after the last chosen, cyclically."""
        chosen = replicas[0]
        if replicas[-1].index >= self._turn:
            at = self._turn - replicas[0].index
            if 0 <= at < len(replicas) and replicas[at].index == self._turn:
                chosen = replicas[at]
            else:
                chosen = next(view for view in replicas if view.index >= self._turn)
        self._turn = chosen.index + 1
        return chosen


@dataclass
class Drawing(Router):
    """A router that draws random numbers, from `rng`, which is there once a run has begun."""

    rng: np.random.Generator | None = field(default=None, init=False, repr=False)

    def start(self, rng: np.random.Generator) -> None:
        """Draws come from `rng`."""
        self.rng = rng


@dataclass
class RandomChoice(Drawing):
    """Uniform over the replicas that can run the request; one draw per request."""

    sees_state = False
    is_static = True

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """Any of them."""
        assert self.rng is not None
        if len(replicas) == 1:
            return replicas[0]
        return replicas[int(self.rng.integers(len(replicas)))]


@dataclass
class LeastOutstanding(Router):
    """Fewest requests routed there and not finished; ties to the lowest index."""

    sees_state = False

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The least loaded by number of requests."""
        return min(replicas, key=_outstanding)


@dataclass
class LeastTokens(Router):
    """Fewest prompt and emitted tokens outstanding; ties to the lowest index."""

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The least loaded by tokens."""
        return min(replicas, key=_outstanding_tokens)


@dataclass
class PowerOfTwo(Drawing):
    """Of two different replicas drawn at random the one with fewer requests outstanding.

    Ties go to the lower index. Source: Mitzenmacher, IEEE TPDS 2001.
    """

    sees_state = False

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The better of two."""
        assert self.rng is not None
        if len(replicas) == 1:
            return replicas[0]
        pair = self.rng.choice(len(replicas), size=2, replace=False)
        first, second = sorted(int(i) for i in pair)
        return min((replicas[first], replicas[second]), key=_outstanding)


def _outstanding(view: ReplicaView) -> int:
    return view.outstanding


def _outstanding_tokens(view: ReplicaView) -> int:
    return view.outstanding_tokens
