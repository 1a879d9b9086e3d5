"""The loop of the profiler: point by point, in the order of their value, in time."""

from __future__ import annotations

import csv
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.progress import Progress, span
from kernels_profile.profiler.store import Store
from sim.errors import ProfileError

FAILURES_IN_A_ROW = 8
"""After so many, of more than one table, the device is taken to be unusable: one bad access spoils
all that follows."""

FAILURES_OF_A_TABLE = 5
"""After so many in a row of one table, the rest of its points are not tried."""


class DeviceLostError(ProfileError):
    """Points of several tables failed in a row: the device is taken to be unusable.

    Args:
        message: What was said.
        table: Of the first of them, which may have broken it.
    """

    def __init__(self, message: str, table: str) -> None:
        super().__init__(message)
        self.table = table


@dataclass
class Outcome:
    """What a run did.

    Attributes:
        measured: Points measured now.
        known: Points that an earlier run had.
        postponed: Points for which the budget was too small.
        failed: (point, what it said).
        left_out: (point, why), by the plan.
        seconds: Wall time.
    """

    measured: int = 0
    known: int = 0
    postponed: int = 0
    failed: list[tuple[Point, str]] = field(default_factory=list)
    left_out: tuple[tuple[Point, str], ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.measured} points measured in {span(self.seconds)}"]
        parts += [f"{self.known} were there before"] if self.known else []
        parts += [f"{self.postponed} left for another run (budget)"] if self.postponed else []
        parts += [f"{len(self.left_out)} cannot fit"] if self.left_out else []
        parts += [f"{len(self.failed)} failed"] if self.failed else []
        return ", ".join(parts)


class Measures(Protocol):
    """What the loop needs to measure a point."""

    def measure(self, point: Point) -> dict[str, Any]:
        """Measured columns of its row."""
        ...


def measure_all(
    points: Sequence[Point],
    measurer: Measures,
    store: Store,
    effort: Effort,
    outcome: Outcome,
    budget_s: float | None,
    begun: float,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Measure points in their order, each written at once, those skipped that would end too late.

    What points are expected to take is corrected by what those before them took.

    Args:
        points: In order of value.
        measurer: Measures one.
        store: Takes the rows.
        effort: For the expected times.
        outcome: Filled in.
        budget_s: Seconds from `begun`, or None.
        begun: On the clock.
        progress: Told of each point.
        clock: Seconds.

    Raises:
        DeviceLostError: too many points in a row failed.
    """
    pace, failing = Pace(), Failing()
    left_s = [effort.point_s(point) for point in points]
    total = sum(left_s)
    progress.begin(len(points), total)
    try:
        for number, (point, expected) in enumerate(zip(points, left_s, strict=True), start=1):
            now = clock()
            total -= expected
            if budget_s is not None and now + pace.corrected(expected) > begun + budget_s:
                outcome.postponed += 1
                continue
            if failing.given_up(point):
                outcome.failed.append((point, NOT_TRIED))
                continue
            try:
                store.add(point, measurer.measure(point))
            except Exception as error:  # what one kernel says must not end the others
                outcome.failed.append((point, said(error)))
                failing.add(point, error)
                continue
            failing.end(point)
            outcome.measured += 1
            pace.add(expected, clock() - now)
            progress.point(number, point.table, pace.corrected(total))
    finally:
        progress.end()


NOT_TRIED = f"not tried after {FAILURES_OF_A_TABLE} failures in a row of its table"


class Failing:
    """Counts failures in a row, of each table and of all."""

    def __init__(self) -> None:
        self._of_table: Counter[str] = Counter()
        self._streak: list[str] = []

    def given_up(self, point: Point) -> bool:
        """Whether points of this table are no longer tried."""
        return self._of_table[point.table] >= FAILURES_OF_A_TABLE

    def add(self, point: Point, error: Exception) -> None:
        """A point failed.

        Raises:
            DeviceLostError: so did all of several tables before it.
        """
        self._of_table[point.table] += 1
        self._streak.append(point.table)
        if len(self._streak) >= FAILURES_IN_A_ROW and len(set(self._streak)) > 1:
            raise DeviceLostError(
                f"{len(self._streak)} points in a row failed, the last one {point}: {said(error)}",
                self._streak[0],
            ) from error

    def end(self, point: Point) -> None:
        """A point was measured."""
        self._of_table[point.table] = 0
        self._streak.clear()


class Pace:
    """How much longer than expected points take; recent ones count more."""

    KEEP = 0.98
    OUTLIER = 20.0

    def __init__(self) -> None:
        self._expected = self._took = 0.0

    def add(self, expected_s: float, took_s: float) -> None:
        """A point took so long; one far out (a kernel was compiled) counts as less far out."""
        took_s = min(took_s, self.OUTLIER * self.corrected(expected_s))
        self._expected = self.KEEP * self._expected + expected_s
        self._took = self.KEEP * self._took + took_s

    def corrected(self, expected_s: float) -> float:
        """What to expect instead."""
        if not self._expected:
            return expected_s
        return expected_s * self._took / self._expected


def said(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def failures(outcome: Outcome) -> list[str]:
    """For the notes: each kind of failure once, with how often and an example."""
    by_kind: dict[str, list[Point]] = {}
    for point, why in outcome.failed:
        by_kind.setdefault(f"{point.table}: {why}", []).append(point)
    return [
        f"failed, {len(points)} times, as {points[0]}: {why}" for why, points in by_kind.items()
    ]


def write_left_out(folder: Path, outcome: Outcome) -> None:
    """Write `left_out.csv`: each point that is not in the tables for a reason, and the reason."""
    rows = [*outcome.left_out, *outcome.failed]
    path = folder / "left_out.csv"
    if not rows:
        path.unlink(missing_ok=True)
        return
    new = path.with_suffix(".tmp")
    with new.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("point", "reason"))
        writer.writerows((str(point), why) for point, why in rows)
    new.replace(path)
