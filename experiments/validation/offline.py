"""All requests at once: the time until the last, or the tokens a second, of each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from experiments.validation import rows
from experiments.validation.outcome import Outcome, Overlay
from experiments.validation.serve import Served, Server
from sim.request import Trace
from traces.workload import TraceSource


def _per_token(served: Served) -> float:
    """The median gap between tokens: every gap counts, as in the median of a log of gaps."""
    gaps, counts = served.itl
    return float(gaps[np.searchsorted(np.cumsum(counts), counts.sum() / 2)]) / 1e6


METRICS: Mapping[str, Callable[[Served], float]] = MappingProxyType(
    {
        "latency_s": lambda served: served.end_s,
        "output_tok_per_s": lambda served: (
            float(served.gaps.sum() + len(served.gaps)) / served.end_s
        ),
        "itl_median_ms": _per_token,
        "ttft_mean_ms": lambda served: float(served.ttft_s.mean() * 1e3),
    }
)
"""What can be compared, from a run."""


def run(outcome: Outcome, config: Mapping[str, Any], measured: Path) -> None:
    """Simulate each row, under each of the policies of a case.

    Args:
        outcome: Of the case; comparisons are added to it.
        config: Of the runs, data sets filled in.
        measured: The folder of measured data.
    """
    said = outcome.case.data
    servers: dict[str, Server] = {}
    found: dict[str, list[tuple[float, float]]] = {}
    table = rows.chosen(said, measured).to_dict("records")
    fitting = [row for row in table if "fits_in" not in said or _fits(said, row)]
    if len(fitting) < len(table):
        outcome.note(f"{len(table) - len(fitting)} rows do not fit in {said['fits_in']['device']}.")
    for row in fitting:
        served = _serve(outcome, config, said, row, servers)
        other = None
        if "also" in said:
            other = _serve(outcome, config, {**said, **said["also"]}, row, servers)
        name = rows.label(row, said["label"])
        group = str(row[said["group"]]) if "group" in said else ""
        for metric, column in said["measured"].items():
            real, simulated = float(rows.value(column, row)), METRICS[metric](served)
            outcome.add(metric, real, simulated, row=name, group=group)
            found.setdefault(metric, []).append((real, simulated))
            if other is not None:
                outcome.add(f"{metric} under both policies", simulated, METRICS[metric](other),
                            row=name, group="policies")  # fmt: skip
    for metric, pairs in found.items():
        title = f"{outcome.case.title}: {metric} of {len(pairs)} rows"
        real, simulated = np.array(pairs).T
        outcome.overlays.append(Overlay(title, metric.rpartition("_")[2], real, simulated))


def _serve(
    outcome: Outcome,
    config: Mapping[str, Any],
    said: Mapping[str, Any],
    row: rows.Row,
    servers: dict[str, Server],
) -> Served:
    server, policy = rows.settings(said, row)
    policy = {**said.get("policy", {}), **policy}
    key = repr(sorted(server.items()))
    if key not in servers:
        servers[key] = Server(rows.laid_over(config, server))
        for note in servers[key].notes:
            outcome.note(note)
    return servers[key].run(_source(said, row), policy)


def _fits(said: Mapping[str, Any], row: rows.Row) -> bool:
    """Whether all requests of a row have room at once on a smaller device, beside the weights."""
    from sim.errors import ConfigError
    from sim.specs import kv_blocks, load_device, load_model

    wanted = said["fits_in"]
    try:
        blocks, _ = kv_blocks(
            load_model(str(row[wanted["model"]])),
            load_device(wanted["device"]),
            precision="fp16",
            kv_dtype="fp16",
            tp=int(row[wanted["gpus"]]),
            gpu_memory_utilization=wanted["gpu_memory_utilization"],
            block_tokens=16,
            reserve_bytes=0,
        )
    except ConfigError:  # the weights alone do not fit
        return False
    tokens = rows.value(said["prompt_tokens"], row) + rows.value(said["output_tokens"], row)
    return rows.value(said["requests"], row) * -(-tokens // 16) <= blocks


def _source(said: Mapping[str, Any], row: rows.Row) -> TraceSource:
    n = int(rows.value(said["requests"], row))
    outputs = np.full(n, int(rows.value(said["output_tokens"], row)), np.int64)
    trace = Trace(
        arrival_ns=np.zeros(n, np.int64),
        prompt_tokens=np.full(n, int(rows.value(said["prompt_tokens"], row)), np.int64),
        output_tokens=outputs,
        max_tokens=outputs,
        row=np.arange(n),
    )
    return TraceSource(trace)
