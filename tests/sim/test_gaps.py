"""Gaps between tokens, counted from the step logs, are those of the tokens listed one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from policies import POLICIES, ROUTERS
from sim import gaps
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime

STEP = LinearStepTime(base_s=5e-3, prefill_token_s=2e-5, decode_s=1e-5, context_token_s=1e-8)
REQUESTS = 80


def run(policy: str, **options: object) -> SimulationResult:
    """Two replicas short of memory, so that paged policies preempt and requests start again."""
    draw = random.Random(7)
    arrivals = [
        Arrival(int(i * 4e7), draw.randint(1, 900), draw.randint(1, 120), 128, i)
        for i in range(REQUESTS)
    ]
    spec = ReplicaSpec(POLICIES[policy](**options), 150, STEP)
    return simulate(arrivals, Cluster(PoolSpec("pool", [spec] * 2, ROUTERS["round-robin"]())))


CASES = [(name, {}) for name in POLICIES] + [("static", {"return_at": "batch_end"})]


@pytest.mark.parametrize(("policy", "options"), CASES)
@pytest.mark.parametrize("piece", [1 << 22, 7])
def test_counts_equal_those_of_listed_tokens(
    policy: str, options: dict[str, object], piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaps, "_PIECE", piece)
    result = run(policy, **options)
    groups = np.arange(REQUESTS) % 3 - 1
    counted = result.itl(groups)
    for group in (0, 1):
        members = np.flatnonzero(groups == group)
        listed = np.concatenate([np.diff(result.token_times_ns(i)) for i in members])
        lengths, counts = np.unique(listed, return_counts=True)
        assert counted[group][0].tolist() == lengths.tolist()
        assert counted[group][1].tolist() == counts.tolist()
    assert set(counted) == {0, 1}


@pytest.mark.parametrize(("policy", "options"), CASES)
def test_the_largest_gap_of_each_request_is_found(policy: str, options: dict[str, object]) -> None:
    result = run(policy, **options)
    for i in range(REQUESTS):
        listed = np.diff(result.token_times_ns(i))
        assert result.requests["largest_itl_ns"][i] == (listed.max() if len(listed) else -1)


def test_some_requests_were_preempted_in_these_runs() -> None:
    assert run("vllm-v1").requests["preemptions"].any()
