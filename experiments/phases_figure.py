"""The roofline of a device with both phases of a model on it, and how they cross its ridge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.drawing import Drawing
from experiments.figures import write_drawings
from experiments.layout import Legend, axis_lines, lay_out, title
from experiments.looks import Style
from experiments.phases import Answer, heading, sentences
from sim.phases import PhaseCost

if TYPE_CHECKING:
    import plotly.graph_objects as go


PROMPTS = tuple(1 << k for k in range(17))
BATCHES = tuple(1 << k for k in range(13))

_COLORS = {"prefill": "#0072b2", "decode": "#d55e00", "alone": "#009e73"}
"""Of Okabe and Ito, told apart by the colour-blind."""

_SYMBOLS = ("circle", "diamond", "circle-open", "diamond-open")


@dataclass(frozen=True)
class Growth:
    """A phase as its prompt or its batch grows.

    Attributes:
        name: In the legend.
        what: What grows.
        sizes: Its values.
        costs: Of one step at each.
        color: Of its line.
        dash: As plotly names it.
        asked: The size of which the user asked, marked.
    """

    name: str
    what: str
    sizes: Sequence[int]
    costs: Sequence[PhaseCost]
    color: str
    dash: str
    asked: int


def write(found: Answer, path: Path) -> None:
    """Draw it as one HTML page that needs nothing else."""
    about = [heading(found), *sentences(found)]
    write_drawings(path, "Prefill and decode on one device", about, drawings(found))


def drawings(found: Answer) -> list[Drawing]:
    """The roofline with the steps asked for, and intensity as prompts and batches grow."""
    growths = growths_of(found)
    return [
        Drawing(
            "roofline",
            "Roofline",
            "FLOP/s that a step can reach at most, by its FLOPs per byte of memory traffic: left "
            "of the ridge memory bandwidth bounds it, right of it the peak.",
            ("step", "flops_per_byte", "flops_per_s", "floor_s"),
            [(name, c.intensity, c.flops / c.floor_s, c.floor_s) for name, c in found.steps],
            lambda style, _: _draw_roof(found, style),
        ),
        Drawing(
            "intensity",
            "From memory bound to compute bound",
            "FLOPs per byte of one step, as its prompt or its batch grows. Above the ridge it is "
            "compute bound. Large markers: what was asked for.",
            ("phase", "grows", "size", "flops_per_byte", "floor_s"),
            [
                (each.name, each.what, size, cost.intensity, cost.floor_s)
                for each in growths
                for size, cost in zip(each.sizes, each.costs, strict=True)
            ],
            lambda style, _: _draw_growth(found, growths, style),
        ),
    ]


def growths_of(found: Answer) -> list[Growth]:
    """A prefill as its prompt grows, and decodes as their batch does, with context and without."""
    asked, sums = found.question, found.arithmetic
    prompts = sorted({*PROMPTS, asked.prompt})
    batches = sorted({*BATCHES, asked.batch})
    return [
        Growth(
            "prefill of one prompt",
            "prompt tokens",
            prompts,
            [sums.prefill(n) for n in prompts],
            _COLORS["prefill"],
            "solid",
            asked.prompt,
        ),
        Growth(
            f"decodes at context {asked.context}",
            "decodes",
            batches,
            [sums.decode(n, asked.context) for n in batches],
            _COLORS["decode"],
            "dash",
            asked.batch,
        ),
        Growth(
            "decodes without context",
            "decodes",
            batches,
            [sums.decode(n, 1) for n in batches],
            _COLORS["alone"],
            "dot",
            asked.batch,
        ),
    ]


def _draw_roof(found: Answer, style: Style) -> go.Figure:
    import plotly.graph_objects as go

    sums, fig = found.arithmetic, go.Figure()
    bandwidth = sums.device.memory_bytes_per_s
    reached = [cost.intensity for _, cost in found.steps]
    roof = [min(1.0, *reached) / 2, sums.ridge, 2 * max(sums.ridge, *reached)]
    fig.add_scatter(
        x=roof,
        y=[min(x * bandwidth, sums.peak_flops) / 1e12 for x in roof],
        name=sums.device.name,
        mode="lines",
        line={"color": "#777777", "width": style.line_px},
        hoverinfo="skip",
    )
    for (name, cost), symbol in zip(found.steps, _SYMBOLS, strict=False):
        phase = name.partition(" ")[0]
        fig.add_scatter(
            x=[cost.intensity],
            y=[cost.flops / cost.floor_s / 1e12],
            name=name,
            mode="markers",
            marker={"size": 6 * style.line_px, "color": _COLORS[phase], "symbol": symbol},
            hovertemplate=f"%{{x:.3g}} FLOP/byte, %{{y:.3g}} TFLOP/s<br>{_floor(cost)}"
            "<extra></extra>",
        )
    return _finished(fig, style, "FLOP per byte", "TFLOP/s")


def _draw_growth(found: Answer, growths: Sequence[Growth], style: Style) -> go.Figure:
    import plotly.graph_objects as go

    fig, ridge = go.Figure(), found.arithmetic.ridge
    sizes = [size for each in growths for size in each.sizes]
    fig.add_scatter(
        x=[min(sizes), max(sizes)],
        y=[ridge, ridge],
        name=f"ridge, {ridge:.0f} FLOP per byte",
        mode="lines",
        line={"color": "#777777", "width": style.line_px},
        hoverinfo="skip",
    )
    for each in growths:
        fig.add_scatter(
            x=each.sizes,
            y=[cost.intensity for cost in each.costs],
            name=each.name,
            mode="lines+markers",
            line={"color": each.color, "dash": each.dash, "width": style.line_px},
            marker={
                "size": [(5 if size == each.asked else 1) * style.line_px for size in each.sizes],
                "color": each.color,
            },
            text=[_floor(cost) for cost in each.costs],
            hovertemplate=f"%{{x:,}} {each.what}<br>%{{y:.3g}} FLOP/byte<br>%{{text}}"
            "<extra></extra>",
        )
    return _finished(fig, style, "prompt tokens, or decodes", "FLOP per byte")


def _floor(cost: PhaseCost) -> str:
    return f"floor {1e3 * cost.floor_s:.3g} ms"


def _finished(fig: go.Figure, style: Style, x: str, y: str) -> go.Figure:
    legend = Legend.fit([trace.name for trace in fig.data], style)
    for trace, text in zip(fig.data, legend.texts, strict=True):
        trace.name = text
    lay_out(fig, style, legend)
    fig.update_xaxes(**axis_lines(style), type="log", title=title(x, style), dtick=1)
    fig.update_yaxes(**axis_lines(style), type="log", title=title(y, style), dtick=1)
    return fig
