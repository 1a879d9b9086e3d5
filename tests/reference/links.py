"""Transfers: each with the bandwidth to itself (rule 35), or sharing links (39, 63 to 66).

Keys of `transfer` beside those of the base reference:

sharing          "none" | "max-min"
nic_bytes_per_s  of a replica's configuration (else `bandwidth_bytes_per_s` of the transfer, 63)
overlap          "none" | "layerwise", with `layers` (66)

Times of flows are exact fractions of a nanosecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from .loading import refsim


@dataclass(eq=False)
class Flight:
    """A transfer in flight. `layers`: how many parts, 0 if not layer-wise."""

    request: object
    source: object
    target: object
    record: object
    bytes: object
    wire: dict
    layers: int = 0

    def begin(self) -> None:
        if self.layers == 0:
            self.record.end_ns = self.record.start_ns + self.lasts(1)

    def lasts(self, part: int) -> int:
        """Nanoseconds of this part of all bytes alone on the link (rules 4, 35, 66)."""
        size = self.bytes if part == 1 else self.bytes / part
        seconds = self.wire.get("latency_s", 0.0) + size / self.wire["bandwidth_bytes_per_s"]
        return max(1, refsim.to_ns(seconds))

    def prefill_ended(self, now: int) -> None:
        """Layer-wise only: the last part may be sent (66)."""
        start = self.record.start_ns
        self.record.end_ns = max(now + self.lasts(self.layers), start + self.lasts(1))

    def over(self, now: int) -> bool:
        return self.record.end_ns == now

    def next_instant(self) -> int | None:
        return self.record.end_ns

    def state(self, now: int) -> tuple:
        end = self.record.end_ns
        if end is None:  # layer-wise, its prefill goes on
            return (self.request.index, max(0, self.record.start_ns + self.lasts(1) - now), True)
        return (self.request.index, end - now, False)


class Flow(Flight):
    """One that shares links. Its bytes arrive in one run, or all but the last part, then that."""

    def begin(self) -> None:
        self.latency = refsim.to_ns(self.wire.get("latency_s", 0.0))  # by itself, may be 0 (65)
        self.opens = self.record.start_ns + self.latency  # latency is paid first (39)
        self.last_opens = None if self.layers else self.opens
        self.size = Fraction(self.bytes)
        self.sent = Fraction(0)
        self.exact = None  # when its last byte arrived

    def prefill_ended(self, now: int) -> None:
        self.last_opens = now + self.latency

    def limit(self, at: Fraction) -> Fraction:
        """Bytes that may have been sent by then (66)."""
        if at < self.opens:
            return Fraction(0)
        if self.last_opens is None or at < self.last_opens:
            return self.size * (self.layers - 1) / self.layers
        return self.size

    def path(self) -> list:
        """The source's outgoing and the target's incoming direction (63)."""
        return [(self.source.name, "out"), (self.target.name, "in")]

    def capacity(self, link: tuple) -> Fraction:
        """Bytes per ns: the exact value of the double (65)."""
        replica = self.source if link[1] == "out" else self.target
        own = replica.cfg.get("nic_bytes_per_s")
        if own is None:
            own = self.wire.get("nic_bytes_per_s", self.wire["bandwidth_bytes_per_s"])
        return Fraction(own) / 10**9

    def over(self, now: int) -> bool:
        """Rounded up to the next ns, at least 1 ns after its start (64)."""
        if self.exact is None:
            return False
        end = max(self.record.start_ns + 1, math.ceil(self.exact))
        if end > now:
            return False
        assert end == now
        self.record.end_ns = now
        return True

    def state(self, now: int) -> tuple:
        opens = [None if t is None else max(0, t - now) for t in (self.opens, self.last_opens)]
        return (self.request.index, self.sent, *opens)


def rates(flows: list) -> dict:
    """Max-min fair by progressive filling: all grow alike until a link of theirs is full (64)."""
    left = {link: f.capacity(link) for f in flows for link in f.path()}
    growing = list(flows)
    rate = {f: Fraction(0) for f in flows}
    while growing:
        users = {link: sum(link in f.path() for f in growing) for link in left}
        step = min(left[link] / n for link, n in users.items() if n)
        for f in growing:
            rate[f] += step
        for link, n in users.items():
            left[link] -= step * n
        growing = [f for f in growing if all(left[link] > 0 for link in f.path())]
    for f in flows:  # each has a full link on which nobody is faster
        full = [link for link in f.path() if left[link] == 0]
        assert any(all(rate[g] <= rate[f] for g in flows if k in g.path()) for k in full)
    assert all(n >= 0 for n in left.values())
    return rate


class Links:
    """The flows and their clock."""

    def __init__(self, note) -> None:
        self.clock = Fraction(0)
        self.note = note

    def advance(self, flows: list, until) -> None:
        """Rates change at the exact moment a flow begins, pauses or ends (64)."""
        self.clock = self.run(flows, self.clock, until, False)

    def next_instant(self, flows: list) -> int | None:
        """When the next flow ends if none is added. Looks ahead, then puts everything back."""
        kept = [(f, f.sent, f.exact) for f in flows]
        self.run(flows, self.clock, None, True)
        ends = [math.ceil(f.exact) for f in flows if f.exact is not None]
        for f, sent, exact in kept:
            f.sent, f.exact = sent, exact
        return min(ends) if ends else None

    def run(self, flows: list, at: Fraction, until, first_end: bool):
        while until is None or at < until:
            if first_end and any(f.exact is not None for f in flows):
                break
            active = [f for f in flows if f.sent < f.limit(at)]
            speed = rates(active)
            if until is not None and len(active) > 1:
                self.note("links shared")
                if len(set(speed.values())) > 1:
                    self.note("links shared unequally")
            moments = [] if until is None else [until]
            for f in flows:
                moments += [t for t in (f.opens, f.last_opens) if t is not None and t > at]
            moments += [at + (f.limit(at) - f.sent) / speed[f] for f in active]
            if not moments:
                break
            after = Fraction(min(moments))
            for f in active:
                f.sent += speed[f] * (after - at)
                assert f.sent <= f.size
                if f.sent == f.size:
                    f.exact = after
                    if until is not None and after.denominator > 1:
                        self.note("a flow ends between two ns")
                elif until is not None and f.layers and f.sent == f.limit(at):
                    self.note("a flow pauses")
            at = after
        return at
