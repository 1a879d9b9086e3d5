"""A run in parts (`sim.shards`) leaves the very numbers of a run in one piece."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from policies import ORDERS, POLICIES
from policies.affinity import ConsistentHash, SessionAffinity
from policies.class_placement import ClassAware
from policies.predictors import Noisy
from policies.routing import LeastOutstanding, RandomChoice, RoundRobin
from sim.admission import Admission
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.records import Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.shards import Part, merged, places_of, refuse, run_part, split
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime

STEP = LinearStepTime(base_s=0.004, prefill_token_s=2e-5, decode_s=1e-4, context_token_s=1e-7)
RECORD = Record(attribution=True, steps=True, series_points=40, series_span_ns=2_000_000_000)
SHARED_OUT = [name for name in POLICIES if name != "distserve"]
"""Policies of a colocated pool."""


def arrivals(count: int, seed: int = 3) -> list[Arrival]:
    """Requests of four sessions, several in one instant, some hopeless, some given up."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 40, count)) * 50_000_000
    made = []
    for i, time in enumerate(times.tolist()):
        p, o = int(rng.integers(1, 300)), int(rng.integers(1, 60))
        patience = int(rng.integers(0, 3) * 80_000_000) if i % 7 == 0 else None
        p = 0 if i % 23 == 5 else 100_000 if i % 23 == 6 else p
        session, kind = f"s{i % 4}", "ab"[i % 2]
        made.append(
            Arrival(time, p, o, 64, i, session, i // 4, kind, kind, cancel_after_ns=patience)
        )
    return made


def cluster_of(policy: str, router: object, replicas: int = 5, **more: object) -> Cluster:
    spec = ReplicaSpec(POLICIES[policy](), 60, STEP, **more)  # type: ignore[arg-type]
    return Cluster(PoolSpec("replica", [spec] * replicas, router))  # type: ignore[arg-type]


def in_parts(
    requests: list[Arrival], cluster: Cluster, shards: int, record: Record = RECORD
) -> SimulationResult:
    """The parts one after the other in this process, and merged."""
    refuse(cluster)
    places = places_of(requests, cluster, 11)
    weights = np.array([r.prompt_tokens + r.output_tokens for r in requests])
    outcomes = []
    for at, replicas in enumerate(split(places, weights, len(cluster.entry.replicas), shards)):
        mine = [*replicas, -1] if at == 0 else replicas
        ranks = np.flatnonzero(np.isin(places, mine))
        own = [requests[rank] for rank in ranks.tolist()]
        part = Part(lambda own=own: own, ranks, places[ranks], replicas, cluster, record, seed=11)
        outcomes.append(run_part(part))
    return merged(outcomes)


def assert_same(parts: SimulationResult, whole: SimulationResult) -> None:
    """All that is recorded, but for the order of the decode groups' logs."""
    for field in fields(SimulationResult):
        ours, theirs = getattr(parts, field.name), getattr(whole, field.name)
        if field.name in ("logs", "spans", "gap_log"):
            continue
        if isinstance(theirs, dict):
            assert list(ours) == list(theirs), field.name
            for name, column in theirs.items():
                assert ours[name].dtype == column.dtype, name
                np.testing.assert_array_equal(ours[name], column, err_msg=name)
        else:
            assert ours == theirs, field.name
    ours, theirs = parts.gap_splits(), whole.gap_splits()
    for index in whole.requests["index"].tolist():
        np.testing.assert_array_equal(parts.token_times_ns(index), whole.token_times_ns(index))
        if ours is not None and theirs is not None:
            a, b = ours.split(ours.of(index)), theirs.split(theirs.of(index))
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", SHARED_OUT)
@pytest.mark.parametrize(
    "router",
    [
        RoundRobin(),
        RandomChoice(),
        SessionAffinity(fallback=RandomChoice()),
        ClassAware(classes={"a": [0, 3], "b": [1, 2]}, others=[4], within=RoundRobin()),
    ],
    ids=["round-robin", "random", "session-affinity", "class-aware"],
)
def test_parts_give_the_numbers_of_the_whole(policy: str, router: object) -> None:
    requests, cluster = arrivals(160), cluster_of(policy, router)
    whole = simulate(requests, cluster, seed=11, record=RECORD)
    assert {"finished", "rejected"} <= {["finished", "rejected", "cancelled"][s] for s in set(
        whole.requests["state"].tolist())}  # fmt: skip
    assert_same(in_parts(requests, cluster, 3), whole)


def test_a_part_without_requests_and_more_parts_than_replicas() -> None:
    requests, cluster = arrivals(40), cluster_of("vllm-v1", RoundRobin())
    few = [request._replace(index=i) for i, request in enumerate(requests[8:11])]
    for chosen in (requests, few):
        whole = simulate(chosen, cluster, seed=11, record=RECORD)
        assert_same(in_parts(chosen, cluster, 9), whole)


def test_samples_of_a_part_that_ends_early_go_on_and_are_thinned() -> None:
    """One session's replica works twenty times as long as the span of the grid."""
    long = Arrival(0, 10, 3000, 3000, 0, "s0")
    requests = [long, *(r._replace(index=i + 1) for i, r in enumerate(arrivals(60)))]
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 600, STEP)
    cluster = Cluster(PoolSpec("replica", [spec] * 3, RoundRobin()))
    whole = simulate(requests, cluster, seed=11, record=RECORD)
    assert len(np.unique(whole.series["time_ns"])) < 4 * RECORD.series_points
    assert whole.end_ns > 5 * RECORD.series_span_ns
    assert_same(in_parts(requests, cluster, 3), whole)


def test_replicas_of_several_kinds_and_orders_with_a_predictor() -> None:
    small = ReplicaSpec(POLICIES["vllm-v0"](), 20, STEP, order=ORDERS["sjf"]())
    large = ReplicaSpec(POLICIES["sarathi"](), 90, STEP, order=ORDERS["vtc"]())
    pool = PoolSpec("replica", [small, large, small, large], RandomChoice())
    cluster = Cluster(pool, predictor=Noisy())
    requests = arrivals(160)
    whole = simulate(requests, cluster, seed=11, record=RECORD)
    assert_same(in_parts(requests, cluster, 2), whole)


def test_pipelines() -> None:
    stages = PipelineStepTime([STEP, STEP], StageLink(128, 1e9))
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 60, stages, kind=PipelineReplica)
    cluster = Cluster(PoolSpec("replica", [spec] * 4, RoundRobin()))
    requests = arrivals(120)
    whole = simulate(requests, cluster, seed=11, record=RECORD)
    assert_same(in_parts(requests, cluster, 2), whole)


def test_what_makes_replicas_interact_is_refused_by_its_key() -> None:
    plain = cluster_of("vllm-v1", RoundRobin())
    refuse(plain)
    with pytest.raises(ConfigError, match=r"^shards: router: least-outstanding chooses by what"):
        refuse(cluster_of("vllm-v1", LeastOutstanding()))
    with pytest.raises(ConfigError, match=r"router: consistent-hash"):
        refuse(cluster_of("vllm-v1", ConsistentHash()))
    with pytest.raises(ConfigError, match=r"router: session-affinity"):
        refuse(cluster_of("vllm-v1", SessionAffinity()))
    with pytest.raises(ConfigError, match=r"router: class-aware"):
        refuse(
            cluster_of("vllm-v1", ClassAware({"a": [0]}, overflow={"a": 3}, within=RoundRobin()))
        )
    with pytest.raises(ConfigError, match=r"^shards: admission: "):
        refuse(replace(plain, admission=Admission(max_waiting_per_replica=3)))
    with pytest.raises(ConfigError, match=r"^shards: events, failures, stragglers: "):
        refuse(plain, [(0, print)])


def test_the_heaviest_replica_goes_where_there_is_least() -> None:
    places, weights = np.array([0, 1, 2, 3, -1]), np.array([9, 5, 4, 1, 100])
    assert split(places, weights, 4, 2) == [[0, 3], [1, 2]]
