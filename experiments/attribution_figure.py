"""The figures of where the time of the median and P99 request or gap went, by variant and class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from experiments import panels
from experiments.advice import ADVICE
from experiments.attribution import seconds
from experiments.cdf_figure import XScale
from experiments.drawing import Drawing
from experiments.layout import plain, title
from experiments.looks import Style
from experiments.report import RunBundle, unique_labels
from sim.attribution import GROUPS, PHASES
from sim.metrics import NS_PER_S

if TYPE_CHECKING:
    import plotly.graph_objects as go

SHADES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "queued": ("#7f7f7f", "#4d4d4d", "#a6a6a6", "#333333", "#bfbfbf", "#8c8c8c", "#595959"),
        "prefill": ("#0072b2", "#56a0d3", "#9ccbec", "#cfe6f7"),
        "decode": ("#009e73", "#7fd1b9", "#4cb896", "#b3e5d6"),
        "stalled": ("#d55e00", "#f0a04b", "#f7cfa0"),
        "step extra": ("#f0e442", "#c9bd1e", "#8f860f"),
        "memory": ("#cc79a7", "#a3477d", "#e3b3cd", "#7a2f5b", "#f1d9e6"),
        "transfer": ("#6a51a3", "#9e8ac8", "#c6bce0", "#463075"),
        "lost": ("#000000", "#8b0000"),
        "other": ("#ffffff",),
    }
)
"""Colours of phases, by group: the hues of Okabe and Ito, told apart in their lightness too."""
_TICKS = MappingProxyType({"median": "P50", "p99": "P99"})
_WHOLES = MappingProxyType(
    {
        "e2e": "request went: that of the median and that of the P99 by E2E",
        "ttft": "request went: that of the median and that of the P99 by TTFT",
        "itl": "gap between tokens went: that of the median and that of the P99 of all gaps",
    }
)
"""What is shown, and how that is said."""
_MOST_VARIANTS = 12
_LEAST, _REST = 0.02, "under 2 % everywhere"
"""Share of some bar that a phase must have to stand by itself, and the name of the others."""


def color_of(phase: str) -> str:
    """The colour of a phase in every figure."""
    for group, names in GROUPS.items():
        if phase in names:
            shades = SHADES[group]
            return shades[names.index(phase) % len(shades)]
    raise ValueError(phase)


def attribution_drawings(
    bundles: Sequence[RunBundle], request_class: str | None = None
) -> list[Drawing]:
    """Stacked bars of E2E, TTFT and gaps between tokens; none where no variant tells them.

    Args:
        bundles: All variants.
        request_class: Of one class only; None: of all requests, and of each class.
    """
    told = [bundle for bundle in bundles if bundle.summary.get("attribution")]
    if not told:
        return []
    there = {whole for each in told for whole in each.summary["attribution"].get("overall", {})}
    return [_drawing(told, whole, request_class) for whole in _WHOLES if whole in there]


def _drawing(bundles: Sequence[RunBundle], whole: str, request_class: str | None) -> Drawing:
    shown = bundles[:_MOST_VARIANTS]
    labels = unique_labels(shown)
    blocks = [bundle.summary["attribution"] for bundle in shown]
    names = list(dict.fromkeys(name for block in blocks for name in block))[: panels.MOST]
    if request_class is not None:
        names = [name for name in names if name == request_class] or ["overall"]
    bars = {name: _bars(labels, blocks, name, whole) for name in names}
    rows = [
        (name, label, rank, split["request"], phase, ns / NS_PER_S)
        for name, of in bars.items()
        for label, rank, split in of
        for phase, ns in split["phases_ns"].items()
    ]
    said = [
        f"{label}: {split['sentence']}"
        for label, rank, split in bars[names[0]]
        if rank == "p99" and len(labels) <= panels.MOST
    ]
    about = (
        f"Where the time of one {_WHOLES[whole]}, of each variant. Below each bar stands its "
        "length. Parts below 0 were made shorter by what ran beside."
    )
    if len(bundles) > len(shown):
        about += f" The first {len(shown)} of {len(bundles)} variants."
    about = "\n".join([about, *said])

    def make(style: Style, _: XScale) -> go.Figure:
        return _stacked(bars, whole, style)

    header = ("class", "variant", "rank", "request", "phase", "time_s")
    heading = f"Where the time went: {whole.upper()}"
    return Drawing(f"attribution_{whole}", heading, about, header, rows, make)


_Bar = tuple[str, str, Mapping[str, Any]]


def _bars(
    labels: Sequence[str], blocks: Sequence[Mapping[str, Any]], name: str, whole: str
) -> list[_Bar]:
    """Of one class: label, rank and split of each bar, in the order of the variants."""
    return [
        (label, rank, block[name][whole][rank])
        for label, block in zip(labels, blocks, strict=True)
        for rank in _TICKS
        if rank in block.get(name, {}).get(whole, {})
    ]


def _stacked(bars: Mapping[str, Sequence[_Bar]], whole: str, style: Style) -> go.Figure:
    phases = _shown(bars)
    several = len(bars) > 1
    titles = [("All requests" if n == "overall" else n) if several else "" for n in bars]
    longest = max(len(_tick(*bar)) for of in bars.values() for bar in of)
    names_px = (longest * 0.47 - 1) * style.font_px
    fig, height = panels.grid(titles, style, 1, panel_px=0.4 * style.width_px, names_px=names_px)
    for row, of in enumerate(bars.values(), start=1):
        for phase in phases:
            fig.add_trace(_part(of, phase, phases), row, 1)
        fig.update_xaxes(
            tickvals=list(range(len(of))),
            ticktext=[plain(_tick(*bar)) for bar in of],
            tickangle=-60,
            showgrid=False,
            range=[-0.6, len(of) - 0.4],
            row=row,
            col=1,
        )
    names, colors = [p.replace("_", " ") for p in phases], [_color(p) for p in phases]
    legend = panels.add_swatches(fig, names, colors, style)
    panels.finish(fig, style, legend, height, names_px)
    fig.update_layout(barmode="relative", bargap=0.25)
    heading = title(f"Share of {whole.upper()} (%)", style)
    fig.update_yaxes(showgrid=True, tickformat="~g", title=heading)
    return fig


def _shown(bars: Mapping[str, Sequence[_Bar]]) -> list[str]:
    """Phases that are `_LEAST` of some bar, and `_REST` if there are others."""
    most: dict[str, float] = {}
    for of in bars.values():
        for _, _, split in of:
            for phase, ns in split["phases_ns"].items():
                share = abs(ns) / max(1, split["total_ns"])
                most[phase] = max(share, most.get(phase, 0.0))
    shown = [phase for phase in PHASES if most.get(phase, 0.0) >= _LEAST]
    return [*shown, _REST] if len(shown) < len(most) else shown


def _part(of: Sequence[_Bar], phase: str, phases: Sequence[str]) -> go.Bar:
    """One phase of all bars of a panel."""
    import plotly.graph_objects as go

    ns = [
        split["phases_ns"].get(phase, 0)
        if phase != _REST
        else sum(t for name, t in split["phases_ns"].items() if name not in phases)
        for _, _, split in of
    ]
    totals = [max(1, split["total_ns"]) for _, _, split in of]
    words = ADVICE[phase].words if phase in ADVICE else "in phases that are small everywhere"
    return go.Bar(
        x=list(range(len(of))),
        y=[100 * each / total for each, total in zip(ns, totals, strict=True)],
        marker={"color": _color(phase), "line": {"width": 0}},
        showlegend=False,
        customdata=[
            f"{plain(label)}, {_TICKS[rank]}: {seconds(each)}"
            for (label, rank, _), each in zip(of, ns, strict=True)
        ],
        hovertemplate=f"%{{customdata}} (%{{y:.1f}} %) {plain(words)}<extra></extra>",
    )


def _color(phase: str) -> str:
    return "#e8e8e8" if phase == _REST else color_of(phase)


def _tick(label: str, rank: str, split: Mapping[str, Any]) -> str:
    name = label if len(label) <= 16 else f"{label[:15]}…"
    return f"{name} {_TICKS[rank]}: {seconds(split['total_ns'])}"
