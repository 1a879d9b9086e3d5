"""Plain CSV and JSON lines: one request a row, columns by name or by a column map.

Needed: prompt and output tokens. Times carry their unit in the name (``arrival_s``, ``arrival_ms``,
...); a column ``timestamp`` holds timestamps, or seconds. Everything else is optional.
"""

from __future__ import annotations

import numpy as np

from sim.errors import TraceError, nearest
from sim.request import NEVER, Ints, Trace
from traces import values
from traces.build import assemble, columns, note_holes, note_ignored
from traces.rows import CsvRows, JsonRows, Rows
from traces.source import Source

PROMPT = ("prompt_tokens", "input_tokens", "input_length", "context_tokens", "num_prefill_tokens",
          "request_tokens", "prompt_length", "prompt_len", "input_len")  # fmt: skip
OUTPUT = ("output_tokens", "output_length", "generated_tokens", "num_decode_tokens",
          "response_tokens", "completion_tokens", "output_len")  # fmt: skip
BARE_TIMES = ("arrival", "timestamp", "arrival_time", "arrived_at", "time")
"""Arrival columns without a unit in the name: timestamps, or numbers taken as seconds."""

TEXTS = {"session": ("session", "session_id"), "request_class": ("request_class", "class"),
         "tenant": ("tenant",), "request_id": ("request_id",)}  # fmt: skip
WHOLE = {"turn": NEVER, "priority": 0, "max_tokens": 0}
"""Optional whole numbers, and what an empty field means."""

SPANS = {"deadline": NEVER, "delay": 0, "cancel_after": NEVER}
"""Optional lengths of time; columns are named with a unit, as ``deadline_s``."""

_AFTER = ("after",)
"""Names of the requests that have to end before this one arrives: a list, or text with blanks."""

_BLOCKS = ("block_ids", "hash_ids")
_BLOCK_SIZE = "block_ids_tokens"


def known_fields() -> list[str]:
    """Names that a column map may give a column of the file to."""
    timed = [f"{name}_{unit}" for name in ("arrival", *SPANS) for unit in values.UNITS]
    plain = ["arrival", "prompt_tokens", "output_tokens", *TEXTS, *WHOLE, "after", "block_ids"]
    return [*plain, _BLOCK_SIZE, *timed]


def check_map(renamed: dict[str, str], fields: list[str], source: Source) -> None:
    """Refuse a key of the column map that is no field.

    Raises:
        TraceError: With the nearest field.
    """
    for key in renamed:
        if key not in fields:
            hint = nearest(key, fields)
            raise TraceError(
                f"{source.name}: column map: {key} is no field; expected one of"
                f" {', '.join(fields) or 'none'}{hint if hint.startswith('; did') else ''}"
            )


def load_csv(source: Source, renamed: dict[str, str]) -> Trace:
    """Rows of a CSV file with a header; see the module."""
    return _load(CsvRows(source), renamed)


def load_jsonl(source: Source, renamed: dict[str, str]) -> Trace:
    """Rows of a JSON-lines file; see the module."""
    return _load(JsonRows(source), renamed)


def _load(rows: Rows, renamed: dict[str, str]) -> Trace:
    check_map(renamed, known_fields(), rows.source)
    missing = [name for name in renamed.values() if rows.find(name) is None]
    if missing:
        rows.need("the column map", missing[0])
    reader = _Reader(rows, renamed)
    prompt = rows.need("prompt_tokens", *reader.names("prompt_tokens", PROMPT))
    output = rows.need("output_tokens", *reader.names("output_tokens", OUTPUT))
    arrival_ns, absolute = reader.arrival()
    trace = columns(arrival_ns, rows.counts(prompt), rows.counts(output), rows.lines)
    reader.used += [prompt, output]
    reader.optional(trace)
    reader.after(trace)
    reader.blocks(trace)
    note_holes(rows.source, trace)
    note_ignored(rows.source, rows.names, reader.used)
    return assemble(rows.source, trace, absolute=absolute)


class _Reader:
    """Finds the columns of one file and remembers which it used."""

    def __init__(self, rows: Rows, renamed: dict[str, str]) -> None:
        self.rows = rows
        self.renamed = renamed
        self.used: list[str] = []

    def names(self, field: str, aliases: tuple[str, ...]) -> tuple[str, ...]:
        """Names to look for: the mapped one alone, else the aliases."""
        return (self.renamed[field],) if field in self.renamed else aliases

    def find(self, field: str, aliases: tuple[str, ...]) -> str | None:
        name = self.rows.find(*self.names(field, aliases))
        if name is not None:
            self.used.append(name)
        return name

    def timed(self, field: str) -> tuple[str, str] | None:
        """The column of `field` with a unit in its name, and the unit."""
        for unit in values.UNITS:
            name = self.find(f"{field}_{unit}", (f"{field}_{unit}",))
            if name is not None:
                return name, unit
        return None

    def arrival(self) -> tuple[Ints | None, bool]:
        """Arrival times, ns, or None where the file has none; whether they are timestamps."""
        timed = None if "arrival" in self.renamed else self.timed("arrival")
        if timed is not None:
            return self.rows.spans_ns(*timed), False
        bare = self.find("arrival", BARE_TIMES)
        if bare is None:
            return None, False
        if self.rows.is_stamp(bare):
            return self.rows.stamps_ns(bare), True
        self.rows.source.notes.append(f"Times in {bare} have no unit; they were taken as seconds.")
        return self.rows.spans_ns(bare, "s"), False

    def optional(self, trace: Trace) -> None:
        """Fill the optional columns that the file has."""
        for field, aliases in TEXTS.items():
            name = self.find(field, aliases)
            if name is not None:
                setattr(trace, field, self.rows.texts(name))
        for field, blank in WHOLE.items():
            name = self.find(field, (field,))
            if name is not None:
                read = self.rows.integers if field == "priority" else self.rows.counts
                setattr(trace, field, read(name, blank))
        for field, blank in SPANS.items():
            timed = self.timed(field)
            if timed is not None:
                setattr(trace, f"{field}_ns", self.rows.spans_ns(*timed, blank))

    def after(self, trace: Trace) -> None:
        """Fill the requests that each comes after, if the file says."""
        name = self.find("after", _AFTER)
        if name is not None:
            trace.after = self.rows.name_lists(name)
            if trace.request_id is None and any(trace.after):
                raise TraceError(
                    f"{self.rows.source.name}: {name}: names requests, but no column does; "
                    "expected a column request_id too"
                )

    def blocks(self, trace: Trace) -> None:
        """Fill the block ids, if their size is given too."""
        ids = self.rows.find(*self.names("block_ids", _BLOCKS))
        size = self.rows.find(*self.names(_BLOCK_SIZE, (_BLOCK_SIZE,)))
        if ids is None or size is None:
            return
        self.used += [ids, size]
        sizes = np.unique(self.rows.counts(size))
        if len(sizes) > 1 or not sizes[0]:
            self.rows.source.refuse(
                None, size, ", ".join(map(str, sizes[:5].tolist())), "one size for all rows"
            )
        trace.block_ids = self.rows.id_lists(ids)
        trace.block_ids_tokens = int(sizes[0])
