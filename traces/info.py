"""What a trace is like: how many requests, how fast, how long, what was odd."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import TraceError
from sim.request import NEVER, Ints, Trace
from traces import load, recognise
from traces.reuse import PrefixReuse, prefix_reuse
from traces.sessions import sessions_of
from traces.source import read_source

_BARS = "▁▂▃▄▅▆▇█"
_QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Lengths:
    """Tokens: mean, quantiles that occurred (rule 59), largest."""

    mean: float
    p50: int
    p90: int
    p99: int
    largest: int


@dataclass(frozen=True)
class TraceInfo:
    """A trace in figures; times in seconds, None where the trace has no arrivals.

    Attributes:
        source: Where it was read.
        format: Name in `traces.LOADERS`, or None for a trace that was not read from a file.
        requests: Rows.
        empty: Rows with no prompt or no output, which are rejected on arrival.
        first_s: First arrival on the trace's clock.
        duration_s: First to last arrival.
        rate_per_s: Gaps a second over `duration_s`.
        gap_cv: Coefficient of variation of the gaps between arrivals: 1 is Poisson.
        busiest_second: Most requests that arrived in one second of the clock.
        silent_share: Share of the clock's seconds in which none arrived.
        prompt: Lengths of prompts.
        output: Lengths of outputs.
        rank_correlation: Spearman's, of prompt and output length; None if one is constant.
        sessions: Number of sessions, 0 if the trace has none.
        classes: Requests of each class, empty if the trace has none.
        block_tokens: Tokens of one block id, None if the trace has none.
        reuse: Prefix reuse by blocks of the trace, None if it has none.
        rates_per_s: (k,) requests a second in equal parts of the duration.
        notes: What was odd and what was done about it.
    """

    source: str
    format: str | None
    requests: int
    empty: int
    first_s: float | None
    duration_s: float | None
    rate_per_s: float | None
    gap_cv: float | None
    busiest_second: int | None
    silent_share: float | None
    prompt: Lengths
    output: Lengths
    rank_correlation: float | None
    sessions: int
    classes: dict[str, int]
    block_tokens: int | None
    reuse: PrefixReuse | None
    rates_per_s: npt.NDArray[np.float64]
    notes: tuple[str, ...]


def describe(
    trace: Trace | str | Path,
    format: str | None = None,
    columns: dict[str, str] | None = None,
    *,
    parts: int = 60,
) -> TraceInfo:
    """`trace`, or the file of that name, in figures.

    Args:
        trace: A trace, or the path of a file for `traces.load`.
        format: As for `traces.load`.
        columns: As for `traces.load`.
        parts: Number of equal parts of the duration in `rates_per_s`.

    Raises:
        TraceError: The file cannot be read.
    """
    if not isinstance(trace, Trace):
        name = format or recognise(read_source(trace), columns)
        return _described(load(trace, name, columns), name, parts)
    return _described(trace, None, parts)


def render(info: TraceInfo) -> str:
    """`info` as lines of text for a terminal, the notes last."""
    lines = [
        f"{info.source}" + (f" ({info.format})" if info.format else ""),
        f"requests    {info.requests:,}" + (f", {info.empty:,} empty" if info.empty else ""),
        *_render_times(info),
        f"{'tokens':<12}{'mean':>10}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
        _render_lengths("prompt", info.prompt),
        _render_lengths("output", info.output),
    ]
    if info.rank_correlation is not None:
        lines.append(f"rank correlation of prompt and output length {info.rank_correlation:+.2f}")
    if info.sessions:
        lines.append(f"sessions    {info.sessions:,}")
    if info.classes:
        lines.append("classes     " + ", ".join(f"{k}: {v:,}" for k, v in info.classes.items()))
    if info.block_tokens is not None:
        lines.append(f"prompt block ids, {info.block_tokens} tokens each")
    if (share := _cached_share(info)) is not None:
        lines.append(
            f"an unlimited prefix cache finds {share:.1%} of prompt tokens, requests one after the"
            " other (`phasewise trace prefix` for smaller ones)"
        )
    lines += [f"note: {note}" for note in info.notes]
    return "\n".join(lines)


def as_json(info: TraceInfo) -> dict[str, Any]:
    """`info` as plain values; ``cached_share`` is what an unlimited prefix cache finds."""
    told = {name: value for name, value in vars(info).items() if name != "reuse"}
    told |= {"prompt": vars(info.prompt), "output": vars(info.output), "notes": list(info.notes)}
    told["rates_per_s"] = info.rates_per_s.tolist()
    told["cached_share"] = _cached_share(info)
    return told


def _cached_share(info: TraceInfo) -> float | None:
    if info.reuse is None or not info.reuse.prompt_tokens:
        return None
    return info.reuse.hit_blocks() * info.reuse.block_tokens / info.reuse.prompt_tokens


def spark_line(values: npt.ArrayLike) -> str:
    """One bar a value, from 0 to the largest; a blank where a value is 0."""
    heights = np.asarray(values, dtype=float)
    top = heights.max(initial=0.0)
    if top <= 0:
        return " " * len(heights)
    levels = np.ceil(heights / top * len(_BARS)).astype(int)
    return "".join(_BARS[level - 1] if level else " " for level in levels.tolist())


def _described(trace: Trace, name: str | None, parts: int) -> TraceInfo:
    timed = len(trace) > 0 and int(trace.arrival_ns[0]) != NEVER
    times = trace.arrival_ns if timed else trace.arrival_ns[:0]
    duration_s = float(times[-1] - times[0]) / 1e9 if timed else None
    gaps = np.diff(times) / 1e9
    seconds = np.bincount((times - times[0]) // 10**9) if timed else np.zeros(0, dtype=np.int64)
    classes: dict[str, int] = {}
    for value in [] if trace.request_class is None else trace.request_class.tolist():
        classes[value or ""] = classes.get(value or "", 0) + 1
    return TraceInfo(
        source=trace.source,
        format=name,
        requests=len(trace),
        empty=int(((trace.prompt_tokens == 0) | (trace.output_tokens == 0)).sum()),
        first_s=float(times[0]) / 1e9 if timed else None,
        duration_s=duration_s,
        rate_per_s=len(gaps) / duration_s if duration_s else None,
        gap_cv=float(gaps.std() / gaps.mean()) if duration_s else None,
        busiest_second=int(seconds.max()) if timed else None,
        silent_share=float((seconds == 0).mean()) if timed else None,
        prompt=_lengths(trace.prompt_tokens),
        output=_lengths(trace.output_tokens),
        rank_correlation=rank_correlation(trace.prompt_tokens, trace.output_tokens),
        sessions=0 if trace.session is None else len({s for s in trace.session if s is not None}),
        classes=classes,
        block_tokens=trace.block_ids_tokens,
        reuse=None if trace.block_ids is None else prefix_reuse(trace),
        rates_per_s=_rates(times, parts, duration_s),
        notes=(*trace.notes, *_refused(trace)),
    )


def _refused(trace: Trace) -> list[str]:
    """What a run in sessions would refuse, if anything."""
    in_sessions = trace.session is not None and any(name is not None for name in trace.session)
    if not in_sessions and trace.after is None:
        return []
    try:
        sessions_of(trace)
    except TraceError as error:
        return [f"A run with workload.sessions refuses this trace: {error}."]
    return []


def rank_correlation(first: Ints, second: Ints) -> float | None:
    """Spearman's rank correlation, ties sharing their mean rank; None if one is constant."""
    if len(first) < 2:
        return None
    ranks = [_ranks(column) for column in (first, second)]
    spread = [float(rank.std()) for rank in ranks]
    if not min(spread):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(column: Ints) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(column, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _lengths(column: Ints) -> Lengths:
    if not len(column):
        return Lengths(0.0, 0, 0, 0, 0)
    p50, p90, p99 = np.quantile(column, _QUANTILES, method="inverted_cdf").tolist()
    return Lengths(float(column.mean()), int(p50), int(p90), int(p99), int(column.max()))


def _rates(times: Ints, parts: int, duration_s: float | None) -> npt.NDArray[np.float64]:
    if not duration_s:
        return np.zeros(0)
    counts, _ = np.histogram(times, bins=parts)
    return counts / (duration_s / parts)


def _render_times(info: TraceInfo) -> list[str]:
    if info.duration_s is None:
        return ["arrivals    none: to be generated"]
    if info.rate_per_s is None or info.gap_cv is None:
        return ["arrivals    all at one time"]
    top = float(info.rates_per_s.max())
    return [
        f"duration    {info.duration_s:,.1f} s, first arrival at {info.first_s:,.3f} s",
        f"rate        {info.rate_per_s:,.4g} requests/s, CV of gaps {info.gap_cv:.2f},"
        f" at most {info.busiest_second:,} in one second,"
        f" none in {info.silent_share:.0%} of seconds",
        f"over time   {spark_line(info.rates_per_s)}  (top {top:,.4g}/s)",
    ]


def _render_lengths(name: str, lengths: Lengths) -> str:
    figures = (lengths.p50, lengths.p90, lengths.p99, lengths.largest)
    return f"{name:<12}{lengths.mean:>10,.1f}" + "".join(f"{value:>10,}" for value in figures)
