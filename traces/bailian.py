"""Bailian traces (Wang et al., KVCache in the Wild, ATC 2025; Apache-2.0): JSON lines.

``chat_id`` names a request, ``parent_chat_id`` the turn before it (-1: none), ``turn`` counts from
1, ``timestamp`` in seconds from the start, ``input_length``, ``output_length``, ``type``, and
``hash_ids``: one for each 16-token block by the content of that block alone, so that two prompts
share what they have alike from the start. Read from the publisher's README; no sample was at hand.

A request whose parent is there continues its session, the first of its siblings the parent's own;
every further one begins a session that comes after the parent (`traces.joins.Joins`). Prompts are
whole. Ends are not recorded, so that delays between turns have to be drawn.
"""

from __future__ import annotations

import numpy as np

from sim.request import Ints, Trace
from traces.build import assemble, columns, note_ignored
from traces.rows import JsonRows
from traces.source import Source

BLOCK_TOKENS = 16
"""Tokens one id of ``hash_ids`` stands for (the publisher's README)."""

COLUMNS = {
    "arrival": "timestamp",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "block_ids": "hash_ids",
    "request_id": "chat_id",
    "parent": "parent_chat_id",
    "turn": "turn",
    "request_class": "type",
}
_NEEDED = ("arrival", "prompt_tokens", "output_tokens", "block_ids", "request_id", "parent")
_ROOT = "-1"


def recognise(names: frozenset[str]) -> bool:
    """Whether folded keys are those of a Bailian row."""
    return {"chatid", "parentchatid", "inputlength", "hashids"} <= names


def load(source: Source, renamed: dict[str, str]) -> Trace:
    """The rows as turns of sessions, in order of arrival; the type as class if there are several.

    Args:
        source: The file.
        renamed: Our name of a column to the file's, where it differs from `COLUMNS`.

    Raises:
        TraceError: A value that cannot be read, a list of ids of the wrong length, or one
            ``chat_id`` twice.
    """
    rows = JsonRows(source)
    name_of = {field: renamed.get(field, name) for field, name in COLUMNS.items()}
    needed = {field: rows.need(field, name_of[field]) for field in _NEEDED}
    prompt, output = (rows.counts(needed[field]) for field in ("prompt_tokens", "output_tokens"))
    trace = columns(rows.spans_ns(needed["arrival"], "s"), prompt, output, rows.lines)
    trace.block_ids = _in_order_of_use(rows.id_lists(needed["block_ids"]))
    trace.block_ids_tokens = BLOCK_TOKENS
    _check_sizes(source, trace, needed["block_ids"])
    trace.request_id = rows.texts(needed["request_id"])
    _link(source, trace, rows.texts(needed["parent"]).tolist())
    kind = rows.find(name_of["request_class"])
    if kind is not None and len(set(rows.texts(kind).tolist())) > 1:
        trace.request_class = rows.texts(kind)
    # `turn` is implied by the parents.
    used = [*needed.values(), *filter(None, (kind, rows.find(name_of["turn"])))]
    note_ignored(source, rows.names, used)
    return assemble(source, trace)


def _in_order_of_use(ids: list[Ints]) -> list[Ints]:
    """The same blocks numbered by first appearance: new ones in a row are then one run."""
    flat = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64)
    _, first, inverse = np.unique(flat, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    ends = np.cumsum([len(row) for row in ids])[:-1]
    return list(np.split(number[inverse], ends)) if ids else []


def _check_sizes(source: Source, trace: Trace, field: str) -> None:
    assert trace.block_ids is not None
    sizes = np.fromiter(map(len, trace.block_ids), dtype=np.int64, count=len(trace))
    full, all_blocks = trace.prompt_tokens // BLOCK_TOKENS, -(-trace.prompt_tokens // BLOCK_TOKENS)
    wrong = np.flatnonzero((sizes != full) & (sizes != all_blocks))
    if len(wrong):
        at = int(wrong[0])
        source.refuse(
            int(trace.row[at]),
            field,
            f"{sizes[at]:,} ids for a prompt of {trace.prompt_tokens[at]:,} tokens",
            f"{all_blocks[at]:,}, one for each {BLOCK_TOKENS} tokens",
        )


def _link(source: Source, trace: Trace, parents: list[str | None]) -> None:
    """Fill sessions and turns from the parents, which may stand behind their children."""
    assert trace.request_id is not None
    names = trace.request_id.tolist()
    row_of: dict[str, int] = {}
    for row, name in enumerate(names):
        if name is None or name in row_of:
            source.refuse(int(trace.row[row]), "chat_id", name, "a name that no other row has")
        row_of[name] = row
    known = [row_of.get(parent, -1) if parent not in (None, _ROOT) else -1 for parent in parents]
    strangers = sum(
        row < 0 and parent not in (None, _ROOT) for row, parent in zip(known, parents, strict=True)
    )
    if strangers:
        source.notes.append(
            f"{strangers:,} rows continue a conversation from before the trace; they begin one."
        )
    trace.turn, session, continued = np.zeros(len(names), dtype=np.int64), list(names), set[int]()
    trace.after = [()] * len(names)
    for row in _parents_first(source, trace, known):
        parent = known[row]
        if parent < 0:
            continue
        if parent in continued:
            trace.after[row] = (names[parent],)
            continue
        continued.add(parent)
        session[row] = session[parent]
        trace.turn[row] = trace.turn[parent] + 1
    trace.session = np.array(session, dtype=object)
    if not any(trace.after):
        trace.after = None


def _parents_first(source: Source, trace: Trace, known: list[int]) -> list[int]:
    """Rows in trace order, but none before its parent."""
    order: list[int] = []
    placed = [False] * len(known)
    for row in range(len(known)):
        path: list[int] = []
        while row >= 0 and not placed[row]:
            if len(path) > len(known):
                source.refuse(int(trace.row[row]), "parent_chat_id", "a circle", "a tree of turns")
            path.append(row)
            row = known[row]
        for each in reversed(path):
            if not placed[each]:
                placed[each] = True
                order.append(each)
    return order
