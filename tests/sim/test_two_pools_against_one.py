"""Two pools against one: what a transfer costs if nothing is scarce, and what scarcity costs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance import adapter
from tests.conformance.cases import Observed
from tests.sim.timeline import pools, replica, run_pools

AFTER_ALL_NS = 10**9
"""Longer than any request here takes alone."""

POLICIES = st.one_of(
    st.builds(
        lambda budget, longest, cache: {
            "policy": "vllm-v1",
            "max_num_batched_tokens": budget,
            "long_prefill_token_threshold": longest,
            "prefix_cache": cache,
        },
        st.integers(2, 40),
        st.integers(1, 40),
        st.booleans(),
    ),
    st.builds(lambda budget: {"policy": "sarathi", "budget_tokens": budget}, st.integers(2, 40)),
    st.just({"policy": "vllm-v0", "max_num_batched_tokens": 128}),
    st.just({"policy": "orca"}),
    st.builds(
        lambda pads, slots, size: {
            "policy": "static",
            "pad_prompts": pads,
            "keep_finished_slots": slots,
            "batch_size": size,
        },
        st.sampled_from([True, "attention", False]),
        st.booleans(),
        st.integers(1, 4),
    ),
)
STEPS = st.fixed_dictionaries(
    {
        "base_s": st.sampled_from([1e-9, 3.7e-6]),
        "prefill_token_s": st.sampled_from([0.0, 2.3e-8]),
        "prefill_pair_s": st.sampled_from([0.0, 1.9e-9]),
        "decode_s": st.sampled_from([0.0, 4.1e-8]),
        "context_token_s": st.sampled_from([0.0, 1.3e-9]),
    }
)
WIRES = st.sampled_from(
    [
        {"start": "pull"},
        {"start": "pull", "sharing": "max-min"},
        {"start": "push"},
        {"start": "push", "sharing": "max-min"},
        {"start": "push", "overlap": "layerwise", "layers": 3},
        {"start": "push", "overlap": "layerwise", "layers": 3, "sharing": "max-min"},
        {"start": "push", "overlap": "chunked"},
        {"start": "push", "overlap": "chunked", "sharing": "max-min"},
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 40)), min_size=1, max_size=5),
    POLICIES,
    STEPS,
    st.sampled_from([1, 4, 16]),
    WIRES,
    st.booleans(),
)
def test_alone_every_token_after_the_first_is_later_by_one_ns(
    lengths: list[tuple[int, int]],
    policy: dict[str, Any],
    step_time: dict[str, float],
    block_tokens: int,
    wire: dict[str, Any],
    fast_forward: bool,
) -> None:
    """With free memory and an unlimited link, one request at a time."""
    side = policy | {"total_blocks": 10_000, "block_tokens": block_tokens, "step_time": step_time}
    transfer = wire | {"bandwidth_bytes_per_s": 1e30, "kv_bytes_per_token": 1}
    requests = [
        {"arrival_ns": i * AFTER_ALL_NS, "prompt_tokens": p, "output_tokens": o}
        for i, (p, o) in enumerate(lengths)
    ]
    one = adapter.observe({"requests": requests, "replicas": [side]}, fast_forward=fast_forward)
    layout = {"prefill": [side], "decode": [side], "transfer": transfer}
    two = adapter.observe(
        {"requests": requests, "disaggregated": layout}, fast_forward=fast_forward
    )
    for together, apart in zip(one["requests"], two["requests"], strict=True):
        assert together["status"] == apart["status"] == "finished"
        first, *rest = together["token_times_ns"]
        assert apart["token_times_ns"] == [first, *(t + 1 for t in rest)]


def test_a_full_decode_side_holds_back_the_prefill_side() -> None:
    # Room for one prompt of 8 on the prefill side, for one request on the decode side.
    layout = pools([replica("vllm-v0", 2, max_num_batched_tokens=64)], [replica("orca", 3)])
    rows = [(0, 8, 4), (0, 8, 4), (0, 8, 4)]
    got = run_pools(_engine, rows, layout)
    # 0: the first: 18, sent until 26. It decodes: 38, 50, 62.
    # 26: the second is prefilled: 44. Its KV waits for room on the decode side, and keeps both
    #   blocks here: until 62, and the transfer until 70. It decodes: 82, 94, 106.
    # 70: the third, later by the 18 that the second has waited: 88. Its KV waits until 106.
    assert got.tokens == [[18, 38, 50, 62], [44, 82, 94, 106], [88, 126, 138, 150]]
    assert [t[3:] for t in got.transfers] == [(18, 26), (62, 70), (106, 114)]
    assert got.free["prefill0"] == [0, 0, 0]
    ample = run_pools(_engine, rows, layout | {"decode": [replica("orca", 3)] * 3})
    assert [t[0] for t in ample.tokens] == [18, 44, 70]


def _engine(spec: dict[str, Any]) -> Observed:
    return adapter.observe(spec, fast_forward=True)


PROMPTS = st.sampled_from(
    [
        {"policy": "vllm-v0", "max_num_batched_tokens": 64},
        {"policy": "vllm-v1", "max_num_batched_tokens": 5},
        {"policy": "vllm-v1", "max_num_batched_tokens": 64, "prefix_cache": True},
        {"policy": "sarathi", "budget_tokens": 7},
    ]
)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 24),
    st.lists(st.integers(2, 20), min_size=2, max_size=7),
    PROMPTS,
    st.sampled_from([1, 4]),
    st.sampled_from(["none", "max-min"]),
    st.integers(1, 3),
)
def test_a_first_token_is_later_by_exactly_what_the_transfers_before_it_wait(
    prompt: int,
    outputs: list[int],
    policy: dict[str, Any],
    block_tokens: int,
    sharing: str,
    kv_bytes: int,
) -> None:
    """Prefill memory for one prompt; decode memory for one request, or a replica for each."""
    blocks = -(-prompt // block_tokens)
    room = -(-(prompt + max(outputs)) // block_tokens)
    step = {"base_s": 1.1e-5, "prefill_token_s": 1e-6, "decode_s": 2e-6}
    same = {"block_tokens": block_tokens, "step_time": step}
    target = {"policy": "orca", "total_blocks": room, **same}
    requests = [
        {"arrival_ns": 0, "prompt_tokens": prompt, "output_tokens": o, "max_tokens": max(outputs)}
        for o in outputs
    ]
    layout = {
        "prefill": [policy | {"total_blocks": blocks, **same}],
        "transfer": {
            "bandwidth_bytes_per_s": 1e6,
            "kv_bytes_per_token": kv_bytes,
            "sharing": sharing,
        },
    }
    short, ample = (
        _engine({"requests": requests, "disaggregated": layout | {"decode": [target] * count}})
        for count in (1, len(outputs))
    )
    first = [[r["token_times_ns"][0] for r in run["requests"]] for run in (short, ample)]
    sent = {t[0]: t[3] for t in short["transfers"]}
    waited = [sent[i] - first[0][i] for i in range(len(outputs))]
    so_far = [sum(waited[:i]) for i in range(len(outputs))]
    assert [a - b for a, b in zip(*first, strict=True)] == so_far
    assert all(t[3] == first[1][t[0]] for t in ample["transfers"])  # where nothing waits
    held = [d for d in short["log"]["prefill0"] if set(d[2])]
    assert all(a[1] <= b[0] for a, b in pairwise(held))
    assert waited[0] == 0


@pytest.mark.parametrize("start", ["pull", "push"])
def test_blocks_held_for_a_transfer_are_not_free(start: str) -> None:
    layout = pools([replica("vllm-v0", 4, max_num_batched_tokens=64)], [replica("orca", 20)])
    layout["transfer"] |= {"start": start, "kv_bytes_per_token": 10}
    got = run_pools(_engine, [(0, 8, 2), (20, 4, 2), (21, 8, 2)], layout)
    # 0: 18, then 80 us of KV, two blocks. 20: one more block: 34, then 40 us until 74. 34: the
    # third needs two, and one is free until the second's is at 74: 92.
    assert [t[0] for t in got.tokens] == [18, 34, 92]
    assert got.free["prefill0"] == [2, 1, 0]
