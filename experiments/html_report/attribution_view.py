"""Where the time of the median and of the P99 request went, per variant and class.

The request at a percentile stands for its neighbours: the parts are the mean over the requests
whose rank is within half a percent of it, at least one, so that the bar is not one request's luck.
Beside it stands the exact percentile, that of the table. Parts and their exact rules are those of
`sim.attribution`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.bundle import Bundle, read_columns
from experiments.html_report.compact import numbers
from experiments.report import measured_mask
from sim.attribution import GROUPS, PHASES
from sim.metrics import NS_PER_S, PER_REQUEST, Floats, Ints
from sim.slo import request_classes

PERCENTILES = (0.5, 0.99)
_PREFIXES = MappingProxyType({"e2e": "e2e", "ttft": "ttft", "largest_itl": "itl_max"})
"""What has bars, by metric of requests, and how its columns begin."""
_HALF_BAND = 0.005

NAMES = MappingProxyType(
    {
        "queue_step": "queued: a step was under way",
        "queue_seat": "queued: no seat in the batch",
        "queue_budget": "queued: no token budget left",
        "queue_memory": "queued: no KV memory",
        "queue_batch": "queued: the static batch was running",
        "queue_forming": "queued: the static batch was not full",
        "queue_held": "queued: held by the decode side",
        "queue_no_replica": "queued: no replica could take it",
        "queue_other": "queued: other",
        "prefill": "own prefill, alone",
        "prefill_others": "others' prefills in its prefill steps",
        "prefill_decodes": "decodes in its prefill steps",
        "between": "between its own chunks",
        "decode_gpu": "own decode, alone: GPU",
        "decode_host": "own decode, alone: host",
        "decode_others": "slowed by other decodes",
        "decode_prefills": "slowed by prefills in its decode steps",
        "stall": "stalled by steps of others",
        "bubble": "pipeline bubbles",
        "batch_end": "held until its batch ended",
        "padding": "padding rows",
        "noise": "noise of step times",
        "slow": "straggler or warm-up",
        "preempted": "preempted, waiting",
        "reprefill": "prefilled again",
        "swapped": "swapped out",
        "copy": "copies over the host link and from disk",
        "fetch": "its prefix fetched from another cache",
        "transfer_queue": "KV transfer queued",
        "transfer": "KV transfer",
        "loaded": "KV there, waiting to join",
        "migration": "stopped for migration",
        "lost": "lost steps",
        "reprefill_failure": "prefilled again after a failure",
        "other": "other",
    }
)
"""What a reader calls each phase."""


def parts(bundle: Bundle, folder: Path, classes: Sequence[str]) -> dict[str, Any]:
    """The bars of one variant; or why it has none.

    Args:
        bundle: Of the variant.
        folder: Of the bundle, of which only columns of attributed time are read, one at a time.
        classes: Request classes that have bars of their own.

    Raises:
        BundleError: ``requests.parquet`` is damaged.
    """
    if not read_columns(folder, ["e2e_other_ns"]):
        return {
            "why": "requests.parquet has no attributed time (record.attribution: false, or a "
            "bundle of an older version)"
        }
    bands = {
        (name, key): [_band(bundle, mask, key, q) for q in PERCENTILES]
        for name, mask in _groups(bundle, classes).items()
        for key in _PREFIXES
        if key != "largest_itl" or read_columns(folder, ["itl_max_other_ns"])  # an older bundle
    }
    bars: dict[str, Any] = {}
    for (name, key), of in bands.items():
        bars.setdefault(name, {})[key] = [_bar(bundle, key, *band) for band in of]
    for phase in PHASES:
        for key in {key: None for _, key in bands}:
            # An older bundle may lack the column of a phase that there was not.
            for column in read_columns(folder, [f"{_PREFIXES[key]}_{phase}_ns"]).values():
                for name in bars:
                    for bar, (rows, _) in zip(bars[name][key], bands[name, key], strict=True):
                        _add(bar, phase, column, rows)
    return {"bars": bars, "said": _said(bundle.summary.get("attribution", {}))}


def _said(told: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Of all requests (empty name) and of each class the sentence on its P99 request, by metric."""
    return {
        "" if name == "overall" else name: {
            key: block[key]["p99"]["sentence"]
            for key in ("e2e", "ttft")
            if "p99" in block.get(key, {})
        }
        for name, block in told.items()
    }


def _groups(bundle: Bundle, classes: Sequence[str]) -> dict[str, Any]:
    """All measured requests, then those of each class; empty names the first."""
    mask = measured_mask(bundle)
    of = request_classes(bundle.requests) if classes else None
    return {"": mask} | {name: mask & (of == name) for name in classes}


def _band(bundle: Bundle, mask: Any, key: str, q: float) -> tuple[Ints, int | None]:
    """Rows of the requests around a percentile, by their values, and the row at it.

    No rows, and None, if no request has a value.
    """
    values = PER_REQUEST[key](bundle.requests)
    rows = np.flatnonzero(mask & ~np.isnan(values))
    if not len(rows):
        return rows, None
    ordered = rows[np.argsort(values[rows], kind="stable")]
    middle = max(0, int(np.ceil(q * len(rows))) - 1)
    half = int(_HALF_BAND * len(rows))
    return ordered[max(0, middle - half) : middle + half + 1], int(ordered[middle])


def _bar(bundle: Bundle, key: str, rows: Ints, at: int | None) -> dict[str, Any]:
    values: Floats = PER_REQUEST[key](bundle.requests)
    if at is None:
        return {"n": 0, "mean_s": None, "exact_s": None, "parts": []}
    mean, exact = float(values[rows].mean()), float(values[at])
    return {"n": len(rows), "mean_s": mean, "exact_s": exact, "parts": []}


def _add(bar: dict[str, Any], phase: str, column: Ints, rows: Ints) -> None:
    if len(rows) and (mean_s := float(column[rows].mean()) / NS_PER_S):
        bar["parts"].append([phase, *numbers(np.array([mean_s]))])


def bars(per_variant: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> dict[str, Any]:
    """Bars of all variants that have some, and why others have none."""
    return {
        "variants": list(per_variant),
        "classes": list(classes),
        "percentiles": [f"P{100 * q:g}" for q in PERCENTILES],
        "groups": [[name, list(phases)] for name, phases in GROUPS.items()],
        "names": dict(NAMES),
    }


def of_rows(folder: Path, rows: Sequence[int], of: str = "e2e") -> list[list[list[Any]]]:
    """Of each of these requests its phases and their time, ns; empty if unknown.

    Args:
        folder: Of the bundle.
        rows: Of the requests.
        of: What: ``e2e``, ``ttft``, or ``itl_max``, its largest gap between tokens.
    """
    found: list[list[list[Any]]] = [[] for _ in rows]
    for phase in PHASES:
        for column in read_columns(folder, [f"{of}_{phase}_ns"]).values():
            for at, row in enumerate(rows):
                if ns := int(column[row]):
                    found[at].append([phase, ns])
    return found
