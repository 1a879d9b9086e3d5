"""vLLM v1's prefix cache on two pools and on stages by hand (rules 44 and 55).

A step takes 10 + prefill tokens + 2 x decodes microseconds, the KV of a token one; blocks have 4
tokens. A request is (arrival, prompt, output, content), a content (first token, tokens) of its run.
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
from tests.sim.timeline import pools, replica


@dataclass(frozen=True)
class Timeline:
    """What came of a workload, times in microseconds.

    Attributes:
        tokens: Token times of each request.
        transfers: (request, start, end) of each.
        steps: By replica, of each step: start, free blocks, tokens found by request, lost blocks.
    """

    tokens: list[list[int]]
    transfers: list[tuple[int, int, int]]
    steps: dict[str, list[tuple[int, int, dict[int, int], int]]]


Run = Callable[..., Timeline]


def of_product(spec: Spec, *, fast_forward: bool) -> Timeline:
    cluster, names = adapter.build(spec)
    got = simulate(
        adapter.arrivals(spec),
        cluster,
        fast_forward=fast_forward,
        check=True,
        record=Record(decisions=True),
    )
    steps: dict[str, list[Any]] = {}
    for x in got.decisions:
        entry = (x.start_ns // 1000, x.free_after, dict(x.cached), x.lost_blocks)
        steps.setdefault(names[x.replica], []).append(entry)
    sent = (got.transfers[name].tolist() for name in ("request", "start_ns", "end_ns"))
    return Timeline(
        [(got.token_times_ns(i) // 1000).tolist() for i in range(len(spec["requests"]))],
        [(i, a // 1000, b // 1000) for i, a, b in zip(*sent, strict=True)],
        steps,
    )


def of_second(simulate_second: Callable[[Spec], Any], spec: Spec) -> Timeline:
    got = simulate_second(spec)
    steps: dict[str, list[Any]] = {}
    for x in got.log:
        entry = (x.start_ns // 1000, x.free_after, x.facts["cached"], x.facts["lost"])
        steps.setdefault(x.replica, []).append(entry)
    return Timeline(
        [[t // 1000 for t in got.requests[i].token_times_ns] for i in range(len(spec["requests"]))],
        [(t.request, t.start_ns // 1000, t.end_ns // 1000) for t in got.transfers],
        steps,
    )


def cached(blocks: int, **options: Any) -> Spec:
    return replica("vllm-v1", blocks, prefix_cache=True, **options)


def spec_of(requests: tuple[tuple[Any, ...], ...], layout: Spec) -> Spec:
    rows = []
    for arrival, prompt, output, content in requests:
        row = {"arrival_ns": 1000 * arrival, "prompt_tokens": prompt, "output_tokens": output}
        rows.append(row if content is None else row | {"content": [content]})
    return {"requests": rows, **layout}


@pytest.fixture(params=["stepping", "fast-forward", "second"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs requests on two pools: ours both ways, or the second implementation."""

    def of(*requests: tuple[Any, ...], prefill: int, decode: int) -> Timeline:
        layout = {"disaggregated": pools([cached(prefill)], [cached(decode)])}
        spec = spec_of(requests, layout)
        if request.param != "second":
            return of_product(spec, fast_forward=request.param == "fast-forward")
        second = load_second(request.getfixturevalue("shared"))
        return of_second(second.simulate, spec)

    return of


def test_only_what_the_decode_side_has_not_is_sent(run: Run) -> None:
    got = run((0, 8, 2, (0, 8)), (100, 8, 2, (0, 8)), prefill=10, decode=10)

    # 0: P = 8: 18. Two blocks are sent: 26. A decode, 3 blocks: 12 -> 38.
    # 100: the first block is found, P = 4: 114. On the decode side as well, where at most 7 tokens
    #   may be found: one block is sent: 118. 12 -> 130.
    assert got.tokens == [[18, 38], [114, 130]]
    assert got.transfers == [(0, 18, 26), (1, 114, 118)]
    assert got.steps["prefill0"] == [(0, 8, {0: 0}, 0), (100, 8, {1: 4}, 0)]
    assert got.steps["decode0"] == [(26, 7, {}, 0), (118, 7, {}, 0)]


def test_what_is_on_its_way_is_not_found_and_what_is_used_takes_no_room(run: Run) -> None:
    got = run(*[(0, 12, 3, (0, 12))] * 2, (20, 12, 3, (0, 12)), prefill=20, decode=9)

    # Prefill: 0: the second finds 2 blocks of the first, which is scheduled: P = 12 + 4: 26.
    #   26: request 2 finds 2: P = 4: 40.
    # Decode: 26: both are sent whole, as nothing has come yet: 38. 38: both need a fourth block, 1
    #   is free: 14 -> 52. 52: request 2 finds 2 blocks of request 0 in use, so that one block is
    #   enough, and one is sent: 56; 14 -> 66, the end of both.
    #   66: request 2 takes its fourth block, the half one of request 0: 12 -> 78, 12 -> 90.
    assert got.tokens == [[26, 52, 66], [26, 52, 66], [40, 78, 90]]
    assert got.transfers == [(0, 26, 38), (1, 26, 38), (2, 52, 56)]
    assert got.steps["prefill0"] == [(0, 16, {0: 0, 1: 8}, 0), (26, 15, {2: 8}, 0)]
    assert got.steps["decode0"] == [(38, 1, {}, 0), (52, 0, {}, 0), (66, 5, {}, 0), (78, 5, {}, 0)]


def test_preempted_on_the_decode_side_it_finds_what_is_left_of_what_came(run: Run) -> None:
    got = run((0, 8, 6, None), (0, 8, 6, None), prefill=10, decode=5)

    # 0: P = 16: 26. Four blocks are sent: 34. 34: request 0 takes the fifth; 1 needs one and
    #   preempts itself; its blocks are free, tail first. 12 -> 46.
    # 46: 1 knows 9 tokens, finds 2 blocks, and would need 1 + 2 of 2 free: 58, 70, 82.
    # 82: 0 takes the second block of 1, which is lost: 94, the end.
    # 94: 1 finds one block and takes two more: a half one and a full one of request 0: P = 5: 109.
    #   121, 133, 145; there it takes another full one: 157.
    assert got.tokens == [[26, 46, 58, 70, 82, 94], [26, 109, 121, 133, 145, 157]]
    assert got.steps["decode0"] == [
        *[(34, 2, {}, 0), (46, 2, {}, 0), (58, 2, {}, 0), (70, 2, {}, 0), (82, 1, {}, 1)],
        *[(94, 2, {1: 4}, 1), (109, 2, {}, 0), (121, 2, {}, 0), (133, 2, {}, 0), (145, 1, {}, 1)],
    ]


@pytest.mark.parametrize("fast_forward", [False, True])
def test_on_stages_a_batch_under_way_is_found_already(fast_forward: bool) -> None:
    stages = [replica("vllm-v1", 1)["step_time"]] * 2
    layout = {"replicas": [cached(5) | {"stages": stages}]}
    spec = spec_of(((0, 8, 2, (0, 9)), (5, 8, 1, (0, 8)), (60, 12, 1, (0, 12))), layout)
    got = of_product(spec, fast_forward=fast_forward)

    # 0: P = 8: 18 in the first stage, 36 in the second. 18: request 1 finds the first block, though
    #   its batch is under way: P = 4: 14 -> 32; the second stage is free at 36: 50.
    # 36: request 0 decodes, a third block: 12 -> 48, the second stage is free at 50: 62.
    # 60: the first stage is free. Of the second block there are two copies: request 0 uses the one
    #   that was registered first, the other one is free since 50. Request 2 finds both blocks of
    #   request 0, in use: P = 4, one block: 74 in the first stage, 88 in the second.
    assert got.tokens == [[36, 62], [50], [88]]
    assert got.steps["replica0"] == [
        *[(0, 3, {0: 0}, 0), (18, 2, {1: 4}, 0), (36, 1, {}, 0)],
        (60, 1, {2: 8}, 0),
    ]
