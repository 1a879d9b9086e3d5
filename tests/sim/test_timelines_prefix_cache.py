"""vLLM v1 with its prefix cache by hand (rules 40 to 44 and 47), every token time written out.

A step takes 10 + prefill tokens + 2 x decodes microseconds unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sim.event_loop import simulate
from sim.records import Record
from tests.conformance import adapter
from tests.conformance.second import load_second
from tests.conformance.workloads import Spec
from tests.sim.timeline import replica


@dataclass(frozen=True)
class Cached:
    """What came of a workload on one replica, times in microseconds.

    Attributes:
        tokens: Token times of each request.
        cached: Of each step, the tokens found cached of each request admitted in it.
        lost: Of each step, blocks that lost their content.
        free: Of each step, blocks free while it runs.
    """

    tokens: list[list[int]]
    cached: list[dict[int, int]]
    lost: list[int]
    free: list[int]


def spec_of(requests: list[tuple[Any, ...]], **options: Any) -> Spec:
    """A request is (arrival, prompt, output, ids or None); an id stands for one block of tokens."""
    made = replica("vllm-v1", prefix_cache=True, **options)
    rows = []
    for arrival, prompt, output, ids in requests:
        row = {"arrival_ns": 1000 * arrival, "prompt_tokens": prompt, "output_tokens": output}
        if ids is not None:
            row |= {"block_ids": ids, "block_ids_tokens": made["block_tokens"]}
        rows.append(row)
    return {"requests": rows, "replicas": [made]}


def of_product(spec: Spec, *, fast_forward: bool) -> Cached:
    cluster, _ = adapter.build(spec)
    record = Record(decisions=True)
    arrivals = adapter.arrivals(spec)
    got = simulate(arrivals, cluster, fast_forward=fast_forward, check=True, record=record)
    return Cached(
        [(got.token_times_ns(i) // 1000).tolist() for i in range(len(arrivals))],
        [dict(x.cached) for x in got.decisions],
        [x.lost_blocks for x in got.decisions],
        [x.free_after for x in got.decisions],
    )


@pytest.fixture(params=["stepping", "fast-forward", "second"])
def run(request: pytest.FixtureRequest) -> Callable[..., Cached]:
    """Runs requests on one replica: ours both ways, or the second implementation."""
    if request.param != "second":
        fast = request.param == "fast-forward"
        return lambda *rows, **more: of_product(spec_of([*rows], **more), fast_forward=fast)
    second = load_second(request.getfixturevalue("shared"))

    def refer(*rows: tuple[Any, ...], **more: Any) -> Cached:
        got = second.simulate(spec_of([*rows], **more))
        return Cached(
            [[t // 1000 for t in got.requests[i].token_times_ns] for i in range(len(rows))],
            [x.facts["cached"] for x in got.log],
            [x.facts["lost"] for x in got.log],
            [x.free_after for x in got.log],
        )

    return refer


Run = Callable[..., Cached]
PLAIN = replica("vllm-v1", 8)


def test_whole_blocks_are_found_and_at_least_one_token_is_computed(run: Run) -> None:
    got = run(
        (0, 8, 2, [1, 2]),
        (100, 8, 2, [1, 2]),
        (200, 9, 2, [1, 2, 3]),
        (300, 8, 2, [1, 9]),
        (400, 8, 2, [9, 2]),
        total_blocks=20,
    )
    # 0: P = 8. 100: both blocks are there, but one token has to be computed: a block is, P = 4.
    # 200: 2 blocks of 9 tokens: P = 1. 300: the first block only. 400: a block is known by all
    #     before it, so [9, 2] finds nothing.
    assert got.tokens == [[18, 30], [114, 126], [211, 223], [314, 326], [418, 430]]
    assert got.cached == [{0: 0}, {}, {1: 4}, {}, {2: 8}, {}, {3: 4}, {}, {4: 0}, {}]
    assert got.free == [18, 17, 18, 17, 17, 17, 18, 17, 18, 17]
    assert got.lost == [0] * 10  # never used blocks come first, and there are 20


def test_tokens_found_are_before_the_first_chunk_and_in_every_context(run: Run) -> None:
    step = {"pair": 1, "context": 1}
    got = run((0, 8, 2, [1, 2]), (100, 8, 2, [1, 2]), total_blocks=20, step=step)

    # Q = 8 x 4.5 = 36: 10 + 8 + 36 = 54; a decode at context 9: 21 -> 75.
    # Q = 4 x (4 + 2.5) = 26: 10 + 4 + 26 = 40; then 21.
    assert got.tokens == [[54, 75], [140, 161]]


def test_a_block_is_found_from_when_its_last_token_is_scheduled(run: Run) -> None:
    got = run((0, 8, 1, [1, 2]), (0, 8, 1, [1, 2]), total_blocks=10)

    # Both in one pass: the second finds what the first is about to compute. P = 8 + 4.
    # The last block is computed twice, and held twice.
    assert got.tokens == [[22], [22]]
    assert got.cached == [{0: 0, 1: 4}]
    assert got.free == [7]


def test_the_tail_is_lost_first_and_what_was_just_used_last(run: Run) -> None:
    prompt = [1, 2, 3]
    got = run(
        (0, 12, 1, prompt),
        (30, 16, 1, None),
        (60, 12, 1, prompt),
        (80, 12, 1, prompt),
        total_blocks=6,
    )
    # 0: 3 of 6 new blocks; freed, the queue is: 3 new ones, then 3, 2, 1 of the prompt.
    # 30: 4 blocks: the new ones and the prompt's third, which is lost: 26 -> 56.
    # 60: 2 found, and one of the 4 that stand behind them: P = 4: 14 -> 74. 80: the same.
    assert got.tokens == [[22], [56], [74], [94]]
    assert got.cached == [{0: 0}, {1: 0}, {2: 8}, {3: 8}]
    assert got.lost == [0, 1, 1, 1]
    assert got.free == [3, 2, 3, 3]


def test_decodes_take_what_a_waiting_request_would_have_found(run: Run) -> None:
    got = run((0, 8, 1, [1, 2]), (20, 12, 3, None), (25, 12, 1, [1, 2, 3]), total_blocks=5)

    # 20: 3 new blocks; 2 and 1 of the first prompt are left: 22 -> 42.
    # 42: the decode takes block 2. Request 2 finds block 1, which is free and so counts: it needs
    #     2 + 1 of 1 free. 12 -> 54, 12 -> 66, the end.
    # 66: the queue is 1, a block without content (token 14 of request 1), then its full ones. 1 is
    #     taken out, 2 more from the front, one of them with content: P = 8: 18 -> 84.
    assert got.tokens == [[18], [42, 54, 66], [84]]
    assert got.cached == [{0: 0}, {1: 0}, {}, {}, {2: 4}]
    assert got.lost == [0, 0, 1, 0, 1]
    assert got.free == [3, 2, 1, 1, 2]


@pytest.mark.parametrize(
    ("uncached_first", "lost", "found", "end"), [(False, 1, 4, 75), (True, 0, 8, 71)]
)
def test_a_block_without_content_waits_its_turn_or_goes_first(
    run: Run, uncached_first: bool, lost: int, found: int, end: int
) -> None:
    got = run(
        (0, 8, 1, [1, 2]),
        (20, 5, 1, None),
        (40, 3, 1, None),
        (60, 9, 1, [1, 2]),
        total_blocks=4,
        uncached_first=uncached_first,
    )
    # 20: 2 new blocks, the second with one token: 15 -> 35. The queue is 2, 1, the partial one and
    #     the full one; or the partial one first. 40: takes the first of it: 13 -> 53.
    # 60: finds 1 alone, P = 5; or 1 and 2, P = 1.
    assert got.tokens == [[18], [35], [53], [end]]
    assert got.cached[-1] == {3: found}
    assert got.lost[2] == lost


def test_a_preempted_request_finds_what_is_left_of_its_own_blocks(run: Run) -> None:
    got = run((0, 4, 6, None), (0, 8, 3, None), total_blocks=7, block_tokens=2)

    # 0: 2 + 4 blocks, P = 12: 22. 22: request 0 takes the last; 1 needs one, is the tail, and
    #     preempts itself; its blocks stand in the queue as 4, 3, 2, 1: 12 -> 34.
    # 34: 1 knows 9 tokens, finds 8, and would need 1 + 4 of 4 free: 12 -> 46.
    # 46: 0 takes its block 4. It finds 3, needs 2 + 3 of 3: 12 -> 58, 12 -> 70.
    # 70: 0 takes block 3: 12 -> 82, its end.
    # 82: 1 finds 2 and 1, and takes three more: one without content, two of request 0.
    #     P = 9 - 4: 15 -> 97; 12 -> 109.
    assert got.tokens == [[22, 34, 46, 58, 70, 82], [22, 97, 109]]
    assert got.cached == [{0: 0, 1: 0}, {}, {}, {}, {}, {}, {1: 4}, {}]
    assert got.lost == [0, 0, 0, 1, 0, 1, 2, 0]
    assert got.free == [1, 4, 4, 3, 3, 2, 2, 2]


OWN = [(0, 2, 5, None), (0, 3, 4, None)]


def test_generated_tokens_that_fill_a_block_are_found_after_a_preemption(run: Run) -> None:
    got = run(*OWN, total_blocks=5, block_tokens=2)

    # 0: 1 + 2 blocks, P = 5: 15. 15: 0 takes a fourth, 29: 1 takes the fifth: 14 each -> 43.
    # 43: 0 needs one: 1 is preempted with 5 tokens stored, two blocks and a half, the second of
    #     which holds its first generated token. 0 takes the half one: 12 -> 55.
    # 55: 1 knows 6, finds 4, and needs 1 + 2 of 2 free: 12 -> 67, the end of 0.
    # 67: P = 2: 12 -> 79. One of 0's three full blocks is lost.
    assert got.tokens == [[15, 29, 43, 55, 67], [15, 29, 43, 79]]
    assert got.cached == [{0: 0, 1: 0}, {}, {}, {}, {}, {1: 4}]
    assert got.lost == [0, 0, 0, 0, 0, 1]
    assert got.free == [2, 1, 0, 2, 2, 2]


def test_columns_count_prompt_tokens_found_at_first_and_what_was_computed_again() -> None:
    cluster, _ = adapter.build(own := spec_of(OWN, total_blocks=5, block_tokens=2))
    columns = simulate(adapter.arrivals(own), cluster).requests
    assert columns["cached_tokens"].tolist() == [0, 0]
    assert columns["recomputed_tokens"].tolist() == [0, 1]  # 5 were stored, 4 found again

    shared = spec_of([(0, 8, 2, [1, 2]), (100, 9, 2, [1, 2])], total_blocks=20)
    cluster, _ = adapter.build(shared)
    result = simulate(adapter.arrivals(shared), cluster)
    assert result.requests["cached_tokens"].tolist() == [0, 8]
    (replica,) = result.replicas
    assert replica.prefill_tokens == 9
    assert (replica.found_tokens, replica.asked_tokens) == (8, 17)


def test_ids_of_large_blocks_are_cut_into_blocks_of_the_pool() -> None:
    """Trace blocks of 6 tokens on KV blocks of 4; the last trace block is partial (rule 41)."""
    spec = spec_of([(0, 14, 1, None), (100, 14, 1, None), (200, 13, 1, None)], total_blocks=20)
    for row, ids in zip(spec["requests"], ([1, 2, 3], [1, 2, 3], [1, 7, 3]), strict=True):
        row |= {"block_ids": ids, "block_ids_tokens": 6}
    for fast_forward in (False, True):
        got = of_product(spec, fast_forward=fast_forward)
        # 12 tokens are of full trace blocks, 3 blocks. [1, 7] shares 6 tokens, 1 block.
        assert got.cached == [{0: 0}, {1: 12}, {2: 4}]
        assert got.tokens == [[24], [112], [219]]
