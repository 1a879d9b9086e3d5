"""Interpolation: exact at measured points, linear between them, and marked beyond."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_profile.grid import Grid, Outside

Point = tuple[float, ...]


def grid(points: dict[Point, float], **more: object) -> Grid:
    axes = "abcd"[: len(next(iter(points)))]
    return Grid(list(axes), np.array(list(points)), np.array(list(points.values())), **more)


SIZES = st.sampled_from([0, 1, 2, 3, 5, 8, 16, 100, 1000, 4096])
RAGGED = st.dictionaries(
    st.tuples(SIZES, SIZES, SIZES), st.floats(0.5, 1e5, allow_subnormal=False), min_size=1
)
"""Points anywhere: lists of different lengths, staircases and holes."""


@given(RAGGED)
def test_every_measured_point_is_reproduced(points: dict[Point, float]) -> None:
    made = grid(points, analytic=lambda a, b, c: 1 + a + b + c)
    for point, us in points.items():
        assert made.at(*point) == (us, [])


@given(RAGGED, st.tuples(*[st.floats(0, 5000)] * 3))
def test_what_lies_between_stays_between(points: dict[Point, float], point: Point) -> None:
    us, _ = grid(points).at(*point)
    assert min(points.values()) * (1 - 1e-9) <= us <= max(points.values()) * (1 + 1e-9)


@given(st.tuples(*[st.floats(1, 90)] * 3))
def test_a_product_of_straight_lines_is_met_exactly(point: Point) -> None:
    axis = (1, 7, 20, 90)
    made = grid(
        {p: (1 + p[0]) * (2 + p[1]) * (3 + p[2]) for p in itertools.product(axis, repeat=3)}
    )
    a, b, c = point
    us, outside = made.at(*point)
    assert us == pytest.approx((1 + a) * (2 + b) * (3 + c))
    assert not outside


@given(
    st.lists(st.floats(0.1, 100), min_size=16, max_size=16),
    st.tuples(st.floats(1, 128), st.floats(0, 200)),
    st.floats(0, 50),
    st.booleans(),
)
def test_a_monotone_grid_gives_monotone_times(
    steps: list[float], point: Point, more: float, second: bool
) -> None:
    """Inside of it, and along one axis beyond it; two at once are as monotone as the model."""
    axis = (1, 8, 64, 128)
    times = np.cumsum(np.cumsum(np.array(steps).reshape(4, 4), axis=0), axis=1)
    made = grid(
        {(a, b): times[i, j] for i, a in enumerate(axis) for j, b in enumerate(axis)},
        analytic=lambda a, b: 1 + a * b,
    )
    a, b = point
    if not second:
        b = min(max(b, 1), 128)
    longer = (a, b + more) if second else (a + more, b)
    assert made.at(*longer)[0] >= made.at(a, b)[0] * (1 - 1e-12)


def test_beyond_the_last_value_the_analytic_ratio_scales() -> None:
    points = {(1, 10): 5.0, (1, 20): 9.0, (4, 10): 8.0, (4, 20): 16.0}
    made = grid(points, analytic=lambda a, b: a * b)
    assert made.at(4, 40) == (32.0, [Outside("b", 40, 20)])
    assert made.at(8, 20) == (32.0, [Outside("a", 8, 4)])
    us, outside = made.at(8, 40)
    assert us == 64.0
    assert {each.axis for each in outside} == {"a", "b"}


def test_without_a_model_the_nearest_time_is_taken_as_it_is() -> None:
    made = grid({(1,): 5.0, (2,): 7.0})
    assert made.at(9) == (7.0, [Outside("a", 9, 2)])
    assert made.at(0) == (5.0, [Outside("a", 0, 1)])


def test_a_staircase_is_outside_where_one_neighbour_ends_first() -> None:
    """Long contexts were measured for small batches only."""
    points = {(1, 1): 1.0, (1, 8): 8.0, (1, 64): 64.0, (2, 1): 2.0, (2, 8): 16.0}
    made = grid(points, analytic=lambda a, b: a * b)
    assert made.at(1.5, 8) == (12.0, [])
    us, outside = made.at(1.5, 64)
    assert us == pytest.approx(96.0)
    assert outside == [Outside("b", 64, 8)]
    assert made.range(1.5) == (1, 8)
    assert made.values(1.5) == [1, 8, 64]


def test_the_farthest_of_several_neighbours_is_told() -> None:
    points = {(1, 1): 1.0, (1, 8): 8.0, (2, 1): 2.0, (2, 4): 8.0}
    _, outside = grid(points).at(1.5, 16)
    assert outside == [Outside("b", 16, 4)]


def test_distance_is_a_ratio_and_from_zero_a_difference() -> None:
    assert Outside("a", 30, 10).ratio == 3
    assert Outside("a", 10, 30).ratio == 3
    assert Outside("a", 4, 0).ratio == 5


def test_points_left_out_are_compared_with_their_neighbours() -> None:
    made = grid({(2,): 1.0, (4,): 2.0, (6,): 6.0})
    assert made.left_out_errors() == [pytest.approx(0.75)]
    edge = grid({(16,): 1.0, (32,): 1.0, (33,): 2.0, (48,): 2.0})
    assert edge.left_out_errors() == []


def test_a_point_given_twice_is_a_bug_of_ours() -> None:
    with pytest.raises(ValueError, match="given twice"):
        Grid(["a"], np.array([[1.0], [1.0]]), np.array([1.0, 2.0]))
