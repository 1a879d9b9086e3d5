"""Sessions: which rows are turns of one conversation, and the source in which turns follow ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from sim.errors import TraceError, nearest
from sim.request import NEVER, Arrival, Ints, Trace
from traces.arrivals import arrive
from traces.joins import Joins, causes_of, check_order, trees_of
from traces.workload import check_settled, fields_of

OnFailedTurn = Literal["skip", "continue"]
ON_FAILED_TURN: tuple[str, ...] = get_args(OnFailedTurn)

_OVER = -1
"""No turn follows."""


@dataclass(frozen=True)
class Sessions:
    """The rows of a trace as turns of sessions (rules 71 and 72).

    A row without a session is a session of one turn. Sessions are numbered in order of first
    appearance; their turns follow each other by the column `turn`, else in trace order.

    Attributes:
        of_row: (n,) number of the session of each row.
        order: (n,) rows, session by session, turn by turn.
        first: (sessions,) row of the first turn of each.
        following: (n,) row of the next turn, -1 after the last.
        left: (n,) turns of the session after this one.
        causes: Rows that also wait for requests of other sessions, to the rows of those.
        tree: (sessions,) the session that begins those which wait for each other; itself for most.
    """

    of_row: Ints
    order: Ints
    first: Ints
    following: Ints
    left: Ints
    causes: Mapping[int, tuple[int, ...]]
    tree: Ints

    def __len__(self) -> int:
        return len(self.first)

    @property
    def starts(self) -> Ints:
        """(k,) sessions that begin by themselves, in order of first appearance."""
        return np.flatnonzero(self.tree == np.arange(len(self)))

    @property
    def later(self) -> Ints:
        """(k,) rows that are not the first turn of their session, session by session."""
        continues = np.diff(self.of_row[self.order]) == 0
        return self.order[1:][continues]

    @property
    def before(self) -> Ints:
        """(k,) the row of the turn before each of `later`."""
        continues = np.diff(self.of_row[self.order]) == 0
        return self.order[:-1][continues]


def sessions_of(trace: Trace) -> Sessions:
    """The sessions of a trace.

    Raises:
        TraceError: The trace has no sessions, or two rows of a session have the same number, or one
            has a number and another has none, or requests wait for what is not there.
    """
    if trace.session is None or all(name is None for name in trace.session.tolist()):
        raise TraceError(
            f"{trace.source}: sessions: no row has a session; expected a column session or"
            " session_id, or leave workload.sessions out"
        )
    of_row = _numbered(trace.session.tolist())
    turn = np.zeros(len(trace), dtype=np.int64) if trace.turn is None else trace.turn
    order = np.lexsort((turn, of_row))  # stable: trace order decides where `turn` does not
    same = np.diff(of_row[order]) == 0
    if trace.turn is not None:
        _refuse_unclear(trace, order, same)
    following = np.full(len(trace), _OVER, dtype=np.int64)
    following[order[:-1][same]] = order[1:][same]
    begins = np.flatnonzero(np.concatenate(([True], ~same)))
    lengths = np.diff(np.concatenate((begins, [len(order)])))
    left = np.empty(len(trace), dtype=np.int64)
    left[order] = np.repeat(begins + lengths, lengths) - np.arange(len(order)) - 1
    first = order[begins]
    causes, tree = _trees(trace, of_row, first, following)
    return Sessions(of_row, order, first, following, left, causes, tree)


def _trees(
    trace: Trace, of_row: Ints, first: Ints, following: Ints
) -> tuple[dict[int, tuple[int, ...]], Ints]:
    """Who waits for whom across sessions, and the session that begins the tree of each."""
    causes = causes_of(trace)
    if not causes:
        return causes, np.arange(len(first))
    check_order(trace, _before(following), causes)
    group = trees_of(of_row, causes)
    begins: dict[int, int] = {}
    for session, row in enumerate(first.tolist()):
        if row in causes:
            continue
        if begins.setdefault(int(group[session]), session) != session:
            raise TraceError(
                f"{trace.source}:{trace.row[row]}: after: two sessions wait for each other that"
                " both begin by themselves; expected the first turn of one to come after a"
                " request of the other"
            )
    return causes, np.array([begins[number] for number in group.tolist()], dtype=np.int64)


def _before(following: Ints) -> Ints:
    """(n,) the turn before each, -1 before the first."""
    before = np.full(len(following), _OVER, dtype=np.int64)
    followed = np.flatnonzero(following >= 0)
    before[following[followed]] = followed
    return before


def _numbered(names: list[str | None]) -> Ints:
    """(n,) the session of each row, numbered in order of first appearance."""
    numbers: dict[str, int] = {}
    of_row, many = [], 0
    for name in names:
        number = many if name is None else numbers.setdefault(name, many)
        of_row.append(number)
        many += number == many
    return np.array(of_row, dtype=np.int64)


def _refuse_unclear(trace: Trace, order: Ints, same: np.ndarray[Any, Any]) -> None:
    """Refuse turns whose order the numbers leave open."""
    assert trace.turn is not None
    assert trace.session is not None
    earlier, later = order[:-1][same], order[1:][same]
    numbers = trace.turn[earlier], trace.turn[later]
    twins = (numbers[0] == numbers[1]) & (numbers[0] > NEVER)
    missing = (numbers[0] <= NEVER) & (numbers[1] > NEVER)
    for unclear, what in ((twins, "two rows are turn"), (missing, "a row has no turn beside turn")):
        if unclear.any():
            at = int(later[np.argmax(unclear)])
            raise TraceError(
                f"{trace.source}:{trace.row[at]}: session {trace.session[at]}: {what}"
                f" {trace.turn[at]}; expected a turn of its own for each row, or no column turn"
            )


class SessionSource:
    """Sessions in a closed loop: a turn arrives its delay after the end of the turn before it.

    Without `concurrency` the first turn of a session arrives at its own time in the trace. With it
    that many sessions are there at any time: the first ones, in order of first appearance, begin at
    0, and when one is over the next begins, the delay of its first turn later. A place is taken
    from a session's first arrival until its last turn has ended, think times included.

    Rules 52 and 71 to 73. A turn that was rejected or has failed ends its session under ``skip``:
    the turns left never arrive. A cancelled turn does not. Where requests also wait for those of
    other sessions, as a parent for its sub-agents, see `traces.joins.Joins`; then "session" above
    means the tree of sessions that wait for each other.

    Args:
        trace: In trace order, `max_tokens` settled by `resolve`, with a session column.
        concurrency: Sessions at a time, at least 1; None to begin them as the trace says.
        on_failed_turn: ``skip`` the rest of the session, or ``continue`` with it.

    Attributes:
        sessions: Which rows are the turns of which session.
        skipped: Turns that will never arrive, so far in this run.
        cut_short: Sessions that they belong to.

    Raises:
        TraceError: See `sessions_of`.
        ValueError: An argument out of bounds, first turns without arrival times though no
            `concurrency` is given, or unsettled `max_tokens`.
    """

    def __init__(
        self, trace: Trace, *, concurrency: int | None = None, on_failed_turn: str = "skip"
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency: {concurrency}; expected at least 1")
        if on_failed_turn not in ON_FAILED_TURN:
            hint = nearest(on_failed_turn, ON_FAILED_TURN)
            raise ValueError(f"on_failed_turn: {on_failed_turn!r}{hint}")
        check_settled(trace)
        self.trace = trace
        self.concurrency = concurrency
        self.on_failed_turn = on_failed_turn
        self.sessions = sessions_of(trace)
        self._following: list[int] = self.sessions.following.tolist()
        self._left: list[int] = self.sessions.left.tolist()
        self._fields = fields_of(trace)
        delays = trace.delay_ns
        self._delays: list[int] = [0] * len(trace) if delays is None else delays.tolist()
        sessions = self.sessions
        self._joins: Joins | None = None
        if sessions.causes:
            tree = sessions.tree[sessions.of_row]
            self._joins = Joins(_before(sessions.following), sessions.causes, tree)
        self._first: list[int] = sessions.first[sessions.starts].tolist()
        self._starts: list[tuple[int, int]] = self._begin_without_cause()
        self._restart()

    def _begin_without_cause(self) -> list[tuple[int, int]]:
        """(instant, row) of the first turns that wait for nothing, in the order of arrivals."""
        first = self._first
        if self.concurrency is not None:
            return [(0, row) for row in sorted(first[: self.concurrency])]
        times = self.trace.arrival_ns[first]
        if len(times) and times.min() < 0:
            name = self.trace.source or "trace"
            raise ValueError(f"{name}: sessions have no arrival times; give a concurrency")
        return sorted(zip(times.tolist(), first, strict=True))

    def _restart(self) -> None:
        self._begun = len(self._starts)
        self.skipped = self.cut_short = 0
        self._cut: set[int] = set()
        if self._joins is not None:
            self._joins.restart()

    def __len__(self) -> int:
        return len(self.trace)

    def __iter__(self) -> Iterator[Arrival]:
        # Each iteration is a new run, so the same source may be simulated more than once.
        self._restart()
        for when_ns, row in self._starts:
            yield self._arrival(row, when_ns)

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """The next turn of the session, its delay after `now_ns`; after the last, see the class."""
        if self._joins is not None:
            return self._joined(self._joins, request_index, now_ns, stops=False)
        row = self._following[request_index]
        return (self._caused(row, now_ns),) if row != _OVER else self._session_over(now_ns)

    def on_failed(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """As `on_end`, of a request that was rejected or has failed."""
        if self._joins is not None:
            stops = self.on_failed_turn == "skip"
            return self._joined(self._joins, request_index, now_ns, stops=stops)
        left = self._left[request_index]
        if self.on_failed_turn == "continue" or not left:
            return self.on_end(request_index, now_ns)
        self.skipped += left
        self.cut_short += 1
        return self._session_over(now_ns)

    def _joined(self, joins: Joins, row: int, now_ns: int, *, stops: bool) -> Iterable[Arrival]:
        """As `on_end`, where requests may wait for several others."""
        ready, over = joins.end(row, stops)
        for each in joins.skipped[self.skipped :]:
            self._cut.add(int(self.sessions.of_row[each]))
        self.skipped, self.cut_short = len(joins.skipped), len(self._cut)
        caused = [self._caused(each, now_ns) for each in ready]
        return (*caused, *self._session_over(now_ns)) if over else caused

    def _session_over(self, now_ns: int) -> Iterable[Arrival]:
        """The first turn of the session that gets the place, if there are places."""
        if self._begun >= len(self._first):
            return ()
        row = self._first[self._begun]
        self._begun += 1
        return (self._caused(row, now_ns),)

    def _caused(self, row: int, now_ns: int) -> Arrival:
        return self._arrival(row, now_ns + self._delays[row])

    def _arrival(self, row: int, when_ns: int) -> Arrival:
        return Arrival._make((when_ns, *[values[row] for values in self._fields]))

    def counts(self) -> dict[str, int]:
        """Sessions and turns in all, and of the last run those skipped and cut short."""
        return {
            "sessions": len(self.sessions),
            "turns": len(self.trace),
            "skipped": self.skipped,
            "cut_short": self.cut_short,
        }

    def note(self) -> str | None:
        """What was skipped in the last run, as a sentence; None if nothing was."""
        if not self.skipped:
            return None
        return (
            f"skipped: {_many(self.skipped, 'turn')} of {_many(self.cut_short, 'session')} never"
            " arrived, as a turn before was rejected or failed (workload.sessions.on_failed_turn)."
        )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def begin_sessions(trace: Trace, process: str = "recorded", **options: Any) -> Trace:
    """`arrive`, with sessions in the place of requests: later turns have no time of their own.

    Args:
        trace: In order of arrival, with sessions.
        process: See `traces.arrivals.arrive`; it says when sessions begin.
        **options: Of `arrive`. Rates, bursts, the window and the limit count sessions, by their
            first turns.

    Returns:
        All turns of the sessions kept, in trace order. The time of a later turn is that of its
        session's first turn, and is not used.

    Raises:
        TraceError: See `arrive` and `sessions_of`.
    """
    sessions = sessions_of(trace)
    begin = sessions.starts
    by_time = begin[np.argsort(trace.arrival_ns[sessions.first[begin]], kind="stable")]
    # The column turn of the first turns carries the number of their session through `arrive`.
    starts = replace(trace.take(sessions.first[by_time]), turn=by_time)
    begun = arrive(starts, process, **options)
    assert begun.turn is not None
    when_ns = np.full(len(sessions), NEVER, dtype=np.int64)
    when_ns[begun.turn] = begun.arrival_ns
    begun_by = sessions.tree[sessions.of_row]
    kept = np.isin(begun_by, begun.turn)
    timed = replace(trace, arrival_ns=when_ns[begun_by]).take(kept)
    said = begun.notes[len(trace.notes) :]
    timed.notes += [_of_sessions(note) for note in said]
    return timed


def _of_sessions(note: str) -> str:
    """A note of `arrive` on requests, said of sessions."""
    what, colon, how = note.partition(": ")
    if what == "Arrivals":
        return f"Sessions begin{colon}{how}"
    return f"Sessions: {note.replace('requests', 'sessions')}"
