"""Measured rows of a case: which are compared, and what of a config they set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.layers import lay_over, unfold
from experiments.validation import data
from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[str, Any]
"""One measured row: column to value."""

POLICY = "policy."
"""Keys that differ from row to row without a new server."""


def chosen(said: Mapping[str, Any], measured: Path) -> pd.DataFrame:
    """The rows that a case compares, in the order of the file.

    Args:
        said: ``table``, and ``where``: column to its value, to a list of values, to ``null`` for
            an empty cell or to ``{from: a, to: b}``; ``derive``: new column to a column's words
            and their values.
        measured: The folder of measured data.

    Raises:
        ConfigError: A column that is not there, or no row left.
    """
    table = data.read(measured, said["table"])
    for column, wanted in said.get("where", {}).items():
        if column not in table:
            raise ConfigError(f"{said['table']}: no column {column}{nearest(column, table)}")
        table = table[_matches(table[column], wanted)]
    for name, of in said.get("derive", {}).items():
        ((column, words),) = of.items()
        table = table.assign(**{name: table[column].map(words)})
    if not len(table):
        raise ConfigError(f"{said['table']}: no row is left of {dict(said.get('where', {}))}")
    return table


def _matches(column: pd.Series, wanted: object) -> pd.Series:
    if wanted is None:
        return column.isna()
    if isinstance(wanted, Mapping):
        return column.between(wanted["from"], wanted["to"])
    return column.isin(wanted if isinstance(wanted, list) else [wanted])


def value(formula: object, row: Row) -> Any:
    """A column's value, a number as it is, the sum of a list of these, or what ``{is: x}`` says.

    Raises:
        ConfigError: A column that the row has not.
    """
    if isinstance(formula, Mapping):
        return formula["is"]
    if isinstance(formula, list):
        return sum(value(part, row) for part in formula)
    if not isinstance(formula, str):
        return formula
    if formula not in row:
        raise ConfigError(f"no column {formula}{nearest(formula, row)}")
    found = row[formula]
    return int(found) if isinstance(found, float) and found.is_integer() else found


def settings(said: Mapping[str, Any], row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of the config that a row sets: of the server, and options of its policy."""
    named = {key: value(formula, row) for key, formula in said.get("set", {}).items()}
    policy = {
        key.removeprefix(POLICY): each for key, each in named.items() if key.startswith(POLICY)
    }
    server = {key: each for key, each in named.items() if not key.startswith(POLICY)}
    return server, policy


def laid_over(config: Mapping[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a case with what a row sets."""
    return lay_over(unfold(config, ""), unfold(server, ""))


def label(row: Row, columns: Sequence[str]) -> str:
    """A row in words: ``isl 1024, osl 128, concurrency 8``."""
    return ", ".join(f"{column} {value(column, row)}" for column in columns)
