"""Replicas that compute more slowly for a while, NICs that carry less, and nodes that fail whole.

All happen in phase (2c), in the order of the list of changes; what ends one stands at the place of
its begin in that list.

- **Straggler.** Iterations that start from now on take longer: see `sim.pace`. Only a replica that
  is up or draining can be slow.
- **Slow NIC.** From now on the NIC of a replica carries its bandwidth times a factor, in both
  directions, 0 being possible; bytes that were sent by now went at the old rates (`sim.links`).
  Where several replicas share a NIC (`sim.topology`), it is slow for all of them. A NIC has one
  such factor at a time, as a replica has one pace. A failure of the replica does not mend it.
- **Node.** Its replicas fail in one instant, in order of place, each as if it had failed alone;
  then they are routed again (rule 79: several replicas in that order). One that has failed already,
  or is gone, is left out. A node that is restored restores those of its replicas that have failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from sim.changes import located, refused
from sim.errors import ConfigError
from sim.replica_spec import DRAINING, FAILED, GONE, STARTING, UP

if TYPE_CHECKING:
    from sim.cluster import LiveCluster
    from sim.replica import Replica

CanFail = (UP, DRAINING, STARTING)
"""Conditions of a replica that a failure changes."""

Place = tuple[bool, int]
"""A replica: whether it is of the decode pool, and its position in its pool."""
Node = int | Sequence[Place]
"""A node: its number in the topology, or the replicas on it."""


@dataclass(frozen=True, eq=False)
class Slow:
    """A straggler, from now on.

    Attributes:
        factor: How much longer iterations take, exact, above 0.
        index: Position of the replica in its pool.
        decode: Of the decode pool.
    """

    factor: Fraction
    index: int = 0
    decode: bool = False

    def __call__(self, live: LiveCluster) -> None:
        """Raises `ConfigError` where there is no such replica, or it cannot be slow."""
        pool, replica = located(live, "slow", self.index, self.decode)
        if replica.condition not in (UP, DRAINING):
            raise refused("slow", pool, replica)
        live.changes.note("slowed", replica, self.factor)
        live.changes.slow[replica] = self
        replica.slow_down(self.factor)


@dataclass(frozen=True, eq=False)
class Normal:
    """A straggler is as quick as before.

    Attributes:
        of: What ends; it changes nothing if something else has ended that. None: whatever it is.
        index: As of `Slow`.
        decode: As of `Slow`.
    """

    of: Slow | None = None
    index: int = 0
    decode: bool = False

    def __call__(self, live: LiveCluster) -> None:
        """Raises `ConfigError` where there is no such replica."""
        _, replica = located(live, "normal", self.index, self.decode)
        present = live.changes.slow.get(replica)
        if present is not None and self.of in (None, present):
            del live.changes.slow[replica]
            live.changes.note("normal", replica)
            replica.slow_down(Fraction(1))


@dataclass(frozen=True, eq=False)
class Degrade:
    """The NIC of a replica carries less, from now on.

    Attributes:
        factor: Of its bandwidth, exact, at least 0.
        index: Position of the replica in its pool.
        decode: Of the decode pool.
    """

    factor: Fraction
    index: int = 0
    decode: bool = False

    def __call__(self, live: LiveCluster) -> None:
        """Raises `ConfigError` where there is no such replica, or no links are shared."""
        _, replica = located(live, "degrade", self.index, self.decode)
        if live.between is None or live.between.carrier is None:
            raise ConfigError(
                "degrade: transfers have their links to themselves, so that none can be degraded; "
                "set transfer.sharing: max-min, or give a topology"
            )
        live.changes.note("degraded", replica, self.factor)
        live.changes.degraded[replica] = self
        live.between.carrier.slow_nics(replica, self.factor)


@dataclass(frozen=True, eq=False)
class Mend:
    """A NIC that was degraded carries its bandwidth again.

    Attributes:
        of: As of `Normal`.
        index: As of `Degrade`.
        decode: As of `Degrade`.
    """

    of: Degrade | None = None
    index: int = 0
    decode: bool = False

    def __call__(self, live: LiveCluster) -> None:
        """Raises `ConfigError` where there is no such replica."""
        _, replica = located(live, "mend", self.index, self.decode)
        present = live.changes.degraded.get(replica)
        if present is not None and self.of in (None, present):
            assert live.between is not None
            assert live.between.carrier is not None
            del live.changes.degraded[replica]
            live.changes.note("mended", replica)
            live.between.carrier.slow_nics(replica, Fraction(1))


@dataclass(frozen=True)
class NodeChange:
    """All replicas of a node fail, or those that have failed are restored.

    Attributes:
        what: ``fail`` or ``restore``.
        node: Which.
    """

    what: Literal["fail", "restore"]
    node: Node

    def __call__(self, live: LiveCluster) -> None:
        """Raises `ConfigError` where there is no such replica, or no topology has such a node."""
        concerned = CanFail if self.what == "fail" else (FAILED,)
        for replica in replicas_on(live, self.node):
            if replica.condition in concerned:
                getattr(live.changes, self.what)(live.pool_of(replica), replica)


def replicas_on(live: LiveCluster, node: Node) -> list[Replica]:
    """The replicas that have a GPU on a node now, in order of place.

    Raises:
        ConfigError: There is no such replica, or no topology that has nodes.
    """
    if isinstance(node, int):
        network = live.network
        if network is None:
            raise ConfigError(f"node {node}: there is no topology; say which replicas are on it")
        present = [replica for replica in live.replicas if replica.condition != GONE]
        return [r for r in present if any(gpu.node == node for gpu in network.gpus_of(r))]
    found = [located(live, "node", index, decode)[1] for decode, index in node]
    return sorted(found, key=lambda replica: replica.place)


def for_a_while(
    at_ns: int, until_ns: int | None, begin: Slow | Degrade
) -> list[tuple[int, Callable[[LiveCluster], None]]]:
    """A begin and its end, for `simulate`: sort all changes stably by instant.

    Args:
        at_ns: When it begins.
        until_ns: When it ends; None: never, or by a change of its own.
        begin: What begins.

    Raises:
        ConfigError: It ends before it begins.
    """
    if until_ns is None:
        return [(at_ns, begin)]
    if until_ns <= at_ns:
        raise ConfigError(f"until {until_ns} ns: expected later than {at_ns} ns, when it begins")
    end: Normal | Mend
    if isinstance(begin, Slow):
        end = Normal(begin, begin.index, begin.decode)
    else:
        end = Mend(begin, begin.index, begin.decode)
    return [(at_ns, begin), (until_ns, end)]
