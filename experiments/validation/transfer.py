"""Moving keys and values from a prefill to a decode replica, by prompt length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.validation import data
from experiments.validation.outcome import Floats, Outcome, Overlay
from experiments.validation.serve import Server
from sim.request import Trace
from traces.workload import TraceSource


def run(outcome: Outcome, config: Mapping[str, Any], measured: Path) -> None:
    """Send each prompt through a prefill and a decode pool, far apart in time.

    Args:
        outcome: Of the case; comparisons are added to it.
        config: Of the runs.
        measured: The folder of measured data.
    """
    said = outcome.case.data
    table = data.read(measured, said["table"])
    prompts = table[said["prompt_tokens"]].to_numpy(np.int64)
    served = Server(config).run(TraceSource(_apart(prompts)))
    moved = served.result.transfers
    order = np.argsort(moved["request"])
    simulated: Floats = (moved["end_ns"] - moved["start_ns"])[order] / 1e6
    for prompt, real, ms in zip(prompts, table[said["measured"]], simulated, strict=True):
        outcome.add("transfer_ms", real, ms, row=f"{prompt} tokens")
    title = f"{outcome.case.title}: transfer"
    outcome.overlays.append(
        Overlay(title, "ms", table[said["measured"]].to_numpy(float), simulated)
    )


def _apart(prompts: np.ndarray) -> Trace:
    """One request after another, ten minutes apart, two tokens each."""
    n = len(prompts)
    two = np.full(n, 2, np.int64)
    return Trace(
        arrival_ns=np.arange(n, dtype=np.int64) * 600_000_000_000,
        prompt_tokens=prompts,
        output_tokens=two,
        max_tokens=two,
        row=np.arange(n),
    )
