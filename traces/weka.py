"""WEKA coding-agent conversations (C. Fox, kv-cache-tester; Apache-2.0): one JSON document each.

A file holds one document or one a line. Times count from a conversation's own start, in seconds, so
all conversations begin together at 0. A sub-agent's requests count from its marker and form a
session of their own. Lengths are tiktoken's counts for gpt-4. Block ids hold within a document;
full blocks only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sim.request import Ints, Trace
from traces import values
from traces.build import assemble, columns
from traces.rows import read_json_documents
from traces.source import Source

_CHILDREN = "requests"


def recognise(names: frozenset[str]) -> bool:
    """Whether folded keys are those of a WEKA document."""
    return {"requests", "blocksize", "hashidscope"} <= names


@dataclass
class _Flat:
    """Requests of all documents, one list a column."""

    arrival_ns: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    session: list[str] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    delay_ns: list[int] = field(default_factory=list)
    ids: list[Ints] = field(default_factory=list)


@dataclass(frozen=True)
class _Document:
    """Where a request stands, and what its ids mean."""

    source: Source
    line: int
    block_tokens: int
    first_id: int


def load(source: Source, renamed: dict[str, str]) -> Trace:
    """All requests, sub-agents' included, by time from each conversation's start.

    Args:
        source: The file.
        renamed: Nothing can be renamed here; must be empty.

    Raises:
        TraceError: A value that cannot be read, or documents of different block sizes.
    """
    if renamed:
        source.refuse(None, "column map", ", ".join(renamed), "none for WEKA documents")
    flat = _Flat()
    first_id, block_tokens, agents = 0, 0, 0
    for line, document in read_json_documents(source):
        size = _read(source, line, document, "block_size", values.count)
        block_tokens = block_tokens or size
        if size != block_tokens or not size:
            source.refuse(line, "block_size", size, f"{block_tokens or 'above 0'} as elsewhere")
        place = _Document(source, line, size, first_id)
        agents += _add(flat, place, document, str(document.get("id", f"line {line}")), 0)
        first_id = 1 + max((int(ids[-1]) for ids in flat.ids if len(ids)), default=first_id)
    source.notes.append(
        "The starts of conversations are not recorded: all begin at 0"
        + (f"; {agents} sub-agents are sessions that no parent waits for." if agents else ".")
    )
    return assemble(source, _trace(flat, block_tokens))


def _add(flat: _Flat, place: _Document, node: dict[str, Any], session: str, start_ns: int) -> int:
    """Append the requests of one conversation or sub-agent; return how many sub-agents it has."""
    agents = turn = 0
    for request in _children(place, node):
        when = _read(place.source, place.line, request, "t", _seconds) + start_ns
        if _CHILDREN in request:
            agents += 1
            name = f"{session}/{request.get('agent_id', 'agent')}-{agents}"
            agents += _add(flat, place, request, name, when)
            continue
        prompt = _read(place.source, place.line, request, "in", values.count)
        flat.arrival_ns.append(when)
        flat.prompt.append(prompt)
        flat.output.append(_read(place.source, place.line, request, "out", values.count))
        flat.line.append(place.line)
        flat.session.append(session)
        flat.turn.append(turn)
        think = "think_time" in request
        flat.delay_ns.append(
            _read(place.source, place.line, request, "think_time", _seconds) if think else 0
        )
        flat.ids.append(_ids(place, request, prompt))
        turn += 1
    return agents


def _children(place: _Document, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    requests = node.get(_CHILDREN)
    if not isinstance(requests, list):
        place.source.refuse(place.line, _CHILDREN, requests, "a list of requests")
    for request in requests:
        if not isinstance(request, dict):
            place.source.refuse(place.line, _CHILDREN, request, "an object for each request")
        yield request


def _ids(place: _Document, request: dict[str, Any], prompt: int) -> Ints:
    """Ids of the full blocks, moved so that no two documents share one."""
    ids = request.get("hash_ids")
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        place.source.refuse(place.line, "hash_ids", ids, "a list of whole numbers")
    if len(ids) != prompt // place.block_tokens:
        place.source.refuse(
            place.line,
            "hash_ids",
            f"{len(ids):,} ids for a prompt of {prompt:,} tokens",
            f"{prompt // place.block_tokens:,}, one for each full block of {place.block_tokens}",
        )
    if ids and not 0 <= min(ids) <= max(ids) <= values.MAX_COUNT:
        place.source.refuse(place.line, "hash_ids", ids, values.COUNT_EXPECTED)
    return np.array(ids, dtype=np.int64) + place.first_id


def _seconds(raw: object) -> int:
    return values.span_ns(raw, "s")


def _read(
    source: Source, line: int, node: dict[str, Any], key: str, parse: Callable[[object], int]
) -> int:
    raw = node.get(key)
    try:
        return parse(raw)
    except values.BadValueError as error:
        source.refuse(line, key, raw, str(error))


def _trace(flat: _Flat, block_tokens: int) -> Trace:
    # Sorted here: within a file of many conversations the clock starts again by design.
    times = np.array(flat.arrival_ns, dtype=np.int64)
    order = np.argsort(times, kind="stable")
    trace = columns(
        times,
        np.array(flat.prompt, dtype=np.int64),
        np.array(flat.output, dtype=np.int64),
        np.array(flat.line, dtype=np.int64),
    )
    trace.session = np.array(flat.session, dtype=object)
    trace.turn = np.array(flat.turn, dtype=np.int64)
    trace.delay_ns = np.array(flat.delay_ns, dtype=np.int64)
    trace.block_ids = flat.ids
    trace.block_ids_tokens = block_tokens
    return trace.take(order)
