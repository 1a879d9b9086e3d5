"""Figures by class, by tenant and by replica: distributions in panels, and bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import panels
from experiments.cdf import curve_of_values
from experiments.cdf_figure import (
    SHOWN_IN_MS,
    Line,
    XScale,
    add_legend,
    add_line,
    heading_of,
    set_axes,
    set_log_range,
)
from experiments.drawing import Drawing
from experiments.layout import Legend, plain, title
from experiments.looks import Style, looks
from experiments.report import RunBundle, RunHead, measured, unique_labels, verdict_mark
from sim.fairness import served_tokens
from sim.metric_definitions import METRICS
from sim.metrics import PER_REQUEST, Floats
from sim.slo import request_classes, request_tenants, select

if TYPE_CHECKING:
    import plotly.graph_objects as go

_OF = MappingProxyType({"classes": request_classes, "tenants": request_tenants})
_ONE = MappingProxyType({"classes": "class", "tenants": "tenant"})
_CDFS = ("ttft", "tpot", "e2e")
_BARS = ("slo_attainment", "prefix_hit_rate_tokens", "normalised_latency")
_UNEVEN = 1.2
"""Largest / mean load from which bars of replicas say something."""
_MOST_REPLICAS = 64


def group_drawings(bundles: Sequence[RunBundle]) -> list[Drawing]:
    """Distributions and bars by class and by tenant, and loads of replicas, where there are any."""
    drawings = []
    for group in _OF:
        names = names_of(bundles, group)
        if len(names) > 1:
            drawings += [
                drawing
                for key in _CDFS
                if (drawing := _cdfs(bundles, group, names, key)) is not None
            ]
            drawings += _bars(bundles, group, names)
    return drawings + _loads(bundles)


def names_of(bundles: Sequence[RunHead], group: str) -> list[str]:
    """Those that any variant tells apart, by the number of their requests in all, at most `MOST`.

    In alphabetical order.
    """
    counts: dict[str, int] = {}
    for bundle in bundles:
        for name, block in bundle.summary.get(group, {}).items():
            counts[name] = counts.get(name, 0) + block["requests"]["arrived"]
    most = sorted(counts, key=lambda name: (-counts[name], name))[: panels.MOST]
    return sorted(most)


# --- distributions


def _cdfs(
    bundles: Sequence[RunBundle], group: str, names: Sequence[str], key: str
) -> Drawing | None:
    lines = {name: _lines(bundles, group, name, key) for name in names}
    if not any(line.curve for of in lines.values() for line in of):
        return None
    metric = METRICS[key]
    rows = [
        (name, line.label, x, share)
        for name, of in lines.items()
        for line in of
        if line.curve is not None
        for x, share in zip(line.curve.x.tolist(), line.curve.share.tolist(), strict=True)
    ]
    targets = {name: target_s(bundles, group, name, key) for name in names}
    about = metric.definition
    if any(targets.values()):
        about += " A vertical line is the target."
    if len(names) == panels.MOST:
        about += f" At most {panels.MOST}, those with the most requests."

    def make(style: Style, x_scale: XScale) -> go.Figure:
        return _panels_of(lines, targets, key, style, x_scale)

    header = (_ONE[group], "variant", metric.name_in_files, "share")
    return Drawing(
        f"{key}_by_{_ONE[group]}",
        f"{metric.title} by {_ONE[group]}",
        about,
        header,
        rows,
        make,
    )


def _lines(bundles: Sequence[RunBundle], group: str, name: str, key: str) -> list[Line]:
    chosen = looks([bundle.policy for bundle in bundles])
    made = []
    for bundle, label, look in zip(bundles, unique_labels(bundles), chosen, strict=True):
        requests = measured(bundle)
        rows = select(requests, _OF[group](requests) == name)
        curve = curve_of_values(PER_REQUEST[key](rows))
        made.append(Line(label, verdict_mark(bundle), bundle.policy, look, curve))
    return made


def target_s(bundles: Sequence[RunHead], group: str, name: str, key: str) -> float | None:
    """The target of a class, where all variants have the same."""
    targets = set()
    for bundle in bundles:
        slo: Mapping[str, Any] = bundle.summary["slo"]
        own = slo.get("classes", {}).get(name, {}) if group == "classes" else {}
        targets.add(own.get(f"{key}_s", slo.get(f"{key}_s")))
    return targets.pop() if len(targets) == 1 else None


def _panels_of(
    lines: Mapping[str, Sequence[Line]],
    targets: Mapping[str, float | None],
    key: str,
    style: Style,
    x_scale: XScale,
) -> go.Figure:
    metric, scale = METRICS[key], 1e3 if key in SHOWN_IN_MS else 1.0
    columns = panels.columns_for(len(lines))
    fig, height = panels.grid([*lines], style, columns)
    for position, (name, of) in enumerate(lines.items()):
        row, column = panels.cell(position, columns)
        for i, line in enumerate(of):
            if line.curve is not None:
                add_line(fig, line, f"v{i}", style, scale, x_scale, (row, column))
        if (target := targets[name]) is not None:
            mark = {"color": "#444444", "width": style.line_px / 2, "dash": "dash"}
            fig.add_vline(x=scale * target, line=mark, row=row, col=column)
    shown = _somewhere([*lines.values()])
    legend = Legend.fit([line.name for line in shown if line.curve is not None], style)
    add_legend(fig, shown, legend, style)
    panels.finish(fig, style, legend, height)
    set_axes(fig, metric, style, x_scale, "")
    if x_scale == "log":
        # A target that all stay far away from, on either side, is the news.
        marked = [target for target in targets.values() if target is not None]
        set_log_range(fig, [line for of in lines.values() for line in of], scale, marked)
    fig.update_yaxes(title=None)
    fig.update_yaxes(title=title("Share of requests", style), col=1)
    for row, column in (panels.cell(at, columns) for at in range(len(lines))[-columns:]):
        heading = title(heading_of(metric, scale), style)
        fig.update_xaxes(title=heading, row=row, col=column)
    return fig


def _somewhere(lines: Sequence[Sequence[Line]]) -> list[Line]:
    """Of each variant a line that has a curve in some panel, for the legend."""
    return [
        next((line for line in of if line.curve is not None), of[0])
        for of in zip(*lines, strict=True)
    ]


# --- bars


def _bars(bundles: Sequence[RunBundle], group: str, names: Sequence[str]) -> list[Drawing]:
    values = {key: _values(bundles, group, names, key) for key in _BARS}
    values = {key: of for key, of in values.items() if not np.isnan(of).all()}
    labels = unique_labels(bundles)
    rows = [
        (name, label, METRICS[key].name_in_files, float(value))
        for key, of in values.items()
        for label, row in zip(labels, of, strict=True)
        for name, value in zip(names, row, strict=True)
        if not np.isnan(value)
    ]
    about = " ".join(f"{METRICS[key].title}: {METRICS[key].definition}" for key in values)

    def make(style: Style, _: XScale) -> go.Figure:
        titles = [_bar_title(key) for key in values]
        shown = [of * (1e3 if key in SHOWN_IN_MS else 1) for key, of in values.items()]
        return _bar_panels(bundles, names, titles, shown, style)

    one = _ONE[group]
    header = (one, "variant", "metric", "value")
    return [Drawing(f"by_{one}", f"By {one}", about, header, rows, make)] if values else []


def _bar_title(key: str) -> str:
    metric = METRICS[key]
    mean = heading_of(metric, 1e3 if key in SHOWN_IN_MS else 1)
    return f"Mean {mean[0].lower()}{mean[1:]}" if metric.spread else f"{metric.title} (%)"


def _values(bundles: Sequence[RunBundle], group: str, names: Sequence[str], key: str) -> Floats:
    """One row per variant, one column per class or tenant; NaN where there is no value."""
    metric = METRICS[key]

    def of(bundle: RunBundle, name: str) -> float:
        value = bundle.summary.get(group, {}).get(name, {}).get(metric.name_in_files)
        value = value["mean"] if metric.spread and value is not None else value
        return np.nan if value is None else value * (1 if metric.spread else 100)

    return np.array([[of(bundle, name) for name in names] for bundle in bundles], dtype=float)


def _loads(bundles: Sequence[RunBundle]) -> list[Drawing]:
    """Tokens served by each replica, in means of its pool, where a variant is uneven."""
    uneven = [bundle.summary["overall"].get("imbalance_served_tokens") or 1 for bundle in bundles]
    names = list(dict.fromkeys(r.name for bundle in bundles for r in bundle.replicas))
    if max(uneven, default=1) < _UNEVEN or len(names) > _MOST_REPLICAS:
        return []
    labels = unique_labels(bundles)
    values = np.array([_load(bundle, names) for bundle in bundles])
    rows = [
        (name, label, float(value))
        for label, row in zip(labels, values, strict=True)
        for name, value in zip(names, row, strict=True)
        if not np.isnan(value)
    ]

    def make(style: Style, _: XScale) -> go.Figure:
        return _bar_panels(bundles, names, ["Tokens served / mean of the pool"], [values], style)

    about = METRICS["imbalance_served_tokens"].definition
    header = ("replica", "variant", "served_tokens_of_mean")
    return [Drawing("load_by_replica", "Load of the replicas", about, header, rows, make)]


def _load(bundle: RunBundle, names: Sequence[str]) -> list[float]:
    served = served_tokens(measured(bundle), bundle.replicas)
    pools = np.array([replica.pool for replica in bundle.replicas])
    load = {
        replica.name: float(tokens / max(1.0, served[pools == replica.pool].mean()))
        for replica, tokens in zip(bundle.replicas, served.tolist(), strict=True)
    }
    return [load.get(name, np.nan) for name in names]


def _bar_panels(
    bundles: Sequence[RunBundle],
    names: Sequence[str],
    titles: Sequence[str],
    values: Sequence[Floats],
    style: Style,
) -> go.Figure:
    import plotly.graph_objects as go

    bars = [panels.bar(look, style) for look in looks([bundle.policy for bundle in bundles])]
    labels = unique_labels(bundles)
    legend = Legend.fit(labels, style)
    longest = max(len(name) for name in names)
    # Names too long to stand beside each other are turned.
    room = 0.85 * style.width_px / len(names)
    turned = longest * 0.56 * style.font_px > room
    names_px = max(0.0, (min(longest, 24) * 0.5 - 1) * style.font_px) if turned else 0.0
    fig, height = panels.grid(titles, style, 1, panel_px=0.28 * style.width_px, names_px=names_px)
    shown = [plain(name if len(name) <= 24 else f"{name[:23]}…") for name in names]
    for row, of in enumerate(values, start=1):
        for label, text, fill, heights in zip(labels, legend.texts, bars, of, strict=True):
            fig.add_trace(
                go.Bar(
                    x=list(range(len(names))),
                    y=[None if np.isnan(value) else float(value) for value in heights],
                    marker=fill,
                    name=text,
                    legendgroup=label,
                    showlegend=row == 1,
                    customdata=shown,
                    hovertemplate=f"{plain(label)}<br>%{{customdata}}: %{{y:.3~g}}<extra></extra>",
                ),
                row,
                1,
            )
    panels.finish(fig, style, legend, height, names_px)
    fig.update_layout(barmode="group", bargap=0.25, bargroupgap=0.05)
    fig.update_xaxes(
        tickvals=list(range(len(names))),
        ticktext=shown,
        tickangle=-60 if turned else 0,
        range=[-0.6, len(names) - 0.4],
        showgrid=False,
    )
    fig.update_yaxes(rangemode="tozero", showgrid=True, tickformat="~g")
    for row, text in enumerate(titles, start=1):
        if text.endswith("(%)"):
            fig.update_yaxes(range=[0, 101], row=row, col=1)
    return fig
