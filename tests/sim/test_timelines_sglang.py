"""`sglang` by hand (rules 40, 41, 44 and 51), every token time written out.

A step takes 10 + prefill tokens + 2 x decodes microseconds. Memory is in single tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import Record
from tests.conformance import adapter
from tests.conformance.second import load_second
from tests.conformance.workloads import Spec
from tests.sim.timeline import pools, replica


@dataclass(frozen=True)
class Radix:
    """What came of a workload on one replica, times in microseconds.

    Attributes:
        tokens: Token times of each request.
        steps: Of each step the tokens computed, by request, in batch order.
        cached: Of each step, the tokens found cached of each request admitted in it.
        lost: Of each step, tokens evicted.
        free: Of each step, tokens free or evictable while it runs.
        preempted: Of each step, requests retracted before it.
    """

    tokens: list[list[int]]
    steps: list[dict[int, int]]
    cached: list[dict[int, int]]
    lost: list[int]
    free: list[int]
    preempted: list[list[int]]


def spec_of(*rows: tuple[Any, ...], tokens: int = 100, **options: Any) -> Spec:
    """A request is (arrival, prompt, output, content or None, max_tokens if not the output)."""
    requests = []
    for arrival, prompt, output, content, *most in rows:
        row = {"arrival_ns": 1000 * arrival, "prompt_tokens": prompt, "output_tokens": output}
        row |= {} if content is None else {"content": content}
        requests.append(row | ({"max_tokens": most[0]} if most else {}))
    return {"requests": requests, "replicas": [replica("sglang", tokens, 1, **options)]}


def of_product(spec: Spec, *, fast_forward: bool) -> Radix:
    cluster, _ = adapter.build(spec)
    record = Record(decisions=True)
    source = adapter.arrivals(spec)
    got = simulate(source, cluster, fast_forward=fast_forward, check=True, record=record)
    times = [got.token_times_ns(i) for i in range(len(source))]
    assert all((t % 1000 == 0).all() for t in times)
    log = got.decisions
    return Radix(
        [(t // 1000).tolist() for t in times],
        [dict(x.tokens) for x in log],
        [dict(x.cached) for x in log],
        [x.lost_blocks for x in log],
        [x.free_after for x in log],
        [list(x.preempted) for x in log],
    )


Run = Callable[..., Radix]


@pytest.fixture(params=["stepping", "fast-forward", "reference"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs requests on one replica: ours both ways, or the plain second implementation."""
    if request.param != "reference":
        fast = request.param == "fast-forward"
        return lambda *rows, **more: of_product(spec_of(*rows, **more), fast_forward=fast)
    second = load_second(request.getfixturevalue("shared"))

    def refer(*rows: tuple[Any, ...], **more: Any) -> Radix:
        got = second.simulate(copy.deepcopy(spec_of(*rows, **more)))
        cached = more.get("prefix_cache", True)
        return Radix(
            [[t // 1000 for t in got.requests[i].token_times_ns] for i in range(len(rows))],
            [dict(x.tokens) for x in got.log],
            [dict(x.facts["cached"]) if cached else {} for x in got.log],
            [x.facts["lost"] for x in got.log],
            [x.free_after for x in got.log],
            [list(x.preempted) for x in got.log],
        )

    return refer


A = (1000, 8)
"""Eight tokens that several requests begin with."""


@pytest.mark.parametrize(
    ("order", "second", "third", "cached"),
    [("lpm", 46, 30, [{0: 0}, {2: 8}, {1: 0}]), ("fcfs", 34, 46, [{0: 0}, {1: 0}, {2: 8}])],
)
def test_the_longest_cached_prefix_goes_first_or_the_first_that_came(
    run: Run, order: str, second: int, third: int, cached: list[dict[int, int]]
) -> None:
    rows = [(0, 8, 1, [A]), (5, 6, 1, None), (6, 10, 1, [A])]
    got = run(*rows, order=order, max_running_requests=1)

    # 0: P = 8: 18. 18: with one seat only one of the two is admitted, and the replica is full.
    #     lpm: request 2 has 8 of 10 cached, P = 2: 12 -> 30; it finishes in an extend step, which
    #     clears the mark: P = 6: 16 -> 46. fcfs: P = 6: 34, then P = 2: 46.
    assert got.tokens == [[18], [second], [third]]
    assert got.cached == cached


SHARED = (5000, 40)


def test_who_shares_with_an_earlier_one_waits_for_it(run: Run) -> None:
    rows = [(0, 40, 1, [SHARED]), (0, 44, 1, [SHARED]), (0, 5, 1, None)]
    got = run(*rows, tokens=400, max_prefill_tokens=50)

    # 0: nothing is cached; request 1 shares 40 tokens with request 0 and is put behind request 2.
    #    Budget 50: 40 and 5 go, 44 >= 5 does not: P = 45: 55. 55: it has 40 cached: 14 -> 69.
    assert got.tokens == [[55], [69], [55]]
    assert got.cached == [{0: 0, 2: 0}, {1: 40}]

    # In the order of arrival 44 >= 10 ends the admission: P = 40: 50. 50: P = 4 + 5: 19 -> 69.
    got = run(*rows, tokens=400, max_prefill_tokens=50, order="fcfs")
    assert got.tokens == [[50], [69], [69]]
    assert got.cached == [{0: 0}, {1: 40, 2: 0}]


def test_it_is_put_behind_all_others_but_not_left_out(run: Run) -> None:
    rows = [(0, 40, 1, [SHARED]), (0, 44, 1, [SHARED]), (0, 5, 1, None)]
    got = run(*rows, tokens=400)

    # Everybody fits: P = 89: 99, in the order 0, 2, 1; what both have computed is kept once.
    assert got.tokens == [[99], [99], [99]]
    assert [list(step) for step in got.steps] == [[0, 2, 1]]
    assert got.free == [400 - 89]


def test_prompts_are_cut_and_run_alone_while_decodes_wait(run: Run) -> None:
    rows = [(0, 4, 4, None), (12, 20, 2, None), (40, 3, 1, None)]
    got = run(*rows, chunked_prefill_size=8)

    # 0: P = 4: 14. 14: 8 of request 1: 18 -> 32, and again -> 50.
    # 50: its last 4 go first, 4 of the chunk are left, and request 2 has joined: P = 7: 17 -> 67.
    # 67: nobody waits: two decodes: 14 -> 81, the end of request 1. 12 -> 93, 12 -> 105.
    assert got.tokens == [[14, 81, 93, 105], [67, 81], [67]]
    assert got.steps == [{0: 4}, {1: 8}, {1: 8}, {1: 4, 2: 3}, {0: 1, 1: 1}, {0: 1}, {0: 1}]
    # Request 2 is evictable at 67: 100 - 24 - 2. At 81 the 21 stored tokens of request 1 are.
    assert got.free == [96, 88, 80, 73, 74, 94, 93]


def test_the_first_of_a_step_may_exceed_the_prefill_budget(run: Run) -> None:
    got = run((0, 30, 1, None), (0, 9, 1, None), (0, 7, 1, None), max_prefill_tokens=16)

    # 0: 30 alone, and the budget is used up: 40. 40: 9 go, 7 >= 7 do not: 19 -> 59; 17 -> 76.
    assert got.tokens == [[40], [59], [76]]


def test_admission_reckons_with_a_growth_that_decays(run: Run) -> None:
    # 20: request 0 holds 10 of 1000 and may emit 799 more: 990 - 0.7 x 799 = 430.7 are left.
    #     Request 1 wants 101 + 330 = 431: refused, and the replica is full.
    # 12 a decode -> 68, the end of request 0. 68: nothing runs, the mark is cleared: P = 101.
    got = run((0, 10, 5, None, 800), (20, 101, 1, None, 330), tokens=1000)
    assert got.tokens == [[20, 32, 44, 56, 68], [179]]

    # One decode later: 989 - (0.7 - 0.602 / 600) x 798 = 431.2 are left: P = 101: 32 -> 143.
    # (Had the ratio not decayed: 989 - 0.7 x 798 = 430.4.)
    got = run((0, 10, 5, None, 800), (32, 101, 1, None, 330), tokens=1000)
    assert got.tokens == [[20, 32, 155, 167, 179], [143]]
    assert got.free[2] == 1000 - 11 - 101


def test_a_full_replica_looks_at_nobody_before_the_step_after_one_that_finished(run: Run) -> None:
    got = run((0, 4, 3, None), (0, 4, 6, None), (0, 6, 1, None, 6), tokens=24)

    # 0: requests 0 and 1 take 4 + 3 and 4 + 6 of 24, 2 wants 12 of 7: full. P = 8: 18.
    # 18: they joined an empty running list, so 2 is looked at: 12 >= 16 - 0.7 x 7: full.
    #     Two decodes: 14 -> 32, 14 -> 46, the end of request 0.
    # 46: still full; this decode pass clears the mark, and its own step runs: 12 -> 58.
    # 58: 12 < 24 - 7 - (0.7 - 3 decays) x 2: P = 6: 16 -> 74. 12 -> 86, 12 -> 98.
    assert got.tokens == [[18, 32, 46], [18, 32, 46, 58, 86, 98], [74]]
    assert got.steps[3:5] == [{1: 1}, {2: 6}]
    assert got.free == [16, 14, 12, 17, 11, 16, 15]


def test_who_has_the_fewest_outputs_and_the_longest_prompt_is_retracted(run: Run) -> None:
    got = run((0, 4, 8, None), (5, 5, 8, None), tokens=22)

    # 0: P = 4: 14. 14: request 1 wants 5 + 8 of 18 - 0.7 x 7: P = 5: 15 -> 29.
    # 13 slots are free; six steps of two decodes take 12: 14 each -> 113, seven tokens each.
    # 113: one slot for two. Request 1 has the longer prompt: its 6 slots are free, the 5 tokens of
    #      its prompt are evictable. 20 slots are wanted, so they are evicted. 12 -> 125.
    # 125: request 0 has ended and left 11 tokens. Request 1 knows 12: they go. P = 12: 147.
    both = [43, 57, 71, 85, 99, 113]
    assert got.tokens == [[14, *both, 125], [29, *both, 147]]
    assert got.preempted == [*[[]] * 8, [1], []]
    assert got.lost == [*[0] * 8, 5, 11]
    assert got.free == [18, 13, 11, 9, 7, 5, 3, 1, 11, 10]
    assert got.cached[-1] == {1: 0}


def test_after_a_retraction_the_ratio_is_higher_and_the_victim_waits_at_the_end(run: Run) -> None:
    # As before, with request 2 in the queue when request 1 is retracted at 113.
    got = run((0, 4, 8, None), (5, 5, 8, None), (110, 2, 1, None, 8), tokens=22)

    # 113: request 2 wants 2 + 8 >= 1 - growth: full. Request 1 is retracted, which clears the mark;
    #      the ratio is min(1, (7 + 20) / (8 + 1)) = 1. 12 -> 125, the end of request 0.
    # 125: the queue is 2, 1: 2 + 8 of 22 are taken, request 1 wants 12 + 1 >= 12: full.
    #      P = 2: 137. 137: P = 12: 22 -> 159.
    assert got.tokens[1:] == [[29, 43, 57, 71, 85, 99, 113, 159], [137]]
    assert got.steps[-2:] == [{2: 2}, {1: 12}]


def test_a_raised_ratio_keeps_others_out(run: Run) -> None:
    got = run((0, 4, 20, None), (5, 5, 20, None), (260, 15, 1, None, 5), tokens=43)

    # 14, then P = 5: 29, then 17 steps of two decodes take all 34 slots -> 267.
    # 267: request 1 is retracted: the ratio is min(1, (18 + 20) / (20 + 1)) = 1. 12 -> 279.
    # 279: request 2 wants 15 + 5 of 21 - 1 x 1: full. (0.7 or less would let it in.) 12 -> 291.
    # 291: nothing runs: P = 15: 316. Request 1 wants 23 + 2 of 23 then; P = 23: 349; 12 -> 361.
    assert got.tokens[0][-3:] == [267, 279, 291]
    assert got.tokens[1][-3:] == [267, 349, 361]
    assert got.tokens[2] == [316]
    assert [step for step in got.preempted if step] == [[1]]


def test_a_split_node_is_used_as_a_whole_and_the_leaf_used_longest_ago_goes(run: Run) -> None:
    rows = [
        (0, 8, 1, [A]),
        (30, 6, 1, None),
        (60, 8, 1, [(1000, 5), (2000, 3)]),
        (90, 5, 1, None),
        (120, 8, 1, [A]),
    ]
    got = run(*rows, tokens=20)

    # 0: A is one node of 8. 30: 6 more, used later. 60: 5 of A are found: it is split into 5 and 3,
    #    both used now; P = 3: 13 -> 73. The tree has 17 tokens.
    # 90: 5 are wanted and 3 free. The leaf of request 1 was used longest ago: 6 are evicted.
    # 120: all 8 of A are there; at most 7 are found: P = 1: 131.
    assert got.tokens == [[18], [46], [73], [105], [131]]
    assert got.cached == [{0: 0}, {1: 0}, {2: 5}, {3: 0}, {4: 7}]
    assert got.lost == [0, 0, 0, 6, 0]
    assert got.free == [12, 14, 12, 15, 12]


def test_leaves_go_before_what_they_share(run: Run) -> None:
    rows = [
        (0, 8, 1, [A]),
        (30, 8, 1, [(1000, 5), (2000, 3)]),
        (60, 6, 1, None),
        (90, 5, 1, None),
        (120, 8, 1, [A]),
    ]
    got = run(*rows, tokens=20)

    # 90: 5 are wanted and 3 free: the last 3 tokens of A go, then those of request 1: 6, enough.
    # 120: the 5 that both began with are still there: P = 3: 133.
    assert got.tokens == [[18], [43], [76], [105], [133]]
    assert got.cached[-1] == {4: 5}
    assert got.lost == [0, 0, 0, 6, 0]


def test_what_two_computed_at_once_is_kept_once(run: Run) -> None:
    got = run((0, 8, 3, [A]), (0, 8, 3, [A]), tokens=40)

    # 0: P = 16: 26; 8 slots come back. Two decodes: 14 -> 40, 14 -> 54.
    assert got.tokens == [[26, 40, 54], [26, 40, 54]]
    assert got.free == [24, 30, 28]


def test_the_next_turn_finds_the_prompt_and_the_output(run: Run) -> None:
    said = [(3000, 30)]
    got = run((0, 8, 4, said), (100, 14, 1, said))

    # 18, then 12 a decode -> 54: 8 + 3 tokens are stored, the last one is not. P = 14 - 11: 113.
    assert got.tokens == [[18, 30, 42, 54], [113]]
    assert got.cached[-1] == {1: 11}


def test_without_the_cache_nothing_is_found_and_the_queue_is_first_come(run: Run) -> None:
    rows = [(0, 8, 1, [A]), (5, 6, 1, None), (6, 10, 1, [A])]
    got = run(*rows, prefix_cache=False, max_running_requests=1)

    # 18, then P = 6: 34, then P = 10: 54.
    assert got.tokens == [[18], [34], [54]]
    assert got.free == [92, 94, 90]
    assert got.lost == [0, 0, 0]


@pytest.mark.parametrize("fast_forward", [False, True], ids=["stepping", "fast-forward"])
def test_pages_are_matched_and_taken_whole(fast_forward: bool) -> None:
    spec = spec_of((0, 10, 1, [(1000, 10)]), (30, 10, 3, [(1000, 10)]), tokens=40, page_size=4)
    got = of_product(spec, fast_forward=fast_forward)

    # Three pages of ten. Two full pages are kept; of at most 9 tokens 8 are found: P = 2: 12 -> 42.
    # 12 a decode: the page has room for two more.
    assert got.tokens == [[20], [42, 54, 66]]
    assert got.cached[1] == {1: 8}
    assert got.free == [7, 7, 7, 7]


X, Y = (1000, 6), (2000, 6)


@pytest.mark.parametrize(
    ("eviction", "lost", "of_x", "of_y"), [("lru", 6, 5, 0), ("lfu", 6, 0, 5), ("fifo", 7, 5, 0)]
)
@pytest.mark.parametrize("fast_forward", [False, True], ids=["stepping", "fast-forward"])
def test_which_leaf_goes_first(
    fast_forward: bool, eviction: str, lost: int, of_x: int, of_y: int
) -> None:
    used = [X, Y, Y, Y, X]
    rows = [(50 * i, 6, 1, [text]) for i, text in enumerate(used)] + [(250, 6, 1, None)]

    # At the second use each is split in 5 and 1, the front part made then; it is inserted twice (X)
    # or three times (Y). 250: 6 are wanted, 5 of 17 are free.
    # lru: 1 and 5 of Y, used longest ago. lfu: 1 and 5 of X, used twice. fifo: the last token of X,
    # then that of Y, were made first; then the front of Y, and that is 7.
    for text, found in ((X, of_x), (Y, of_y)):
        spec = spec_of(*rows, (300, 6, 1, [text]), tokens=17, eviction=eviction)
        got = of_product(spec, fast_forward=fast_forward)
        first = [16, 66, 111, 161, 211, 266]
        assert got.tokens == [[t] for t in [*first, 311 if found else 316]]
        assert got.lost[5] == lost
        assert got.cached[-1] == {6: found}


def test_what_cannot_work_is_refused() -> None:
    one = spec_of((0, 8, 1, None))
    made = one["replicas"][0]
    two = {"requests": one["requests"], "disaggregated": pools([made], [made])}
    staged = {**made, "stages": [{"base_s": 1e-6}] * 2}
    for spec, message in (
        (two, "policy sglang: not modelled on a prefill replica"),
        ({**one, "replicas": [staged]}, "policy sglang: not modelled on a pipeline"),
        (spec_of((0, 8, 1, None), mixed_chunk=True), "mixed_chunk: true is not modelled"),
        (spec_of((0, 8, 1, None), page_size=101), "page_size: 101 is more than the 100 tokens"),
        (
            spec_of((0, 8, 1, None), page_size=4, chunked_prefill_size=10),
            "chunked_prefill_size: 10 is no multiple of page_size 4; try 8",
        ),
    ):
        cluster, _ = adapter.build(spec)
        with pytest.raises(ConfigError, match=message):
            simulate(adapter.arrivals(spec), cluster)


def test_a_request_as_large_as_the_memory_is_rejected() -> None:
    spec = spec_of((0, 8, 4, None), (0, 8, 2, None), tokens=12)
    cluster, _ = adapter.build(spec)
    result = simulate(adapter.arrivals(spec), cluster)
    reasons = [result.reasons[code] for code in result.requests["reason"]]
    assert reasons == ["over_pool", ""]
