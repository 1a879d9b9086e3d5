"""What a run did over time: arrivals, queue, batch, memory, hits, and changes of its cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.bundle import Bundle
from experiments.html_report.compact import numbers, thinned
from experiments.html_report.timeline_view import marks
from sim.cache_metrics import has_cache
from sim.metrics import NS_PER_S, Floats, Ints, is_there

BUCKETS = 120
"""Equal parts of the arrivals in which rates and hits are counted."""

PANELS = {
    "arrivals": ("Arrivals", "requests/s", "Requests that arrive, per second, in {0} equal parts."),
    "waiting": ("Queue", "requests", "Requests that wait, of all replicas together."),
    "running": ("Batch", "requests", "Requests that run, of all replicas together."),
    "kv": ("KV in use", "%", "Blocks in use / blocks of the replicas that are there."),
    "hits": (
        "Prefix hits",
        "%",
        "Prompt tokens found cached / prompt tokens, of the requests first scheduled in each of "
        "{0} equal parts.",
    ),
}
"""Panels from top to bottom: title, unit, and what it shows."""


MOST_MARKS = 200
"""Changes of a cluster that are marked, of each variant; failures first."""


def series(bundle: Bundle, most: int) -> dict[str, Any]:
    """The curves of one variant, by panel; a panel that has nothing to show is absent.

    Beside them, as ``changes``, what befell its cluster: failures, restores, scaling.

    Args:
        bundle: Of the variant.
        most: Points of a curve.
    """
    made = {"arrivals": _arrivals(bundle)}
    if len(bundle.series.get("time_ns", ())):
        for name in ("waiting", "running"):
            made[name] = _summed(bundle, bundle.series[name].astype(float))
        made["kv"] = _kv(bundle)
    if has_cache(bundle.replicas):
        made["hits"] = _hits(bundle)
    curves = {
        name: _points(time_s, values, most)
        for name, (time_s, values) in made.items()
        if len(time_s)
    }
    return {**curves, "changes": _changes(bundle)}


def _changes(bundle: Bundle) -> dict[str, Any]:
    """The changes that are marked, in order of time, and how many there were."""
    every = marks(bundle)
    order = sorted(range(len(every)), key=lambda at: (every[at]["what"] != "failed", at))
    kept = sorted(order[:MOST_MARKS])
    names = [replica.name for replica in bundle.replicas]
    told = [every[at] | {"replica": names[every[at]["replica"]]} for at in kept]
    return {"marks": told, "of": len(every)}


def _points(time_s: Floats, values: Floats, most: int) -> dict[str, Any]:
    kept = thinned(values, most)
    return {"x": numbers(time_s[kept], 7), "y": numbers(values[kept]), "of": len(values)}


def _edges(bundle: Bundle) -> Ints:
    arrival = bundle.requests["arrival_ns"]
    if not len(arrival):
        return np.zeros(1, np.int64)
    first, last = int(arrival.min()), int(arrival.max())
    return np.unique(np.linspace(first, last + 1, BUCKETS + 1).astype(np.int64))


def _arrivals(bundle: Bundle) -> tuple[Floats, Floats]:
    edges = _edges(bundle)
    if len(edges) < 2:
        return np.zeros(0), np.zeros(0)
    count = np.histogram(bundle.requests["arrival_ns"], edges)[0]
    return _middles(edges), count / (np.diff(edges) / NS_PER_S)


def _middles(edges: Ints) -> Floats:
    return np.asarray((edges[:-1] + edges[1:]) / 2 / NS_PER_S)


def _hits(bundle: Bundle) -> tuple[Floats, Floats]:
    requests = bundle.requests
    begun = requests["first_scheduled_ns"]
    if not (begun >= 0).any():
        return np.zeros(0), np.zeros(0)
    edges = np.unique(
        np.linspace(begun[begun >= 0].min(), begun.max() + 1, BUCKETS + 1).astype(np.int64)
    )
    prompts = np.histogram(begun, edges, weights=requests["prompt_tokens"])[0]
    found = np.histogram(begun, edges, weights=requests["cached_tokens"])[0]
    some = prompts > 0
    return _middles(edges)[some], 100 * found[some] / prompts[some]


def _summed(bundle: Bundle, values: Floats) -> tuple[Floats, Floats]:
    time_ns, at = np.unique(bundle.series["time_ns"], return_inverse=True)
    return time_ns / NS_PER_S, np.bincount(at, values, len(time_ns)).astype(np.float64)


def _kv(bundle: Bundle) -> tuple[Floats, Floats]:
    series = bundle.series
    blocks = np.array([replica.total_blocks for replica in bundle.replicas], dtype=float)
    there = is_there(series, bundle.replicas)
    time_s, used = _summed(bundle, series["used_blocks"] * 1.0)
    total = _summed(bundle, np.where(there, blocks[series["replica"]], 0.0))[1]
    some = total > 0
    return time_s[some], 100 * used[some] / total[some]


def panels(per_variant: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The panels that some variant has, with the curves of all variants, and what is missing."""
    made: list[dict[str, Any]] = [
        {
            "key": key,
            "title": title,
            "unit": unit,
            "about": about.format(BUCKETS),
            "curves": [each.get(key) for each in per_variant],
        }
        for key, (title, unit, about) in PANELS.items()
        if any(key in each for each in per_variant)
    ]
    notes = []
    if not any("waiting" in each for each in per_variant):
        notes.append("Queue, batch and memory over time are not shown: record.series_points was 0.")
    if not any("hits" in each for each in per_variant):
        notes.append("No hit rate is shown: no replica has a prefix cache.")
    most = max((c["of"] for p in made for c in p["curves"] if c), default=0)
    kept = max((len(c["x"]) for p in made for c in p["curves"] if c), default=0)
    if most > kept:
        notes.append(
            f"Curves of up to {most:,} points are thinned to {kept:,}: of equal stretches of time "
            "the least and the largest value stay, and both ends."
        )
    changes = [each["changes"] for each in per_variant]
    if left := sum(each["of"] - len(each["marks"]) for each in changes):
        notes.append(
            f"{left:,} more changes of clusters are not marked: failures and then the first ones "
            f"are, {MOST_MARKS} a variant."
        )
    return {"panels": made, "changes": [each["marks"] for each in changes], "notes": notes}
