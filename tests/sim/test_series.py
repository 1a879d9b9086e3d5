"""The series of queue, running and KV use lies on a fixed grid, however long a run takes."""

from __future__ import annotations

import numpy as np
import pytest

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.content import Content
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)


def test_each_point_shows_the_state_at_the_end_of_its_instant() -> None:
    spec = ReplicaSpec(POLICIES["sarathi"](max_num_seqs=1), 100, STEP)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))
    arrivals = [Arrival(0, 20, 3, 3, 0), Arrival(12, 20, 1, 1, 1)]
    result = simulate(arrivals, cluster, record=Record(series_points=10, series_span_ns=100))
    # Prefill of request 0 to 30, decodes to 41 and 52; request 1 waits from 12 to 52, runs to 82.
    # Decodes hold 21 and 22 tokens, still two blocks of 16.
    series = {name: column.tolist() for name, column in result.series.items()}
    assert series["time_ns"] == [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert series["waiting"] == [0, 1, 1, 1, 1, 0, 0, 0, 0]
    assert series["running"] == [1, 1, 1, 1, 1, 1, 1, 1, 0]
    assert series["used_blocks"] == [2, 2, 2, 2, 2, 2, 2, 2, 0]


def test_a_run_much_longer_than_its_arrivals_keeps_few_points_on_one_grid() -> None:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 100, STEP, kv_bytes_per_token=1000)
    pools = [PoolSpec(name, [spec], ROUTERS["round-robin"]()) for name in ("prefill", "decode")]
    slow = TransferSpec(bandwidth_bytes_per_s=1e-3)  # 16,000 bytes: half a year
    arrivals = [Arrival(i, 5, 3, 3, i) for i in range(3)]
    record = Record(series_points=100, series_span_ns=300)
    result = simulate(arrivals, Cluster(*pools, slow), record=record)
    times = np.unique(result.series["time_ns"])
    assert result.end_ns > 10**16
    assert 100 <= len(times) <= 400
    assert len(np.unique(np.diff(times))) == 1


def test_sampling_changes_no_token_time() -> None:
    spec = ReplicaSpec(POLICIES["sarathi"](budget_tokens=16), 40, STEP)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["least-tokens"]()))
    arrivals = [Arrival(15 * i, 40 + i, 30, 30, i) for i in range(30)]
    with_series = Record(series_points=97, series_span_ns=400)
    runs = [simulate(arrivals, cluster, record=r, check=True) for r in (with_series, None)]
    for i in range(30):
        assert runs[0].token_times_ns(i).tolist() == runs[1].token_times_ns(i).tolist()


CACHES = {"vllm-v1": POLICIES["vllm-v1"](prefix_cache=True), "sglang": POLICIES["sglang"]()}


def _cached(
    blocks: int, arrivals: list[Arrival], record: Record, name: str = "vllm-v1", **how: bool
) -> SimulationResult:
    policy = CACHES[name]
    spec = ReplicaSpec(policy, blocks, STEP, block_tokens=4)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))
    return simulate(arrivals, cluster, record=record, check=True, **how)


def test_cached_and_lost_blocks_by_hand() -> None:
    # Blocks of 4 tokens, 4 in all. Request 0 holds 2 to 18 and leaves both cached; request 1, of
    # other content, takes the 2 blank ones and (16 tokens) both cached ones, which are lost.
    ids = {0: [1, 2], 1: [3, 4, 5, 6]}
    arrivals = [
        Arrival(
            when, 4 * len(ids[i]), 1, 1, i, content=Content.of_blocks(ids[i], 4, 4 * len(ids[i]))
        )
        for i, when in enumerate((0, 40))
    ]
    result = _cached(4, arrivals, Record(series_points=8, series_span_ns=80))
    series = {name: column.tolist() for name, column in result.series.items()}
    assert series["time_ns"] == [10, 20, 30, 40, 50, 60, 70]
    assert series["used_blocks"] == [2, 0, 0, 4, 4, 4, 0]
    assert series["cached_blocks"] == [0, 2, 2, 0, 0, 0, 4]
    assert series["lost_blocks"] == [0, 0, 0, 2, 2, 2, 2]
    assert [replica.lost_blocks for replica in result.replicas] == [2]


@pytest.mark.parametrize("name", CACHES)
def test_the_series_of_a_cache_is_the_same_step_by_step(name: str) -> None:
    rng = np.random.default_rng(5)
    arrivals = [
        Arrival(
            37 * i,
            int(prompt),
            20,
            20,
            i,
            content=Content.of_blocks(
                [int(rng.integers(3)), *range(100 * i, 100 * i + 20)], 4, int(prompt)
            ),
        )
        for i, prompt in enumerate(rng.integers(5, 60, 60))
    ]
    record = Record(series_points=211, series_span_ns=2500)
    fast, slow = (_cached(25, arrivals, record, name, fast_forward=on) for on in (True, False))
    for name, column in fast.series.items():
        assert column.tolist() == slow.series[name].tolist(), name
    assert fast.series["cached_blocks"].max() > 0
    assert fast.series["lost_blocks"][-1] == fast.replicas[0].lost_blocks > 0


def test_without_a_cache_nothing_is_cached_or_lost() -> None:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 100, STEP)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))
    record = Record(series_points=10, series_span_ns=100)
    result = simulate([Arrival(0, 20, 3, 3, 0)], cluster, record=record)
    assert not result.series["cached_blocks"].any()
    assert result.replicas[0].lost_blocks is None
