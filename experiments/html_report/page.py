"""The page itself: what the views gave, plotly.js and the scripts that draw, in one HTML file."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from experiments.figures import font_face
from experiments.looks import FONT_STACK
from experiments.version import __version__

SCRIPTS = ("text", "charts", "summary", "cdf", "panels", "attribution", "timeline", "worst", "page")
"""Scripts in `static/`, in the order in which they stand on the page."""

_MARKUP = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&"}


def as_json(values: Mapping[str, Any]) -> str:
    """Values as JSON that is safe inside of a script element.

    All that is not ASCII is escaped, U+2028 with it, and so are ``<``, ``>`` and ``&``: no text of
    a config or trace can end the element, or begin another.
    """
    text = json.dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.translate(_MARKUP)


def page(title: str, values: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        title: Of the page, as plain text.
        values: What its scripts draw.
    """
    from plotly.offline import get_plotlyjs

    parts = {
        "title": html.escape(title),
        "version": html.escape(__version__),
        "font": font_face(),
        "stack": FONT_STACK,
        "style": _static("report.css"),
        "plotly": get_plotlyjs(),
        "values": as_json(values),
        "scripts": "\n".join(_static(f"{name}.js") for name in SCRIPTS),
    }
    return _filled(_static("report.html"), parts)


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """A template with its ``{{name}}`` replaced, each once; what is put in is not looked at."""
    pieces: list[str] = []
    rest = template
    while (start := rest.find("{{")) >= 0:
        end = rest.index("}}", start)
        pieces += [rest[:start], parts[rest[start + 2 : end]]]
        rest = rest[end + 2 :]
    return "".join([*pieces, rest])


def _static(name: str) -> str:
    return files("experiments.html_report").joinpath("static", name).read_text(encoding="utf-8")


def provenance(
    labels: Sequence[str], configs: Sequence[str], environments: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Of each variant its config as YAML, and versions and hashes."""
    return [
        {
            "label": label,
            "config": config,
            "environment": [[name, str(value)] for name, value in environment.items()],
        }
        for label, config, environment in zip(labels, configs, environments, strict=True)
    ]
