"""Curves of a sweep: latencies and attainment against the rate, attainment against SLO scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments import panels
from experiments.cdf_figure import SHOWN_IN_MS
from experiments.drawing import Drawing
from experiments.layout import Legend, marker, plain, round_values, stroke, title
from experiments.looks import Look, Style, looks
from experiments.sweep.bins import MOST_RANGES, Ranges, ranges_of
from experiments.sweep.frame import MEASURED_RATE, Frame, Place, is_number
from experiments.sweep.unit import scale_column
from sim.metric_definitions import METRICS

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_LINES = 8
"""Curves of a figure; with more, it takes values of the other keys from first to last."""
_RATES = 4
"""Panels of attainment against SLO scale."""
_LONGEST_TITLE = 24
"""Characters of a title that stands beside another one."""
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_PERCENTILES = ("p50", "p90", "p99")
_LEAST_TICKS = 3
_TICKS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
"""Labels within a decade, from the widest axis to the narrowest."""
_RATE_TITLE = "Requests a second"
MARKED = (
    "Open markers: more than half of the runs at this point were overloaded or backlogged, so that "
    "their latencies say how long they were. Bars: smallest and largest of several replications."
)


@dataclass(frozen=True)
class Series:
    """What stays the same along a curve, or the points of a variant where nothing does.

    Attributes:
        name: In the legend.
        look: Colour, dash and marker.
        places: Along it.
        joined: It is a curve; drawn points differ in several keys at once, and are not joined.
    """

    name: str
    look: Look
    places: tuple[Place, ...]
    joined: bool = True


def series_of(frame: Frame, along: str | None, *, alone: bool = False) -> list[Series]:
    """The curves along a key: one for each variant and setting of the other keys.

    Args:
        frame: Of the sweep.
        along: The key; None for the measured rate.
        alone: Each point is a curve of its own, over something else.
    """
    others = [key for key in frame.keys if key != along]
    groups = _grouped(frame, others)
    if not alone and not _are_curves(groups):
        return _unjoined(frame, along, others)
    chosen = list(groups)
    if len(chosen) > MOST_LINES:
        chosen = _in_order(frame, others, chosen)
        step = (len(chosen) - 1) / (MOST_LINES - 1)
        chosen = [chosen[round(at * step)] for at in range(MOST_LINES)]
    several = len(frame.variants) > 1
    names = [name_of(name[0], dict(zip(others, name[1:], strict=True)), several) for name in chosen]
    return _looking(dict(zip(names, (groups[key] for key in chosen), strict=True)), along)


def _looking(
    groups: Mapping[str, Sequence[Place]], along: str | None, *, joined: bool = True
) -> list[Series]:
    """Named groups with a look each, in order along the key."""
    drawn = looks([places[0].policy for places in groups.values()])
    return [
        Series(name, look, tuple(sorted(places, key=lambda each: rate_of(each, along))), joined)
        for (name, places), look in zip(groups.items(), drawn, strict=True)
    ]


def _unjoined(frame: Frame, along: str | None, others: Sequence[str]) -> list[Series]:
    """Points by variant and, where there is room for that, by ranges of one more key."""
    ranges = _ranges(frame, others)
    found: dict[tuple[str, int | None], list[Place]] = {}
    for place in frame.places:
        its = ranges[place.variant]
        at = None if its is None else its.of(place)
        found.setdefault((place.variant, at), []).append(place)
    several = len(frame.variants) > 1
    order = sorted(found, key=lambda name: (frame.variants.index(name[0]), name[1] or 0))
    groups = {}
    for variant, at in order:
        its = ranges[variant]
        said = [] if its is None or at is None else [its.names[at]]
        name = ", ".join([variant, *said] if several or not said else said)
        groups[name] = found[variant, at]
    return _looking(groups, along, joined=False)


def _ranges(frame: Frame, others: Sequence[str]) -> dict[str, Ranges | None]:
    """Of each variant, of the first key that is its own or of all variants."""
    most = min(MOST_RANGES, MOST_LINES // len(frame.variants))
    return {
        variant: ranges_of(frame, [key for key in others if _is_of(key, variant)], most)
        for variant in frame.variants
    }


def _is_of(key: str, variant: str) -> bool:
    return not key.startswith("variants.") or key.startswith(f"variants.{variant}.")


def _in_order(
    frame: Frame, keys: Sequence[str], names: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Curves by the values of their keys, so that those shown go from the lowest to the highest."""
    ranks = [{str(value): at for at, value in enumerate(frame.steps(key))} for key in keys]
    variants = frame.variants

    def rank(name: tuple[str, ...]) -> tuple[int, ...]:
        values = (of.get(said, -1) for of, said in zip(ranks, name[1:], strict=True))
        return (*values, variants.index(name[0]))

    return sorted(names, key=rank)


def _grouped(frame: Frame, keys: Sequence[str]) -> dict[tuple[str, ...], list[Place]]:
    groups: dict[tuple[str, ...], list[Place]] = {}
    for place in frame.places:
        name = (place.variant, *(str(place.settings.get(key)) for key in keys))
        groups.setdefault(name, []).append(place)
    return groups


def _are_curves(groups: Mapping[tuple[str, ...], Sequence[Place]]) -> bool:
    """Whether they have several points each, as a rule; a few single points do no harm."""
    return 2 * sum(len(its) > 1 for its in groups.values()) >= len(groups)


def name_of(variant: str, settings: Mapping[str, Any], several: bool) -> str:
    """Name of a curve: the variant, and the last words of keys with their values."""
    said = [f"{key.rpartition('.')[2]} {value}" for key, value in settings.items()]
    return ", ".join([variant, *said] if several or not said else said)


def rate_of(place: Place, along: str | None) -> float:
    """Where a place is on the axis of the rate."""
    if along is None:
        return place.values.get(MEASURED_RATE, 0.0)
    value = place.settings.get(along)
    return float(value) if isinstance(value, int | float) else 0.0


def rate_title(along: str | None) -> str:
    """Title of the axis of the rate."""
    words = {"speedup": "Speed-up of recorded arrivals", "concurrency": "Requests in the system"}
    return _RATE_TITLE if along is None else words.get(along.rpartition(".")[2], _RATE_TITLE)


def left_out(frame: Frame, along: str | None) -> str:
    """What a figure says if it does not show all curves."""
    others = [key for key in frame.keys if key != along]
    groups = _grouped(frame, others)
    if not _are_curves(groups):
        words = " and ".join(key.rpartition(".")[2] for key in others)
        found = [each.key for each in _ranges(frame, others).values() if each is not None]
        by = " or ".join(dict.fromkeys(key.rpartition(".")[2] for key in found))
        alike = f"; those that look alike are in one range of {by}" if by else ""
        return f" Points are not joined: they differ in {words} too{alike}."
    count = len(groups)
    if count <= MOST_LINES:
        return ""
    return f" {MOST_LINES} of {count} curves are shown; --at key=value chooses others."


def latency_drawings(frame: Frame) -> list[Drawing]:
    """P50, P90 and P99 of each latency against the rate, one panel each."""
    along = frame.rate_key
    drawings = []
    for key in _LATENCIES:
        metric = METRICS[key]
        columns = [f"{metric.name_in_files}.{p}" for p in _PERCENTILES]
        if not all(map(frame.has, columns)):
            continue
        scale = 1e3 if key in SHOWN_IN_MS else 1.0
        unit = "ms" if scale == 1e3 else "s"
        titles = [f"{p.upper()} {metric.title} ({unit})" for p in _PERCENTILES]
        drawings.append(
            Drawing(
                f"rate_{key}",
                f"{metric.title} against the rate",
                f"{metric.definition} {MARKED}{left_out(frame, along)}",
                ("curve", rate_title(along), "behind", *columns),
                [
                    (
                        each.name,
                        rate_of(place, along),
                        place.behind,
                        *(place.values.get(column) for column in columns),
                    )
                    for each in series_of(frame, along)
                    for place in each.places
                ],
                _latencies(frame, columns, titles, scale),
            )
        )
    return drawings


def _latencies(
    frame: Frame, columns: Sequence[str], titles: Sequence[str], scale: float
) -> Callable[[Style, Any], go.Figure]:
    along = frame.rate_key

    def make(style: Style, _: Any) -> go.Figure:
        series = series_of(frame, along)
        fig, height = panels.grid(titles, style, 1, panel_px=0.26 * style.width_px)
        for row, column in enumerate(columns, start=1):
            for at, each in enumerate(series):
                add_curve(fig, each, f"s{at}", style, along, column, scale, (row, 1))
        _finish(fig, series, style, height)
        fig.update_yaxes(type="log", tickformat="~g", showgrid=True)
        for row, column in enumerate(columns, start=1):
            shown = [p.values[column] for s in series for p in s.places if column in p.values]
            fig.update_yaxes(**log_ticks([scale * value for value in shown]), row=row, col=1)
        fig.update_xaxes(showgrid=False)
        fig.update_xaxes(title=title(rate_title(along), style), row=len(columns), col=1)
        return fig

    return make


def log_ticks(values: Sequence[float]) -> dict[str, Any]:
    """Labels of a logarithmic axis: decades where there are three, else values between them."""
    positive = [value for value in values if value > 0]
    if not positive:
        return {}
    low, high = 0.95 * min(positive), 1.05 * max(positive)
    decades = [10.0**power for power in range(-12, 13)]
    for parts in _TICKS:
        ticks = [part * decade for decade in decades for part in parts]
        ticks = [float(f"{tick:.6g}") for tick in ticks if low <= tick <= high]
        if len(ticks) >= _LEAST_TICKS:
            return {"tickvals": ticks}
    return {"tickvals": round_values(low, high)}


def attainment_drawings(frame: Frame) -> list[Drawing]:
    """Attainment against the rate and against SLO scale, where there are targets."""
    if not frame.has("slo_attainment"):
        return []
    along = frame.rate_key
    about = METRICS["slo_attainment"].definition
    rows = [
        (each.name, rate_of(place, along), place.behind, place.values.get("slo_attainment"))
        for each in series_of(frame, along)
        for place in each.places
    ]

    def by_rate(style: Style, _: Any) -> go.Figure:
        series = series_of(frame, along)
        fig, height = panels.grid([""], style, 1)
        for at, each in enumerate(series):
            add_curve(fig, each, f"s{at}", style, along, "slo_attainment", 100, (1, 1))
        _finish(fig, series, style, height)
        _share_axes(fig, style, rate_title(along))
        return fig

    return [
        Drawing(
            "rate_attainment",
            "SLO attainment against the rate",
            f"{about} {MARKED}{left_out(frame, along)}",
            ("curve", rate_title(along), "behind", "slo_attainment"),
            rows,
            by_rate,
        ),
        *_scale_drawings(frame),
    ]


def _scale_drawings(frame: Frame) -> list[Drawing]:
    if len(frame.slo_scales) < 2:
        return []
    rates = _some_rates(frame)
    shown = [(said, frame.at(fixed)) for said, fixed in rates]

    def make(style: Style, _: Any) -> go.Figure:
        wide = max(len(said) for said, _ in shown) > _LONGEST_TITLE
        columns = 1 if wide else panels.columns_for(len(shown))
        height_px = 0.26 * style.width_px if wide else None
        fig, height = panels.grid([said for said, _ in shown], style, columns, panel_px=height_px)
        of = [series_of(each, frame.rate_key, alone=True) for _, each in shown]
        for position, series in enumerate(of):
            cell = panels.cell(position, columns)
            for at, each in enumerate(series):
                _add_scales(fig, each, f"s{at}", style, frame.slo_scales, cell)
        _finish(fig, of[0], style, height)
        _share_axes(fig, style, "")
        fig.update_yaxes(title=None)
        for position in range(len(shown)):
            row, column = panels.cell(position, columns)
            if position >= len(shown) - columns:
                fig.update_xaxes(title=title("Scale of the targets", style), row=row, col=column)
            if column == 1:
                fig.update_yaxes(title=title("SLO attainment (%)", style), row=row, col=column)
        ticks = _apart(frame.slo_scales)
        fig.update_xaxes(
            type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks], tickangle=0
        )
        return fig

    rows = [
        (said, series.name, scale, place.behind, place.values.get(scale_column(scale)))
        for said, each in shown
        for series in series_of(each, frame.rate_key, alone=True)
        for place in series.places
        for scale in frame.slo_scales
    ]
    about = (
        "Share of requests that meet all targets times a factor: below 1 stricter than asked for, "
        f"above 1 more relaxed. {MARKED}"
    )
    header = ("rate", "curve", "slo_scale", "behind", "slo_attainment")
    return [Drawing("slo_scale", "SLO attainment against SLO scale", about, header, rows, make)]


def _apart(scales: Sequence[float]) -> list[float]:
    """1 and those scales that have room for a label beside each other on a logarithmic axis."""
    ticks = [1.0] if scales[0] <= 1 <= scales[-1] else [scales[0]]
    for scale in [each for each in scales if each > ticks[0]]:
        if scale >= 1.6 * ticks[-1]:
            ticks.append(scale)
    for scale in reversed([each for each in scales if each < ticks[0]]):
        if scale <= ticks[0] / 1.6:
            ticks.insert(0, scale)
    return ticks


def _some_rates(frame: Frame) -> list[tuple[str, dict[str, Any]]]:
    """Up to four rates from the lowest to the highest, as titles and settings.

    Of drawn points, of which no two have other keys in common, four points.
    """
    key = frame.rate_key
    if key is None:
        return [("", {})]
    chosen = frame.steps(key)
    if len(chosen) > _RATES:
        last = len(chosen) - 1
        chosen = [chosen[round(at * last / (_RATES - 1))] for at in range(_RATES)]
    others = [each for each in frame.keys if each != key]
    if _are_curves(_grouped(frame, others)):
        return [(_named({key: value}), {key: value}) for value in chosen]
    places = [next(p for p in frame.places if p.settings[key] == value) for value in chosen]
    fixed = [{each: place.settings[each] for each in (key, *others)} for place in places]
    return [(_named(each), each) for each in fixed]


def _named(settings: Mapping[str, Any]) -> str:
    """``rate_per_s 8, max_num_seqs 64``, numbers rounded for the eye."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {value:.4g}" if is_number(value) else f"{key} {value}"
        for key, value in settings.items()
    )


def _add_scales(
    fig: go.Figure,
    series: Series,
    group: str,
    style: Style,
    scales: Sequence[float],
    cell: tuple[int, int],
) -> None:
    import plotly.graph_objects as go

    if not series.places:
        return
    place = series.places[0]
    look = _marked(series.look, [place.behind] * len(scales), style)
    fig.add_trace(
        go.Scatter(
            x=list(scales),
            y=[_times(place.values.get(scale_column(scale)), 100) for scale in scales],
            mode="lines+markers",
            line=stroke(series.look, style),
            marker=look,
            name=plain(series.name),
            legendgroup=group,
            showlegend=False,
            cliponaxis=False,
            hovertemplate="%{fullData.name}<br>scale %{x:g}: %{y:.1f} %<extra></extra>",
        ),
        *cell,
    )


def add_curve(
    fig: go.Figure,
    series: Series,
    group: str,
    style: Style,
    along: str | None,
    column: str,
    scale: float,
    cell: tuple[int, int],
) -> None:
    """A column along the rate, overloaded points with open markers."""
    import plotly.graph_objects as go

    places = [place for place in series.places if column in place.values]
    y = [scale * place.values[column] for place in places]
    low = [v - scale * place.spread[column][0] for v, place in zip(y, places, strict=True)]
    high = [scale * place.spread[column][1] - v for v, place in zip(y, places, strict=True)]
    bars = any(value > 0 for value in (*low, *high))
    fig.add_trace(
        go.Scatter(
            x=[rate_of(place, along) for place in places],
            y=y,
            error_y={
                "visible": bars,
                "symmetric": False,
                "array": high,
                "arrayminus": low,
                "color": series.look.color,
                "thickness": style.line_px / 2,
                "width": style.line_px,
            },
            mode="lines+markers" if series.joined else "markers",
            line=stroke(series.look, style),
            marker=_marked(series.look, [place.behind for place in places], style),
            name=plain(series.name),
            legendgroup=group,
            showlegend=False,
            cliponaxis=False,
            hovertemplate="%{fullData.name}<br>%{x:.4g}: %{y:.4g}<extra></extra>",
        ),
        *cell,
    )


def _marked(look: Look, behind: Sequence[bool], style: Style) -> dict[str, Any]:
    """Markers, those of overloaded points open."""
    made = marker(look, style)
    return {
        **made,
        "size": 1.25 * made["size"],
        "color": ["white" if each else look.color for each in behind],
        "line": {"color": look.color, "width": 0.5 * style.line_px},
    }


def _finish(fig: go.Figure, series: Sequence[Series], style: Style, height: float) -> None:
    """Legend, size and margins."""
    import plotly.graph_objects as go

    legend = Legend.fit([each.name for each in series], style)
    for at, (each, text) in enumerate(zip(series, legend.texts, strict=True)):
        fig.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                mode="lines+markers" if each.joined else "markers",
                line=stroke(each.look, style),
                marker=marker(each.look, style),
                legendgroup=f"s{at}",
                name=text,
            )
        )
    panels.finish(fig, style, legend, height)


def _share_axes(fig: go.Figure, style: Style, x: str) -> None:
    fig.update_xaxes(title=title(x, style), showgrid=False)
    fig.update_yaxes(
        title=title("SLO attainment (%)", style), range=[0, 102], tickformat="~g", showgrid=True
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value
