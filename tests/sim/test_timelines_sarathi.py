"""Sarathi by hand (rules 11, 21 to 23): decodes first, chunks in the rest, whole-prompt blocks."""

from __future__ import annotations

from tests.sim.timeline import Engine, replica, run


def test_decodes_ride_first_and_chunks_fill_the_budget(engine: Engine) -> None:
    requests = [(0, 4, 3), (0, 7, 2), (0, 3, 2)]
    got = run(engine, requests, replica("sarathi", 50, budget_tokens=6))

    # 0: 4 of request 0, 2 of request 1: P = 6: 16. 16: decode 0, the other 5 of 1: 17 -> 33.
    # 33: decodes 0 and 1, all 3 of request 2: 10 + 3 + 4 = 17 -> 50. 50: 12 -> 62.
    assert got.tokens == [[16, 33, 50], [33, 50], [50, 62]]


def test_shortage_preempts_a_decode_and_admits_nobody_in_that_step(engine: Engine) -> None:
    requests = [(0, 3, 4), (0, 4, 3), (0, 6, 1)]
    got = run(engine, requests, replica("sarathi", 6, block_tokens=2, budget_tokens=8))

    # 0: requests 0 and 1 take 2 + 2 blocks, 7 of 8 tokens; request 2's whole prompt needs 3 blocks,
    #    2 are free: P = 7: 17.
    # 17: 1 takes a third block, one is left: 14 -> 31.
    # 31: 0 takes it; 1 finds none free and is the last: preempted, 3 free, but nobody is admitted:
    #     12 -> 43.
    # 43: decode 0; request 1 returns with 4 + 2 tokens and 3 blocks: 10 + 6 + 2 = 18 -> 61.
    # 61: both have ended; request 2: 16 -> 77.
    assert got.tokens == [[17, 31, 43, 61], [17, 31, 61], [77]]
    assert got.preemptions == [0, 1, 0]
    assert got.free["replica0"] == [2, 1, 3, 0, 3]


def test_a_half_prefilled_request_is_a_victim_until_it_is_met(engine: Engine) -> None:
    requests = [(0, 4, 3), (0, 6, 1)]
    got = run(engine, requests, replica("sarathi", 6, block_tokens=2, budget_tokens=4))

    # 0: request 0 uses the whole budget: 14. 14: it takes a third block; request 1 gets its 3 and
    #    computes 3 of 6 tokens: 10 + 3 + 2 = 15 -> 29.
    # 29: no block is free for request 0 (it would not even take one): request 1 is preempted and
    #     loses its chunk; nobody is admitted: 12 -> 41.
    # 41: 4 of request 1: 14 -> 55; 2: 12 -> 67.
    assert got.tokens == [[14, 29, 41], [67]]
    assert got.preemptions == [0, 1]
    assert got.preempted["replica0"] == [[], [], [1], [], []]


def test_one_seat_and_the_watermark_hold_back_admission(engine: Engine) -> None:
    requests = [(0, 60, 2), (0, 39, 1), (0, 2, 1)]
    got = run(engine, requests, replica("sarathi", 100, block_tokens=1, max_num_seqs=2))

    # Watermark 1. 0: request 0 takes 60; request 1's 39 would leave 1, which is the watermark, so
    #    it runs; no seat for request 2: P = 99: 109. 109: request 1 has ended, 40 free. Decode 0
    #    and P = 2: 10 + 2 + 2 = 14 -> 123.
    assert got.tokens == [[109, 123], [109], [123]]
    assert got.free["replica0"] == [1, 37]
