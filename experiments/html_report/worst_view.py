"""The worst requests of a variant, each with what a page needs to go through its life.

All times are ns since the request arrived. A stall is a gap between two tokens of more than twice
the median gap of the same request; the `MOST_STALLS` longest are told, with the iterations of its
replica that lay in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bundle import STEPS, Bundle, Columns, read_columns
from experiments.html_report import attribution_view
from experiments.html_report.timeline_view import steps_of
from experiments.report import measured_mask
from experiments.worst import KEYS, worst_rows
from sim.metric_definitions import METRICS
from sim.metrics import PER_REQUEST, Ints
from sim.records import PREEMPTIONS, STATES

MOST_STALLS = 12
_MOST_STEPS = 200
"""Iterations that are told of one prefill, or of all stalls of a request together."""
_STALL = 2.0
_TEXTS = ("session", "request_class", "tenant")
_COUNTS = (
    "prompt_tokens",
    "emitted_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "recomputed_tokens",
    "swap_outs",
    "rerouted",
    "migrations",
)
_TIMES = ("first_scheduled_ns", "prefill_end_ns", "first_token_ns", "last_token_ns", "end_ns")


def rows_of(bundle: Bundle) -> dict[str, list[int]]:
    """Rows of the worst requests, by metric."""
    mask = measured_mask(bundle)
    return {key: worst_rows(bundle.requests, mask, key).tolist() for key in KEYS}


def in_turn(rows: dict[str, list[int]]) -> list[int]:
    """All of them once: the worst of each metric, then the second of each, and so on."""
    longest = max((len(each) for each in rows.values()), default=0)
    turns = [each[k] for k in range(longest) for each in rows.values() if k < len(each)]
    return list(dict.fromkeys(turns))


def worst(bundle: Bundle, folder: Path, rows: dict[str, list[int]], most: int) -> dict[str, Any]:
    """The lists of worst requests of one variant, and their lives.

    Args:
        bundle: Of the variant, its steps not read.
        folder: Of the bundle.
        rows: Of the worst requests, by metric.
        most: Tokens of a request that are drawn.
    """
    every = in_turn(rows)
    lives = {str(row): _life(bundle, row, most) for row in every}
    for row, its in zip(every, attribution_view.of_rows(folder, every), strict=True):
        lives[str(row)]["parts"] = its
    _add_largest_gaps(folder, every, lives)
    noted = (folder / STEPS).is_file()
    if noted:
        _add_steps(bundle, folder, every, lives)
    lists = [
        {
            "key": key,
            "title": METRICS[key].title,
            "about": METRICS[key].definition,
            "rows": [
                [row, float(value)]
                for row, value in zip(of, PER_REQUEST[key](bundle.requests)[of], strict=True)
            ],
        }
        for key, of in rows.items()
    ]
    return {"lists": lists, "lives": lives, "steps": noted, "tokens": bool(bundle.tokens)}


def _add_largest_gaps(folder: Path, rows: Sequence[int], lives: dict[str, dict[str, Any]]) -> None:
    """To each life its largest gap between tokens: the token that ends it, and its phases."""
    tokens = read_columns(folder, ["itl_max_token"]).get("itl_max_token")
    if tokens is None:  # an older bundle
        return
    for row, its in zip(rows, attribution_view.of_rows(folder, rows, "itl_max"), strict=True):
        if (token := int(tokens[row])) > 0:
            lives[str(row)]["gap"] = {"token": token, "parts": its}


def _life(bundle: Bundle, row: int, most: int) -> dict[str, Any]:
    requests = bundle.requests
    arrival = int(requests["arrival_ns"][row])
    life: dict[str, Any] = {
        "index": int(requests["index"][row]),
        "arrival_ns": arrival,
        "state": STATES[int(requests["state"][row])],
        "reason": bundle.reasons[int(requests["reason"][row])],
        "places": [_name(bundle, int(requests[n][row])) for n in ("replica", "decode_replica")],
    }
    life |= {name: int(requests[name][row]) for name in _COUNTS if name in requests}
    life |= {
        name: str(requests[name][row])
        for name in _TEXTS
        if name in requests and requests[name][row] is not None
    }
    for name in _TIMES:
        then = int(requests[name][row])
        life[name] = None if then < 0 else then - arrival
    life["preempted"] = _preempted(bundle, life)
    return life | _transfers(bundle, life) | _tokens(bundle, life, most)


def _name(bundle: Bundle, place: int) -> str | None:
    return None if place < 0 else bundle.replicas[place].name


def _preempted(bundle: Bundle, life: dict[str, Any]) -> list[list[Any]]:
    """When it was preempted, and when it was admitted again."""
    rows = bundle.preemptions
    if not rows:
        return []
    its = np.flatnonzero(rows["request"] == life["index"]).tolist()
    return [
        [int(rows["time_ns"][at]) - life["arrival_ns"], PREEMPTIONS[int(rows["what"][at])]]
        for at in its
    ]


def _transfers(bundle: Bundle, life: dict[str, Any]) -> dict[str, Any]:
    moved = bundle.transfers
    mine = np.flatnonzero(moved["request"] == life["index"]) if moved else np.zeros(0, np.int64)
    return {
        "transfers": [
            {
                "start": int(moved["start_ns"][at]) - life["arrival_ns"],
                "end": int(moved["end_ns"][at]) - life["arrival_ns"],
                "bytes": int(moved["bytes"][at]),
                "source": _name(bundle, int(moved["source"][at])),
                "target": _name(bundle, int(moved["target"][at])),
            }
            for at in mine.tolist()
        ]
    }


def _tokens(bundle: Bundle, life: dict[str, Any], most: int) -> dict[str, Any]:
    """Times of its tokens, few enough to draw, and its stalls."""
    if not bundle.tokens:
        return {"ladder": None, "stalls": []}
    mine = bundle.tokens["request"] == life["index"]
    times = bundle.tokens["time_ns"][mine] - life["arrival_ns"]
    gaps = np.diff(times)
    median = float(np.median(gaps)) if len(gaps) else 0.0
    longest = np.argsort(-gaps, kind="stable")[:MOST_STALLS]
    stalls = sorted(at for at in longest.tolist() if gaps[at] > _STALL * median)
    kept = _drawn(len(times), stalls, most)
    return {
        "ladder": {
            "token": (kept + 1).tolist(),
            "gap": np.diff(times[kept], prepend=0).tolist(),
            "of": len(times),
        },
        "median_gap_ns": median,
        "stalls": [
            {"token": at + 2, "start": int(times[at]), "end": int(times[at + 1])} for at in stalls
        ],
    }


def _drawn(count: int, stalls: Sequence[int], most: int) -> Ints:
    """Tokens that are drawn: all, or both ends of each stall and others evenly between."""
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most - 2 * len(stalls)).round().astype(np.int64)
    edges = np.array([at + end for at in stalls for end in (0, 1)], dtype=np.int64)
    return np.unique(np.concatenate((even, edges)))


# --- the iterations around


def _add_steps(
    bundle: Bundle, folder: Path, rows: Sequence[int], lives: dict[str, dict[str, Any]]
) -> None:
    """To each life the iterations of its replica during its prefill, and in its stalls."""
    names = [replica.name for replica in bundle.replicas]
    for life in lives.values():
        life["around"] = []
    for step in steps_of(folder, names):
        for row in rows:
            life = lives[str(row)]
            chosen = _wanted(bundle, row, life, step)
            room = 2 * _MOST_STEPS - len(life["around"])
            for at in np.flatnonzero(chosen)[:room].tolist():
                life["around"].append(_told(step, at, life["arrival_ns"]))


def _wanted(bundle: Bundle, row: int, life: dict[str, Any], step: Columns) -> Any:
    first, last = (int(bundle.requests[n][row]) for n in ("replica", "decode_replica"))
    last = first if last < 0 else last
    start, end = step["start_ns"] - life["arrival_ns"], step["end_ns"] - life["arrival_ns"]
    chosen = np.zeros(len(start), bool)
    begun, done = life["first_scheduled_ns"], life["prefill_end_ns"]
    if begun is not None and done is not None:
        there = (start < done) & (end > begun) & (step["prefill_tokens"] > 0)
        chosen |= there & (step["replica"] == first)
    for stall in life["stalls"]:
        there = (start < stall["end"]) & (end > stall["start"])
        chosen |= there & (step["replica"] == last)
    return chosen


def _told(step: Columns, at: int, arrival_ns: int) -> list[int]:
    """Start and end since arrival, iterations, prompt tokens and decodes of each."""
    names = ("iterations", "prefill_tokens", "decodes", "replica")
    times = [int(step[name][at]) - arrival_ns for name in ("start_ns", "end_ns")]
    return [*times, *(int(step[name][at]) for name in names)]
