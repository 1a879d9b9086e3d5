"""Where a search looks, on goals that are known: nothing is simulated."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from experiments.capacity.search import Judged, Scale, Search

RATES = Scale(precision=0.02, low=1e-6, high=1e6)


class Counting:
    """Answers a search by a rule, and keeps what was asked."""

    def __init__(self, rule: Callable[[float, int], Judged]) -> None:
        self.rule = rule
        self.asked: list[tuple[float, int]] = []

    def drive(self, search: Search) -> Search:
        while wanted := search.wanted():
            self.asked += wanted
            for value in dict.fromkeys(value for value, _ in wanted):
                runs = sum(asked == value for asked, _ in self.asked)
                search.tell(value, self.rule(value, runs), runs)
        return search


def certain(limit: float, *, hard_is_high: bool = True) -> Counting:
    return Counting(
        lambda value, runs: Judged(value <= limit if hard_is_high else value >= limit, clear=True)
    )


@pytest.mark.parametrize("limit", [0.003, 0.9, 1.0, 70.3, 4e4])
@pytest.mark.parametrize("start", [1.0, 50.0])
def test_a_rate_is_found_to_its_precision_and_no_run_is_asked_for_twice(
    limit: float, start: float
) -> None:
    counting = certain(limit)

    search = counting.drive(Search(RATES, start))

    easy, hard = search.bracket()
    assert easy is not None
    assert hard is not None
    assert easy <= limit < hard <= easy * 1.02
    assert search.settled
    assert len(counting.asked) == len(set(counting.asked)) == search.used
    assert [search.runs[value] for value in (easy, hard)] == [3, 3]
    doublings = abs(math.log2(limit / start)) + 2
    assert len(counting.asked) <= doublings + math.log2(math.log(2) / math.log(1.02)) + 5


@pytest.mark.parametrize("limit", [1, 2, 3, 17, 64, 1000])
@pytest.mark.parametrize("start", [1, 20])
def test_the_fewest_replicas(limit: int, start: int) -> None:
    counting = certain(limit, hard_is_high=False)

    search = counting.drive(Search(Scale(0, 1, 10**6, hard_is_high=False), start))

    assert search.bracket() == (limit, limit - 1 if limit > 1 else None)
    assert search.settled
    assert all(value == int(value) for value, _ in counting.asked)


def test_a_goal_that_no_rate_meets_ends_the_search() -> None:
    search = certain(0.0).drive(Search(RATES, 1.0))

    assert search.bracket()[0] is None
    assert search.used < 30


def test_a_goal_that_every_rate_meets_ends_the_search() -> None:
    search = certain(math.inf).drive(Search(RATES, 1.0))

    assert search.bracket()[1] is None
    assert search.used < 30


def test_runs_are_limited_and_the_search_says_so() -> None:
    search = certain(70.0).drive(Search(RATES, 1.0, most_runs=9))

    assert search.used == 9
    assert not search.settled


def test_a_wrong_first_run_is_put_right_by_repeats() -> None:
    """At 64 the first run misses by chance, and so cuts off all that lies above."""
    limit = 70.0

    def rule(value: float, runs: int) -> Judged:
        if value == 64.0 and runs == 1:
            return Judged(meets=False, clear=False)
        return Judged(meets=value <= limit, clear=True)

    search = Counting(rule).drive(Search(RATES, 1.0))

    easy, hard = search.bracket()
    assert easy is not None
    assert hard is not None
    assert easy <= limit < hard <= easy * 1.02


def test_noise_near_the_edge_is_met_by_repeats_and_far_from_it_by_single_runs() -> None:
    rng = np.random.default_rng(0)
    means: dict[float, list[float]] = {}

    def rule(value: float, runs: int) -> Judged:
        seen = means.setdefault(value, [])
        seen += [value * rng.normal(1, 0.03) for _ in range(runs - len(seen))]
        error = 0.03 * value / math.sqrt(runs)
        return Judged(np.mean(seen) <= 70, clear=abs(np.mean(seen) - 70) > 3 * error)

    counting = Counting(rule)
    search = counting.drive(Search(RATES, 10.0, repeats=20))

    easy, hard = search.bracket()
    assert easy is not None
    assert hard is not None
    assert 67 <= easy < hard <= 73
    assert search.runs[easy] >= 3
    assert search.runs[hard] >= 3
    assert all(runs == 1 for value, runs in search.runs.items() if not 50 < value < 100)
    assert len(counting.asked) == len(set(counting.asked))


def test_noise_that_first_runs_hide_does_not_make_the_bracket_creep() -> None:
    """One run meets nothing above 40, all five meet up to 100: every end is turned over."""

    def rule(value: float, runs: int) -> Judged:
        return Judged(value <= (40 if runs < 5 else 100), clear=False)

    counting = Counting(rule)
    search = counting.drive(Search(RATES, 1.0))

    easy, hard = search.bracket()
    assert easy is not None
    assert hard is not None
    assert easy <= 100 < hard <= easy * 1.02
    assert len(search.runs) < 35
    assert search.used < 150


def test_a_goal_that_no_easier_value_comes_nearer_to_is_given_up_soon() -> None:
    def rule(value: float, runs: int) -> Judged:
        return Judged(False, True, (max(0.2, value / 100),))

    search = Counting(rule).drive(Search(RATES, 50.0))

    assert search.flat
    assert len(search.runs) == 6  # 50, 25, and four at the floor of 0.2


def test_requests_never_served_are_no_reason_to_give_up() -> None:
    def rule(value: float, runs: int) -> Judged:
        return Judged(value <= 0.01, True, (math.inf if value > 0.01 else 1.0,))

    assert Counting(rule).drive(Search(RATES, 50.0)).bracket()[0] is not None


def test_a_refused_value_ends_the_bracket_at_the_last_one_allowed() -> None:
    counting = certain(math.inf)

    search = counting.drive(Search(Scale(0, 1, 10**6), 1, allowed=lambda value: value <= 10_000))

    assert search.bracket() == (10_000, None)
    assert search.settled
    assert max(value for value, _ in counting.asked) == 10_000


def test_values_between_that_are_refused_are_passed_over() -> None:
    """Only powers of two can be run, as of GPUs that share heads: 4 meets, and 8 does not."""
    counting = certain(5)

    def allowed(value: float) -> bool:
        return math.log2(value).is_integer()

    search = counting.drive(Search(Scale(0, 1, 10**6), 1, allowed=allowed))

    assert search.bracket() == (4, 8)
    assert search.settled
    assert all(allowed(value) for value, _ in counting.asked)
