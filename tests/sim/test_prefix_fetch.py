"""Prefixes that replicas fetch from each other's caches (`sim.prefix_fetch`).

A step takes 10 ns and 1 ns for each token; blocks have 4 tokens; a fetch moves 2 tokens in 1 ns.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from policies import POLICIES, Conductor, RoundRobin
from sim.changes import Change
from sim.cluster import Cluster
from sim.content import Content
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.kv_shards import KvShards
from sim.pipeline import PipelineReplica
from sim.policy import ReplicaView, Router
from sim.pool import PoolSpec
from sim.prefix_fetch import FetchSpec
from sim.records import STATES, Decision, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival, Request
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime
from sim.topology import LinkSpec, NodeSpec, Seat, Topology
from sim.transfer import TransferSpec
from tests.conformance import adapter
from tests.sim.prefixed_workloads import prefixed_workload

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)
FETCH = FetchSpec(2e9)
X = 1000
"""First token of a text that several prompts start with."""


@dataclass
class Scripted(Router):
    """The replica of each request, by its index; of one that was re-routed, the first there is."""

    places: Sequence[int]
    seen: set[int] = field(default_factory=set)

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        if request.index in self.seen:
            return replicas[0]
        self.seen.add(request.index)
        wanted = self.places[request.index]
        return next((view for view in replicas if view.index == wanted), replicas[0])


def spec(blocks: int = 100, **more: Any) -> ReplicaSpec:
    policy = POLICIES["vllm-v1"](prefix_cache=True)
    return ReplicaSpec(policy, blocks, STEP, block_tokens=4, kv_bytes_per_token=1, **more)


def pool(places: Sequence[int], *specs: ReplicaSpec, fetch: FetchSpec | None = FETCH) -> Cluster:
    made = specs or (spec(), spec())
    return Cluster(PoolSpec("replica", made, Scripted(places)), prefix_fetch=fetch)


def text(index: int, when: int, prompt: int, shared: int, output: int = 1, **more: Any) -> Arrival:
    """A prompt whose first `shared` tokens are those of X."""
    content = Content([(X, shared), (X * 10**6 * (index + 1), prompt - shared)])
    return Arrival(when, prompt, output, output, index, content=content, **more)


@pytest.fixture(params=[True, False], ids=["fast", "stepped"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def run(
    arrivals: Sequence[Arrival],
    cluster: Cluster,
    *changes: tuple[int, Change],
    fast: bool,
) -> SimulationResult:
    record = Record(decisions=True, events=True, steps=True)
    return simulate(
        arrivals,
        cluster,
        fast_forward=fast,
        check=True,
        record=record,
        cluster_events=changes,
    )


def firsts(result: SimulationResult) -> list[int]:
    return result.requests["first_token_ns"].tolist()


def fetches(result: SimulationResult) -> list[tuple[int, ...]]:
    """(request, source, target, start, end, tokens, bytes) of each."""
    return list(zip(*(column.tolist() for column in result.fetches.values()), strict=True))


def test_the_prefix_arrives_before_the_request_joins_the_queue(fast: bool) -> None:
    # 0 is computed on replica 0 by 26. At 100 request 1 starts a fetch of its 16 tokens, 8 ns, and
    # then computes 4 tokens. Request 2 finds the 16 in both caches, on replica 1 as well.
    arrivals = [text(0, 0, 16, 16), text(1, 100, 20, 16), text(2, 200, 20, 16)]
    got = run(arrivals, pool([0, 1, 1]), fast=fast)
    assert firsts(got) == [26, 108 + 14, 200 + 14]
    assert fetches(got) == [(1, 0, 1, 100, 108, 16, 16)]
    assert got.requests["cached_tokens"].tolist() == [0, 16, 16]
    without = run(arrivals, pool([0, 1, 1], fetch=None), fast=fast)
    assert firsts(without) == [26, 130, 200 + 14]


def test_only_what_is_missing_is_fetched_and_only_above_the_threshold(fast: bool) -> None:
    # Replica 1 has 8 tokens of X, replica 0 has 24: three times as many.
    arrivals = [text(0, 0, 24, 24), text(1, 0, 8, 8), text(2, 100, 28, 24)]
    for threshold, expected in ((2.9, [(2, 0, 1, 100, 108, 16, 16)]), (3.0, [])):
        cluster = pool([0, 1, 1], fetch=FetchSpec(2e9, balancing_threshold=threshold))
        got = run(arrivals, cluster, fast=fast)
        assert fetches(got) == expected
        assert firsts(got)[2] == (108 + 14 if expected else 100 + 10 + 20)


def test_a_request_joins_a_fetch_under_way_of_the_same_prefix(fast: bool) -> None:
    # Both start at 108, in order of coming, in one step of 4 + 4 tokens.
    arrivals = [text(0, 0, 16, 16), text(1, 100, 20, 16), text(2, 103, 20, 16)]
    got = run(arrivals, pool([0, 1, 1]), fast=fast)
    assert fetches(got) == [(1, 0, 1, 100, 108, 16, 16)]
    assert firsts(got) == [26, 126, 126]
    assert list(got.decisions[-1].tokens.items()) == [(1, 4), (2, 4)]


def test_blocks_that_are_copied_are_in_use_on_both_sides(fast: bool) -> None:
    # 50 ns for 16 tokens. On replica 0, of 6 blocks, 4 are lent until 150: a prompt of 24 waits. On
    # replica 1, of 6 blocks, 4 are taken: so it does there.
    slow = FetchSpec(16 / 50e-9)
    arrivals = [text(0, 0, 16, 16), text(1, 100, 20, 16), text(2, 101, 24, 0), text(3, 102, 24, 0)]
    got = run(arrivals, pool([0, 1, 0, 1], spec(6), spec(6), fetch=slow), fast=fast)
    assert fetches(got) == [(1, 0, 1, 100, 150, 16, 16)]
    # Request 3 came first to the queue of replica 1: at 150 it takes all blocks, and what was
    # fetched is lost before request 1 is admitted.
    assert firsts(got) == [26, 184 + 30, 150 + 34, 150 + 34]
    assert got.requests["cached_tokens"].tolist() == [0, 0, 0, 0]


def test_without_room_nothing_is_fetched_and_the_request_queues(fast: bool) -> None:
    # Request 1 holds 4 of the 6 blocks of replica 1 from 90 on, for 10 + 16, then 30 decodes.
    arrivals = [text(0, 0, 16, 16), text(1, 90, 14, 0, output=3), text(2, 95, 18, 16)]
    got = run(arrivals, pool([0, 1, 1], spec(6), spec(6)), fast=fast)
    assert fetches(got) == []
    # 1: 90..114, then 11 and 11 ns, in which 2 does not fit (5 blocks of 2 free) until 136.
    assert firsts(got) == [26, 114, 136 + 28]


def test_cancelled_while_it_waits_the_fetch_ends_as_planned(fast: bool) -> None:
    arrivals = [
        text(0, 0, 16, 16),
        text(1, 100, 20, 16, cancel_after_ns=4),
        text(2, 150, 20, 16),
    ]
    got = run(arrivals, pool([0, 1, 1]), fast=fast)
    assert [STATES[code] for code in got.requests["state"]] == ["finished", "cancelled", "finished"]
    assert got.requests["end_ns"].tolist()[1] == 104
    assert fetches(got) == [(1, 0, 1, 100, 108, 16, 16)]
    assert firsts(got)[2] == 164  # it finds what nobody wanted any more


def test_the_source_fails_and_the_request_computes_all(fast: bool) -> None:
    arrivals = [text(0, 0, 16, 16), text(1, 100, 20, 16)]
    got = run(arrivals, pool([0, 1]), (104, Change("fail", 0)), fast=fast)
    assert fetches(got) == []
    assert firsts(got) == [26, 104 + 30]


def test_the_target_fails_and_the_request_is_routed_again(fast: bool) -> None:
    # It goes to replica 0, which has its prefix, and whose blocks are not held for the copy.
    arrivals = [text(0, 0, 16, 16), text(1, 100, 20, 16)]
    got = run(arrivals, pool([0, 1], spec(5), spec()), (104, Change("fail", 1)), fast=fast)
    assert fetches(got) == []
    assert firsts(got) == [26, 104 + 14]
    assert got.requests["rerouted"].tolist() == [0, 1]


def test_a_drained_source_is_gone_when_its_blocks_are_copied(fast: bool) -> None:
    arrivals = [text(0, 0, 16, 16), text(1, 100, 20, 16)]
    got = run(arrivals, pool([0, 1]), (104, Change("drain", 0)), fast=fast)
    assert firsts(got) == [26, 122]
    assert got.changes["time_ns"].tolist() == [104, 108]  # draining, gone


def test_a_fetch_shares_links_with_transfers(fast: bool) -> None:
    # Each NIC carries a byte in 1 ns. Request 1 is prefilled on 0 from 200 to 226 and its 16 bytes
    # are sent then; in that instant request 2 fetches 16 bytes from 0: half the link each.
    cluster = Cluster(
        PoolSpec("prefill", [spec(), spec()], Scripted([0, 0, 1])),
        PoolSpec("decode", [spec()], RoundRobin()),
        TransferSpec(1e9, shares_links=True),
        prefix_fetch=FETCH,
    )
    arrivals = [text(0, 0, 16, 16), text(1, 200, 16, 0, output=2), text(2, 226, 20, 16)]
    got = run(arrivals, cluster, fast=fast)
    assert fetches(got) == [(2, 0, 1, 226, 258, 16, 16)]
    assert got.transfers["end_ns"].tolist() == [258]
    assert firsts(got) == [26, 226, 258 + 14]


def test_a_fetch_takes_the_links_of_a_topology(fast: bool) -> None:
    # Each of two nodes has one GPU, whose NIC carries a byte in 1 ns after 3 ns.
    node = NodeSpec(1, 1, LinkSpec(1e9, latency_s=3e-9))
    seat = Seat(KvShards((1,), 1, 1, 1, 1), "gpu", LinkSpec(8e9), LinkSpec(8e9))
    made = spec(seat=seat)
    cluster = Cluster(
        PoolSpec("replica", [made, made], Scripted([0, 1])),
        topology=Topology((node,) * 2),
        prefix_fetch=FETCH,
    )
    got = run([text(0, 0, 16, 16), text(1, 100, 20, 16)], cluster, fast=fast)
    (only,) = fetches(got)
    assert only == (1, 0, 1, 100, 119, 16, 16)
    assert firsts(got) == [26, 119 + 14]


@pytest.mark.parametrize("fails", [0, 1])
def test_a_failure_at_every_instant_of_a_fetch_loses_nobody(fails: int) -> None:
    # Request 1 fetches from 100 to 108, request 2 joins it, request 3 is computed on the source.
    arrivals = [
        text(0, 0, 16, 16),
        text(1, 100, 20, 16, output=3),
        text(2, 103, 20, 16, output=2),
        text(3, 99, 12, 8, output=4),
    ]
    arrivals.sort()
    seen = set()
    for when in range(96, 150):
        both = [
            run(
                arrivals,
                pool([0, 1, 1, 0]),
                (when, Change("fail", fails)),
                (when + 7, Change("restore", fails)),
                fast=fast,
            )
            for fast in (True, False)
        ]
        first, second = both
        assert [STATES[code] for code in first.requests["state"]] == ["finished"] * 4
        assert first.requests["emitted_tokens"].tolist() == [1, 3, 2, 4]
        assert fetches(first) == fetches(second)
        assert by_replica(first) == by_replica(second)
        for name, column in first.requests.items():
            assert column.tolist() == second.requests[name].tolist(), name
        seen.add(len(fetches(first)))
    assert seen >= {0, 1}


# --- the router


def conductor(*specs: ReplicaSpec, fetch: FetchSpec | None = FETCH) -> Cluster:
    return Cluster(PoolSpec("replica", specs or (spec(),) * 2, Conductor()), prefix_fetch=fetch)


def placed(result: SimulationResult) -> list[int]:
    return result.requests["replica"].tolist()


def test_conductor_goes_where_the_prefix_is_unless_the_queue_is_longer(fast: bool) -> None:
    # At 100 replica 0 offers 14 ns, replica 1 a fetch of 8 ns and 14. At 101 that has 4 tokens to
    # prefill (4 ns by a rate of 2058 / 2048): 19, against 22.
    arrivals = [text(0, 0, 16, 16), text(1, 100, 20, 16), text(2, 101, 20, 16)]
    got = run(arrivals, conductor(), fast=fast)
    assert placed(got) == [0, 0, 0]
    # With 40 tokens more there, the fetch is quicker: 5 + 41 + 14 against 22.
    arrivals = [text(0, 0, 16, 16), text(1, 100, 60, 16), text(2, 101, 20, 16)]
    got = run(arrivals, conductor(), fast=fast)
    assert placed(got) == [0, 0, 1]
    assert fetches(got) == [(2, 0, 1, 101, 109, 16, 16)]
    assert firsts(got) == [26, 154, 109 + 14]


def test_conductor_computes_a_prefix_again_where_a_fetch_would_take_longer(fast: bool) -> None:
    # 16 tokens in 100 ns: on replica 1 that is 114 in all, behind 60 tokens on replica 0 it is 75.
    arrivals = [text(0, 0, 16, 16), text(1, 100, 76, 16), text(2, 101, 20, 16)]
    slow = FetchSpec(16 / 100e-9)
    assert placed(run(arrivals, conductor(fetch=slow), fast=fast)) == [0, 0, 0]
    # Without fetching, replica 1 takes 30 ns for the whole prompt.
    got = run(arrivals, conductor(fetch=None), fast=fast)
    assert placed(got) == [0, 0, 1]
    assert firsts(got)[2] == 131


def test_the_time_of_a_prefill_is_that_of_its_chunks() -> None:
    # Pairs make a chunk's time linear in what is before it: three chunks of 2048 and a half one.
    step = LinearStepTime(base_s=1e-3, prefill_token_s=1e-6, prefill_pair_s=1e-9)
    made = ReplicaSpec(POLICIES["vllm-v1"](prefix_cache=True), 10_000, step)
    seen = []

    class Asks(RoundRobin):
        def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
            seen.append(replicas[0].prefill_ns(3 * 2048, 1024))
            return replicas[0]

    simulate([Arrival(0, 8, 1, 1)], Cluster(PoolSpec("replica", [made], Asks())))
    pairs = sum(2048 * (1024 + i * 2048 + 2049 / 2) for i in range(3))
    assert seen == [round(3 * 1e6 + 3 * 2048 * 1e3 + pairs)]


# --- what cannot be


def test_caches_have_to_be_of_one_kind() -> None:
    plain = ReplicaSpec(POLICIES["vllm-v1"](), 100, STEP, block_tokens=4, kv_bytes_per_token=1)
    with pytest.raises(ConfigError, match="prefix_fetch: policy vllm-v1 has no cache"):
        pool([0], plain)
    with pytest.raises(ConfigError, match="blocks of one size"):
        pool([0], spec(), replace(spec(), block_tokens=8))


# --- at random


def _random_cluster(rng: random.Random, seed: int) -> tuple[list[Arrival], Cluster]:
    made = prefixed_workload(seed)
    replicas = [made["replicas"][0] | {"kv_bytes_per_token": rng.choice((1, 1000))}] * 3
    if rng.random() < 0.3:
        replicas = [{**replicas[0], "stages": [replicas[0].get("step_time", {})] * 2}] * 3
    cluster, _ = adapter.build(made | {"replicas": replicas})
    router: Router = rng.choice((Conductor(), RoundRobin()))
    fetch = FetchSpec(
        rng.choice((1e4, 1e6, 1e9)), rng.choice((0, 1e-3)), rng.choice((0.5, 1, 1.5, 4))
    )
    cluster = replace(cluster, entry=replace(cluster.entry, router=router), prefix_fetch=fetch)
    arrivals = adapter.arrivals(made)
    if rng.random() < 0.4:
        span = max(1, arrivals[-1].arrival_ns)
        arrivals = [
            a._replace(cancel_after_ns=rng.randrange(1, span + 1)) if rng.random() < 0.3 else a
            for a in arrivals
        ]
    return arrivals, cluster


def by_replica(result: SimulationResult) -> list[Decision]:
    return sorted(result.decisions, key=lambda decision: decision.replica)


@pytest.mark.parametrize("seed", range(60))
def test_fast_forward_changes_nothing_and_every_request_ends(seed: int) -> None:
    rng = random.Random(f"fetch {seed}")
    arrivals, cluster = _random_cluster(rng, seed)
    last = max(1, arrivals[-1].arrival_ns)
    changes: list[tuple[int, Change]] = []
    if rng.random() < 0.5 and not any(r.kind is PipelineReplica for r in cluster.entry.replicas):
        down = rng.randrange(last + 1)
        changes = [
            (down, Change("fail", 1)),
            (down + rng.randrange(last + 1), Change("restore", 1)),
        ]
    fast, slow = (run(arrivals, cluster, *changes, fast=x) for x in (True, False))
    assert "unfinished" not in [STATES[code] for code in fast.requests["state"]]
    for name, column in fast.requests.items():
        assert column.tolist() == slow.requests[name].tolist(), name
    assert fetches(fast) == fetches(slow)
    assert by_replica(fast) == by_replica(slow)
    for index in fast.requests["index"].tolist():
        assert fast.token_times_ns(index).tolist() == slow.token_times_ns(index).tolist()


@pytest.mark.parametrize("seed", range(40))
def test_so_it_is_with_two_pools(seed: int) -> None:
    rng = random.Random(f"two pools {seed}")
    arrivals, one = _random_cluster(rng, seed)
    entry = one.entry
    decode = PoolSpec("decode", [entry.replicas[0]] * 2, RoundRobin())
    push = rng.random() < 0.4
    transfer = TransferSpec(rng.choice((1e6, 1e9)), shares_links=rng.random() < 0.6, push=push)
    cluster = Cluster(entry, decode, transfer, prefix_fetch=one.prefix_fetch)
    changes: list[tuple[int, Change]] = []
    last = max(1, arrivals[-1].arrival_ns)
    if not push and rng.random() < 0.5:
        down = rng.randrange(last + 1)
        changes = [
            (down, Change("fail", 0)),
            (down + rng.randrange(last + 1), Change("restore", 0)),
        ]
    fast, slow = (run(arrivals, cluster, *changes, fast=x) for x in (True, False))
    assert "unfinished" not in [STATES[code] for code in fast.requests["state"]]
    for name, column in fast.requests.items():
        assert column.tolist() == slow.requests[name].tolist(), name
    assert fetches(fast) == fetches(slow)
    assert by_replica(fast) == by_replica(slow)


def test_random_runs_do_fetch() -> None:
    moved = 0
    for seed in range(20):
        arrivals, cluster = _random_cluster(random.Random(f"fetch {seed}"), seed)
        moved += len(fetches(run(arrivals, cluster, fast=True)))
    assert moved > 20


def test_a_pipeline_fetches_too(fast: bool) -> None:
    # Two stages of 10 ns + 1 ns a token: 26 + 26; the fetch of 8 ns; then twice 14.
    stages = PipelineStepTime([STEP, STEP], StageLink(0, 1.0))
    staged = replace(spec(), step_time=stages, kind=PipelineReplica)
    got = run([text(0, 0, 16, 16), text(1, 100, 20, 16)], pool([0, 1], staged, staged), fast=fast)
    assert firsts(got) == [52, 108 + 28]
