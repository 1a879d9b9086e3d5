"""A small sweep that runs in milliseconds, and how to make it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from experiments.sweep.command import Swept, ask, sweep
from experiments.sweep.dataset import read_table
from experiments.sweep.executors import Executor, Here
from experiments.sweep.unit import WALL_FIELDS

CONFIG: dict[str, Any] = {
    "name": "small",
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 30,
        "max_tokens": 1024,
        "arrivals": {"rate_per_s": 10},
    },
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": {"model": "linear", "base_s": 0.01, "prefill_token_s": 1e-5},
    "slo": {"ttft_s": 0.04, "tpot_s": 0.1},
    "compare": [
        {"label": "sarathi", "policy": {"name": "sarathi", "budget_tokens": 512}},
        {"label": "vllm v1", "policy": {"name": "vllm-v1"}},
    ],
    "sweep": {
        "grid": {
            "workload.arrivals.rate_per_s": [5, 20],
            "variants.sarathi.policy.budget_tokens": [128, 512],
        },
    },
}


def config(**changes: Any) -> dict[str, Any]:
    """The small sweep with other keys."""
    return {**copy.deepcopy(CONFIG), **changes}


def run(
    given: dict[str, Any], out: Path, executor: Executor | None = None, **options: Any
) -> Swept:
    """Make a sweep."""
    return sweep(ask(given), out, executor or Here(), **options)


def rows(out: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows of its data set, wall-clock fields left out."""
    return without_wall(read_table(out, columns)).to_pylist()


def without_wall(table: pa.Table) -> pa.Table:
    """A table without what differs from run to run."""
    return table.drop_columns([name for name in WALL_FIELDS if name in table.column_names])
