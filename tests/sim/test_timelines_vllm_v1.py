"""vLLM v1 by hand (rules 5, 45 to 47): one token budget, exact block needs, chunks everywhere."""

from __future__ import annotations

from tests.sim.timeline import Engine, replica, run


def test_the_budget_cuts_prompts_and_decodes_share_it(engine: Engine) -> None:
    requests = [(0, 10, 2), (0, 3, 3), (20, 5, 2)]
    got = run(engine, requests, replica("vllm-v1", 50, max_num_batched_tokens=8))

    # 0: 8 of request 0: 18. 18: its last 2, then request 1's 3: P = 5: 15 -> 33.
    # 33: decodes 0 and 1, 6 tokens left for request 2's 5: 10 + 5 + 2 x 2 = 19 -> 52.
    # 52: decodes 1 and 2: 14 -> 66.
    assert got.tokens == [[33, 52], [33, 52, 66], [52, 66]]


def test_a_long_prompt_under_the_threshold_lets_others_in_and_a_piece_of_one_is_prefill(
    engine: Engine,
) -> None:
    options = {"max_num_batched_tokens": 6, "long_prefill_token_threshold": 4}
    got = run(engine, [(0, 12, 2), (0, 2, 3), (0, 3, 2)], replica("vllm-v1", 50, **options))

    # 0: 4 of request 0 and all 2 of request 1: P = 6: 16.
    # 16: 4 of 0, decode of 1, one token of 2: 10 + 5 + 2 = 17 -> 33. 33: the same: 17 -> 50, the
    #     end of request 0's prompt. 50: decode of 0, and the third token of 2, which is a prefill
    #     of one token: 10 + 1 + 2 = 13 -> 63. 63: 12 -> 75.
    assert got.tokens == [[50, 63], [16, 33, 50], [63, 75]]


def test_shortage_preempts_the_tail_and_admits_nobody_in_that_pass(engine: Engine) -> None:
    requests = [(0, 3, 5), (0, 4, 3), (0, 2, 3)]
    got = run(engine, requests, replica("vllm-v1", 6, block_tokens=2))

    # 0: blocks 2 + 2 + 1 of 6, P = 9: 19.
    # 19: 0 stays in its blocks, 1 takes the last, 2 needs one, is the tail, preempts itself:
    #     14 -> 33.
    # 33: 0 takes the block that 2 gave back; 1 (6 tokens, 3 blocks) needs none, and no spare one is
    #     asked for: 14 -> 47; request 2's 2 blocks are not there.
    # 47: request 1 has ended. Decode of 0 and the 3 known tokens of 2: 10 + 3 + 2 = 15 -> 62.
    # 62: 0 takes the last block; 14 -> 76.
    assert got.tokens == [[19, 33, 47, 62, 76], [19, 33, 47], [19, 62, 76]]
    assert got.preemptions == [0, 0, 1]
    assert got.free["replica0"] == [1, 1, 0, 1, 0]


CHUNKED = [(0, 4, 4), (0, 8, 1)]


def test_a_half_prefilled_request_that_cannot_grow_starts_over(engine: Engine) -> None:
    options = {"block_tokens": 2, "max_num_batched_tokens": 6}
    got = run(engine, CHUNKED, replica("vllm-v1", 5, **options))

    # 0: 4 of request 0 (2 blocks), 2 of request 1 (1 block): P = 6: 16.
    # 16: 0 takes a third block; 1 wants min(6, 5) = 5 tokens, 4 blocks in all, 3 more than the one
    #     it has, 1 is free: preempted. 12 -> 28. 28: a first chunk of 5 needs 3, 2 are free:
    #     12 -> 40. 40: 0 takes a fourth block: 12 -> 52.
    # 52: 6 of request 1: 16 -> 68; 2: 12 -> 80.
    assert got.tokens == [[16, 28, 40, 52], [80]]
    assert got.preemptions == [0, 1]
    assert got.free["replica0"] == [2, 2, 2, 1, 2, 1]


def test_reserving_the_full_prompt_waits_instead(engine: Engine) -> None:
    options = {"block_tokens": 2, "max_num_batched_tokens": 6, "reserve_full_prompt": True}
    got = run(engine, CHUNKED, replica("vllm-v1", 5, **options))

    # Request 1's 4 blocks are never free while 0 runs: 14, then 12 a step: 26, 38, 50.
    # 50: 6 of 8: 16 -> 66; 2: 12 -> 78.
    assert got.tokens == [[14, 26, 38, 50], [78]]
    assert got.preemptions == [0, 0]
