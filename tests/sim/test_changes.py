"""Failures at every instant of small runs, and at random ones: what must hold whenever they come.

The same integers with and without fast-forward; every arrived request in exactly one state; every
token emitted once, in order; no memory left behind; nothing before the failure changed by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import ORDERS, POLICIES, ROUTERS
from sim.changes import Change
from sim.cluster import Cluster, LiveCluster
from sim.content import Content
from sim.event_loop import simulate
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.records import FINISHED, UNFINISHED, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.slow_down import NodeChange, Slow, for_a_while
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec
from tests.cancellations import assert_nothing_left, instants, observed

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)

POLICY_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {"batch_size": 3, "batch_timeout_s": 20e-9}),
    "static-late": ("static", {"batch_size": 3, "return_at": "batch_end"}),
    "orca": ("orca", {"max_batch_size": 3}),
    "vllm-v0": ("vllm-v0", {}),
    "vllm-v0-swap": ("vllm-v0", {"preemption": "swap", "host_blocks": 8}),
    "sarathi": ("sarathi", {"budget_tokens": 6}),
    "vllm-v1": ("vllm-v1", {"max_num_batched_tokens": 7}),
    "vllm-v1-cached": ("vllm-v1", {"max_num_batched_tokens": 7, "prefix_cache": True}),
    "sglang": ("sglang", {"chunked_prefill_size": 8}),
}
POOLED = [name for name in POLICY_OPTIONS if name != "sglang"]


def spec(name: str, blocks: int = 9, order: str = "fcfs") -> ReplicaSpec:
    policy, options = POLICY_OPTIONS[name]
    link = 1e9 if "host_blocks" in options else None
    return ReplicaSpec(
        POLICIES[policy](**options),
        blocks,
        STEP,
        block_tokens=4,
        kv_bytes_per_token=1,
        host_bandwidth_bytes_per_s=link,
        order=ORDERS[order](),
    )


def colocated(name: str, replicas: int = 2, **options: Any) -> Cluster:
    pool = PoolSpec("replica", [spec(name)] * replicas, ROUTERS["round-robin"]())
    return Cluster(pool, **options)


def two_pools(name: str, *, again: bool = False, counts: tuple[int, int] = (2, 2)) -> Cluster:
    pools = [
        PoolSpec(role, [spec(name)] * count, ROUTERS["least-outstanding"]())
        for role, count in zip(("prefill", "decode"), counts, strict=True)
    ]
    return Cluster(*pools, TransferSpec(bandwidth_bytes_per_s=1e9, recompute_last_token=again))


def workload(shared: bool = True) -> list[Arrival]:
    content = Content([(0, 8)]) if shared else None
    sizes = [(0, 9, 4), (0, 5, 7), (12, 10, 1), (13, 6, 6), (30, 9, 3)]
    return [Arrival(at, p, o, o, i, content=content) for i, (at, p, o) in enumerate(sizes)]


def run(
    arrivals: Sequence[Arrival],
    cluster: Cluster,
    changes: Sequence[tuple[int, Change]],
    *,
    fast_forward: bool,
) -> SimulationResult:
    seen: list[LiveCluster] = []
    result = simulate(
        arrivals,
        cluster,
        fast_forward=fast_forward,
        check=True,
        record=Record(decisions=True, events=True, steps=True),
        cluster_events=[(0, seen.append), *changes],
    )
    if UNFINISHED not in result.requests["state"]:
        assert_nothing_left(seen[0])
    return result


def seen_in(result: SimulationResult) -> dict[str, Any]:
    changes = {name: column.tolist() for name, column in result.changes.items()}
    return {**observed(result), "changes": changes}


def assert_conserved(result: SimulationResult, arrivals: Sequence[Arrival]) -> None:
    """Each request is recorded once, with as many tokens as its client got, in order."""
    table = result.requests
    assert table["index"].tolist() == [arrival.index for arrival in arrivals]
    for at, index in enumerate(table["index"].tolist()):
        times = result.token_times_ns(index)
        assert len(times) == table["emitted_tokens"][at] <= table["output_tokens"][at]
        assert (np.diff(times) >= 0).all()
        finished = table["state"][at] == FINISHED
        assert finished == (table["emitted_tokens"][at] == table["output_tokens"][at])


def both_ways(
    arrivals: Sequence[Arrival], cluster: Cluster, changes: Sequence[tuple[int, Change]]
) -> SimulationResult:
    fast, stepped = (run(arrivals, cluster, changes, fast_forward=x) for x in (True, False))
    assert seen_in(fast) == seen_in(stepped)
    assert_conserved(fast, arrivals)
    return fast


def assert_same_before(result: SimulationResult, base: SimulationResult, when_ns: int) -> None:
    for index in base.requests["index"].tolist():
        times, before = (x.token_times_ns(index) for x in (result, base))
        assert times[times < when_ns].tolist() == before[before < when_ns].tolist()


@pytest.mark.parametrize("name", list(POLICY_OPTIONS))
def test_a_failure_at_every_instant_of_a_pool(name: str) -> None:
    arrivals, cluster = workload(), colocated(name)
    base = run(arrivals, cluster, [], fast_forward=False)
    for now in instants(base):
        if now < 0:
            continue
        changes = [(now, Change("fail", 0)), (now + 40, Change("restore", 0))]
        got = both_ways(arrivals, cluster, changes)
        assert (got.requests["state"] == FINISHED).all(), now
        assert_same_before(got, base, now)


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("name", POOLED)
def test_a_failure_at_every_instant_of_two_pools(name: str, decode: bool, again: bool) -> None:
    check_failures_of_two_pools(name, decode, again, every=1)


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("name", ["static", "vllm-v0-swap", "vllm-v1-cached"])
def test_a_failure_at_many_instants_of_two_pools(name: str, decode: bool) -> None:
    check_failures_of_two_pools(name, decode, again=False, every=2)


def check_failures_of_two_pools(name: str, decode: bool, again: bool, *, every: int) -> None:
    arrivals, cluster = workload(), two_pools(name, again=again)
    base = run(arrivals, cluster, [], fast_forward=False)
    for now in instants(base)[::every]:
        if now < 0:
            continue
        changes = [(now, Change("fail", 0, decode)), (now + 25, Change("restore", 0, decode))]
        got = both_ways(arrivals, cluster, changes)
        assert (got.requests["state"] == FINISHED).all(), now
        assert_same_before(got, base, now)


def pushed(cluster: Cluster, **options: Any) -> Cluster:
    """The same with push, over shared links."""
    transfer = TransferSpec(bandwidth_bytes_per_s=1e9, shares_links=True, push=True, **options)
    return replace(cluster, transfer=transfer)


def staged(cluster: Cluster) -> Cluster:
    """The same with two stages a replica, the second one quicker."""
    link = StageLink(bytes_per_token=1, bandwidth_bytes_per_s=1e9)
    model = PipelineStepTime([STEP, LinearStepTime(base_s=4e-9, decode_s=2e-9)], link)

    def of(pool: PoolSpec | None) -> PoolSpec | None:
        if pool is None:
            return None
        kind = {"step_time": model, "kind": PipelineReplica}
        return replace(pool, replicas=[replace(each, **kind) for each in pool.replicas])

    entry = of(cluster.entry)
    assert entry is not None
    return replace(cluster, entry=entry, decode=of(cluster.decode))


SMALL = [
    Arrival(at, p, o, o, i) for i, (at, p, o) in enumerate([(0, 9, 4), (12, 10, 1), (13, 6, 5)])
]
"""Few enough requests for many instants."""

ENUMERATED: dict[str, Callable[[], Cluster]] = {
    "push": lambda: pushed(two_pools("vllm-v1")),
    "push-cached": lambda: pushed(two_pools("vllm-v1-cached")),
    "push-layerwise": lambda: pushed(two_pools("vllm-v0"), overlap="layerwise", layers=3),
    "pipelines": lambda: staged(colocated("vllm-v1")),
    "pipelines-of-two-pools": lambda: staged(two_pools("sarathi")),
}


@pytest.mark.parametrize("name", list(ENUMERATED))
def test_a_failure_at_every_instant_of_pushes_and_pipelines(name: str) -> None:
    cluster = ENUMERATED[name]()
    base = run(SMALL, cluster, [], fast_forward=False)
    for now in instants(base):
        for decode in (False, True)[: 1 if cluster.decode is None else 2]:
            changes = [(now, Change("fail", 0, decode)), (now + 25, Change("restore", 0, decode))]
            if now >= 0:
                got = both_ways(SMALL, cluster, changes)
                assert (got.requests["state"] == FINISHED).all(), now
                assert_same_before(got, base, now)


@pytest.mark.parametrize("name", ["pull", *ENUMERATED])
def test_a_straggler_from_every_instant_on_keeps_the_iteration_in_flight(name: str) -> None:
    cluster = ENUMERATED.get(name, lambda: two_pools("vllm-v1"))()
    base = run(SMALL, cluster, [], fast_forward=False)
    for now in instants(base):
        for decode in (False, True)[: 1 if cluster.decode is None else 2]:
            slow = for_a_while(now, now + 30, Slow(Fraction("1.5"), 0, decode))
            if now >= 0:
                got = both_ways(SMALL, cluster, slow)  # type: ignore[arg-type]
                assert (got.requests["state"] == FINISHED).all(), now
                assert_same_before(got, base, now)


@pytest.mark.parametrize("name", ["pull", "push", "pipelines-of-two-pools"])
def test_a_node_fails_at_every_instant(name: str) -> None:
    cluster = ENUMERATED.get(name, lambda: two_pools("vllm-v1"))()
    base = run(SMALL, cluster, [], fast_forward=False)
    node = [(True, 0), (False, 0)]
    for now in instants(base):
        changes = [(now, NodeChange("fail", node)), (now + 25, NodeChange("restore", node))]
        if now >= 0:
            got = both_ways(SMALL, cluster, changes)  # type: ignore[arg-type]
            assert (got.requests["state"] == FINISHED).all(), now
            assert got.changes["change"].tolist() == [0, 0, 1, 1]
            assert got.changes["replica"].tolist() == [0, 2, 0, 2]
            assert_same_before(got, base, now)


@pytest.mark.parametrize("name", POOLED)
def test_the_only_decode_replica_fails_and_comes_back(name: str) -> None:
    arrivals, cluster = workload(), two_pools(name, counts=(1, 1))
    base = run(arrivals, cluster, [], fast_forward=False)
    for now in instants(base)[::5]:
        if now < 0:
            continue
        changes = [(now, Change("fail", 0, True)), (now + 90, Change("restore", 0, True))]
        got = both_ways(arrivals, cluster, changes)
        assert (got.requests["state"] == FINISHED).all(), now


@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("name", ["static", "vllm-v0-swap", "vllm-v1-cached"])
def test_a_drain_at_every_instant_takes_nothing_from_anybody(name: str, decode: bool) -> None:
    arrivals, cluster = workload(), two_pools(name)
    base = run(arrivals, cluster, [], fast_forward=False)
    for now in instants(base):
        if now < 0:
            continue
        got = both_ways(arrivals, cluster, [(now, Change("drain", 0, decode))])
        assert (got.requests["state"] == FINISHED).all()
        assert got.requests["rerouted"].sum() == 0
        assert got.changes["change"].tolist() == [2, 3]  # draining, gone
        assert_same_before(got, base, now)


@st.composite
def histories(draw: st.DrawFn, pools: int) -> list[tuple[int, Change]]:
    """Changes that can happen, of pools of two replicas."""
    changes: list[tuple[int, Change]] = []
    for decode in (False, True)[:pools]:
        for index in range(2):
            now, up = 0, True
            for gap in draw(st.lists(st.integers(1, 60), max_size=5)):
                now += gap
                changes.append((now, Change("fail" if up else "restore", index, decode)))
                up = not up
            if up and draw(st.booleans()):
                changes.append((now + draw(st.integers(0, 40)), Change("drain", index, decode)))
        if draw(st.booleans()):
            changes.append((draw(st.integers(0, 200)), Change("add", 0, decode)))
    return sorted(changes, key=lambda entry: entry[0])


@st.composite
def arrivals_of_all_kinds(draw: st.DrawFn) -> list[Arrival]:
    rows, now = [], 0
    for index in range(draw(st.integers(1, 7))):
        now += draw(st.integers(0, 25))
        p, o = draw(st.integers(1, 14)), draw(st.integers(1, 8))
        told = draw(st.sampled_from([None, Content([(0, 8)]), Content([(0, 4), (50, 6)])]))
        patience = draw(st.sampled_from([None, None, None, 10, 45]))
        rows.append(
            Arrival(now, p, o, o, index, content=told, cancel_after_ns=patience, priority=index % 2)
        )
    return rows


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(POLICY_OPTIONS)),
    arrivals_of_all_kinds(),
    histories(1),
    st.sampled_from(["reroute", "fail"]),
)
def test_whatever_happens_to_a_pool(
    name: str, arrivals: list[Arrival], changes: list[tuple[int, Change]], on_failure: str
) -> None:
    cluster = colocated(name, on_failure=on_failure)
    got = both_ways(arrivals, cluster, changes)
    if on_failure == "fail":
        assert got.requests["rerouted"].sum() == 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POOLED), arrivals_of_all_kinds(), histories(2), st.booleans())
def test_whatever_happens_to_two_pools(
    name: str, arrivals: list[Arrival], changes: list[tuple[int, Change]], again: bool
) -> None:
    both_ways(arrivals, two_pools(name, again=again), changes)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(POOLED), arrivals_of_all_kinds(), histories(2), st.integers(0, 3))
def test_whatever_happens_to_pushes(
    name: str, arrivals: list[Arrival], changes: list[tuple[int, Change]], layers: int
) -> None:
    options = {"overlap": "layerwise", "layers": layers} if layers else {}
    both_ways(arrivals, pushed(two_pools(name), **options), changes)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["static", "orca", "vllm-v0", "sarathi", "vllm-v1", "vllm-v1-cached"]),
    arrivals_of_all_kinds(),
    histories(2),
    st.booleans(),
)
def test_whatever_happens_to_pipelines(
    name: str, arrivals: list[Arrival], changes: list[tuple[int, Change]], push: bool
) -> None:
    cluster = staged(two_pools(name))
    both_ways(arrivals, pushed(cluster) if push else cluster, changes)


def test_a_restored_replica_restores_throughput() -> None:
    arrivals = [Arrival(30 * i, 8, 4, 4, i) for i in range(200)]
    pool = PoolSpec("replica", [spec("vllm-v0")] * 2, ROUTERS["least-outstanding"]())
    cluster = Cluster(pool)
    changes = [(500, Change("fail", 0)), (1500, Change("restore", 0))]
    whole, hurt = (run(arrivals, cluster, x, fast_forward=True) for x in ([], changes))
    ttft = [x.requests["first_token_ns"] - x.requests["arrival_ns"] for x in (whole, hurt)]
    assert ttft[1][17:50].mean() > 2 * ttft[0][17:50].mean()
    assert ttft[1][-40:].mean() < 1.1 * ttft[0][-40:].mean()
