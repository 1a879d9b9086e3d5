"""What ``phasewise sweep`` does, for Python too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import strict_yaml
from experiments.config import Opened, open_config, slug
from experiments.run import InterruptedRunError
from experiments.sweep.axes import Axis, Listed
from experiments.sweep.columns import KEY, columns_of, with_settings
from experiments.sweep.dataset import DataSet, SweepError, identity, read_table
from experiments.sweep.definition import Definition, read_definition, split_settings
from experiments.sweep.draws import METHODS
from experiments.sweep.executors import Executor
from experiments.sweep.folder import (
    Stance,
    check_options,
    check_unlocked,
    check_usable,
    kept_of,
    locked,
    open_dataset,
    stance,
)
from experiments.sweep.points import Planned, plan_points
from experiments.sweep.unit import FAILED, FINISHED, LOST
from sim.errors import ConfigError


@dataclass(frozen=True)
class Progress:
    """How far a sweep is.

    Attributes:
        done: Runs whose rows are there.
        total: Runs in all.
        failed: Of `done`, those without numbers.
        rate_per_s: Runs per second since this command began; 0 before the first.
        left_s: Seconds until the end at this rate; None before the first.
    """

    done: int
    total: int
    failed: int
    rate_per_s: float
    left_s: float | None


@dataclass(frozen=True)
class Swept:
    """What came of a sweep.

    Attributes:
        folder: Of the data set.
        points: Points in all.
        runs: Runs in all.
        finished: Runs with numbers.
        failed: Runs that failed; their rows say why.
        lost: Runs whose workers died; the same command makes them again.
        kept: Runs that were there already.
        unserved: Finished runs in which no request was served to its end.
        unserved_points: Points in which that is so of all finished runs.
        notes: What a reader should know, one sentence each.
    """

    folder: Path
    points: int
    runs: int
    finished: int
    failed: int
    lost: int
    kept: int
    unserved: int
    unserved_points: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A sweep that was read and resolved, and not begun.

    Attributes:
        name: Of the config.
        source: Where it was read from.
        definition: What is swept.
        planned: All its runs.
        notes: One sentence each.
    """

    name: str
    source: str
    definition: Definition
    planned: Planned
    notes: tuple[str, ...]


def ask(config: str | Path | Mapping[str, Any], settings: Sequence[str] = ()) -> Asked:
    """Read a config with its sweep, and resolve every point.

    Args:
        config: As `experiments.config.load` takes it.
        settings: ``key=value`` texts for every point; with several values, ``key=1,2,4``, an axis.

    Raises:
        ConfigError: One line.
    """
    fixed, axes = split_settings(settings)
    opened = open_config(config, fixed)
    axes += _fixed_axes(opened, fixed)
    definition = read_definition(opened.raw.get("sweep"), axes, opened.source)
    planned = plan_points(opened, definition)
    notes = [*opened.notes, *definition.notes]
    if planned.dropped:
        notes.append(f"{planned.dropped} points occur more than once, and are run once.")
    return Asked(planned.experiment.name, opened.source, definition, planned, tuple(notes))


def _fixed_axes(opened: Opened, fixed: Sequence[str]) -> list[tuple[str, Axis]]:
    """One value of ``--set`` for a key of the config's grid: the only one of this axis.

    Raises:
        ConfigError: The key is swept in another way.
    """
    given = opened.raw.get("sweep")
    grid = given.get("grid") if isinstance(given, Mapping) else None
    axes: list[tuple[str, Axis]] = []
    for text in fixed:
        key, _, value = text.partition("=")
        if isinstance(grid, Mapping) and (key := key.strip()) in grid:
            axes.append((key, Listed((strict_yaml.parse(value, f"--set {text}"),))))
        elif (part := _part_with(given, key)) is not None:
            raise ConfigError(
                f"--set {text}: {opened.source} sweeps {key} under sweep.{part}; change it there"
            )
    return axes


def _part_with(given: object, key: str) -> str | None:
    """The part of a sweep, other than its grid, that has a key."""
    if not isinstance(given, Mapping):
        return None
    entries = given.get("list")
    if isinstance(entries, list) and any(isinstance(e, Mapping) and key in e for e in entries):
        return "list"
    for method in METHODS:
        drawn = given.get(method)
        over = drawn.get("over") if isinstance(drawn, Mapping) else None
        if isinstance(over, Mapping) and key in over:
            return f"{method}.over"
    return None


def sweep(
    asked: Asked,
    out: Path | None,
    executor: Executor,
    *,
    fresh: bool = False,
    retry: bool = False,
    extend: bool = False,
    tell: Callable[[Progress], None] = lambda progress: None,
) -> Swept:
    """Make every run of a sweep that its folder lacks.

    Args:
        asked: What to run.
        out: Folder; None for ``results/NAME-sweep``.
        executor: Who runs it.
        fresh: Drop what the folder has; else the same sweep goes on, and another one is refused.
        retry: Make failed runs again; lost ones are made again in any case.
        extend: The folder may have a sweep of fewer points: it becomes this one.
        tell: Called with every row, and about once a second.

    Raises:
        SweepError: The folder cannot be used.
        InterruptedRunError: Ctrl-C; rows are kept, and the same command makes the rest.
    """
    folder = folder_of(asked, out)
    columns = columns_of(asked.definition, asked.planned.settings.values())
    about = _about(asked, columns)
    check_options(fresh=fresh, extend=extend)
    with locked(folder):
        data = open_dataset(folder, about, columns, fresh=fresh, retry=retry, extend=extend)
        kept = len(data.statuses)
        try:
            _run(asked.planned, data, executor, tell)
        except KeyboardInterrupt:
            data.flush()
            total = len(asked.planned.units) + len(asked.planned.failed)
            raise InterruptedRunError(
                f"interrupted: {len(data.statuses)} of {total} runs are in {folder}; the same "
                "command runs the rest"
            ) from None
        finally:
            data.flush()
        data.compact()
    return _swept(folder, asked, data, kept)


def _run(
    planned: Planned, data: DataSet, executor: Executor, tell: Callable[[Progress], None]
) -> None:
    settings = planned.settings
    for row in planned.failed:
        name = (row["point"], row["variant"], row["replication"])
        if name not in data.statuses:
            data.add(with_settings(row, settings[row["point"]], data.columns))
    waiting = [unit for unit in planned.units if unit.identity not in data.statuses]
    total, before = len(planned.units) + len(planned.failed), len(data.statuses)
    began = time.perf_counter()
    tell(_progress(data, before, total, 0.0))
    if not waiting:
        return
    with closing(executor.run(waiting)) as rows:
        for made in rows:
            if made is not None:
                data.add(with_settings(made, settings[made["point"]], data.columns))
            data.flush_if_due()
            tell(_progress(data, before, total, time.perf_counter() - began))


def _progress(data: DataSet, before: int, total: int, elapsed_s: float) -> Progress:
    done = len(data.statuses)
    rate = (done - before) / elapsed_s if elapsed_s > 0 else 0.0
    failed = sum(status != FINISHED for status in data.statuses.values())
    return Progress(done, total, failed, rate, (total - done) / rate if rate else None)


def _about(asked: Asked, columns: Mapping[str, str]) -> dict[str, Any]:
    variants = list(dict.fromkeys(unit.variant for unit in asked.planned.units))
    return {
        "name": asked.name,
        "source": asked.source,
        "keys": asked.definition.keys,
        "variants": variants,
        "slo_scales": list(asked.definition.slo_scales),
        "quantities": [each.text for each in asked.definition.quantities],
        "traces": dict(asked.planned.traces),
        "points": dict(asked.planned.settings),
        "columns": dict(columns),
        "prints": dict(asked.planned.prints),
    }


def _swept(folder: Path, asked: Asked, data: DataSet, kept: int) -> Swept:
    states = list(data.statuses.values())
    unserved = _unserved(folder) if FINISHED in states else []
    return Swept(
        folder,
        len(asked.planned.settings),
        len(states),
        states.count(FINISHED),
        states.count(FAILED),
        states.count(LOST),
        kept,
        sum(len(runs) - sum(runs) for runs in unserved),
        sum(not any(runs) for runs in unserved),
        asked.notes,
    )


def _unserved(folder: Path) -> list[list[bool]]:
    """Of each point whether its finished runs served any request."""
    table = read_table(folder, ["point", "status", "requests.finished"])
    served: dict[str, list[bool]] = {}
    for row in table.to_pylist():
        if row["status"] == FINISHED:
            served.setdefault(row["point"], []).append(bool(row["requests.finished"]))
    return list(served.values())


@dataclass(frozen=True)
class Standing:
    """What the folder of a sweep holds before it runs, and what a run would do with that.

    Attributes:
        folder: Of the data set.
        stance: What would be done with it; None if it holds another sweep, and is refused.
        refusal: Why it is refused; empty if it is not.
        rows: That are there.
        finished: Of these, with numbers.
        failed: Of these, that failed.
        kept: Of these, that stay: failed ones are run again with ``--retry`` alone.
        left: Runs that would be made.
    """

    folder: Path
    stance: Stance | None
    refusal: str
    rows: int
    finished: int
    failed: int
    kept: int
    left: int


def standing(
    asked: Asked,
    out: Path | None,
    *,
    fresh: bool = False,
    retry: bool = False,
    extend: bool = False,
) -> Standing | None:
    """What `sweep` would do with its folder; nothing is changed. None if no sweep is there.

    Arguments are as of `sweep`.

    Raises:
        SweepError: The folder cannot be read, or no sweep can be in it.
    """
    folder = folder_of(asked, out)
    about = _about(asked, columns_of(asked.definition, asked.planned.settings.values()))
    refusal = ""
    check_options(fresh=fresh, extend=extend)
    check_usable(folder)
    try:
        found = stance(folder, about, fresh=fresh, extend=extend)
    except SweepError as error:
        found, refusal = None, str(error)
    if found == "new":
        return None
    check_unlocked(folder)
    states = read_table(folder, [*KEY, "status"]).column("status").to_pylist()
    kept = {} if found in (None, "fresh") else kept_of(folder, retry=retry)
    every = [unit.identity for unit in asked.planned.units]
    every += [identity(row) for row in asked.planned.failed]
    left = sum(name not in kept for name in every)
    counts = (states.count(FINISHED), states.count(FAILED))
    return Standing(folder, found, refusal, len(states), *counts, len(kept), left)


def folder_of(asked: Asked, out: Path | None) -> Path:
    """Where the data set of a sweep is."""
    return out or Path("results") / f"{slug(asked.name)}-sweep"
