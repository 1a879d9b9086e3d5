"""Traces: from published files, or made up, to the `Trace` that a simulation runs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sim.errors import TraceError, nearest
from sim.request import Trace
from traces import aiperf, azure, bailian, burstgpt, mooncake, servegen, table, vidur_lengths, weka
from traces.rows import first_document, first_line, fold, sniff_delimiter
from traces.source import Source, read_source


@dataclass(frozen=True)
class Loader:
    """How one format is told from others and read.

    Attributes:
        load: Source and column map to `Trace`; a seed too if `synthetic`.
        recognise: Whether folded column names (or keys) are of this format.
        about: One line for listings.
        fields: Names that a column map may rename.
        synthetic: The file holds distributions; requests are drawn from them.
        json_only: Never a CSV file, whatever its columns are called.
    """

    load: Callable[..., Trace]
    recognise: Callable[[frozenset[str]], bool]
    about: str
    fields: tuple[str, ...] = ()
    synthetic: bool = False
    json_only: bool = False


def _never(names: frozenset[str]) -> bool:
    """Plain tables are what is left when no publisher's format fits."""
    return False


LOADERS: dict[str, Loader] = {
    "azure": Loader(
        azure.load, azure.recognise, "Azure LLM inference 2023 and 2024 (CSV)",
        tuple(azure.COLUMNS),
    ),
    "aiperf": Loader(
        aiperf.load, aiperf.recognise, "AIPerf and Dynamo sessions (JSON lines, new tokens)",
        tuple(aiperf.COLUMNS), json_only=True,
    ),
    "bailian": Loader(
        bailian.load, bailian.recognise, "Bailian (JSON lines, chats, block ids of 16 tokens)",
        tuple(bailian.COLUMNS), json_only=True,
    ),
    "mooncake": Loader(
        mooncake.load, mooncake.recognise, "Mooncake (JSON lines, block ids of 512 tokens)",
        tuple(mooncake.COLUMNS),
    ),
    "burstgpt": Loader(
        burstgpt.load, burstgpt.recognise, "BurstGPT releases 1 to 3 (CSV)",
        (*burstgpt.COLUMNS, "session", "request_class"),
    ),
    "weka": Loader(weka.load, weka.recognise, "WEKA conversations (JSON documents)"),
    "vidur-lengths": Loader(
        vidur_lengths.load, vidur_lengths.recognise, "Vidur lengths without arrivals (CSV)",
        tuple(vidur_lengths.COLUMNS),
    ),
    "servegen": Loader(
        servegen.load, servegen.recognise, "ServeGen client: rates and lengths, drawn from",
        synthetic=True,
    ),
    "csv": Loader(
        table.load_csv, _never, "plain CSV, columns by name or column map",
        tuple(table.known_fields()),
    ),
    "jsonl": Loader(
        table.load_jsonl, _never, "plain JSON lines, keys by name or column map",
        tuple(table.known_fields()),
    ),
}  # fmt: skip
"""Formats by name."""


def load(
    path: str | Path,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
) -> Trace:
    """Read a trace file, plain or gzip, of a named format or of the one that its content shows.

    Args:
        path: The file.
        format: A name of `LOADERS` (underscores may stand for hyphens), or None to recognise it.
        columns: Column map: our name of a field (``prompt_tokens``, ``arrival_ms``, ...) to the
            file's column or key.
        seed: Used by formats that hold distributions instead of requests.

    Returns:
        The requests in order of arrival; what was odd is in its `notes`.

    Raises:
        TraceError: One line with file, line, field, value and what is expected.
    """
    source = read_source(path)
    name = recognise(source, columns) if format is None else format.replace("_", "-")
    loader = LOADERS.get(name)
    if loader is None:
        raise TraceError(f"{path}: format: no {format!r}{nearest(name, LOADERS)}")
    renamed = dict(columns or {})
    table.check_map(renamed, list(loader.fields), source)
    return loader.load(source, renamed, seed) if loader.synthetic else loader.load(source, renamed)


def recognise(source: Source, columns: Mapping[str, str] | None = None) -> str:
    """The name in `LOADERS` of the format that `source` is in.

    A column map says that the file is not quite a publisher's, so it is read as a plain table
    unless the columns show otherwise.

    Raises:
        TraceError: No format fits, with what was found.
    """
    start = first_line(source).lstrip()
    if start.startswith("["):
        raise TraceError(f"{source.name}:1: a JSON list; expected JSON lines, one object a line")
    if start.startswith("{"):
        names, plain = _json_names(source), "jsonl"
    else:
        names, plain = _csv_names(source, start), "csv"
    fitting = (
        name
        for name, loader in LOADERS.items()
        if loader.recognise(names) and not (loader.json_only and plain == "csv")
    )
    found = next(fitting, plain)
    return plain if columns and not set(columns) <= set(LOADERS[found].fields) else found


def _json_names(source: Source) -> frozenset[str]:
    return frozenset(map(fold, first_document(source)))


def _csv_names(source: Source, start: str) -> frozenset[str]:
    fields = next(csv.reader([start], delimiter=sniff_delimiter(start)), [])
    if servegen.is_window(fields):
        return servegen.NAMES
    if fields and all(field.strip()[:1].isdigit() for field in fields):
        source.refuse(1, "header", start, "a line with the names of the columns")
    return frozenset(map(fold, fields))
