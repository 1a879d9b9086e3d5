"""The loop keeps to its budget, writes at once, and goes on after a point that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.loop import (
    FAILURES_IN_A_ROW,
    FAILURES_OF_A_TABLE,
    NOT_TRIED,
    Outcome,
    Pace,
    failures,
    measure_all,
    write_left_out,
)
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.progress import Lines
from kernels_profile.profiler.store import Store, missing
from kernels_profile.table import DataSet, Meta, read_table, write_meta
from sim.errors import ProfileError

EFFORT = Effort()


class Clock:
    """Time that passes only when something is measured."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Fake:
    """Takes a stated time for each point, or fails."""

    def __init__(self, clock: Clock, takes: Callable[[Point], float]) -> None:
        self.clock = clock
        self.takes = takes
        self.asked: list[Point] = []

    def measure(self, point: Point) -> dict[str, Any]:
        self.asked.append(point)
        self.clock.now += self.takes(point)
        return {"time_us": point.estimate_us, "repeats": 5}


def points(n: int, estimate_us: float = 10.0) -> list[Point]:
    return [
        Point("linear", {"dtype": "bf16", "n": 8, "k": 8, "tokens": i + 1}, 1, estimate_us)
        for i in range(n)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    write_meta(tmp_path, Meta("h200", "ours", "own"))
    return Store(tmp_path, "h200")


def run(
    todo: list[Point], fake: Fake, store: Store, budget_s: float | None = None, begun: float = 0.0
) -> tuple[Outcome, list[str]]:
    outcome, said = Outcome(), list[str]()
    progress = Lines(said.append, every_s=0, clock=fake.clock)
    measure_all(todo, fake, store, EFFORT, outcome, budget_s, begun, progress, fake.clock)
    return outcome, said


def test_without_a_budget_all_are_measured_in_order(store: Store) -> None:
    todo, clock = points(5), Clock()
    outcome, said = run(todo, fake := Fake(clock, lambda p: 1.0), store)
    assert fake.asked == todo
    assert outcome.measured == 5
    assert said[-1].startswith("5/5 points, linear, about 0 s left")


def test_it_stops_before_the_budget_is_spent(store: Store) -> None:
    todo, clock = points(100), Clock()
    outcome, _ = run(
        todo, Fake(clock, EFFORT.point_s), store, budget_s=10 * EFFORT.point_s(todo[0])
    )
    assert outcome.measured in (9, 10)  # the tenth ends as the budget does: rounding decides
    assert outcome.measured + outcome.postponed == 100
    assert clock.now <= 10 * EFFORT.point_s(todo[0]) * 1.000001


def test_what_was_slower_than_expected_is_expected_to_stay_so(store: Store) -> None:
    todo, clock = points(100), Clock()
    budget_s = 50 * EFFORT.point_s(todo[0])
    outcome, _ = run(todo, Fake(clock, lambda p: 5 * EFFORT.point_s(p)), store, budget_s)
    assert 9 <= outcome.measured <= 10
    assert clock.now <= budget_s


def test_time_before_the_first_point_counts(store: Store) -> None:
    clock = Clock()
    clock.now = 100.0
    outcome, _ = run(points(3), Fake(clock, lambda p: 0.0), store, budget_s=100.0, begun=0.0)
    assert outcome.measured == 0
    assert outcome.postponed == 3


def test_a_point_too_long_for_what_is_left_makes_way_for_shorter_ones(store: Store) -> None:
    long, short = points(2, estimate_us=1e6)[:1], points(3)[1:]
    clock = Clock()
    outcome, _ = run([*long, *short], fake := Fake(clock, EFFORT.point_s), store, budget_s=1.0)
    assert fake.asked == short
    assert outcome.postponed == 1


def test_the_next_run_takes_what_was_postponed(store: Store) -> None:
    todo, clock = points(10), Clock()
    run(todo, Fake(clock, EFFORT.point_s), store, budget_s=4 * EFFORT.point_s(todo[0]))
    again = Store(store.folder, "h200")
    left = missing(todo, again)
    assert 0 < len(left) < 10
    run(left, Fake(clock, EFFORT.point_s), again)
    assert missing(todo, Store(store.folder, "h200")) == []
    assert len(read_table(store.folder / "linear.csv", "linear")) == 10


def test_a_kill_between_two_points_leaves_valid_tables(store: Store) -> None:
    def third_is_interrupted(point: Point) -> float:
        if point["tokens"] == 3:
            raise KeyboardInterrupt
        return 1.0

    with pytest.raises(KeyboardInterrupt):
        run(points(5), Fake(Clock(), third_is_interrupted), store)
    table = DataSet(store.folder).table("linear")
    assert table is not None
    assert table["tokens"].tolist() == [1, 2]


def test_a_point_that_fails_is_said_and_the_others_go_on(store: Store) -> None:
    def second_fails(point: Point) -> float:
        if point["tokens"] == 2:
            raise RuntimeError("out of resource: shared memory\nmore")
        return 1.0

    outcome, _ = run(points(4), Fake(Clock(), second_fails), store)
    assert outcome.measured == 3
    assert [(p["tokens"], why) for p, why in outcome.failed] == [
        (2, "RuntimeError: out of resource: shared memory")
    ]
    assert "failed, 1 times, as linear: dtype bf16, n 8, k 8, tokens 2" in failures(outcome)[0]
    write_left_out(store.folder, outcome)
    assert "out of resource" in (store.folder / "left_out.csv").read_text()


def other(n: int) -> list[Point]:
    key = {"op": "add", "width": 8}
    return [Point("elementwise", {**key, "tokens": i + 1}, 1, 10.0) for i in range(n)]


def fails(point: Point) -> float:
    raise RuntimeError("an illegal memory access was encountered")


def test_a_device_that_fails_all_the_time_ends_the_run(store: Store) -> None:
    fake = Fake(Clock(), fails)
    todo = [point for pair in zip(points(50), other(50), strict=True) for point in pair]
    with pytest.raises(ProfileError, match=f"{FAILURES_IN_A_ROW} points in a row failed"):
        run(todo, fake, store)
    assert len(fake.asked) == FAILURES_IN_A_ROW


def test_a_table_that_fails_all_the_time_is_given_up_and_the_others_go_on(store: Store) -> None:
    fake = Fake(Clock(), lambda p: fails(p) if p.table == "elementwise" else 1.0)
    todo = [point for pair in zip(points(20), other(20), strict=True) for point in pair]
    outcome, _ = run([*todo, *other(40)[20:]], fake, store)
    assert outcome.measured == 20
    assert sum(point.table == "elementwise" for point in fake.asked) == FAILURES_OF_A_TABLE
    assert [why for _, why in outcome.failed].count(NOT_TRIED) == 40 - FAILURES_OF_A_TABLE


def test_failures_that_are_not_in_a_row_give_nothing_up(store: Store) -> None:
    fake = Fake(Clock(), lambda p: fails(p) if p["tokens"] % 2 else 1.0)
    outcome, _ = run(points(40), fake, store)
    assert len(fake.asked) == 40
    assert outcome.measured == len(outcome.failed) == 20


def test_one_slow_start_does_not_postpone_all_that_follows(store: Store) -> None:
    clock = Clock()
    todo = points(50)
    fake = Fake(clock, lambda p: 5.0 if p["tokens"] == 1 else EFFORT.point_s(p))
    outcome, _ = run(todo, fake, store, budget_s=5.0 + 100 * EFFORT.point_s(todo[0]))
    assert outcome.measured == 50


def test_the_time_left_is_corrected_by_the_pace_so_far() -> None:
    pace = Pace()
    assert pace.corrected(10.0) == 10.0
    for _ in range(5):
        pace.add(1.0, 3.0)
    assert pace.corrected(10.0) == pytest.approx(30.0)
    for _ in range(500):
        pace.add(1.0, 1.0)
    assert pace.corrected(10.0) == pytest.approx(10.0, rel=0.01)


def test_a_list_of_left_out_points_goes_when_none_is(store: Store) -> None:
    write_left_out(store.folder, Outcome(left_out=((points(1)[0], "too large"),)))
    assert "too large" in (store.folder / "left_out.csv").read_text()
    write_left_out(store.folder, Outcome())
    assert not (store.folder / "left_out.csv").exists()
