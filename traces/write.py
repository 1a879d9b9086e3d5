"""A `Trace` as a file that `traces.load` reads back: CSV or JSON lines, plain or gzip."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import TraceError
from sim.request import NEVER, Ints, Trace

_TEXTS = ("session", "request_class", "tenant", "request_id")
_WHOLE = ("turn", "priority")
_SPANS = ("deadline", "delay", "cancel_after")


def write(trace: Trace, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write all columns of `trace`; the ending says how: ``.csv`` or ``.jsonl``, ``.gz`` after it.

    The same trace gives the same bytes. Source and notes are not written.

    Args:
        trace: What to write.
        path: Where to.
        overwrite: Replace a file that is there.

    Raises:
        TraceError: The ending is neither, or the file is there and `overwrite` is false.
    """
    path = Path(path)
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in (".csv", ".jsonl"):
        raise TraceError(f"{path}: ending {kind!r}; expected .csv, .jsonl, .csv.gz or .jsonl.gz")
    if path.exists() and not overwrite:
        raise TraceError(f"{path}: is there already; expected a new file, or leave to overwrite it")
    columns = _columns(trace)
    text = _csv(columns) if kind == ".csv" else _jsonl(columns)
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def seconds_text(ns: int) -> str:
    """Nanoseconds as exact seconds: ``1500000000`` is ``1.5``."""
    whole, part = divmod(ns, 10**9)
    return f"{whole}.{part:09d}".rstrip("0").rstrip(".")


def _columns(trace: Trace) -> dict[str, list[Any]]:
    """Names to values; None where a row has none."""
    columns: dict[str, list[Any]] = {}
    if not len(trace) or trace.arrival_ns[0] != NEVER:
        columns["arrival_s"] = _seconds(trace.arrival_ns)
    columns["prompt_tokens"] = trace.prompt_tokens.tolist()
    columns["output_tokens"] = trace.output_tokens.tolist()
    if trace.max_tokens.any():
        columns["max_tokens"] = [value or None for value in trace.max_tokens.tolist()]
    for name in _TEXTS:
        if (texts := getattr(trace, name)) is not None:
            columns[name] = texts.tolist()
    for name in _WHOLE:
        if (numbers := getattr(trace, name)) is not None:
            lowest = None if name == "priority" else 0
            columns[name] = [
                value if lowest is None or value >= lowest else None for value in numbers.tolist()
            ]
    for name in _SPANS:
        if (spans := getattr(trace, f"{name}_ns")) is not None:
            columns[f"{name}_s"] = _seconds(spans)
    if trace.after is not None:
        columns["after"] = [" ".join(names) or None for names in trace.after]
    if trace.block_ids is not None:
        columns["block_ids"] = [list(map(int, ids)) for ids in trace.block_ids]
        columns["block_ids_tokens"] = [trace.block_ids_tokens] * len(trace)
    return columns


def _seconds(times: Ints) -> list[str | None]:
    return [None if ns < 0 else seconds_text(ns) for ns in times.tolist()]


def _csv(columns: dict[str, list[Any]]) -> str:
    if "block_ids" in columns:
        columns["block_ids"] = [" ".join(map(str, ids)) for ids in columns["block_ids"]]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue()


def _jsonl(columns: dict[str, list[Any]]) -> str:
    return "".join(_json_rows(columns))


def _json_value(name: str, value: Any) -> str:
    """Times are exact decimal text already, which a float would not hold."""
    return value if name.endswith("_s") and value is not None else json.dumps(value)


def _json_rows(columns: dict[str, list[Any]]) -> Iterator[str]:
    for row in zip(*columns.values(), strict=True):
        fields = (
            f"{json.dumps(name)}: {_json_value(name, value)}"
            for name, value in zip(columns, row, strict=True)
        )
        yield "{" + ", ".join(fields) + "}\n"
