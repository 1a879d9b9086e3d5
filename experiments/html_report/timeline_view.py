"""What each replica did when: its iterations, coloured by what they computed, and what befell it.

The whole run is shown in equal parts of time, each with the shares of prefills, decodes, mixed and
lost iterations and of transfers; what is left of a part is idle. Iterations are shown one by one
where they fit a budget: all of a variant, or else those around its worst requests and around every
failure, in that order. ``steps.parquet`` is read a row group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.bundle import STEPS, Bundle, Columns, count_steps, read_steps
from experiments.html_report.compact import shares
from sim.metrics import NS_PER_S, Floats, Ints
from sim.records import CHANGES

if TYPE_CHECKING:
    import numpy.typing as npt

KINDS = ("prefill", "decode", "mixed", "lost", "transfer")
"""What a replica can be at, by the codes of slices; lost: a step that a failure ended."""
PREFILL, DECODE, MIXED, LOST, TRANSFER = range(5)

MOST_ROWS = 64
"""Replicas, or their pipeline stages, with a row; more are left out, which is said."""
_AROUND_NS = 2_000_000_000
"""Time before and after a failure in which iterations are shown one by one."""


@dataclass(frozen=True)
class Budget:
    """How much of a variant is kept.

    Attributes:
        slices: Iterations, or runs of equal ones, shown one by one.
        cells: Parts of time, of all rows together.
    """

    slices: int
    cells: int

    def parts(self, rows: int) -> int:
        """Equal parts of time of each row."""
        return max(50, min(1500, self.cells // max(1, rows)))


@dataclass
class _Slices:
    """Rows of the step log that are kept, as they come."""

    room: int
    parts: list[Columns] = field(default_factory=list)

    def add(self, rows: Columns, chosen: npt.NDArray[np.bool_]) -> bool:
        """Keep rows while there is room; whether all of them were kept."""
        places = np.flatnonzero(chosen)
        kept = places[: self.room]
        if len(kept):
            self.parts.append({name: column[kept] for name, column in rows.items()})
            self.room -= len(kept)
        return len(kept) == len(places)


def timeline(bundle: Bundle, folder: Path, worst: Sequence[int], budget: Budget) -> dict[str, Any]:
    """The timeline of one variant, or why there is none.

    Args:
        bundle: Of the variant, its steps not read.
        folder: Of the bundle.
        worst: Rows of its worst requests, the worst first.
        budget: How much to keep.

    Raises:
        BundleError: ``steps.parquet`` is damaged.
    """
    if not (folder / STEPS).is_file():
        return {"why": "no steps were recorded (record.steps: false), so there is no timeline"}
    names = [replica.name for replica in bundle.replicas]
    stages = max((len(replica.stage_busy_ns) for replica in bundle.replicas), default=0) or 1
    rows = [(place, stage) for place in range(len(names)) for stage in range(1, stages + 1)]
    shown = rows[:MOST_ROWS]
    ends = np.linspace(0, max(bundle.end_ns, 1), budget.parts(len(shown)) + 1)
    kept = _keep(bundle, folder, worst, budget)
    covered = np.zeros((len(shown), len(KINDS), len(ends) - 1))
    for step in steps_of(folder, names):
        _cover(covered, shown, step, ends)
    _cover_transfers(covered, shown, bundle, ends)
    return {
        "end_s": bundle.end_ns / NS_PER_S,
        "rows": [_row(bundle, place, stage, stages) for place, stage in shown],
        "left_out": len(rows) - len(shown),
        "parts": len(ends) - 1,
        "cover": [shares(each / np.diff(ends)) for each in covered],
        "slices": _coded(kept.parts, shown),
        "all": kept.every,
        "exact": kept.said,
        "marks": marks(bundle),
    }


def _row(bundle: Bundle, place: int, stage: int, stages: int) -> dict[str, Any]:
    replica = bundle.replicas[place]
    return {
        "name": replica.name if stages == 1 else f"{replica.name}, stage {stage}",
        "replica": place,
        "joined_s": replica.joined_ns / NS_PER_S,
        "left_s": replica.left_ns / NS_PER_S if replica.left_ns >= 0 else None,
        "down": _down(bundle, place),
    }


def _down(bundle: Bundle, place: int) -> list[list[float]]:
    """Spells in which a replica had failed, s."""
    spells: list[list[float]] = []
    mine = bundle.changes["replica"] == place
    changes = bundle.changes["change"][mine].tolist()
    for code, at_ns in zip(changes, bundle.changes["time_ns"][mine].tolist(), strict=True):
        if CHANGES[code] == "failed":
            spells.append([at_ns / NS_PER_S, bundle.end_ns / NS_PER_S])
        elif CHANGES[code] in ("restored", "up") and spells:
            spells[-1][1] = min(spells[-1][1], at_ns / NS_PER_S)
    return spells


def marks(bundle: Bundle) -> list[dict[str, Any]]:
    """Every change of the cluster, in order of time, replicas by their places."""
    columns = bundle.changes
    return [
        {
            "at_s": at_ns / NS_PER_S,
            "replica": place,
            "what": CHANGES[code].replace("_", " "),
            "lost": lost,
        }
        for at_ns, place, code, lost in zip(
            *(columns[name].tolist() for name in ("time_ns", "replica", "change", "lost")),
            strict=True,
        )
    ]


# --- reading


def steps_of(folder: Path, names: Sequence[str]) -> Iterator[Columns]:
    """The step log; in one without stages, all rows are of the first."""
    for step in read_steps(folder, names):
        yield {"stage": np.ones(len(step["start_ns"]), np.int64)} | step


@dataclass(frozen=True)
class _Kept:
    """Rows shown one by one.

    Attributes:
        parts: In order of time.
        every: They are all that there are.
        said: Which ones they are, in words.
    """

    parts: list[Columns]
    every: bool
    said: str


def _keep(bundle: Bundle, folder: Path, worst: Sequence[int], budget: Budget) -> _Kept:
    """Rows that are shown one by one, and a sentence that says which."""
    names = [replica.name for replica in bundle.replicas]
    total = count_steps(folder)
    slices = _Slices(budget.slices)
    if total <= budget.slices:
        for step in steps_of(folder, names):
            slices.add(step, np.ones(len(step["start_ns"]), bool))
        return _Kept(slices.parts, True, f"all {total:,} runs of iterations are shown one by one")
    windows = _windows(bundle, worst)
    shown = _fitting(folder, names, windows, budget.slices)
    for step in steps_of(folder, names):
        slices.add(step, shown.inside(step))
    count = budget.slices - slices.room
    return _Kept(
        slices.parts,
        False,
        f"{count:,} of {total:,} runs of iterations are shown one by one: those around "
        f"{shown.count} of {len(windows)} failures and worst requests; elsewhere equal parts of "
        "time show the shares of what was computed",
    )


Window = tuple[int, int, int]
"""A replica (-1: all), and the time between which its iterations are wanted, ns."""


def _windows(bundle: Bundle, worst: Sequence[int]) -> list[Window]:
    """Around each failure, then the life of each of the worst requests on its replicas."""
    changes = bundle.changes
    failed = changes["change"] == CHANGES.index("failed")
    found = [
        (place, at_ns - _AROUND_NS, at_ns + _AROUND_NS)
        for place, at_ns in zip(
            changes["replica"][failed].tolist(), changes["time_ns"][failed].tolist(), strict=True
        )
    ]
    requests = bundle.requests
    for row in worst:
        end_ns = int(requests["end_ns"][row])
        end_ns = bundle.end_ns if end_ns < 0 else end_ns
        places = {int(requests[name][row]) for name in ("replica", "decode_replica")} - {-1}
        arrival_ns = int(requests["arrival_ns"][row])
        found += [(place, arrival_ns, end_ns) for place in sorted(places)]
    return found


@dataclass(frozen=True)
class _Shown:
    """Windows whose iterations are kept."""

    windows: Sequence[Window]
    count: int

    def inside(self, step: Columns) -> npt.NDArray[np.bool_]:
        """Which rows overlap one of the windows."""
        found = np.zeros(len(step["start_ns"]), bool)
        for place, begin_ns, end_ns in self.windows:
            found |= _overlaps(step, place, begin_ns, end_ns)
        return found


def _overlaps(step: Columns, place: int, begin_ns: int, end_ns: int) -> npt.NDArray[np.bool_]:
    there = (step["start_ns"] < end_ns) & (step["end_ns"] > begin_ns)
    return np.asarray(there & (step["replica"] == place))


def _fitting(folder: Path, names: Sequence[str], windows: Sequence[Window], room: int) -> _Shown:
    """The first windows whose rows fit together; those of one that does not fit are left out."""
    sizes = np.zeros(len(windows), np.int64)
    for step in steps_of(folder, names):
        sizes += [int(_overlaps(step, *window).sum()) for window in windows]
    chosen, used = [], 0
    for window, size in zip(windows, sizes.tolist(), strict=True):
        if used + size <= room:
            chosen.append(window)
            used += size
    return _Shown(chosen, len(chosen))


# --- parts of time


def _kinds(step: Columns) -> Ints:
    prefills, decodes = step["prefill_tokens"] > 0, step["decodes"] > 0
    kind = np.where(prefills & decodes, MIXED, np.where(prefills, PREFILL, DECODE))
    return np.asarray(np.where(step["iterations"] == 0, LOST, kind))


def _cover(covered: Floats, rows: Sequence[tuple[int, int]], step: Columns, ends: Floats) -> None:
    """Add the time of these iterations to the parts in which they lie."""
    kind = _kinds(step)
    for at, (place, stage) in enumerate(rows):
        mine = (step["replica"] == place) & (step["stage"] == stage)
        for code in np.unique(kind[mine]).tolist():
            chosen = mine & (kind == code)
            covered[at, code] += time_in_parts(
                step["start_ns"][chosen], step["end_ns"][chosen], ends
            )


def _cover_transfers(
    covered: Floats, rows: Sequence[tuple[int, int]], bundle: Bundle, ends: Floats
) -> None:
    moved = bundle.transfers
    if not len(moved.get("request", ())):
        return
    for at, (place, stage) in enumerate(rows):
        chosen = (moved["source"] == place) | (moved["target"] == place)
        if stage == 1 and chosen.any():
            covered[at, TRANSFER] = time_in_parts(
                moved["start_ns"][chosen], moved["end_ns"][chosen], ends
            )


def time_in_parts(start_ns: Ints, end_ns: Ints, ends: Floats) -> Floats:
    """Time of intervals, which may overlap, in each part of time.

    Args:
        start_ns: Of each interval, shape (n,).
        end_ns: Of each, shape (n,).
        ends: Ends of the parts, ascending, shape (k + 1,).

    Returns:
        Shape (k,), ns.
    """
    return np.diff(_before(start_ns, ends) - _before(end_ns, ends))


def _before(times_ns: Ints, ends: Floats) -> Floats:
    """Of each end, the sum over the times of max(0, end - time)."""
    ordered = np.sort(times_ns).astype(float)
    below = np.concatenate(([0.0], np.cumsum(ordered)))
    count = np.searchsorted(ordered, ends)
    return np.asarray(ends * count - below[count])


# --- one by one


def _coded(parts: Sequence[Columns], rows: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """For each row its iterations, times as steps from one number to the next."""
    names = ("replica", "stage", "start_ns", "end_ns", "iterations", "prefill_tokens", "decodes")
    columns = {
        name: np.concatenate([np.zeros(0, np.int64), *(part[name] for part in parts)])
        for name in names
    }
    kind = _kinds(columns)
    made = []
    for place, stage in rows:
        mine = np.flatnonzero((columns["replica"] == place) & (columns["stage"] == stage))
        mine = mine[np.argsort(columns["start_ns"][mine], kind="stable")]
        start, end = columns["start_ns"][mine], columns["end_ns"][mine]
        made.append(
            {
                "gap": np.diff(start, prepend=0).tolist(),
                "length": (end - start).tolist(),
                "kind": "".join(str(code) for code in kind[mine].tolist()),
                "n": columns["iterations"][mine].tolist(),
                "prefill": columns["prefill_tokens"][mine].tolist(),
                "decodes": columns["decodes"][mine].tolist(),
            }
        )
    return made
