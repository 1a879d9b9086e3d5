"""BurstGPT traces (Wang et al., KDD 2025; CC-BY 4.0): CSV, releases 1 to 3.

``Timestamp`` in seconds from midnight of the first day; rows with 0 response tokens are failed
requests. Release 3 has ``Session ID`` (empty on API rows) and ``Elapsed time`` between Timestamp
and Model.
"""

from __future__ import annotations

import numpy as np

from sim.request import Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import CsvRows
from traces.source import Source

COLUMNS = {
    "arrival": "Timestamp",
    "prompt_tokens": "Request tokens",
    "output_tokens": "Response tokens",
}
_TOTAL = "Total tokens"


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
    return [name for name in (session, kind, total) if name is not None]
