"""Figures of prefix caches: hits and evictions over time, and what the memory holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments import panels
from experiments.cdf_figure import XScale
from experiments.drawing import Drawing
from experiments.layout import Legend, marker, plain, plain_ticks, stroke, title
from experiments.looks import Look, Style, looks
from experiments.report import RunBundle, measured, unique_labels
from sim.cache_metrics import blocks_over_time, has_cache, hits_over_time
from sim.metrics import NS_PER_S, Floats, Ints

if TYPE_CHECKING:
    import plotly.graph_objects as go

_MOST_PARTS = 60
_REQUESTS_A_PART = 20
"""Parts of the time over which rates are taken: so many, of so many requests on average."""
_HELD, _CACHED, _FREE = "#0072b2", "#8cc8ee", "#e4e4e4"
_WORDS = ("in use", "cached, unused", "free")
Curve = tuple[Floats, Floats]


def cache_drawings(bundles: Sequence[RunBundle], request_class: str | None = None) -> list[Drawing]:
    """Hits over time and the use of the memory; none if no variant has a prefix cache.

    Args:
        bundles: All variants.
        request_class: Hits of one class only; the memory is used by all.
    """
    if not any(has_cache(bundle.replicas) for bundle in bundles):
        return []
    drawings = [_hits(bundles, request_class)]
    drawings += _reuse(bundles)
    with_series = [each for each in bundles if len(each.series.get("cached_blocks", ()))]
    if with_series:
        drawings.append(_occupancy(with_series))
    return drawings


# --- hits and evictions over time


def _hits(bundles: Sequence[RunBundle], request_class: str | None) -> Drawing:
    cached = [position for position, each in enumerate(bundles) if has_cache(each.replicas)]
    labels, chosen = unique_labels(bundles), looks([bundle.policy for bundle in bundles])
    names = [labels[position] for position in cached]
    styles = [chosen[position] for position in cached]
    hits = [_hit_curve(bundles[position], request_class) for position in cached]
    lost = [_eviction_curve(bundles[position]) for position in cached]
    evicting = any(y.any() for _, y in lost)
    curves = [hits, lost] if evicting else [hits]
    rows = [
        (name, what, float(x), float(y))
        for what, of in zip(("prefix_hit_rate", "evicted_tokens_per_s"), curves, strict=False)
        for name, (xs, ys) in zip(names, of, strict=True)
        for x, y in zip(xs, ys, strict=True)
        if not np.isnan(y)
    ]
    about = (
        "Of the requests first scheduled in an interval, prompt tokens found cached / prompt "
        "tokens. " + ("Below, the tokens whose KV lost its place to others." if evicting else "")
    )

    def make(style: Style, _: XScale) -> go.Figure:
        return _over_time(names, styles, curves, style)

    header = ("variant", "quantity", "time_s", "value")
    return Drawing("cache_hits", "Prefix hits over time", about.strip(), header, rows, make)


def _hit_curve(bundle: RunBundle, request_class: str | None) -> Curve:
    """Middle of each interval, s, and its hit rate."""
    requests = measured(bundle, request_class)
    when = requests["first_scheduled_ns"]
    when = when[when >= 0]
    if not len(when):
        return np.zeros(0), np.zeros(0)
    parts = max(1, min(_MOST_PARTS, len(when) // _REQUESTS_A_PART))
    edges = np.linspace(int(when.min()), int(when.max()), parts + 1).astype(np.int64)
    rate = hits_over_time(requests, edges[1:])
    return (edges[:-1] + edges[1:]) / 2 / NS_PER_S, rate


def _eviction_curve(bundle: RunBundle) -> Curve:
    """Middle of each interval, s, and tokens evicted per second."""
    if not len(bundle.series.get("lost_blocks", ())):
        return np.zeros(0), np.zeros(0)
    time_ns, lost = blocks_over_time(bundle.series, "lost_blocks")
    every = max(1, len(time_ns) // _MOST_PARTS)
    time_ns, lost = time_ns[::every], lost[::every]
    if len(time_ns) < 2:
        return np.zeros(0), np.zeros(0)
    tokens = np.diff(lost) * max(replica.block_tokens for replica in bundle.replicas)
    return (time_ns[:-1] + time_ns[1:]) / 2 / NS_PER_S, tokens / (np.diff(time_ns) / NS_PER_S)


def _over_time(
    names: Sequence[str], chosen: Sequence[Look], curves: Sequence[Sequence[Curve]], style: Style
) -> go.Figure:
    import plotly.graph_objects as go

    fig, height = panels.grid([""] * len(curves), style, 1, panel_px=0.36 * style.width_px)
    legend = Legend.fit(names, style)
    for row, of in enumerate(curves, start=1):
        for name, text, look, (x, y) in zip(names, legend.texts, chosen, of, strict=True):
            fig.add_trace(
                go.Scatter(
                    x=x.tolist(),
                    y=[None if np.isnan(value) else float(value) for value in y],
                    mode="lines",
                    line=stroke(look, style),
                    name=text,
                    showlegend=row == 1,
                    legendgroup=name,
                    hovertemplate=f"{plain(name)}<br>%{{x:.4g}} s: %{{y:.3~g}}<extra></extra>",
                ),
                row,
                1,
            )
    panels.finish(fig, style, legend, height)
    fig.update_xaxes(rangemode="tozero", showgrid=True, matches="x")
    fig.update_xaxes(title=title("Time (s)", style), row=len(curves), col=1)
    hit_axis = {"range": [0, 1.015], "tickformat": ".0%", "title": title("Prefix hit rate", style)}
    fig.update_yaxes(**hit_axis, showgrid=True, row=1, col=1)
    if len(curves) > 1:
        lost = title("Evicted (tokens/s)", style)
        format_ = plain_ticks(max((float(np.nanmax(y)) for _, y in curves[1] if len(y)), default=0))
        fig.update_yaxes(
            rangemode="tozero", tickformat=format_, title=lost, showgrid=True, row=2, col=1
        )
    return fig


# --- what an LRU cache would find


def _reuse(bundles: Sequence[RunBundle]) -> list[Drawing]:
    """Hits by the size of the cache: those of LRU over the trace, and of each variant."""
    labels = unique_labels(bundles)
    chosen = looks([bundle.policy for bundle in bundles])
    told = [
        (at, each.summary["reuse"]) for at, each in enumerate(bundles) if "reuse" in each.summary
    ]
    if not told:
        return []
    largest = max(_memory_tokens(bundles[at]) for at, _ in told)
    curves: dict[str, tuple[list[float], list[float]]] = {}
    for at, reuse in told:
        curve = [float(x) for x in reuse["capacity_tokens"]], list(reuse["hit_rate"])
        if largest > curve[0][-1]:  # nothing more is found
            curve = [*curve[0], largest], [*curve[1], curve[1][-1]]
        if curve not in curves.values():
            curves[labels[at]] = curve
    if len(curves) == 1:
        curves = {"": next(iter(curves.values()))}
    marks = {
        labels[at]: (
            _memory_tokens(bundles[at]),
            bundles[at].summary["overall"]["prefix_hit_rate_tokens"],
        )
        for at, _ in told
    }
    rows = [
        (f"LRU {name}".strip(), x, y)
        for name, (xs, ys) in curves.items()
        for x, y in zip(xs, ys, strict=True)
    ]
    rows += [(name, x, y) for name, (x, y) in marks.items()]
    about = (
        "Prompt tokens that an LRU cache of some size finds / prompt tokens, requests one after "
        "the other in the order of the trace. A marker is what a variant found, at the size of the "
        "KV memory of one of its replicas."
    )

    def make(style: Style, _: XScale) -> go.Figure:
        return _by_size(curves, marks, [chosen[at] for at, _ in told], style)

    header = ("what", "capacity_tokens", "prefix_hit_rate")
    return [
        Drawing("cache_size", "Prefix hits by the size of the cache", about, header, rows, make)
    ]


def _memory_tokens(bundle: RunBundle) -> float:
    """Of the largest replica with a cache."""
    return float(
        max(r.total_blocks * r.block_tokens for r in bundle.replicas if r.lost_blocks is not None)
    )


def _by_size(
    curves: Mapping[str, tuple[list[float], list[float]]],
    marks: Mapping[str, tuple[float, float | None]],
    chosen: Sequence[Look],
    style: Style,
) -> go.Figure:
    import plotly.graph_objects as go

    fig, height = panels.grid([""], style, 1)
    names = [f"LRU, {name}" if name else "LRU" for name in curves]
    legend = Legend.fit([*names, *marks], style)
    greys = ("#222222", "#777777", "#aaaaaa")
    for position, (text, (x, y)) in enumerate(
        zip(legend.texts[: len(names)], curves.values(), strict=True)
    ):
        grey = Look(greys[position % len(greys)], "solid", "circle")
        line = stroke(grey, style)
        hover = "%{x:.3~s} tokens: %{y:.1%}<extra></extra>"
        fig.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, name=text, hovertemplate=hover))
    for text, (name, (size, rate)), look in zip(
        legend.texts[len(names) :], marks.items(), chosen, strict=True
    ):
        fig.add_trace(
            go.Scatter(
                x=[size],
                y=[rate],
                mode="markers",
                marker=marker(look, style),
                name=text,
                hovertemplate=f"{plain(name)}: %{{y:.1%}}<extra></extra>",
                cliponaxis=False,
            )
        )
    panels.finish(fig, style, legend, height)
    fig.update_xaxes(
        type="log", tickformat="~s", dtick=1, showgrid=True, title=title("Cache (tokens)", style)
    )
    fig.update_yaxes(
        range=[0, 1.015], tickformat=".0%", showgrid=True, title=title("Prefix hit rate", style)
    )
    return fig


# --- what the memory holds


def _occupancy(bundles: Sequence[RunBundle]) -> Drawing:
    shown = bundles[: panels.MOST]
    labels = unique_labels(shown)
    shares = [_shares(bundle) for bundle in shown]
    rows = [
        (label, time_ns / NS_PER_S, *(float(share) for share in of))
        for label, (times, parts) in zip(labels, shares, strict=True)
        for time_ns, *of in zip(times.tolist(), *parts, strict=True)
    ]
    about = (
        "KV blocks of all replicas together: in use by requests; with content that nobody uses and "
        "a later request may find; and free."
    )
    if len(bundles) > len(shown):
        about += f" The first {len(shown)} of {len(bundles)} variants."

    def make(style: Style, _: XScale) -> go.Figure:
        return _areas(labels, shares, style)

    header = ("variant", "time_s", "in_use", "cached", "free")
    return Drawing("kv_occupancy", "What the KV memory holds", about, header, rows, make)


def _shares(bundle: RunBundle) -> tuple[Ints, list[Floats]]:
    """Times, ns, and the shares of all blocks in use, cached and free."""
    total = sum(replica.total_blocks for replica in bundle.replicas)
    time_ns, used = blocks_over_time(bundle.series, "used_blocks")
    _, cached = blocks_over_time(bundle.series, "cached_blocks")
    return time_ns, [used / total, cached / total, (total - used - cached) / total]


def _areas(
    labels: Sequence[str], shares: Sequence[tuple[Ints, list[Floats]]], style: Style
) -> go.Figure:
    import plotly.graph_objects as go

    columns = panels.columns_for(len(labels))
    fig, height = panels.grid(labels, style, columns)
    for position, (time_ns, parts) in enumerate(shares):
        for word, color, share in zip(_WORDS, (_HELD, _CACHED, _FREE), parts, strict=True):
            fig.add_trace(
                go.Scatter(
                    x=(time_ns / NS_PER_S).tolist(),
                    y=share.tolist(),
                    mode="lines",
                    line={"width": 0, "shape": "hv"},
                    stackgroup="blocks",
                    fillcolor=color,
                    showlegend=False,
                    hovertemplate=f"{word}: %{{y:.1%}} at %{{x:.4g}} s<extra></extra>",
                ),
                *panels.cell(position, columns),
            )
    legend = panels.add_swatches(fig, _WORDS, (_HELD, _CACHED, _FREE), style)
    panels.finish(fig, style, legend, height)
    fig.update_xaxes(showgrid=False, matches="x", range=[0, _last_s(shares)])
    fig.update_yaxes(range=[0, 1], tickformat=".0%", tickvals=[0, 0.5, 1], showgrid=False)
    fig.update_yaxes(title=title("KV blocks", style), col=1)
    last = {panels.cell(at, columns) for at in range(len(labels))[-columns:]}
    for row, column in last:
        fig.update_xaxes(title=title("Time (s)", style), row=row, col=column)
    return fig


def _last_s(shares: Sequence[tuple[Ints, list[Floats]]]) -> float:
    return max(int(time_ns[-1]) for time_ns, _ in shares) / NS_PER_S
