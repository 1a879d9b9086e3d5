"""Recorded arrivals, served again: latencies of each request, or means of each case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.validation import data, rows
from experiments.validation.outcome import Floats, Outcome, Overlay
from experiments.validation.serve import Served, Server
from sim.request import Trace
from traces.workload import TraceSource

if TYPE_CHECKING:
    import pandas as pd

PER_REQUEST: Mapping[str, Callable[[Served], Floats]] = MappingProxyType(
    {
        "ttft_ms": lambda served: served.ttft_s * 1e3,
        "tpot_ms": lambda served: served.tpot_s * 1e3,
        "e2e_ms": lambda served: served.e2e_s * 1e3,
    }
)
"""Latencies of each request, from a run."""

STATISTICS: Mapping[str, Callable[[Floats], float]] = MappingProxyType(
    {
        "mean": lambda values: float(np.nanmean(values)),
        "p50": lambda values: float(np.nanquantile(values, 0.5)),
        "p90": lambda values: float(np.nanquantile(values, 0.9)),
        "p99": lambda values: float(np.nanquantile(values, 0.99)),
    }
)

MEANS: Mapping[str, Callable[[Served], float]] = MappingProxyType(
    {
        "ttft_mean_ms": lambda served: float(served.ttft_s.mean() * 1e3),
        # Weighted by tokens, as a server's own counters are.
        "tpot_mean_ms": lambda served: float(served.decoding_s.sum() / served.gaps.sum() * 1e3),
        "latency_sum_s": lambda served: float(served.e2e_s.sum()),
    }
)
"""Means of a run, where the measurement has no more."""


def run(outcome: Outcome, config: Mapping[str, Any], measured: Path) -> None:
    """Replay the requests of a case, or of each of its rows.

    Args:
        outcome: Of the case; comparisons are added to it.
        config: Of the runs, data sets filled in.
        measured: The folder of measured data.
    """
    said = outcome.case.data
    if "table" not in said:
        requests = data.read(measured, said["requests"])
        served = _replayed(outcome, config, requests, {})
        _each_request(outcome, requests, served)
        if "timeseries" in said:
            _curves(outcome, data.read(measured, said["timeseries"]), served)
        if "timeline" in said:
            _throughput(outcome, data.read(measured, said["timeline"]), served)
        return
    for row in rows.chosen(said, measured).to_dict("records"):
        all_requests = data.read(measured, said["requests"])
        requests = all_requests[all_requests[said["key"]] == row[said["key"]]]
        served = _replayed(outcome, config, requests, row)
        name = rows.label(row, said["label"])
        for metric, formula in said["measured"].items():
            factor = 1e3 if metric.endswith("_ms") else 1
            real = float(rows.value(formula, row)) * factor
            outcome.add(metric, real, MEANS[metric](served), row=name, listed=True)


def _replayed(
    outcome: Outcome, config: Mapping[str, Any], requests: pd.DataFrame, row: rows.Row
) -> Served:
    columns = outcome.case.data["columns"]
    ordered = requests.sort_values(columns["arrival_s"], kind="stable")
    outputs = ordered[columns["output_tokens"]].to_numpy(np.int64)
    trace = Trace(
        arrival_ns=np.rint(ordered[columns["arrival_s"]].to_numpy(float) * 1e9).astype(np.int64),
        prompt_tokens=ordered[columns["prompt_tokens"]].to_numpy(np.int64),
        output_tokens=outputs,
        max_tokens=outputs,
        row=np.arange(len(ordered)),
    )
    settings, policy = rows.settings(outcome.case.data, row)
    server = Server(rows.laid_over(config, settings))
    for note in server.notes:
        outcome.note(note)
    return server.run(TraceSource(trace), policy)


def _each_request(outcome: Outcome, requests: pd.DataFrame, served: Served) -> None:
    said = outcome.case.data
    ordered = requests.sort_values(said["columns"]["arrival_s"], kind="stable")
    for metric, column in said.get("measured", {}).items():
        real, simulated = ordered[column].to_numpy(float), PER_REQUEST[metric](served)
        for name, of in STATISTICS.items():
            outcome.add(f"{metric} {name}", of(real), of(simulated), listed=True)
        each = np.abs(simulated / real - 1)
        outcome.add(f"{metric} each request, median error", math.nan, math.nan, listed=True,
                    distance=float(np.nanmedian(each)))  # fmt: skip
        title = f"{outcome.case.title}: {metric.removesuffix('_ms').upper()}"
        outcome.overlays.append(Overlay(title, "ms", real, simulated))
    if "last_token_s" in said["columns"]:
        end_s = float(ordered[said["columns"]["last_token_s"]].max())
        outcome.add("makespan_s", end_s, served.end_s, listed=True)


def _curves(outcome: Outcome, series: pd.DataFrame, served: Served) -> None:
    """Requests that run and wait over time: difference of the curves, as a share of the mean."""
    times = series["t"].to_numpy(float)
    for name, simulated in (("running", served.running_at(times)),
                            ("waiting", served.waiting_at(times))):  # fmt: skip
        real = series[name].to_numpy(float)
        differ = float(np.abs(simulated - real).mean() / real.mean())
        outcome.add(f"{name} curve", real.mean(), simulated.mean(), distance=differ, listed=True)
        title = f"{outcome.case.title}: {name} requests"
        outcome.overlays.append(Overlay(title, "s", real, simulated, times))


def _throughput(outcome: Outcome, timeline: pd.DataFrame, served: Served) -> None:
    """Tokens a second, each second; and the time at which the last token came."""
    said = outcome.case.data
    for column, wanted in said["where"].items():
        timeline = timeline[timeline[column] == wanted]
    times = timeline["time_s"].to_numpy(float)
    real = timeline["throughput"].to_numpy(float)
    simulated = served.tokens_between(times - 1, times, prompts=said["counts_prompts"])
    busy = times[real > 0]
    outcome.add("last_active_s", busy.max(), served.end_s, listed=True)
    outcome.add("tokens", real.sum(), simulated.sum(), listed=True)
    differ = float(np.abs(simulated - real).mean() / real.mean())
    outcome.add("throughput curve", real.mean(), simulated.mean(), distance=differ, listed=True)
    title = f"{outcome.case.title}: tokens a second"
    outcome.overlays.append(Overlay(title, "s", real, simulated, times))
