"""Replicas of each pool over time, and the requests that are in the queue of none of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.changes import Change
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.records import POOL_COLUMNS, Record, SimulationResult
from sim.request import NEVER, Arrival
from sim.transfer import TransferSpec
from tests.sim.test_autoscale import scaled, scaling
from tests.sim.test_changes import colocated, two_pools, workload

POINT_NS = 3


def pools_of(
    cluster: Cluster,
    arrivals: list[Arrival],
    changes: list[tuple[int, Change]],
    *,
    fast_forward: bool = True,
) -> SimulationResult:
    return simulate(
        arrivals,
        cluster,
        cluster_events=changes,
        fast_forward=fast_forward,
        check=True,
        record=Record(series_points=100, series_span_ns=100 * POINT_NS),
    )


def at(result: SimulationResult, time_ns: int, pool: int = 0) -> dict[str, int]:
    table = result.pools
    (row,) = np.flatnonzero((table["time_ns"] == time_ns) & (table["pool"] == pool)).tolist()
    return {name: int(table[name][row]) for name in POOL_COLUMNS[2:]}


def test_requests_that_wait_for_a_failed_replica_are_counted_at_the_router() -> None:
    # One replica fails at 4 with both requests of 0 on it; they, and those of 12 and 13, wait at
    # the router until it is restored at 20.
    result = pools_of(
        colocated("sarathi", replicas=1),
        workload(),
        [(4, Change("fail")), (20, Change("restore"))],
    )

    nobody = {"starting": 0, "draining": 0, "between": 0}
    assert at(result, 3) == nobody | {"up": 1, "failed": 0, "without_replica": 0}
    assert at(result, 6) == nobody | {"up": 0, "failed": 1, "without_replica": 2}
    assert at(result, 15) == nobody | {"up": 0, "failed": 1, "without_replica": 4}
    assert at(result, 21) == nobody | {"up": 1, "failed": 0, "without_replica": 0}


def test_requests_wait_for_a_pool_at_zero_and_its_start_is_seen() -> None:
    # The look at 20 drains the idle replica, which is gone; the request of 41 asks for one, which
    # takes 15 to start.
    cluster = scaled(colocated("sarathi", replicas=1), scaling(0))
    result = pools_of(cluster, [Arrival(0, 5, 1, 1, 0), Arrival(41, 5, 1, 1, 1)], [])

    assert at(result, 18)["up"] == 1
    assert at(result, 39)["up"] == 0
    waits = at(result, 42)
    assert (waits["starting"], waits["up"], waits["without_replica"]) == (1, 0, 1)
    assert at(result, 57)["up"] == 1


CLUSTERS: dict[str, tuple[Cluster, list[tuple[int, Change]]]] = {
    "colocated": (
        colocated("vllm-v1", replicas=1),
        [(9, Change("fail")), (40, Change("restore"))],
    ),
    "swap": (colocated("vllm-v0-swap"), [(9, Change("fail")), (40, Change("restore"))]),
    "decode side away": (
        two_pools("sarathi", counts=(1, 1)),
        [(5, Change("fail", decode=True)), (70, Change("restore", decode=True))],
    ),
    "prefill side away": (
        two_pools("orca", counts=(1, 1)),
        [(5, Change("fail")), (70, Change("restore"))],
    ),
    "push": (
        replace(
            two_pools("vllm-v1"), transfer=TransferSpec(bandwidth_bytes_per_s=1e9, push=True)
        ),
        [(30, Change("fail", decode=True)), (70, Change("restore", decode=True))],
    ),
    "batches": (
        replace(
            two_pools("vllm-v1"),
            transfer=TransferSpec(bandwidth_bytes_per_s=1e9, batch_wait_s=20e-9),
        ),
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_request_in_the_system_is_in_one_queue_running_or_counted_with_its_pool(
    name: str,
) -> None:
    cluster, changes = CLUSTERS[name]
    arrivals = [Arrival(7 * i, 4 + i % 5, 1 + i % 7, 1 + i % 7, i) for i in range(40)]
    fast, slow = (pools_of(cluster, arrivals, changes, fast_forward=each) for each in (True, False))

    for column in POOL_COLUMNS:
        assert (fast.pools[column] == slow.pools[column]).all()
    seen = 0
    for time_ns in np.unique(fast.series["time_ns"]).tolist():
        counted = _in_system(fast, time_ns)
        requests = fast.requests
        there = (requests["arrival_ns"] <= time_ns) & (
            (requests["end_ns"] > time_ns) | (requests["end_ns"] == NEVER)
        )
        assert sum(counted.values()) == there.sum(), (time_ns, counted)
        seen += counted["without_replica"] + counted["between"]
    assert seen


def _in_system(result: SimulationResult, time_ns: int) -> dict[str, int]:
    tables: list[tuple[Any, tuple[str, ...]]] = [
        (result.series, ("waiting", "running")),
        (result.pools, ("without_replica", "between")),
    ]
    return {
        name: int(table[name][table["time_ns"] == time_ns].sum())
        for table, names in tables
        for name in names
    }
