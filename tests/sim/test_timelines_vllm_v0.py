"""vLLM v0 by hand (rules 7, 9 to 11, 19): prefill-only steps, conservative decodes, recompute."""

from __future__ import annotations

from tests.sim.timeline import Engine, replica, run


def test_a_step_that_admits_anybody_stalls_all_decodes(engine: Engine) -> None:
    requests = [(0, 6, 3), (0, 4, 2), (5, 4, 2), (40, 5, 1), (0, 8, 2)]
    got = run(engine, requests, replica("vllm-v0", 50, max_num_batched_tokens=8))

    # 0: 6 of 8 tokens, request 1's 4 would make 10: P = 6: 16. Request 4 could hold 8 + 2 - 1 = 9
    # tokens when recomputed: over the budget of 8.
    # 16: requests 1 and 2, P = 8: 18 -> 34, request 0 stalls. 34: three decodes: 16 -> 50.
    # 50: request 3's prompt alone: 15 -> 65. 65: 12 -> 77.
    assert got.tokens == [[16, 50, 77], [34, 50], [34, 50], [65], []]
    assert got.reasons[4] == "over_token_budget"


def test_shortage_preempts_from_the_tail_and_victims_prefill_all_they_know(engine: Engine) -> None:
    requests = [(0, 3, 4), (0, 4, 4), (0, 2, 3)]
    got = run(engine, requests, replica("vllm-v0", 6, block_tokens=2))

    # 0: blocks 2 + 2 + 1 of 6, P = 9: 19.
    # 19: request 0 stays in its 2 blocks (4 tokens), 1 takes the last one (5 tokens), none is free
    #     for 2, which is the last: it preempts itself. Two decodes: 14 -> 33; one block free.
    # 33: request 2 would need 2 blocks for its 3 tokens. 0 takes the free one, 1 finds none and is
    #     now the last: preempted. One decode: 12 -> 45; 3 free.
    # 45: request 1 first: 4 + 2 tokens, 3 blocks: P = 6: 16 -> 61, token 3. None left for 2.
    # 61: request 0 needs a free block although it crosses no boundary: 1 is preempted again.
    #     12 -> 73: request 0 ends, all 6 blocks are free.
    # 73: 1 and 2 come back with 7 and 3 tokens, 4 + 2 blocks: P = 10: 20 -> 93. 93: 12 -> 105.
    assert got.tokens == [[19, 33, 45, 73], [19, 33, 61, 93], [19, 93, 105]]
    assert got.preemptions == [0, 2, 1]
    assert got.free["replica0"] == [1, 1, 3, 0, 3, 0, 4]
    assert got.preempted["replica0"] == [[], [2], [1], [], [1], [], []]


def test_a_request_alone_in_a_full_pool_preempts_itself_and_comes_back_at_once(
    engine: Engine,
) -> None:
    got = run(engine, [(0, 3, 4)], replica("vllm-v0", 3, block_tokens=2))

    # P = 3: 13; 12 -> 25 (4 tokens, 2 blocks); 12 -> 37 (5 tokens, the third block).
    # 37: it needs no block for the sixth token, but none is free: preempted, a pass of no length;
    # repeated, it prefills 6 tokens: 16 -> 53, token 4.
    assert got.tokens == [[13, 25, 37, 53]]
    assert got.steps["replica0"][3] == (37, 37, {})
    assert got.free["replica0"] == [1, 1, 0, 3, 0]


def test_the_watermark_holds_back_admission_but_not_decodes(engine: Engine) -> None:
    requests = [(0, 98, 3), (0, 1, 1)]
    got = run(engine, requests, replica("vllm-v0", 100, block_tokens=1))

    # One block of 100 is the watermark. Request 0 (98 + 3 - 1 = 100 tokens) could never run beside
    # it; asking for 2 tokens it can.
    assert got.reasons == ["over_pool", None]
    got = run(engine, [(0, 97, 3), (0, 3, 1)], replica("vllm-v0", 100, block_tokens=1))
    # 0: 97 blocks, 3 free; request 1 would leave 0, under the watermark: P = 97: 107.
    # 107: decode into the 98th block: 12 -> 119; 119: the 99th: 12 -> 131. 131: P = 3: 144.
    assert got.tokens == [[107, 119, 131], [144]]
    assert got.free["replica0"] == [3, 2, 1, 97]
