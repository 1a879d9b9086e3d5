"""Pools: replicas with one role, and the router that chooses among them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from sim.autoscale import ScalingSpec
from sim.errors import ConfigError, called
from sim.policy import ReplicaView, Router
from sim.replica import Replica
from sim.replica_spec import UP, ReplicaSpec
from sim.request import Request
from sim.snapshot import Snapshots, StaleView

if TYPE_CHECKING:
    from sim.scaling import Scaler


@dataclass(frozen=True)
class PoolSpec:
    """Replicas with one role.

    Attributes:
        name: Used in outputs.
        replicas: One spec per replica.
        router: Chooses the replica of this pool for a request.
        snapshot_ns: The router sees the state at multiples of this (`sim.snapshot`); 0: as it is.
        scaling: How it grows and shrinks by itself; None: only by the events of a run.
    """

    name: str
    replicas: Sequence[ReplicaSpec]
    router: Router
    snapshot_ns: int = 0
    scaling: ScalingSpec | None = None

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ConfigError(f"pool {self.name} has no replicas; give at least 1")
        self.router.check(len(self.replicas))
        if self.snapshot_ns < 0:
            raise ConfigError(f"router_snapshot_s: {self.snapshot_ns} ns: expected at least 0")
        if self.snapshot_ns and self.router.sees_contents:
            raise ConfigError(
                f"router_snapshot_s: router {called(self.router)} looks into caches, of "
                "which a snapshot shows nothing; try router_snapshot_s: 0, or router prefix-aware, "
                "which keeps an index of its own"
            )


def named_generator(seed: int, purpose: str) -> np.random.Generator:
    """The random generator of one purpose, derived from the seed of the experiment."""
    return np.random.default_rng([seed, crc32(purpose.encode())])


class Pool:
    """A pool at work: its replicas and its router.

    Attributes:
        snapshots: What the router sees instead of the replicas themselves, or None.
        scaler: Keeps the number of replicas where an autoscaler wants it, or None.
        aside: Replicas that are offered to the router only if there is no other (`sim.mixed_pool`).
    """

    def __init__(
        self,
        spec: PoolSpec,
        replicas: list[Replica],
        rng: np.random.Generator,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.spec = spec
        self.replicas = replicas
        self.snapshots = snapshots
        self.scaler: Scaler | None = None
        self.aside: set[Replica] = set()
        self.router = copy.deepcopy(spec.router)
        self.router.start(rng)
        self.missing = 0  # replicas that take no requests
        # Replicas of one spec accept the same requests, so one of them speaks for all.
        first = replicas[0].spec
        self.uniform = all(replica.spec is first for replica in replicas)
        self.clairvoyant = any(replica.policy.clairvoyant for replica in replicas)

    def join(self, replica: Replica) -> None:
        """One more replica."""
        self.replicas.append(replica)
        if replica.spec is not self.replicas[0].spec:
            self.uniform = False
            self.clairvoyant = self.clairvoyant or replica.policy.clairvoyant
        if self.snapshots is not None:
            self.snapshots.add(replica)

    def refusal(self, probe: Request) -> str | None:
        """Why no replica here could ever run the request (the first one's reason), or None."""
        first = _refusal(self.replicas[0], probe)
        if first is None or self.uniform:
            return first
        rest = (_refusal(replica, probe) for replica in self.replicas[1:])
        return None if None in rest else first

    @property
    def views(self) -> Sequence[ReplicaView]:
        """The replicas as routers see them."""
        return self.replicas if self.snapshots is None else self.snapshots.views

    def able(self, request: Request) -> Sequence[ReplicaView]:
        """Those that can run the request and take requests (rule 78)."""
        views = self.views
        if self.uniform and not self.missing and not self.aside:
            return views
        able = [
            replica
            for replica in self.replicas
            if replica.condition == UP and _refusal(replica, request) is None
        ]
        if self.aside:
            able = [replica for replica in able if replica not in self.aside] or able
        return [views[replica.index] for replica in able]

    def route(
        self, request: Request, offered: Sequence[ReplicaView] | None = None
    ) -> Replica | None:
        """Let the router choose; None if nobody who could run the request takes any now.

        Args:
            request: To be placed.
            offered: Views to choose from, at least one; None: of all that can run the request.
        """
        views = offered or self.able(request)
        if not views:
            return None
        chosen = self.router.pick(request, views)
        if isinstance(chosen, Replica):
            return chosen
        if isinstance(chosen, StaleView):
            chosen.place(request)
            return chosen.replica
        name = called(self.router)
        raise ConfigError(f"router {name} returned {chosen!r}, not a replica")


def _refusal(replica: Replica, probe: Request) -> str | None:
    return replica.policy.refuse(probe, replica.kv, replica.spec.max_model_len)


def can_run(replica: Replica, request: Request) -> bool:
    """Whether the replica could ever run the request."""
    return _refusal(replica, request) is None
