"""Where time goes, worked out by hand: who is charged for what, in microseconds.

A step takes 10 + 1 for each prefill token + 2 for each decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from kernels_profile.roofline import RooflineStepTime
from policies import POLICIES, ROUTERS
from sim.attribution import (
    GROUPS,
    PHASES,
    PREEMPTED,
    QUEUE_NO_REPLICA,
    REPREFILL,
    REPREFILL_FAILURE,
    TRANSFER_QUEUE,
    Account,
    Alone,
)
from sim.changes import Change
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import PREEMPTION_COLUMNS, PREEMPTIONS, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.slow_down import Normal, Slow
from sim.specs import load_device, load_model
from sim.step_time import LinearStepTime, StepTimeOrigin, StepWork
from tests.attributed import assert_adds_up
from tests.conformance import adapter
from tests.conformance.workloads import Spec
from tests.sim.timeline import Request, pools, replica

STEP = LinearStepTime(base_s=1e-5, prefill_token_s=1e-6, decode_s=2e-6)


@pytest.fixture(params=[False, True], ids=["stepping", "fast-forward"])
def fast_forward(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _arrivals(rows: Sequence[Request]) -> list[Arrival]:
    return [Arrival(1000 * r[0], r[1], r[2], r[-1], i) for i, r in enumerate(rows)]


def _split(result: SimulationResult, row: int, whole: str = "e2e") -> dict[str, float]:
    """The phases of a request, those that it has, us."""
    found = {name: int(result.requests[f"{whole}_{name}_ns"][row]) for name in PHASES}
    return {name: ns / 1000 for name, ns in found.items() if ns}


def _largest_gap(result: SimulationResult, row: int) -> tuple[int, float, dict[str, float]]:
    """The token that ends the largest gap of a request, when that was, and its phases, us."""
    token, end_ns = (int(result.requests[f"itl_max_{name}"][row]) for name in ("token", "end_ns"))
    return token, end_ns / 1000, _split(result, row, "itl_max")


def _stops(result: SimulationResult) -> list[tuple[str, int, float]]:
    """What was preempted or admitted again, and when, us."""
    rows = zip(*(result.preemptions[x].tolist() for x in PREEMPTION_COLUMNS), strict=True)
    return [(PREEMPTIONS[what], request, at / 1000) for request, what, at in rows]


def _run(
    rows: Sequence[Request], *replicas: Spec, fast_forward: bool, layout: Spec | None = None
) -> SimulationResult:
    keys = ("prompt_tokens", "output_tokens")
    requests = [
        {
            "arrival_ns": 1000 * row[0],
            **dict(zip(keys, row[1:3], strict=True)),
            "max_tokens": row[-1],
        }
        for row in rows
    ]
    place = {"replicas": list(replicas)} if layout is None else {"disaggregated": layout}
    spec = {"requests": requests, **place}
    cluster, _ = adapter.build(spec)
    result = simulate(
        adapter.feed(spec),
        cluster,
        fast_forward=fast_forward,
        check=True,
        record=Record(attribution=True),
    )
    assert_adds_up(result)
    return result


FOUR_AND_ONE: list[Request] = [(0, 5, 20), (0, 5, 20), (0, 5, 20), (0, 5, 20), (50, 100, 1)]


def test_a_prefill_that_stalls_four_decodes_under_vllm_v0_is_charged_to_them(
    fast_forward: bool,
) -> None:
    got = _run(FOUR_AND_ONE, replica("vllm-v0", 1000), fast_forward=fast_forward)

    # 0: P = 20: 30. Then decodes, D = 4: 18 each, to 48 and 66; the fifth has come at 50.
    # 66: its prefill, alone: 110, to 176. 17 more decode steps: to 482.
    for row in range(4):
        assert _split(got, row) == {
            "prefill": 15,  # its own 5 tokens
            "prefill_others": 15,
            "decode_gpu": 19 * 12,
            "decode_others": 19 * 6,
            "stall": 110,
        }
        assert _split(got, row, "ttft") == {"prefill": 15, "prefill_others": 15}
        stalled = {"stall": 110, "decode_gpu": 12, "decode_others": 6}
        assert _largest_gap(got, row) == (4, 194, stalled)
    assert _split(got, 4) == {"queue_step": 16, "prefill": 110}


def test_the_same_prompt_under_sarathi_is_many_small_stalls_in_their_own_steps(
    fast_forward: bool,
) -> None:
    replicas = replica("sarathi", 1000, budget_tokens=24)
    got = _run(FOUR_AND_ONE, replicas, fast_forward=fast_forward)

    # As above to 66. Then five steps with 4 decodes and a chunk of 20: 10 + 20 + 8 = 38 each, of
    # which the decodes alone are 18 and the chunk alone is 30.
    for row in range(4):
        assert _split(got, row) == {
            "prefill": 15,
            "prefill_others": 15,
            "decode_gpu": 19 * 12,
            "decode_others": 19 * 6,
            "decode_prefills": 5 * 20,
        }
        step = {"decode_gpu": 12, "decode_others": 6, "decode_prefills": 20}
        assert _largest_gap(got, row) == (4, 104, step)  # the first of five alike
    assert _split(got, 4) == {"queue_step": 16, "prefill": 5 * 30, "prefill_decodes": 5 * 8}


def test_a_swapped_request_shows_its_swap(fast_forward: bool) -> None:
    host = {"preemption": "swap", "host_blocks": 10}
    link = {"host_bandwidth": 1e6, "kv_bytes_per_token": 1}
    swapping = replica("vllm-v0", 6, block_tokens=2, **host, **link)
    got = _run([(0, 3, 4), (0, 4, 4), (0, 2, 3)], swapping, fast_forward=fast_forward)

    # The timeline is that of test_timelines_swap: request 2 is out from 19 to 53, request 1 from
    # 35 to 69. Steps with copies: 19 (2 us), 35 (6), 53 (2), 69 (6).
    assert _split(got, 2) == {
        "prefill": 12,
        "prefill_others": 7,
        "swapped": 34,
        "decode_gpu": 24,
        "decode_others": 4,
        "copy": 8,
    }
    assert _split(got, 1) == {
        "prefill": 14,
        "prefill_others": 5,
        "swapped": 34,
        "decode_gpu": 36,
        "decode_others": 4,
        "copy": 8,
    }
    assert _split(got, 0)["copy"] == 10
    # Request 2 has its first token at 19, when it leaves, and the next with the step of 53 to 69.
    back = {"swapped": 34, "decode_gpu": 12, "decode_others": 2, "copy": 2}
    assert _largest_gap(got, 2) == (2, 69, back)
    assert _stops(got) == [
        *(("swapped_out", 2, 19), ("swapped_out", 1, 35)),
        *(("admitted_again", 2, 53), ("admitted_again", 1, 69)),
    ]


def test_a_preempted_request_waits_and_computes_again(fast_forward: bool) -> None:
    got = _run([(0, 4, 4), (0, 4, 3)], replica("vllm-v1", 3), fast_forward=fast_forward)

    # 0: P = 8: 18, two of three blocks. 18: request 0 takes the third for its fifth token; request
    # 1 has none and is the tail: preempted. 0 alone: 12 each, to 54. 54: 1 has 5 tokens: 15.
    assert got.requests["preemptions"].tolist() == [0, 1]
    assert _split(got, 1) == {
        "prefill": 14,
        "prefill_others": 4,
        "preempted": 36,
        "reprefill": 15,
        "decode_gpu": 12,
    }
    assert _largest_gap(got, 1) == (2, 69, {"preempted": 36, "reprefill": 15})
    assert _stops(got) == [("preempted", 1, 18), ("admitted_again", 1, 54)]


def test_the_queue_says_what_the_passes_said(fast_forward: bool) -> None:
    one_seat = replica("vllm-v1", 100, max_num_seqs=1)
    got = _run([(0, 4, 2), (3, 4, 1)], one_seat, fast_forward=fast_forward)

    # 0: prefill to 14, decode to 26. The second came during the prefill, and found no seat at 14.
    assert _split(got, 1) == {"queue_step": 11, "queue_seat": 12, "prefill": 14}


def test_who_comes_during_a_run_of_iterations_is_seen_at_its_next_boundary(
    fast_forward: bool,
) -> None:
    one_seat = replica("vllm-v1", 100, max_num_seqs=1)
    got = _run([(0, 4, 9), (30, 4, 1), (31, 4, 1)], one_seat, fast_forward=fast_forward)

    # Decodes end at 26, 38, 50 ... 110, all in one run. 110: prefill of the second to 124.
    assert _split(got, 1) == {"queue_step": 8, "queue_seat": 72, "prefill": 14}
    assert _split(got, 2) == {"queue_step": 7, "queue_seat": 86, "prefill": 14}


def test_two_pools_show_the_transfer_and_the_wait_for_the_step_under_way(
    fast_forward: bool,
) -> None:
    layout = pools([replica("vllm-v1", 100)], [replica("vllm-v1", 100)], latency=5)
    got = _run([(0, 4, 3), (20, 4, 3)], fast_forward=fast_forward, layout=layout)

    # First: prefill to 14, transfer 5 + 4 to 23, decodes to 35 and 47.
    assert _split(got, 0) == {"prefill": 14, "transfer": 9, "decode_gpu": 24}
    # Second: prefill to 34; the pass at 35 sends for it, it is there at 44 and joins at 47.
    assert _split(got, 1) == {
        "prefill": 14,
        "transfer_queue": 1,
        "transfer": 9,
        "loaded": 3,
        "decode_gpu": 24,
    }
    assert _split(got, 1, "ttft") == {"prefill": 14}
    assert _largest_gap(got, 0) == (2, 35, {"transfer": 9, "decode_gpu": 12})
    moved = {"transfer_queue": 1, "transfer": 9, "loaded": 3, "decode_gpu": 12}
    assert _largest_gap(got, 1) == (2, 59, moved)


def _cluster(policy: str, **options: Any) -> Cluster:
    spec = ReplicaSpec(POLICIES[policy](**options), 100, STEP, block_tokens=4)
    return Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))


def test_a_failure_loses_the_step_and_is_waited_out(fast_forward: bool) -> None:
    got = simulate(
        _arrivals([(0, 4, 3)]),
        _cluster("vllm-v1"),
        cluster_events=[(20_000, Change("fail")), (30_000, Change("restore"))],
        fast_forward=fast_forward,
        check=True,
        record=Record(attribution=True),
    )

    # Prefill to 14; the decode step begun then is lost at 20. 30: 5 tokens again, to 45; 57.
    assert_adds_up(got)
    assert _split(got, 0) == {
        "prefill": 14,
        "lost": 6,
        "queue_no_replica": 10,
        "reprefill_failure": 15,
        "decode_gpu": 12,
    }
    again = {"lost": 6, "queue_no_replica": 10, "reprefill_failure": 15}
    assert _largest_gap(got, 0) == (2, 45, again)


def test_what_is_computed_again_belongs_to_the_last_loss_that_reaches_it() -> None:
    account = Account(0)
    account.lose(1000, QUEUE_NO_REPLICA, 0, REPREFILL_FAILURE)
    account.lose(500, PREEMPTED, 0)
    assert account.redo == ((500, REPREFILL), (1000, REPREFILL_FAILURE))
    account.lose(0, TRANSFER_QUEUE, 0)  # a transfer that keeps its last token loses nothing
    account.lose(700, QUEUE_NO_REPLICA, 0, REPREFILL_FAILURE)
    assert account.redo == ((700, REPREFILL_FAILURE), (1000, REPREFILL_FAILURE))


def test_a_request_preempted_and_then_struck_by_a_failure_has_both_parts(
    fast_forward: bool,
) -> None:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 3, STEP, block_tokens=4)
    got = simulate(
        _arrivals([(0, 4, 4), (0, 4, 5)]),
        Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]())),
        cluster_events=[(82_000, Change("fail")), (90_000, Change("restore"))],
        fast_forward=fast_forward,
        check=True,
        record=Record(attribution=True),
    )

    # As above to 69: request 1 is preempted from 18 to 54, and computes 5 tokens again. Its decode
    # ends at 81; the next is lost at 82. From 90 on 7 tokens again: 17, to 107; a decode to 119.
    assert_adds_up(got)
    assert _split(got, 1) == {
        "prefill": 14,
        "prefill_others": 4,
        "preempted": 36,
        "reprefill": 15,
        "decode_gpu": 12 + 12,
        "lost": 1,
        "queue_no_replica": 8,
        "reprefill_failure": 17,
    }


def test_a_straggler_is_a_line_of_its_own(fast_forward: bool) -> None:
    slow = Slow(Fraction(3, 2))
    got = simulate(
        _arrivals([(0, 4, 4)]),
        _cluster("vllm-v1"),
        cluster_events=[(14_000, slow), (30_000, Normal(slow))],
        fast_forward=fast_forward,
        check=True,
        record=Record(attribution=True),
    )

    # Decode steps of 12: two at half as much again, the second begun at 32 is not: 14, 32, 44, 56.
    assert_adds_up(got)
    assert _split(got, 0) == {"prefill": 14, "decode_gpu": 36, "slow": 6}
    assert _largest_gap(got, 0) == (2, 32, {"decode_gpu": 12, "slow": 6})


def test_rows_of_a_static_batch_show_padding_and_wait_for_its_end(fast_forward: bool) -> None:
    options = {"batch_size": 2, "pad_prompts": True, "return_at": "batch_end"}
    got = simulate(
        _arrivals([(0, 2, 1), (0, 6, 3)]),
        _cluster("static", **options),
        fast_forward=fast_forward,
        check=True,
        record=Record(attribution=True),
    )

    # Prefill of 2 x 6 rows: 22, of which 8 tokens are real: 4 are padding. Two decode steps of two
    # rows, 14 each, one of them finished: of the other's 14, 2 are padding.
    assert_adds_up(got)
    assert _split(got, 0) == {"prefill": 12, "prefill_others": 6, "padding": 4, "batch_end": 28}
    assert _split(got, 1) == {
        "prefill": 16,
        "prefill_others": 2,
        "padding": 4 + 2 * 2,
        "decode_gpu": 24,
    }
    assert _split(got, 1, "ttft") == _split(got, 1)  # all tokens come at the end of the batch
    assert _largest_gap(got, 0) == (-1, -0.001, {})  # one token has no gap
    assert _largest_gap(got, 1) == (2, 50, {})


class _Noisy:
    """A step longer by 1 us in every odd iteration."""

    noisy = True

    def for_replica(self, seed: int, replication: int, place: int) -> _Noisy:
        return _Noisy()

    def step_ns(self, work: StepWork, iteration: int) -> int:
        return STEP.step_ns(work, iteration) + 1000 * (iteration % 2)

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int]:
        steps = STEP.steps_ns(work, n, first_iteration)
        return [int(x) + 1000 * ((first_iteration + i) % 2) for i, x in enumerate(steps)]

    def quiet(self) -> LinearStepTime:
        return STEP

    def without_host(self) -> None:
        return None

    def describe(self) -> StepTimeOrigin:
        return STEP.describe()


def test_noise_is_a_line_of_its_own(fast_forward: bool) -> None:
    spec = ReplicaSpec(POLICIES["orca"](), 100, _Noisy())
    got = simulate(
        _arrivals([(0, 4, 4), (0, 4, 4)]),
        Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]())),
        fast_forward=fast_forward,
        check=True,
        record=Record(attribution=True),
    )

    # The prefill is iteration 0; of the decodes 1 to 3 two are odd.
    assert_adds_up(got)
    expected = {"prefill": 14, "prefill_others": 4, "decode_gpu": 36, "decode_others": 6}
    assert _split(got, 0) == {**expected, "noise": 2}
    longest = {"decode_gpu": 12, "decode_others": 2, "noise": 1}
    assert _largest_gap(got, 0) == (2, 33, longest)  # iteration 1


def test_the_sums_of_steps_alone_are_those_of_the_model_with_and_without_its_host() -> None:
    model = RooflineStepTime(load_model("llama-3.1-8b"), load_device("h100-sxm"))
    alone, free = Alone(model), model.without_host()
    for stored, ticks in ((1, 1), (700, 30), (5000, 7)):
        works = [StepWork((), 1, stored + k) for k in range(1, ticks + 1)]
        gpu, host = alone.sums(stored, ticks)
        assert gpu == sum(free.step_ns(work, 0) for work in works)
        assert gpu + host == sum(model.step_ns(work, 0) for work in works)
        assert host > 0


def test_groups_name_every_phase_once() -> None:
    assert len(PHASES) == len(set(PHASES)) == sum(map(len, GROUPS.values()))
    assert PHASES[-1] == "other"


def test_without_attribution_nothing_is_kept() -> None:
    got = simulate(_arrivals([(0, 4, 2)]), _cluster("orca"), record=Record())
    assert not any(name.startswith(("e2e_", "ttft_", "itl_")) for name in got.requests)
