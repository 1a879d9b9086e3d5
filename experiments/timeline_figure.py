"""Load and replicas over time of clusters that change, with a mark at each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import panels
from experiments.bundle import pools_of
from experiments.drawing import Drawing
from experiments.layout import Legend, plain, plain_ticks, title
from experiments.looks import Look, Style, looks_over_time
from experiments.report import RunBundle, unique_labels
from sim.cache_metrics import blocks_over_time
from sim.metrics import NS_PER_S, Floats

if TYPE_CHECKING:
    import plotly.graph_objects as go

_QUANTITIES = MappingProxyType(
    {"waiting": "Waiting", "running": "Running", "used_blocks": "KV blocks in use"}
)
"""Columns of the series, and titles of their panels."""
_SYMBOLS = MappingProxyType(
    {
        **dict.fromkeys(("failed", "gone", "called_off"), "x-thin"),
        **dict.fromkeys(("restored", "added", "starting"), "triangle-up-open"),
        **dict.fromkeys(("up", "taken_back", "normal", "mended"), "triangle-up"),
        **dict.fromkeys(("draining", "slowed", "degraded"), "triangle-down"),
    }
)
"""Marks of what happens; a square for the rest."""
_MOST_MARKS = 400
"""Marks of a variant that are drawn; the table beside the figure has all of its points."""
_LANE = 0.09
"""Height of a variant's line of marks, of a panel."""
_LEAST_LANES = 0.5
"""Height of the panel of marks, at least: the name of its axis has to fit."""
Curve = tuple[Floats, Floats]


@dataclass(frozen=True)
class _Run:
    """One variant in the figure.

    Attributes:
        label: Its name.
        look: Its colour and dash.
        curves: Title of a panel to times, s, and values.
        marks: What happened to its cluster, in order.
    """

    label: str
    look: Look
    curves: Mapping[str, Curve]
    marks: Sequence[Mapping[str, Any]]


def timeline_drawings(bundles: Sequence[RunBundle]) -> list[Drawing]:
    """Queue, batch, memory and replicas over time; none if nothing has changed in any variant.

    Args:
        bundles: All variants.
    """
    if not any(changes_of(bundle) for bundle in bundles if _has_series(bundle)):
        return []
    chosen = looks_over_time([bundle.policy for bundle in bundles])
    runs = [
        _Run(label, look, _curves(bundle), changes_of(bundle))
        for label, look, bundle in zip(unique_labels(bundles), chosen, bundles, strict=True)
        if _has_series(bundle)
    ]
    about = (
        "Requests that wait (in queues, or for a replica to come up) and run, KV blocks in use and "
        "replicas that are up. Above them the changes of the cluster, a line for each variant: a "
        "cross where replicas fail or go, an open triangle where they start, a full one where they "
        "are up or as quick as before, one upside down where they drain or slow down. Pointing at "
        "one says what happened."
    )
    header = ("variant", "quantity", "time_s", "value")
    return [
        Drawing(
            "timeline",
            "The cluster over time",
            about,
            header,
            _rows(runs),
            lambda style, _: _draw(runs, style),
        )
    ]


def _has_series(bundle: RunBundle) -> bool:
    return bool(len(bundle.series.get("time_ns", ())))


def changes_of(bundle: RunBundle) -> list[Mapping[str, Any]]:
    """What happened to the cluster in a run, in order."""
    found: list[Mapping[str, Any]] = bundle.summary.get("changes", {}).get("events", [])
    return found


def _rows(runs: Sequence[_Run]) -> list[tuple[str, str, float, float]]:
    rows = [
        (run.label, what, float(x), float(y))
        for run in runs
        for what, (xs, ys) in run.curves.items()
        for x, y in zip(xs, ys, strict=True)
    ]
    return rows + [
        (run.label, f"{mark['replica']} {mark['change']}", mark["at_s"], mark["lost"])
        for run in runs
        for mark in run.marks
    ]


def _curves(bundle: RunBundle) -> dict[str, Curve]:
    """Of each panel its times, s, and values, summed over the replicas."""
    curves = {}
    for name, heading in _QUANTITIES.items():
        if name in bundle.series:
            time_ns, summed = blocks_over_time(bundle.series, name)
            curves[heading] = time_ns / NS_PER_S, summed.astype(float)
    pools = bundle.pools
    if not len(pools.get("time_ns", ())):
        return curves
    if "Waiting" in curves:
        _, nowhere = blocks_over_time(pools, "without_replica")
        curves["Waiting"] = curves["Waiting"][0], curves["Waiting"][1] + nowhere
    names = pools_of(bundle.replicas)
    for number, name in enumerate(names):
        rows = pools["pool"] == number
        heading = "Replicas up" if len(names) == 1 else f"{name} up"
        curves[heading] = pools["time_ns"][rows] / NS_PER_S, pools["up"][rows].astype(float)
    return curves


# --- drawing


def _draw(runs: Sequence[_Run], style: Style) -> go.Figure:
    names = list(dict.fromkeys(name for run in runs for name in run.curves))
    heights = [max(_LEAST_LANES, _LANE * (len(runs) + 1)), *(1.0 for _ in names)]
    fig, height = panels.grid(
        [""] * len(heights),
        style,
        1,
        panel_px=0.22 * style.width_px,
        names_px=-style.font_px,  # only the last row has numbers below it
        heights=heights,
    )
    legend = Legend.fit([run.label for run in runs], style)
    for lane, run in enumerate(runs):
        _add_marks(fig, run, lane, style)
    for row, name in enumerate(names, start=2):
        for run, text in zip(runs, legend.texts, strict=True):
            if name in run.curves:
                _add_line(fig, row, run, name, text, style)
        most = max(float(np.max(run.curves[name][1])) for run in runs if name in run.curves)
        fig.update_yaxes(
            rangemode="tozero",
            tickformat=plain_ticks(most),
            nticks=4,
            title=title(name, style),
            showgrid=True,
            row=row,
            col=1,
        )
    panels.finish(fig, style, legend, height)
    _set_time_axes(fig, runs, len(heights), style)
    return fig


def _set_time_axes(fig: go.Figure, runs: Sequence[_Run], rows: int, style: Style) -> None:
    """One axis of time for all panels, with its numbers below the last one."""
    ends = [curve[0].max() for run in runs for curve in run.curves.values() if len(curve[0])]
    ends += [mark["at_s"] for run in runs for mark in run.marks]
    fig.update_xaxes(
        range=[0, 1.01 * float(np.max(ends))],
        showgrid=True,
        matches="x",
        tickangle=0,
        nticks=7,
        showticklabels=False,
    )
    fig.update_xaxes(showticklabels=True, title=title("Time (s)", style), row=rows, col=1)
    fig.update_yaxes(
        range=[len(runs) - 0.4, -0.6],
        tickvals=[],
        title=title("Changes", style),
        row=1,
        col=1,
    )


def _add_line(fig: go.Figure, row: int, run: _Run, name: str, text: str, style: Style) -> None:
    import plotly.graph_objects as go

    times, values = run.curves[name]
    width = 0.7 * style.line_px
    fig.add_trace(
        go.Scatter(
            x=times.tolist(),
            y=values.tolist(),
            mode="lines",
            line={
                "color": run.look.color,
                "dash": run.look.dash_px(width),
                "width": width,
                "shape": "hv" if name.endswith(" up") else "linear",
            },
            name=text,
            showlegend=row == 2,
            legendgroup=run.label,
            hovertemplate=f"{plain(run.label)}<br>%{{x:.4g}} s: %{{y:.4~g}}<extra></extra>",
        ),
        row,
        1,
    )


def _add_marks(fig: go.Figure, run: _Run, lane: int, style: Style) -> None:
    """The changes of one variant on a line of their own, each of which says what happened."""
    import plotly.graph_objects as go

    marks = run.marks[:_MOST_MARKS]
    if not marks:
        return
    fig.add_trace(
        go.Scatter(
            x=[mark["at_s"] for mark in marks],
            y=[lane] * len(marks),
            text=[
                f"{plain(run.label)}<br>{mark['at_s']:.4g} s: {plain(told(mark))}" for mark in marks
            ],
            mode="markers",
            marker={
                "color": run.look.color,
                "symbol": [_SYMBOLS.get(mark["change"], "square") for mark in marks],
                "size": 0.55 * style.font_px,
                "line": {"color": run.look.color, "width": 0.5 * style.line_px},
            },
            showlegend=False,
            legendgroup=run.label,
            hovertemplate="%{text}<extra></extra>",
        ),
        1,
        1,
    )


def told(mark: Mapping[str, Any]) -> str:
    """A change in words, such as ``replica-1 failed, 12 requests lost``."""
    said = f"{mark['replica']} {str(mark['change']).replace('_', ' ')}"
    if "factor" in mark:
        said += f", factor {mark['factor']:g}"
    if mark["lost"]:
        said += f", {mark['lost']:,} requests lost"
    return said
