"""Closed loops at several concurrencies: mean TTFT and TPOT of each row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.validation import rows
from experiments.validation.outcome import Outcome, Overlay
from experiments.validation.serve import Ints, Served, Server
from sim.request import Trace
from traces.workload import ClosedLoopSource

KV_BOUND = "kv-bound"
FREE = "free"

TTFT_JUMP = 1.9
"""TTFT over that at half the concurrency, from which a measured row counts as KV-bound."""


def run(outcome: Outcome, config: Mapping[str, Any], measured: Path) -> None:
    """Simulate each row of a sweep and compare its means.

    Args:
        outcome: Of the case; comparisons are added to it.
        config: Of the runs, data sets filled in.
        measured: The folder of measured data.
    """
    said = outcome.case.data
    table = rows.chosen(said, measured).to_dict("records")
    servers: dict[str, Server] = {}
    found: dict[str, list[float]] = {"ttft_ms": [], "tpot_ms": []}
    for number, row in enumerate(table):
        server, policy = rows.settings(said, row)
        key = repr(sorted(server.items()))
        if key not in servers:
            servers[key] = Server(rows.laid_over(config, server))
            for note in servers[key].notes:
                outcome.note(note)
        served = servers[key].run(_source(said, row, number), policy)
        _compare(outcome, row, served, jump=_jump(said, row, table))
        for name, each in (("ttft_ms", served.ttft_s), ("tpot_ms", served.tpot_s)):
            found[name].append(float(np.nanmean(each)) * 1e3)
    for name, simulated in found.items():
        real = np.array([rows.value(said["measured"][name], row) for row in table])
        title = f"{outcome.case.title}: {name.removesuffix('_ms').upper()} of {len(real)} rows"
        outcome.overlays.append(Overlay(title, "ms", real, np.array(simulated)))


def _source(said: Mapping[str, Any], row: rows.Row, seed: int) -> ClosedLoopSource:
    places = int(rows.value(said["concurrency"], row))
    n = places * said["prompts_per_place"]
    rng = np.random.default_rng(seed)
    prompts = _lengths(rows.value(said["prompt_tokens"], row), said["lengths"], n, rng)
    outputs = _lengths(rows.value(said["output_tokens"], row), said["lengths"], n, rng)
    trace = Trace(
        arrival_ns=np.zeros(n, np.int64),
        prompt_tokens=prompts,
        output_tokens=outputs,
        max_tokens=outputs,
        row=np.arange(n),
        delay_ns=np.full(n, round(said["turnaround_s"] * 1e9)),
    )
    return ClosedLoopSource(trace, places)


def _lengths(longest: int, share: Mapping[str, float], n: int, rng: np.random.Generator) -> Ints:
    """Lengths drawn evenly from a share of the longest to another, (n,)."""
    low, high = int(longest * share["from"]), int(longest * share["to"])
    return rng.integers(low, high + 1, n)


def _compare(outcome: Outcome, row: rows.Row, served: Served, jump: float) -> None:
    said = outcome.case.data
    places = int(rows.value(said["concurrency"], row))
    # Fewer run than there are places, for want of blocks.
    in_simulation = served.blocked > 0
    in_measurement = jump > TTFT_JUMP
    group = KV_BOUND if in_simulation or in_measurement else FREE
    name = rows.label(row, said["label"])
    for metric, each in (("ttft_ms", served.ttft_s), ("tpot_ms", served.tpot_s)):
        real = rows.value(said["measured"][metric], row)
        outcome.add(metric, real, float(np.nanmean(each)) * 1e3, row=name, group=group)
    if group == KV_BOUND:
        # Both or none say so: 0; else the error is 1.
        agree = float(in_simulation != in_measurement)
        outcome.add("kv_bound", in_measurement, in_simulation, row=name, group=group,
                    distance=agree)  # fmt: skip
        outcome.note(
            f"{name}: short of blocks for {served.blocked:.1%} of simulated time; "
            f"{served.mean_running:.0f} of {places} requests run; measured TTFT is "
            f"{jump:.2g} times that at half the concurrency."
        )


def _jump(said: Mapping[str, Any], row: rows.Row, table: list[dict[str, Any]]) -> float:
    """Measured TTFT over that of the row with half the concurrency; NaN where there is none."""
    column, ttft = said["concurrency"], said["measured"]["ttft_ms"]
    same = [name for name in said["label"] if name != column]
    for other in table:
        half = other[column] * 2 == row[column]
        if half and all(other[name] == row[name] for name in same):
            return float(row[ttft] / other[ttft])
    return math.nan
