"""Static batching by hand (rules 12 to 16): padding, finished rows, timeout, memory."""

from __future__ import annotations

from tests.sim.timeline import Engine, replica, run

REQUESTS = [(0, 3, 2), (5, 5, 4), (5, 2, 3), (5, 2, 1)]


def test_padded_rows_cost_the_longest_prompt_and_finished_rows_stay(engine: Engine) -> None:
    got = run(engine, REQUESTS, replica("static", 20, batch_size=2, step={"context": 1}))

    # Request 0 waits for nobody (no timeout): 10 + 3 = 13; token 2 at context 3 + 1: 10 + 2 + 4.
    # At 29 the first two of three waiting: P = 2 x 5, 10 + 10 = 20, so token 1 at 49.
    # Token 2: D = 2, C = 2 x (5 + 1): 10 + 4 + 12 = 26 -> 75; token 3: C = 14, 28 -> 103, request 2
    # is finished and keeps its row: D = 2, C = 5 + 3 = 8: 10 + 4 + 8 = 22 -> 125.
    # Nobody joined before; request 3 alone: 10 + 2 = 12 -> 137.
    assert got.tokens == [[13, 29], [49, 75, 103, 125], [49, 75, 103], [137]]
    # Reservations: ceil((3 + 2) / 4) = 2; twice ceil((5 + 4) / 4) = 3; ceil((2 + 1) / 4) = 1.
    assert got.free["replica0"] == [18, 18, 14, 14, 14, 14, 19]
    assert [tokens for _, _, tokens in got.steps["replica0"]][5] == {1: 1}


def test_without_padding_and_kept_rows_and_delivered_at_batch_end(engine: Engine) -> None:
    options = {"pad_prompts": False, "keep_finished_slots": False, "return_at": "batch_end"}
    got = run(engine, REQUESTS, replica("static", 20, batch_size=2, step={"context": 1}, **options))

    # Request 0 as before, but both tokens at the end of its batch, 29.
    # At 29: P = 5 + 2: 17 -> 46. Token 2: C = 6 + 3: 10 + 4 + 9 = 23 -> 69; token 3: C = 7 + 4,
    # 25 -> 94. Then request 1 alone, D = 1, C = 8: 20 -> 114: everything of the batch comes at 114.
    # Request 3: 12 -> 126.
    assert got.tokens == [[29, 29], [114] * 4, [114] * 3, [126]]


def test_attention_padding_counts_real_tokens_in_the_linear_layers(engine: Engine) -> None:
    options = {"pad_prompts": "attention", "batch_size": 2}
    got = run(engine, REQUESTS[1:3], replica("static", 20, step={"context": 1}, **options))

    # P = 5 + 2 real tokens: 17 -> 22 (the pool is idle at 5); contexts are padded as with true:
    # 26 -> 48, 28 -> 76, then 22 -> 98.
    assert got.tokens == [[22, 48, 76, 98], [22, 48, 76]]


def test_a_batch_waits_for_its_timeout_and_takes_only_what_fits(engine: Engine) -> None:
    requests = [(0, 4, 2), (8, 4, 4), (20, 5, 1), (21, 6, 2)]
    got = run(engine, requests, replica("static", 6, batch_size=3, batch_timeout_us=20))

    # Request 0 has waited 20 at 20, and request 2 arrives at that very instant: three wait. Two
    # fit, 2 x ceil((4 + 4) / 4) = 4 of 6 blocks; a third would need 3 x ceil((5 + 4) / 4) = 9.
    # P = 2 x 4: 18 -> 38; then 10 + 2 x 2 = 14 a step (request 0's row stays): 52, 66, 80.
    # At 80 request 2 has waited since 20: no further wait. P = 2 x 6: 22 -> 102; 14 -> 116.
    assert got.tokens == [[38, 52], [38, 52, 66, 80], [102], [102, 116]]
    assert got.free["replica0"] == [2, 2, 2, 2, 2, 2]
