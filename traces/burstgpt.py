"""BurstGPT traces (Wang et al., KDD 2025; CC-BY 4.0): CSV, releases 1 to 3.

``Timestamp`` in seconds from midnight of the first day; rows with 0 response tokens are failed
requests. Release 3 has ``Session ID`` (empty on API rows) and ``Elapsed time`` between Timestamp
and Model. The latter is taken as the seconds from a request to the end of its response, so that
what passes from there to the next turn of a session is its delay (0 where turns overlap).
"""

from __future__ import annotations

import numpy as np

from sim.request import Ints, Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import CsvRows
from traces.sessions import sessions_of
from traces.source import Source

COLUMNS = {
    "arrival": "Timestamp",
    "prompt_tokens": "Request tokens",
    "output_tokens": "Response tokens",
}
_TOTAL = "Total tokens"
_ELAPSED = "Elapsed time"


def recognise(names: frozenset[str]) -> bool:
    """Whether folded column names are those of a BurstGPT trace."""
    return {"timestamp", "requesttokens", "responsetokens"} <= names


def load(source: Source, renamed: dict[str, str]) -> Trace:
    """The rows; arrivals as they are, the log type as class if there is more than one.

    Args:
        source: The file.
        renamed: Our name of a column to the file's, where it differs from `COLUMNS`.
    """
    rows = CsvRows(source)
    used = [rows.need(field, renamed.get(field, name)) for field, name in COLUMNS.items()]
    when, prompt, output = used
    trace = columns(rows.spans_ns(when, "s"), rows.counts(prompt), rows.counts(output), rows.lines)
    used += _optional(rows, trace, renamed)
    note_ignored(source, rows.names, used)
    return assemble(source, trace)


def _optional(rows: CsvRows, trace: Trace, renamed: dict[str, str]) -> list[str]:
    """Fill session and class, compare the totals; return the columns used."""
    session = rows.find(renamed.get("session", "Session ID"))
    kind = rows.find(renamed.get("request_class", "Log Type"))
    total = rows.find(_TOTAL)
    if session is not None:
        trace.session = rows.texts(session)
        rows.source.notes.append("Read by schema: no sample of release 3 was at hand.")
    elapsed = rows.find(_ELAPSED)
    if session is not None and elapsed is not None:
        trace.delay_ns = _delays(trace, rows.spans_ns(elapsed, "s", 0))
    if kind is not None:
        kinds = rows.texts(kind)
        if len(set(kinds.tolist())) > 1:
            trace.request_class = kinds
    if total is not None:
        odd = rows.counts(total) != trace.prompt_tokens + trace.output_tokens
        if odd.any():
            rows.source.notes.append(
                f"{int(odd.sum()):,} rows whose {total} is not the sum of the other two (first:"
                f" line {rows.lines[np.argmax(odd)]:,}); the two lengths were taken."
            )
    return [name for name in (session, elapsed, kind, total) if name is not None]


def _delays(trace: Trace, elapsed_ns: Ints) -> Ints:
    """(n,) what passed between the end of the turn before and each row, ns; 0 for first turns."""
    delays = np.zeros(len(trace), dtype=np.int64)
    if trace.session is not None and any(name is not None for name in trace.session.tolist()):
        sessions = sessions_of(trace)
        before, later = sessions.before, sessions.later
        ends = trace.arrival_ns[before] + elapsed_ns[before]
        delays[later] = np.maximum(0, trace.arrival_ns[later] - ends)
    return delays
