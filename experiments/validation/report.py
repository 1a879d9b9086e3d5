"""What is printed and kept of a validation: summaries, bars, every row, and the figures."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.validation.outcome import Comparison, Outcome, statistic


@dataclass(frozen=True)
class Summary:
    """One metric of a case, of one row or over several.

    Attributes:
        case: Name of the case.
        metric: Of the comparisons, with the row where it is printed by itself.
        group: Rows that are judged together; empty for all.
        rows: How many.
        measured: Median of the measured values.
        simulated: Median of the simulated values.
        mean: Mean signed error.
        mean_abs: Mean absolute error.
        median_abs: Median absolute error.
        tail_abs: Largest absolute error.
    """

    case: str
    metric: str
    group: str
    rows: int
    measured: float
    simulated: float
    mean: float
    mean_abs: float
    median_abs: float
    tail_abs: float


def summaries(outcome: Outcome) -> list[Summary]:
    """Comparisons summed up by metric and group, in order; those that are listed one by one."""
    grouped: dict[tuple[str, str], list[Comparison]] = {}
    for each in outcome.comparisons:
        metric = f"{each.metric}, {each.row}" if each.listed and each.row else each.metric
        grouped.setdefault((metric, each.group), []).append(each)
    return [_summed(outcome.case.name, *key, found) for key, found in grouped.items()]


def _summed(case: str, metric: str, group: str, found: Sequence[Comparison]) -> Summary:
    errors = [each.error for each in found]
    return Summary(
        case,
        metric,
        group,
        len(found),
        float(np.median([each.measured for each in found])),
        float(np.median([each.simulated for each in found])),
        float(np.mean(errors)),
        *(statistic(errors, name) for name in ("mean_abs", "median_abs", "max_abs")),
    )


_HEAD = ("metric", "rows", "measured", "simulated", "error", "mean |e|", "median |e|", "worst |e|")


def render(outcome: Outcome, *, with_rows: bool = False, with_notes: bool = False) -> str:
    """One case as text: its table, its bars, what was assumed, fitted and left out.

    Args:
        outcome: Of the case.
        with_rows: Print every row too.
        with_notes: Print where step times and KV blocks come from, for each server.
    """
    case = outcome.case
    lines = [f"({case.number}) {case.title}", f"  source: {case.source}"]
    for name, said in (("given", case.given), ("assumed", case.assumed), ("fitted", case.fitted)):
        lines += [f"  {name}: {key}: {text}" for key, text in said.items()]
    lines += [f"  left out: {each.what} ({each.rows} rows): {each.why}" for each in case.left_out]
    lines += ["", *_table([_HEAD, *map(_cells, summaries(outcome))])]
    if with_rows:
        lines += ["", *_table([("metric", "row", "group", "measured", "simulated", "error"),
                               *map(_row_cells, outcome.comparisons)], left=3)]  # fmt: skip
    lines += ["", *(verdict(outcome))]
    if case.explained:
        lines.append(f"  errors: {case.explained}")
    if with_notes:
        lines += ["", *(f"  {note}" for note in outcome.notes)]
    return "\n".join(lines)


def verdict(outcome: Outcome) -> list[str]:
    """Each bar with pass or miss."""
    if not outcome.bars:
        return ["  shown without a bar"]
    return [
        f"  {'pass' if bar.passed else 'MISS'}  {bar.text}: {_percent(bar.value)}"
        for bar in outcome.bars
    ]


def _cells(each: Summary) -> tuple[str, ...]:
    metric = f"{each.metric} [{each.group}]" if each.group else each.metric
    values = (_number(each.measured), _number(each.simulated), _signed(each.mean))
    if each.rows == 1:
        return (metric, "1", *values, "", "", "")
    errors = (each.mean_abs, each.median_abs, each.tail_abs)
    return (metric, str(each.rows), *values, *map(_percent, errors))


def _row_cells(each: Comparison) -> tuple[str, ...]:
    values = (_number(each.measured), _number(each.simulated), _signed(each.error))
    return (each.metric, each.row, each.group, *values)


def _table(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def _signed(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.1%}"


def write_text(outcomes: Iterable[Outcome], path: Path) -> Path:
    """All cases with every row and every note."""
    texts = [render(outcome, with_rows=True, with_notes=True) for outcome in outcomes]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def write_rows(outcomes: Iterable[Outcome], path: Path) -> Path:
    """Every comparison as CSV, measured values included: for the folder of the results only."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["case", "metric", "row", "group", "measured", "simulated", "error"])
        for outcome in outcomes:
            for each in outcome.comparisons:
                values = (each.measured, each.simulated, each.error)
                writer.writerow(
                    [outcome.case.name, each.metric, each.row, each.group,
                     *(f"{value:.6g}" for value in values)]
                )  # fmt: skip
    return path
