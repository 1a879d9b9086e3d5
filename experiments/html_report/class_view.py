"""Latencies of each request class, in panels of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.bundle import Bundle, Head
from experiments.cdf import curve_of_values
from experiments.cdf_figure import SHOWN_IN_MS
from experiments.group_figures import names_of, target_s
from experiments.html_report.cdf_view import points
from experiments.panels import MOST
from experiments.report import measured
from sim.metric_definitions import METRICS
from sim.metrics import PER_REQUEST, Floats
from sim.slo import request_classes, select

KEYS = ("ttft", "tpot", "e2e")
"""Metrics that are shown by class."""


def curves(runs: Sequence[Bundle], names: Sequence[str], most: int) -> dict[str, Any]:
    """The curves of one variant, over all its runs: metric to class to points.

    Args:
        runs: All of the variant.
        names: Of the classes that are shown.
        most: Points of a curve.
    """
    if not names:
        return {}
    made: dict[str, Any] = {}
    values = [_by_class(run, names) for run in runs]
    for key in KEYS:
        scale = 1e3 if key in SHOWN_IN_MS else 1.0
        found = {
            name: curve_of_values(np.concatenate([each[key, name] for each in values]))
            for name in names
        }
        made[key] = {
            name: None if curve is None else points(curve, scale, most)
            for name, curve in found.items()
        }
    return made


def _by_class(run: Bundle, names: Sequence[str]) -> dict[tuple[str, str], Floats]:
    """Each metric of the measured requests of each class, s."""
    requests = measured(run)
    of = request_classes(requests)
    rows = {name: select(requests, of == name) for name in names}
    return {(key, name): PER_REQUEST[key](rows[name]) for key in KEYS for name in names}


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
