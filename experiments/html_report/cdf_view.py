"""Distributions of the latencies, with their floors, as lists of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.bundle import Bundle
from experiments.cdf import Curve, curve_of_values
from experiments.cdf_figure import SHOWN_IN_MS, curve_with_band
from experiments.figures import CDFS
from experiments.floors import KEYS, Floors, floors_of
from experiments.html_report.compact import numbers
from experiments.report import measured_mask
from experiments.statistics.bands import Band
from sim.metric_definitions import METRICS
from sim.metrics import PER_REQUEST, Floats, gap_quantiles_s, merge_gaps, quantiles

PERCENTILES = (*(percent / 100 for percent in range(1, 100)), 0.995, 0.999, 1.0)
"""Percentiles that the page reads out, each exact."""


def curves(runs: Sequence[Bundle], most: int) -> dict[str, Any]:
    """The curves of one variant, by metric, with bands where it has enough runs.

    Args:
        runs: All of the variant; the floors are those of the first.
        most: Points of a curve.
    """
    bundle = runs[0]
    floors = floors_of(bundle)
    made: dict[str, Any] = {}
    for key in CDFS:
        scale = 1e3 if key in SHOWN_IN_MS else 1.0
        curve, band = curve_with_band(runs, key)
        made[key] = None
        if curve is not None:
            exact = {"exact": numbers(scale * _percentiles(runs, key), 7)}
            made[key] = points(curve, scale, most) | exact | _band(band, _few(curve, most))
    return {"curves": made, "floors": _floors(bundle, floors, most)}


def _band(band: Band | None, kept: Any) -> dict[str, Any]:
    if band is None:
        return {}
    return {"band": {"low": numbers(band.low[kept]), "high": numbers(band.high[kept])}}


def _percentiles(runs: Sequence[Bundle], key: str) -> Floats:
    if key == "itl":
        gaps = [merge_gaps(each.itl.values()) for each in runs]
        return gap_quantiles_s(merge_gaps(gaps), PERCENTILES)
    values = [PER_REQUEST[key](each.requests)[measured_mask(each)] for each in runs]
    return quantiles(np.concatenate(values), PERCENTILES)


def points(curve: Curve, scale: float, most: int) -> dict[str, Any]:
    """Points of a curve, at most `most`, and its marked percentiles.

    Args:
        curve: In seconds.
        scale: From these to the values on the page.
        most: Points.
    """
    kept = _few(curve, most)
    return {
        "x": numbers(scale * curve.x[kept]),
        "share": numbers(curve.share[kept], 7),
        "marks": numbers(scale * curve.marks, 7),
    }


def _few(curve: Curve, most: int) -> Any:
    """Positions of at most `most` points, the ends and the marked percentiles among them."""
    if len(curve.x) <= most:
        return np.arange(len(curve.x))
    even = np.linspace(0, len(curve.x) - 1, most - len(curve.marks)).round().astype(int)
    return np.unique(np.concatenate((even, np.searchsorted(curve.x, curve.marks))))


def _floors(bundle: Bundle, floors: Floors, most: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    mask = measured_mask(bundle)
    for key in KEYS:
        if key not in floors.values:
            made[key] = {"why": floors.why[key]}
            continue
        defined = mask & ~np.isnan(PER_REQUEST[key](bundle.requests))
        curve = curve_of_values(floors.values[key][defined])
        if curve is None:
            made[key] = {"why": "No request has a value."}
            continue
        scale = 1e3 if key in SHOWN_IN_MS else 1.0
        made[key] = {**points(curve, scale, most), "beaten": floors.beaten[key]}
    return made


def charts(per_variant: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One chart per metric that has a curve, with the curves of all variants.

    Args:
        per_variant: What `curves` gave, in the order of the variants.
    """
    made = []
    for key in CDFS:
        of = [each["curves"][key] for each in per_variant]
        if not any(of):
            continue
        metric, milli = METRICS[key], key in SHOWN_IN_MS
        made.append(
            {
                "key": key,
                "title": metric.title,
                "unit": f"m{metric.unit}" if milli else metric.unit,
                "about": metric.definition,
                "what": "gaps between tokens" if key == "itl" else "requests",
                "curves": of,
                "floors": _distinct(per_variant, key) if key in KEYS else None,
            }
        )
    return made


def _distinct(per_variant: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """Floors that differ, each with the variants it is of, and what is to be said of them."""
    curves: list[dict[str, Any]] = []
    why: dict[str, list[int]] = {}
    beaten = []
    for place, each in enumerate(per_variant):
        floor = each["floors"][key]
        if "why" in floor:
            why.setdefault(floor["why"], []).append(place)
            continue
        if floor["beaten"]:
            beaten.append([place, floor["beaten"]])
        points_of = {name: floor[name] for name in ("x", "share")}
        known = [c for c in curves if {name: c[name] for name in points_of} == points_of]
        if known:
            known[0]["of"].append(place)
        else:
            curves.append({**points_of, "of": [place]})
    return {"curves": curves, "why": [[text, of] for text, of in why.items()], "beaten": beaten}
