"""WEKA coding-agent conversations (C. Fox, kv-cache-tester; Apache-2.0): one JSON document each.

A file holds one document or one a line. Times count from a conversation's own start, in seconds, so
all conversations begin together at 0. Lengths are tiktoken's counts for gpt-4. Block ids hold
within a document; full blocks only.

Sub-agents fork and join. A marker stands where the sub-agent's result came in: in all six of our
sample ``t - duration_ms`` is 0.6 to 1 s after the parent's turn before them had ended, while ``t``
is 60 to 340 s later and, of those side by side, even after they must have begun. So

- a sub-agent's requests, a session of their own, count from ``t - duration_ms`` (without
  ``duration_ms``, from ``t`` less the span of its own requests);
- it comes after the last turn of its parent before the marker that had ended by then (``t`` +
  ``api_time``), delayed by what lies between, nothing where ``api_time`` is missing;
- the first turn of the parent after the marker, not earlier than its ``t``, comes after the
  sub-agent's last request too, delayed by what lies between the latest of these ends and its own
  ``t``: its ``think_time`` would count the sub-agents' work as thinking;
- other turns come their ``think_time`` after the turn before, 0 where it is missing;
- a sub-agent before the first turn of its parent, or after the last, is waited for by nobody.

kv-cache-tester replays them alike (docs/trace_replay_tester.md: the parent pauses until all of its
sub-agents complete), as AIPerf does.
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
    after: list[list[str]] = field(default_factory=list)
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
        + (
            f"; {agents} sub-agents are sessions of their own, which their parents wait for where"
            " turns follow each other."
            if agents
            else "."
        )
    )
    return assemble(source, _trace(flat, block_tokens))


@dataclass(frozen=True)
class _Turn:
    """A turn of a parent: row in `_Flat`, and its times on the document's clock, ns."""

    row: int
    begin_ns: int
    end_ns: int | None


@dataclass(frozen=True)
class _Agent:
    """A sub-agent: its first and last row in `_Flat`, and when its result came in, ns."""

    last_row: int
    end_ns: int


def _add(flat: _Flat, place: _Document, node: dict[str, Any], session: str, start_ns: int) -> int:
    """Append the requests of one conversation or sub-agent; return how many sub-agents it has."""
    agents = 0
    turns: list[_Turn] = []
    results: list[_Agent] = []
    for request in _children(place, node):
        when = _read(place.source, place.line, request, "t", _seconds) + start_ns
        if _CHILDREN not in request:
            turns.append(_add_turn(flat, place, request, session, len(turns), when))
            joined = [each for each in results if each.end_ns <= when]
            if len(turns) > 1 and joined:
                _join(flat, turns, joined)
            results = [each for each in results if each.end_ns > when]
            continue
        agents += 1
        name = f"{session}/{request.get('agent_id', 'agent')}-{agents}"
        begin_ns = max(0, when - _duration(place, request))
        first = len(flat.prompt)
        agents += _add(flat, place, request, name, begin_ns)
        if len(flat.prompt) > first and _fork(flat, turns, first, begin_ns):
            results.append(_Agent(_last_of(flat, name), when))
    return agents


def _last_of(flat: _Flat, session: str) -> int:
    """Row of the last turn so far of a session."""
    return len(flat.session) - 1 - flat.session[::-1].index(session)


def _duration(place: _Document, marker: dict[str, Any]) -> int:
    """How long a sub-agent was at work, ns."""
    if "duration_ms" in marker:
        return _read(place.source, place.line, marker, "duration_ms", _milliseconds)
    ends = [
        _read(place.source, place.line, request, "t", _seconds)
        + _optional(place, request, "api_time")
        for request in _children(place, marker)
    ]
    return max(ends, default=0)


def _fork(flat: _Flat, turns: list[_Turn], first: int, begin_ns: int) -> bool:
    """Let a sub-agent's first request come after a turn of its parent; whether there is one."""
    known = [turn for turn in turns if (turn.end_ns or turn.begin_ns) <= begin_ns] or turns[:1]
    if not known:
        return False
    parent = known[-1]
    gap_ns = 0 if parent.end_ns is None else max(0, begin_ns - parent.end_ns)
    flat.after[first] = [_name(flat, parent.row)]
    flat.delay_ns[first] += gap_ns
    return True


def _join(flat: _Flat, turns: list[_Turn], agents: list[_Agent]) -> None:
    """Let the newest turn wait for the sub-agents whose results it brings."""
    turn, before = turns[-1], turns[-2]
    flat.after[turn.row] = [_name(flat, agent.last_row) for agent in agents]
    ends = [agent.end_ns for agent in agents]
    flat.delay_ns[turn.row] = max(0, turn.begin_ns - max(*ends, before.end_ns or 0))


def _name(flat: _Flat, row: int) -> str:
    return f"{flat.session[row]}#{flat.turn[row]}".replace(" ", "_")


def _add_turn(
    flat: _Flat,
    place: _Document,
    request: dict[str, Any],
    session: str,
    turn: int,
    when_ns: int,
) -> _Turn:
    prompt = _read(place.source, place.line, request, "in", values.count)
    flat.arrival_ns.append(when_ns)
    flat.prompt.append(prompt)
    flat.output.append(_read(place.source, place.line, request, "out", values.count))
    flat.line.append(place.line)
    flat.session.append(session)
    flat.turn.append(turn)
    flat.delay_ns.append(_optional(place, request, "think_time"))
    flat.after.append([])
    flat.ids.append(_ids(place, request, prompt))
    took = _optional(place, request, "api_time") if "api_time" in request else None
    return _Turn(len(flat.prompt) - 1, when_ns, None if took is None else when_ns + took)


def _optional(place: _Document, request: dict[str, Any], key: str) -> int:
    """A time in ns, 0 where it is missing."""
    return _read(place.source, place.line, request, key, _seconds) if key in request else 0


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


def _milliseconds(raw: object) -> int:
    return values.span_ns(raw, "ms")


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
    if any(flat.after):
        trace.request_id = np.array([_name(flat, row) for row in range(len(flat.prompt))], object)
        trace.after = [tuple(names) for names in flat.after]
    trace.block_ids = flat.ids
    trace.block_ids_tokens = block_tokens
    return trace.take(order)
