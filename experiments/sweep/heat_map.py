"""Heat maps of a sweep over two keys, one panel for each variant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments import panels
from experiments.drawing import Drawing
from experiments.layout import Legend, plain, title
from experiments.looks import Style
from experiments.quantity import read_quantity
from experiments.sweep.frame import Frame, Place, is_number

if TYPE_CHECKING:
    import plotly.graph_objects as go

_SCALE = "Viridis"
_WRITTEN = 64
"""Cells up to which each has its number."""
_AT_ODDS = "#444444"


def heat_map(frame: Frame, x: str, y: str, column: str) -> Drawing:
    """A number over two keys. Where drawn points lie between the cells, they are dots.

    Args:
        frame: Of the sweep; of several values of other keys a cell shows the mean.
        x: Key of the columns.
        y: Key of the rows.
        column: The number, such as ``slo_attainment`` or ``ttft_s.p99``.

    Raises:
        ConfigError: `column` is no number of a run.
    """
    heading = heading_of(column)
    others = [key for key in frame.keys if key not in (x, y)]
    about = (
        f"{heading} of each point. A cross: more than half of its runs were overloaded or "
        "backlogged. Empty: no run of this point finished."
    )
    if others:
        words = " and ".join(key.rpartition(".")[2] for key in others)
        about += f" Means over {words}; --at key=value takes one value."
    rows = [
        (place.variant, place.settings[x], place.settings[y], place.behind, place.values[column])
        for place in frame.places
        if column in place.values
    ]
    key = f"heat_{column.replace('.', '_')}"
    header = ("variant", x, y, "behind", column)

    def make(style: Style, _: Any) -> go.Figure:
        return _draw(frame, x, y, column, style)

    return Drawing(key, f"{heading} over {_last(x)} and {_last(y)}", about, header, rows, make)


def heading_of(column: str) -> str:
    """A column as a title: ``P99 TTFT (s)``."""
    quantity = read_quantity(column, "--value")
    said = quantity.metric.heading
    statistic = quantity.statistic.upper() if quantity.percentile else quantity.statistic
    of = f" of {quantity.request_class}" if quantity.request_class else ""
    return f"{statistic} {said}{of}".strip()


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _draw(frame: Frame, x: str, y: str, column: str, style: Style) -> go.Figure:
    variants = frame.variants[: panels.MOST]
    columns = panels.columns_for(len(variants))
    titles = variants if len(variants) > 1 else [""]
    fig, height = panels.grid(titles, style, columns)
    known = [place.values[column] for place in frame.places if column in place.values]
    cells = len(frame.steps(x)) * len(frame.steps(y))
    gridded = cells <= 4 * len(frame.places) / len(frame.variants)
    for position, variant in enumerate(variants):
        places = [place for place in frame.places if place.variant == variant]
        cell = panels.cell(position, columns)
        if gridded:
            _add_cells(fig, frame, places, (x, y), column, style, cell)
        else:
            _add_dots(fig, places, (x, y), column, style, cell)
    panels.finish(fig, style, Legend((), 1.0, 0.0, 30.0), height)
    fig.update_xaxes(showgrid=False)
    fig.update_yaxes(showgrid=False)
    for position in range(len(variants)):
        row, at = panels.cell(position, columns)
        if position >= len(variants) - columns:
            fig.update_xaxes(title=title(_last(x), style), row=row, col=at)
        if at == 1:
            fig.update_yaxes(title=title(_last(y), style), row=row, col=at)
    fig.update_layout(
        coloraxis={
            "colorscale": _SCALE,
            "cmin": min(known, default=0.0),
            "cmax": max(known, default=1.0),
            "colorbar": {
                "orientation": "h",
                "thickness": 0.8 * style.font_px,
                "len": 0.6,
                "x": 0.5,
                "yref": "container",
                "y": 0.0,
                "yanchor": "bottom",
                "title": {"text": plain(heading_of(column)), "side": "top"},
                "tickformat": "~g",
            },
        }
    )
    room = 3.4 * style.font_px
    fig.update_layout(height=fig.layout.height + room, margin={"b": fig.layout.margin.b + room})
    return fig


def _add_cells(
    fig: go.Figure,
    frame: Frame,
    places: Sequence[Place],
    keys: tuple[str, str],
    column: str,
    style: Style,
    cell: tuple[int, int],
) -> None:
    import plotly.graph_objects as go

    across, up = (frame.steps(key) for key in keys)
    groups: dict[tuple[Any, Any], list[Place]] = {}
    for place in places:
        name = (place.settings.get(keys[0]), place.settings.get(keys[1]))
        groups.setdefault(name, []).append(place)
    values = [[_mean(groups.get((a, b), []), column) for a in across] for b in up]
    written = len(across) * len(up) <= _WRITTEN
    fig.add_trace(
        go.Heatmap(
            x=[_said(value) for value in across],
            y=[_said(value) for value in up],
            z=values,
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            texttemplate="%{z:.3~g}" if written else None,
            textfont={"size": 0.8 * style.font_px},
            hovertemplate="%{x}, %{y}: %{z:.4g}<extra></extra>",
        ),
        *cell,
    )
    behind = [name for name, its in groups.items() if 2 * sum(p.behind for p in its) > len(its)]
    fig.add_trace(
        go.Scatter(
            x=[_said(a) for a, _ in behind],
            y=[_said(b) for _, b in behind],
            mode="markers",
            marker={
                "symbol": "x-thin",
                "size": 2.6 * style.font_px,
                "line": {"color": "white", "width": style.line_px / 2},
                "opacity": 0.7,
            },
            showlegend=False,
            hoverinfo="skip",
        ),
        *cell,
    )
    row, at = cell
    fig.update_xaxes(type="category", row=row, col=at)
    fig.update_yaxes(type="category", row=row, col=at)


def _add_dots(
    fig: go.Figure,
    places: Sequence[Place],
    keys: tuple[str, str],
    column: str,
    style: Style,
    cell: tuple[int, int],
) -> None:
    import plotly.graph_objects as go

    shown = [place for place in places if column in place.values]
    fig.add_trace(
        go.Scatter(
            x=[place.settings[keys[0]] for place in shown],
            y=[place.settings[keys[1]] for place in shown],
            mode="markers",
            marker={
                "color": [place.values[column] for place in shown],
                "coloraxis": "coloraxis",
                "size": 4 * style.line_px + 3,
                "symbol": ["x" if place.behind else "circle" for place in shown],
                "line": {"color": _AT_ODDS, "width": style.line_px / 3},
            },
            text=[f"{place.values[column]:.4g}" for place in shown],
            showlegend=False,
            hovertemplate="%{x}, %{y}: %{text}<extra></extra>",
        ),
        *cell,
    )
    row, at = cell
    for update, key in ((fig.update_xaxes, keys[0]), (fig.update_yaxes, keys[1])):
        values = [place.settings[key] for place in shown]
        if all(is_number(value) and value > 0 for value in values) and (
            max(values, default=1) >= 10 * min(values, default=1)
        ):
            update(type="log", tickformat="~g", dtick="D2", row=row, col=at)


def _mean(places: Sequence[Place], column: str) -> float | None:
    values = [place.values[column] for place in places if column in place.values]
    return math.fsum(values) / len(values) if values else None


def _said(value: Any) -> str:
    return f"{value:g}" if is_number(value) and abs(value) < 1e6 else str(value)
