"""Pareto plots of a sweep: which points no other one beats in both of two numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from experiments import panels
from experiments.drawing import Drawing
from experiments.layout import Legend, marker, plain, stroke, title
from experiments.looks import Style, looks
from experiments.quantity import read_quantity
from experiments.sweep.curves import log_ticks, name_of
from experiments.sweep.frame import Frame, Place
from experiments.sweep.heat_map import heading_of
from sim.errors import ConfigError

if TYPE_CHECKING:
    import plotly.graph_objects as go


def sign_of(column: str) -> int:
    """1 where less of a column is better, -1 where more is.

    Raises:
        ConfigError: Neither is.
    """
    better = read_quantity(column, "--pareto").metric.better
    if better == "neither":
        raise ConfigError(f"--pareto {column}: neither less nor more of it is better")
    return 1 if better == "lower" else -1


def front_of(places: Sequence[Place], first: str, second: str) -> list[Place]:
    """Places that keep up and that none of these beats, ordered by `first`.

    One beats another if it is at least as good in both numbers and better in one. Of equal ones
    each is on the front.
    """
    able = [p for p in places if not p.behind and first in p.values and second in p.values]
    a, b = sign_of(first), sign_of(second)
    able.sort(key=lambda place: (a * place.values[first], b * place.values[second]))
    front: list[Place] = []
    best: float | None = None
    for place in able:
        value = b * place.values[second]
        same = bool(front) and all(
            place.values[name] == front[-1].values[name] for name in (first, second)
        )
        if best is None or value < best or same:
            front.append(place)
            best = value
    return front


def pareto(frame: Frame, first: str, second: str) -> Drawing:
    """Every point at two of its numbers, and the front of each variant.

    Raises:
        ConfigError: A column is no number of a run, or has no better side.
    """
    names = [heading_of(column) for column in (first, second)]
    fronts = {variant: front_of(_of(frame, variant), first, second) for variant in frame.variants}
    about = (
        "Each marker is a point of the sweep. The line joins those that no other point of its "
        "variant beats in both numbers, among those that keep up. Open markers: more than half of "
        "the runs were overloaded or backlogged; they are on no front."
    )
    rows = [
        (
            name_of(place.variant, place.settings, True),
            place.values[first],
            place.values[second],
            place.behind,
            any(place is each for each in fronts[place.variant]),
        )
        for place in frame.places
        if first in place.values and second in place.values
    ]
    key = f"pareto_{first}_{second}".replace(".", "_")
    header = ("point", first, second, "behind", "on_front")

    def make(style: Style, _: Any) -> go.Figure:
        return _draw(frame, fronts, (first, second), style)

    return Drawing(key, f"{names[0]} against {names[1]}", about, header, rows, make)


def _of(frame: Frame, variant: str) -> list[Place]:
    return [place for place in frame.places if place.variant == variant]


def _draw(
    frame: Frame, fronts: dict[str, list[Place]], columns: tuple[str, str], style: Style
) -> go.Figure:
    import plotly.graph_objects as go

    first, second = columns
    fig, height = panels.grid([""], style, 1)
    drawn = looks([_of(frame, variant)[0].policy for variant in frame.variants])
    legend = Legend.fit(frame.variants, style)
    for variant, look, text in zip(frame.variants, drawn, legend.texts, strict=True):
        places = [p for p in _of(frame, variant) if first in p.values and second in p.values]
        made = marker(look, style)
        fig.add_trace(
            go.Scatter(
                x=[place.values[first] for place in places],
                y=[place.values[second] for place in places],
                mode="markers",
                marker={
                    **made,
                    "color": ["white" if place.behind else look.color for place in places],
                    "line": {"color": look.color, "width": 0.5 * style.line_px},
                },
                text=[plain(name_of(variant, place.settings, True)) for place in places],
                hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
                legendgroup=variant,
                showlegend=False,
            )
        )
        front = fronts[variant]
        fig.add_trace(
            go.Scatter(
                x=_at_least_one([place.values[first] for place in front]),
                y=_at_least_one([place.values[second] for place in front]),
                mode="lines+markers",
                line={**stroke(look, style), "shape": "hv"},
                marker={**made, "size": 1.6 * made["size"]},
                name=text,
                legendgroup=variant,
                hoverinfo="skip",
            )
        )
    panels.finish(fig, style, legend, height)
    for update, column in ((fig.update_xaxes, first), (fig.update_yaxes, second)):
        values = [p.values[column] for p in frame.places if column in p.values]
        wide = min(values, default=0) > 0 and max(values) > 20 * min(values)
        update(title=title(heading_of(column), style), tickformat="~g", showgrid=True)
        if wide:
            update(type="log", **log_ticks(values))
    return fig


def _at_least_one(values: list[float]) -> list[float | None]:
    """A curve without a point would have no entry in the legend."""
    return [*values] or [None]
