"""Measured against simulated in words and numbers: the table, each request, what differs most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from experiments.validation.outcome import Comparison
from experiments.validation.own_run import Latencies
from sim.metrics import Floats, distribution, gap_distribution

LATENCIES: Mapping[str, tuple[str, float]] = MappingProxyType(
    {"ttft": ("ms", 1e3), "tpot": ("ms", 1e3), "e2e": ("s", 1.0)}
)
"""Latencies of a request, with the unit of the table."""

STATISTICS = ("mean", "p50", "p90", "p99")
_TAIL = 0.1
_SAME = 1e-3
"""Errors below this are not worth a sentence."""


@dataclass(frozen=True)
class EachRequest:
    """How far off single requests are, for one latency.

    Attributes:
        metric: Such as ``tpot``.
        requests: That have it.
        median_abs: Median of the absolute relative errors.
        p90_abs: Their 90th percentile.
        tail: Median signed error of the tenth of the requests that were slowest when measured.
        lower: Share of the requests whose simulated value is below the measured one.
        median_s: Median of simulated - measured, seconds.
    """

    metric: str
    requests: int
    median_abs: float
    p90_abs: float
    tail: float
    lower: float
    median_s: float


def comparisons(measured: Latencies, simulated: Latencies, tokens: int) -> list[Comparison]:
    """The rows of the table.

    Args:
        measured: Of the server.
        simulated: Of the same requests.
        tokens: Output tokens of all.
    """
    rows = [
        Comparison(f"{name}_{unit} {statistic}", real[statistic], ours[statistic])
        for name, unit, real, ours in _distributions(measured, simulated)
        for statistic in STATISTICS
    ]
    if not math.isnan(measured.span_s):
        real_s, ours_s = measured.span_s, simulated.span_s
        rows.append(Comparison("output_tokens_per_s", tokens / real_s, tokens / ours_s))
        rows.append(Comparison("makespan_s", real_s, ours_s))
    return rows


def _distributions(
    measured: Latencies, simulated: Latencies
) -> Iterator[tuple[str, str, dict[str, float], dict[str, float]]]:
    for name, (unit, factor) in LATENCIES.items():
        real, ours = both(measured, simulated, name)
        if len(real):
            yield name, unit, distribution(real * factor), distribution(ours * factor)
        if name == "ttft" and measured.gaps is not None and simulated.gaps is not None:
            gaps = [gap_distribution(each.gaps) for each in (measured, simulated)]  # type: ignore[arg-type]
            ms = [{key: value * 1e3 for key, value in each.items()} for each in gaps]
            yield "itl", "ms", ms[0], ms[1]


def both(measured: Latencies, simulated: Latencies, name: str) -> tuple[Floats, Floats]:
    """One latency of the requests that have it in both, (k,) each, seconds."""
    real, ours = getattr(measured, f"{name}_s"), getattr(simulated, f"{name}_s")
    known = ~(np.isnan(real) | np.isnan(ours))
    return real[known], ours[known]


def each_request(measured: Latencies, simulated: Latencies) -> list[EachRequest]:
    """How far off single requests are, one entry a latency."""
    found = []
    for name in LATENCIES:
        real, ours = both(measured, simulated, name)
        above = real > 0
        real, ours = real[above], ours[above]
        if not len(real):
            continue
        error = ours / real - 1
        slowest = np.argsort(real, kind="stable")[-math.ceil(_TAIL * len(real)) :]
        found.append(
            EachRequest(
                name,
                len(real),
                float(np.median(abs(error))),
                float(np.quantile(abs(error), 0.9)),
                float(np.median(error[slowest])),
                float((ours < real).mean()),
                float(np.median(ours - real)),
            )
        )
    return found


# --- words


def verdict(rows: Sequence[Comparison], each: Sequence[EachRequest]) -> str:
    """What differs most, in one or two sentences."""
    told = [row for row in rows if math.isfinite(row.error)]
    worst = max(told, key=lambda row: abs(row.error), default=None)
    if worst is None or abs(worst.error) < _SAME:
        return f"Nothing in the table differs by {100 * _SAME:g} % or more."
    what, _, unit = heading(worst.metric).removesuffix(")").partition(" (")
    text = (
        f"{what[0].upper()}{what[1:]} differs most: {number(worst.measured)} {unit} measured, "
        f"{number(worst.simulated)} {unit} simulated ({signed(worst.error)})."
    )
    name = worst.metric.partition("_")[0]
    one_sided = [one for one in each if max(one.lower, 1 - one.lower) >= 0.75 and one.median_s]
    one = next((one for one in one_sided if one.metric == name), None)
    return text + (f" {_of_each(one)}" if one else "")


def _of_each(one: EachRequest) -> str:
    lower = one.lower >= 0.5
    share = one.lower if lower else 1 - one.lower
    unit, factor = LATENCIES[one.metric]
    return (
        f"The simulated {one.metric.upper()} is {'below' if lower else 'above'} the measured one "
        f"in {100 * share:.0f} % of the requests, by {number(abs(one.median_s) * factor)} {unit} "
        "in the median."
    )


def heading(metric: str) -> str:
    """``ttft_ms p99`` as people read it: ``TTFT P99 (ms)``."""
    if metric == "output_tokens_per_s":
        return "output throughput (tokens/s)"
    if metric == "makespan_s":
        return "makespan (s)"
    key, _, statistic = metric.partition(" ")
    name, _, unit = key.partition("_")
    word = statistic.upper() if statistic.startswith("p") else statistic
    return f"{name.upper()} {word} ({unit})"


def number(value: float) -> str:
    """Four significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 9)}f}"


def signed(error: float) -> str:
    """A relative error in percent, with its sign."""
    return "-" if math.isnan(error) else f"{100 * error:+.1f} %"


def table(rows: Sequence[Comparison], fitted: Sequence[Comparison] = ()) -> str:
    """The table as text.

    Args:
        rows: Of the config as it is.
        fitted: The same with what was fitted; none for no such columns.
    """
    lines = [["metric", "measured", "simulated", "error", *(["fitted", "error"] if fitted else [])]]
    for place, row in enumerate(rows):
        cells = [heading(row.metric), number(row.measured), number(row.simulated)]
        cells.append(signed(row.error))
        if fitted:
            cells += [number(fitted[place].simulated), signed(fitted[place].error)]
        lines.append(cells)
    return aligned(lines)


def each_table(entries: Sequence[EachRequest], label: str = "each request") -> str:
    """How far off single requests are, as text."""
    heads = [label, "requests", "median |error|", "P90 |error|", "slowest tenth", "simulated lower"]
    lines = [heads]
    for one in entries:
        shares = [f"{100 * share:.1f} %" for share in (one.median_abs, one.p90_abs)]
        cells = [one.metric.upper(), f"{one.requests:,}", *shares, signed(one.tail)]
        lines.append([*cells, f"in {100 * one.lower:.0f} %"])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns, the first to the left and all others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
