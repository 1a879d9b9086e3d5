"""From columns as read to a `Trace`: the clock put right, order, and what was odd said."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.errors import TraceError
from sim.request import NEVER, Ints, Trace
from traces.source import Source

_EPOCH_NS = 10**18
"""Clock values from here on (September 2001) count from 1970, so they are absolute."""

_MAX_RATE = 10_000.0
_HIGH_RATE = 1_000.0
_LOW_RATE = 0.005
"""Requests a second. Beyond the first the file is refused: no public trace comes near. Outside the
other two the unit is doubtful; the slowest public trace, the start of BurstGPT, has 0.0107."""

_MIN_ROWS = 10
"""Rows from which on a rate says anything."""


def assemble(
    source: Source,
    trace: Trace,
    *,
    absolute: bool = False,
    lines: bool = True,
) -> Trace:
    """`trace` in order of arrival, its clock checked, zero lengths and disorder noted.

    Args:
        source: Where it was read; its notes come first.
        trace: Columns in file order; `arrival_ns` as it stands in the file, or all `NEVER`.
        absolute: Times count from 1970, so that the first row's is subtracted.
        lines: `trace.row` holds lines of the file, for messages.

    Raises:
        TraceError: The clock starts again, or the rate is beyond belief.
    """
    trace.source = source.name
    trace.notes = [*source.notes, *trace.notes]
    if len(trace) and trace.arrival_ns[0] != NEVER:
        if not absolute:
            _refuse_restart(source, trace)
        trace = _sorted(trace, relative=not absolute)
        _check_rate(source, trace, fixed_unit=absolute)
    elif len(trace):
        trace.notes.append("The source has no arrival times: they have to be generated.")
    _note_empty(trace)
    return trace


def columns(
    arrival_ns: Ints | None,
    prompt_tokens: Ints,
    output_tokens: Ints,
    row: Ints,
    max_tokens: Ints | None = None,
) -> Trace:
    """A `Trace` of the columns that all sources have; no arrivals are all `NEVER`."""
    n = len(row)
    return Trace(
        np.full(n, NEVER, dtype=np.int64) if arrival_ns is None else arrival_ns,
        prompt_tokens,
        output_tokens,
        np.zeros(n, dtype=np.int64) if max_tokens is None else max_tokens,
        row,
    )


def note_ignored(source: Source, names: Sequence[str], used: Sequence[str]) -> None:
    """Say which columns of the file were not read."""
    ignored = [name for name in names if name not in used]
    if ignored:
        source.notes.append(f"Columns not used: {', '.join(ignored)}.")


def note_holes(source: Source, trace: Trace) -> None:
    """Say in how many sessions the numbers of turns have holes, as when rows are missing."""
    if trace.session is None or trace.turn is None:
        return
    numbers: dict[str | None, int] = {None: -1}
    names = trace.session.tolist()
    of_row = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    known = np.flatnonzero((of_row >= 0) & (trace.turn > NEVER))
    order = known[np.lexsort((trace.turn[known], of_row[known]))]
    holes = (np.diff(of_row[order]) == 0) & (np.diff(trace.turn[order]) > 1)
    if not holes.any():
        return
    at = int(np.argmax(holes))
    before, later = order[at], order[at + 1]
    many = len(set(of_row[order[:-1][holes]].tolist()))
    source.notes.append(
        f"{many:,} session{'s have' if many > 1 else ' has'} holes in the numbers of turns (first:"
        f" {names[later]}, turn {trace.turn[later]} after {trace.turn[before]}); the rows that are"
        " there follow each other."
    )


def _sorted(trace: Trace, relative: bool) -> Trace:
    times = trace.arrival_ns
    back = np.diff(times) < 0
    if back.any():
        at = int(np.flatnonzero(back)[0]) + 1
        trace.notes.append(
            f"{int(back.sum()):,} rows are earlier than the row before (first: line"
            f" {trace.row[at]:,}); the rows were sorted by arrival, ties in file order."
        )
        trace = trace.take(np.argsort(times, kind="stable"))
    first = int(trace.arrival_ns[0])
    if not relative or first >= _EPOCH_NS:
        if relative:
            trace.notes.append("Times count from 1970; they were taken from the first row on.")
        trace.arrival_ns = trace.arrival_ns - first
    return trace


def _refuse_restart(source: Source, trace: Trace) -> None:
    """Refuse a clock that begins anew, as in files put together; mere disorder is sorted."""
    times = trace.arrival_ns
    starts = np.flatnonzero(np.diff(times) < 0) + 1
    if not len(starts):
        return
    bounds = np.concatenate(([0], starts, [len(times)]))
    long_runs = int(np.diff(bounds).min()) >= _MIN_ROWS
    before, after = times[starts - 1], times[starts]
    begun = times[bounds[:-2]]
    near_start = (after - begun) <= (before - begun) // 10
    if long_runs and near_start.all():
        at = int(starts[0])
        source.refuse(
            int(trace.row[at]),
            "arrival time",
            f"{after[0] / 1e9:g} s after {before[0] / 1e9:g} s",
            "a clock that does not start again: split the file there, or sort its rows"
            " if the parts ran at the same time",
        )


def _check_rate(source: Source, trace: Trace, fixed_unit: bool) -> None:
    n = len(trace)
    duration_ns = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if n < _MIN_ROWS or not duration_ns:
        return
    rate = (n - 1) / (duration_ns / 1e9)
    if rate > _MAX_RATE:
        hint = (
            ""
            if fixed_unit
            else f": if the times are seconds, not milliseconds, it is {rate / 1000:,.4g}"
            " (give the unit in the column map)"
        )
        raise TraceError(
            f"{source.name}: arrival times: {rate:,.0f} requests a second; expected at most"
            f" {_MAX_RATE:,.0f}{hint}"
        )
    if fixed_unit:
        return
    if rate > _HIGH_RATE:
        trace.notes.append(
            f"Warning: {rate:,.4g} requests a second; if the times are seconds that were taken"
            f" for milliseconds it is {rate / 1000:,.4g}."
        )
    elif rate < _LOW_RATE:
        trace.notes.append(
            f"Warning: {rate:,.4g} requests a second; if the times are milliseconds that were"
            f" taken for seconds it is {rate * 1000:,.4g}."
        )


def _note_empty(trace: Trace) -> None:
    for what, column in (("prompt", trace.prompt_tokens), ("output", trace.output_tokens)):
        zeros = int((column == 0).sum())
        if zeros:
            trace.notes.append(
                f"{zeros:,} rows have 0 {what} tokens; they are kept and rejected as `empty`"
                " when they arrive."
            )
