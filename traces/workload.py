"""What reaches the simulation: `max_tokens` settled, and the sources that feed arrivals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from sim.content import Content
from sim.errors import TraceError
from sim.request import NEVER, Arrival, Ints, Trace

OverLong = Literal["reject", "clip", "error"]

_CHUNK = 8192
"""Rows made into Python objects at a time: enough to cost nothing, few enough to be lazy."""


class ArrivalSource(Protocol):
    """What feeds arrivals to the event loop and is told of every end.

    Arrivals come in order of `arrival_ns`, ties in trace order. A source with a method
    ``on_failed`` of the form of `on_end` is told there of requests that were rejected or failed.
    """

    def __len__(self) -> int:
        """Requests in all, those caused by ends included."""
        ...

    def __iter__(self) -> Iterator[Arrival]:
        """Arrivals that need no cause, lazily."""
        ...

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """Arrivals that the end of a request causes, none before `now_ns`.

        Args:
            request_index: `Arrival.index` of the request that ended, in whatever state.
            now_ns: When it ended, as its client sees it.
        """
        ...


class TraceSource:
    """A recorded or generated trace: every arrival is known beforehand.

    Args:
        trace: In order of arrival, `max_tokens` settled by `resolve`.

    Raises:
        ValueError: The trace is not in order, has no arrival times, or unsettled `max_tokens`.
    """

    def __init__(self, trace: Trace) -> None:
        times = trace.arrival_ns
        if len(trace) and (times[0] < 0 or bool((np.diff(times) < 0).any())):
            raise ValueError(f"{trace.source or 'trace'}: arrivals are missing or out of order")
        check_settled(trace)
        self.trace = trace

    def __len__(self) -> int:
        return len(self.trace)

    def __iter__(self) -> Iterator[Arrival]:
        return arrivals(self.trace, self.trace.arrival_ns)

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """Nothing: a recorded trace ignores how requests end."""
        return ()


class ClosedLoopSource:
    """A fixed number of requests outstanding: one ends, the next of the trace arrives.

    The first `concurrency` in trace order arrive at 0; recorded times are not used. A request
    arrives its own `delay_ns` after the end that causes it (rules 52 and 72). Each request holds a
    place of its own, whatever session it belongs to (see `traces.sessions` for places of sessions).

    Args:
        trace: In trace order, `max_tokens` settled by `resolve`.
        concurrency: Places, at least 1.

    Raises:
        ValueError: `concurrency` below 1 or unsettled `max_tokens`.
    """

    def __init__(self, trace: Trace, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency: {concurrency}; expected at least 1")
        check_settled(trace)
        self.trace = trace
        self.concurrency = concurrency
        self._next = min(concurrency, len(trace))

    def __len__(self) -> int:
        return len(self.trace)

    def __iter__(self) -> Iterator[Arrival]:
        # Each iteration is a new run, so the same source may be simulated more than once.
        self._next = min(self.concurrency, len(self.trace))
        return arrivals(self.trace, np.zeros(self._next, dtype=np.int64))

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """The next request of the trace, its delay after `now_ns`; nothing when all have come."""
        if self._next >= len(self.trace):
            return ()
        i = self._next
        self._next += 1
        delay_ns = 0 if self.trace.delay_ns is None else int(self.trace.delay_ns[i])
        when = np.array([now_ns + delay_ns], dtype=np.int64)
        return tuple(arrivals(self.trace, when, first=i))


def arrivals(trace: Trace, arrival_ns: Ints, first: int = 0) -> Iterator[Arrival]:
    """Rows from `first` on as `Arrival`s at `arrival_ns` (k,), made a few thousand at a time."""
    make = partial(tuple.__new__, Arrival)  # Arrival._make without its Python frame
    for start in range(0, len(arrival_ns), _CHUNK):
        times = arrival_ns[start : start + _CHUNK]
        rows = slice(first + start, first + start + len(times))
        fields = (
            times.tolist(),
            trace.prompt_tokens[rows].tolist(),
            trace.output_tokens[rows].tolist(),
            trace.max_tokens[rows].tolist(),
            range(rows.start, rows.stop),
            *_optional(trace, rows),
        )
        yield from map(make, zip(*fields))  # noqa: B905 - repeat() has no end


def fields_of(trace: Trace) -> list[Sequence[Any]]:
    """Of each field of `Arrival` after the first, the values of all rows: for rows in any order."""
    n = len(trace)
    every = slice(0, n)
    needed = (trace.prompt_tokens, trace.output_tokens, trace.max_tokens)
    fields: list[Sequence[Any]] = [*(column.tolist() for column in needed), range(n)]
    fields.extend(
        [next(values)] * n if isinstance(values, repeat) else list(values)
        for values in _optional(trace, every)
    )
    return fields


def resolve(
    trace: Trace,
    max_tokens: int | None = None,
    over_long: OverLong = "reject",
    max_model_len: int | None = None,
) -> tuple[Trace, list[str]]:
    """Settle how many tokens each client asked for, and cut outputs that are longer (rule 49).

    `max_tokens` of a row is the trace's column, else the argument, else its own output length,
    which no client knows: then reservations are clairvoyant, and a note says so.

    Args:
        trace: As loaded; it is not changed.
        max_tokens: For rows whose trace does not say; at least 1.
        over_long: ``reject`` leaves rows over `max_model_len` to be rejected on arrival; ``clip``
            lowers
            what they ask for to what fits; ``error`` refuses the trace.
        max_model_len: Most tokens of prompt and asked-for output together, or None for no limit.

    Returns:
        A trace with `max_tokens` >= 1 everywhere and no output above it, and what was done, one
        sentence each. Rows with an empty prompt or output stay, to be rejected as ``empty``.

    Raises:
        ValueError: `max_tokens` below 1.
        TraceError: ``over_long="error"`` and some row is over `max_model_len`.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens: {max_tokens}; expected at least 1")
    notes: list[str] = []
    asked = _asked(trace, max_tokens, notes)
    output = _cut(trace.output_tokens, asked, "cut_by_max_tokens", notes)
    if max_model_len is not None and over_long == "error":
        _refuse_over_long(trace, asked, max_model_len)
    if max_model_len is not None and over_long == "clip":
        asked = _clipped(trace, asked, max_model_len, notes)
        output = _cut(output, asked, "cut_by_max_model_len", notes)
    return replace(trace, output_tokens=output, max_tokens=asked, notes=list(trace.notes)), notes


def _asked(trace: Trace, max_tokens: int | None, notes: list[str]) -> Ints:
    silent = trace.max_tokens <= 0
    if not silent.any():
        return trace.max_tokens.copy()
    if max_tokens is not None:
        return np.where(silent, np.int64(max_tokens), trace.max_tokens)
    notes.append(
        f"clairvoyant: {int(silent.sum()):,} of {len(trace):,} requests have no max_tokens, so"
        " their true output length stands for it; what reserves or rejects by it knows the future"
        " (set workload.max_tokens)."
    )
    return np.where(silent, np.maximum(trace.output_tokens, 1), trace.max_tokens)


def _cut(output: Ints, asked: Ints, name: str, notes: list[str]) -> Ints:
    longer = output > asked
    if longer.any():
        notes.append(
            f"{name}: {int(longer.sum()):,} of {len(output):,} outputs were longer than asked for"
            " and end there."
        )
    return np.minimum(output, asked)


def _clipped(trace: Trace, asked: Ints, max_model_len: int, notes: list[str]) -> Ints:
    room = max_model_len - trace.prompt_tokens
    clip = (asked > room) & (room > 0)
    if clip.any():
        notes.append(
            f"clipped: max_tokens of {int(clip.sum()):,} of {len(trace):,} requests was lowered to"
            f" fit max_model_len {max_model_len:,}."
        )
    return np.where(clip, room, asked)


def _refuse_over_long(trace: Trace, asked: Ints, max_model_len: int) -> None:
    total = trace.prompt_tokens + asked
    over = (total > max_model_len) & (trace.prompt_tokens > 0) & (trace.output_tokens > 0)
    if over.any():
        at = int(np.argmax(over))
        raise TraceError(
            f"{trace.source}:{trace.row[at]}: {trace.prompt_tokens[at]:,} prompt tokens and"
            f" max_tokens {asked[at]:,}; expected at most max_model_len {max_model_len:,} together,"
            f" as over_long is error ({int(over.sum()):,} such rows)"
        )


def check_settled(trace: Trace) -> None:
    """Refuse a trace whose `max_tokens` `resolve` has not settled.

    Raises:
        ValueError: With its name.
    """
    if len(trace) and int(trace.max_tokens.min()) < 1:
        raise ValueError(
            f"{trace.source or 'trace'}: max_tokens is not settled; call resolve first"
        )


def _optional(trace: Trace, rows: slice) -> Iterator[Iterable[Any]]:
    """Columns of `Arrival` from `session` on, in its order; endless where the trace has none."""
    yield _texts(trace.session, rows)
    yield _numbers(trace.turn, rows)
    yield _texts(trace.request_class, rows)
    yield _texts(trace.tenant, rows)
    yield repeat(0) if trace.priority is None else trace.priority[rows].tolist()
    yield _numbers(trace.deadline_ns, rows)
    yield _contents(trace, rows)
    yield repeat(0) if trace.delay_ns is None else trace.delay_ns[rows].tolist()
    yield _numbers(trace.cancel_after_ns, rows)


def _contents(trace: Trace, rows: slice) -> Iterable[Content | None]:
    if trace.content is None and trace.block_ids is None:
        return repeat(None)
    return map(trace.content_of, range(rows.start, rows.stop))


def _texts(column: npt.NDArray[np.object_] | None, rows: slice) -> Iterable[str | None]:
    return repeat(None) if column is None else column[rows].tolist()


def _numbers(column: Ints | None, rows: slice) -> Iterable[int | None]:
    if column is None:
        return repeat(None)
    return [None if value <= NEVER else value for value in column[rows].tolist()]
