"""Orca by hand (rules 8, 17, 18): whole prompts join running decodes, memory is reserved ahead."""

from __future__ import annotations

from tests.conformance import adapter
from tests.conformance.cases import Observed, Spec
from tests.sim.timeline import Engine, replica, run

REQUESTS = [(0, 4, 3, 4), (0, 6, 2, 2), (0, 5, 4, 8), (10, 2, 2, 2)]
"""Reservations in blocks of 4: ceil(8 / 4) = 2, ceil(8 / 4) = 2, ceil(13 / 4) = 4, 1."""


def test_a_whole_prompt_joins_the_decodes_once_a_seat_is_free(engine: Engine) -> None:
    got = run(engine, REQUESTS, replica("orca", 8, max_batch_size=3))

    # 0: all three fit in 8 blocks, P = 15: 25. 25: three decodes, no seat for request 3: 16 -> 41.
    # 41: request 1 has left; decodes 0 and 2, and request 3's prompt: 10 + 2 + 2 x 2 = 16 -> 57.
    # 57: decodes 2 and 3: 14 -> 71.
    assert got.tokens == [[25, 41, 57], [25, 41], [25, 41, 57, 71], [57, 71]]
    assert got.free["replica0"] == [0, 0, 1, 3]


def test_the_first_that_does_not_fit_blocks_those_behind_it(engine: Engine) -> None:
    got = run(engine, REQUESTS, replica("orca", 5, max_batch_size=3))

    # 0: requests 0 and 1 take 4 of 5 blocks, request 2 needs 4: P = 10: 20.
    # 20: two decodes, 14 -> 34; request 3 would fit but stands behind request 2.
    # 34: request 1 has left, 3 free, still no: 12 -> 46. 46: both join, P = 7: 17 -> 63.
    # 63: 14 -> 77; then request 2 alone: 12 -> 89, 12 -> 101.
    assert got.tokens == [[20, 34, 46], [20, 34], [63, 77, 89, 101], [63, 77]]
    assert got.free["replica0"] == [1, 1, 3, 0, 0, 1, 1]
    assert got.preemptions == [0, 0, 0, 0]


def test_reserving_max_model_len_halves_the_batch_and_long_requests_are_rejected(
    engine: Engine,
) -> None:
    requests = [(0, 2, 2), (0, 2, 3), (0, 2, 1), (1, 10, 3)]
    got = run(engine, requests, replica("orca", 6, max_model_len=12, reserve="max_model_len"))

    # ceil(12 / 4) = 3 blocks each, so two run: P = 4: 14; 14 -> 28, request 0 leaves.
    # 28: decode 1 and the prompt of 2: 10 + 2 + 2 = 14 -> 42.
    assert got.tokens == [[14, 28], [14, 28, 42], [42], []]
    assert got.reasons == [None, None, None, "over_model_len"]  # 10 + 3 > 12


def test_the_oracle_reserves_the_true_output(engine: Engine) -> None:
    requests = [(0, 4, 2, 12), (0, 4, 3, 12)]
    got = run(engine, requests, replica("orca", 4, reserve="oracle"))

    # ceil((4 + 2) / 4) = ceil((4 + 3) / 4) = 2 each; max_tokens would ask for 4 each.
    # P = 8: 18; 14 -> 32; request 1 alone: 12 -> 44.
    assert got.tokens == [[18, 32], [18, 32, 44]]


def test_pow2_reserves_up_to_twice_the_true_output(fast_forward: bool) -> None:
    def ours(spec: Spec) -> Observed:
        return adapter.observe(spec, fast_forward=fast_forward)

    requests = [(0, 4, 3, 12), (0, 4, 5, 12), (0, 4, 1, 12)]
    got = run(ours, requests, replica("orca", 6, reserve="pow2"))

    # 3 -> 4: ceil(8 / 4) = 2 blocks; 5 -> 8: ceil(12 / 4) = 3; 1 -> 1: ceil(5 / 4) = 2, not free.
    # 0: P = 8: 18. 14 -> 32, 14 -> 46: request 0 leaves its 2 blocks.
    # 46: decode 1 and the prompt of 4: 10 + 4 + 2 = 16 -> 62. 62: decode 1 alone: 12 -> 74.
    assert got.tokens == [[18, 32, 46], [18, 32, 46, 62, 74], [62]]
    assert got.free["replica0"] == [1, 1, 1, 1, 3]
