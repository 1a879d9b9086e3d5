"""The figures of a paper redone: curves along the x axis, or bars by variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments import panels
from experiments.cdf_figure import XScale, heading_of
from experiments.drawing import Drawing
from experiments.layout import Legend, marker, plain, stroke, title
from experiments.looks import Look, Style, looks
from experiments.papers.evaluate import Evaluated
from experiments.papers.values import Value, bars_of
from experiments.quantity import read_quantity
from sim.metric_definitions import METRICS

if TYPE_CHECKING:
    import plotly.graph_objects as go


def drawings(evaluated: Evaluated) -> list[Drawing]:
    """The curves, and the bars, that the block asks for."""
    paper = evaluated.redone.paper
    drawn = paper.draw or [*paper.measures]
    curves = [name for name in drawn if name not in paper.measures]
    bars = [name for name in drawn if name in paper.measures]
    made = []
    if curves:
        made.append(_curves(evaluated, curves))
    if bars:
        made.append(_bars(evaluated, bars))
    return made


def _looks(evaluated: Evaluated) -> list[Look]:
    variants = evaluated.redone.plan.variants
    policies = [
        "disaggregated"
        if each.pools.colocated is None
        else str(each.pools.colocated.policy["name"])
        for each in variants
    ]
    return looks(policies)


def quantity_title(name: str) -> str:
    """A quantity as the title of an axis."""
    found = read_quantity(name, "paper")
    metric = METRICS[found.metric.key]
    said = heading_of(metric, 1.0) if metric.unit else metric.title
    return f"{found.statistic.upper()} {said}" if found.percentile else said


# --- curves


def _curves(evaluated: Evaluated, names: Sequence[str]) -> Drawing:
    paper, redone = evaluated.redone.paper, evaluated.redone
    assert paper.vary is not None
    rows = [
        (label, x, name, _mean(evaluated.points[label][x].values[name]))
        for name in names
        for label in redone.labels
        for x in evaluated.xs
    ]

    def make(style: Style, _: XScale) -> go.Figure:
        return _draw_curves(evaluated, names, style)

    return Drawing(
        f"{redone.name}_curves",
        paper.figure,
        "Means over runs with different seeds. A curve ends where requests are never served.",
        ("variant", "x", "quantity", "value"),
        rows,
        make,
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _draw_curves(evaluated: Evaluated, names: Sequence[str], style: Style) -> go.Figure:
    import plotly.graph_objects as go

    paper, labels = evaluated.redone.paper, evaluated.redone.labels
    legend = Legend.fit(labels, style)
    columns = panels.columns_for(len(names))
    fig, height = panels.grid([quantity_title(name) for name in names], style, columns)
    for position, name in enumerate(names):
        row, column = panels.cell(position, columns)
        for label, text, look in zip(labels, legend.texts, _looks(evaluated), strict=True):
            points = evaluated.points[label]
            ys = [_mean(points[x].values[name]) for x in evaluated.xs]
            fig.add_trace(
                go.Scatter(
                    x=evaluated.xs,
                    y=[y if math.isfinite(y) else None for y in ys],
                    mode="lines+markers",
                    line=stroke(look, style),
                    marker=marker(look, style),
                    name=text,
                    legendgroup=label,
                    showlegend=position == 0,
                    hovertemplate=f"{plain(label)}<br>%{{x:.4g}}: %{{y:.4g}}<extra></extra>",
                ),
                row,
                column,
            )
        _set_axes(fig, evaluated, name, row, column)
    panels.finish(fig, style, legend, height)
    assert paper.vary is not None
    for row, column in (panels.cell(at, columns) for at in range(len(names))[-columns:]):
        fig.update_xaxes(title=title(paper.vary.title, style), row=row, col=column)
    if paper.vary.log:
        fig.update_xaxes(type="log", dtick="D2", tickformat="~g", showgrid=False)
    else:
        fig.update_xaxes(tickformat="~g", rangemode="tozero", showgrid=False)
    return fig


def _set_axes(fig: go.Figure, evaluated: Evaluated, name: str, row: int, column: int) -> None:
    paper = evaluated.redone.paper
    share = not read_quantity(name, "paper").metric.unit and "attainment" in name
    scale = "log" if paper.log and not share else "linear"
    fig.update_yaxes(type=scale, showgrid=True, tickformat="~g", row=row, col=column)
    if scale == "log":
        points = evaluated.points.values()
        ys = [_mean(point.values[name]) for of in points for point in of.values()]
        positive = [y for y in ys if 0 < y < math.inf] or [1.0]
        narrow = max(positive) < 100 * min(positive)
        fig.update_yaxes(dtick="D2" if narrow else 1, row=row, col=column)
    else:
        top = paper.top.get(name, 1.02 if share else None)
        bounds = {"range": [0, top]} if top is not None else {"rangemode": "tozero"}
        fig.update_yaxes(**bounds, row=row, col=column)


# --- bars


def _bars(evaluated: Evaluated, keys: Sequence[str]) -> Drawing:
    paper, redone = evaluated.redone.paper, evaluated.redone
    values = bars_of(evaluated, keys)
    rows = [
        (label, key, value.estimate, value.mark.strip())
        for key, of in values.items()
        for label, value in of.items()
    ]

    def make(style: Style, _: XScale) -> go.Figure:
        return _draw_bars(evaluated, keys, style)

    return Drawing(
        f"{redone.name}_bars",
        " and ".join(paper.measures[key].title for key in keys),
        "Means over runs with different seeds; a whisker is their range, or a bracket.",
        ("variant", "measure", "value", "open_end"),
        rows,
        make,
    )


def _draw_bars(evaluated: Evaluated, keys: Sequence[str], style: Style) -> go.Figure:
    paper, labels = evaluated.redone.paper, evaluated.redone.labels
    values = bars_of(evaluated, keys)
    legend = Legend.fit(labels, style)
    columns = 1  # their titles are long
    titles = [paper.measures[key].title for key in keys]
    fig, height = panels.grid(titles, style, columns, panel_px=0.22 * style.width_px)
    told: set[str] = set()
    for position, key in enumerate(keys):
        row, column = panels.cell(position, columns)
        for at, (label, look) in enumerate(zip(labels, _looks(evaluated), strict=True)):
            value = values[key].get(label)
            if value is not None and math.isfinite(value.estimate):
                bar = _bar(at, value, look, style)
                bar.update(name=legend.texts[at], legendgroup=label, showlegend=label not in told)
                fig.add_trace(bar, row, column)
                told.add(label)
        fig.update_yaxes(tickformat="~g", rangemode="tozero", row=row, col=column)
    panels.finish(fig, style, legend, height)
    fig.update_layout(bargap=0.3)
    fig.update_xaxes(
        showticklabels=False, ticks="", showgrid=False, range=[-0.6, len(labels) - 0.4]
    )
    fig.update_yaxes(showgrid=True)
    return fig


def _bar(at: int, value: Value, look: Look, style: Style) -> go.Bar:
    """A value with its range as a whisker; an open end has none."""
    import plotly.graph_objects as go

    low, high = (end if math.isfinite(end) else value.estimate for end in (value.low, value.high))
    return go.Bar(
        x=[at],
        y=[value.estimate],
        marker=panels.bar(look, style),
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [high - value.estimate],
            "arrayminus": [value.estimate - low],
            "thickness": max(1.0, style.line_px / 2),
            "width": style.font_px / 3,
        },
        hovertemplate="%{fullData.name}<br>%{y:.4g}<extra></extra>",
    )
