"""Single gaps between tokens, split by phase (`sim.attribution`), from what a run has recorded.

The rules. A gap is the time between two tokens in a row of a request as its client sees them, and
is named by the token that ends it: tokens count from 1, so that the first gap is that of token 2.
(In `Gaps` they have numbers from 0, as in any array.) Its phases
are those of the account of its request between the two instants, as if that were read at both: they
add up to the gap exactly, and over all gaps of a request to its E2E less its TTFT less what comes
after its last token. Of a request the *largest gap* is the first of the longest ones.

Nothing is kept token by token while a run goes on. A gap is made of

1. what passed before its request joined the decode group in which the token came, or all of it if
   the token came otherwise (with the end of a prefill, or with its batch): kept as it is, in
   `Account.joints`, only where that is any time;
2. in the group, until the step of the tick began: `lost` for steps that were lost to it, else
   `stall`. Steps begin as the tick before ends unless a decode group says otherwise
   (`DecodeGroup.begins`);
3. the step. What prefills, padding, noise, pace, copies and bubbles added to it is kept with the
   tick, where it is not 0 (`DecodeGroup.parts`). T1 follows from the number of the token: the step
   that emits number k attends to prompt + k tokens. The rest is `decode_others`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.attribution import (
    DECODE_GPU,
    DECODE_HOST,
    DECODE_OTHERS,
    ITL_COLUMNS,
    LOST,
    PADDING,
    PHASES,
    STALL,
    Bills,
    GapLog,
)
from sim.gaps import joints, span_ends
from sim.request import Ints


@dataclass(frozen=True)
class Gaps:
    """Gaps between tokens, one a row; columns of shape (n,), int64.

    Attributes:
        request: Index of each one's request.
        number: Of the token that ends it, from 0.
        log: Of the decode group with whose tick that came; -1 if it came otherwise.
        tick: Which tick.
        since_ns: When the gap began.
        until_ns: When it ended.
    """

    request: Ints
    number: Ints
    log: Ints
    tick: Ints
    since_ns: Ints
    until_ns: Ints

    @property
    def token(self) -> Ints:
        """The token that ends each, counted from 1."""
        return self.number + 1

    @property
    def ns(self) -> Ints:
        """Their lengths."""
        return self.until_ns - self.since_ns


class GapSplits:
    """Finds gaps of a run, and splits them.

    Args:
        log: What the run has recorded.
        spans: As in `SimulationResult`.
        logs: Likewise.
        index: Of the requests in order, (n,).
        prompt_tokens: Of each.
    """

    def __init__(
        self, log: GapLog, spans: Ints, logs: Sequence[Ints], index: Ints, prompt_tokens: Ints
    ) -> None:
        self._log, self._spans, self._logs = log, spans, logs
        self._index, self._prompt_tokens = index, prompt_tokens
        self._first_ns, self._last_ns = span_ends(spans, list(logs))
        before = np.cumsum(spans[:, 3]) - spans[:, 3]
        begins = np.append(True, spans[1:, 0] != spans[:-1, 0])[: len(spans)]
        self._starts = np.flatnonzero(begins)  # rows of `spans` with which requests begin
        self._counts = np.diff(np.append(self._starts, len(spans)))
        # Of each row, the number of its first token.
        self._number = before - np.repeat(before[self._starts], self._counts)
        self._width = int(log.joints[:, 1].max(initial=0)) + 1
        keys = log.joints[:, 0] * self._width + log.joints[:, 1]
        self._key_order = np.argsort(keys, kind="stable")
        self._keys = keys[self._key_order]

    # --- finding

    def largest(self) -> Gaps:
        """The largest gap of each request that has two tokens, in order of request."""
        best, offset = self._largest_of_rows()
        if not len(best):
            return self._gaps(np.zeros(0, np.int64), np.zeros(0, np.int64))
        most = np.repeat(np.maximum.reduceat(best, self._starts), self._counts)
        rows = np.flatnonzero((best == most) & (best >= 0))
        requests = self._spans[rows, 0]
        rows = rows[np.append(True, requests[1:] != requests[:-1])[: len(rows)]]
        return self._gaps(rows, offset[rows])

    def _largest_of_rows(self) -> tuple[Ints, Ints]:
        """Of each stretch the largest gap that ends in it, ns (-1: none), and at which token."""
        spans = self._spans
        best, offset = np.full(len(spans), -1, np.int64), np.zeros(len(spans), np.int64)
        rows, gaps = joints(spans, self._first_ns, self._last_ns)
        best[rows] = gaps
        _improve(best, offset, np.flatnonzero((spans[:, 1] < 0) & (spans[:, 3] > 1)), 0, 1)
        for log, ends in enumerate(self._logs):
            rows = np.flatnonzero((spans[:, 1] == log) & (spans[:, 3] > 1))
            if len(rows):
                first = spans[rows, 2]
                most, tick = _largest_within(np.diff(ends), first, first + spans[rows, 3] - 1)
                _improve(best, offset, rows, most, tick + 1 - first)
        return best, offset

    def first_of(self, length_ns: int, wanted: Ints) -> Gaps | None:
        """Of requests the first gap, in order of request, of exactly this length; None if none.

        Args:
            length_ns: Of the gap.
            wanted: Indices of the requests, ascending.
        """
        spans = self._spans
        found: list[tuple[int, int]] = []  # row, offset
        mine = np.isin(spans[:, 0], wanted)
        rows, gaps = joints(spans, self._first_ns, self._last_ns)
        found += [(row, 0) for row in rows[(gaps == length_ns) & mine[rows]][:1].tolist()]
        if not length_ns:
            instants = np.flatnonzero((spans[:, 1] < 0) & (spans[:, 3] > 1) & mine)
            found += [(row, 1) for row in instants[:1].tolist()]
        for log, ends in enumerate(self._logs):
            rows = np.flatnonzero((spans[:, 1] == log) & (spans[:, 3] > 1) & mine)
            ticks = np.flatnonzero(np.diff(ends) == length_ns)
            if not len(rows) or not len(ticks):
                continue
            first = spans[rows, 2]
            at = np.searchsorted(ticks, first)
            there = at < len(ticks)
            there[there] = ticks[at[there]] < (first + spans[rows, 3] - 1)[there]
            for row, place in zip(rows[there][:1].tolist(), at[there][:1].tolist(), strict=True):
                found.append((row, int(ticks[place]) + 1 - int(spans[row, 2])))
        if not found:
            return None
        row, after = min(found)
        return self._gaps(np.array([row]), np.array([after]))

    def of(self, request: int) -> Gaps:
        """All gaps of one request, in order."""
        first, last = np.searchsorted(self._spans[:, 0], [request, request + 1])
        tokens = self._spans[first:last, 3]
        rows = np.repeat(np.arange(first, last), tokens)
        offset = np.arange(len(rows)) - np.repeat(np.cumsum(tokens) - tokens, tokens)
        return self._gaps(rows[1:], offset[1:])

    def _gaps(self, rows: Ints, offset: Ints) -> Gaps:
        """The gaps that end with the token so far into these rows of `spans`."""
        spans = self._spans
        request, log, first, _ = spans[rows].T
        in_log = log >= 0
        tick = np.where(in_log, first + offset, -1)
        until, since = first.copy(), first.copy()
        for number, ends in enumerate(self._logs):
            these = np.flatnonzero(log == number)
            until[these] = ends[tick[these]]
            since[these] = ends[np.maximum(tick[these] - 1, 0)]
        joint = offset == 0
        since[joint] = self._last_ns[rows[joint] - 1]
        return Gaps(request, self._number[rows] + offset, log, tick, since, until)

    def columns(self) -> dict[str, Ints]:
        """`ITL_COLUMNS` of the largest gap of each request: -1, -1 and 0 where it has none."""
        gaps = self.largest()
        rows = np.searchsorted(self._index, gaps.request)
        values = (gaps.token, gaps.until_ns, *self.split(gaps).T)
        table = {}
        for name, nothing, column in zip(
            ITL_COLUMNS, (-1, -1, *[0] * len(PHASES)), values, strict=True
        ):
            table[name] = np.full(len(self._index), nothing, np.int64)
            table[name][rows] = column
        return table

    # --- splitting

    def split(self, gaps: Gaps) -> Ints:
        """Their time by phase, ns, shape (n, phases)."""
        ns = self._waited(gaps)
        joined_ns = gaps.since_ns + ns.sum(axis=1)
        for log in np.flatnonzero(np.bincount(gaps.log[gaps.log >= 0])).tolist():
            rows = np.flatnonzero(gaps.log == log)
            self._split_in_group(gaps, rows, joined_ns[rows], log, ns)
        assert (ns.sum(axis=1) == gaps.ns).all(), "parts of a gap between tokens are not the whole"
        return ns

    def _waited(self, gaps: Gaps) -> Ints:
        """What `Account.joints` say."""
        ns, log = np.zeros((len(gaps.request), len(PHASES)), np.int64), self._log
        keys = gaps.request * self._width + gaps.number
        at = np.searchsorted(self._keys, keys, side="right") - 1  # the last one counts
        found = (gaps.number < self._width) & (at >= 0)
        found[found] = self._keys[at[found]] == keys[found]
        joint = self._key_order[at[found]]
        phases = len(PHASES)
        bounds = np.searchsorted(log.places, np.append(joint, joint + 1) * phases)
        of, these = _ranges(*np.split(bounds, 2))
        ns[np.flatnonzero(found)[of], log.places[these] % phases] = log.ns[these]
        return ns

    def _split_in_group(self, gaps: Gaps, rows: Ints, joined_ns: Ints, log: int, ns: Ints) -> None:
        """Add what rows whose token came with a tick of one decode group have after joining it."""
        tick = gaps.tick[rows]
        prompt = self._prompt_tokens[np.searchsorted(self._index, gaps.request[rows])]
        begin, _, steps = self.steps(log, tick, prompt + gaps.number[rows] - 1)
        lost = _lost(tick, joined_ns, self._log.bills[log])
        ns[rows] += steps
        ns[rows, LOST] += lost
        ns[rows, STALL] += begin - joined_ns - lost

    def steps(self, log: int, tick: Ints, stored_tokens: Ints) -> tuple[Ints, Ints, Ints]:
        """Steps of ticks of a decode group, as seen by requests that took part.

        Args:
            log: Of the group.
            tick: Which, (n,).
            stored_tokens: Of the request before each, (n,).

        Returns:
            When each began and ended, (n,), and its time by phase, (n, phases).
        """
        ends, bills = self._logs[log], self._log.bills[log]
        begin = _begins(tick, ends, bills)
        rest = ends[tick] - begin
        ns = np.zeros((len(tick), len(PHASES)), np.int64)
        ns[:, PADDING] = _padding(tick, rest, bills)
        parts = _table(bills.parts, 3)
        parts = parts[np.argsort(parts[:, 0], kind="stable")]
        of, these = _ranges(
            np.searchsorted(parts[:, 0], tick), np.searchsorted(parts[:, 0], tick, side="right")
        )
        np.add.at(ns, (of, parts[these, 1]), parts[these, 2])
        ns[:, DECODE_GPU], ns[:, DECODE_HOST] = bills.alone.steps(stored_tokens)
        ns[:, DECODE_OTHERS] = rest - ns.sum(axis=1)
        return begin, ends[tick], ns

    def lost_steps(self, log: int) -> list[tuple[int, int, int]]:
        """(the next tick, begin, ns) of steps of a decode group that were lost."""
        return self._log.bills[log].lost


def _table(flat: array[int], width: int) -> Ints:
    """Rows that stand one after the other; the same memory."""
    if not flat:
        return np.zeros((0, width), np.int64)
    return np.frombuffer(flat, np.int64).reshape(-1, width)


def _ranges(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Of ranges of places all these places, and to which range each belongs (the first result)."""
    many = last - first
    of = np.repeat(np.arange(len(many)), many)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(many) - many, many) + first[of]


def _begins(tick: Ints, ends: Ints, bills: Bills) -> Ints:
    """When the steps of ticks began, ns."""
    begins = _table(bills.begins, 2)
    at = np.searchsorted(begins[:, 0], tick)
    said = at < len(begins)
    said[said] = begins[at[said], 0] == tick[said]
    begin = ends[np.maximum(tick - 1, 0)]
    begin[said] = begins[at[said], 1]
    return begin


def _padding(tick: Ints, length_ns: Ints, bills: Bills) -> Ints:
    """Of steps of ticks what rows of padding added, where that is kept run by run."""
    padding = np.zeros(len(tick), np.int64)
    if not bills.padded:
        return padding
    firsts = np.array([first for first, _ in bills.padded])
    many = np.array([len(lengths) for _, lengths in bills.padded])
    places = np.cumsum(many) - many
    real = np.concatenate([np.frombuffer(lengths, np.int64) for _, lengths in bills.padded])
    run = np.searchsorted(firsts, tick, side="right") - 1
    place = tick - firsts[run]
    padded = (run >= 0) & (place < many[run])
    padding[padded] = length_ns[padded] - real[(places[run] + place)[padded]]
    return padding


def _lost(tick: Ints, joined_ns: Ints, bills: Bills) -> Ints:
    """Of the time in a group before ticks, that of steps that were lost."""
    lost = np.zeros(len(tick), np.int64)
    for before, began_ns, ns in bills.lost:
        lost[(tick == before) & (joined_ns <= began_ns)] += ns
    return lost


def _improve(best: Ints, offset: Ints, rows: Ints, ns: Ints | int, after: Ints | int) -> None:
    """A later gap is the best of a row if it is longer."""
    longer = best[rows] < ns
    best[rows[longer]] = ns if isinstance(ns, int) else ns[longer]
    offset[rows[longer]] = after if isinstance(after, int) else after[longer]


def _largest_within(gaps: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """The longest of consecutive gaps, and the place of the first of these.

    Args:
        gaps: All of them, (k,), ns.
        first: Of each stretch, (n,).
        last: Of each, not included; above `first`.
    """
    size = len(gaps) + 1
    ranks = gaps
    if int(gaps.max()) >= (1 << 62) // size:  # no room for a place beside such numbers
        _, ranks = np.unique(gaps, return_inverse=True)
    keys = np.append(ranks * size + (size - 1 - np.arange(size - 1)), -1)
    most = np.maximum.reduceat(keys, np.column_stack((first, last)).ravel())[::2]
    places = size - 1 - most % size
    return gaps[places], places
