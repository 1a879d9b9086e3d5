"""Load over time of clusters that change, with a mark at each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments import panels
from experiments.cdf_figure import XScale
from experiments.drawing import Drawing
from experiments.layout import Legend, plain, stroke, title
from experiments.looks import Look, Style, looks
from experiments.report import RunBundle, unique_labels
from sim.cache_metrics import blocks_over_time
from sim.metrics import NS_PER_S, Floats

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PANELS = {
    "waiting": "Waiting",
    "running": "Running",
    "used_blocks": "KV blocks in use",
}
"""Quantities, below each other, and their titles."""
_MOST_MARKS = 400
"""Marks of a variant that are drawn; the table beside the figure has all of its points."""
Curve = tuple[Floats, Floats]


def timeline_drawings(bundles: Sequence[RunBundle]) -> list[Drawing]:
    """Queue, batch and memory over time; none if nothing has changed in any variant.

    Args:
        bundles: All variants.
    """
    shown = [each for each in bundles if len(each.series.get("time_ns", ()))]
    if not any(changes_of(bundle) for bundle in shown):
        return []
    labels, chosen = unique_labels(shown), looks([bundle.policy for bundle in shown])
    curves = [_curves(bundle) for bundle in shown]
    rows = [
        (label, what, float(x), float(y))
        for label, of in zip(labels, curves, strict=True)
        for what, (xs, ys) in of.items()
        for x, y in zip(xs, ys, strict=True)
    ]
    marks = [changes_of(bundle) for bundle in shown]
    rows += [
        (label, f"{mark['replica']} {mark['change']}", mark["at_s"], mark["lost"])
        for label, of_variant in zip(labels, marks, strict=True)
        for mark in of_variant
    ]
    about = (
        "Requests that wait and run, and KV blocks in use, of all replicas together. Dotted lines "
        "are changes of the cluster in the colour of their variant; pointing at one says what "
        "happened."
    )

    def make(style: Style, _: XScale) -> go.Figure:
        return _draw(labels, chosen, curves, marks, style)

    header = ("variant", "quantity", "time_s", "value")
    return [Drawing("timeline", "The cluster over time", about, header, rows, make)]


def changes_of(bundle: RunBundle) -> list[Mapping[str, Any]]:
    """What happened to the cluster in a run, in order."""
    found: list[Mapping[str, Any]] = bundle.summary.get("changes", {}).get("events", [])
    return found


def _curves(bundle: RunBundle) -> dict[str, Curve]:
    """Of each quantity its times, s, and values, summed over the replicas."""
    curves = {}
    for name in _PANELS:
        if name in bundle.series:
            time_ns, summed = blocks_over_time(bundle.series, name)
            curves[name] = time_ns / NS_PER_S, summed.astype(float)
    return curves


def _draw(
    labels: Sequence[str],
    chosen: Sequence[Look],
    curves: Sequence[Mapping[str, Curve]],
    marks: Sequence[Sequence[Mapping[str, Any]]],
    style: Style,
) -> go.Figure:
    fig, height = panels.grid([""] * len(_PANELS), style, 1, panel_px=0.22 * style.width_px)
    legend = Legend.fit(labels, style)
    for row, name in enumerate(_PANELS, start=1):
        most = max((of[name][1].max() for of in curves if name in of), default=1.0)
        for label, text, look, of, its in zip(
            labels, legend.texts, chosen, curves, marks, strict=True
        ):
            if name in of:
                _add_line(fig, row, of[name], label, text, look, style)
            _add_marks(fig, row, its[:_MOST_MARKS], max(most, 1.0), label, look, style)
        fig.update_yaxes(
            rangemode="tozero",
            tickformat="~s",
            title=title(_PANELS[name], style),
            showgrid=True,
            row=row,
            col=1,
        )
    panels.finish(fig, style, legend, height)
    fig.update_xaxes(rangemode="tozero", showgrid=True, matches="x")
    fig.update_xaxes(title=title("Time (s)", style), row=len(_PANELS), col=1)
    return fig


def _add_line(
    fig: go.Figure, row: int, curve: Curve, label: str, text: str, look: Look, style: Style
) -> None:
    import plotly.graph_objects as go

    fig.add_trace(
        go.Scatter(
            x=curve[0].tolist(),
            y=curve[1].tolist(),
            mode="lines",
            line=stroke(look, style),
            name=text,
            showlegend=row == 1,
            legendgroup=label,
            hovertemplate=f"{plain(label)}<br>%{{x:.4g}} s: %{{y:.4~g}}<extra></extra>",
        ),
        row,
        1,
    )


def _add_marks(
    fig: go.Figure,
    row: int,
    marks: Sequence[Mapping[str, Any]],
    height: float,
    label: str,
    look: Look,
    style: Style,
) -> None:
    """One trace of vertical lines, each of which says what happened."""
    import plotly.graph_objects as go

    xs, ys, texts = [], [], []
    for mark in marks:
        said = f"{plain(label)}<br>{mark['at_s']:.4g} s: {plain(told(mark))}"
        for y in (0.0, height / 2, height, None):
            xs.append(mark["at_s"])
            ys.append(y)
            texts.append(said)
    if not xs:
        return
    fig.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            text=texts,
            mode="lines",
            line={"color": look.color, "width": style.line_px / 2, "dash": "dot"},
            opacity=0.6,
            showlegend=False,
            legendgroup=label,
            hovertemplate="%{text}<extra></extra>",
        ),
        row,
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
