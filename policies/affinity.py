"""Routers that keep what belongs together on one replica: sessions, tenants, prefixes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import blake2b

import numpy as np

from policies.routing import LeastOutstanding
from sim.errors import ConfigError
from sim.policy import ReplicaView, Router
from sim.request import Request


@dataclass
class SessionAffinity(Router):
    """Every turn of a session goes to the replica of the turn before.

    The first turn of a session, and a request without a session, go where `fallback` says. If the
    session's replica is not among those that can run the turn, `fallback` chooses among these, and
    the session belongs to its choice from then on: that is where its KV is now. Load plays no part
    after the first turn.

    Source: sticky sessions of HTTP load balancers; ``session`` routing of vLLM production-stack
    0.1, ``routing_logic.py``, which hashes the session id instead, and so has no fallback.

    Args:
        fallback: Router of first turns: a name, or a name with options.
    """

    fallback: Router = field(
        default_factory=LeastOutstanding, metadata={"plugin": "router", "name": "least-outstanding"}
    )
    _home: dict[str, int] = field(default_factory=dict, init=False, repr=False)

    @property
    def sees_contents(self) -> bool:  # type: ignore[override]
        """Whether the fallback does."""
        return self.fallback.sees_contents

    @property
    def sees_state(self) -> bool:  # type: ignore[override]
        """Whether the fallback does."""
        return self.fallback.sees_state

    @property
    def is_static(self) -> bool:  # type: ignore[override]
        """Whether the fallback is."""
        return self.fallback.is_static

    def check(self, replicas: int) -> None:
        """As the fallback, which is another router."""
        if isinstance(self.fallback, SessionAffinity):
            raise ConfigError(
                "fallback: session-affinity: cannot be its own fallback; try least-outstanding"
            )
        self.fallback.check(replicas)

    def start(self, rng: np.random.Generator) -> None:
        """No session has a replica yet; the fallback draws from `rng`."""
        self._home = {}
        self.fallback.start(rng)

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The session's replica, or the fallback's choice."""
        session = request.identity.session
        home = None if session is None else self._home.get(session)
        if home is not None:
            for view in replicas:
                if view.index == home:
                    return view
        chosen = self.fallback.pick(request, replicas)
        if session is not None:
            self._home[session] = chosen.index
        return chosen


@dataclass
class ConsistentHash(Router):
    """Consistent hashing with bounded loads: a key's replica, or the next one that is not full.

    Each replica has `virtual_nodes` points on a ring of 2^64, and a request belongs to the first
    point at or after the hash of its key, going round. Of n replicas that can run the request, with
    m requests outstanding on them together, each takes at most ceil(load_factor x (m + 1) / n)
    outstanding ones, this one included; from the request's point on, the first point whose replica
    has fewer than that gets it. (One always has: else they had more than m together.) Points of
    replicas that cannot run it are passed over.

    The key is the session, else the tenant, else what is told of the first `prefix_tokens` tokens
    of the prompt; prompts of which nothing is told have a key each, numbered from 1 as they are
    routed. Hashes are BLAKE2b of 8 bytes, read big-endian, of the UTF-8 texts ``replica 3 point
    17`` and ``session NAME``, ``tenant NAME``, ``prefix FIRST+TOKENS FIRST+TOKENS ...`` (runs of
    `sim.content`) or ``prompt 1``: the same in every process. `load_factor` is taken as its decimal
    text says, and the bound is exact.

    Source: Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018
    (there c = 1 + epsilon). 1.25 is the default of Apache brpc's ``c_murmurhash_bl``, whose points
    on the ring are 100 for each server as well.

    Args:
        load_factor: Most load of a replica in units of the mean, at least 1.
        virtual_nodes: Points of each replica on the ring.
        prefix_tokens: Length of the prefix that is a key where there is neither session nor tenant.
    """

    sees_state = False

    load_factor: float = field(default=1.25, metadata={"minimum": 1})
    virtual_nodes: int = field(default=100, metadata={"maximum": 10_000})
    prefix_tokens: int = 256
    _ring: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)
    _known: int = field(default=0, init=False, repr=False)
    _untold: int = field(default=0, init=False, repr=False)

    def start(self, rng: np.random.Generator) -> None:
        """An empty ring; points are added when a replica is first seen."""
        self._ring, self._known, self._untold = [], 0, 0

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The first replica from the key's point on that is not full."""
        self._add_points(replicas[-1].index + 1)
        offered = {view.index: view for view in replicas}
        outstanding = sum(view.outstanding for view in replicas)
        bound = Fraction(str(self.load_factor)) * (outstanding + 1) / len(replicas)
        ring = self._ring
        at = bisect_left(ring, (_hash(self._key(request)), -1))
        for step in range(len(ring)):
            view = offered.get(ring[(at + step) % len(ring)][1])
            if view is not None and view.outstanding < bound:  # as under its ceiling
                return view
        raise AssertionError(f"{request} found all of {list(offered)} over {bound}")

    def _add_points(self, replicas: int) -> None:
        for index in range(self._known, replicas):
            for point in range(self.virtual_nodes):
                insort(self._ring, (_hash(f"replica {index} point {point}"), index))
        self._known = max(self._known, replicas)

    def _key(self, request: Request) -> str:
        identity = request.identity
        if identity.session is not None:
            return f"session {identity.session}"
        if identity.tenant is not None:
            return f"tenant {identity.tenant}"
        told = identity.content
        if told is None or not told.tokens:
            self._untold += 1
            return f"prompt {self._untold}"
        runs = told.runs(0, min(self.prefix_tokens, request.prompt_tokens))
        return "prefix " + " ".join(f"{first}+{length}" for first, length in runs)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
