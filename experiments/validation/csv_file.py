"""A CSV of requests, columns by our names or by a column map."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.validation.formats import Raw
from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

CSV_COUNTS = {
    "prompt_tokens": ("input_tokens", "prompt_len", "input_len", "input_lens", "isl"),
    "output_tokens": ("output_len", "output_lens", "completion_tokens", "osl"),
}
"""Lengths of a CSV, and names that are understood without a column map."""

CSV_TIMES = ("arrival", "ttft", "tpot", "e2e")
"""Times of a CSV, in ``_s`` or ``_ms``."""


def read_csv(path: Path, columns: Mapping[str, str]) -> Raw:
    """A table of requests.

    Args:
        path: With a header.
        columns: Its names by ours: ``prompt_tokens``, ``output_tokens``, and ``arrival``, ``ttft``,
            ``tpot`` and ``e2e`` with ``_s`` or ``_ms``; ``ok``.

    Raises:
        ConfigError: a name of ours that is none, a column that is missing or no number.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except ValueError as error:
        raise ConfigError(f"{path}: is no CSV: {str(error).splitlines()[0]}") from None
    ours = [*CSV_COUNTS, *(f"{name}_{unit}" for name in CSV_TIMES for unit in ("s", "ms")), "ok"]
    for name, theirs in columns.items():
        if name not in ours:
            raise ConfigError(
                f"--column {name}={theirs}: {name} is none of ours{nearest(name, ours)}"
            )
        if theirs not in table.columns:
            hint = nearest(theirs, [str(name) for name in table.columns])
            raise ConfigError(f"{path}: has no column {theirs}{hint}")
    found = {name: _numbers(table, _count(table, columns, name, path), path) for name in CSV_COUNTS}
    for name in CSV_TIMES:
        for key, factor in ((f"{name}_s", 1.0), (f"{name}_ms", 1e-3)):
            head = columns.get(key) or (key if key in table.columns else None)
            if head is not None and f"{name}_s" not in found:
                found[f"{name}_s"] = _numbers(table, head, path) * factor
    raw = Raw({name: values.tolist() for name, values in found.items()})
    head = columns.get("ok") or ("ok" if "ok" in table.columns else None)
    if head is not None:
        raw.columns["ok"] = table[head].astype(str).str.lower().isin(("true", "1", "1.0")).tolist()
    return raw


def _count(table: pd.DataFrame, columns: Mapping[str, str], name: str, path: Path) -> str:
    """Which column is one of the lengths.

    Raises:
        ConfigError: none is.
    """
    if name in columns:
        return columns[name]
    for head in (name, *CSV_COUNTS[name]):
        if head in table.columns:
            return head
    heads = ", ".join(str(head) for head in table.columns)
    raise ConfigError(f"{path}: which column is {name}? It has {heads}; say --column {name}=THEIRS")


def _numbers(table: pd.DataFrame, name: str, path: Path) -> pd.Series:
    """A column as floats; empty cells are NaN.

    Raises:
        ConfigError: a cell that is no number, with its line.
    """
    import pandas as pd

    values = pd.to_numeric(table[name], errors="coerce")
    wrong = values.isna() & table[name].notna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ConfigError(f"{path}: line {row + 2}: {name}: {table[name].iloc[row]!r} is no number")
    return values.astype(float)
