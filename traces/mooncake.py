"""Mooncake traces (Qin et al., FAST 2025; Apache-2.0): JSON lines with prompt block ids.

``timestamp`` in ms from the start, ``input_length``, ``output_length``, ``hash_ids``: one id for
each 512-token block and everything before it, the last block being partial.
"""

from __future__ import annotations

import numpy as np

from sim.request import Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import JsonRows
from traces.source import Source

BLOCK_TOKENS = 512
"""Tokens one id of ``hash_ids`` stands for (FAST25-release of the publisher)."""

COLUMNS = {
    "arrival": "timestamp",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "block_ids": "hash_ids",
}


def recognise(names: frozenset[str]) -> bool:
    """Whether folded keys are those of a Mooncake row."""
    return {"timestamp", "inputlength", "outputlength", "hashids"} <= names


def load(source: Source, renamed: dict[str, str]) -> Trace:
    """The rows; arrivals as they are, block ids kept.

    Args:
        source: The file.
        renamed: Our name of a column to the file's, where it differs from `COLUMNS`.

    Raises:
        TraceError: A value that cannot be read, or a list of ids of the wrong length.
    """
    rows = JsonRows(source)
    used = [rows.need(field, renamed.get(field, name)) for field, name in COLUMNS.items()]
    when, prompt, output, ids = used
    note_ignored(source, rows.names, used)
    trace = columns(rows.spans_ns(when, "ms"), rows.counts(prompt), rows.counts(output), rows.lines)
    trace.block_ids = rows.id_lists(ids)
    trace.block_ids_tokens = BLOCK_TOKENS
    _check_sizes(source, trace, ids)
    _note_contradictions(source, trace)
    return assemble(source, trace)


def _check_sizes(source: Source, trace: Trace, field: str) -> None:
    assert trace.block_ids is not None
    sizes = np.fromiter(map(len, trace.block_ids), dtype=np.int64, count=len(trace))
    wanted = -(-trace.prompt_tokens // BLOCK_TOKENS)
    wrong = np.flatnonzero(sizes != wanted)
    if len(wrong):
        at = int(wrong[0])
        source.refuse(
            int(trace.row[at]),
            field,
            f"{sizes[at]:,} ids for a prompt of {trace.prompt_tokens[at]:,} tokens",
            f"{wanted[at]:,}, one for each {BLOCK_TOKENS} tokens",
        )


def _note_contradictions(source: Source, trace: Trace) -> None:
    """Say how many ids stand elsewhere than where they first did, though an id names its prefix."""
    assert trace.block_ids is not None
    ids = np.concatenate([*trace.block_ids, np.zeros(0, dtype=np.int64)])
    sizes = np.fromiter(map(len, trace.block_ids), dtype=np.int64, count=len(trace))
    row = np.repeat(np.arange(len(trace)), sizes)
    position = np.arange(len(ids)) - (np.cumsum(sizes) - sizes)[row]
    before = np.where(position > 0, np.roll(ids, 1), 0)
    _, first, of_id = np.unique(ids, return_index=True, return_inverse=True)
    wrong = (position != position[first][of_id]) | (before != before[first][of_id])
    if wrong.any():
        at = int(np.argmax(wrong))
        source.notes.append(
            f"{int(wrong.sum()):,} of {len(ids):,} block ids (first: {ids[at]} in line"
            f" {trace.row[row[at]]:,}) stand at another position or after another id than before,"
            " though an id stands for its block and all before it: a prefix cache goes by the whole"
            " list, and these may find less than the file's maker meant."
        )
