"""Routers by hand (rules 25, 26, 56, 88). A step: 10 + P + 2 D microseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from policies import PowerOfTwo, RandomChoice
from sim.pool import named_generator
from tests.sim.timeline import replica, run_here

SMALL = replica("orca", 2)  # 8 tokens
MIDDLE = replica("orca", 3)  # 12 tokens
LARGE = replica("orca", 10)  # 40 tokens


class Script:
    """Stands in for a generator: hands out what it was given, and says how many to choose from."""

    def __init__(self, draws: list[Any]) -> None:
        self.draws = list(draws)

    def integers(self, n: int) -> int:
        expected, drawn = self.draws.pop(0)
        assert n == expected
        return drawn

    def choice(self, n: int, size: int, replace: bool) -> Any:
        assert (size, replace) == (2, False)
        expected, pair = self.draws.pop(0)
        assert n == expected
        return np.array(pair)


@dataclass
class ScriptedRandom(RandomChoice):
    """`RandomChoice` with written-out draws: (replicas to choose from, position drawn)."""

    draws: list[tuple[int, int]] = field(default_factory=list)

    def start(self, rng: np.random.Generator) -> None:
        super().start(Script(self.draws))  # type: ignore[arg-type]


@dataclass
class ScriptedPairs(PowerOfTwo):
    """`PowerOfTwo` with written-out draws: (replicas to choose from, positions drawn)."""

    draws: list[tuple[int, tuple[int, int]]] = field(default_factory=list)

    def start(self, rng: np.random.Generator) -> None:
        super().start(Script(self.draws))  # type: ignore[arg-type]


def test_random_draws_once_per_request(fast_forward: bool) -> None:
    got = run_here(
        [(0, 4, 1), (0, 4, 2), (0, 4, 1), (15, 2, 1)],
        *[LARGE] * 3,
        router=ScriptedRandom(draws=[(3, 2), (3, 0), (3, 2), (3, 0)]),
        fast_forward=fast_forward,
    )

    # Requests 0 and 2 share replica 2, P = 8: 18. Request 1 on replica 0: 14, 12 -> 26; request 3
    # joins it there at 26: 12 -> 38.
    assert got.placed == ["replica2", "replica0", "replica2", "replica0"]
    assert got.tokens == [[18], [14, 26], [18], [38]]


def test_random_draws_among_those_that_can_run_it_and_not_at_all_for_one(
    fast_forward: bool,
) -> None:
    # 9 tokens fit the middle and the large one (2 to choose from), 20 only the large one (no
    # draw), 50 none (rejected, no draw), 5 all.
    got = run_here(
        [(0, 8, 1), (0, 19, 1), (0, 49, 1), (0, 4, 1)],
        SMALL,
        MIDDLE,
        LARGE,
        router=ScriptedRandom(draws=[(2, 0), (3, 1)]),
        fast_forward=fast_forward,
    )

    # Replica 1 has 3 blocks, request 0 reserves all of them: 18; then request 3: 14 -> 32.
    assert got.placed == ["replica1", "replica2", None, "replica1"]
    assert got.tokens == [[18], [29], [], [32]]
    assert got.reasons[2] == "over_pool"


def test_power_of_two_takes_the_one_with_fewer_outstanding(fast_forward: bool) -> None:
    got = run_here(
        [(0, 4, 1), (0, 4, 3), (0, 4, 1), (20, 2, 1), (38, 2, 1)],
        *[LARGE] * 3,
        router=ScriptedPairs(
            draws=[(3, (2, 0)), (3, (0, 1)), (3, (2, 0)), (3, (1, 0)), (3, (1, 2))]
        ),
        fast_forward=fast_forward,
    )

    # 0: of 2 and 0, nothing at either: the lower index, 0. Then of 0 (one) and 1 (none): 1. Then of
    #    2 (none) and 0 (one): 2. 14 for all three.
    # 20: of 1 (request 1 until 38) and 0 (empty since 14): 0: 12 -> 32.
    # 38: request 1 ends at this very instant, before arrivals: of 1 and 2, both empty: 1: 50.
    assert got.placed == ["replica0", "replica1", "replica2", "replica0", "replica1"]
    assert got.tokens == [[14], [14, 26, 38], [14], [32], [50]]


def test_power_of_two_draws_among_those_that_can_run_it(fast_forward: bool) -> None:
    got = run_here(
        [(0, 8, 1), (0, 19, 1), (0, 8, 2), (0, 4, 1)],
        SMALL,
        MIDDLE,
        LARGE,
        router=ScriptedPairs(draws=[(2, (1, 0)), (2, (0, 1)), (3, (2, 1))]),
        fast_forward=fast_forward,
    )

    # Request 0: positions 1 and 0 of (middle, large), both empty: the lower index, the middle one.
    # Request 1 fits the large one only: no draw. Request 2: one each: the middle one again, with
    #   8 + 2 = 10 tokens. Request 3: large (1) or middle (2): large.
    # Middle: request 0: 18; then 2: 36, 12 -> 48. Large: P = 23: 33.
    assert got.placed == ["replica1", "replica2", "replica1", "replica2"]
    assert got.tokens == [[18], [33], [36, 48], [33]]


def test_least_tokens_counts_prompts_and_breaks_ties_by_index(fast_forward: bool) -> None:
    got = run_here(
        [(0, 10, 3), (0, 4, 1), (0, 5, 1), (0, 1, 1), (0, 2, 1)],
        LARGE,
        LARGE,
        router="least_tokens",
        fast_forward=fast_forward,
    )

    # Sums at replicas 0 and 1 before each: 0, 0; 10, 0; 10, 4; 10, 9; 10, 10.
    assert got.placed == ["replica0", "replica1", "replica1", "replica1", "replica0"]
    # Replica 0: P = 12: 22; then 34, 46. Replica 1: P = 10: 20.
    assert got.tokens == [[22, 34, 46], [20], [20], [20], [22]]


def test_least_tokens_counts_what_was_emitted_also_within_a_run(fast_forward: bool) -> None:
    slow = replica("orca", 10, step={"decode": 30})
    got = run_here(
        [(0, 4, 10), (0, 6, 3), (51, 1, 1), (56, 2, 1)],
        LARGE,
        slow,
        router="least_tokens",
        fast_forward=fast_forward,
    )

    # Replica 0: 14, then 12 a token: 26, 38, 50: at 51 request 0 counts 4 + 4 = 8. Replica 1: 16,
    # then 40: 56, 96: at 51 request 1 counts 6 + 1 = 7: request 2 goes there.
    # 56: request 1's second token is out: 6 + 2 + request 2's 1 = 9 at replica 1, still 8 at
    # replica 0 (the next token at 62): request 3 goes to replica 0.
    assert got.placed == ["replica0", "replica1", "replica1", "replica0"]
    # Replica 1 at 56: decode and a prompt of 1: 10 + 1 + 30 = 41 -> 97.
    # Replica 0 at 62: decode and a prompt of 2: 14 -> 76; then 88, 100, 112, 124.
    assert got.tokens == [
        [14, 26, 38, 50, 62, 76, 88, 100, 112, 124],
        [16, 56, 97],
        [97],
        [76],
    ]


def test_the_router_has_a_generator_of_its_own(fast_forward: bool) -> None:
    got = run_here([(0, 1, 1)] * 20, *[LARGE] * 3, router="random", fast_forward=fast_forward)

    rng = named_generator(0, "router")
    assert got.placed == [f"replica{rng.integers(3)}" for _ in range(20)]
