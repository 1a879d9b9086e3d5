"""Pipelines that have several chunks of one prompt under way at once (`sim.chunked_pipeline`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from policies import ORDERS, POLICIES, RoundRobin
from sim.changes import Change
from sim.chunked_pipeline import ChunkedPipelineReplica
from sim.cluster import Cluster
from sim.content import Content
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.records import STATES, Decision, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime
from tests.conformance import adapter
from tests.sim.prefixed_workloads import prefixed_workload

STAGE = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)
"""10 ns and 1 ns for each token, in each stage."""


def spec(
    stages: int = 2, blocks: int = 100, policy: str = "vllm-v1", **options: Any
) -> ReplicaSpec:
    """Chunks of 4 tokens, in blocks of 4."""
    budget = "budget_tokens" if policy == "sarathi" else "max_num_batched_tokens"
    made = POLICIES[policy](**{budget: 4} | options)
    step = PipelineStepTime([STAGE] * stages, StageLink(0, 1.0))
    return ReplicaSpec(made, blocks, step, block_tokens=4, kind=ChunkedPipelineReplica)


@pytest.fixture(params=[True, False], ids=["fast", "stepped"])
def fast(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def run(
    requests: Sequence[tuple[int, int, int] | Arrival],
    made: ReplicaSpec,
    *changes: tuple[int, Change],
    fast: bool = True,
) -> SimulationResult:
    arrivals = [
        r if isinstance(r, Arrival) else Arrival(*r, r[2], index)
        for index, r in enumerate(requests)
    ]
    return simulate(
        arrivals,
        Cluster(PoolSpec("replica", [made], RoundRobin())),
        fast_forward=fast,
        check=True,
        record=Record(decisions=True, steps=True),
        cluster_events=changes,
    )


def times(result: SimulationResult) -> list[list[int]]:
    return [result.token_times_ns(index).tolist() for index in result.requests["index"].tolist()]


def batches(result: SimulationResult) -> list[tuple[int, int, dict[int, int]]]:
    got = [(x.start_ns, x.end_ns, dict(x.tokens)) for x in result.decisions]
    return sorted(got, key=lambda batch: batch[:2])


def test_a_chunk_enters_the_first_stage_when_the_one_before_has_left_it(fast: bool) -> None:
    got = run([(0, 12, 3)], spec(), fast=fast)
    # Chunks of 4 take 14 in each stage: they start at 0, 14, 28 and leave at 28, 42, 56. A decode
    # takes 11 in each stage.
    assert batches(got) == [
        (0, 28, {0: 4}),
        (14, 42, {0: 4}),
        (28, 56, {0: 4}),
        (56, 78, {0: 1}),
        (78, 100, {0: 1}),
    ]
    assert times(got) == [[56, 78, 100]]
    # Without: each chunk waits for the one before.
    plain = run([(0, 12, 3)], replace(spec(), kind=PipelineReplica), fast=fast)
    assert times(plain) == [[84, 106, 128]]


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("chunks", [1, 2, 7, 20])
@pytest.mark.parametrize("policy", ["vllm-v1", "sarathi"])
def test_a_prompt_alone_takes_chunks_and_stages_less_one(
    stages: int, chunks: int, policy: str, fast: bool
) -> None:
    got = run([(0, 4 * chunks, 1)], spec(stages, policy=policy), fast=fast)
    assert times(got) == [[14 * (chunks + stages - 1)]]


def test_two_prompts_share_the_stages_in_order_of_running(fast: bool) -> None:
    got = run([(0, 8, 2), (1, 6, 2)], spec(), fast=fast)
    # 0 and 14: the chunks of request 0. 28: request 0's first has left, its last is under way (out
    # of sight): 4 of request 1. 42: request 0 decodes, 1 token, and 2 of request 1 do not wait for
    # the 4: 13 in each stage, and 3 in the budget for them. 42 + 13 = 55; the 4 of 28 leave at 56.
    # Its last chunk ends in the last stage at 56 + 13 = 69, with token 2 of request 0.
    # 69: the decode of request 1: 11 and 11.
    assert batches(got) == [
        (0, 28, {0: 4}),
        (14, 42, {0: 4}),
        (28, 56, {1: 4}),
        (42, 69, {0: 1, 1: 2}),
        (69, 91, {1: 1}),
    ]
    assert times(got) == [[42, 69], [69, 91]]


def test_who_is_afoot_is_no_victim_and_is_held_back_for_want_of_blocks(fast: bool) -> None:
    # 5 blocks. Request 0 (4 tokens, then decodes) takes 1, and one more for token 5. Request 1, of
    # 16 tokens, takes a block each 14 ns; when none is free its next chunk waits.
    got = run([(0, 4, 10), (1, 16, 1)], spec(blocks=5), fast=fast)
    assert got.requests["preemptions"].tolist()[0] == 0
    assert [STATES[code] for code in got.requests["state"]] == ["finished"] * 2
    assert all(x.free_after >= 0 for x in got.decisions)
    held = [x for x in batches(got) if x[2] == {0: 1}]
    assert held  # batches in which the chunk of request 1 was left out


def test_cancelled_while_afoot_it_leaves_with_its_last_batch(fast: bool) -> None:
    # At 20 its chunks of 0 and 14 are under way. The second leaves at 42: then its blocks are free,
    # and a prompt that needs all of them starts.
    long = Arrival(0, 16, 1, 1, 0, cancel_after_ns=20)
    got = run([long, (21, 16, 1)], spec(blocks=4), fast=fast)
    assert [STATES[code] for code in got.requests["state"]] == ["cancelled", "finished"]
    assert batches(got)[:3] == [(0, 28, {0: 4}), (14, 42, {0: 4}), (28, 56, {1: 4})]
    free = [x.free_after for x in sorted(got.decisions, key=lambda x: x.start_ns)]
    assert free[:4] == [3, 2, 1, 2]  # 28: 3 held; 42: request 0 gave back its two
    assert times(got)[1] == [28 + 14 * 5]


def test_a_failure_loses_what_is_under_way(fast: bool) -> None:
    # At 30 the chunk of 0 is over, those of 14 and 28 are not: 4 tokens have to be computed again.
    changes = [(30, Change("fail")), (100, Change("restore"))]
    got = run([(0, 12, 1)], spec(), *changes, fast=fast)
    assert times(got) == [[100 + 56]]
    assert got.requests["recomputed_tokens"].tolist() == [4]
    assert [(x.start_ns, x.end_ns) for x in got.decisions if x.lost] == [(14, 30), (28, 30)]


def test_blocks_can_be_found_from_when_they_are_scheduled(fast: bool) -> None:
    content = Content([(1000, 12)])
    arrivals = [Arrival(0, 12, 1, 1, 0, content=content), Arrival(20, 12, 1, 1, 1, content=content)]
    got = run(arrivals, spec(prefix_cache=True), fast=fast)
    # 28: the last chunk of request 0 takes the budget. 42: request 1 finds 8 tokens, and computes
    # 4 of its own last block.
    assert batches(got)[2:] == [(28, 56, {0: 4}), (42, 70, {1: 4})]
    assert got.requests["cached_tokens"].tolist() == [0, 8]


def test_only_for_policies_that_cut_prompts() -> None:
    with pytest.raises(ConfigError, match="chunked_pipeline: policy orca computes prompts whole"):
        run([(0, 4, 1)], replace(spec(), policy=POLICIES["orca"]()))


def test_routers_count_tokens_under_way_and_know_the_stages() -> None:
    seen = []

    class Asks(RoundRobin):
        def pick(self, request: Any, replicas: Any) -> Any:
            seen.append((replicas[0].prefill_tokens_left, replicas[0].prefill_ns(12, 0)))
            return replicas[0]

    cluster = Cluster(PoolSpec("replica", [spec()], Asks()))
    simulate([Arrival(0, 12, 1, 1, 0), Arrival(20, 4, 1, 1, 1)], cluster, check=True)
    # At 20 nothing has left the last stage. 12 tokens alone: 44 as one chunk; 3 chunks of a budget
    # of 4 on two stages take 4 / 6 of it (rounded up).
    assert seen == [(0, 30), (12, 30)]


# --- at random


def _random(seed: int) -> tuple[list[Arrival], Cluster, list[tuple[int, Change]]]:
    rng = random.Random(f"chunked {seed}")
    made = prefixed_workload(seed)
    one = dict(made["replicas"][0])
    step = one.pop("step_time", {})
    stages = [step] * rng.choice((1, 2, 3, 4))
    prompts = max(r["prompt_tokens"] for r in made["requests"])
    one |= {"stages": stages, "max_num_batched_tokens": rng.randint(1, max(2, prompts // 2))}
    one["prefix_cache"] = rng.random() < 0.5
    if rng.random() < 0.3:
        one = {k: v for k, v in one.items() if k in adapter.NOT_OPTIONS} | {
            "policy": "sarathi",
            "budget_tokens": one["max_num_batched_tokens"],
        }
    cluster, _ = adapter.build(made | {"replicas": [one] * rng.choice((1, 2))})
    order = ORDERS[rng.choice(("fcfs", "fcfs", "priority"))]()
    replicas = [
        replace(x, kind=ChunkedPipelineReplica, order=order) for x in cluster.entry.replicas
    ]
    cluster = replace(cluster, entry=replace(cluster.entry, replicas=replicas))
    arrivals, last = adapter.arrivals(made), 0
    last = max(1, arrivals[-1].arrival_ns)
    if rng.random() < 0.5:
        arrivals = [
            a._replace(
                cancel_after_ns=rng.randrange(1, last + 1) if rng.random() < 0.4 else None,
                priority=rng.randrange(3),
            )
            for a in arrivals
        ]
    changes = []
    if rng.random() < 0.4:
        down = rng.randrange(last + 1)
        changes = [(down, Change("fail")), (down + rng.randrange(last + 1), Change("restore"))]
    return arrivals, cluster, changes


def _by_replica(result: SimulationResult) -> list[Decision]:
    return sorted(result.decisions, key=lambda x: (x.replica, x.start_ns, x.end_ns))


@pytest.mark.parametrize("seed", range(60))
def test_fast_forward_changes_nothing_and_every_request_ends(seed: int) -> None:
    arrivals, cluster, changes = _random(seed)
    fast, slow = (
        simulate(
            arrivals,
            cluster,
            fast_forward=x,
            check=True,
            record=Record(decisions=True),
            cluster_events=changes,
        )
        for x in (True, False)
    )
    assert "unfinished" not in [STATES[code] for code in fast.requests["state"]]
    for name, column in fast.requests.items():
        assert column.tolist() == slow.requests[name].tolist(), name
    assert _by_replica(fast) == _by_replica(slow)
    assert times(fast) == times(slow)


def test_it_is_never_two_chunks_of_a_request_in_the_same_stage_nor_out_of_order() -> None:
    for seed in range(20):
        arrivals, cluster, _ = _random(seed)
        got = simulate(arrivals, cluster, check=True, record=Record(decisions=True))
        for index in got.requests["index"].tolist():
            own = [x for x in _by_replica(got) if index in x.tokens]
            assert all(a.start_ns < b.start_ns for a, b in pairwise(own))
            assert all(a.end_ns < b.end_ns for a, b in pairwise(own))
