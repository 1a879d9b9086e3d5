"""Heat maps of a sweep over two keys, one panel for each variant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
_EDGE = "#222222"
_WIDE = 20
"""Largest / smallest number from which colours go by the logarithm."""


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


@dataclass(frozen=True)
class _Colors:
    """How numbers become colours: in proportion, or times that differ widely by their logarithm."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Sequence[float], *, of_time: bool) -> _Colors:
        low, high = min(values, default=0.0), max(values, default=1.0)
        return cls(low, high, of_time and low > 0 and high > _WIDE * low)

    def at(self, value: float | None) -> float | None:
        return math.log10(value) if self.log and value is not None else value

    def axis(self, style: Style) -> dict[str, Any]:
        """As plotly takes them, with a bar below the axes."""
        low, high = self.at(self.low), self.at(self.high)
        bar: dict[str, Any] = {
            "orientation": "h",
            "thickness": 0.8 * style.font_px,
            "len": 0.6,
            "x": 0.5,
            "yref": "container",
            "y": 0.0,
            "yanchor": "bottom",
            "tickformat": "~g",
        }
        if self.log:
            steps = [k * 10.0**e for e in range(-12, 13) for k in (1, 3)]
            marked = [step for step in steps if self.low <= step <= self.high]
            bar["tickvals"] = [math.log10(step) for step in marked]
            bar["ticktext"] = [f"{step:g}" for step in marked]
        return {"colorscale": _SCALE, "cmin": low, "cmax": high, "colorbar": bar}


@dataclass(frozen=True)
class _Panel:
    """One variant's part of a heat map.

    Attributes:
        fig: To which it is added.
        frame: Of the sweep.
        places: Of the variant.
        keys: Of the columns and of the rows.
        column: The number.
        colors: How it becomes a colour.
        style: Sizes.
        cell: Row and column of the panel.
    """

    fig: go.Figure
    frame: Frame
    places: Sequence[Place]
    keys: tuple[str, str]
    column: str
    colors: _Colors
    style: Style
    cell: tuple[int, int]

    def add(self, trace: Any) -> None:
        """Add a trace to the panel."""
        self.fig.add_trace(trace, *self.cell)

    def axes(self) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
        """What updates each axis of the panel, and the values of its key."""
        row, col = self.cell
        updates = (self.fig.update_xaxes, self.fig.update_yaxes)
        for update, key in zip(updates, self.keys, strict=True):
            yield partial(update, row=row, col=col), self.frame.steps(key)


def _draw(frame: Frame, x: str, y: str, column: str, style: Style) -> go.Figure:
    variants = frame.variants[: panels.MOST]
    columns = panels.columns_for(len(variants))
    heading = heading_of(column)
    titles = [f"{heading}: {name}" for name in variants] if len(variants) > 1 else [heading]
    fig, height = panels.grid(titles, style, columns)
    known = [p.values[column] for p in frame.places if column in p.values]
    colors = _Colors.of(known, of_time=read_quantity(column, "--value").of_time)
    cells = len(frame.steps(x)) * len(frame.steps(y))
    gridded = cells <= 4 * len(frame.places) / len(frame.variants)
    add = _add_cells if gridded else _add_dots
    for position, variant in enumerate(variants):
        places = [place for place in frame.places if place.variant == variant]
        cell = panels.cell(position, columns)
        add(_Panel(fig, frame, places, (x, y), column, colors, style, cell))
    panels.finish(fig, style, Legend((), 1.0, 0.0, 30.0), height)
    fig.update_xaxes(showgrid=False)
    fig.update_yaxes(showgrid=False)
    for position in range(len(variants)):
        row, at = panels.cell(position, columns)
        if position >= len(variants) - columns:
            _add_title_below(fig, _last(x), style, (row, at))
        if at == 1:
            fig.update_yaxes(title=title(_last(y), style), row=row, col=at)
    room = 3.6 * style.font_px
    fig.update_layout(
        coloraxis=colors.axis(style),
        height=fig.layout.height + room,
        margin={"b": fig.layout.margin.b + room},
    )
    return fig


def _add_title_below(fig: go.Figure, text: str, style: Style, cell: tuple[int, int]) -> None:
    """Title of an axis below its labels: beside a colour bar plotly sets its own upon them."""
    fig.add_annotation(
        text=plain(text),
        showarrow=False,
        x=0.5,
        xref="x domain",
        y=0,
        yref="y domain",
        yanchor="top",
        yshift=-2.1 * style.font_px,
        font={"size": style.font_px},
        row=cell[0],
        col=cell[1],
    )


def _add_cells(panel: _Panel) -> None:
    """A cell for each pair of values, with its number where there is room."""
    import plotly.graph_objects as go

    (_, across), (_, up) = panel.axes()
    groups: dict[tuple[Any, Any], list[Place]] = {}
    for place in panel.places:
        first, second = (place.settings.get(key) for key in panel.keys)
        groups.setdefault((first, second), []).append(place)
    values = [[_mean(groups.get((a, b), []), panel.column) for a in across] for b in up]
    panel.add(
        go.Heatmap(
            x=list(range(len(across))),
            y=list(range(len(up))),
            z=[[panel.colors.at(value) for value in row] for row in values],
            text=[["" if value is None else f"{value:.3g}" for value in row] for row in values],
            coloraxis="coloraxis",
            xgap=1,
            ygap=1,
            texttemplate="%{text}" if len(across) * len(up) <= _WRITTEN else None,
            textfont={"size": 0.8 * panel.style.font_px},
            hovertemplate="%{text}<extra></extra>",
        )
    )
    behind = [
        (across.index(name[0]), up.index(name[1]))
        for name, its in groups.items()
        if 2 * sum(place.behind for place in its) > len(its)
    ]
    _add_crosses(panel, behind)
    for update, steps in panel.axes():
        update(
            tickvals=list(range(len(steps))),
            ticktext=[plain(_said(value)) for value in steps],
            range=[-0.5, len(steps) - 0.5],
        )


def _add_crosses(panel: _Panel, behind: Sequence[tuple[int, int]]) -> None:
    """Mark cells that were overloaded, in a corner, so that the number stays legible."""
    import plotly.graph_objects as go

    style = panel.style
    panel.add(
        go.Scatter(
            x=[a - 0.38 for a, _ in behind],
            y=[b + 0.32 for _, b in behind],
            mode="markers",
            marker={
                "symbol": "x",
                "size": 0.6 * style.font_px,
                "color": "white",
                "line": {"color": _EDGE, "width": style.line_px / 3},
            },
            showlegend=False,
            hoverinfo="skip",
        )
    )


def _add_dots(panel: _Panel) -> None:
    """A dot for each point, where both keys have values of their own."""
    import plotly.graph_objects as go

    column, style = panel.column, panel.style
    shown = [place for place in panel.places if column in place.values]
    across, up = ([place.settings[key] for place in shown] for key in panel.keys)
    panel.add(
        go.Scatter(
            x=across,
            y=up,
            mode="markers",
            marker={
                "color": [panel.colors.at(place.values[column]) for place in shown],
                "coloraxis": "coloraxis",
                "size": 4 * style.line_px + 3,
                "symbol": ["x" if place.behind else "circle" for place in shown],
                "line": {"color": _EDGE, "width": style.line_px / 3},
            },
            text=[f"{place.values[column]:.4g}" for place in shown],
            showlegend=False,
            cliponaxis=False,
            hovertemplate="%{x}, %{y}: %{text}<extra></extra>",
        )
    )
    for update, values in panel.axes():
        numbers = all(is_number(value) for value in values) and min(values) > 0
        if numbers and max(values) >= 10 * min(values):
            update(type="log", tickformat="~g", dtick="D2")


def _mean(places: Sequence[Place], column: str) -> float | None:
    values = [place.values[column] for place in places if column in place.values]
    return math.fsum(values) / len(values) if values else None


def _said(value: Any) -> str:
    return f"{value:g}" if is_number(value) and abs(value) < 1e6 else str(value)
