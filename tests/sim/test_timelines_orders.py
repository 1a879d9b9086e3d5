"""Queue orders and predictors by hand (rules 50, 57, 89, 90). A step: 10 + P + 2 D microseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from policies import Bucket, Noisy, Oracle
from sim.pool import named_generator
from sim.request import Arrival
from tests.sim.timeline import replica, run_here

ONE_SEAT = replica("orca", 100, max_batch_size=1)


def test_sjf_takes_the_shortest_predicted_output_of_those_that_wait(fast_forward: bool) -> None:
    requests = [(0, 4, 3), (1, 2, 5), (2, 2, 1), (3, 2, 2)]
    got = run_here(requests, ONE_SEAT, order="sjf", predictor=Oracle(), fast_forward=fast_forward)

    # Request 0 alone: 14, then 12 a decode: 26, 38. Then outputs 1, 2 and 5, each prompt 12 long.
    assert got.tokens == [[14, 26, 38], [86, 98, 110, 122, 134], [50], [62, 74]]


def test_sjf_keeps_preempted_requests_before_shorter_new_ones(fast_forward: bool) -> None:
    requests = [(0, 3, 4), (0, 4, 4), (0, 2, 3), (20, 1, 1)]
    got = run_here(
        requests,
        replica("vllm-v0", 6, block_tokens=2),
        order="sjf",
        predictor=Oracle(),
        fast_forward=fast_forward,
    )

    # 0: in order 2 (output 3), 0, 1 (4 each, first come): blocks 1 + 2 + 2, P = 9: 19.
    # 19: 2 takes the last block; none is spare for 0, so 1, the tail, is preempted: 14 -> 33.
    # 33: request 1 (5 tokens, 3 blocks) does not fit into 2, and request 3, which would, stands
    #     behind it although it is shorter. 0 takes a block: 14 -> 47, request 2 ends.
    # 47: 1 takes 3 blocks, none left for 3: P = 5: 15 -> 62.
    # 62: no spare block for 0: 1 is preempted again: 12 -> 74, request 0 ends.
    # 74: 1 with 6 tokens and 3 with 1: P = 7: 17 -> 91. 91: 12 -> 103.
    assert got.tokens == [[19, 33, 47, 74], [19, 62, 91, 103], [19, 33, 47], [91]]
    assert got.preemptions == [0, 2, 0, 0]


def test_srtf_goes_by_the_buckets_upper_edges_and_ties_keep_their_order(
    fast_forward: bool,
) -> None:
    requests = [(0, 4, 1), (1, 2, 5), (2, 2, 3), (3, 2, 4), (4, 2, 2)]
    got = run_here(
        requests,
        ONE_SEAT,
        order="srtf",
        predictor=Bucket(edges_tokens=(2, 4, 8)),
        fast_forward=fast_forward,
    )

    # Predicted 8, 4, 4, 2 for requests 1 to 4. 14: request 4: 26, 38; then 2 before 3, which are
    # alike: 50, 62, 74 and 86, 98, 110, 122; then 1: 134, 146, 158, 170, 182.
    assert got.tokens[1:] == [
        [134, 146, 158, 170, 182],
        [50, 62, 74],
        [86, 98, 110, 122],
        [26, 38],
    ]


def test_srtf_does_not_sort_the_preempted_among_themselves(fast_forward: bool) -> None:
    requests = [(0, 2, 5), (1, 2, 6), (13, 1, 2), (29, 1, 1)]
    got = run_here(
        requests,
        replica("vllm-v1", 8, block_tokens=1),
        order="srtf",
        predictor=Oracle(),
        fast_forward=fast_forward,
    )

    # 0: 12. 12: decode 0, prompt of 1: 14 -> 26. 26: decodes 0, 1, prompt of 2: 10 + 1 + 4 -> 41.
    #     Blocks of one token: 4 + 3 + 1, the pool is full.
    # 41: 0 needs a fifth: the tail, 2, is preempted. 1 needs a fourth and is the tail: preempted.
    #     12 -> 53. In front of the queue now 1 (4 tokens to come), then 2 (1 to come), then 3.
    # 53: 0 takes its sixth, 2 are free: 1 needs 4 and blocks 2 and 3, which would fit. 12 -> 65.
    # 65: all three: P = 4 + 2 + 1: 17 -> 82; then 1 alone: 94, 106, 118.
    assert got.tokens == [[12, 26, 41, 53, 65], [26, 41, 82, 94, 106, 118], [41, 82], [82]]
    assert got.preempted["replica0"][3] == [2, 1]


def test_edf_takes_the_earliest_absolute_deadline_and_those_without_one_last(
    fast_forward: bool,
) -> None:
    requests = [(0, 4, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 2, 1), (5, 2, 1)]
    got = run_here(
        requests,
        ONE_SEAT,
        order="edf",
        deadlines=[None, 100, 50, None, 48, None],
        fast_forward=fast_forward,
    )

    # Absolute: request 1 at 101, 2 and 4 at 52 (2 joined first), 3 and 5 none. 12 each from 14 on.
    assert got.tokens == [[14], [50], [26], [62], [38], [74]]


def test_edf_keeps_a_preempted_request_before_an_earlier_deadline(fast_forward: bool) -> None:
    requests = [(0, 3, 4), (0, 4, 4), (0, 6, 1), (40, 4, 1)]
    got = run_here(
        requests,
        replica("sarathi", 6, block_tokens=2, budget_tokens=8),
        order="edf",
        deadlines=[500, 400, None, 10],
        fast_forward=fast_forward,
    )

    # 0: request 1 (400), then 0 (500), 2 + 2 blocks, P = 7; request 2 needs 3, 2 are free: 17.
    # 17: 1 takes a block: 14 -> 31. 31: 0 takes the last: 14 -> 45.
    # 45: no spare block for 1: 0, the tail, is preempted; 1 takes one; nobody is admitted in such
    #     a step: 12 -> 57, request 1 ends and 6 blocks are free.
    # 57: 0 with its 6 known tokens and 3 blocks, though request 3's deadline (50) is the earliest;
    #     then 2 tokens of 3 use up the budget: P = 8: 18 -> 75.
    # 75: the other 2 of request 3, all 6 of 2: P = 8: 18 -> 93.
    assert got.tokens == [[17, 31, 45, 75], [17, 31, 45, 57], [93], [93]]


def test_priority_serves_the_lower_number_first_then_arrival(fast_forward: bool) -> None:
    requests = [(0, 4, 1), (1, 2, 1), (2, 2, 1), (3, 2, 1), (4, 2, 1)]
    got = run_here(
        requests,
        ONE_SEAT,
        order="priority",
        priorities=[0, 2, 0, 1, 0],
        fast_forward=fast_forward,
    )

    assert got.tokens == [[14], [62], [26], [50], [38]]


PRIORITIES = [5, 0, 1]


def test_priority_preempts_the_worst_even_if_it_is_the_one_served(fast_forward: bool) -> None:
    requests = [(0, 2, 5), (5, 2, 4), (30, 1, 1)]
    got = run_here(
        requests,
        replica("vllm-v1", 7, block_tokens=1),
        order="priority",
        priorities=PRIORITIES,
        fast_forward=fast_forward,
    )

    # 0: 12. 12: decode 0, prompt of 1: 14 -> 26. 26: two decodes: 14 -> 40; 4 + 3 blocks, full.
    # 40: 0 needs a fifth and has the worst priority itself: preempted, the walk ends with 1 behind
    #     it; nothing runs, and the pass is made again: decode 1; of those that wait request 2 (1)
    #     comes before 0 (5), which needs 5 blocks: 10 + 1 + 2 = 13 -> 53.
    # 53: 12 -> 65, request 1 ends. 65: 0 with 5 tokens: 15 -> 80; 12 -> 92.
    assert got.tokens == [[12, 26, 40, 80, 92], [26, 40, 53, 65], [53]]
    assert (40, 40, {}) in got.steps["replica0"]


def test_priority_takes_back_the_piece_of_a_victim_that_was_served(fast_forward: bool) -> None:
    requests = [(0, 2, 6), (5, 2, 4), (20, 6, 1)]
    got = run_here(
        requests,
        replica("vllm-v1", 10, block_tokens=1, max_num_batched_tokens=3),
        order="priority",
        priorities=PRIORITIES,
        fast_forward=fast_forward,
    )

    # 0: 12. 12: decode 0, 2 of request 1: 14 -> 26. 26: two decodes, 1 of request 2: 15 -> 41.
    # 41: 0 and 1 take the last two blocks, one token of budget is left for 2, which finds none:
    #     0 has the worst priority and gives up 5 blocks and its token of budget. The piece of 2
    #     stays one token: decode 1 and P = 1: 13 -> 54.
    # 54: decode 1, 2 of request 2: 14 -> 68, request 1 ends. 68: the last 2 of request 2, 1 of 0's
    #     5 known tokens: 13 -> 81. 81: 3 of 0: 13 -> 94; 1: 11 -> 105; then 12 each.
    assert got.tokens == [[12, 26, 41, 105, 117, 129], [26, 41, 54, 68], [81]]
    assert got.steps["replica0"][3] == (41, 54, {1: 1, 2: 1})
    assert got.free["replica0"][3] == 4


def test_under_vllm_v0_priority_chooses_among_those_not_yet_handled(fast_forward: bool) -> None:
    requests = [(0, 2, 4), (5, 2, 3), (5, 2, 3)]
    got = run_here(
        requests,
        replica("vllm-v0", 7, block_tokens=1),
        order="priority",
        priorities=[3, 0, 1],
        fast_forward=fast_forward,
    )

    # 0: 12. 12: prompts of 1 and 2 alone: 14 -> 26; one block is free.
    # 26: 0 takes it. None for 1: of 1 (priority 0) and 2 (1) the latter goes, not 0 (3), which has
    #     been handled: 14 -> 40.
    # 40: 0 takes a block, none for 1, the only one left: preempted: 12 -> 52.
    # 52: 1 stands before 2, needs 4 blocks of 3: 12 -> 64, request 0 ends.
    # 64: 4 + 3 tokens: 17 -> 81, request 1 ends. 81: 12 -> 93.
    assert got.tokens == [[12, 40, 52, 64], [26, 40, 81], [26, 81, 93]]
    assert got.preemptions == [0, 1, 1]


def test_under_vllm_v0_the_walk_goes_on_after_the_served_request_went(fast_forward: bool) -> None:
    requests = [(0, 2, 4), (5, 2, 3), (5, 2, 3)]
    got = run_here(
        requests,
        replica("vllm-v0", 6, block_tokens=1),
        order="priority",
        priorities=[3, 0, 1],
        fast_forward=fast_forward,
    )

    # 26: 6 blocks are full. Request 0 is served first and is the worst: preempted; its 2 blocks go
    #     to 1 and 2: 14 -> 40. 40: no block for 1: 2 is preempted: 12 -> 52, request 1 ends.
    # 52: request 2 (priority 1, 4 known tokens) before 0 (3 tokens), which 2 blocks are too few
    #     for: 14 -> 66. 66: 13 -> 79; then 12 each.
    assert got.tokens == [[12, 79, 91, 103], [26, 40, 52], [26, 40, 66]]
    assert got.preempted["replica0"][2] == [0]


class Script:
    """Stands in for a generator: hands out the numbers it was given."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers

    def standard_normal(self, size: int) -> Any:
        return np.resize(self.numbers, size)


@dataclass
class ScriptedNoisy(Noisy):
    """`Noisy` with written-out draws of the standard normal."""

    draws: list[float] = field(default_factory=list)

    def start(self, rng: np.random.Generator) -> None:
        super().start(Script(self.draws))  # type: ignore[arg-type]


def test_a_noisy_prediction_decides_although_it_is_wrong(fast_forward: bool) -> None:
    draws = [0.0, math.log(2), -math.log(3), math.log(1.5)]
    got = run_here(
        [(0, 4, 1), (1, 2, 2), (2, 2, 3), (3, 2, 2)],
        ONE_SEAT,
        order="sjf",
        predictor=ScriptedNoisy(sigma=1.0, draws=draws),
        fast_forward=fast_forward,
    )

    # Requests 1 to 3 are guessed as 2 x 2 = 4, 3 / 3 = 1 and 2 x 1.5 = 3: served as 2, 3, 1.
    assert got.tokens == [[14], [86, 98], [26, 38, 50], [62, 74]]


def test_a_rejected_request_does_not_shift_the_draws_of_others(fast_forward: bool) -> None:
    draws = [0.0, 5.0, math.log(2), -math.log(3)]
    got = run_here(
        [(0, 4, 1), (0, 2000, 1), (1, 2, 2), (2, 2, 3)],
        replica("orca", 100, max_batch_size=1),
        order="sjf",
        predictor=ScriptedNoisy(sigma=1.0, draws=draws),
        fast_forward=fast_forward,
    )

    # 2001 tokens do not fit 400; its draw (5.0) is its own. Request 2 is guessed 4, 3 is guessed 1.
    assert got.reasons[1] == "over_pool"
    assert got.tokens == [[14], [], [62, 74], [26, 38, 50]]


def test_noisy_draws_from_the_generator_of_its_name_and_never_guesses_0() -> None:
    noisy = Noisy(sigma=2.0)
    noisy.start(named_generator(7, "predictor"))
    guesses = [noisy.predict(Arrival(0, 1, 10, 10, index=i)) for i in range(100)]

    z = named_generator(7, "predictor").standard_normal(4096)[:100]
    assert guesses == [max(1, round(10 * math.exp(2.0 * x))) for x in z.tolist()]
    assert min(guesses) == 1
    assert noisy.predict(Arrival(0, 1, 10, 10, index=3)) == guesses[3]  # whenever it is asked


@pytest.mark.parametrize(("output", "edge"), [(1, 2), (2, 2), (3, 6), (6, 6), (7, 12), (13, 24)])
def test_a_bucket_is_named_by_its_upper_edge(output: int, edge: int) -> None:
    predictor = Bucket(edges_tokens=(2, 6))

    # Above the last edge it is doubled until it covers the output: 12, 24.
    assert predictor.predict(Arrival(0, 1, output, output)) == edge


def test_a_bucket_hides_which_of_two_is_shorter(fast_forward: bool) -> None:
    got = run_here(
        [(0, 4, 1), (1, 2, 4), (2, 2, 3), (3, 2, 1)],
        ONE_SEAT,
        order="sjf",
        predictor=Bucket(edges_tokens=(2, 8)),
        fast_forward=fast_forward,
    )

    # Guessed 8, 8 and 2: request 3, then 1 before 2 as they came: 26; 38 to 74; 86 to 110.
    assert got.tokens == [[14], [38, 50, 62, 74], [86, 98, 110], [26]]
