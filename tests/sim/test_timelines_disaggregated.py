"""Two pools by hand (rules 28 to 37): hand-over, pulls, back-pressure, decode-side policies."""

from __future__ import annotations

from tests.sim.timeline import Engine, pools, replica, run_pools


def test_a_full_decode_pool_leaves_kv_on_the_prefill_side(engine: Engine) -> None:
    requests = [(0, 4, 3), (0, 4, 2), (0, 5, 2), (30, 2, 1)]
    layout = pools([replica("vllm-v0", 8)], [replica("vllm-v0", 3)], latency=5)
    got = run_pools(engine, requests, layout)

    # Prefill: 0: three prompts, P = 13: 23. 30: request 3, P = 2: 42; one token, never handed over.
    # Decode, 3 blocks: 23: 0 and 1 reserve one block each, 4 tokens move in 5 + 4 = 9: 32.
    #   Request 2 needs 2 blocks, 1 is free: its KV stays.
    # 32: 0 takes the last block (5 tokens), 1 finds none and preempts itself: 12 -> 44. It waits
    #   with 5 known tokens, 2 blocks; while it does, nothing is pulled.
    # 44: 1 free, no: 12 -> 56, request 0 ends. 56: request 1 recomputes, P = 5: 15 -> 71, token 2.
    #   One block is left: still no pull. 71: request 2 reserves 2; 2 whole blocks, 5 + 8 = 13: 84.
    # 84: it joins at context 6, within its blocks: 12 -> 96.
    assert got.tokens == [[23, 44, 56], [23, 71], [23, 96], [42]]
    assert got.transfers == [
        (0, "prefill0", "decode0", 23, 32),
        (1, "prefill0", "decode0", 23, 32),
        (2, "prefill0", "decode0", 71, 84),
    ]
    assert got.preemptions == [0, 1, 0, 0]
    assert got.free["prefill0"] == [4, 3]  # 30: 4 blocks are held for the transfers, 1 is taken
    assert got.free["decode0"] == [1, 1, 1, 1]


def test_sarathi_decodes_all_that_was_loaded_whatever_its_budget(engine: Engine) -> None:
    requests = [(0, 4, 3), (0, 2, 2), (0, 3, 2)]
    layout = pools([replica("static", 10, batch_size=2)], [replica("sarathi", 10, budget_tokens=1)])
    got = run_pools(engine, requests, layout)

    # Prefill: 0: P = 2 x 4: 18, that is the whole batch. 18: request 2: 13 -> 31.
    # Decode: 18: two pulls of a block of 4: 22. 22: both decode: 14 -> 36. Request 2 is handed over
    #   at 31 and pulled in the next pass, at 36: 40. 36: decode 0: 12 -> 48. 48: decode 2: 60.
    assert got.tokens == [[18, 36, 48], [18, 36], [31, 60]]
    assert got.transfers[2] == (2, "prefill0", "decode0", 36, 40)


def test_under_vllm_v1_a_decode_behind_the_spent_budget_waits(engine: Engine) -> None:
    requests = [(0, 4, 2), (0, 4, 2), (0, 4, 2)]
    decode = replica("vllm-v1", 10, max_num_seqs=2, max_num_batched_tokens=1)
    got = run_pools(engine, requests, pools([replica("orca", 10)], [decode]))

    # Prefill: P = 12: 22. 22: nobody runs on the decode side, all three are pulled: 26.
    # 26: 0 and 1 take the two seats; the budget of one token goes to 0: 12 -> 38.
    # 38: request 2 gets the seat; the token goes to 1: 12 -> 50; then to 2: 62.
    assert got.tokens == [[22, 38], [22, 50], [22, 62]]
    assert got.free["decode0"] == [6, 7, 8]


def test_a_static_decode_replica_forms_batches_of_loaded_requests(engine: Engine) -> None:
    requests = [(0, 4, 2), (0, 6, 3), (0, 2, 2)]
    prefill = replica("vllm-v1", 20, block_tokens=2, max_num_batched_tokens=6)
    decode = replica(
        "static", 12, block_tokens=2, batch_size=2, batch_timeout_us=10, step={"context": 1}
    )
    got = run_pools(engine, requests, pools([prefill], [decode]))

    # Prefill: 0: 4 of request 0, 2 of 1: P = 6: 16. 16: 4 of 1, 2 of 2: P = 6: 32.
    # Decode: 16: request 0 is pulled: 20. It waits for company until 20 + 10 = 30; then token 2 at
    #   context 5: 10 + 2 + 5 = 17 -> 47.
    # 47: 1 and 2 are pulled, 6 and 2 tokens: 53 and 49. 53: two wait: a batch, in order of loading.
    #   Token 2, padded to 6 + 1: D = 2, C = 14: 28 -> 81; token 3: D = 2, C = 8: 22 -> 103.
    assert got.tokens == [[16, 47], [32, 81, 103], [32, 81]]
    # Reserved at the pull: ceil((4 + 2) / 2) = 3. At 47: 5 and 2; then 2 x ceil((6 + 3) / 2) = 10.
    assert got.free["decode0"] == [9, 2, 2]


def test_prefills_of_one_instant_are_handed_over_in_order_of_replica(engine: Engine) -> None:
    requests = [(0, 4, 2), (0, 4, 2), (0, 4, 3), (0, 4, 3)]
    layout = pools(
        [replica("orca", 10, max_batch_size=1), replica("orca", 10)],
        [replica("orca", 10), replica("orca", 10)],
        decode_router="least_outstanding",
    )
    got = run_pools(engine, requests, layout)

    # Round robin: prefill0 gets requests 0 and 2, prefill1 gets 1 and 3.
    # prefill0, one seat: request 0: 14; then 2: 28. prefill1: 1 and 3 together, P = 8: 18.
    # 14: request 0 to decode0. 18: request 1 to decode1 (nothing there), 3 to decode0 (one each:
    #   the lower index). 28: request 2 to decode1 (one there; 0 and 3 at decode0 until 30).
    # decode0: 14: pull 0: 18. 18: decode 0, and with the same pass pull 3: 22; 12 -> 30.
    #   30: decode 3: 42, 54.
    # decode1: 18: pull 1: 22. 22: 12 -> 34. 34: pull 2: 38. 38: 50, 62.
    assert got.tokens == [[14, 30], [18, 34], [28, 50, 62], [18, 42, 54]]
    assert got.transfers == [
        (0, "prefill0", "decode0", 14, 18),
        (1, "prefill1", "decode1", 18, 22),
        (3, "prefill1", "decode0", 18, 22),
        (2, "prefill0", "decode1", 34, 38),
    ]
