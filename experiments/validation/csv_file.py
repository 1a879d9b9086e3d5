"""A CSV of requests, columns by our names or by a column map."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.validation.formats import Raw
from experiments.validation.values import COLUMN_NAMES, any_time_s, time_s, tokens, wrong
from sim.errors import ConfigError, nearest

CSV_COUNTS = {
    "prompt_tokens": ("input_tokens", "prompt_len", "input_len", "input_lens", "isl"),
    "output_tokens": ("output_len", "output_lens", "completion_tokens", "osl"),
}
"""Lengths of a CSV, and names that are understood without a column map."""

CSV_TIMES = ("arrival", "ttft", "tpot", "e2e")
"""Times of a CSV, in ``_s`` or ``_ms``."""

UNITS = {"s": 1.0, "ms": 1e-3}

OURS = (*CSV_COUNTS, *(f"{name}_{unit}" for name in CSV_TIMES for unit in UNITS), "ok")
"""All names of columns that are understood."""

_OK = {"true": True, "1": True, "1.0": True, "yes": True,
       "false": False, "0": False, "0.0": False, "no": False}  # fmt: skip


@dataclass(frozen=True)
class _Table:
    """Cells as text.

    Attributes:
        path: For messages.
        heads: Of the columns.
        rows: Each as long as `heads`.
        lines: Of each row in the file, from 1.
    """

    path: Path
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    lines: Sequence[int]

    def cells(self, head: str) -> list[tuple[str, str]]:
        """Where each cell of a column is, and what it holds."""
        at = self.heads.index(head)
        return [
            (f"{self.path}: line {line}: {head}", row[at].strip())
            for line, row in zip(self.lines, self.rows, strict=True)
        ]

    def said(self, reason: str, name: str) -> str:
        """An error about a column that is not found: the file's columns, and how to name one."""
        return (
            f"{self.path}: {reason} It has {', '.join(self.heads)}; say --column {name}=THEIRS. "
            f"{COLUMN_NAMES}"
        )


def read_csv(path: Path, columns: Mapping[str, str]) -> Raw:
    """A table of requests. What an empty cell would say is not known.

    Args:
        path: With a header, separated by commas.
        columns: Its names by `OURS`.

    Raises:
        ConfigError: a name of ours that is none, a column that is missing, there twice or in two
            units, a line of another length, a cell that cannot be, with its line.
    """
    table = _read(path)
    heads = _heads(table, columns)
    ok = _ok(table, heads.get("ok"))
    found: dict[str, list[Any]] = {"ok": ok}
    for name in CSV_COUNTS:
        found[name] = _lengths(table.cells(heads[name]), ok)
    single = [length <= 1 for length in found["output_tokens"]]
    theirs = dict(heads)
    for name in CSV_TIMES:
        for unit, factor in UNITS.items():
            if head := heads.get(f"{name}_{unit}"):
                theirs[f"{name}_s"] = head
                read = _arrivals if name == "arrival" else _times
                may_lack = single if name == "tpot" else [False] * len(ok)
                found[f"{name}_s"] = read(table.cells(head), ok, may_lack, factor)

    def place(row: int, ours: str) -> str:
        return f"{path}: line {table.lines[row]}: {theirs.get(ours, ours)}"

    return Raw(found, {}, [], place, table.said("which columns are the times?", "ttft_s"))


def _read(path: Path) -> _Table:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if any(map(str.strip, row))]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is no CSV: {error}") from None
    if not lines:
        raise ConfigError(f"{path}: is empty")
    heads = [head.strip() for head in lines[0][1]]
    _check_heads(path, heads)
    for number, row in lines[1:]:
        if len(row) != len(heads):
            raise ConfigError(
                f"{path}: line {number}: has {len(row)} cells, the header {len(heads)}: the file "
                "is cut or was edited"
            )
    return _Table(path, heads, [row for _, row in lines[1:]], [number for number, _ in lines[1:]])


def _check_heads(path: Path, heads: Sequence[str]) -> None:
    twice = next((head for head in heads if head and heads.count(head) > 1), None)
    if twice is not None:
        places = " and ".join(str(i + 1) for i, head in enumerate(heads) if head == twice)
        raise ConfigError(f"{path}: line 1: {twice}: is there twice, as columns {places}")
    other = next((mark for mark in ";\t|" if mark in heads[0]), None)
    if len(heads) == 1 and other is not None:
        raise ConfigError(f"{path}: line 1: cells are separated by {other!r}; expected commas")


# --- which column is what


def _heads(table: _Table, columns: Mapping[str, str]) -> dict[str, str]:
    """Theirs by ours: of the map, else by name."""
    for name, theirs in columns.items():
        if name not in OURS:
            raise ConfigError(
                f"--column {name}={theirs}: {name} is none of ours{nearest(name, OURS)}"
            )
        if theirs not in table.heads:
            hint = nearest(theirs, table.heads)
            raise ConfigError(f"{table.path}: has no column {theirs}{hint}")
    found = {name: _count(table, columns, name) for name in CSV_COUNTS}
    for name in CSV_TIMES:
        found.update(_time(table, columns, name))
    head = columns.get("ok") or ("ok" if "ok" in table.heads else None)
    return {**found, "ok": head} if head else found


def _count(table: _Table, columns: Mapping[str, str], name: str) -> str:
    """Which column is one of the lengths.

    Raises:
        ConfigError: None is, or several may be.
    """
    if name in columns:
        return columns[name]
    heads = [head for head in (name, *CSV_COUNTS[name]) if head in table.heads]
    if len(heads) > 1:
        raise ConfigError(
            f"{table.path}: has {' and '.join(heads)}; say which with --column {name}={heads[0]}"
        )
    if not heads:
        raise ConfigError(table.said(f"which column is {name}?", name))
    return heads[0]


def _time(table: _Table, columns: Mapping[str, str], name: str) -> dict[str, str]:
    """Which column is one of the times, by our name with its unit; empty if none is.

    Raises:
        ConfigError: It is there in both units.
    """
    keys = [f"{name}_{unit}" for unit in UNITS]
    heads = {key: columns[key] for key in keys if key in columns}
    heads = heads or {key: key for key in keys if key in table.heads}
    if len(heads) > 1:
        first, second = heads.items()
        raise ConfigError(
            f"{table.path}: has {first[1]} ({first[0]}) and {second[1]} ({second[0]}); say which "
            f"counts with one --column, such as {first[0]}={first[1]}"
        )
    return heads


# --- cells


def _ok(table: _Table, head: str | None) -> list[bool]:
    if head is None:
        return [True] * len(table.rows)
    found = []
    for where, cell in table.cells(head):
        if cell.lower() not in _OK:
            wrong(where, cell, "true, yes or 1 of a request that was served, or false, no or 0")
        found.append(_OK[cell.lower()])
    return found


def _lengths(cells: Sequence[tuple[str, str]], ok: Sequence[bool]) -> list[int]:
    return [
        0 if not cell and not served else tokens(_number(cell, where), where)
        for (where, cell), served in zip(cells, ok, strict=True)
    ]


def _times(
    cells: Sequence[tuple[str, str]], ok: Sequence[bool], may_lack: Sequence[bool], factor: float
) -> list[float]:
    """Seconds; NaN of an empty cell, of one that failed, and where there may be none."""
    found = []
    for (where, cell), served, lacks in zip(cells, ok, may_lack, strict=True):
        value = _number(cell, where) if cell else None
        may_be_none = not served or cell == "" or (lacks and math.isnan(value or 0))
        read: Callable[..., float] = any_time_s if may_be_none else time_s
        found.append(read(value, where, factor))
    return found


def _arrivals(
    cells: Sequence[tuple[str, str]], ok: Sequence[bool], may_lack: Sequence[bool], factor: float
) -> list[float]:
    """Of a clock of any origin, s."""
    found = []
    for (where, cell), served in zip(cells, ok, strict=True):
        value = _number(cell, where) if cell else math.nan
        if cell and served and not math.isfinite(value):
            wrong(where, value, "a time")
        found.append(value * factor)
    return found


def _number(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = None
    if value is None or "_" in cell:  # which Python takes
        wrong(where, cell, "a number")
    return value
