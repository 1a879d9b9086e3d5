"""Panels: several axes in one figure, below and beside each other, with one legend."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments.layout import Legend, axis_lines, lay_out, left_px, plain, right_px
from experiments.looks import Look, Style

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST = 8
"""Panels of a figure; more are left out, and its text says so."""


def columns_for(panels: int) -> int:
    """Panels beside each other."""
    return 1 if panels == 1 else 2


def grid(
    titles: Sequence[str],
    style: Style,
    columns: int,
    *,
    panel_px: float | None = None,
    names_px: float = 0,
    heights: Sequence[float] | None = None,
) -> tuple[go.Figure, float]:
    """Empty axes in rows of `columns`, each with a title above it.

    Args:
        titles: Of the panels, in reading order; empty ones take no room.
        style: Sizes.
        columns: Panels beside each other.
        panel_px: Height of the axes of one panel.
        names_px: Room below each row for names on its axis.
        heights: Of each row, in panels; None: all of 1.

    Returns:
        The figure, and the height of all axes with the gaps between them, px, for `lay_out`.
    """
    from plotly.subplots import make_subplots

    rows = math.ceil(len(titles) / columns)
    panel = panel_px or (0.52 if columns == 1 else 0.3) * style.width_px
    gap = (2.2 + (1.9 if any(titles) else 0)) * style.font_px + names_px
    shares = [1.0] * rows if heights is None else list(heights)
    height = sum(shares) * panel + (rows - 1) * gap
    axes_px = style.width_px - left_px(style) - right_px(style)
    fig = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[plain(title) for title in titles],
        vertical_spacing=gap / height if rows > 1 else 0,
        row_heights=shares,
        horizontal_spacing=3.4 * style.font_px / axes_px if columns > 1 else 0,
    )
    fig.update_annotations(font={"size": style.font_px}, yshift=style.font_px / 4)
    fig.update_xaxes(**axis_lines(style))
    fig.update_yaxes(**axis_lines(style))
    for empty in range(len(titles), rows * columns):
        row, column = cell(empty, columns)
        fig.update_xaxes(visible=False, row=row, col=column)
        fig.update_yaxes(visible=False, row=row, col=column)
    return fig, height


def cell(position: int, columns: int) -> tuple[int, int]:
    """Row and column, from 1, of a panel in reading order."""
    return position // columns + 1, position % columns + 1


def finish(
    fig: go.Figure, style: Style, legend: Legend, height: float, names_px: float = 0
) -> None:
    """Size and margins of a figure of panels, with room for the titles of the first row."""
    titled = any(note.text for note in fig.layout.annotations)
    lay_out(
        fig,
        style,
        legend,
        plot_px=height,
        top_px=1.6 * style.font_px if titled else 0,
        names_px=names_px,
    )


def add_swatches(
    fig: go.Figure, names: Sequence[str], colors: Sequence[str], style: Style
) -> Legend:
    """Legend entries of areas: a square of their colour."""
    import plotly.graph_objects as go

    legend = Legend.fit(names, style)
    for text, color in zip(legend.texts, colors, strict=True):
        fig.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                mode="markers",
                marker={"color": color, "symbol": "square", "size": 0.9 * style.font_px},
                name=text,
            )
        )
    return legend


def bar(look: Look, style: Style) -> dict[str, Any]:
    """Fill of the bars of a variant: its colour, and its pattern, dark on light colours."""
    red, green, blue = (int(look.color[i : i + 2], 16) for i in (1, 3, 5))
    light = 0.299 * red + 0.587 * green + 0.114 * blue > 150
    pattern = {
        "shape": look.pattern,
        "fgcolor": "#222222" if light else "white",
        "bgcolor": look.color,
        "fillmode": "replace",
        "size": 0.6 * style.font_px,
        "solidity": 0.25,
    }
    return {"color": look.color, "pattern": pattern if look.pattern else None}
