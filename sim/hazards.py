"""Failures and stragglers that are drawn: changes of the cluster without a list of them.

The rules:

1. Each unit, a replica or a node, alternates between spells: up for a time drawn with the given
   mean, then down for a time drawn with the other, in ns, rounded half to even, at least 1. Times
   are exponential; the up-times of failures may be Weibull of a given shape (below 1: most fail
   young; above 1: they wear out), scaled to the mean. The first spell begins at 0, or when the
   replica joins.
2. Each unit has a generator of its own, named after it and derived from the seed. So the instants
   depend on nothing that happens in the run: variants that differ in policies, load or size see the
   same failures of the same replicas. A spell is not longer because a replica loads its weights
   after it was restored; it may fail while it does.
3. When an up-time ends, those of the unit's replicas fail that are up, draining or starting, in
   order of place, in one instant (`sim.slow_down`); when the down-time ends, those of them that
   have still failed are restored. Stragglers begin and end likewise, on a replica that is up or
   draining. All that is in phase (2c), after the changes given for that instant, in the order in
   which it was drawn.
4. It goes on as long as a request is in the system or to come; no spell of trouble begins after
   `until_ns`, where that is given. A unit all of whose replicas are gone has no more of them.
5. Replicas that join later have spells like the others. A node has the replicas that it is given,
   or, by its number in a topology, those that have a GPU on it at that moment.

Exponential up-times are the usual model of a repairable component (Barlow and Proschan,
Mathematical Theory of Reliability, 1965); that failures of real clusters come with Weibull shapes
of 0.7 to 0.8 is from Schroeder and Gibson, A large-scale study of failures in high-performance
computing systems, DSN 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.clock import Phase, Tick, now_ns
from sim.errors import ConfigError, StuckError
from sim.pool import named_generator
from sim.replica_spec import DRAINING, FAILED, GONE, UP
from sim.slow_down import CanFail, Node, Normal, Slow, replicas_on

if TYPE_CHECKING:
    from sim.cluster import LiveCluster
    from sim.replica import Replica

_PATIENCE = 10_000
"""Spells of trouble without an arrival or an end of a request before a run is given up."""


@dataclass(frozen=True)
class Failures:
    """Replicas, or nodes, that fail and come back at random.

    Attributes:
        mtbf_ns: Mean up-time, ns.
        mttr_ns: Mean down-time, ns.
        seed: Of the generators.
        shape: Of the Weibull distribution of up-times; 1 is exponential.
        nodes: Those that fail, each as a whole; none: those of the topology with a replica at the
            begin. None: each replica by itself.
        pools: Which pools have failures, by name; None: all. Not with `nodes`.
        until_ns: None fails later.
    """

    mtbf_ns: float
    mttr_ns: float
    seed: int = 0
    shape: float = 1.0
    nodes: Sequence[Node] | None = None
    pools: Sequence[str] | None = None
    until_ns: int | None = None

    def __post_init__(self) -> None:
        if min(self.mtbf_ns, self.mttr_ns, self.shape) <= 0:
            raise ConfigError(f"{self}: expected mtbf_ns, mttr_ns and shape above 0")

    def __call__(self, live: LiveCluster) -> None:
        """Begin, at the present instant."""
        _Drawn(live, self.until_ns, self._up_ns, partial(_spell, self.mttr_ns)).begin(self)

    def _up_ns(self, rng: np.random.Generator) -> int:
        if self.shape == 1:
            return _spell(self.mtbf_ns, rng)
        scale = self.mtbf_ns / math.gamma(1 + 1 / self.shape)
        return max(1, round(scale * rng.weibull(self.shape)))

    @property
    def purpose(self) -> str:
        """What its generators are named after."""
        return "failures"

    def strike(self, live: LiveCluster, replicas: Sequence[Replica]) -> Callable[[], None]:
        """They fail, as far as they can; returns what restores them."""
        failed = [replica for replica in replicas if replica.condition in CanFail]
        for replica in failed:
            live.changes.fail(live.pool_of(replica), replica)

        def repair() -> None:
            for replica in failed:
                if replica.condition == FAILED:
                    live.changes.restore(live.pool_of(replica), replica)

        return repair


@dataclass(frozen=True)
class Stragglers:
    """Replicas that are slow now and then.

    Attributes:
        mtbs_ns: Mean time between the end of one spell and the begin of the next, ns.
        duration_ns: Mean length of a spell.
        factor: How much longer iterations take in one, exact.
        seed: Of the generators.
        pools: As of `Failures`.
        until_ns: As of `Failures`.
    """

    mtbs_ns: float
    duration_ns: float
    factor: Fraction
    seed: int = 0
    pools: Sequence[str] | None = None
    until_ns: int | None = None

    def __post_init__(self) -> None:
        if min(self.mtbs_ns, self.duration_ns) <= 0 or self.factor <= 0:
            raise ConfigError(f"{self}: expected mtbs_ns, duration_ns and factor above 0")

    def __call__(self, live: LiveCluster) -> None:
        """Begin, at the present instant."""
        begins, lasts = partial(_spell, self.mtbs_ns), partial(_spell, self.duration_ns)
        _Drawn(live, self.until_ns, begins, lasts).begin(self)

    nodes = None

    @property
    def purpose(self) -> str:
        """What its generators are named after."""
        return "stragglers"

    def strike(self, live: LiveCluster, replicas: Sequence[Replica]) -> Callable[[], None]:
        """It is slow, if it can be; returns what ends that."""
        (replica,) = replicas
        if replica.condition not in (UP, DRAINING):
            return lambda: None
        slow = Slow(self.factor, replica.index, live.pool_of(replica) is live.decode)
        slow(live)
        return partial(Normal(slow, slow.index, slow.decode), live)


def _spell(mean_ns: float, rng: np.random.Generator) -> int:
    return max(1, round(rng.exponential(mean_ns)))


@dataclass(eq=False)
class _Unit:
    """A replica or a node, and its spells."""

    name: str
    replicas: Callable[[], list[Replica]]
    rng: np.random.Generator
    repair: Callable[[], None] = field(default=lambda: None)


class _Drawn:
    """The spells of all units during one run."""

    def __init__(
        self,
        live: LiveCluster,
        until_ns: int | None,
        up_ns: Callable[[np.random.Generator], int],
        down_ns: Callable[[np.random.Generator], int],
    ) -> None:
        self._live, self._until_ns = live, until_ns
        self._up_ns, self._down_ns = up_ns, down_ns
        self._spells = self._seen = 0

    def begin(self, what: Failures | Stragglers) -> None:
        """Let the first up-times begin."""
        self._what = what
        if what.nodes is None:
            for replica in self._live.replicas:
                self._joined(replica)
            self._live.changes.on_join.append(self._joined)
            return
        for position, node in enumerate(what.nodes or self._nodes_in_use()):
            number = node if isinstance(node, int) else position
            self._watch(f"node {number}", partial(replicas_on, self._live, node))

    def _nodes_in_use(self) -> list[int]:
        network = self._live.network
        if network is None:
            raise ConfigError("failures of nodes: there is no topology; say who is on which node")
        return sorted({gpu.node for each in self._live.replicas for gpu in network.gpus_of(each)})

    def _joined(self, replica: Replica) -> None:
        pool = self._live.pool_of(replica).spec.name
        if self._what.pools is None or pool in self._what.pools:
            self._watch(f"{pool}-{replica.index}", lambda: [replica])

    def _watch(self, name: str, replicas: Callable[[], list[Replica]]) -> None:
        rng = named_generator(self._what.seed, f"{self._what.purpose} {name}")
        self._live.changes.to_come += 1
        self._next(_Unit(name, replicas, rng))

    def _next(self, unit: _Unit) -> None:
        """An up-time begins."""
        up_ns = self._up_ns(unit.rng)
        late = self._until_ns is not None and now_ns(self._live.env) + up_ns > self._until_ns
        if late or all(replica.condition == GONE for replica in unit.replicas()):
            self._live.changes.to_come -= 1
            return
        self._after(up_ns, partial(self._strike, unit))

    def _after(self, delay_ns: int, then: Callable[[Any], None]) -> None:
        """It happens only if somebody is there whom it may concern, or is to come."""
        live = self._live
        tick = Tick(live.env, delay_ns, Phase.CLUSTER_EVENT, lambda: bool(live.live))
        tick.callbacks.append(then)

    def _strike(self, unit: _Unit, _: Any) -> None:
        self._live.stir()
        self._look_for_progress(unit)
        unit.repair = self._what.strike(self._live, unit.replicas())
        self._after(self._down_ns(unit.rng), partial(self._repair, unit))

    def _repair(self, unit: _Unit, _: Any) -> None:
        self._live.stir()
        unit.repair()
        self._next(unit)

    def _look_for_progress(self, unit: _Unit) -> None:
        live = self._live
        if self._seen != live.arrived + live.ended:
            self._seen, self._spells = live.arrived + live.ended, 0
        self._spells += 1
        if self._spells > _PATIENCE:
            raise StuckError(
                f"{self._what.purpose}: {_PATIENCE:,} in a row, the last one of {unit.name}, while "
                f"no request arrived or ended; {len(live.live)} are left: requests need longer "
                "than replicas hold out"
            )
