"""Multi-turn rows of AIPerf and Dynamo (NVIDIA; `MooncakeTrace` of AIPerf): JSON lines.

``session_id``, ``input_length`` (new tokens of the turn: the client adds what was said before),
``output_length`` (tokens asked for), ``timestamp`` or ``delay`` after the turn before, both in ms,
and ``hash_ids`` of the new tokens: one for each block of 512 from where the turn's tokens begin
(AIPerf's default), the last block being partial. Two sessions share what their ids say alike from
the start; a turn shares the turns before it in any case. Read from AIPerf's documentation and data
model; no sample was at hand.
"""

from __future__ import annotations

import numpy as np

from sim.content import LONGEST, Content
from sim.request import NEVER, Ints, Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import JsonRows
from traces.sessions import Sessions, sessions_of
from traces.source import Source
from traces.turns import whole_prompts
from traces.values import MAX_COUNT

COLUMNS = {
    "session": "session_id",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "arrival": "timestamp",
    "delay": "delay",
    "block_ids": "hash_ids",
}
BLOCK_TOKENS = 512
"""Tokens one id of ``hash_ids`` stands for, AIPerf's default."""

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
        trace.content = _contents(source, trace, turns, rows, found["block_ids"])
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


def _contents(
    source: Source, trace: Trace, turns: Sessions, rows: JsonRows, field: str
) -> list[Content | None]:
    """What prompts are made of, and what may be generated; `trace` has new tokens only.

    The token at position i of a turn's new ones is (id of its block, i mod block) where the block
    is full; all others are the turn's own.
    """
    present = [
        _ids(source, int(trace.row[row]), field, given or [], int(trace.prompt_tokens[row]))
        for row, given in enumerate(rows.raw(field, range(len(trace))))
    ]
    highest = max((int(ids.max()) for ids in present if len(ids)), default=-1)
    own = (highest + 1) * BLOCK_TOKENS // LONGEST + 1
    content: list[Content | None] = [None] * len(trace)
    first, said = set(turns.first.tolist()), Content(())
    prompt, output = trace.prompt_tokens.tolist(), trace.max_tokens.tolist()
    for row in turns.order.tolist():
        before = Content(()) if row in first else said
        full = Content.of_blocks(present[row], BLOCK_TOKENS, prompt[row])
        said = Content(
            [
                *before.runs(0, before.tokens),
                *full.runs(0, full.tokens),
                ((own + row) * LONGEST, prompt[row] - full.tokens + output[row]),
            ]
        )
        content[row] = said
    return content


def _ids(source: Source, line: int, field: str, given: object, prompt: int) -> Ints:
    """Ids of one row; none at all say nothing of its tokens."""
    if (
        not isinstance(given, list)
        or not set(map(type, given)) <= {int}
        or min(given, default=0) < 0
    ):
        source.refuse(line, field, given, "a list of whole numbers from 0 up")
    if given and len(given) != -(-prompt // BLOCK_TOKENS):
        source.refuse(
            line,
            field,
            f"{len(given):,} ids for {prompt:,} tokens",
            f"{-(-prompt // BLOCK_TOKENS):,}, one for each {BLOCK_TOKENS}",
        )
    if max(given, default=0) > MAX_COUNT:
        source.refuse(line, field, max(given), f"ids up to {MAX_COUNT:,}")
    return np.array(given, dtype=np.int64)
