"""Linear interpolation inside a measured grid that may be ragged, and what happens outside of it.

Points are nested axis by axis: each value of the first axis has values of the second of its own,
and so on. A lookup interpolates between the two neighbours on the first axis, each of which does
so on the second; so that lists of different lengths, staircases (long contexts for small batches
only) and holes need no filling. Every measured point is reproduced exactly.

Where a value lies beyond the last (or before the first) measured one, the lookup takes that one,
scaled by the ratio that an analytic model gives for the two, or as it is; and says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Analytic = Callable[..., float]
"""Time of a point by a model, microseconds, from its coordinates in the order of the axes."""


@dataclass(frozen=True)
class Outside:
    """One use of a time beyond what was measured.

    Attributes:
        axis: Which size.
        value: What was asked for.
        edge: The nearest measured value.
    """

    axis: str
    value: float
    edge: float

    @property
    def ratio(self) -> float:
        """How far: the larger of the two over the smaller; from or to 0, their difference."""
        small, large = sorted((self.value, self.edge))
        return large / small if small > 0 else 1 + large


class _Node:
    """Values of one axis, sorted, and what lies below each: further nodes, or times."""

    __slots__ = ("below", "times", "values")

    def __init__(self, values: list[float], below: list[_Node], times: list[float]) -> None:
        self.values = values
        self.below = below
        self.times = times


class Grid:
    """Measured times over some axes.

    Args:
        axes: Names of the axes, outermost first.
        points: Coordinates, (n, axes).
        us: Times, (n,), microseconds.
        analytic: Scales times beyond the grid; None takes the nearest measured one as it is.
    """

    def __init__(
        self,
        axes: Sequence[str],
        points: Floats,
        us: Floats,
        analytic: Analytic | None = None,
    ) -> None:
        if not len(us) or points.shape != (len(us), len(axes)):
            raise ValueError(f"{len(us)} times at points of shape {points.shape}, axes {axes}")
        self.axes = tuple(axes)
        self._analytic = analytic
        self._least = float(us.min())
        order = np.lexsort(points.T[::-1])
        self._root = _nested(points[order], us[order], 0)

    def at(self, *point: float) -> tuple[float, list[Outside]]:
        """Time at a point, and each axis along which it lies outside of the grid, and how far."""
        outside: list[Outside] = []
        us = self._at(self._root, list(point), 0, outside)
        if len(outside) > 1:  # several neighbours end before the point
            farthest = {each.axis: each for each in sorted(outside, key=lambda o: o.ratio)}
            outside = list(farthest.values())
        return us, outside

    def left_out_errors(self) -> list[float]:
        """Relative errors of points along the last axis, each taken from its two neighbours.

        The spacing is then twice the real one, so that the grid itself does better than this.
        Points next to each other (32 and 33 tokens) are both sides of an edge of tiles: without
        one of them nothing would show it, and they are passed over; so are lists of mostly such.
        """
        errors = []
        for leaf in _leaves(self._root):
            x, us = np.array(leaf.values), np.array(leaf.times)
            if len(x) > 2:
                share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
                error = np.abs((us[:-2] + (us[2:] - us[:-2]) * share) / us[1:-1] - 1)
                apart = (np.diff(x)[:-1] > 1) & (np.diff(x)[1:] > 1)
                if 2 * apart.sum() >= len(apart):  # else what is left says nothing of the rest
                    errors.append(error[apart])
        return np.concatenate(errors).tolist() if errors else []

    def least(self) -> float:
        """The smallest measured time, microseconds."""
        return self._least

    def values(self, *first: float) -> list[float]:
        """Measured values of the axis that follows the given coordinates.

        Where a coordinate lies between two measured ones, those of both, merged.
        """
        nodes = [self._root]
        for x in first:
            nodes = [below for node in nodes for below in _around(node, x)]
        return sorted({value for node in nodes for value in node.values})

    def range(self, *first: float) -> tuple[float, float]:
        """Smallest and largest value inside the grid of the axis after the given coordinates."""
        nodes = [self._root]
        for x in first:
            nodes = [below for node in nodes for below in _around(node, x)]
        return max(node.values[0] for node in nodes), min(node.values[-1] for node in nodes)

    def _at(self, node: _Node, point: list[float], axis: int, outside: list[Outside]) -> float:
        values, x = node.values, point[axis]
        if x < values[0] or x > values[-1]:
            return self._beyond(node, point, axis, outside)
        last = axis + 1 == len(point)
        i = bisect_right(values, x) - 1
        if values[i] == x:
            return node.times[i] if last else self._at(node.below[i], point, axis + 1, outside)
        share = (x - values[i]) / (values[i + 1] - values[i])
        if last:
            low, high = node.times[i], node.times[i + 1]
        else:
            # What lies below is scaled from the neighbour's own value of this axis.
            point[axis] = values[i]
            low = self._at(node.below[i], point, axis + 1, outside)
            point[axis] = values[i + 1]
            high = self._at(node.below[i + 1], point, axis + 1, outside)
            point[axis] = x
        return low + (high - low) * share

    def _beyond(self, node: _Node, point: list[float], axis: int, outside: list[Outside]) -> float:
        x = point[axis]
        at = 0 if x < node.values[0] else len(node.values) - 1
        edge = node.values[at]
        outside.append(Outside(self.axes[axis], x, edge))
        point[axis] = edge
        if axis + 1 == len(point):
            us = node.times[at]
        else:
            us = self._at(node.below[at], point, axis + 1, outside)
        if self._analytic is not None:
            there = self._analytic(*point)
            point[axis] = x
            return us * (self._analytic(*point) / there)
        point[axis] = x
        return us


def _leaves(node: _Node) -> Iterator[_Node]:
    """The nodes that hold times."""
    if not node.below:
        yield node
    for below in node.below:
        yield from _leaves(below)


def _around(node: _Node, x: float) -> list[_Node]:
    """What lies below the neighbours of a value: one, or two where it lies between."""
    values = node.values
    i = min(max(bisect_right(values, x) - 1, 0), len(values) - 1)
    if x <= values[i] or i + 1 == len(values):
        return [node.below[i]]
    return [node.below[i], node.below[i + 1]]


def _nested(points: Floats, us: Floats, axis: int) -> _Node:
    """The tree of sorted points from one axis on."""
    column = points[:, axis]
    starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]]))
    values: list[float] = column[starts].tolist()
    if axis + 1 == points.shape[1]:
        if len(values) < len(us):
            raise ValueError("a point of the grid is given twice")
        return _Node(values, [], us.tolist())
    ends = [*starts[1:].tolist(), len(us)]
    below = [
        _nested(points[a:b], us[a:b], axis + 1) for a, b in zip(starts.tolist(), ends, strict=True)
    ]
    return _Node(values, below, [])
