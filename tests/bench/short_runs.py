"""Many short runs through Python, as an optimiser makes them: one cluster, metrics as arrays.

``python -m tests.bench.short_runs RUNS`` prints the processor time of the runs alone, in seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from experiments import cluster, config
from sim.event_loop import simulate
from sim.metrics import PER_REQUEST
from sim.request import Trace
from tests.bench.measure import Case
from traces.presets import synthesize

REQUESTS = 100


def short_runs(runs: int) -> float:
    """Seconds for so many runs of `REQUESTS` requests, each of a rate of its own."""
    plan = config.load(Case("vllm-v1", rows=REQUESTS).config())
    built = cluster.build(plan.variants[0], Path())
    drawn = synthesize("azure-conv-2023", REQUESTS, rate_per_s=1.0, seed=0)
    asked = np.full(REQUESTS, 1024, np.int64)
    began = time.process_time()
    for run in range(runs):
        scaled = drawn.arrival_ns * (100 + run % 50) // 1000
        trace = Trace(scaled, drawn.prompt_tokens, drawn.output_tokens, asked, drawn.row)
        requests = simulate(trace, built.cluster).requests
        for metric in PER_REQUEST.values():
            metric(requests)
    return time.process_time() - began


if __name__ == "__main__":
    print(short_runs(int(sys.argv[1])))
