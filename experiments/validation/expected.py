"""The committed table of what validation came to, so that a change in accuracy is seen.

It holds simulated values and errors, summed up by metric; no measured row is copied.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.validation.outcome import Outcome
from experiments.validation.report import Summary, summaries

EXPECTED = Path(__file__).with_name("expected.csv")
"""The committed table."""

COLUMNS = (
    "case",
    "metric",
    "group",
    "rows",
    "simulated",
    "error",
    "mean_abs",
    "median_abs",
    "worst",
)

SIMULATED = 0.002
"""Relative change of a simulated value that is none: libraries round differently."""
ERROR = 0.002
"""Change of an error that is none."""

Key = tuple[str, str, str]


def write(outcomes: Iterable[Outcome], path: Path = EXPECTED) -> None:
    """Replace the rows of these cases, and keep those of others."""
    rows = read(path) if path.is_file() else {}
    outcomes = list(outcomes)
    names = {outcome.case.name for outcome in outcomes}
    rows = {key: row for key, row in rows.items() if key[0] not in names}
    for outcome in outcomes:
        rows.update({_key(each): _row(each) for each in summaries(outcome)})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for key in sorted(rows):
            writer.writerow([*key, *rows[key]])


def changes(outcomes: Sequence[Outcome], path: Path = EXPECTED) -> list[str]:
    """How these cases differ from the committed table, one sentence each.

    Args:
        outcomes: Of the cases that were run; others are not looked at.
        path: The table.
    """
    committed = read(path) if path.is_file() else {}
    found: list[str] = []
    for outcome in outcomes:
        name = outcome.case.name
        before = {key: row for key, row in committed.items() if key[0] == name}
        now = {_key(each): _row(each) for each in summaries(outcome)}
        found += [f"{_said(key)}: is new" for key in now if key not in before]
        found += [f"{_said(key)}: is gone" for key in before if key not in now]
        for key in now.keys() & before.keys():
            found += _differences(key, before[key], now[key])
    return sorted(found)


def _differences(key: Key, before: Sequence[str], now: Sequence[str]) -> list[str]:
    said = []
    for column, old, new in zip(COLUMNS[3:], before, now, strict=True):
        was, is_now = float(old), float(new)
        if math.isnan(was) and math.isnan(is_now):
            continue
        limit = SIMULATED * abs(was) if column == "simulated" else 0 if column == "rows" else ERROR
        if not abs(is_now - was) <= limit:
            said.append(f"{_said(key)}: {column} was {old}, is {new}")
    return said


def _key(each: Summary) -> Key:
    return each.case, each.metric, each.group


def _row(each: Summary) -> list[str]:
    errors = (each.mean, each.mean_abs, each.median_abs, each.tail_abs)
    return [str(each.rows), f"{each.simulated:.5g}", *(f"{error:.4f}" for error in errors)]


def _said(key: Key) -> str:
    case, metric, group = key
    return f"{case}: {metric}" + (f" [{group}]" if group else "")


def read(path: Path = EXPECTED) -> dict[Key, list[str]]:
    """The committed rows: case, metric and group to the other columns, as text."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    return {(row[0], row[1], row[2]): row[3:] for row in rows[1:]}
