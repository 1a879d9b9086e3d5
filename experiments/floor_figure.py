"""Floors in distributions: a grey curve, and the area above it that cannot be reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.bundle import Bundle
from experiments.cdf import Curve, curve_of_values
from experiments.floors import KEYS, Floors, floors_of
from experiments.layout import plain
from experiments.looks import Style
from experiments.report import RunBundle, measured_mask, unique_labels
from sim.metrics import PER_REQUEST
from sim.slo import request_classes

if TYPE_CHECKING:
    import plotly.graph_objects as go

GREY = "#6b7075"
_SAID = (
    "Grey: each request's own floor, from its uncached prompt tokens (or its decode steps) alone "
    "and the peaks of the data sheet, without efficiency or host time; the hatched area cannot be "
    "reached."
)


def floor_curves(
    bundles: Sequence[RunBundle], request_class: str | None = None
) -> tuple[dict[str, Curve], dict[str, str]]:
    """The floors of all variants together, at each value those of the quickest one.

    Args:
        bundles: All variants; floors follow from the configs, which only `Bundle` has.
        request_class: Only the requests of one class; None for all.

    Returns:
        Curves by metric, and what there is to say of each metric's floors, or of their absence.
    """
    read = [(n, each) for n, each in zip(unique_labels(bundles), bundles, strict=True)]
    found = [(name, each, floors_of(each)) for name, each in read if isinstance(each, Bundle)]
    curves, said = {}, {}
    for key in KEYS:
        own = [_curve(each, floors, key, request_class) for _, each, floors in found]
        drawn = [curve for curve in own if curve is not None]
        if drawn:
            curves[key] = envelope(drawn)
        said[key] = _told(key, [(name, floors) for name, _, floors in found], drawn=bool(drawn))
    return curves, said


def _curve(bundle: Bundle, floors: Floors, key: str, request_class: str | None) -> Curve | None:
    if key not in floors.values:
        return None
    mask = measured_mask(bundle) & ~np.isnan(PER_REQUEST[key](bundle.requests))
    if request_class is not None:
        mask &= request_classes(bundle.requests) == request_class
    return curve_of_values(floors.values[key][mask])


def envelope(curves: Sequence[Curve]) -> Curve:
    """At each value the largest of the shares: what no variant can be above."""
    x = np.unique(np.concatenate([curve.x for curve in curves]))
    shares = [
        np.concatenate(([0.0], curve.share))[np.searchsorted(curve.x, x, side="right")]
        for curve in curves
    ]
    return Curve(x, np.max(shares, axis=0), curves[0].marks)


def _told(key: str, floors: Sequence[tuple[str, Floors]], *, drawn: bool) -> str:
    """What the floors are, which variants have none, and how many requests beat theirs."""
    sentences = [_SAID] if drawn else []
    whys: dict[str, list[str]] = {}
    for name, of in floors:
        if key in of.why:
            whys.setdefault(of.why[key], []).append(name)
    for why, names in whys.items():
        sentences.append(why if len(names) == len(floors) else f"{', '.join(names)}: {why}")
    for name, of in floors:
        if of.beaten.get(key):
            sentences.append(
                f"{name}: {of.beaten[key]:,} requests beat the floor of the data sheet, as the "
                "measured step times do."
            )
    return " ".join(sentences)


def add_floor(fig: go.Figure, curve: Curve, style: Style, scale: float, left: float) -> None:
    """Add the curve, and the hatched area above it.

    Args:
        fig: Changed in place.
        curve: Of the floors, seconds.
        style: Sizes.
        scale: From seconds to the values of the axis.
        left: Where the axis begins.
    """
    import plotly.graph_objects as go

    x = np.repeat(scale * curve.x, 2)
    y = np.concatenate(([0.0], np.repeat(curve.share, 2)[:-1]))
    line = {"color": GREY, "width": style.line_px}
    common = {"mode": "lines", "showlegend": False, "line": line}
    beyond = {
        "shape": "/",
        "fgcolor": GREY,
        "fgopacity": 0.4,
        "size": style.font_px,
        "solidity": 0.1,
    }
    left = min(left, float(x[0]))
    fig.add_trace(
        go.Scatter(
            x=[left, left, *x.tolist()],
            y=[1.0, 0.0, *y.tolist()],
            fill="toself",
            fillcolor="rgba(0,0,0,0)",
            fillpattern=beyond,
            hoverinfo="skip",
            **{**common, "line": {"width": 0}},
        )
    )
    fig.add_trace(
        go.Scatter(
            x=x.tolist(),
            y=y.tolist(),
            hovertemplate=f"{plain('floor')}<br>%{{x:.4g}}: %{{y:.2%}}<extra></extra>",
            **common,
        )
    )


def with_floors(about: Mapping[str, str], key: str, definition: str) -> str:
    """The text above a figure: what the metric is, and what there is to say of its floors."""
    return " ".join(filter(None, (definition, about.get(key, ""))))
