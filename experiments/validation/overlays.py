"""Figures of a validation: measured and simulated distributions, and curves over time."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.looks import FONT_STACK, SCREEN
from experiments.validation.outcome import Outcome, Overlay

if TYPE_CHECKING:
    import plotly.graph_objects as go

MEASURED, SIMULATED = "#000000", "#0072b2"
_DASH = "6px,4px"
_LOG_FROM = 20
"""Times the smallest value from which on the axis of latencies is logarithmic."""


def write(outcomes: Sequence[Outcome], path: Path) -> Path | None:
    """All figures on one page that needs nothing else; nothing where no case has one."""
    from plotly.io import to_html
    from plotly.offline import get_plotlyjs

    sections = []
    for outcome in outcomes:
        for number, overlay in enumerate(outcome.overlays):
            body = to_html(
                figure(overlay),
                full_html=False,
                include_plotlyjs=False,
                include_mathjax=False,
                div_id=f"{outcome.case.name}-{number}",
            )
            sections.append(f"<h2>{html.escape(overlay.title)}</h2>\n{body}")
    if not sections:
        return None
    path.write_text(_page("\n".join(sections), get_plotlyjs()), encoding="utf-8")
    return path


def figure(overlay: Overlay) -> go.Figure:
    """One overlay: two cumulative distributions, or two curves over time."""
    import plotly.graph_objects as go

    over_time = overlay.times_s is not None
    drawn = go.Figure()
    for label, values, color, dash in zip(
        overlay.labels, (overlay.measured, overlay.simulated), (MEASURED, SIMULATED),
        ("solid", _DASH), strict=True,
    ):  # fmt: skip
        x, y = (overlay.times_s, values) if over_time else distribution(values)
        shape = "linear" if over_time else "hv"
        line = {"color": color, "dash": dash, "width": SCREEN.line_px, "shape": shape}
        drawn.add_scatter(x=x, y=y, name=label, mode="lines", line=line)
    drawn.update_layout(**_layout(overlay, over_time=over_time))
    return drawn


def distribution(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Steps of the cumulative distribution: sorted values (n + 1,) and shares (n + 1,)."""
    ordered = np.sort(values[~np.isnan(values)])
    return np.concatenate([ordered[:1], ordered]), np.arange(len(ordered) + 1) / len(ordered)


def _layout(overlay: Overlay, *, over_time: bool) -> dict[str, Any]:
    values = np.concatenate([overlay.measured, overlay.simulated])
    values = values[~np.isnan(values)]
    wide = not over_time and values.min() > 0 and values.max() > _LOG_FROM * values.min()
    return {
        "width": round(SCREEN.width_px),
        "height": 360,
        "template": "simple_white",
        "font": {"family": FONT_STACK, "size": SCREEN.font_px},
        "margin": {"l": 60, "r": 20, "t": 10, "b": 50},
        "legend": {"x": 0.98, "xanchor": "right", "y": 0.05, "yanchor": "bottom"},
        "xaxis": {
            "title": "time (s)" if over_time else overlay.unit,
            "type": "log" if wide else "linear",
        },
        "yaxis": {"title": "" if over_time else "share"},
    }


def _page(sections: str, plotlyjs: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<title>phasewise: validation</title>\n"
        f"<style>body {{ font-family: {FONT_STACK}; margin: 2em; }}</style>\n"
        f"<script>{plotlyjs}</script></head><body>\n<h1>Measured and simulated</h1>\n"
        f"{sections}\n</body></html>\n"
    )
