"""Clients that give up, by hand (rules 53 and 74 to 77): each place where their request can be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from policies import ROUTERS
from policies.orca import Orca
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import CANCELLED, FINISHED, Record
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from tests.conformance.workloads import Spec
from tests.sim.timeline import Timeline, pools, replica, run_giving_up

Run = Callable[..., Timeline]


@pytest.fixture(params=[False, True], ids=["stepping", "fast-forward"])
def run(request: pytest.FixtureRequest) -> Run:
    return partial(run_giving_up, fast_forward=request.param)


def test_a_waiting_request_is_removed_and_its_tokens_stand(run: Run) -> None:
    requests = [(0, 4, 4), (0, 4, 3), (0, 4, 2)]
    got = run(requests, {1: 24}, [replica("vllm-v1", 2)])

    # 0: a block each for 0 and 1, P = 8: 18; request 2 waits.
    # 18: 0 needs a second block and takes that of 1, which waits in front of 2. 12 -> 30.
    # 24: 1 gives up, with one token. 30, 42: 0 alone, 12 each; 54: it ends.
    # 54: 2: P = 4: 14 -> 68; 12 -> 80.
    assert got.tokens == [[18, 30, 42, 54], [18], [68, 80]]
    assert got.states == ["finished", "cancelled", "finished"]


@pytest.mark.parametrize(("when", "tokens"), [(20, [18]), (31, [18]), (32, [18, 32])])
def test_a_step_under_way_keeps_its_length_and_frees_at_its_end(
    run: Run, when: int, tokens: list[int]
) -> None:
    requests = [(0, 4, 5), (0, 4, 5), (0, 4, 1)]
    got = run(requests, {1: when}, [replica("orca", 6)])

    # Reservations of 3 + 3 blocks, P = 8: 18. 18: two decodes: 14 -> 32.
    # From 18 to 32 request 1 is in the step: no token at 32; it gives up at 32 with that token.
    # Either way its blocks are free at 32, and 2 (2 blocks) joins: 10 + 4 + 2 -> 48, and ends.
    # 48: 12 -> 60 -> 72.
    assert got.tokens == [[18, 32, 48, 60, 72], tokens, [48]]
    assert got.free["replica0"] == [0, 0, 1, 3, 3]
    assert got.steps["replica0"][1] == (18, 32, {0: 1, 1: 1})


def test_a_half_prefilled_request_leaves_after_its_chunk(run: Run) -> None:
    requests = [(0, 12, 2), (0, 4, 2)]
    cfg = replica("vllm-v1", 10, max_num_batched_tokens=4)
    got = run(requests, {0: 20}, [cfg])

    # Chunks of 4: 14, 28. In the second request 0 gives up; the chunk ends, then 1: 14 -> 42 -> 54.
    assert got.tokens == [[], [42, 54]]
    assert got.free["replica0"] == [9, 8, 9, 8]


def test_a_request_beside_the_step_leaves_at_once(run: Run) -> None:
    requests = [(0, 4, 9), (15, 8, 2), (15, 4, 2)]
    cfg = replica("vllm-v0", 5, max_num_batched_tokens=15)
    got = run(requests, {0: 30}, [cfg])

    # P = 4: 14; 0 decodes alone: 26. 26: 1 and 2, P = 12, 2 + 1 blocks of the 3 free: 22 -> 48;
    # 0 stalls, and gives up in that step, of which it is no part: 2 blocks are free at 30.
    # 48: 1 and 2 take one each: 14 -> 62.
    assert got.tokens == [[14, 26], [48, 62], [48, 62]]
    assert got.preemptions == [0, 0, 0]
    assert got.free["replica0"] == [4, 3, 0, 0]


def test_who_gave_up_is_not_outstanding_though_its_step_goes_on(run: Run) -> None:
    requests = [(0, 4, 5), (0, 4, 5), (17, 4, 1), (17, 4, 1)]
    two = [replica("orca", 10), replica("orca", 10)]
    got = run(requests, {0: 16}, two, router="least_outstanding")

    # 0 on replica 0, 1 on replica 1: 14, then steps to 26. 0 gives up at 16: at 17 replica 0 has
    # nobody outstanding; then one each, and the tie goes to it again. 26: P = 8: 18 -> 44.
    assert got.placed == ["replica0", "replica1", "replica0", "replica0"]
    assert got.tokens == [[14], [14, 26, 38, 50, 62], [44], [44]]


def test_at_its_arrival_a_request_takes_no_turn(run: Run) -> None:
    requests = [(0, 4, 1), (5, 4, 1), (5, 4, 1), (6, 900, 1)]
    two = [replica("orca", 10), replica("orca", 10)]
    got = run(requests, {1: 5, 3: 0}, two)

    # Nor is it rejected: request 3 could never run.
    assert got.placed == ["replica0", None, "replica1", None]
    assert got.states == ["finished", "cancelled", "finished", "cancelled"]
    assert got.reasons == [None, None, None, None]
    assert got.tokens == [[14], [], [19], []]


def test_who_finishes_at_that_instant_has_finished(run: Run) -> None:
    got = run([(0, 4, 2)], {0: 26}, [replica("orca", 10)])

    assert got.tokens == [[14, 26]]
    assert got.states == ["finished"]


# --- two pools: prefill on 8 blocks, decode on 3; a token's KV takes 1, after 5

POOLED = [(0, 4, 3), (0, 4, 2), (0, 5, 2), (45, 2, 1)]


@pytest.fixture
def layout() -> Spec:
    return pools([replica("vllm-v0", 8)], [replica("vllm-v0", 3)], latency=5)


def test_waiting_for_a_pull_it_leaves_and_the_source_is_free(run: Run, layout: Spec) -> None:
    got = run(POOLED, {2: 40}, layout)

    # 23: P = 13. 0 and 1 move, 9 -> 32; 2 needs 2 of 1 block. It gives up at 40, its 2 blocks on
    # the prefill side are free, and at 45 request 3 takes one of 8: P = 2: 57.
    # Decode: 32: 0 takes the last block, 1 preempts itself: 44, 56; then P = 5: 71.
    assert got.tokens == [[23, 44, 56], [23, 71], [23], [57]]
    assert [t[0] for t in got.transfers] == [0, 1]
    assert got.free["prefill0"] == [4, 7]


def test_a_transfer_ends_as_planned_and_then_both_sides_are_free(run: Run, layout: Spec) -> None:
    got = run(POOLED, {0: 28}, layout)

    # 32: 0's transfer ends and its block is free: 1 crosses into a second one: 12 -> 44, and ends;
    # 1 block is left, 2 needs 2. 44: 2 moves: 5 + 8 -> 57; it joins: 12 -> 69.
    assert got.tokens == [[23], [23, 44], [23, 69], [57]]
    assert [(t[0], t[3], t[4]) for t in got.transfers] == [(0, 23, 32), (1, 23, 32), (2, 44, 57)]
    assert got.free["decode0"] == [1, 1]


def test_a_loaded_request_leaves_before_it_joins(run: Run, layout: Spec) -> None:
    got = run(POOLED, {1: 32}, layout)

    # At 32 the transfers have ended, and 1 gives up before the pass: 0 has the pool for itself,
    # crosses: 44, 56. 2 needs 2 blocks of the 1 free until then: 56 -> 69; 12 -> 81.
    assert got.tokens == [[23, 44, 56], [23], [23, 81], [57]]


def test_at_the_end_of_its_prefill_it_is_not_handed_over(run: Run, layout: Spec) -> None:
    got = run(POOLED, {1: 23}, layout)

    # 23: 0 and 2 move, 1 + 2 blocks, to 32 and 36. 32: 0 needs a free block: it preempts itself,
    # and for its 5 tokens there is 1 block of 2. 36: 2 joins within its blocks: 48, and ends.
    # 48: 0: P = 5: 15 -> 63, token 2; 12 -> 75.
    assert got.tokens == [[23, 63, 75], [23], [23, 48], [57]]
    assert [t[0] for t in got.transfers] == [0, 2]
    assert got.states[1] == "cancelled"


# --- static batches

ROWS = [(0, 4, 2), (0, 4, 5), (0, 4, 4), (0, 4, 1)]


@pytest.mark.parametrize(
    ("cancelled", "tokens"),
    [
        # 0: P = 12: 22; three rows: 38, request 0 ends; its row is kept: 16 each.
        # 1 gives up in the step to 54, and 2 runs alone among three rows: 70. Then 3: P = 4: 84.
        ({1: 40}, [[22, 38], [22, 38], [22, 38, 54, 70], [84]]),
        # Both in that step: it is the last of the batch. 54: 14 -> 68.
        ({1: 40, 2: 45}, [[22, 38], [22, 38], [22, 38], [68]]),
        # Both at its end: no step is in flight, the batch is over at once, tokens 3 stand.
        ({1: 54, 2: 54}, [[22, 38], [22, 38, 54], [22, 38, 54], [68]]),
    ],
    ids=["one row", "all rows in a step", "all rows between steps"],
)
def test_a_row_that_gave_up_is_kept_as_a_finished_one(
    run: Run, cancelled: dict[int, int], tokens: list[list[int]]
) -> None:
    got = run(ROWS, cancelled, [replica("static", 40, batch_size=3)])

    assert got.tokens == tokens
    # Slots of 4 + 5 tokens, 3 blocks each, to the end of the batch whoever gave up.
    assert got.free["replica0"][:3] == [31, 31, 31]
    assert got.free["replica0"][-1] == 38


def test_a_row_that_gave_up_costs_nothing_more_without_kept_slots(run: Run) -> None:
    cfg = replica("static", 40, batch_size=3, keep_finished_slots=False, pad_prompts=False)
    got = run(ROWS, {1: 40}, [cfg])

    # 22; 38; two rows: 14 -> 52, in which 1 gives up; one row: 12 -> 64. 64: 14 -> 78.
    assert got.tokens == [[22, 38], [22, 38], [22, 38, 52, 64], [78]]


def test_at_batch_end_who_gave_up_has_nothing_even_with_all_tokens_made(run: Run) -> None:
    cfg = replica("static", 40, batch_size=3, return_at="batch_end")
    got = run(ROWS, {0: 50, 1: 40}, [cfg])

    # As above the batch ends at 70; only then are tokens delivered. Request 0 had made both of its
    # by 38, and its client leaves at 50 without any.
    assert got.tokens == [[], [], [70, 70, 70, 70], [84]]
    assert got.states == ["cancelled", "cancelled", "finished", "finished"]


# --- other memory


def test_in_a_pipeline_seat_and_memory_are_free_when_it_leaves_the_last_stage(run: Run) -> None:
    stage = {"base_s": 10e-6, "prefill_token_s": 1e-6, "decode_s": 2e-6}
    cfg = replica("orca", 10, max_batch_size=2) | {"stages": [stage, stage]}
    del cfg["step_time"]
    got = run([(0, 4, 3), (0, 4, 3), (0, 4, 1)], {0: 5}, [cfg])

    # 0 and 1 have the two seats. P = 8: 18 in each stage: 36. Request 0 gives up at 5; its seat is
    # free at 36: 2 joins 1's decode: 10 + 4 + 2 in each stage: 68. 68: 12 + 12 -> 92.
    assert got.tokens == [[], [36, 68, 92], [68]]
    assert got.free["replica0"] == [6, 6, 8]


def test_what_it_had_computed_stays_in_the_prefix_cache(run: Run) -> None:
    cfg = replica("vllm-v1", 5, prefix_cache=True)
    requests = [(0, 8, 9), (31, 9, 1)]
    got = run(requests, {0: 20}, [cfg], contents=[[(0, 8)], [(0, 8), (100, 1)]])

    # P = 8: 18. 0 decodes to 30, giving up meanwhile; its 3 blocks are free then.
    # 31: 1 finds 8 tokens and computes one: 11 -> 42.
    assert got.tokens == [[18], [42]]
    assert got.free["replica0"] == [3, 2, 2]


def test_swapped_out_it_leaves_the_host(run: Run) -> None:
    link = {"host_bandwidth": 1e6, "kv_bytes_per_token": 1}
    cfg = replica("vllm-v0", 6, block_tokens=2, preemption="swap", host_blocks=4, **link)
    got = run([(0, 3, 4), (0, 4, 4), (0, 2, 3)], {2: 40}, [cfg])

    # 19: 2 goes out, 1 block: 14 + 2 -> 35. 35: 1 goes out, 3 blocks: 12 + 6 -> 53.
    # 40: 2 gives up. 53: 1 would need 3 + 1 of 3 blocks: 12 -> 65, 0 ends.
    # 65: 1 returns: 12 + 6 -> 83; 95.
    assert got.tokens == [[19, 35, 53, 65], [19, 35, 83, 95], [19]]
    assert got.states == ["finished", "finished", "cancelled"]


# --- the end of a run


def _one_request(patience_ns: int | None, **record: int) -> tuple[int, int, int]:
    spec = ReplicaSpec(Orca(), 100, LinearStepTime(base_s=1e-6))
    cluster = Cluster(PoolSpec("pool", [spec], ROUTERS["round-robin"]()))
    arrivals = [Arrival(0, 4, 50, 50, 0, cancel_after_ns=patience_ns)]
    result = simulate(arrivals, cluster, record=Record(**record))
    return int(result.requests["state"][0]), result.end_ns, len(result.series["time_ns"])


def test_a_patience_that_was_not_needed_does_not_lengthen_the_run() -> None:
    assert _one_request(10**15) == _one_request(None) == (FINISHED, 50_000, 0)
    series = {"series_points": 5, "series_span_ns": 50_000}
    assert _one_request(10**15, **series) == _one_request(None, **series)


def test_the_end_of_a_run_that_was_cut_short_is_the_end_of_its_last_step() -> None:
    # Fast-forward had laid out 16 iterations and more: those after the one under way never happen.
    assert _one_request(3_500) == (CANCELLED, 4_000, 0)
