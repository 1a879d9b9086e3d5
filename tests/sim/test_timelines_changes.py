"""Failures, restores, drains and added replicas by hand (rules 54, 61, 78 to 84)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies import ORDERS, POLICIES, PREDICTORS, ROUTERS
from sim.changes import Change
from sim.cluster import Cluster
from sim.content import Content
from sim.errors import ConfigError
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.records import CHANGES, STATES, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec
from tests.sim.changing import run, tokens

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)
"""10 ns and 1 ns for each token, prefilled or decoded."""

ROUND_ROBIN = ROUTERS["round-robin"]


def colocated(replicas: int = 1, policy: str = "vllm-v1", **options: Any) -> Cluster:
    more = {name: options.pop(name) for name in ("on_failure", "predictor") if name in options}
    order = ORDERS[options.pop("order", "fcfs")]()
    spec = ReplicaSpec(POLICIES[policy](**options), 100, STEP, block_tokens=4, order=order)
    return Cluster(PoolSpec("replica", [spec] * replicas, ROUND_ROBIN()), **more)


def two_pools(
    prefill: int = 1, decode: int = 1, *, blocks: int = 100, again: bool = False, **options: Any
) -> Cluster:
    """A token's KV takes 1 ns; blocks of 4."""
    spec = ReplicaSpec(
        POLICIES["vllm-v1"](**options), 100, STEP, block_tokens=4, kv_bytes_per_token=1
    )
    small = ReplicaSpec(
        POLICIES["vllm-v1"](**options), blocks, STEP, block_tokens=4, kv_bytes_per_token=1
    )
    return Cluster(
        PoolSpec("prefill", [spec] * prefill, ROUND_ROBIN()),
        PoolSpec("decode", [small] * decode, ROUND_ROBIN()),
        TransferSpec(bandwidth_bytes_per_s=1e9, recompute_last_token=again),
    )


def states(result: SimulationResult) -> list[str]:
    return [STATES[code] for code in result.requests["state"]]


def made(result: SimulationResult) -> list[tuple[int, int, str, int]]:
    """(instant, replica, change, requests lost) of each change."""
    rows = zip(*(result.changes[name].tolist() for name in result.changes), strict=True)
    return [(when, place, CHANGES[code], lost) for when, place, code, lost, _ in rows]


def test_a_running_request_goes_on_elsewhere_with_what_it_has(fast_forward: bool) -> None:
    changes = [(30, Change("fail", 0))]
    got = run([Arrival(0, 5, 5, 5)], colocated(2), changes, fast_forward=fast_forward)
    # Prefill to 15, decode to 26; the step to 37 is lost at 30. Replica 1 prefills 5 + 2: 17 -> 47.
    assert tokens(got) == [[15, 26, 47, 58, 69]]
    assert got.requests["rerouted"].tolist() == [1]
    assert got.requests["preemptions"].tolist() == [0]
    assert got.requests["recomputed_tokens"].tolist() == [6]  # 5, and the KV of token 1
    assert got.requests["replica"].tolist() == [1]
    assert made(got) == [(30, 0, "failed", 1)]
    lost = [x for x in got.decisions if x.lost]
    assert [(x.replica, x.start_ns, x.end_ns, x.tokens) for x in lost] == [(0, 26, 30, {0: 1})]
    assert got.replicas[0].busy_ns == 30
    assert got.replicas[0].iterations == 2
    assert got.replicas[0].decode_tokens == 1


def test_a_step_that_ends_with_the_failure_stands(fast_forward: bool) -> None:
    changes = [(26, Change("fail", 0))]
    got = run([Arrival(0, 5, 5, 5)], colocated(2), changes, fast_forward=fast_forward)
    assert tokens(got) == [[15, 26, 43, 54, 65]]
    assert not [x for x in got.decisions if x.lost]


def test_a_request_that_ends_with_the_failure_has_finished(fast_forward: bool) -> None:
    changes = [(26, Change("fail", 0))]
    got = run([Arrival(0, 5, 2, 2)], colocated(1), changes, fast_forward=fast_forward)
    assert tokens(got) == [[15, 26]]
    assert made(got) == [(26, 0, "failed", 0)]


def test_without_a_replica_requests_wait_and_come_before_others(fast_forward: bool) -> None:
    arrivals = [
        Arrival(0, 5, 3, 3, 0),
        Arrival(1, 6, 2, 2, 1),
        Arrival(40, 7, 1, 1, 2),
        Arrival(100, 8, 1, 1, 3),
    ]
    changes = [(20, Change("fail")), (100, Change("restore"))]
    one = colocated(1, "vllm-v0", max_num_seqs=1)
    got = run(arrivals, one, changes, fast_forward=fast_forward)
    # 0: prefill to 15; the decode is lost. At 20 request 0 ran and 1 waited; 2 comes at 40.
    # 100: 0 prefills 5 + 1: 16 -> 116, decodes to 127. 1: 16 -> 143, 154. 2: 17 -> 171; 3: 189.
    assert tokens(got) == [[15, 116, 127], [143, 154], [171], [189]]
    assert got.requests["rerouted"].tolist() == [1, 1, 0, 0]
    assert made(got) == [(20, 0, "failed", 2), (100, 0, "restored", 0)]


def test_those_that_ran_come_before_those_that_waited(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 9, 9, 0), Arrival(1, 6, 2, 2, 1), Arrival(2, 7, 2, 2, 2)]
    changes = [(0, Change("drain", 1)), (30, Change("fail", 0)), (30, Change("add"))]
    got = run(arrivals, colocated(2, "vllm-v0", max_num_seqs=1), changes, fast_forward=fast_forward)
    # Replica 2 has them at 30, in order of running 0, waiting 1 and 2: 5 + 2: 17 -> 47, and six
    # decodes of 11: 113; 1: 16 -> 129, 140; 2: 17 -> 157, 168.
    assert tokens(got)[0] == [15, 26, *range(47, 114, 11)]
    assert tokens(got)[1:] == [[129, 140], [157, 168]]
    assert made(got) == [
        (0, 1, "draining", 0),
        (0, 1, "gone", 0),
        (30, 0, "failed", 3),
        (30, 2, "added", 0),
    ]


def test_requests_can_fail_with_their_replica(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 5, 5, 0), Arrival(31, 5, 1, 1, 1)]
    cluster = colocated(2, on_failure="fail")
    got = run(arrivals, cluster, [(30, Change("fail", 0))], fast_forward=fast_forward)
    assert states(got) == ["failed", "finished"]
    assert got.requests["end_ns"].tolist() == [30, 46]
    assert got.reasons[got.requests["reason"][0]] == "replica_failed"
    assert tokens(got)[0] == [15, 26]
    assert got.requests["emitted_tokens"].tolist() == [2, 1]


def test_what_waits_for_ever_is_unfinished(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 5, 5, 0), Arrival(50, 5, 5, 5, 1)]
    got = run(arrivals, colocated(1), [(30, Change("fail"))], fast_forward=fast_forward)
    assert states(got) == ["unfinished", "unfinished"]
    assert tokens(got) == [[15, 26], []]


def test_a_client_gives_up_while_it_waits_for_a_replica(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 5, 5, 0, cancel_after_ns=40), Arrival(35, 5, 1, 1, 1)]
    changes = [(30, Change("fail")), (60, Change("restore"))]
    got = run(arrivals, colocated(1), changes, fast_forward=fast_forward)
    assert states(got) == ["cancelled", "finished"]
    assert got.requests["end_ns"].tolist() == [40, 75]


def test_a_drained_replica_ends_what_it_has(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 3, 3, 0), Arrival(20, 5, 1, 1, 1), Arrival(21, 5, 1, 1, 2)]
    got = run(arrivals, colocated(2), [(10, Change("drain", 0))], fast_forward=fast_forward)
    assert tokens(got) == [[15, 26, 37], [35], [50]]  # 1 and 2 both go to replica 1
    assert got.requests["replica"].tolist() == [0, 1, 1]
    assert made(got) == [(10, 0, "draining", 0), (37, 0, "gone", 0)]


def test_a_replica_that_fails_while_draining_is_gone(fast_forward: bool) -> None:
    changes = [(10, Change("drain", 0)), (20, Change("fail", 0)), (50, Change("fail", 0))]
    got = run([Arrival(0, 5, 3, 3)], colocated(2), changes, fast_forward=fast_forward)
    assert tokens(got) == [[15, 36, 47]]
    assert made(got) == [(10, 0, "draining", 0), (20, 0, "failed", 1), (20, 0, "gone", 0)]


def test_round_robin_counts_over_all_and_skips_those_that_are_down(fast_forward: bool) -> None:
    arrivals = [Arrival(100 * i, 1, 1, 1, i) for i in range(6)]
    changes = [(150, Change("fail", 2)), (350, Change("add")), (450, Change("restore", 2))]
    got = run(arrivals, colocated(3), changes, fast_forward=fast_forward)
    # 0, 1; at 200 replica 2 is down: 0; 1; at 400 there is replica 3 and no 2: 3; 0 again.
    assert got.requests["replica"].tolist() == [0, 1, 0, 1, 3, 0]


def test_a_static_batch_that_delivers_at_its_end_starts_from_nothing(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 4, 1, 1, 0), Arrival(0, 4, 4, 4, 1)]
    cluster = colocated(1, "static", return_at="batch_end", pad_prompts=False)
    changes = [(30, Change("fail")), (30, Change("restore"))]
    got = run(arrivals, cluster, changes, fast_forward=fast_forward)
    # Prefill of 8 to 18; then two rows, one of them finished, to 30: that has ended. All is lost:
    # 30: 18 -> 48, and three decode steps of 12: 84.
    assert tokens(got) == [[84], [84] * 4]
    assert got.requests["rerouted"].tolist() == [1, 1]


def test_a_prefix_cache_is_empty_after_a_failure(fast_forward: bool) -> None:
    same = Content([(0, 8)])
    arrivals = [Arrival(100 * i, 8, 1, 1, i, content=same) for i in range(4)]
    changes = [(150, Change("fail")), (160, Change("restore"))]
    got = run(arrivals, colocated(1, prefix_cache=True), changes, fast_forward=fast_forward)
    assert got.requests["cached_tokens"].tolist() == [0, 4, 0, 4]
    assert tokens(got) == [[18], [114], [218], [314]]


def test_srtf_counts_all_that_was_emitted(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 4, 9, 9, 0), Arrival(1, 4, 8, 8, 1)]
    cluster = colocated(
        1, "vllm-v0", max_num_seqs=1, order="srtf", predictor=PREDICTORS["oracle"]()
    )
    changes = [(40, Change("fail")), (50, Change("restore"))]
    got = run(arrivals, cluster, changes, fast_forward=fast_forward)
    # Request 0 has 3 tokens at 36, so 6 are left: before the 8 of request 1, in spite of 9 > 8.
    assert tokens(got)[0][3] == 50 + 10 + 4 + 3


# --- two pools: prefill of 5 to 15; two blocks of 4, 8 bytes, to 23; decodes of 11


def test_kv_on_its_way_to_a_failed_replica_is_sent_again(fast_forward: bool) -> None:
    got = run(
        [Arrival(0, 5, 3, 3)], two_pools(1, 2), [(20, Change("fail", 0, True))],
        fast_forward=fast_forward,
    )  # fmt: skip
    assert tokens(got) == [[15, 39, 50]]  # from 20 to 28 to replica 1 of the decode pool
    assert got.transfers["start_ns"].tolist() == [20]
    assert got.transfers["target"].tolist() == [2]
    assert got.requests["rerouted"].tolist() == [0]
    assert got.requests["decode_replica"].tolist() == [2]


@pytest.mark.parametrize("again", [False, True])
def test_kv_whose_source_failed_is_computed_again(fast_forward: bool, again: bool) -> None:
    got = run(
        [Arrival(0, 5, 3, 3)], two_pools(2, 1, again=again), [(20, Change("fail", 0))],
        fast_forward=fast_forward,
    )  # fmt: skip
    if again:  # nothing has been emitted: prefill of 5 at 20 to 35, transfer to 43, token 1 at 54
        assert tokens(got) == [[54, 65, 76]]
    else:  # 5 + 1 prompt tokens: 16 -> 36, token 2; two blocks to 44, token 3 at 55
        assert tokens(got) == [[15, 36, 55]]
    assert got.requests["rerouted"].tolist() == [1]


def test_a_decode_replica_fails_with_what_it_runs(fast_forward: bool) -> None:
    got = run(
        [Arrival(0, 5, 4, 4)], two_pools(1, 2), [(40, Change("fail", 0, True))],
        fast_forward=fast_forward,
    )  # fmt: skip
    # Token 2 at 34. At 40 back to the prefill pool with 7 tokens: 17 -> 57, token 3; two blocks to
    # 65 to replica 1; token 4 at 76.
    assert tokens(got) == [[15, 34, 57, 76]]


def test_a_last_token_may_come_from_the_prefill_pool(fast_forward: bool) -> None:
    changes = [(40, Change("fail", 0, True))]
    got = run([Arrival(0, 5, 3, 3)], two_pools(1, 1), changes, fast_forward=fast_forward)
    assert tokens(got) == [[15, 34, 57]]  # nobody has to take it for decoding
    assert states(got) == ["finished"]


def test_prefilled_requests_wait_for_a_decode_replica(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 3, 3, 0), Arrival(20, 5, 2, 2, 1)]
    changes = [(5, Change("fail", 0, True)), (100, Change("restore", 0, True))]
    got = run(arrivals, two_pools(1, 1), changes, fast_forward=fast_forward)
    assert tokens(got) == [[15, 120, 131], [35, 120]]  # two decodes: 12
    changes = [(5, Change("fail", 0, True)), (100, Change("add", 0, True))]
    got = run(arrivals, two_pools(1, 1), changes, fast_forward=fast_forward)
    assert got.requests["decode_replica"].tolist() == [2, 2]


def test_who_had_waited_comes_first_then_the_lost_ones_then_the_new(fast_forward: bool) -> None:
    # Decode replica 0 has 3 blocks: request 0 takes two, request 1 waits for a pull at replica 0,
    # and at 35 replica 0 fails as the prefill of request 2 ends; replica 1 is added.
    arrivals = [Arrival(0, 5, 7, 7, 0), Arrival(0, 5, 2, 2, 1), Arrival(20, 5, 2, 2, 2)]
    changes = [(35, Change("fail", 0, True)), (35, Change("add", 0, True))]
    got = run(arrivals, two_pools(1, 1, blocks=3), changes, fast_forward=fast_forward)
    # 0: P = 10: 20, both. 20: request 0's KV moves to 28; decode 28 to 39, lost. 20: request 2:
    # 15 -> 35. (2d) of 35: 1 is handed over again, then 2; only 1 has room: 43, decode to 54, then
    # 2: 62, 73. Request 0 has 5 + 1: 35 -> 51, token 2, waits for room: at 73 it is pulled.
    assert tokens(got)[1:] == [[20, 54], [35, 73]]
    assert tokens(got)[0][:3] == [20, 51, 92]
    assert got.transfers["request"].tolist() == [0, 1, 2, 0]


def test_a_rerouted_request_may_be_too_long_for_the_prefill_pool(fast_forward: bool) -> None:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 2, STEP, block_tokens=4, kv_bytes_per_token=1)
    large = ReplicaSpec(POLICIES["vllm-v1"](), 9, STEP, block_tokens=4, kv_bytes_per_token=1)
    cluster = Cluster(
        PoolSpec("prefill", [spec], ROUND_ROBIN()),
        PoolSpec("decode", [large] * 2, ROUND_ROBIN()),
        TransferSpec(bandwidth_bytes_per_s=1e9),
    )
    # 7 + 2 tokens do not fit the two blocks of the prefill replica.
    changes = [(45, Change("fail", 0, True))]
    got = run([Arrival(0, 7, 9, 9)], cluster, changes, fast_forward=fast_forward)
    assert states(got) == ["failed"]
    assert got.reasons[got.requests["reason"][0]] == "over_pool"
    assert tokens(got) == [[17, 36]]


def test_held_blocks_of_a_dead_decode_pool_end_the_run(fast_forward: bool) -> None:
    # Two blocks of three are kept for the dead pool; requests 1 and 2 preempt each other for ever.
    spec = ReplicaSpec(
        POLICIES["vllm-v1"](max_num_batched_tokens=4), 4, STEP, block_tokens=4, kv_bytes_per_token=1
    )
    cluster = Cluster(
        PoolSpec("prefill", [spec], ROUND_ROBIN()),
        PoolSpec("decode", [spec], ROUND_ROBIN()),
        TransferSpec(bandwidth_bytes_per_s=1e9),
    )
    arrivals = [Arrival(0, 8, 3, 3, 0), Arrival(30, 12, 3, 3, 1), Arrival(30, 12, 3, 3, 2)]
    got = run(arrivals, cluster, [(1, Change("fail", 0, True))], fast_forward=fast_forward)
    assert states(got) == ["unfinished"] * 3
    assert tokens(got) == [[28], [], []]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([Change("restore")], "it is up; what can happen to it then: fail, drain or change role"),
        ([Change("fail"), Change("fail")], "it is failed; what can happen to it then: restore"),
        ([Change("drain"), Change("drain")], "it is gone; what can happen to it then: nothing"),
        ([Change("fail", 4)], "there is no such replica; choose from 0 to 0"),
        ([Change("fail", 0, True)], "there is no decode pool"),
    ],
)
def test_what_cannot_happen_is_refused(changes: list[Change], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run([Arrival(0, 5, 2, 2)], colocated(1), [*enumerate(changes)], fast_forward=True)


def test_an_idle_replica_is_gone_after_the_changes_of_the_instant() -> None:
    drain, fail = (3, Change("drain")), (3, Change("fail"))
    arrivals = [Arrival(5, 5, 2, 2)]
    got = run(arrivals, colocated(2), [drain, fail], fast_forward=True)
    assert made(got) == [(3, 0, "draining", 0), (3, 0, "failed", 0), (3, 0, "gone", 0)]
    with pytest.raises(ConfigError, match="it is draining; what can happen to it then: fail"):
        run(arrivals, colocated(2), [drain, drain], fast_forward=True)


# --- push, and pipelines


def pushing(decode: int = 2) -> Cluster:
    cluster = two_pools(1, decode)
    assert cluster.transfer is not None
    return replace(cluster, transfer=replace(cluster.transfer, push=True))


@pytest.mark.parametrize("when", [10, 15])
def test_whose_target_fails_goes_on_as_under_pull(when: int, fast_forward: bool) -> None:
    changes = [(when, Change("fail", 0, True))]
    got = run([Arrival(0, 5, 3, 3)], pushing(), changes, fast_forward=fast_forward)
    # Prefill to 15. Its target is gone, so decode replica 1 is chosen then and pulls two blocks of
    # 4: 8 ns, to 23; decodes of 11 ns.
    assert tokens(got) == [[15, 34, 45]]
    assert got.requests["decode_replica"].tolist() == [2]
    assert got.requests["rerouted"].tolist() == [0]


def test_a_push_in_flight_is_sent_again_elsewhere(fast_forward: bool) -> None:
    changes = [(20, Change("fail", 0, True))]
    got = run([Arrival(0, 5, 3, 3)], pushing(), changes, fast_forward=fast_forward)
    assert tokens(got) == [[15, 39, 50]]  # called off at 20, and 8 ns from there


def test_who_finds_no_decode_replica_at_arrival_is_handed_over_later(fast_forward: bool) -> None:
    changes = [(0, Change("fail", 0, True)), (40, Change("restore", 0, True))]
    got = run([Arrival(0, 5, 3, 3)], pushing(1), changes, fast_forward=fast_forward)
    # It waits for no reservation: prefilled at 15. At 40 the replica is up: 48, then decodes.
    assert tokens(got) == [[15, 59, 70]]


def test_a_pushed_request_whose_source_fails_chooses_both_anew(fast_forward: bool) -> None:
    changes = [(10, Change("fail")), (30, Change("restore"))]
    got = run([Arrival(0, 5, 3, 3)], pushing(), changes, fast_forward=fast_forward)
    # Its place on decode replica 0 is given back; at 30 round robin chooses decode replica 1.
    assert tokens(got) == [[45, 64, 75]]
    assert got.requests["decode_replica"].tolist() == [2]


def pipelines(replicas: int = 2) -> Cluster:
    """Two stages of `STEP` each; moves between them cost nothing."""
    model = PipelineStepTime([STEP, STEP], StageLink(0, 1.0))
    spec = ReplicaSpec(
        POLICIES["vllm-v1"](max_num_batched_tokens=5),
        100,
        model,
        block_tokens=4,
        kind=PipelineReplica,
    )
    return Cluster(PoolSpec("replica", [spec] * replicas, ROUND_ROBIN()))


def test_a_pipeline_loses_the_batch_in_its_second_stage(fast_forward: bool) -> None:
    changes = [(40, Change("fail", 0))]
    got = run([Arrival(0, 4, 3, 3)], pipelines(), changes, fast_forward=fast_forward)
    # Two stages of 14: token 1 at 28. The decode, in stage 2 from 39 on, is lost at 40. Replica 1
    # prefills 4 + 1: 15 + 15, to 70; its decode takes 11 + 11.
    assert tokens(got) == [[28, 70, 92]]
    lost = [x for x in got.decisions if x.lost]
    assert [(x.replica, x.start_ns, x.end_ns, x.tokens) for x in lost] == [(0, 28, 40, {0: 1})]
    assert got.replicas[0].busy_ns == 40
    assert got.replicas[0].iterations == 1


def test_a_pipeline_loses_the_batches_of_all_stages(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 4, 1, 1, 0), Arrival(5, 5, 1, 1, 1)]
    changes = [(0, Change("drain", 1)), (20, Change("fail", 0)), (20, Change("add"))]
    got = run(arrivals, pipelines(), changes, fast_forward=fast_forward)
    # 0 is in stage 2 from 14 on, 1 in stage 1; both are lost at 20. On replica 2 they come in
    # order, with 4 and 1 of the 5 tokens of the budget: 15 + 15, so 0 has its token at 50. Until
    # then 1 is in that batch; its 4 others take 14 + 14.
    assert tokens(got) == [[50], [78]]
    lost = sorted((x.start_ns, x.end_ns, x.tokens) for x in got.decisions if x.lost)
    assert lost == [(0, 20, {0: 4}), (14, 20, {1: 5})]
    assert made(got)[2:] == [(20, 0, "failed", 2), (20, 2, "added", 0)]
    assert got.replicas[0].busy_ns == 20
