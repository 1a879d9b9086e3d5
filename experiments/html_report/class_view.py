"""Latencies of each request class, in panels of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bundle import Bundle, Head
from experiments.cdf import curve_of_values
from experiments.cdf_figure import SHOWN_IN_MS
from experiments.group_figures import names_of, target_s
from experiments.html_report.cdf_view import points
from experiments.panels import MOST
from experiments.report import measured
from sim.metric_definitions import METRICS
from sim.metrics import PER_REQUEST
from sim.slo import request_classes, select

KEYS = ("ttft", "tpot", "e2e")
"""Metrics that are shown by class."""


def curves(bundle: Bundle, names: Sequence[str], most: int) -> dict[str, Any]:
    """The curves of one variant: metric to class to points.

    Args:
        bundle: Of the variant.
        names: Of the classes that are shown.
        most: Points of a curve.
    """
    if not names:
        return {}
    requests = measured(bundle)
    of = request_classes(requests)
    rows = {name: select(requests, of == name) for name in names}
    made: dict[str, Any] = {}
    for key in KEYS:
        scale = 1e3 if key in SHOWN_IN_MS else 1.0
        found = {name: curve_of_values(PER_REQUEST[key](rows[name])) for name in names}
        made[key] = {
            name: None if curve is None else points(curve, scale, most)
            for name, curve in found.items()
        }
    return made


def shown_classes(heads: Sequence[Head]) -> list[str]:
    """Classes with panels; none where requests are all of one class."""
    names = names_of(heads, "classes")
    return names if len(names) > 1 else []


def panels(
    heads: Sequence[Head], names: Sequence[str], per_variant: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """For each metric a panel per class with the curves of all variants; or why there is none."""
    if not names:
        return {"why": "All requests are of one class: the trace names no others."}
    metrics = []
    for key in KEYS:
        scale = 1e3 if key in SHOWN_IN_MS else 1.0
        unit = f"m{METRICS[key].unit}" if scale != 1.0 else METRICS[key].unit
        classes = []
        for name in names:
            target = target_s(heads, "classes", name, key)
            classes.append(
                {
                    "name": name,
                    "curves": [each[key][name] for each in per_variant],
                    "target": None if target is None else scale * target,
                }
            )
        metrics.append(
            {
                "key": key,
                "title": METRICS[key].title,
                "unit": unit,
                "about": METRICS[key].definition,
                "classes": classes,
            }
        )
    note = f"At most {MOST} classes, those with the most requests." if len(names) == MOST else ""
    return {"metrics": metrics, "note": note}
