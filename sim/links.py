"""Links that transfers share max-min fairly, with exact progress (rules 39 and 63 to 66).

The rules, in our words:

1. A transfer crosses the links of its path at one rate. Rates are max-min fair by progressive
   filling: all rise together; where a link is full, the transfers on it keep what they have, and
   the others rise on.
2. Rates are set anew at the exact moment at which a transfer starts to flow, has nothing left that
   it may send, or is called off. Time and bytes are rationals: nothing is rounded on the way.
3. A transfer starts when it is sent. Its latency comes first and uses no bandwidth.
4. Its end is applied at the first whole ns at or after the moment at which its last byte arrives,
   and at least 1 ns after its start, in phase (2); those of one instant in order of start.
5. Without bytes it ends when its latency is over, or 1 ns after its start if that is later.
6. Part of it may be withheld at the start: it is sent once it has been released, at once or bit by
   bit, each a latency later. In between the transfer has nothing to send and takes no bandwidth.
7. Several parts of equal bytes on paths alike may go as one transfer, of which it is said how many
   of them cross each link: rates, bytes and bandwidths are then those of one part. Whoever joins
   them sees to it that they could never have had different rates (`sim.lanes`).
8. The bandwidth of a link may change, also to 0, at a whole ns: transfers flow at the old rates up
   to that moment, which includes a last byte that arrives at it, and at the new ones from it on.

Max-min fairness and progressive filling: Bertsekas and Gallager, Data Networks, 2nd edition,
section 6.5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from itertools import chain
from math import gcd, lcm
from typing import Any

from simpy import Environment

from sim.clock import Instant, Phase, now_ns

_NS_PER_S = 10**9


class Link:
    """One direction of something that carries bytes.

    Args:
        bytes_per_s: Bandwidth; the exact value of a float counts.
    """

    __slots__ = ("bytes_per_ns", "flows")

    def __init__(self, bytes_per_s: Fraction | float) -> None:
        self.bytes_per_ns = Fraction(bytes_per_s) / _NS_PER_S
        self.flows: dict[Flow, int] = {}


class Flow:
    """One transfer on shared links, made by `SharedLinks.send`.

    Attributes:
        path: Links that it crosses, and how many of its parts cross each.
        order: Rank in order of start.
        left: Bytes that it may send and has not sent, in units that `SharedLinks` knows.
        withheld: Bytes that it may not send yet; None once nothing is withheld.
        rate: Bytes per ns; 0 while it does not flow.
        speed: The rate, in units that `SharedLinks` knows.
        over: Its last byte has arrived, or it was called off.
    """

    __slots__ = (
        "latency_ns",
        "left",
        "links",
        "on_end",
        "order",
        "over",
        "path",
        "rate",
        "speed",
        "start_ns",
        "withheld",
    )

    def __init__(
        self,
        links: SharedLinks,
        path: Mapping[Link, int],
        order: tuple[int, int],
        latency_ns: int,
        on_end: Callable[[], None],
    ) -> None:
        self.links, self.path, self.order = links, path, order
        self.start_ns, self.latency_ns = now_ns(links.env), latency_ns
        self.on_end = on_end
        self.withheld: Fraction | None = None
        self.left = self.speed = 0
        self.rate = Fraction(0)
        self.over = False

    def call_off(self) -> None:
        """It never ends, and takes no bandwidth from now on."""
        self.links.call_off(self)

    def standing(self) -> Hashable:
        """What is left of it, and when: see `SharedLinks.standing`."""
        return self.links.standing(self)

    def release(self, num_bytes: Fraction | int | None = None) -> None:
        """So much of what was withheld, or all that is left of it, may be sent a latency from now.

        Args:
            num_bytes: More than 0; more is to come, if of no bytes. None: all, and no more comes.
        """
        self.links.release(self, num_bytes)


class SharedLinks:
    """All transfers of a cluster over links that they share; wakes up in phase (2) only.

    The present moment and what is left of each transfer are integers over one denominator `_unit`,
    rates are integers over `_rate_unit`: so a moment costs a few products for each transfer, and no
    common divisor has to be found for each sum. While a link is never idle, moments are fractions
    with ever longer denominators, which is the price of exactness; they are reduced now and then.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._sent = self._split = 0
        self._flowing: dict[Flow, None] = {}
        self._moment, self._unit, self._rate_unit = 0, 1, 1
        self._tolerated_bits = 0
        self._releases: list[tuple[int, tuple[int, int], Flow, Fraction]] = []
        self._over: list[tuple[int, tuple[int, int], Flow]] = []
        self._timer = Instant(env, 0, Phase.TRANSFER_END)
        self._timer_ns = -1

    def send(
        self,
        path: Sequence[Link] | Mapping[Link, int],
        num_bytes: Fraction | int,
        latency_ns: int,
        on_end: Callable[[], None],
        *,
        withheld_bytes: Fraction | int | None = None,
    ) -> Flow:
        """Start a transfer now.

        Args:
            path: Links that it crosses, each once, at least one if it has bytes; of joined parts
                (rule 7) with how many of them cross each.
            num_bytes: All its bytes, of one part, at least 0.
            latency_ns: Time before the first byte, at least 0.
            on_end: Called in phase (2) of the instant at which its end is applied.
            withheld_bytes: Of its bytes those that wait for `Flow.release`, 0 being possible: it
                does not end before. None: it waits for nothing.
        """
        self._sent += 1
        crossed = path if isinstance(path, Mapping) else dict.fromkeys(path, 1)
        flow = Flow(self, crossed, (self._sent, 0), latency_ns, on_end)
        free = Fraction(num_bytes)
        if withheld_bytes is not None:
            flow.withheld = Fraction(withheld_bytes)
            free -= flow.withheld
        self._release(flow, free)
        self._settle()
        return flow

    def release(self, flow: Flow, num_bytes: Fraction | int | None = None) -> None:
        """See `Flow.release`."""
        assert flow.withheld is not None, "nothing is withheld"
        if num_bytes is None:
            amount, flow.withheld = flow.withheld, None
        else:
            amount = Fraction(num_bytes)
            flow.withheld -= amount
            assert flow.withheld >= 0, "less is withheld"
        self._release(flow, amount)
        self._settle()

    def call_off(self, flow: Flow) -> None:
        """See `Flow.call_off`."""
        now = now_ns(self.env)
        flow.over = True
        self._advance(now)
        self._over = sorted(entry for entry in self._over if entry[2] is not flow)
        self._releases = sorted(entry for entry in self._releases if entry[2] is not flow)
        if flow in self._flowing:
            self._go_to(now)
            self._stop([flow])
        self._settle()

    def change_bandwidth(self, link: Link, bytes_per_s: Fraction | float) -> None:
        """Let a link carry another bandwidth from this instant on.

        Until now everybody has flowed at the old rates: what had sent its last byte by now is over.

        Args:
            link: Any link, whether somebody crosses it or not.
            bytes_per_s: At least 0, its exact value; 0: nothing passes until the next change.
        """
        now = now_ns(self.env)
        self._advance(now)
        self._go_to(now)
        link.bytes_per_ns = Fraction(bytes_per_s) / _NS_PER_S
        assert link.bytes_per_ns >= 0, "a link carries at least 0 bytes"
        self._share([link])
        self._settle()

    def unsent(self, flow: Flow) -> Fraction:
        """Bytes of it, or of one of its parts, that have not been sent by now."""
        now = now_ns(self.env)
        self._advance(now)
        self._go_to(now)
        to_come = sum(amount for _, _, other, amount in self._releases if other is flow)
        return Fraction(flow.left, self._unit) + to_come + (flow.withheld or 0)

    def standing(self, flow: Flow) -> Hashable:
        """All that tells, if the links stay as they are, how a transfer goes on from now.

        Returns:
            Bytes not sent, bytes withheld, ns from now until each of its releases, with their
            bytes, and ns from now until its end, if that is known; others than it do the rest.
        """
        now = now_ns(self.env)
        unsent = self.unsent(flow)
        to_come = sorted((when - now, size) for when, _, x, size in self._releases if x is flow)
        ends = [when - now for when, _, x in self._over if x is flow]
        return unsent, flow.withheld, tuple(to_come), tuple(ends)

    def split(self, parts: Sequence[tuple[Flow, Sequence[Mapping[Link, int]]]]) -> list[list[Flow]]:
        """Let joined parts (rule 7) go on as several transfers, on other `Link` objects.

        All that flows over a link that is replaced has to be named; no rate may change by this.

        Args:
            parts: Transfers that are not over, each with the paths of what takes its place.

        Returns:
            For each of them: itself, on its first path, and new ones on the others.
        """
        now = now_ns(self.env)
        self._advance(now)
        self._go_to(now)
        made = [[flow, *(self._copy(flow) for _ in paths[1:])] for flow, paths in parts]
        for flow, _ in parts:
            for link in flow.path:
                link.flows.pop(flow, None)
        changed: dict[Link, None] = {}
        for flows, (_, paths) in zip(made, parts, strict=True):
            for flow, path in zip(flows, paths, strict=True):
                flow.path = path
                if flow in self._flowing:
                    changed |= dict.fromkeys(path)
                    for link, count in path.items():
                        link.flows[flow] = count
        self._share(changed)
        self._settle()
        return made

    def _copy(self, flow: Flow) -> Flow:
        """Another transfer in the same state, next in order of start."""
        self._split += 1
        copy = Flow(self, flow.path, (flow.order[0], self._split), flow.latency_ns, flow.on_end)
        copy.start_ns, copy.withheld, copy.over = flow.start_ns, flow.withheld, flow.over
        copy.left, copy.speed, copy.rate = flow.left, flow.speed, flow.rate
        if flow in self._flowing:
            self._flowing[copy] = None
        for when_ns, _, other, amount in [*self._releases]:
            if other is flow:
                heappush(self._releases, (when_ns, copy.order, copy, amount))
        for when_ns, _, other in [*self._over]:
            if other is flow:
                heappush(self._over, (when_ns, copy.order, copy))
        return copy

    def _release(self, flow: Flow, amount: Fraction) -> None:
        """Bytes (none is possible, if that is all) that may flow a latency from now."""
        when_ns = now_ns(self.env) + flow.latency_ns
        heappush(self._releases, (when_ns, flow.order, flow, amount))

    def _settle(self) -> None:
        """Bring everything up to this instant, and wake up when something is next to happen."""
        now = now_ns(self.env)
        self._advance(now)
        moments = [entries[0][0] for entries in (self._releases, self._over) if entries]
        first = self._next_to_end()
        if first is not None:
            rest = first.left * self._rate_unit
            moments.append(-(-(self._moment * first.speed + rest) // (self._unit * first.speed)))
        when_ns = min(moments, default=-1)
        if when_ns == self._timer_ns:
            return
        self._timer.call_off()
        self._timer_ns = when_ns
        if moments:
            self._timer = Instant(self.env, when_ns - now, Phase.TRANSFER_END)
            self._timer.callbacks.append(self._wakes)

    def _wakes(self, _: Any) -> None:
        """Phase (2): apply the ends of this instant, in order of start."""
        self._timer_ns = -1
        now = now_ns(self.env)
        self._advance(now)
        ended = []
        while self._over and self._over[0][0] <= now:
            ended.append(heappop(self._over)[2])
        for flow in ended:
            flow.on_end()
        self._settle()

    def _advance(self, now: int) -> None:
        """Let everything happen that happens up to `now`, at its exact moment."""
        while True:
            first = self._next_to_end()
            begins_ns = self._releases[0][0] if self._releases else now + 1
            time_left = min(now, begins_ns) * self._unit - self._moment
            if first is not None and first.left * self._rate_unit <= time_left * first.speed:
                self._send_all_of(first)
            elif begins_ns <= now:
                self._begin(begins_ns)
            else:
                return

    def _next_to_end(self) -> Flow | None:
        """Who has sent all it may first, if rates stay; None where links are down for all."""
        first = None
        for flow in self._flowing:
            if flow.speed and (first is None or flow.left * first.speed < first.left * flow.speed):
                first = flow
        return first

    def _send_all_of(self, first: Flow) -> None:
        """Go on to the moment at which a transfer has sent all that it may."""
        speed, left = first.speed, first.left
        self._moment = self._moment * speed + left * self._rate_unit
        self._unit *= speed
        for flow in self._flowing:
            flow.left = flow.left * speed - flow.speed * left
        sent = [flow for flow in self._flowing if not flow.left]
        for flow in sent:
            self._has_sent(flow)
        self._stop(sent)

    def _go_to(self, when_ns: int) -> None:
        """Go on to a whole ns, before which nobody has sent all that it may."""
        span = when_ns * self._unit - self._moment
        if span and self._flowing:
            for flow in self._flowing:
                flow.left = flow.left * self._rate_unit - flow.speed * span
            self._unit *= self._rate_unit
        self._moment = when_ns * self._unit

    def _begin(self, when_ns: int) -> None:
        """Bytes that may flow from this instant on, do."""
        self._go_to(when_ns)
        changed: dict[Link, None] = {}
        while self._releases and self._releases[0][0] == when_ns:
            _, _, flow, amount = heappop(self._releases)
            if not amount and flow not in self._flowing:
                self._has_sent(flow)
                continue
            if flow not in self._flowing:
                self._flowing[flow] = None
                changed |= dict.fromkeys(flow.path)
                for link, parts in flow.path.items():
                    link.flows[flow] = parts
            self._refine(amount.denominator)
            flow.left += amount.numerator * (self._unit // amount.denominator)
        self._share(changed)

    def _refine(self, denominator: int) -> None:
        """Let the unit be a multiple of `denominator`."""
        factor = denominator // gcd(denominator, self._unit)
        if factor > 1:
            self._unit *= factor
            self._moment *= factor
            for flow in self._flowing:
                flow.left *= factor

    def _reduce(self) -> None:
        """Divide out what moment and bytes have in common with the unit, if that has grown."""
        if not self._flowing:
            self._moment, self._unit = self._moment // self._unit, 1
        elif self._unit.bit_length() > self._tolerated_bits:
            factor = gcd(self._unit, self._moment, *(flow.left for flow in self._flowing))
            self._unit //= factor
            self._moment //= factor
            for flow in self._flowing:
                flow.left //= factor
            self._tolerated_bits = 256 + 2 * self._unit.bit_length()

    def _stop(self, flows: Iterable[Flow]) -> None:
        """These do not flow any more, and leave their links to the others."""
        changed: dict[Link, None] = {}
        for flow in flows:
            del self._flowing[flow]
            flow.left, flow.rate = 0, Fraction(0)
            changed |= dict.fromkeys(flow.path)
            for link in flow.path:
                del link.flows[flow]
        self._share(changed)

    def _has_sent(self, flow: Flow) -> None:
        """A transfer has sent all that it may; it is over if nothing is to come."""
        to_come = any(entry[2] is flow for entry in self._releases)
        if not (flow.over or to_come or flow.withheld is not None):
            flow.over = True
            end_ns = max(-(-self._moment // self._unit), flow.start_ns + 1)
            heappush(self._over, (end_ns, flow.order, flow))

    def _share(self, links: Iterable[Link]) -> None:
        """Set the rates of all transfers that a change on these links can concern."""
        for flow, rate in fair_rates(_connected(links)):
            flow.rate = rate
        unit = self._rate_unit = lcm(*{flow.rate.denominator for flow in self._flowing})
        for flow in self._flowing:
            flow.speed = flow.rate.numerator * (unit // flow.rate.denominator)
        self._reduce()


def _connected(links: Iterable[Link]) -> dict[Link, None]:
    """These links, and all that share a transfer with them, directly or through others."""
    found = dict.fromkeys(links)
    new = list(found)
    while new:
        for flow in new.pop().flows:
            for link in flow.path:
                if link not in found:
                    found[link] = None
                    new.append(link)
    return found


def fair_rates(links: Iterable[Link]) -> list[tuple[Flow, Fraction]]:
    """Max-min fair rates of the transfers on some links, bytes per ns, by progressive filling.

    Args:
        links: All links that these transfers cross.
    """
    left = {link: link.bytes_per_ns for link in links if link.flows}
    rising = {link: sum(link.flows.values()) for link in left}
    rates: dict[Flow, Fraction] = {}
    while rising:
        levels = {link: left[link] / count for link, count in rising.items()}
        level = min(levels.values())
        stopped: dict[Link, int] = {}
        full = [link for link, reached in levels.items() if reached == level]
        for flow in chain.from_iterable(link.flows for link in full):
            if flow not in rates:
                rates[flow] = level
                for crossed, parts in flow.path.items():
                    stopped[crossed] = stopped.get(crossed, 0) + parts
        for link, count in stopped.items():
            left[link] -= level * count
            rising[link] -= count
        rising = {link: count for link, count in rising.items() if count}
    return list(rates.items())
