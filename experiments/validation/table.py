"""The committed outcome of validation as a Markdown table, as the README shows it.

``python -m experiments.validation.table README.md`` writes it between its marks in that file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.validation import case as cases
from experiments.validation.case import BarSpec, Case
from experiments.validation.expected import COLUMNS, EXPECTED, Key, read

BEGIN, END = "<!-- validation: begin -->", "<!-- validation: end -->"
"""Marks in the README: what is between them is written by this module."""

Rows = Mapping[Key, Sequence[str]]

WORDS = {"mean_abs": "mean", "median_abs": "median", "max_abs": "worst", "agree": "worst"}
_COLUMN = {"mean_abs": "mean_abs", "median_abs": "median_abs", "max_abs": "worst", "agree": "worst"}


def markdown(path: Path = EXPECTED) -> str:
    """All cases in order: their bars with pass or miss, and the errors of what has no bar."""
    rows = read(path)
    lines = ["| case | error | bar | |", "| --- | --- | --- | --- |"]
    for name in cases.names():
        lines += _lines(cases.load(name), rows)
    return "\n".join(lines)


def _lines(case: Case, rows: Rows) -> Iterator[str]:
    first = f"({case.number}) {case.title}"
    for cells in [*_barred(case, rows), *_shown(case, rows)]:
        yield f"| {first} | {' | '.join(cells)} |"
        first = ""


def _barred(case: Case, rows: Rows) -> Iterator[tuple[str, str, str]]:
    for bar in case.bars:
        value, count = _value(case, bar, rows)
        what = ", ".join(bar.metrics) + (f", {bar.group} rows" if bar.group else "")
        limit = 0.0 if bar.under is None else bar.under
        passed = value == 0 if bar.under is None else value < limit
        error = f"{what}: {WORDS[bar.statistic]} {value:.1%} of {count}"
        under = "agree" if bar.under is None else f"under {limit:.0%}"
        yield error, under, "pass" if passed else "**miss**"


def _value(case: Case, bar: BarSpec, rows: Rows) -> tuple[float, int]:
    """A statistic over the committed groups that a bar is about, and over how many rows."""
    found = [
        row
        for (name, metric, group), row in rows.items()
        if name == case.name and metric in bar.metrics and bar.group in (None, group)
    ]
    at = COLUMNS.index(_COLUMN[bar.statistic]) - 3
    values, counts = [float(row[at]) for row in found], [int(row[0]) for row in found]
    if bar.statistic == "median_abs" and len(found) != 1:
        raise ValueError(f"{case.name}: no median over {len(found)} groups can be told")
    if bar.statistic == "mean_abs":
        total = sum(value * count for value, count in zip(values, counts, strict=True))
        return total / sum(counts), sum(counts)
    return max(values), sum(counts)


def _shown(case: Case, rows: Rows) -> Iterator[tuple[str, str, str]]:
    """What no bar is about, metrics of single rows in one line."""
    single: dict[str, list[float]] = {}
    for (name, metric, group), row in rows.items():
        if name != case.name or _has_bar(case, metric, group):
            continue
        if int(row[0]) == 1:
            single.setdefault(metric.split(",")[0].split()[0], []).append(float(row[2]))
            continue
        what = f"{metric}, {group}" if group else metric
        yield f"{what}: median {float(row[4]):.1%}, worst {float(row[5]):.1%} of {row[0]}", "", ""
    for metric, errors in single.items():
        low, high = min(errors), max(errors)
        said = f"{low:+.1%}" if len(errors) == 1 else f"{low:+.1%} to {high:+.1%}"
        yield f"{metric}: {said}", "", ""


def _has_bar(case: Case, metric: str, group: str) -> bool:
    return any(metric in bar.metrics and bar.group in (None, group) for bar in case.bars)


def put(text: str, table: str) -> str:
    """A document with the table between its marks.

    Raises:
        ValueError: It has no such marks.
    """
    between = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.S)
    if not between.search(text):
        raise ValueError(f"no {BEGIN} ... {END}")
    return between.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text)


if __name__ == "__main__":
    readme = Path(sys.argv[1])
    readme.write_text(put(readme.read_text(encoding="utf-8"), markdown()), encoding="utf-8")
