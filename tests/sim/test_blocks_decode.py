"""Transfers that keep a decode replica from computing (`blocks_decode`, rule 92)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance import adapter
from tests.sim.timeline import Timeline, _timeline, pools, replica


def timeline(
    rows: list[tuple[int, int, int]], layout: dict[str, Any], *, fast_forward: bool
) -> Timeline:
    layout = layout | {"transfer": layout["transfer"] | {"blocks_decode": True}}
    names = ("arrival_ns", "prompt_tokens", "output_tokens")
    requests = [dict(zip(names, (1000 * a, p, o), strict=True)) for a, p, o in rows]
    spec = {"requests": requests, "disaggregated": layout}
    return _timeline(adapter.observe(spec, fast_forward=fast_forward))


@pytest.mark.parametrize("fast_forward", [True, False])
def test_one_transfer_at_a_time_and_no_step_before_the_last(fast_forward: bool) -> None:
    layout = pools([replica("orca", 10)], [replica("vllm-v1", 10)])
    got = timeline([(0, 4, 3), (0, 4, 2)], layout, fast_forward=fast_forward)
    # Prefill P = 8: 18. Decode: 18: the first is sent for: 22. 22: it joins, the second is sent
    # for, so nothing is decided: 26. 26: both decode, D = 2: 40; then the first alone: 52.
    assert [t[3:] for t in got.transfers] == [(18, 22), (22, 26)]
    assert got.tokens == [[18, 40, 52], [18, 40]]
    assert got.steps["decode0"] == [(26, 40, {0: 1, 1: 1}), (40, 52, {0: 1})]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_running_decodes_stand_still_while_another_is_loaded(fast_forward: bool) -> None:
    layout = pools([replica("orca", 10)], [replica("vllm-v1", 10)])
    got = timeline([(0, 4, 5), (20, 8, 2)], layout, fast_forward=fast_forward)
    # Prefill: 0: 14; 20: P = 8: 38. Decode: 14: sent for: 18. 18: 30, 42. The second has been
    # handed over at 38: at 42 it is sent for, 8 us: 50, and nothing runs. 50: D = 2: 64; 76.
    assert [t[3:] for t in got.transfers] == [(14, 18), (42, 50)]
    assert got.tokens == [[14, 30, 42, 64, 76], [38, 64]]


@pytest.mark.parametrize("fast_forward", [True, False])
def test_blocks_go_to_the_transfer_before_running_requests_take_theirs(fast_forward: bool) -> None:
    layout = pools([replica("orca", 10)], [replica("vllm-v0", 3)])
    got = timeline([(0, 4, 3), (0, 4, 2)], layout, fast_forward=fast_forward)
    # Without a watermark (3 blocks): 18: the first takes a block: 22; the second takes one: 26.
    # 26: the first takes the last block for token 5; the second finds none and preempts itself:
    # 12 -> 38, 50. 50: it recomputes 5 tokens: 15 -> 65, token 2.
    assert [t[3:] for t in got.transfers] == [(18, 22), (22, 26)]
    assert got.tokens == [[18, 38, 50], [18, 65]]
    assert got.preemptions == [0, 1]


REPLICAS = st.one_of(
    st.builds(
        lambda budget, seats, cache: replica(
            "vllm-v1", 9, max_num_batched_tokens=budget, max_num_seqs=seats, prefix_cache=cache
        ),
        st.sampled_from([2, 3, 16]),
        st.integers(1, 4),
        st.booleans(),
    ),
    st.builds(lambda budget: replica("sarathi", 9, budget_tokens=budget), st.integers(1, 6)),
    st.builds(
        lambda host: replica(
            "vllm-v0", 9, max_num_batched_tokens=64, preemption="swap", host_blocks=host,
            host_bandwidth=1e6, kv_bytes_per_token=1,
        ),
        st.integers(1, 9),
    ),
    st.just(replica("orca", 9)),
    st.just(replica("vllm-v1", 9, stages=[{"base_s": 1e-5}, {"base_s": 2e-5, "decode_s": 1e-6}])),
    st.builds(lambda size: replica("static", 9, batch_size=size), st.integers(1, 3)),
)  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 120), st.integers(1, 14), st.integers(1, 12)),
        min_size=1,
        max_size=9,
    ),
    st.lists(REPLICAS, min_size=1, max_size=2),
    st.booleans(),
)
def test_no_step_while_kv_comes(
    rows: list[tuple[int, int, int]], decode: list[dict[str, Any]], again: bool
) -> None:
    layout = pools([replica("orca", 30)] * 2, decode)
    layout["transfer"] |= {"recompute_last_token": again}
    rows = sorted(rows)
    fast, slow = (timeline(rows, layout, fast_forward=f) for f in (True, False))
    assert fast == slow
    assert set(fast.states) <= {"finished", "rejected"}
    for name, steps in fast.steps.items():
        kv = sorted((start, end) for _, _, to, start, end in fast.transfers if to == name)
        assert all(end <= later for (_, end), (later, _) in pairwise(kv))
        staged = "stages" in decode[int(name[-1])] if name.startswith("decode") else False
        for start, end, _ in steps:
            assert not any(begin <= start < done for begin, done in kv if start < end)
            # With stages, other batches may be on their way when a pass sends for KV.
            assert staged or not any(start < begin < end for begin, _ in kv)
