"""Several workloads at once: their requests as one trace, each with its own way of arriving."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any
from zlib import crc32

import numpy as np

from sim.content import Content
from sim.request import NEVER, Arrival, Ints, Trace
from traces.sessions import SessionSource
from traces.workload import ArrivalSource

_FILL = {
    "turn": NEVER,
    "priority": 0,
    "deadline_ns": NEVER,
    "delay_ns": 0,
    "cancel_after_ns": NEVER,
}
_NAMES = ("session", "request_class", "tenant", "request_id")


def seed_of_part(seed: int, name: str) -> int:
    """Seed of one part: its draws stay the same when parts are added, dropped or reordered."""
    state = np.random.SeedSequence([seed, crc32(f"part {name}".encode())])
    return int(state.generate_state(1, np.uint64)[0] >> np.uint64(1))


def set_apart(traces: Sequence[Trace], names: Sequence[str]) -> list[Trace]:
    """The traces, so that no two share a token, and no two sessions or requests have one name.

    Args:
        traces: One of each part, contents settled.
        names: Of the parts, different ones.
    """
    apart, base = [], 0
    for trace, name in zip(traces, names, strict=True):
        content = _contents(trace)
        if content is not None and base:
            content = [None if each is None else _moved(each, base) for each in content]
        base = max(base, _end_of(content))
        named: dict[str, Any] = {
            column: _prefixed(getattr(trace, column), name) for column in ("session", "request_id")
        }
        if trace.after is not None:
            named["after"] = [tuple(f"{name}/{each}" for each in row) for row in trace.after]
        apart.append(
            replace(trace, content=content, block_ids=None, block_ids_tokens=None, **named)
        )
    return apart


def _contents(trace: Trace) -> list[Content | None] | None:
    if trace.content is None and trace.block_ids is None:
        return None
    return [trace.content_of(row) for row in range(len(trace))]


def _moved(content: Content, by: int) -> Content:
    return Content((first + by, tokens) for first, tokens in content.runs(0, content.tokens))


def _end_of(content: Sequence[Content | None] | None) -> int:
    """The integer after all tokens of these contents."""
    ends = (
        first + tokens
        for each in content or ()
        if each is not None
        for first, tokens in each.runs(0, each.tokens)
    )
    return max(ends, default=0)


def _prefixed(column: np.ndarray[Any, Any] | None, name: str) -> np.ndarray[Any, Any] | None:
    if column is None:
        return None
    texts = [None if text is None else f"{name}/{text}" for text in column.tolist()]
    return np.array(texts, dtype=object)


def joined(traces: Sequence[Trace]) -> Trace:
    """All rows as one trace, part by part; columns that a part lacks are empty there.

    Args:
        traces: As `set_apart` gives them.
    """
    first, *_ = traces
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in ("arrival_ns", "prompt_tokens", "output_tokens", "max_tokens", "row")
    }
    for name in (*_FILL, *_NAMES):
        if any(getattr(trace, name) is not None for trace in traces):
            columns[name] = np.concatenate([_filled(trace, name) for trace in traces])
    if any(trace.content is not None for trace in traces):
        columns["content"] = [
            each for trace in traces for each in trace.content or [None] * len(trace)
        ]
    if any(trace.after is not None for trace in traces):
        columns["after"] = [each for trace in traces for each in trace.after or [()] * len(trace)]
    source = " + ".join(trace.source for trace in traces)
    notes = [f"{trace.source}: {note}" for trace in traces for note in trace.notes]
    return Trace(**columns, source=source if len(source) < 200 else first.source, notes=notes)


def _filled(trace: Trace, name: str) -> np.ndarray[Any, Any]:
    column = getattr(trace, name)
    if column is not None:
        return np.asarray(column)
    if name in _NAMES:
        return np.full(len(trace), None, dtype=object)
    return np.full(len(trace), _FILL[name], dtype=np.int64)


class MixedSource:
    """Sources side by side. Request i of part k has the index that it has in `joined`.

    Arrivals of one instant stand in the order of the parts; each end is told to its own part, so
    that places and sessions of one part know nothing of those of another (rules 52, 71 to 73 hold
    within a part).

    Args:
        sources: One of each part.
    """

    def __init__(self, sources: Sequence[ArrivalSource]) -> None:
        self.sources = list(sources)
        self._begin = list(accumulate((len(each) for each in sources), initial=0))
        self._sessions = [each for each in sources if isinstance(each, SessionSource)]

    def __len__(self) -> int:
        return self._begin[-1]

    def __iter__(self) -> Iterator[Arrival]:
        parts = (self._renumbered(part, iter(source)) for part, source in enumerate(self.sources))
        return heapq.merge(*parts, key=lambda arrival: arrival.arrival_ns)

    def _renumbered(self, part: int, arrivals: Iterable[Arrival]) -> Iterator[Arrival]:
        begin = self._begin[part]
        for arrival in arrivals:
            yield arrival._replace(index=begin + arrival.index)

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """What its own part makes of the end of a request."""
        part = bisect_right(self._begin, request_index) - 1
        source = self.sources[part]
        caused = source.on_end(request_index - self._begin[part], now_ns)
        return tuple(self._renumbered(part, caused))

    def on_failed(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """As `on_end`, of a request that was rejected or has failed."""
        part = bisect_right(self._begin, request_index) - 1
        source = self.sources[part]
        tell = getattr(source, "on_failed", source.on_end)
        return tuple(self._renumbered(part, tell(request_index - self._begin[part], now_ns)))

    def counts(self) -> dict[str, int]:
        """Sums of `SessionSource.counts`; empty if no part has sessions in closed loop."""
        counts = [source.counts() for source in self._sessions]
        return {key: sum(each[key] for each in counts) for key in counts[0]} if counts else {}

    def note(self) -> str | None:
        """The notes of the parts' sessions; None if there are none."""
        said = [note for source in self._sessions if (note := source.note()) is not None]
        return " ".join(said) or None


def typed(trace: Trace, order: Ints) -> Trace:
    """Requests of sessions at times of their own: each its delay after the one before, in order.

    Args:
        trace: All requests of a session have the time at which it begins.
        order: (n,) rows, session by session, turn by turn; delays of first turns are 0.

    Returns:
        In order of arrival, without delays: nobody waits for an end.
    """
    assert trace.delay_ns is not None
    assert trace.turn is not None
    delays = trace.delay_ns[order]
    total = np.cumsum(delays)
    begins = np.flatnonzero(trace.turn[order] == 0)
    sizes = np.diff(np.concatenate((begins, [len(order)])))
    since = np.empty(len(order), dtype=np.int64)
    since[order] = total - np.repeat((total - delays)[begins], sizes)
    arrival_ns = trace.arrival_ns + since
    timed = replace(trace, arrival_ns=arrival_ns, delay_ns=None)
    return timed.take(np.argsort(arrival_ns, kind="stable"))
