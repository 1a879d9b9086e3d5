"""The life of single requests in the order of time: stretches of one state, and steps.

Accounts (`sim.attribution`) keep how long a request was in each phase, not when. Of requests that
are followed (`sim.records.Record.follow`) it is kept when as well: each wait, each step of its
prefill, and each tick of its decode group, with the phases of that step. Stretches follow each
other without a gap from arrival to end, and their phases add up to those of the account, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.attribution import BETWEEN, LOST, PHASES, STALL, Account, Line

if TYPE_CHECKING:
    from sim.decode_group import DecodeGroup
    from sim.gap_splits import GapSplits


class Stretch(NamedTuple):
    """A part of a life.

    Attributes:
        begin_ns: When it began.
        end_ns: When it ended.
        what: ``prefill`` or ``decode`` for a step, else the phase that it is all of.
        ns: Its time by phase.
    """

    begin_ns: int
    end_ns: int
    what: str
    ns: Mapping[str, int]


class _Stay(NamedTuple):
    """Time in a decode group: which ticks of it were the request's."""

    begin_ns: int
    end_ns: int
    log: int
    first: int
    ticks: int
    stored_tokens: int
    lost_ns: int


class FollowedAccount(Account):
    """An account that keeps when its request was in which state.

    Attributes:
        parts: What is known of its life so far, in order.
    """

    __slots__ = ("_seen", "parts")

    def __init__(self, now_ns: int) -> None:
        super().__init__(now_ns)
        self.parts: list[Stretch | _Stay] = []
        self._seen = self.ns.copy()

    def to(self, state: int, now_ns: int) -> None:
        """See `Account.to`."""
        begin, before = self.since_ns, self.state
        line, since = self._line, len(self.parts)
        super().to(state, now_ns)
        if line is not None and self._line is None:
            self.parts += _in_line(line, begin, now_ns)
        elif before >= 0 and begin < now_ns:
            name = PHASES[before]
            self.parts.append(Stretch(begin, now_ns, name, {name: now_ns - begin}))
        if len(self.parts) > since:
            self._seen = self.ns.copy()

    def join_line(self, line: Line, now_ns: int) -> None:
        """See `Account.join_line`."""
        super().join_line(line, now_ns)
        if line.history is None:
            line.history = [(now_ns, line.cause)]

    def left(self, group: DecodeGroup, ticks: int, now_ns: int, lost_ns: int) -> None:
        """See `Account.left`."""
        first = group.clock - ticks
        self.parts.append(
            _Stay(self.since_ns, now_ns, group.log, first, ticks, self.context, lost_ns)
        )
        super().left(group, ticks, now_ns, lost_ns)
        self._seen = self.ns.copy()

    def computed(self, begin_ns: int, end_ns: int) -> None:
        """See `Account.computed`."""
        waited = max(0, begin_ns - self.since_ns)
        if waited:
            name = PHASES[BETWEEN]
            self.parts.append(Stretch(self.since_ns, begin_ns, name, {name: waited}))
        step = [after - before for before, after in zip(self._seen, self.ns, strict=True)]
        step[BETWEEN] -= waited
        begin = max(begin_ns, self.since_ns)
        self.parts.append(Stretch(begin, end_ns, "prefill", _named(step)))
        super().computed(begin_ns, end_ns)
        self._seen = self.ns.copy()

    def life(self, splits: GapSplits) -> list[Stretch]:
        """All of it, the request having ended, or the run."""
        whole: list[Stretch] = []
        for part in self.parts:
            if isinstance(part, Stretch):
                whole.append(part)
            else:
                whole += _ticks(part, splits)
        return whole


def _named(ns: Sequence[int]) -> dict[str, int]:
    return {name: time for name, time in zip(PHASES, ns, strict=True) if time}


def _in_line(line: Line, begin_ns: int, end_ns: int) -> list[Stretch]:
    """Why it waited in a queue, from the changes of the reason."""
    assert line.history is not None
    found: list[Stretch] = []
    changes = [*line.history, (end_ns, -1)]
    for (since_ns, cause), (until_ns, _) in pairwise(changes):
        since_ns, until_ns = max(since_ns, begin_ns), min(until_ns, end_ns)
        if since_ns < until_ns:
            name = PHASES[cause]
            found.append(Stretch(since_ns, until_ns, name, {name: until_ns - since_ns}))
    return found


def _ticks(stay: _Stay, splits: GapSplits) -> list[Stretch]:
    """Time in a decode group, tick by tick."""
    found: list[Stretch] = []
    at = stay.begin_ns
    ticks = np.arange(stay.first, stay.first + stay.ticks)
    stored = stay.stored_tokens + np.arange(stay.ticks)
    begins, ends, ns = splits.steps(stay.log, ticks, stored)
    lost = splits.lost_steps(stay.log)
    for tick, begin, end, row in zip(
        ticks.tolist(), begins.tolist(), ends.tolist(), ns.tolist(), strict=True
    ):
        found += _idle(at, begin, [(b, n) for t, b, n in lost if t == tick])
        found.append(Stretch(begin, end, "decode", _named(row)))
        at = end
    after = [(b, n) for t, b, n in lost if t == stay.first + stay.ticks]
    if stay.lost_ns:
        after.append((stay.end_ns - stay.lost_ns, stay.lost_ns))
    return found + _idle(at, stay.end_ns, after)


def _idle(begin_ns: int, end_ns: int, lost: Sequence[tuple[int, int]]) -> list[Stretch]:
    """Time in a group between its steps: that of steps that were lost, the rest is stall."""
    found: list[Stretch] = []
    at, stall, gone = begin_ns, PHASES[STALL], PHASES[LOST]
    for began, ns in lost:
        if began < begin_ns or began + ns > end_ns or not ns:
            continue
        if at < began:
            found.append(Stretch(at, began, stall, {stall: began - at}))
        found.append(Stretch(began, began + ns, gone, {gone: ns}))
        at = began + ns
    if at < end_ns:
        found.append(Stretch(at, end_ns, stall, {stall: end_ns - at}))
    return found
