"""Figures of latency distributions, all variants in one pair of axes, drawn from results bundles.

HTML always; SVG, PDF and PNG with the extra `figures`. The points of every figure lie beside it as
CSV. Where a curve has very many points it is thinned as `experiments.cdf` says.
"""

from __future__ import annotations

import base64
import csv
import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from experiments.cdf import MARKED, MAX_POINTS, Curve, curve_of_gaps, curve_of_values
from experiments.extras import MissingExtraError, require
from experiments.looks import FONT, FONT_STACK, PX_PER_MM, SCREEN, STYLES, Look, Style, looks
from experiments.report import RunBundle, measured, metrics_of, unique_labels, verdict_mark
from sim.errors import ConfigError, nearest
from sim.metric_definitions import METRICS, Metric
from sim.metrics import PER_REQUEST, merge_gaps

if TYPE_CHECKING:
    import plotly.graph_objects as go

XScale = Literal["log", "linear"]

CDFS = ("ttft", "tpot", "itl", "e2e", "normalised_latency")
"""Metrics of which a figure is drawn."""

IMAGES = ("svg", "pdf", "png")
FORMATS = ("html", *IMAGES)
"""Formats in which figures are written; their points always as CSV."""

_SHOWN_IN_MS = ("tpot", "itl", "normalised_latency")
_GREY = "#777777"
_PNG_DPI = 300
_NARROW_DECADES = 0.7
"""A logarithmic axis that spans less has one label, or none, at 1, 2 and 5."""
_LEGEND_GAPS_PX = 24
"""What plotly leaves free around one entry of a legend."""
_TEXT_WIDTH = 0.54
"""Mean width of a character of the font / its size, a little on the wide side."""


@dataclass(frozen=True)
class Line:
    """One variant in one figure.

    Attributes:
        label: Name of the variant, as plain text.
        mark: What is to be known of the run, such as its verdict; may be empty.
        policy: Name of the policy.
        look: Colour, dash and marker.
        curve: Its points, None where the metric has no value.
    """

    label: str
    mark: str
    policy: str
    look: Look
    curve: Curve | None

    @property
    def name(self) -> str:
        """Label and mark, as in the legend."""
        return f"{self.label} ({self.mark})" if self.mark else self.label


@dataclass(frozen=True)
class Plotted:
    """What `plot` wrote.

    Attributes:
        files: In order of writing.
        notes: Sentences for the user: what was left out, and why.
    """

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def plot(
    bundles: Sequence[RunBundle],
    out: Path,
    *,
    style: str = "paper",
    width_mm: float | None = None,
    x_scale: XScale = "log",
    formats: Sequence[str] = FORMATS,
    request_class: str | None = None,
    about: str = "",
    browser: Path | None = None,
) -> Plotted:
    """Draw the distributions of `CDFS`, all bundles in each figure.

    Writes ``figures.html`` with all figures, and for each ``<metric>_cdf.csv`` and the images.

    Args:
        bundles: At least one.
        out: Folder, made where there is none.
        style: Of the images, a key of `STYLES`.
        width_mm: Width of the images; None for that of the style.
        x_scale: Of the latency axis.
        formats: Of `FORMATS`. Images need the extra `figures` and a browser; a note says if one
            of them is missing.
        request_class: Only the requests of one class; None for all.
        about: A sentence above the page's figures, as plain text.
        browser: Chrome or Chromium; None to let kaleido look for one.

    Raises:
        ConfigError: An option is not one of its choices, or there is nothing to draw.
    """
    sizes = _style(style, width_mm)
    _check_choice("format", formats, FORMATS)
    _check_choice("x scale", [x_scale], ("log", "linear"))
    if not bundles:
        raise ConfigError("nothing to plot: no results were given")
    out.mkdir(parents=True, exist_ok=True)
    notes: list[str] = []
    drawn: dict[str, list[Line]] = {}
    for key in CDFS:
        lines = lines_of(bundles, key, request_class)
        if any(line.curve for line in lines):
            drawn[key] = lines
        else:
            notes.append(f"{METRICS[key].title}: no request has a value, so there is no figure.")
    plotted = write(drawn, out, sizes, x_scale, formats, about=about, browser=browser)
    return Plotted(plotted.files, (*notes, *plotted.notes))


def write(
    drawn: dict[str, list[Line]],
    out: Path,
    style: Style,
    x_scale: XScale,
    formats: Sequence[str],
    *,
    about: str = "",
    browser: Path | None = None,
) -> Plotted:
    """Write figures whose curves are known, as `plot` does.

    Args:
        drawn: Curves of each metric of `CDFS` that has some.
        out: Folder, which is there.
        style: Of the images.
        x_scale: Of the latency axis.
        formats: Of `FORMATS`.
        about: A sentence above the page's figures, as plain text.
        browser: As for `plot`.
    """
    written = [_write_csv(out / f"{key}_cdf.csv", key, lines) for key, lines in drawn.items()]
    if "html" in formats:
        written.append(_write_page(out / "figures.html", drawn, x_scale, about))
    wanted = [name for name in IMAGES if name in formats]
    note = ""
    if wanted and drawn:
        figures = {key: figure(key, lines, style, x_scale) for key, lines in drawn.items()}
        images, note = _write_images(figures, out, wanted, browser)
        written += images
    return Plotted(tuple(written), (note,) if note else ())


def _style(name: str, width_mm: float | None) -> Style:
    _check_choice("style", [name], STYLES)
    style = STYLES[name]
    if width_mm is None:
        return style
    least = 20 * style.font_pt / 7.5
    if not least <= width_mm <= 2000:
        raise ConfigError(f"plot: width {width_mm:g} mm; expected {least:g} to 2000 for {name}")
    return replace(style, width_mm=width_mm)


def _check_choice(what: str, given: Iterable[str], choices: Iterable[str]) -> None:
    for name in given:
        if name not in (names := tuple(choices)):
            raise ConfigError(f"plot: no {what} {name!r}{nearest(name, names)}")


# What is drawn


def lines_of(
    bundles: Sequence[RunBundle], key: str, request_class: str | None = None
) -> list[Line]:
    """The curves of one metric, one per bundle."""
    labels = unique_labels(bundles)
    chosen = looks([bundle.policy for bundle in bundles])
    return [
        Line(
            label,
            _mark(bundle, request_class),
            bundle.policy,
            look,
            _curve(bundle, key, request_class),
        )
        for bundle, label, look in zip(bundles, labels, chosen, strict=True)
    ]


def _mark(bundle: RunBundle, request_class: str | None) -> str:
    """The verdict, and the share of requests that no curve of E2E shows."""
    if request_class is None:
        counts = bundle.summary["measured_requests"]
    else:
        counts = metrics_of(bundle, request_class)["requests"]
    marks = [verdict_mark(bundle)]
    lost = 1 - counts["finished"] / max(1, counts["arrived"])
    if lost > 0:
        marks.append(f"{max(lost, 0.001):.1%} not finished")
    return ", ".join(mark for mark in marks if mark)


def _curve(bundle: RunBundle, key: str, request_class: str | None) -> Curve | None:
    if key == "itl":
        classes = bundle.itl
        chosen = classes.values() if request_class is None else [classes[request_class]]
        return curve_of_gaps(merge_gaps(chosen))
    return curve_of_values(PER_REQUEST[key](measured(bundle, request_class)))


# One figure


def figure(key: str, lines: Sequence[Line], style: Style, x_scale: XScale = "log") -> go.Figure:
    """The distributions of one metric as a plotly figure."""
    import plotly.graph_objects as go

    metric, scale = METRICS[key], 1e3 if key in _SHOWN_IN_MS else 1.0
    fig = go.Figure()
    for i, line in enumerate(lines):
        if line.curve is not None:
            _add_line(fig, line, f"v{i}", style, scale, x_scale)
    shown = [line for line in lines if line.curve is not None]
    legend = _Legend.fit([line.name for line in shown], style)
    _add_legend(fig, lines, legend, style)
    _lay_out(fig, style, legend)
    _set_axes(fig, metric, style, x_scale, _heading(metric, scale))
    _mark_percentiles(fig, style)
    if x_scale == "log":
        _set_log_range(fig, shown, scale)
    return fig


def _heading(metric: Metric, scale: float) -> str:
    unit = f"m{metric.unit}" if scale == 1e3 else metric.unit
    return f"{metric.title} ({unit})"


def _add_line(
    fig: go.Figure, line: Line, group: str, style: Style, scale: float, x_scale: XScale
) -> None:
    import plotly.graph_objects as go

    curve = line.curve
    assert curve is not None
    common = {"legendgroup": group, "showlegend": False, "name": plain(line.name)}
    x, share = scale * curve.x, curve.share
    # The staircase starts on the floor.
    xs, ys = [float(x[0]), *x.tolist()], [0.0, *share.tolist()]
    if x_scale == "log":
        positive = [(a, b) for a, b in zip(xs, ys, strict=True) if a > 0]
        xs, ys = [a for a, _ in positive], [b for _, b in positive]
    hover = "%{fullData.name}<br>%{x:.4g}: %{y:.2%}<extra></extra>"
    fig.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            mode="lines",
            line={**_stroke(line.look, style), "shape": "hv"},
            hovertemplate=hover,
            **common,
        )
    )
    fig.add_trace(
        go.Scatter(
            x=(scale * curve.marks).tolist(),
            y=list(MARKED),
            mode="markers",
            marker=_marker(line.look, style),
            hovertemplate="%{fullData.name}<br>P%{customdata}: %{x:.4g}<extra></extra>",
            customdata=[f"{100 * q:g}" for q in MARKED],
            cliponaxis=False,
            **common,
        )
    )


def _stroke(look: Look, style: Style) -> dict[str, Any]:
    width = style.line_px
    return {"color": look.color, "dash": look.dash_px(width), "width": width}


def _marker(look: Look, style: Style) -> dict[str, Any]:
    edge = {"color": "white", "width": style.line_px / 3}
    return {
        "color": look.color,
        "symbol": look.symbol,
        "size": 3 * style.line_px + 1.5,
        "line": edge,
    }


def _add_legend(fig: go.Figure, lines: Sequence[Line], legend: _Legend, style: Style) -> None:
    """Entries that show line and marker at once: traces without a point, one per variant."""
    import plotly.graph_objects as go

    texts = iter(legend.texts)
    for i, line in enumerate(lines):
        if line.curve is None:
            continue
        look = line.look
        fig.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                mode="lines+markers",
                line=_stroke(look, style),
                marker=_marker(look, style),
                legendgroup=f"v{i}",
                name=next(texts),
            )
        )


@dataclass(frozen=True)
class _Legend:
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
    def fit(cls, labels: Sequence[str], style: Style) -> _Legend:
        """As many columns as take every label on one line, else one column with broken lines."""
        char_px = _TEXT_WIDTH * style.font_px
        key_px = max(30.0, 26 * style.line_px)
        longest = max(map(len, labels)) * char_px
        # plotly gives a legend at most the width of the axes.
        room = style.width_px - _left_px(style) - _right_px(style)
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


def _left_px(style: Style) -> float:
    return 4.2 * style.font_px


def _right_px(style: Style) -> float:
    return 3.0 * style.font_px


def _lay_out(fig: go.Figure, style: Style, legend: _Legend) -> None:
    font_px = style.font_px
    plot_px = 0.52 * style.width_px
    margin = {
        "l": _left_px(style),
        "r": _right_px(style),
        "t": max(font_px, style.top_px),
        "b": 3.9 * font_px + legend.height_px,
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


def _set_axes(fig: go.Figure, metric: Metric, style: Style, x_scale: XScale, heading: str) -> None:
    common = {
        "showline": True,
        "linecolor": "black",
        "linewidth": max(0.7, style.line_px / 2),
        "ticks": "outside",
        "ticklen": style.font_px / 3,
        "gridcolor": "#e6e6e6",
        "zeroline": False,
    }
    fig.update_xaxes(
        **common,
        type=x_scale,
        title=_title(heading, style),
        tickformat="~g",
        showgrid=True,
    )
    if x_scale == "linear":
        fig.update_xaxes(rangemode="tozero")
    what = "gaps between tokens" if metric.key == "itl" else "requests"
    fig.update_yaxes(
        **common,
        title=_title(f"Share of {what}", style),
        range=[0, 1.015],
        tickvals=[0, 0.25, 0.5, 0.75, 1],
        showgrid=False,
    )


def _title(text: str, style: Style) -> dict[str, Any]:
    size = style.font_px
    return {"text": plain(text), "standoff": size / 2, "font": {"size": size}}


def _set_log_range(fig: go.Figure, lines: Sequence[Line], scale: float) -> None:
    """Decades, 2 and 5 between them where there are few, or round values within less than one."""
    positive = [scale * x for line in lines if line.curve for x in line.curve.x[[0, -1]] if x > 0]
    if not positive:
        return
    low, high = math.log10(min(positive)), math.log10(max(positive))
    margin = max(0.02, 0.02 * (high - low))
    fig.update_xaxes(
        range=[low - margin, high + margin],
        dtick="D2" if high - low < 2 else 1,
        minor={"dtick": "D1", "ticks": "outside", "ticklen": 2},
    )
    if high - low < _NARROW_DECADES:
        edges = 10 ** (low - margin), 10 ** (high + margin)
        fig.update_xaxes(tickvals=_round_values(*edges), dtick=None)


def _round_values(least: float, most: float) -> list[float]:
    """Four to nine multiples of a 1, 2 or 5 with zeros, between two values."""
    steps = [k * 10**e for e in range(-12, 13) for k in (1, 2, 5)]
    step = max(each for each in steps if (most - least) / each >= 4)
    first, last = math.ceil(least / step), math.floor(most / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _mark_percentiles(fig: go.Figure, style: Style) -> None:
    for q in MARKED:
        fig.add_shape(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=q,
            y1=q,
            layer="below",
            line={"color": _GREY, "width": 0.7, "dash": "dot"},
        )
        fig.add_annotation(
            xref="paper",
            x=1,
            xanchor="left",
            y=q,
            text=f"P{100 * q:g}",
            showarrow=False,
            xshift=style.font_px / 4,
            font={"color": "#444444", "size": 0.9 * style.font_px},
        )


def plain(text: str) -> str:
    """Text that plotly shows as it stands: no markup, no TeX."""
    return html.escape(text, quote=False).replace("$", "&#36;")


# Files


def _write_csv(path: Path, key: str, lines: Sequence[Line]) -> Path:
    """The points as drawn, in the unit of the metric, before any change of unit for the axis."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "policy", METRICS[key].name_in_files, "share"])
        for line in lines:
            if line.curve is not None:
                points = zip(line.curve.x.tolist(), line.curve.share.tolist(), strict=True)
                writer.writerows([line.label, line.policy, x, share] for x, share in points)
    return path


def _font_face() -> str:
    data = files("experiments").joinpath("fonts", "arimo-latin-400-normal.woff2").read_bytes()
    coded = base64.b64encode(data).decode("ascii")
    source = f"url(data:font/woff2;base64,{coded}) format('woff2')"
    return f"@font-face {{ font-family: '{FONT}'; src: {source}; }}"


def _write_page(path: Path, drawn: dict[str, list[Line]], x_scale: XScale, about: str = "") -> Path:
    """All figures on one page that needs nothing else: plotly.js and the font are in it."""
    from plotly.io import to_html
    from plotly.offline import get_plotlyjs

    sections = []
    for key, lines in drawn.items():
        body = to_html(
            figure(key, lines, SCREEN, x_scale),
            full_html=False,
            include_plotlyjs=False,
            include_mathjax=False,
            div_id=f"{key}_cdf",
            config=_TOOLBAR,
        )
        metric = METRICS[key]
        definition = html.escape(metric.definition)
        sections.append(f"<h2>{html.escape(metric.title)}</h2>\n<p>{definition}</p>\n{body}")
    path.write_text(
        _PAGE.format(
            font_face=_font_face(),
            stack=FONT_STACK,
            width=round(SCREEN.width_px),
            plotlyjs=get_plotlyjs(),
            about=f"{html.escape(about)} {_ABOUT}".strip(),
            sections="\n".join(sections),
        ),
        encoding="utf-8",
    )
    return path


_TOOLBAR = {
    "displaylogo": False,
    # The first would send the data to a server; boxes and lassos select nothing here.
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d"],
}

_ABOUT = (
    "Cumulative distributions: the share of requests (or gaps) whose value is at most x. P50, P90 "
    "and P99 are marked; they are values that occurred. A click on a label hides or shows its "
    f"curve. Curves of more than {MAX_POINTS:,} distinct values are thinned to at most so many "
    "points, each of them exact, the extremes among them. A logarithmic axis does not show values "
    "of 0; the curve then starts at their share. The CSV files beside this page hold the "
    "points as drawn."
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>phasewise: latency distributions</title>
<style>
{font_face}
body {{ font-family: {stack}; width: {width}px; margin: 2em auto; line-height: 1.4; }}
</style>
<script>{plotlyjs}</script>
</head>
<body>
<h1>Latency distributions</h1>
<p>{about}</p>
{sections}
</body>
</html>
"""


def _write_images(
    figures: dict[str, go.Figure], out: Path, formats: Sequence[str], browser: Path | None
) -> tuple[list[Path], str]:
    """Write images in one browser session; the files, and a note on what could not be written."""
    what = ", ".join(name.upper() for name in formats)
    try:
        kaleido = require("kaleido", "figures", f"writing {what} files")
    except MissingExtraError as missing:
        return [], f"No images: {missing}"
    from choreographer.errors import BrowserDepsError, BrowserFailedError, ChromeNotFoundError

    jobs = [
        {"fig": fig, "path": str(out / f"{key}_cdf.{name}"), "opts": _options(fig, name)}
        for key, fig in figures.items()
        for name in formats
    ]
    # MathJax would be fetched from the network, and labels are not TeX.
    options: dict[str, Any] = {"n": 1, "mathjax": False}
    if browser is not None:
        options["path"] = str(browser)
    try:
        errors = kaleido.write_fig_from_object_sync(jobs, kopts=options)
    except ChromeNotFoundError:
        return [], (
            f"No images: {what} need Chrome or Chromium, and there is none; install one (Debian: "
            "apt install chromium) or set BROWSER_PATH."
        )
    except (BrowserDepsError, BrowserFailedError, TimeoutError, OSError) as error:
        return [], f"No images: the browser failed: {' '.join(str(error).split())[:200]}"
    written = [Path(job["path"]) for job in jobs if Path(job["path"]).is_file()]
    for path in written:
        if path.suffix == ".svg":
            _embed_font(path)
    note = f"Not all images could be written: {errors[0]!r}" if errors else ""
    return written, note


def _options(fig: go.Figure, name: str) -> dict[str, Any]:
    scale = _PNG_DPI / (25.4 * PX_PER_MM) if name == "png" else 1
    return {"format": name, "width": fig.layout.width, "height": fig.layout.height, "scale": scale}


def _embed_font(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    head = text.index(">", text.index("<svg")) + 1
    style = f"<style>{_font_face()}</style>"
    path.write_text(text[:head] + style + text[head:], encoding="utf-8")
