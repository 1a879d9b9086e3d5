"""`recompute_last_token` by hand (rules 38, 67, 68): the decode side emits token 1 as well."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import adapter
from tests.sim.timeline import Spec, Timeline, pools, replica, run_pools

REQUESTS = [(0, 4, 2), (0, 3, 1)]
"""Prefilled together on `PREFILL`: P = 7: 17. Each KV is a block of 4: 4 microseconds: 21."""

PREFILL = replica("orca", 10)


def run_again(requests: list[Any], decode: Spec, fast_forward: bool) -> Timeline:
    layout = pools([PREFILL], [decode])
    layout["transfer"]["recompute_last_token"] = True
    return run_pools(
        lambda spec: adapter.observe(spec, fast_forward=fast_forward), requests, layout
    )


@pytest.mark.parametrize("policy", ["orca", "vllm-v0", "vllm-v1"])
def test_token_1_comes_from_the_decode_side_for_all(policy: str, fast_forward: bool) -> None:
    got = run_again(REQUESTS, replica(policy, 10), fast_forward)

    # Also request 1, of one token, is handed over. 21: two prefills of one token in a decode step:
    # P = 2: 12 -> 33. 33: decode 0: 12 -> 45.
    assert got.tokens == [[33, 45], [33]]
    assert [t[3:] for t in got.transfers] == [(17, 21), (17, 21)]
    assert got.steps["decode0"][0] == (21, 33, {0: 1, 1: 1})


def test_under_sarathi_the_last_token_needs_budget(fast_forward: bool) -> None:
    got = run_again(REQUESTS, replica("sarathi", 10, budget_tokens=1), fast_forward)

    # 21: one token of budget, for request 0: 11 -> 32. 32: its decode uses the budget up: 12 -> 44.
    # 44: request 1: 11 -> 55.
    assert got.tokens == [[32, 44], [55]]


def test_a_static_decode_batch_begins_with_a_step_of_last_tokens(fast_forward: bool) -> None:
    decode = replica("static", 10, step={"pair": 1})
    got = run_again(REQUESTS, decode, fast_forward)

    # 21: P = 2 rows, Q = 2 x the longest prompt: 10 + 2 + 8 = 20 -> 41. Request 1 is finished and
    # keeps its row: D = 2: 14 -> 55.
    assert got.tokens == [[41, 55], [41]]


def test_without_padding_each_row_attends_to_its_own_prompt(fast_forward: bool) -> None:
    decode = replica("static", 10, step={"pair": 1}, pad_prompts=False, return_at="batch_end")
    got = run_again(REQUESTS, decode, fast_forward)

    # Q = 4 + 3: 10 + 2 + 7 = 19 -> 40; 14 -> 54: all tokens, the first included, at the end.
    assert got.tokens == [[54, 54], [54]]


def test_a_victim_before_token_1_prefills_its_prompt_again(fast_forward: bool) -> None:
    requests = [(0, 4, 2), (0, 4, 2)]
    got = run_again(requests, replica("vllm-v1", 2), fast_forward)

    # Prefill: P = 8: 18; each KV of one block takes the whole pool of 2 together: loaded at 22.
    # 22: two last tokens, no new block: P = 2: 12 -> 34. 34: request 0's second token (5 tokens)
    #   needs a block: request 1, the tail, is preempted: 12 -> 46, request 0 ends.
    # 46: request 1, one token emitted: P = 5 in 2 blocks: 15 -> 61.
    assert got.tokens == [[34, 46], [34, 61]]
    assert got.preemptions == [0, 1]
