"""KV pushed to a decode replica chosen on arrival (rules 39, 69, 70 and 76)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.timeline import Request, Timeline, pools, replica, run_giving_up


def pushed(
    requests: list[Request],
    layout: dict[str, Any],
    *,
    fast_forward: bool,
    cancelled: dict[int, int] | None = None,
) -> Timeline:
    layout = layout | {"transfer": layout["transfer"] | {"start": "push"}}
    return run_giving_up(requests, cancelled or {}, layout, fast_forward=fast_forward)


SMALL = pools([replica("orca", 10)], [replica("vllm-v1", 2)])


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_prefill_waits_for_its_blocks_on_the_decode_side(fast_forward: bool) -> None:
    got = pushed([(0, 4, 2), (0, 5, 2)], SMALL, fast_forward=fast_forward)
    # 0: the first reserves one of the two blocks there, the second needs two: it waits. 14: sent
    # at once, 4 us: 18. 18: the first decodes, with both blocks: 30. It has ended: in that very
    # instant, the decode pool's pass being over, the second is admitted: P = 5: 45. Two blocks: 53.
    assert got.tokens == [[14, 30], [45, 65]]
    assert [t[3:] for t in got.transfers] == [(14, 18), (45, 53)]
    assert [step[:2] for step in got.steps["prefill0"]] == [(0, 14), (30, 45)]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_who_ends_at_the_first_token_gives_its_blocks_back_then(fast_forward: bool) -> None:
    got = pushed([(0, 4, 1, 3), (0, 5, 2)], SMALL, fast_forward=fast_forward)
    # 14: the first has ended. Its block there is free: the second is admitted: 29, sent: 37.
    assert got.tokens == [[14], [29, 49]]
    assert [t[3:] for t in got.transfers] == [(29, 37)]


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("when", [7, 14])
def test_who_gives_up_in_its_prefill_is_not_sent(when: int, fast_forward: bool) -> None:
    got = pushed([(0, 4, 2), (0, 5, 2)], SMALL, fast_forward=fast_forward, cancelled={0: when})
    # Its step keeps its length, and its blocks on both sides are free when that ends.
    assert got.tokens == [[14] if when == 14 else [], [29, 49]]
    assert got.states == ["cancelled", "finished"]
    assert [t[3:] for t in got.transfers] == [(29, 37)]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_batch_is_as_long_as_both_sides_have_room(fast_forward: bool) -> None:
    layout = pools([replica("static", 20, pad_prompts=True)], [replica("vllm-v1", 3)])
    got = pushed([(0, 4, 2), (0, 8, 2), (0, 2, 2)], layout, fast_forward=fast_forward)
    # One block and two: the third row finds none. Two rows of 8 (padded), 26. Sent: 30 and 34.
    # 30: the first needs a second block, and there is none: it preempts itself and waits.
    # 34: the second takes that block as its third: 46, and has ended.
    # 46: the first recomputes 5 tokens, two blocks: 61. Nobody waits there now and one block is
    # free: in the same instant the third is admitted: P = 2: 58; 4 us: 62; 74.
    assert [(start, end, set(x)) for start, end, x in got.steps["prefill0"]] == [
        (0, 26, {0, 1}),
        (46, 58, {2}),
    ]
    assert got.tokens == [[26, 61], [26, 46], [58, 74]]


REPLICAS = st.one_of(
    st.builds(
        lambda budget, cache: replica(
            "vllm-v1", 9, max_num_batched_tokens=budget, prefix_cache=cache
        ),
        st.sampled_from([3, 16]),
        st.booleans(),
    ),
    st.builds(lambda budget: replica("sarathi", 9, budget_tokens=budget), st.integers(2, 6)),
    st.just(replica("vllm-v0", 9, max_num_batched_tokens=64)),
    st.just(replica("orca", 9)),
    st.builds(lambda size: replica("static", 9, batch_size=size), st.integers(1, 3)),
)
STAGED = replica("vllm-v1", 9, stages=[{"base_s": 1e-5}, {"base_s": 2e-5, "decode_s": 1e-6}])


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(1, 12)),
        min_size=1,
        max_size=9,
    ),
    st.lists(REPLICAS, min_size=1, max_size=2),
    st.lists(st.one_of(REPLICAS, st.just(STAGED)), min_size=1, max_size=2),
    st.dictionaries(st.integers(0, 8), st.integers(0, 200), max_size=3),
    st.fixed_dictionaries(
        {
            "recompute_last_token": st.booleans(),
            "blocks_decode": st.booleans(),
        }
    ),
)
def test_kv_leaves_when_the_prefill_ends(
    rows: list[Request],
    prefill: list[dict[str, Any]],
    decode: list[dict[str, Any]],
    gives_up: dict[int, int],
    options: dict[str, Any],
) -> None:
    rows = sorted(rows)
    cancelled = {i: rows[i][0] + t for i, t in gives_up.items() if i < len(rows)}
    layout = pools(prefill, decode)
    layout["transfer"] |= options
    fast, slow = (pushed(rows, layout, fast_forward=f, cancelled=cancelled) for f in (True, False))
    assert fast == slow
    assert set(fast.states) <= {"finished", "rejected", "cancelled"}
    assert all(s != "cancelled" for i, s in enumerate(fast.states) if i not in cancelled)
    for request, source, _, start, _ in fast.transfers:
        ends = [end for _, end, tokens in fast.steps[source] if request in tokens]
        assert start == ends[-1]
        if not options["recompute_last_token"]:
            assert fast.tokens[request][0] == start
