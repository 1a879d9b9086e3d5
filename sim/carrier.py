"""Who carries KV between replicas: one NIC for each of them, or the links of a topology."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Protocol

from sim.links import Flow, Link, SharedLinks

if TYPE_CHECKING:
    from simpy import Environment

    from sim.replica import Replica
    from sim.transfer import TransferSpec

_NS_PER_S = 10**9


class OnTheWay(Protocol):
    """A transfer under way."""

    def call_off(self) -> None:
        """It never ends, and takes no bandwidth from now on."""
        ...

    def standing(self) -> Hashable:
        """All that tells how it goes on from now, all else being equal (rule 84)."""
        ...

    def release(self, share: Fraction | None = None) -> None:
        """More may be sent, a latency from now.

        Args:
            share: Of all its bytes, of those that are withheld; None: all that is left of them.
        """
        ...


class Carrier(Protocol):
    """Shared links between the replicas of a cluster (`Nics`, `sim.network.Network`)."""

    def send(
        self,
        source: Replica,
        target: Replica,
        request: int,
        num_bytes: Fraction | int,
        on_end: Callable[[], None],
        *,
        withheld: Fraction | None = None,
    ) -> OnTheWay:
        """Start a transfer now.

        Args:
            source: The replica that sends.
            target: The one that receives.
            request: Index of the request.
            num_bytes: Keys and values, each counted once.
            on_end: Called in phase (2) of the instant at which its end is applied.
            withheld: Share of the bytes that waits for `OnTheWay.release`; None: it waits for none.
        """
        ...

    def pair(self, source: Replica, target: Replica, request: int) -> Hashable:
        """What requests have in common whose KV crosses the same links, sent as one."""
        ...

    def alone_ns(self, source: Replica, target: Replica, request: int, num_bytes: int) -> int:
        """How long a transfer would take if it had its links to itself, nothing being wrong.

        Args:
            source: As in `send`, as are the others.
            target: The replica that receives.
            request: Index of the request.
            num_bytes: Keys and values, each counted once.
        """
        ...

    def slow_nics(self, replica: Replica, factor: Fraction | float) -> None:
        """Let the NICs of a replica carry a multiple of their bandwidth, both directions.

        Args:
            replica: Whose; where it shares them with others, they are slow for all.
            factor: At least 0; 1 mends them.
        """
        ...


class Nics:
    """One NIC per replica, one link in each direction (rules 39, 63 to 65)."""

    def __init__(self, env: Environment, spec: TransferSpec) -> None:
        self.links = SharedLinks(env)
        self._spec = spec
        self._nics: dict[Replica, tuple[Link, Link]] = {}

    def join(self, replica: Replica) -> None:
        """One more replica."""
        rate = self._rate(replica)
        self._nics[replica] = Link(rate), Link(rate)

    def _rate(self, replica: Replica) -> float:
        rate = replica.spec.nic_bytes_per_s or self._spec.bandwidth_bytes_per_s
        assert rate is not None
        return rate

    def send(
        self,
        source: Replica,
        target: Replica,
        request: int,
        num_bytes: Fraction | int,
        on_end: Callable[[], None],
        *,
        withheld: Fraction | None = None,
    ) -> OnTheWay:
        """See `Carrier.send`."""
        path = [self._nics[source][0], self._nics[target][1]]
        if self._spec.message_rate is not None:
            path.append(Link(self._spec.message_rate))
        held = None if withheld is None else num_bytes * withheld
        flow = self.links.send(path, num_bytes, self._spec.latency_ns, on_end, withheld_bytes=held)
        return _OnNics(flow, num_bytes)

    def pair(self, source: Replica, target: Replica, request: int) -> Hashable:
        """See `Carrier.pair`."""
        return source, target

    def alone_ns(self, source: Replica, target: Replica, request: int, num_bytes: int) -> int:
        """See `Carrier.alone_ns`."""
        rate = Fraction(min(self._rate(source), self._rate(target)))
        if self._spec.message_rate is not None:
            rate = min(rate, self._spec.message_rate)
        return max(1, self._spec.latency_ns + ceil(num_bytes * _NS_PER_S / rate))

    def slow_nics(self, replica: Replica, factor: Fraction | float) -> None:
        """See `Carrier.slow_nics`."""
        rate = Fraction(self._rate(replica)) * Fraction(factor)
        for link in self._nics[replica]:
            self.links.change_bandwidth(link, rate)


@dataclass(frozen=True)
class _OnNics:
    """A transfer that crosses its links as one flow."""

    flow: Flow
    num_bytes: Fraction | int

    def call_off(self) -> None:
        """See `OnTheWay.call_off`."""
        self.flow.call_off()

    def standing(self) -> Hashable:
        """See `OnTheWay.standing`."""
        return self.flow.standing()

    def release(self, share: Fraction | None = None) -> None:
        """See `OnTheWay.release`."""
        self.flow.release(None if share is None else self.num_bytes * share)
