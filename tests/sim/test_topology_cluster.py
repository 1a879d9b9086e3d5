"""Whole clusters on a topology: the same integers either way, pull and push, replicas that come."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policies import POLICIES, ROUTERS
from sim.changes import Change
from sim.clock import Clock
from sim.cluster import Cluster, LiveCluster
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.kv_shards import KvShards
from sim.pool import PoolSpec
from sim.records import Record, Recorder, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from sim.topology import LinkSpec, NodeSpec, Seat, Topology
from sim.transfer import TransferSpec

STEP = LinearStepTime(base_s=1e-6, prefill_token_s=1e-7, decode_s=2e-7)
Events = tuple[tuple[int, Change], ...]
NIC = LinkSpec(1e9, latency_s=2e-7)


def spec(tp: int, device: str = "gpu", policy: str = "vllm-v1") -> ReplicaSpec:
    shards = KvShards((5,), tp, 1, 4, 5)
    seat = Seat(shards, device, LinkSpec(8e9), LinkSpec(3e9))
    return ReplicaSpec(
        POLICIES[policy](), 60, STEP, kv_bytes_per_token=shards.bytes_per_token, gpus=tp, seat=seat
    )


def cluster(
    prefill: ReplicaSpec, decode: ReplicaSpec, *, push: bool = False, nodes: int | None = None
) -> Cluster:
    node = NodeSpec(4, 2, NIC)
    router = ROUTERS["least-outstanding"]
    return Cluster(
        PoolSpec("prefill", [prefill] * 3, router()),
        PoolSpec("decode", [decode] * 2, router()),
        TransferSpec(None, 1e-6, shares_links=True, push=push),
        topology=Topology((node,) * (nodes or 1), endless=nodes is None),
    )


def arrivals(n: int = 60) -> list[Arrival]:
    return [
        Arrival(
            700 * i,
            5 + 37 * i % 90,
            1 + i % 9,
            12,
            i,
            cancel_after_ns=4000 if i % 5 == 0 else None,
        )
        for i in range(n)
    ]


def run(cluster: Cluster, *, fast: bool, changes: Events = ()) -> SimulationResult:
    record = Record(decisions=True)
    return simulate(
        arrivals(), cluster, fast_forward=fast, check=True, record=record, cluster_events=changes
    )


def columns(run: SimulationResult) -> list[dict[str, list[int]]]:
    return [
        {k: v.tolist() for k, v in table.items()}
        for table in (run.requests, run.transfers, run.changes)
    ]


ADDED = ((9_000, Change("add", 0, True)), (15_000, Change("fail", 1, True)))


@pytest.mark.parametrize("push", [False, True])
@pytest.mark.parametrize(("prefill", "decode"), [(2, 2), (1, 4), (4, 1)])
def test_fast_forward_gives_the_same_integers(push: bool, prefill: int, decode: int) -> None:
    made = cluster(spec(prefill), spec(decode), push=push)
    changes = () if push else ADDED
    runs = [run(made, fast=fast, changes=changes) for fast in (True, False)]
    assert columns(runs[0]) == columns(runs[1])
    assert runs[0].links == runs[1].links
    assert runs[0].transfers["bytes"].size > 20


@pytest.mark.parametrize("push", [False, True])
def test_who_changes_role_keeps_its_gpus_where_all_are_taken(push: bool) -> None:
    made = cluster(spec(4), spec(4), push=push, nodes=5)
    changes = ((9_000, Change("role", 1)), (100, Change("role", 1, True)))
    runs = [run(made, fast=fast, changes=changes) for fast in (True, False)]
    assert columns(runs[0]) == columns(runs[1])
    assert runs[0].links == runs[1].links
    got, before = runs[0], run(made, fast=True)
    # Node 1 was a source only, node 4 a target only.
    for node, other_way in ((1, "in"), (4, "out")):
        assert not carried(before, node, other_way)
        assert carried(got, node, other_way)


def carried(run: SimulationResult, node: int, direction: str) -> float:
    used = (use for use in run.links if (use.kind, use.node) == ("nic", node))
    return sum(use.sent_bytes for use in used if use.direction == direction)


def test_links_carry_what_the_transfers_moved() -> None:
    got = run(cluster(spec(2), spec(4)), fast=True)
    moved = int(got.transfers["bytes"].sum())
    # Prefill replicas fill node 0 and half of node 1, where no decode replica of 4 GPUs fits.
    nics = {use.name: use.sent_bytes for use in got.links if use.kind == "nic"}
    assert sum(v for name, v in nics.items() if name.endswith("out")) == moved
    assert sum(v for name, v in nics.items() if name.endswith("in")) == moved
    assert all(0 <= use.busy <= 1 for use in got.links)
    assert {use.node for use in got.links} == {0, 1, 2, 3}


def test_one_transfer_takes_latency_and_its_slowest_link() -> None:
    made = cluster(spec(4), spec(4))
    got = simulate([Arrival(0, 32, 2, 2, 0)], made)
    # 32 tokens of 100 bytes in 4 parts of 800, two on each NIC: 1,600 ns; 1,000 + 200 of latency.
    start, end = got.transfers["start_ns"][0], got.transfers["end_ns"][0]
    assert end - start == 1200 + 1600
    assert got.transfers["bytes"][0] == 3200


def test_heterogeneous_pools_lie_on_nodes_of_their_own() -> None:
    made = cluster(spec(1, "a100"), spec(1, "h200"))
    got = run(made, fast=True)
    assert {use.name for use in got.links if use.kind == "nvlink" and use.sent_bytes} == set()
    same = run(cluster(spec(1), spec(1)), fast=True)
    assert any(use.kind == "nvlink" and use.sent_bytes for use in same.links)


def test_what_does_not_fit_is_refused_with_what_is_free() -> None:
    with pytest.raises(ConfigError, match=r"decode replica 1: needs 4 GPUs .* 0 of node 0"):
        run(cluster(spec(2), spec(4), nodes=3), fast=True)


def test_a_topology_and_a_bandwidth_of_the_transfer_exclude_each_other() -> None:
    made = cluster(spec(1), spec(1))
    with pytest.raises(ConfigError, match="bandwidth_bytes_per_s 1e"):
        replace(made, transfer=TransferSpec(1e9, shares_links=True))
    with pytest.raises(ConfigError, match="needed without a topology"):
        replace(made, topology=None)
    with pytest.raises(ConfigError, match="sharing none"):
        replace(made, transfer=TransferSpec(None))
    bare = replace(spec(1), seat=None)
    with pytest.raises(ConfigError, match="need a seat"):
        cluster(bare, bare)


def test_gpus_of_a_replica_that_is_gone_are_free_again() -> None:
    made = cluster(spec(4), spec(4), nodes=5)
    changes = ((5_000, Change("drain", 1, True)), (40_000, Change("add", 0, True)))
    got = run(made, fast=True, changes=changes)
    assert got.changes["change"].size == 3, "drained, gone, added"


def test_a_slow_nic_slows_transfers_from_then_on() -> None:
    made = cluster(spec(1), spec(4))
    env = Clock(initial_time=0)
    live = LiveCluster(env, made, Recorder(Record()))
    ends: list[int] = []
    carrier = live.between.carrier
    carrier.send(
        live.entry.replicas[0], live.decode.replicas[0], 0, 1000, lambda: ends.append(env.now)
    )
    carrier.slow_nics(live.decode.replicas[0], 0.25)
    env.run()
    # Each of two NICs gets 500 bytes, at a quarter of a byte per ns; the source's NIC gives 1 to
    # both together.
    assert ends == [1200 + 2000]
