"""Gaps between tokens, counted from the step logs without listing the tokens.

A request in a decode group gets a token at every tick from the one after it joined until it left,
so its gaps are differences of the group's log. How many requests share each difference is a running
sum over where their stretches begin and end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sim.request import Ints

if TYPE_CHECKING:
    from sim.records import SimulationResult


_PIECE = 1 << 22
"""Ticks looked at together: bounds the memory of counting, whatever the length of a run."""


def span_ends(spans: Ints, logs: list[Ints]) -> tuple[Ints, Ints]:
    """Time of the first and of the last token of each stretch, ns."""
    first, last = spans[:, 2].copy(), spans[:, 2].copy()
    for log, ends in enumerate(logs):
        rows = np.flatnonzero(spans[:, 1] == log)
        start = spans[rows, 2]
        first[rows] = ends[start]
        last[rows] = ends[start + spans[rows, 3] - 1]
    return first, last


def joints(spans: Ints, first: Ints, last: Ints) -> tuple[npt.NDArray[np.intp], Ints]:
    """Rows that continue a request's earlier stretch, and the gap between the two."""
    rows = np.flatnonzero(spans[1:, 0] == spans[:-1, 0]) + 1
    return rows, first[rows] - last[rows - 1]


def largest_gaps(spans: Ints, logs: list[Ints], num_requests: int, position: Ints) -> Ints:
    """Largest gap of each request, ns, shape (num_requests,); -1 under two tokens.

    Args:
        spans: Stretches sorted by request, then time, shape (k, 4).
        logs: Ends of the ticks of each decode group.
        num_requests: Rows of the result.
        position: Row of each request index.
    """
    largest = np.full(num_requests, -1, np.int64)
    if not len(spans):
        return largest
    first, last = span_ends(spans, logs)
    rows, gaps = joints(spans, first, last)
    np.maximum.at(largest, position[spans[rows, 0]], gaps)
    instants = np.flatnonzero((spans[:, 1] < 0) & (spans[:, 3] > 1))
    np.maximum.at(largest, position[spans[instants, 0]], 0)
    for log, ends in enumerate(logs):
        rows = np.flatnonzero((spans[:, 1] == log) & (spans[:, 3] > 1))
        if not len(rows):
            continue
        gap = np.zeros(len(ends), np.int64)  # gap[t]: from the end of tick t to that of tick t + 1
        np.subtract(ends[1:], ends[:-1], out=gap[:-1])
        start = spans[rows, 2]
        bounds = np.column_stack((start, start + spans[rows, 3] - 1)).ravel()
        most = np.maximum.reduceat(gap, bounds)[::2]
        np.maximum.at(largest, position[spans[rows, 0]], most)
    return largest


def gap_counts(
    result: SimulationResult, groups: npt.NDArray[np.integer]
) -> dict[int, tuple[Ints, Ints]]:
    """See `SimulationResult.itl`."""
    spans, logs = result.spans, result.logs
    index = result.requests["index"]
    lookup = np.full(int(index.max()) + 1 if len(index) else 1, -1, np.int64)
    lookup[index] = groups
    counts: dict[int, tuple[Ints, Ints]] = {}
    if not len(spans):
        return counts
    first, last = span_ends(spans, logs)
    later, joint_gaps = joints(spans, first, last)
    span_group = lookup[spans[:, 0]]
    # Its numbers are small; np.unique would import numpy.ma, 30 ms of a command.
    for group in np.flatnonzero(np.bincount(span_group[span_group >= 0])).tolist():
        mine = span_group == group
        lengths = joint_gaps[mine[later]]
        instant = spans[mine & (spans[:, 1] < 0), 3]
        parts = [
            (lengths, np.ones(len(lengths), np.int64)),
            (np.zeros(1, np.int64), np.array([int((instant - 1).sum())], np.int64)),
        ]
        for log, ends in enumerate(logs):
            parts += _counts_in_log(spans[mine & (spans[:, 1] == log)], ends)
        counts[group] = _distinct(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return counts


def _counts_in_log(rows: Ints, ends: Ints) -> list[tuple[Ints, Ints]]:
    """Distinct gaps of one log and how many of the stretches have each, piece by piece."""
    cover = np.zeros(len(ends) + 1, np.int32)  # change of the number of stretches at each tick
    np.add.at(cover, rows[:, 2], 1)
    np.add.at(cover, rows[:, 2] + rows[:, 3] - 1, -1)
    parts = []
    sharing = 0
    for first in range(0, len(ends) - 1, _PIECE):
        last = min(first + _PIECE, len(ends) - 1)
        weights = sharing + np.cumsum(cover[first:last], dtype=np.int64)
        sharing = int(weights[-1])
        parts.append(_distinct(np.diff(ends[first : last + 1]), weights))
    return parts


def _distinct(lengths: Ints, weights: Ints) -> tuple[Ints, Ints]:
    """Distinct lengths with a positive total weight, ascending, and those totals."""
    used = weights > 0
    lengths, weights = lengths[used], weights[used]
    order = np.argsort(lengths, kind="stable")
    lengths, weights = lengths[order], weights[order]
    if not len(lengths):
        return lengths, weights
    starts = np.flatnonzero(np.append(True, lengths[1:] != lengths[:-1]))
    return lengths[starts], np.add.reduceat(weights, starts)
