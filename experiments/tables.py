"""The comparison of variants as one table: for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from experiments.notes import few
from experiments.report import RunHead, metrics_of, unique_labels
from sim.errors import ConfigError, nearest
from sim.metric_definitions import METRICS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Value = str | float | int | None


@dataclass(frozen=True)
class Column:
    """One column of the comparison.

    Attributes:
        key: Name in CSV, with the unit of the raw value.
        group: First line of the heading, the metric.
        part: Second line of the heading: which number of it, and the unit shown.
        better: Which way is good; its best value is marked.
        scale: Shown value / raw value.
        words: Text, aligned to the left.
        zero_is_best: A value of 0 is a merit, not a sign that nothing was measured.
    """

    key: str
    group: str
    part: str = ""
    better: Literal["lower", "higher", "neither"] = "neither"
    scale: float = 1.0
    words: bool = False
    zero_is_best: bool = True

    @property
    def heading(self) -> str:
        """The heading in one line."""
        return f"{self.group} {self.part}".strip()


@dataclass(frozen=True)
class Comparison:
    """Variants, one a row, with what stands below them.

    Attributes:
        columns: In order.
        rows: Raw values in the units of the keys, None where undefined.
        notes: Sentences that belong under the table.
        unranked: Rows that are never best: those that served less than others.
        leading: Columns that say what a row is of: they lead every part of a table that is cut.
        workloads: What each row had to do: a value is the best of rows that had the same; none
            where all had.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...]
    unranked: frozenset[int] = frozenset()
    leading: int = 1
    workloads: tuple[str, ...] = ()

    def best(self) -> list[frozenset[int]]:
        """For each column the best of the rows of each workload; none where these are alike."""
        groups: dict[str, list[int]] = {}
        for r, workload in enumerate(self.workloads or [""] * len(self.rows)):
            groups.setdefault(workload, []).append(r)
        ranked = [[r for r in group if r not in self.unranked] for group in groups.values()]
        return [
            frozenset().union(
                *(_best_rows(column, {r: self.rows[r][i] for r in group}) for group in ranked)
            )
            for i, column in enumerate(self.columns)
        ]

    def shown(self) -> list[list[str]]:
        """All cells as text, numbers to three digits."""
        return [
            [_shown(column, value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]


def _best_rows(column: Column, values: Mapping[int, Value]) -> frozenset[int]:
    """Rows that show the best value; values that look alike are alike."""
    if column.better == "neither":
        return frozenset()
    numbers = {
        i: value
        for i, value in values.items()
        if isinstance(value, int | float) and (value or column.zero_is_best)
    }
    shown = {i: _shown(column, value) for i, value in numbers.items()}
    if len(set(shown.values())) < 2:
        return frozenset()
    best = (min if column.better == "lower" else max)(numbers.values())
    return frozenset(i for i, text in shown.items() if text == _shown(column, best))


def _shown(column: Column, value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return three_digits(value * column.scale) if isinstance(value, float) else f"{value:,}"


def three_digits(value: float) -> str:
    """A number to three significant digits, without an exponent from 0.001 to a million."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "-"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


# What is compared

_LATENCIES = (
    ("ttft", "mean", 1.0),
    ("ttft", "p50", 1.0),
    ("ttft", "p99", 1.0),
    ("tpot", "p50", 1e3),
    ("tpot", "p99", 1e3),
    ("itl", "p99", 1e3),
    ("e2e", "p50", 1.0),
    ("e2e", "p99", 1.0),
)
_RARE_STATES = ("cancelled", "failed")
_BETWEEN_TOKENS = ("tpot", "itl")
"""Metrics that are 0, and no merit, where a request's tokens come all at once."""


def compare(bundles: Sequence[RunHead], request_class: str | None = None) -> Comparison:
    """Lay runs side by side.

    Args:
        bundles: At least one.
        request_class: Only the requests of one class; None for all.

    Raises:
        ConfigError: No bundle, or a bundle without that class.
    """
    if not bundles:
        raise ConfigError("nothing to compare: no results were given")
    states = ["finished", "rejected", "unfinished"]
    states += [s for s in _RARE_STATES if any(b.summary["requests"][s] for b in bundles)]
    some = _said_of_some(bundles, request_class)
    columns = (*_leading(states), *_measures(), *some)
    rows = tuple(
        (*_row(bundle, label, states, request_class), *_if_there(bundle, some, request_class))
        for bundle, label in zip(bundles, unique_labels(bundles), strict=True)
    )
    shares = [_unserved(bundle, request_class) for bundle in bundles]
    workloads = tuple(bundle.workload for bundle in bundles)
    least = {
        each: min(s for s, w in zip(shares, workloads, strict=True) if w == each)
        for each in workloads
    }
    unranked = {row: share for row, share in enumerate(shares) if share > least[workloads[row]]}
    notes = _notes(bundles, request_class)
    if unranked:
        said = ", ".join(f"{rows[row][0]} ({_share(share)})" for row, share in unranked.items())
        why = f"since more of their requests than of others were not served: {said}."
        notes = (notes[0], f"Not marked as best, {why}", *notes[1:])
    return Comparison(columns, rows, notes, frozenset(unranked), workloads=workloads)


def _unserved(bundle: RunHead, request_class: str | None) -> float:
    """Share of the requests that ended otherwise than served, or than given up by the client."""
    counts = _counts(bundle, request_class)
    lost = sum(counts[state] for state in ("rejected", "unfinished", "failed"))
    return float(lost / max(1, counts["arrived"]))


def _share(share: float) -> str:
    return f"{max(share, 0.001):.1%}"


def _counts(bundle: RunHead, request_class: str | None) -> Mapping[str, int]:
    of = bundle.summary if request_class is None else metrics_of(bundle, request_class)
    counts: Mapping[str, int] = of["requests"]
    return counts


def _leading(states: Sequence[str]) -> list[Column]:
    return [
        Column("variant", "Variant", words=True),
        Column("gpus", "GPUs"),
        Column("verdict", "Verdict", words=True),
        *(Column(f"{state}_requests", state.capitalize()) for state in states),
    ]


def _measures() -> list[Column]:
    columns = []
    for key, part, scale in _LATENCIES:
        name = METRICS[key].name_in_files
        unit = "s" if scale == 1.0 else "ms"
        shown = f"{part.capitalize() if part != 'mean' else part} ({unit})"
        measured = Column(f"{name}_{part}", METRICS[key].title, shown, "lower", scale)
        columns.append(replace(measured, zero_is_best=key not in _BETWEEN_TOKENS))
    return [
        *columns,
        Column(METRICS["throughput_out_per_gpu"].name_in_files, "Output", "tok/s/GPU", "higher"),
        Column("slo_attainment", "SLO met", "(%)", "higher", 100.0),
        Column("preemptions", "Preemptions", "", "lower"),
    ]


_OF_SOME = (
    Column("decode_wait_s_mean", METRICS["decode_wait"].title, "mean (s)", "lower"),
    Column("decode_wait_s_p99", METRICS["decode_wait"].title, "P99 (s)", "lower"),
    Column("swap_outs", "Swapped", "out", "lower"),
    Column("prefix_hit_rate_tokens", "Prefix", "hits (%)", "higher", 100.0),
    Column("tier_hit_rate_tokens", "Of them from", "host, disk (% of all)", "higher", 100.0),
    Column("jain_served_tokens", "Fairness", "of tenants", "higher"),
    Column("imbalance_served_tokens", "Imbalance", "max/mean", "lower"),
    Column("cost_usd", "Cost", "($)", "lower"),
    Column("cost_per_million_output_tokens_usd", "1M output", "($)", "lower"),
    Column("margin_usd", "Margin", "($)", "higher"),
    Column("energy_per_output_token_J", "Energy", "J/out tok", "lower"),
)
"""Columns that stand only where a variant has a value that says something."""
_EVEN = MappingProxyType({"swap_outs": 0, "imbalance_served_tokens": 1.2})
"""Values up to which there is nothing to say."""


def _said_of_some(bundles: Sequence[RunHead], request_class: str | None) -> list[Column]:
    blocks = [metrics_of(bundle, request_class) for bundle in bundles]
    return [
        column
        for column in _OF_SOME
        if any(_says(column, _number(column, block)) for block in blocks)
    ]


def _number(column: Column, block: Mapping[str, Any]) -> Value:
    """The value of a column that stands for some; of a distribution the key ends in what of it."""
    name, _, statistic = column.key.rpartition("_")
    spread = block.get(name)
    found: Value = spread.get(statistic) if isinstance(spread, Mapping) else block.get(column.key)
    return found


def _says(column: Column, value: Value) -> bool:
    return isinstance(value, int | float) and value > _EVEN.get(column.key, -math.inf)


def _if_there(
    bundle: RunHead, columns: Sequence[Column], request_class: str | None
) -> tuple[Value, ...]:
    block = metrics_of(bundle, request_class)
    return tuple(_number(column, block) for column in columns)


def _row(
    bundle: RunHead, label: str, states: Sequence[str], request_class: str | None
) -> tuple[Value, ...]:
    summary, block = bundle.summary, metrics_of(bundle, request_class)
    counts = _counts(bundle, request_class)
    return (
        label,
        summary["gpus"],
        summary["verdict"]["name"],
        *(counts[state] for state in states),
        *(block[METRICS[key].name_in_files][part] for key, part, _ in _LATENCIES),
        block[METRICS["throughput_out_per_gpu"].name_in_files],
        block["slo_attainment"],
        block["preemptions"],
    )


def _notes(bundles: Sequence[RunHead], request_class: str | None) -> tuple[str, ...]:
    different = len({bundle.workload for bundle in bundles})
    alike = "variants of the same requests, window and SLO"
    among = f" among {alike} (there are {different})" if different > 1 else ""
    notes = [
        f"Best values are marked{among} (*, or bold); latencies of overloaded runs depend on "
        "their length."
    ]
    for label, bundle in zip(unique_labels(bundles), bundles, strict=True):
        if ended := _ended(bundle.summary):
            notes.append(f"{label}: {ended}.")
    if windows := _whose([_window(b.summary["window"]) for b in bundles], unique_labels(bundles)):
        notes.append(f"Not measured: requests arriving in the {windows} (counts include them).")
    if targets := _whose([_targets(b.summary["slo"]) for b in bundles], unique_labels(bundles)):
        notes.append(f"SLO: {targets}.")
    if any(_at_once(b, request_class) for b in bundles):
        notes.append(
            "TPOT and ITL of 0: a request's tokens came all at once; such values are not marked."
        )
    if request_class is not None:
        notes.append(f"Only requests of class {' '.join(request_class.split())}.")
    return tuple(notes)


def _whose(texts: Sequence[str], labels: Sequence[str]) -> str:
    """What holds for the runs, once where it is the same for all; else with the labels of each."""
    if len(set(texts)) == 1:
        return texts[0]
    owners: dict[str, list[str]] = {}
    for text, label in zip(texts, labels, strict=True):
        owners.setdefault(text or "none", []).append(label)
    return "; ".join(f"{text} ({few(of)})" for text, of in owners.items())


def _window(window: Mapping[str, Any]) -> str:
    warm_up_s, drain_s = window["warm_up_s"], window["drain_s"]
    return f"first {warm_up_s:g} s and last {drain_s:g} s" if warm_up_s or drain_s else ""


def _at_once(bundle: RunHead, request_class: str | None) -> bool:
    block = metrics_of(bundle, request_class)
    return any(block[METRICS[key].name_in_files]["p99"] == 0 for key in _BETWEEN_TOKENS)


_WHY = MappingProxyType(
    {
        "empty": "no prompt or no output",
        "predicted_ttft": "admission: the TTFT predicted was over its limit",
        "queue_full": "admission: the queue was full",
        "rate_limited": "admission: the token bucket of its tenant did not hold enough",
        "over_model_len": "prompt + max_tokens over max_model_len",
        "over_pool": "prompt + max_tokens over the KV pool",
        "over_token_budget": "prompt + max_tokens over the tokens of one step, where prompts are "
        "computed whole",
    }
)
"""What the reasons of our own policies mean."""


def _ended(summary: Mapping[str, Any]) -> str:
    """Why requests were not served, and how many."""
    counts = summary["requests"]
    only_rejected = not any(counts[state] for state in _RARE_STATES)
    parts = []
    for reason, count in summary["reasons"].items():
        how = "rejected" if only_rejected or reason in _WHY else "not served"
        why = f" ({_WHY[reason]}{_size(reason, summary)})" if reason in _WHY else ""
        parts.append(f"{count:,} {how}: {reason}{why}")
    if counts["cancelled"]:
        parts.append(
            f"{counts['cancelled']:,} cancelled by their clients: they miss their targets, and "
            "have a TTFT if a token came, but no TPOT or E2E"
        )
    return "; ".join(parts)


def _size(reason: str, summary: Mapping[str, Any]) -> str:
    """Of the smallest KV pool, where that is the reason; bundles of old do not say it."""
    tokens = [
        replica["total_blocks"] * replica["block_tokens"]
        for replica in summary["replicas"]
        if "block_tokens" in replica
    ]
    return f" of {min(tokens):,} tokens" if reason == "over_pool" and tokens else ""


def _targets(slo: Mapping[str, Any]) -> str:
    own = [f"{name.removesuffix('_s')} {t:g} s" for name, t in slo.items() if name != "classes"]
    classes = [f"{name} ({_targets(each)})" for name, each in slo.get("classes", {}).items()]
    return ", ".join(own + classes)


# How it is written


def show(comparison: Comparison, console: Console) -> None:
    """Print the comparison, as wide as the terminal allows, and its notes."""
    for table in to_rich(comparison, console.width):
        console.print(table)
    for note in comparison.notes:
        console.print(note, markup=False, emoji=False, highlight=False)


def to_rich(comparison: Comparison, width: int) -> list[Table]:
    """Tables for a terminal: one, or several below each other where `width` is too narrow."""
    cells, best = comparison.shown(), comparison.best()
    widths = [
        3 + bool(best[i]) + max(len(c.group), len(c.part), *(len(row[i]) for row in cells))
        for i, c in enumerate(comparison.columns)
    ]
    # Long labels are folded, so that numbers stand beside each other and not labels alone; other
    # words only between words, if that will do.
    widths[0] = min(widths[0], max(16, width // 4))
    for i, column in enumerate(comparison.columns):
        if i and column.words:
            widths[i] = min(widths[i], max(width // 3, 3 + _longest_word(column, cells, i)))
    # What leads every part leaves room for at least one column beside it.
    spare = width - max((widths[i] for i in range(comparison.leading, len(widths))), default=0)
    for i in reversed(range(comparison.leading)):
        over = sum(widths[: comparison.leading]) - spare
        if over > 0 and comparison.columns[i].words:
            widths[i] = max(min(widths[i], _LEAST_WIDTH), widths[i] - over)
    chunks = _chunks(widths, width, comparison.leading)
    return [_rich_table(comparison, cells, best, chunk, widths) for chunk in chunks]


_LEAST_WIDTH = 12
"""Characters of a column of words, with the space around it, below which it is not folded."""


def _longest_word(column: Column, cells: Sequence[Sequence[str]], i: int) -> int:
    texts = [column.group, column.part, *(row[i] for row in cells)]
    return max((len(word) for text in texts for word in text.split()), default=0)


def _chunks(widths: Sequence[int], width: int, leading: int) -> list[list[int]]:
    """Columns that fit beside each other; the first `leading` lead every part."""
    first = list(range(leading))
    room = sum(widths[:leading])
    chunks, used = [[*first]], room
    for i in range(leading, len(widths)):
        if used + widths[i] > width and len(chunks[-1]) > leading:
            chunks.append([*first])
            used = room
        chunks[-1].append(i)
        used += widths[i]
    return chunks


def _rich_table(
    comparison: Comparison,
    cells: Sequence[Sequence[str]],
    best: Sequence[frozenset[int]],
    chosen: Sequence[int],
    widths: Sequence[int],
) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for i in chosen:
        column = comparison.columns[i]
        side: Literal["left", "right"] = "left" if column.words else "right"
        heading = Text(f"{column.group}\n{column.part}".strip())
        folded = i == 0 or column.words
        most = max(1, widths[i] - 3) if folded else None
        table.add_column(heading, justify=side, no_wrap=not folded, overflow="fold", max_width=most)
    for r, row in enumerate(cells):
        # `Text` and not a string: a label is not markup.
        marked = [(f"{row[i]}*", "bold green") if r in best[i] else (row[i], "") for i in chosen]
        table.add_row(*(Text(text, style) for text, style in marked))
    return table


def to_markdown(comparison: Comparison) -> str:
    """A Markdown table with its notes; best values are bold."""
    best = comparison.best()
    lines = [
        _markdown_row([_escape_markdown(column.heading) for column in comparison.columns]),
        _markdown_row([":--" if column.words else "--:" for column in comparison.columns]),
    ]
    for r, row in enumerate(comparison.shown()):
        cells = [_escape_markdown(cell) for cell in row]
        lines.append(
            _markdown_row([f"**{c}**" if r in best[i] else c for i, c in enumerate(cells)])
        )
    notes = [_escape_markdown(note) for note in comparison.notes]
    return "\n".join([*lines, "", *notes]) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape_markdown(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{c: f"\\{c}" for c in "&%$#_"},
}


def escape_latex(text: str) -> str:
    """Text that LaTeX sets as it stands."""
    return "".join(_LATEX.get(character, character) for character in text)


def to_latex(comparison: Comparison) -> str:
    """A `tabular` for the package booktabs, notes as comments; best values are bold."""
    best = comparison.best()
    align = "".join("l" if column.words else "r" for column in comparison.columns)
    groups = " & ".join(escape_latex(column.group) for column in comparison.columns)
    parts = " & ".join(escape_latex(column.part) for column in comparison.columns)
    lines = [f"% {note}" for note in comparison.notes]
    lines += [rf"\begin{{tabular}}{{{align}}}", r"\toprule", rf"{groups} \\", rf"{parts} \\"]
    lines.append(r"\midrule")
    for r, row in enumerate(comparison.shown()):
        cells = [escape_latex(cell) for cell in row]
        bold = [rf"\textbf{{{c}}}" if r in best[i] else c for i, c in enumerate(cells)]
        lines.append(rf"{' & '.join(bold)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Raw values in the units of the headings, empty where undefined."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([column.key for column in comparison.columns])
    writer.writerows(["" if value is None else value for value in row] for row in comparison.rows)
    return text.getvalue()


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
"""Name of a text format -> how it is written."""


def table_text(comparison: Comparison, name: str) -> str:
    """The comparison in one of `FORMATS`.

    Raises:
        ConfigError: There is no such format.
    """
    if name not in FORMATS:
        raise ConfigError(f"table: no format {name!r}{nearest(name, FORMATS)}")
    return FORMATS[name](comparison)
