"""Requests that wait for several others, and ends that let several begin: sub-agents, fan-outs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sim.errors import TraceError, nearest
from sim.request import Ints, Trace


class Joins:
    """Which requests may arrive as others end, where some come after several (fork and join).

    As rules 52 and 71 to 73 say for turns, and further:

    - A request comes after the turn before it in its session, if there is one, and after those that
      its column ``after`` names. It arrives its delay after the last of them ended. Requests that
      one end lets arrive at one instant stand in trace order.
    - Sessions that so depend on each other are one tree. One of them, the one whose first turn
      comes after nothing, begins it; a place of a closed loop belongs to the tree, until all its
      requests have ended or were skipped.
    - After a request that failed or was rejected, under ``skip``, or was skipped itself, are
      skipped: the next turn of its session, and first turns of sessions that come after it. What
      waits for it from within a session of its own takes it as ended: a parent goes on when a
      sub-agent failed. A skipped request ends, for those that still wait for it, at the instant at
      which the last that it waits for ended.

    Args:
        before: (n,) row of the turn before each, -1 for none.
        causes: Rows to the rows that their column ``after`` names.
        tree: (n,) number of the tree of each row.

    Attributes:
        skipped: Rows that will never arrive, so far in this run.
    """

    def __init__(self, before: Ints, causes: Mapping[int, Sequence[int]], tree: Ints) -> None:
        self._before: list[int] = before.tolist()
        self._tree: list[int] = tree.tolist()
        self._needs = {row: len(rows) + (before[row] >= 0) for row, rows in causes.items()}
        followers: dict[int, list[int]] = {}
        for row, earlier in enumerate(self._before):
            if earlier >= 0:
                followers.setdefault(earlier, []).append(row)
        for row, rows in causes.items():
            for earlier in rows:
                followers.setdefault(earlier, []).append(row)
        self._followers = {row: tuple(sorted(later)) for row, later in followers.items()}
        self._sizes: list[int] = np.bincount(tree).tolist()
        self.restart()

    def restart(self) -> None:
        """Forget the run before."""
        self._waiting = dict(self._needs)
        self._left = list(self._sizes)
        self._stopped: set[int] = set()
        self.skipped: list[int] = []

    def end(self, row: int, stops: bool) -> tuple[list[int], bool]:
        """What the end of a request lets arrive.

        Args:
            row: The request that ended.
            stops: It failed or was rejected, and what follows in its session is skipped.

        Returns:
            Rows that arrive, each its delay later, and whether its tree is over.
        """
        ready: list[int] = []
        ended = deque([(row, stops)])
        while ended:
            row, stops = ended.popleft()
            self._left[self._tree[row]] -= 1
            for later in self._followers.get(row, ()):
                if stops and self._before[later] in (row, -1):
                    self._stopped.add(later)
                self._waiting[later] = self._waiting.get(later, 1) - 1
                if self._waiting[later]:
                    continue
                if later not in self._stopped:
                    ready.append(later)
                    continue
                self.skipped.append(later)
                ended.append((later, True))
        return ready, not self._left[self._tree[row]]


def causes_of(trace: Trace) -> dict[int, tuple[int, ...]]:
    """Rows that come after others by the column ``after``, to the rows of those.

    Raises:
        TraceError: It names a request that there is not, or two requests have one name.
    """
    if trace.after is None:
        return {}
    names = [None] * len(trace) if trace.request_id is None else trace.request_id.tolist()
    rows: dict[str, int] = {}
    for row, name in enumerate(names):
        if name is not None and rows.setdefault(name, row) != row:
            first = trace.row[rows[name]]
            raise TraceError(
                f"{trace.source}:{trace.row[row]}: request_id: {name} is that of line {first} too;"
                " expected different ones"
            )
    causes: dict[int, tuple[int, ...]] = {}
    for row, after in enumerate(trace.after):
        for name in after:
            if name not in rows:
                raise TraceError(
                    f"{trace.source}:{trace.row[row]}: after: no request {name!r}"
                    f"{nearest(name, list(rows))}"
                )
        if after:
            causes[row] = tuple(dict.fromkeys(rows[name] for name in after))
    return causes


def trees_of(of_row: Ints, causes: Mapping[int, Sequence[int]]) -> Ints:
    """(sessions,) of each session the one with the lowest number among those it depends on."""
    parents = list(range(int(of_row.max(initial=-1)) + 1))

    def top(session: int) -> int:
        while parents[session] != session:
            parents[session] = session = parents[parents[session]]
        return session

    for row, rows in causes.items():
        for other in rows:
            low, high = sorted((top(int(of_row[row])), top(int(of_row[other]))))
            parents[high] = low
    return np.array([top(session) for session in range(len(parents))], dtype=np.int64)


def check_order(trace: Trace, before: Ints, causes: Mapping[int, Sequence[int]]) -> None:
    """Refuse requests that wait for each other in a circle.

    Raises:
        TraceError: With the first of them.
    """
    if not causes:
        return
    joins = Joins(before, causes, np.zeros(len(trace), dtype=np.int64))
    starts = [row for row, earlier in enumerate(before.tolist()) if earlier < 0]
    open_rows: Iterable[int] = [row for row in starts if row not in causes]
    ended = set()
    queue = deque(open_rows)
    while queue:
        row = queue.popleft()
        ended.add(row)
        queue.extend(joins.end(row, stops=False)[0])
    if len(ended) < len(trace):
        row = next(row for row in range(len(trace)) if row not in ended)
        raise TraceError(
            f"{trace.source}:{trace.row[row]}: after: this request waits for others that wait for"
            " it; expected an order in which they can end"
        )
