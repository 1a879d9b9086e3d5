"""A tier of the prefix cache in host memory by hand (rules in `sim.host_cache`).

A step takes 10 + prefill tokens + 2 x decodes microseconds, and a block of 4 tokens 3 microseconds
over the host link. A request is (arrival, prompt, output, first token of its content).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import Record
from sim.tier import Tier
from tests.conformance import adapter
from tests.conformance.workloads import Spec
from tests.sim.timeline import replica

BLOCK_BYTES = 3000


@dataclass(frozen=True)
class Timeline:
    """What came of a workload on one replica, times in microseconds.

    Attributes:
        tokens: Token times of each request.
        cached: Of each step, the tokens found of each request admitted in it.
        lost: Of each step, blocks that lost their content in the pool.
        moved_blocks: Blocks that went over the host link.
    """

    tokens: list[list[int]]
    cached: list[dict[int, int]]
    lost: list[int]
    moved_blocks: int


def spec_of(requests: list[tuple[int, int, int, int]], **options: Any) -> Spec:
    made = replica("vllm-v1", 4, prefix_cache=True, **options)
    made |= {"kv_bytes_per_token": BLOCK_BYTES // 4, "host_bandwidth": 1e9}
    rows = []
    for arrival, prompt, output, first in requests:
        row = {"arrival_ns": 1000 * arrival, "prompt_tokens": prompt, "output_tokens": output}
        rows.append(row | {"content": [(first, prompt)]})
    return {"requests": rows, "replicas": [made]}


@pytest.fixture(params=[False, True], ids=["stepping", "fast-forward"])
def run(request: pytest.FixtureRequest) -> Any:
    def of(*requests: tuple[int, int, int, int], **options: Any) -> Timeline:
        spec = spec_of([*requests], **options)
        cluster, _ = adapter.build(spec)
        got = simulate(
            adapter.arrivals(spec),
            cluster,
            fast_forward=request.param,
            check=True,
            record=Record(decisions=True),
        )
        return Timeline(
            [(got.token_times_ns(i) // 1000).tolist() for i in range(len(requests))],
            [dict(x.cached) for x in got.decisions],
            [x.lost_blocks for x in got.decisions],
            got.replicas[0].host_bytes // BLOCK_BYTES,
        )

    return of


EVICTED_AND_ASKED_FOR = [(0, 12, 1, 0), (30, 16, 1, 100), (70, 12, 1, 0)]


def test_what_is_lost_is_written_and_loaded_when_asked_for(run: Any) -> None:
    got = run(*EVICTED_AND_ASKED_FOR, host_cache_blocks=10)

    # 0: P = 12: 22. The queue: a new block, then the third, second and first of the prompt.
    # 30: four blocks, three with content, which are written: 26 + 3 x 3 = 35 -> 65.
    # 70: two blocks may be found, and are on the host: two are loaded, P = 4; three blocks of
    #     request 1 make room and are written: 14 + 5 x 3 = 29 -> 99.
    assert got.tokens == [[22], [65], [99]]
    assert got.cached == [{0: 0}, {1: 0}, {2: 8}]
    assert got.lost == [0, 3, 3]
    assert got.moved_blocks == 8


def test_copies_beside_the_step_cost_what_is_longer(run: Any) -> None:
    got = run(*EVICTED_AND_ASKED_FOR, host_cache_blocks=10, host_overlap=True)

    # 30: 26 against 9 -> 56. 70: 14 against 15 -> 85.
    assert got.tokens == [[22], [56], [85]]


def test_without_the_tier_it_is_computed_again(run: Any) -> None:
    got = run(*EVICTED_AND_ASKED_FOR)

    # 30: 26 -> 56. 70: P = 12: 22 -> 92: quicker than to load and to write one by one, and slower
    #     than to do it beside the step.
    assert got.tokens == [[22], [56], [92]]
    assert got.moved_blocks == 0


def test_a_full_host_forgets_tails_first(run: Any) -> None:
    got = run(*EVICTED_AND_ASKED_FOR, (120, 16, 1, 100), host_cache_blocks=1)

    # 30: three are written, third, second, first: the first one stays. 65.
    # 70: one block is found and loaded, P = 8; three of request 1 are written, its second one
    #     stays: 18 + 4 x 3 = 30 -> 100. The pool has the first one of request 1.
    # 120: of request 1's text the first block is in the pool and the second on the host: P = 8.
    #     Three blocks are needed beside the first, and the prompt of request 2 is lost: written.
    #     18 + (1 + 3) x 3 = 30 -> 150.
    assert got.tokens == [[22], [65], [100], [150]]
    assert got.cached == [{0: 0}, {1: 0}, {2: 4}, {3: 8}]
    assert got.moved_blocks == 3 + 4 + 4


def test_a_decode_that_takes_a_block_with_content_waits_for_the_copy(run: Any) -> None:
    got = run((0, 8, 1, 0), (20, 8, 6, 100), host_cache_blocks=10)

    # 0: 18. 20: two new blocks: 38. 38: a third one, the second of request 0: 12 + 3 -> 53.
    # 53: nothing is lost: 65, 77, 89. 89: the thirteenth token, the last block: 15 -> 104.
    assert got.tokens == [[18], [38, 53, 65, 77, 89, 104]]
    assert got.lost == [0, 0, 1, 0, 0, 0, 1]
    assert got.moved_blocks == 2


def test_a_tier_needs_a_cache_a_link_and_one_stage() -> None:
    spec = spec_of([(0, 8, 1, 0)], host_cache_blocks=2)
    (made,) = spec["replicas"]
    staged = made | {"stages": [{"base_s": 1e-6}] * 2}
    for changed, message in (
        (made | {"prefix_cache": False}, "host_cache_blocks: 2 needs prefix_cache: true"),
        (made | {"host_bandwidth": None}, "has no link to it"),
        (staged, "host_cache_blocks: not modelled on a pipeline"),
    ):
        cluster, _ = adapter.build({**spec, "replicas": [changed]})
        with pytest.raises(ConfigError, match=message):
            simulate(adapter.arrivals(spec), cluster)


@pytest.mark.parametrize("broken", ["count_written", "make_room"])
def test_a_host_that_counts_or_forgets_nothing_is_caught(
    broken: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tier, broken, lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_full_host_forgets_tails_first(run)
