"""What queueing theory says exactly: waiting times of M/D/1, utilisation, Little's law."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy import stats

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import Record
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime

SERVICE_NS = 10_000_000
ONE_AT_A_TIME: dict[str, dict[str, Any]] = {
    "static": {"batch_size": 1},
    "orca": {"max_batch_size": 1},
    "vllm-v0": {"max_num_seqs": 1},
    "vllm-v1": {"max_num_seqs": 1},
    "sarathi": {"max_num_seqs": 1},
    "sglang": {"max_running_requests": 1},
}
"""With one seat and one output token each policy is a server of constant service time."""


def _poisson(n: int, load: float, seed: int, prompt: int = 1, output: int = 1) -> list[Arrival]:
    gaps = np.random.default_rng(seed).exponential(SERVICE_NS / load, n)
    times = np.rint(np.cumsum(gaps)).astype(np.int64)
    return [Arrival(t, prompt, output, output, i) for i, t in enumerate(times.tolist())]


def _cluster(policy: Any, step_time: LinearStepTime) -> Cluster:
    replica = ReplicaSpec(policy, num_blocks=100_000, step_time=step_time)
    return Cluster(PoolSpec("replica", [replica], ROUTERS["round-robin"]()))


@dataclass(frozen=True)
class Estimate:
    """Mean of independent replications with its 99.9 % confidence interval."""

    mean: float
    half_width: float

    @staticmethod
    def of(values: list[float]) -> Estimate:
        error = stats.sem(values) * stats.t.ppf(0.9995, len(values) - 1)
        return Estimate(float(np.mean(values)), float(error))

    def holds(self, value: float) -> bool:
        return abs(self.mean - value) <= self.half_width


REPLICATIONS = 12
REQUESTS, WARM_UP = 1500, 300


@pytest.mark.parametrize(("name", "load"), [*((x, 0.8) for x in ONE_AT_A_TIME), ("orca", 0.5)])
def test_waiting_times_are_those_of_m_d_1(name: str, load: float) -> None:
    cluster = _cluster(POLICIES[name](**ONE_AT_A_TIME[name]), LinearStepTime(SERVICE_NS / 1e9))
    waits, idle, busy = [], [], []
    for seed in range(REPLICATIONS):
        result = simulate(_poisson(REQUESTS, load, seed), cluster)
        table = result.requests
        wait = (table["first_scheduled_ns"] - table["arrival_ns"])[WARM_UP:]
        waits.append(float(wait.mean()))
        idle.append(float((wait == 0).mean()))
        busy.append(result.replicas[0].busy_ns / result.end_ns)

    # Pollaczek-Khinchine for a constant service time s: load x s / (2 (1 - load)).
    wait = Estimate.of(waits)
    assert wait.holds(load * SERVICE_NS / (2 * (1 - load)))
    assert wait.half_width < 0.35 * wait.mean
    # Poisson arrivals see time averages: the server is idle for 1 - load of them.
    assert Estimate.of(idle).holds(1 - load)
    assert Estimate.of(busy).holds(load)


@pytest.mark.parametrize("fast_forward", [False, True], ids=["stepping", "fast-forward"])
@pytest.mark.parametrize("name", POLICIES)
def test_littles_law_holds_for_the_sampled_number_in_system(name: str, fast_forward: bool) -> None:
    step_time = LinearStepTime(base_s=5e-3, prefill_token_s=2e-5, decode_s=3e-5)
    arrivals = _poisson(400, load=0.2, seed=1, prompt=50, output=20)
    span = arrivals[-1].arrival_ns
    record = Record(series_points=20_000, series_span_ns=span)
    cluster = _cluster(POLICIES[name](), step_time)
    result = simulate(arrivals, cluster, fast_forward=fast_forward, record=record)

    # Over the whole run, empty at both ends: mean number in system = sum of sojourns / length.
    number = result.series["waiting"] + result.series["running"]
    sojourn = (result.requests["end_ns"] - result.requests["arrival_ns"]).sum()
    assert number.mean() == pytest.approx(sojourn / result.series["time_ns"][-1], rel=0.01)
    assert number.max() > 5
