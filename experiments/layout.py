"""What all figures have in common: legend below the axes, margins, strokes and plain text."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.looks import FONT_STACK, Look, Style

if TYPE_CHECKING:
    import plotly.graph_objects as go

_LEGEND_GAPS_PX = 24
"""What plotly leaves free around one entry of a legend."""
_TEXT_WIDTH = 0.54
"""Mean width of a character of the font / its size, a little on the wide side."""


@dataclass(frozen=True)
class Legend:
    """Where the legend stands: below the axes, in columns, long labels broken.

    Attributes:
        texts: Labels, escaped, with line breaks.
        entry_px: Width of one label.
        height_px: Of the whole legend.
        key_px: Width of the sample of a line.
    """

    texts: tuple[str, ...]
    entry_px: float
    height_px: float
    key_px: float

    @classmethod
    def fit(cls, labels: Sequence[str], style: Style) -> Legend:
        """As many columns as take every label on one line, else one column with broken lines."""
        char_px = _TEXT_WIDTH * style.font_px
        key_px = max(30.0, 26 * style.line_px)
        longest = max(map(len, labels)) * char_px
        # plotly gives a legend at most the width of the axes.
        room = style.width_px - left_px(style) - right_px(style)
        fitting = int(room // (longest + key_px + _LEGEND_GAPS_PX))
        columns = max(1, min(style.legend_columns, len(labels), fitting))
        entry_px = room / columns - key_px - _LEGEND_GAPS_PX
        chars = max(8, int(entry_px / char_px))
        broken = [textwrap.wrap(label, chars, break_on_hyphens=False) for label in labels]
        rows = [broken[i : i + columns] for i in range(0, len(broken), columns)]
        line_px = 1.3 * style.font_px
        heights = [max(19.0, max(map(len, row)) * line_px + 3) for row in rows]
        texts = tuple("<br>".join(map(plain, parts)) for parts in broken)
        return cls(texts, entry_px, sum(heights) + 6, key_px)


def left_px(style: Style) -> float:
    """Margin for the labels and the title of an axis."""
    return 4.2 * style.font_px


def right_px(style: Style) -> float:
    """Margin for what stands beside the axes."""
    return 3.0 * style.font_px


def lay_out(
    fig: go.Figure,
    style: Style,
    legend: Legend,
    *,
    plot_px: float | None = None,
    top_px: float = 0,
    names_px: float = 0,
) -> None:
    """Set size, margins, font and the legend, below the axes.

    Args:
        fig: Changed in place.
        style: Sizes.
        legend: As fitted to its labels.
        plot_px: Height of the axes, all panels together; None for that of a single one.
        top_px: More room above the axes, for the title of the first panels.
        names_px: More room below the axes, for names instead of numbers.
    """
    font_px = style.font_px
    plot_px = 0.52 * style.width_px if plot_px is None else plot_px
    margin = {
        "l": left_px(style),
        "r": right_px(style),
        "t": max(font_px, style.top_px) + top_px,
        "b": 3.9 * font_px + names_px + legend.height_px,
    }
    fig.update_layout(
        template="none",
        width=round(style.width_px),
        height=round(plot_px + margin["t"] + margin["b"]),
        margin={**margin, "pad": 0, "autoexpand": False},
        font={"family": FONT_STACK, "size": font_px, "color": "black"},
        paper_bgcolor="white",
        plot_bgcolor="white",
        hovermode="closest",
        legend={
            "orientation": "h",
            # "grouped", the default where traces have groups, allows one column only.
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0,
            "yanchor": "bottom",
            "entrywidth": legend.entry_px,
            "entrywidthmode": "pixels",
            "itemwidth": legend.key_px,
            "tracegroupgap": 0,
            "font": {"size": font_px},
            "bgcolor": "rgba(0,0,0,0)",
        },
    )


def axis_lines(style: Style) -> dict[str, Any]:
    """How an axis is drawn."""
    return {
        "showline": True,
        "linecolor": "black",
        "linewidth": max(0.7, style.line_px / 2),
        "ticks": "outside",
        "ticklen": style.font_px / 3,
        "gridcolor": "#e6e6e6",
        "zeroline": False,
        "exponentformat": "none",
    }


def plain_ticks(most: float) -> str:
    """Format of the numbers of an axis from 0: plain decimals, thousands as k where long.

    Never a prefix below 1, such as 500m for a half.

    Args:
        most: The largest value on it.
    """
    return "~s" if most >= 10_000 else ",~f"


def stroke(look: Look, style: Style) -> dict[str, Any]:
    """Line of a curve."""
    width = style.line_px
    return {"color": look.color, "dash": look.dash_px(width), "width": width}


def marker(look: Look, style: Style) -> dict[str, Any]:
    """Marker of a point on a curve."""
    edge = {"color": "white", "width": style.line_px / 3}
    return {
        "color": look.color,
        "symbol": look.symbol,
        "size": 3 * style.line_px + 1.5,
        "line": edge,
    }


def title(text: str, style: Style) -> dict[str, Any]:
    """Title of an axis."""
    size = style.font_px
    return {"text": plain(text), "standoff": size / 2, "font": {"size": size}}


def round_values(least: float, most: float) -> list[float]:
    """Four to nine multiples of a 1, 2 or 5 with zeros, between two values."""
    steps = [k * 10**e for e in range(-12, 13) for k in (1, 2, 5)]
    step = max(each for each in steps if (most - least) / each >= 4)
    first, last = math.ceil(least / step), math.floor(most / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def plain(text: str) -> str:
    """Text that plotly shows as it stands: no markup, no TeX."""
    return html.escape(text, quote=False).replace("$", "&#36;")
