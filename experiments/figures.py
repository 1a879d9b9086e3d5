"""Figures of latency distributions, all variants in one pair of axes, drawn from results bundles.

HTML always; SVG, PDF and PNG with the extra `figures`. The points of every figure lie beside it as
CSV. Where a curve has very many points it is thinned as `experiments.cdf` says.
"""

from __future__ import annotations

import base64
import csv
import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.attribution_figure import attribution_drawings
from experiments.cache_figures import cache_drawings
from experiments.cdf import MAX_POINTS, Curve
from experiments.cdf_figure import Line, XScale, figure, lines_of
from experiments.drawing import Drawing
from experiments.extras import MissingExtraError, require
from experiments.floor_figure import floor_curves, with_floors
from experiments.group_figures import group_drawings
from experiments.looks import FONT, FONT_STACK, PX_PER_MM, SCREEN, STYLES, Style
from experiments.report import RunBundle
from experiments.timeline_figure import timeline_drawings
from sim.errors import ConfigError, nearest
from sim.metric_definitions import METRICS

if TYPE_CHECKING:
    import plotly.graph_objects as go

CDFS = ("ttft", "tpot", "itl", "e2e", "normalised_latency")
"""Metrics of which a figure is drawn."""

IMAGES = ("svg", "pdf", "png")
FORMATS = ("html", *IMAGES)
"""Formats in which figures are written; their points always as CSV."""

_PNG_DPI = 300


@dataclass(frozen=True)
class Plotted:
    """What `plot` wrote.

    Attributes:
        files: In order of writing.
        notes: Sentences for the user: what was left out, and why.
        undrawn: Of these, why no image that was asked for could be written; empty if some was.
    """

    files: tuple[Path, ...]
    notes: tuple[str, ...]
    undrawn: str = ""


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
    runs: Sequence[Sequence[RunBundle]] | None = None,
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
        runs: Of each bundle all its replications: the curves are then of all of them, with bands.

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
        lines = lines_of(bundles, key, request_class, runs)
        if any(line.curve for line in lines):
            drawn[key] = lines
        else:
            notes.append(f"{METRICS[key].title}: no request has a value, so there is no figure.")
    more = drawings_of(bundles, request_class)
    plotted = write(
        drawn,
        out,
        sizes,
        x_scale,
        formats,
        more,
        about=about,
        browser=browser,
        floors=floor_curves(bundles, request_class),
    )
    return Plotted(plotted.files, (*notes, *plotted.notes), plotted.undrawn)


def write(
    drawn: dict[str, list[Line]],
    out: Path,
    style: Style,
    x_scale: XScale,
    formats: Sequence[str],
    more: Sequence[Drawing] = (),
    *,
    about: str = "",
    browser: Path | None = None,
    floors: tuple[Mapping[str, Curve], Mapping[str, str]] = ({}, {}),
) -> Plotted:
    """Write figures whose curves are known, as `plot` does.

    Args:
        drawn: Curves of each metric of `CDFS` that has some.
        out: Folder, which is there.
        style: Of the images.
        x_scale: Of the latency axis.
        formats: Of `FORMATS`.
        more: Figures of other kinds, behind them.
        about: A sentence above the page's figures, as plain text.
        browser: As for `plot`.
        floors: Curves of the floors by metric, and what is said of them.
    """
    curves, said = floors
    written = [_write_csv(out / f"{key}_cdf.csv", key, lines) for key, lines in drawn.items()]
    written += [_write_points(out / f"{each.key}.csv", each) for each in more]
    if "html" in formats:
        written.append(_write_page(out / "figures.html", drawn, more, x_scale, about, curves, said))
    wanted = [name for name in IMAGES if name in formats]
    images: list[Path] = []
    note = ""
    if wanted and (drawn or more):
        figures = {
            f"{key}_cdf": figure(key, lines, style, x_scale, curves.get(key))
            for key, lines in drawn.items()
        }
        figures |= {each.key: each.make(style, x_scale) for each in more}
        images, note = _write_images(figures, out, wanted, browser)
        written += images
    return Plotted(tuple(written), (note,) if note else (), "" if images else note)


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


def drawings_of(bundles: Sequence[RunBundle], request_class: str | None = None) -> list[Drawing]:
    """The figures beside the distributions that say something of these runs.

    Args:
        bundles: All variants.
        request_class: Only the requests of one class; then nothing is drawn by class, tenant or
            replica.
    """
    by_group = group_drawings(bundles) if request_class is None else []
    over_time = timeline_drawings(bundles)
    attributed = attribution_drawings(bundles, request_class)
    return [*attributed, *by_group, *cache_drawings(bundles, request_class), *over_time]


# Files


def _write_csv(path: Path, key: str, lines: Sequence[Line]) -> Path:
    """The points as drawn, in the unit of the metric, before any change of unit for the axis."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        bands = any(line.band is not None for line in lines)
        ends = ["share_low", "share_high"] if bands else []
        writer.writerow(["variant", "policy", METRICS[key].name_in_files, "share", *ends])
        for line in lines:
            if line.curve is not None:
                writer.writerows([line.label, line.policy, *row] for row in _points(line, bands))
    return path


def _points(line: Line, bands: bool) -> Iterator[tuple[Any, ...]]:
    """x and share of each point, and where there are bands the ends of its own, empty for none."""
    assert line.curve is not None
    columns = [line.curve.x.tolist(), line.curve.share.tolist()]
    if bands:
        band = line.band
        for ends in (None, None) if band is None else (band.low, band.high):
            known = np.full(len(columns[0]), np.nan) if ends is None else ends
            columns.append(["" if math.isnan(end) else end for end in known.tolist()])
    return zip(*columns, strict=True)


def _write_points(path: Path, drawing: Drawing) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(drawing.header)
        writer.writerows(drawing.rows)
    return path


def font_face() -> str:
    """The embedded font as a rule of a style sheet."""
    data = files("experiments").joinpath("fonts", "arimo-latin-400-normal.woff2").read_bytes()
    coded = base64.b64encode(data).decode("ascii")
    source = f"url(data:font/woff2;base64,{coded}) format('woff2')"
    return f"@font-face {{ font-family: '{FONT}'; src: {source}; }}"


def _write_page(
    path: Path,
    drawn: Mapping[str, Sequence[Line]],
    more: Sequence[Drawing],
    x_scale: XScale,
    about: str,
    floors: Mapping[str, Curve],
    said: Mapping[str, str],
) -> Path:
    """All figures on one page that needs nothing else: plotly.js and the font are in it."""
    sections = [
        section(
            f"{key}_cdf",
            METRICS[key].title,
            with_floors(said, key, METRICS[key].definition),
            figure(key, lines, SCREEN, x_scale, floors.get(key)),
        )
        for key, lines in drawn.items()
    ]
    sections += [section(e.key, e.title, e.about, e.make(SCREEN, x_scale)) for e in more]
    heading = _HEADING_WITH_MORE if more else _HEADING
    return write_sections(path, heading, [about, _ABOUT, _about_bands(drawn)], sections)


def _about_bands(drawn: Mapping[str, Sequence[Line]]) -> str:
    """What the bands are; empty if there are none."""
    bands = [line.band for lines in drawn.values() for line in lines if line.band is not None]
    if not bands:
        return ""
    counts = sorted({band.groups for band in bands})
    return (
        f"Curves are of all {' or '.join(map(str, counts))} replications together. Bands hold the "
        f"true share at each x alone with {bands[0].confidence:.0%} confidence (Student's t over "
        "the replications); where too few values lie up to x, or beyond it, there is none."
    )


def write_drawings(
    path: Path, heading: str, about: Sequence[str], drawings: Sequence[Drawing]
) -> Path:
    """A page of such figures alone.

    Args:
        path: Of the page.
        heading: Its title.
        about: Paragraphs before the figures, as plain text.
        drawings: Latencies, where there are any, on a logarithmic scale.
    """
    sections = [section(e.key, e.title, e.about, e.make(SCREEN, "log")) for e in drawings]
    return write_sections(path, heading, about, sections)


def write_drawn(
    out: Path,
    heading: str,
    about: Sequence[str],
    drawings: Sequence[Drawing],
    *,
    style: str = "paper",
    width_mm: float | None = None,
    formats: Sequence[str] = FORMATS,
) -> Plotted:
    """Such figures alone, in every format: a page, images, and their points as CSV.

    Args:
        out: Folder, made where there is none.
        heading: Title of the page.
        about: Paragraphs before the figures, as plain text.
        drawings: In order.
        style: Of the images, a key of `STYLES`.
        width_mm: Width of the images; None for that of the style.
        formats: Of `FORMATS`.

    Raises:
        ConfigError: An option is not one of its choices.
    """
    sizes = _style(style, width_mm)
    _check_choice("format", formats, FORMATS)
    out.mkdir(parents=True, exist_ok=True)
    written = [_write_points(out / f"{each.key}.csv", each) for each in drawings]
    if "html" in formats:
        written.append(write_drawings(out / "figures.html", heading, about, drawings))
    wanted = [name for name in IMAGES if name in formats]
    images: list[Path] = []
    note = ""
    if wanted and drawings:
        images, note = _write_images(
            {each.key: each.make(sizes, "log") for each in drawings}, out, wanted, None
        )
        written += images
    return Plotted(tuple(written), (note,) if note else (), "" if images else note)


def write_sections(path: Path, heading: str, about: Sequence[str], sections: Sequence[str]) -> Path:
    """A page that needs nothing else: plotly.js and the font are in it.

    Args:
        path: Of the page.
        heading: Its title.
        about: Paragraphs before the sections, as plain text.
        sections: HTML.
    """
    from plotly.offline import get_plotlyjs

    path.write_text(
        _PAGE.format(
            font_face=font_face(),
            stack=FONT_STACK,
            width=round(SCREEN.width_px),
            plotlyjs=get_plotlyjs(),
            about="\n".join(f"<p>{html.escape(text)}</p>" for text in about if text),
            heading=html.escape(heading),
            sections="\n".join(sections),
        ),
        encoding="utf-8",
    )
    return path


def section(name: str, title: str, about: str, made: go.Figure) -> str:
    """A figure with its heading, as HTML for `write_sections`; title and text are plain, each line
    of the text is a paragraph."""
    from plotly.io import to_html

    body = to_html(
        made,
        full_html=False,
        include_plotlyjs=False,
        include_mathjax=False,
        div_id=name,
        config=_TOOLBAR,
    )
    paragraphs = "\n".join(f"<p>{html.escape(line)}</p>" for line in about.split("\n"))
    return f"<h2>{html.escape(title)}</h2>\n{paragraphs}\n{body}"


_TOOLBAR = {
    "displaylogo": False,
    # The first would send the data to a server; boxes and lassos select nothing here.
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d"],
}

_HEADING, _HEADING_WITH_MORE = "Latency distributions", "Latency, caches, memory and load"
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
<title>phasewise: {heading}</title>
<style>
{font_face}
body {{ font-family: {stack}; width: {width}px; margin: 2em auto; line-height: 1.4; }}
</style>
<script>{plotlyjs}</script>
</head>
<body>
<h1>{heading}</h1>
{about}
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
        {"fig": fig, "path": str(out / f"{key}.{name}"), "opts": _options(fig, name)}
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
    style = f"<style>{font_face()}</style>"
    path.write_text(text[:head] + style + text[head:], encoding="utf-8")
