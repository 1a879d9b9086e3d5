"""Distribution functions, all variants in one pair of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from experiments.cdf import MARKED, Curve, curve_of_gaps, curve_of_values
from experiments.floor_figure import add_floor
from experiments.layout import (
    Legend,
    axis_lines,
    lay_out,
    marker,
    plain,
    round_values,
    stroke,
    title,
)
from experiments.looks import Look, Style, looks
from experiments.report import RunBundle, measured, metrics_of, unique_labels, verdict_mark
from experiments.statistics.bands import Band, band_of_gaps, band_of_values
from sim.metric_definitions import METRICS, Metric
from sim.metrics import PER_REQUEST, Floats, Gaps, merge_gaps

if TYPE_CHECKING:
    import plotly.graph_objects as go

XScale = Literal["log", "linear"]

SHOWN_IN_MS = ("tpot", "itl", "normalised_latency")
_GREY = "#777777"
_NARROW_DECADES = 0.7
"""A logarithmic axis that spans less has one label, or none, at 1, 2 and 5."""


@dataclass(frozen=True)
class Line:
    """One variant in one figure.

    Attributes:
        label: Name of the variant, as plain text.
        mark: What is to be known of the run, such as its verdict; may be empty.
        policy: Name of the policy.
        look: Colour, dash and marker.
        curve: Its points, None where the metric has no value.
        band: How sure they are, of a variant with replications.
    """

    label: str
    mark: str
    policy: str
    look: Look
    curve: Curve | None
    band: Band | None = None

    @property
    def name(self) -> str:
        """Label and mark, as in the legend."""
        return f"{self.label} ({self.mark})" if self.mark else self.label


def lines_of(
    bundles: Sequence[RunBundle],
    key: str,
    request_class: str | None = None,
    runs: Sequence[Sequence[RunBundle]] | None = None,
) -> list[Line]:
    """The curves of one metric, one per bundle.

    Args:
        bundles: Of the variants.
        key: Of the metric.
        request_class: Only the requests of one class; None for all.
        runs: Of each bundle all its replications, which together then make its curve and its band.
    """
    labels = unique_labels(bundles)
    chosen = looks([bundle.policy for bundle in bundles])
    return [
        Line(
            label,
            _mark(bundle, request_class),
            bundle.policy,
            look,
            *curve_with_band(its, key, request_class),
        )
        for bundle, label, look, its in zip(
            bundles, labels, chosen, runs or [[each] for each in bundles], strict=True
        )
    ]


def _mark(bundle: RunBundle, request_class: str | None) -> str:
    """The verdict, and the share of requests that no curve of E2E shows."""
    if request_class is None:
        counts = bundle.summary["measured_requests"]
    else:
        counts = metrics_of(bundle, request_class)["requests"]
    marks = [verdict_mark(bundle)]
    lost = 1 - counts["finished"] / max(1, counts["arrived"])
    if lost > 0:
        marks.append(f"{max(lost, 0.001):.1%} not finished")
    return ", ".join(mark for mark in marks if mark)


def curve_with_band(
    runs: Sequence[RunBundle], key: str, request_class: str | None = None
) -> tuple[Curve | None, Band | None]:
    """The distribution of one metric over all runs of a variant, and how sure it is."""
    if key == "itl":
        gaps = [_gaps(run, request_class) for run in runs]
        curve = curve_of_gaps(merge_gaps(gaps))
        return curve, None if curve is None else band_of_gaps(gaps, curve.x)
    values = [in_order(run, key, request_class) for run in runs]
    curve = curve_of_values(np.concatenate(values))
    return curve, None if curve is None else band_of_values(values, curve.x)


def _gaps(run: RunBundle, request_class: str | None) -> Gaps:
    return merge_gaps(run.itl.values() if request_class is None else [run.itl[request_class]])


def in_order(run: RunBundle, key: str, request_class: str | None) -> Floats:
    """Values of requests that have one, in order of arrival."""
    requests = measured(run, request_class)
    values = PER_REQUEST[key](requests)[np.argsort(requests["arrival_ns"], kind="stable")]
    return values[~np.isnan(values)]


def figure(
    key: str,
    lines: Sequence[Line],
    style: Style,
    x_scale: XScale = "log",
    floor: Curve | None = None,
) -> go.Figure:
    """The distributions of one metric as a plotly figure, and the floors of its requests."""
    import plotly.graph_objects as go

    metric, scale = METRICS[key], 1e3 if key in SHOWN_IN_MS else 1.0
    fig = go.Figure()
    for i, line in enumerate(lines):
        if line.curve is not None:
            add_band(fig, line, f"v{i}", scale, x_scale)
            add_line(fig, line, f"v{i}", style, scale, x_scale)
    shown = [line for line in lines if line.curve is not None]
    legend = Legend.fit([line.name for line in shown], style)
    add_legend(fig, lines, legend, style)
    lay_out(fig, style, legend)
    set_axes(fig, metric, style, x_scale, heading_of(metric, scale))
    mark_percentiles(fig, style)
    ends = [] if floor is None else floor.x[[0, -1]].tolist()
    if x_scale == "log":
        set_log_range(fig, shown, scale, ends)
    if floor is not None:
        left = 10 ** fig.layout.xaxis.range[0] if x_scale == "log" else 0.0
        add_floor(fig, floor, style, scale, left)
    return fig


def heading_of(metric: Metric, scale: float) -> str:
    """Title and unit of an axis; `scale` is 1e3 where seconds are shown in ms."""
    unit = f"m{metric.unit}" if scale == 1e3 else metric.unit
    return f"{metric.title} ({unit})"


def add_line(
    fig: go.Figure,
    line: Line,
    group: str,
    style: Style,
    scale: float,
    x_scale: XScale,
    cell: tuple[int | None, int | None] = (None, None),
) -> None:
    """Add a curve with its marked percentiles, to the panel at (row, column) where given."""
    import plotly.graph_objects as go

    curve = line.curve
    assert curve is not None
    common = {"legendgroup": group, "showlegend": False, "name": plain(line.name)}
    x, share = scale * curve.x, curve.share
    # The staircase starts on the floor.
    xs, ys = [float(x[0]), *x.tolist()], [0.0, *share.tolist()]
    if x_scale == "log":
        positive = [(a, b) for a, b in zip(xs, ys, strict=True) if a > 0]
        xs, ys = [a for a, _ in positive], [b for _, b in positive]
    hover = "%{fullData.name}<br>%{x:.4g}: %{y:.2%}<extra></extra>"
    fig.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={**stroke(line.look, style), "shape": "hv"},
            hovertemplate=hover,
            **common,
        ),
        *cell,
    )
    fig.add_trace(
        go.Scatter(
            x=(scale * curve.marks).tolist(),
            y=list(MARKED),
            mode="markers",
            marker=marker(line.look, style),
            hovertemplate="%{fullData.name}<br>P%{customdata}: %{x:.4g}<extra></extra>",
            customdata=[f"{100 * q:g}" for q in MARKED],
            cliponaxis=False,
            **common,
        ),
        *cell,
    )


def add_band(
    fig: go.Figure,
    line: Line,
    group: str,
    scale: float,
    x_scale: XScale,
    cell: tuple[int | None, int | None] = (None, None),
) -> None:
    """Add the band of a curve, if it has one, behind it."""
    import plotly.graph_objects as go

    if line.band is None or line.curve is None:
        return
    x = scale * line.curve.x
    there = ~np.isnan(line.band.low) & ((x > 0) | (x_scale == "linear"))
    red, green, blue = (int(line.look.color[i : i + 2], 16) for i in (1, 3, 5))
    for ends, fill in ((line.band.high, None), (line.band.low, "tonexty")):
        fig.add_trace(
            go.Scatter(
                x=x[there].tolist(),
                y=ends[there].tolist(),
                mode="lines",
                line={"width": 0, "shape": "hv"},
                fill=fill,
                fillcolor=f"rgba({red},{green},{blue},0.2)",
                hoverinfo="skip",
                legendgroup=group,
                showlegend=False,
            ),
            *cell,
        )


def add_legend(fig: go.Figure, lines: Sequence[Line], legend: Legend, style: Style) -> None:
    """Entries that show line and marker at once: traces without a point, one per variant."""
    import plotly.graph_objects as go

    texts = iter(legend.texts)
    for i, line in enumerate(lines):
        if line.curve is None:
            continue
        look = line.look
        fig.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                mode="lines+markers",
                line=stroke(look, style),
                marker=marker(look, style),
                legendgroup=f"v{i}",
                name=next(texts),
            )
        )


def set_axes(fig: go.Figure, metric: Metric, style: Style, x_scale: XScale, heading: str) -> None:
    """Axes of distributions, the same in all panels."""
    common = axis_lines(style)
    fig.update_xaxes(
        **common,
        type=x_scale,
        title=title(heading, style),
        tickformat="~g",
        showgrid=True,
    )
    if x_scale == "linear":
        fig.update_xaxes(rangemode="tozero")
    what = "gaps between tokens" if metric.key == "itl" else "requests"
    fig.update_yaxes(
        **common,
        title=title(f"Share of {what}", style),
        range=[0, 1.015],
        tickvals=[0, 0.25, 0.5, 0.75, 1],
        showgrid=False,
    )


def set_log_range(
    fig: go.Figure, lines: Sequence[Line], scale: float, marked: Sequence[float] = ()
) -> None:
    """Decades, 2 and 5 between them where there are few, or round values within less than one.

    Args:
        fig: Changed in place.
        lines: To be shown from end to end.
        scale: From their values to those of the axis.
        marked: Further values to be shown, such as targets.
    """
    ends = [x for line in lines if line.curve for x in line.curve.x[[0, -1]].tolist()]
    positive = [scale * x for x in (*ends, *marked) if x > 0]
    if not positive:
        return
    low, high = math.log10(min(positive)), math.log10(max(positive))
    margin = max(0.02, 0.02 * (high - low))
    fig.update_xaxes(
        range=[low - margin, high + margin],
        dtick="D2" if high - low < 2 else 1,
        minor={"dtick": "D1", "ticks": "outside", "ticklen": 2},
    )
    if high - low < _NARROW_DECADES:
        edges = 10 ** (low - margin), 10 ** (high + margin)
        fig.update_xaxes(tickvals=round_values(*edges), dtick=None)


def mark_percentiles(fig: go.Figure, style: Style) -> None:
    """Dotted lines at the percentiles marked on the curves, with their names."""
    for q in MARKED:
        fig.add_shape(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=q,
            y1=q,
            layer="below",
            line={"color": _GREY, "width": 0.7, "dash": "dot"},
        )
        fig.add_annotation(
            xref="paper",
            x=1,
            xanchor="left",
            y=q,
            text=f"P{100 * q:g}",
            showarrow=False,
            xshift=style.font_px / 4,
            font={"color": "#444444", "size": 0.9 * style.font_px},
        )
