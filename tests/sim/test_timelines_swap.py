"""vLLM v0 by hand with swapping to the host (rule 20): out, in, host full, never back, pools.

A block holds 2 tokens, and the KV of a token takes a microsecond over the host link.
"""

from __future__ import annotations

from typing import Any

import pytest

from policies import ROUTERS
from policies.orca import Orca
from sim.batch import ScheduledBatch
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.host import HostLink
from sim.policy import ReplicaState
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from tests.conformance import adapter
from tests.conformance.workloads import Spec
from tests.sim.timeline import pools, replica, run_here, run_pools

THREE = [(0, 3, 4), (0, 4, 4), (0, 2, 3)]


def _swapping(blocks: int, host_blocks: int, **options: Any) -> Spec:
    link = {"host_bandwidth": 1e6, "kv_bytes_per_token": 1}
    host = {"preemption": "swap", "host_blocks": host_blocks}
    return replica("vllm-v0", blocks, block_tokens=2, **host, **link, **options)


@pytest.fixture(params=[False, True], ids=["stepping", "fast-forward"])
def fast_forward(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_victims_leave_for_the_host_and_return_in_order_when_they_fit(fast_forward: bool) -> None:
    got = run_here(THREE, _swapping(6, host_blocks=10), fast_forward=fast_forward)

    # 0: blocks 2 + 2 + 1 of 6, P = 9: 19.
    # 19: request 1 takes the last block for its 5 tokens, none is free for 2: swapped out, 1 block,
    #     2 us. Two decodes: 14 + 2 -> 35. One block is free; a pass that preempted returns nobody.
    # 35: 0 takes it for its 5 tokens; 1 crosses no boundary, but finds none free and is the last:
    #     3 blocks go out, 6 us. One decode: 12 + 6 -> 53. 3 free.
    # 53: 0 stays in its blocks. 2 was first out, and needs its block and one more, of 3: it takes
    #     the block, and since it crosses a boundary (3 tokens) the other. 1 would need 4. Two
    #     decodes and 2 us: 16 -> 69. 0 ends, 3 + 1 are free.
    # 69: 1 takes 3 of 4 (it needs 4 free) and crosses none: 6 tokens. 14 + 6 -> 89. 2 ends.
    # 89: 1 crosses into a fourth block: 12 -> 101.
    assert got.tokens == [[19, 35, 53, 69], [19, 35, 89, 101], [19, 69, 89]]
    assert got.preemptions == [0, 1, 1]
    assert got.preempted["replica0"] == [[], [2], [1], [], [], []]
    assert got.free["replica0"] == [1, 1, 3, 1, 1, 2]


def test_with_the_host_full_a_victim_is_recomputed_and_waits_behind_the_swapped(
    fast_forward: bool,
) -> None:
    got = run_here(THREE, _swapping(6, host_blocks=2), fast_forward=fast_forward)

    # As above until 35: there request 1 has 3 blocks, the host one free. It is recomputed, and
    # waits with 6 tokens. One decode, nothing moves: 12 -> 47. 3 are free.
    # 47: 1 would fit, but 2 is swapped out and goes first: 16 -> 63. 0 ends, 1 + 3 are free.
    # 63: nobody is swapped out any more. 1 takes 3 blocks, P = 6: 16 -> 79, token 3; 2 stalls.
    # 79: 2 stays in its blocks, 1 takes the last: 14 -> 93.
    assert got.tokens == [[19, 35, 47, 63], [19, 35, 79, 93], [19, 63, 93]]
    assert got.preemptions == [0, 1, 1]
    assert got.free["replica0"] == [1, 1, 3, 1, 1, 0]


def test_who_could_never_return_is_recomputed(fast_forward: bool) -> None:
    got = run_here([(0, 3, 4)], _swapping(3, host_blocks=10), fast_forward=fast_forward)

    # P = 3: 13; 12 -> 25 (4 tokens, 2 blocks); 12 -> 37 (5 tokens, the third block).
    # 37: none is free, and to return it would need 3 + 1 of 3. It computes 6 tokens: 16 -> 53.
    assert got.tokens == [[13, 25, 37, 53]]
    assert got.steps["replica0"][3] == (37, 37, {})


def test_the_watermark_counts_when_a_swapped_request_returns(fast_forward: bool) -> None:
    requests = [(0, 102, 4), (0, 96, 3)]
    got = run_here(requests, _swapping(101, host_blocks=60), fast_forward=fast_forward)

    # 101 blocks, one of them the watermark. 0: 51 + 48, P = 198: 208. 2 are free.
    # 208: 0 and 1 take a block each, 103 and 97 tokens: 14 -> 222. None is free.
    # 222: 0 finds none; 1 goes out: 49 blocks, 98 us. One decode: 12 + 98 -> 332.
    # 332: 49 free; 1 would need 49 + 1 and the watermark. 0 takes one: 12 -> 344, and ends.
    # 344: 49 blocks come back: 98 tokens. 12 + 98 -> 454.
    assert got.tokens == [[208, 222, 332, 344], [208, 222, 454]]
    assert got.free["replica0"] == [2, 0, 49, 48, 52]


def test_on_a_decode_replica_pulls_wait_and_the_next_step_pays_for_a_pass_that_ran_nothing(
    fast_forward: bool,
) -> None:
    requests = [(0, 3, 4), (2, 3, 3), (8, 1, 2)]
    prefill = replica("vllm-v0", 10, block_tokens=2)
    layout = pools([prefill, prefill], [_swapping(4, host_blocks=4)])
    got = run_pools(lambda spec: adapter.observe(spec, fast_forward=fast_forward), requests, layout)

    # Prefill: 0 on replica 0: 13. 1 on replica 1: 2 -> 15. 2 on replica 0: 13 -> 24.
    # Decode, 4 blocks: 13: 0 reserves 2, 4 tokens: 17. 15: 1 reserves 2: 19. None is free.
    # 17: 0 joins and finds no free block: its 2 go out, 4 us, in a pass that runs nothing. Made
    #   again, it would need 3 of 2 to return.
    # 19: 1 joins (4 tokens, 2 blocks): 12, and 4 for the pass at 17 -> 35. Token 2.
    # 35: 1 takes a third block: 12 -> 47, and ends. One block is free and would do for request 2,
    #   which was handed over at 24; but nothing is pulled while 0 is swapped out.
    # 47: 0 returns with 2 blocks (4 tokens): 12 + 4 -> 63. Then 2 is pulled, one block: 49.
    # 63: 2 joins; 0 takes the last block, 2 finds none: out, 2 us: 12 + 2 -> 77.
    # 77: 0: 12 -> 89, and ends; 2 would have needed 2 of 1. 89: 2 returns: 12 + 2 -> 103.
    assert got.tokens == [[13, 63, 77, 89], [15, 35, 47], [24, 103]]
    assert [t[3:] for t in got.transfers] == [(13, 17), (15, 19), (47, 49)]
    assert got.steps["decode0"][0] == (17, 17, {})
    assert got.preempted["decode0"] == [[0], [], [], [], [2], [], []]


def test_what_moved_is_recorded_and_nothing_is_recomputed() -> None:
    spec: Spec = {
        "requests": [
            {"arrival_ns": 0, "prompt_tokens": p, "output_tokens": o} for _, p, o in THREE
        ],
        "replicas": [_swapping(6, host_blocks=10)],
    }
    cluster, _ = adapter.build(spec)
    result = simulate(adapter.arrivals(spec), cluster)

    assert result.requests["swap_outs"].tolist() == [0, 1, 1]
    assert result.requests["swapped_blocks"].tolist() == [0, 3, 1]
    assert result.requests["preemptions"].tolist() == [0, 1, 1]
    assert result.requests["recomputed_tokens"].tolist() == [0, 0, 0]
    assert result.replicas[0].host_bytes == 2 * (3 + 1) * 2  # out and in, blocks of 2 bytes


# --- the link


def test_each_pass_is_rounded_on_its_own_half_to_even() -> None:
    link = HostLink(2e9)  # a byte takes half a nanosecond
    link.move(1)
    link.end_pass()
    link.move(2)
    link.move(1)

    assert link.end_pass() == 2  # 0.5 -> 0, 1.5 -> 2
    assert link.lengthened(10) == 12
    assert link.lengthened(10) == 10
    assert link.moved_bytes == 4


@pytest.mark.parametrize(("owed", "length"), [(3, 10), (25, 25)])
def test_copies_that_overlap_lengthen_a_step_only_beyond_its_own_time(
    owed: int, length: int
) -> None:
    link = HostLink(1e9, overlap=True)
    link.move(owed)
    link.end_pass()

    assert link.lengthened(10) == length
    assert link.lengthened(10) == 10


class Loading(Orca):
    """Loads 5 bytes over the host link whenever it admits somebody."""

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        batch = super().schedule(state)
        batch.host_bytes = 5 * len(batch.tokens)
        return batch


@pytest.mark.parametrize(("overlap", "expected"), [(False, [18, 20, 22]), (True, [10, 12, 14])])
def test_a_policy_says_what_its_pass_moves(
    overlap: bool, expected: list[int], fast_forward: bool
) -> None:
    spec = ReplicaSpec(
        Loading(),
        10,
        LinearStepTime(base_s=2e-9, prefill_token_s=2e-9),
        4,
        host_bandwidth_bytes_per_s=0.625e9,  # 8 ns for 5 bytes
        host_overlap=overlap,
    )
    cluster = Cluster(PoolSpec("pool", [spec], ROUTERS["round-robin"]()))
    result = simulate([Arrival(0, 4, 3, 3, 0)], cluster, fast_forward=fast_forward, check=True)

    # The prompt: 2 + 4 x 2 = 10 ns, and 8 for the bytes, before it or beside it.
    assert result.token_times_ns(0).tolist() == expected


# --- misuse


def test_swapping_needs_a_place_and_a_link() -> None:
    def refusal(**options: Any) -> str:
        with pytest.raises(ConfigError) as error:
            run_here([(0, 3, 1)], replica("vllm-v0", 9, **options), fast_forward=True)
        return str(error.value)

    assert "policy.host_blocks: is required by preemption swap" in refusal(preemption="swap")
    assert "belongs to preemption swap, not to recompute" in refusal(host_blocks=3)
    assert "no link" in refusal(preemption="swap", host_blocks=3)
