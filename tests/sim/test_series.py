"""The series of queue, running and KV use lies on a fixed grid, however long a run takes."""

from __future__ import annotations

import numpy as np

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster, PoolSpec, TransferSpec
from sim.event_loop import simulate
from sim.records import Record
from sim.replica import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime

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
