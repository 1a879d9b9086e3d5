"""Multi-turn rows of AIPerf and Dynamo (NVIDIA; `MooncakeTrace` of AIPerf): JSON lines.

``session_id``, ``input_length`` (new tokens of the turn: the client adds what was said before),
``output_length`` (tokens asked for), ``timestamp`` or ``delay`` after the turn before, both in ms,
and ``hash_ids`` of the new tokens. Read from AIPerf's documentation and data model; no sample was
at hand.
"""

from __future__ import annotations

import numpy as np

from sim.request import NEVER, Ints, Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import JsonRows
from traces.sessions import Sessions, sessions_of
from traces.source import Source
from traces.turns import whole_prompts

COLUMNS = {
    "session": "session_id",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "arrival": "timestamp",
    "delay": "delay",
    "block_ids": "hash_ids",
}
_NEEDED = ("session", "prompt_tokens", "output_tokens")


def recognise(names: frozenset[str]) -> bool:
    """Whether folded keys are those of a row with a session."""
    return {"sessionid", "inputlength", "outputlength"} <= names and bool(
        {"hashids", "delay"} & names
    )


def load(source: Source, renamed: dict[str, str]) -> Trace:
    """The rows with whole prompts: each turn's new tokens behind all that was said before.

    Args:
        source: The file.
        renamed: Our name of a column to the file's, where it differs from `COLUMNS`.

    Raises:
        TraceError: A value that cannot be read, or some first turns with a time and some without.
    """
    rows = JsonRows(source)
    name_of = {field: renamed.get(field, name) for field, name in COLUMNS.items()}
    found = {field: rows.find(name) for field, name in name_of.items()}
    session, prompt, output = (rows.need(field, name_of[field]) for field in _NEEDED)
    asked = rows.counts(output)
    trace = columns(None, rows.counts(prompt), asked, rows.lines, asked)
    trace.session = rows.texts(session)
    trace.source = source.name
    if found["delay"] is not None:
        trace.delay_ns = rows.spans_ns(found["delay"], "ms", 0)
    turns = sessions_of(trace)
    if found["arrival"] is not None:
        times = rows.spans_ns(found["arrival"], "ms", NEVER)
        trace.arrival_ns = _settled(source, trace, turns, times)
    if found["block_ids"] is not None:
        source.notes.append(
            f"{found['block_ids']} are not used: they stand for the new tokens of a turn, which do"
            " not begin at a block of the whole prompt; sessions share nothing with each other."
        )
    note_ignored(source, rows.names, [name for name in found.values() if name])
    trace = whole_prompts(trace, turns, "incremental")
    trace.prompts_are_whole = True
    # Sorted here: files go session by session, so that the clock starts again by design.
    return assemble(source, trace.take(np.argsort(trace.arrival_ns, kind="stable")))


def _settled(source: Source, trace: Trace, turns: Sessions, times: Ints) -> Ints:
    """(n,) arrivals; a later turn without a time has that of the turn before it."""
    first = times[turns.first]
    if (first == NEVER).all():
        return np.full(len(trace), NEVER, dtype=np.int64)
    if (first == NEVER).any():
        at = int(turns.first[np.argmax(first == NEVER)])
        source.refuse(int(trace.row[at]), "timestamp", None, "a time, as other first turns have")
    settled = times.copy()
    for before, later in zip(turns.before.tolist(), turns.later.tolist(), strict=True):
        if settled[later] == NEVER:
            settled[later] = settled[before]
    timed = int((times[turns.later] != NEVER).sum())
    if timed and trace.delay_ns is not None:
        source.notes.append(
            f"{timed:,} later turns have a time; where turns follow each other it is not used."
        )
    return settled
