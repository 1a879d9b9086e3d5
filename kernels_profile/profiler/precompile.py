"""Compiles every kernel variant that a plan needs, in parallel processes, before anything is timed.

A point's launches are recorded on torch's `meta` device, so no memory is needed and nothing runs.
Each distinct variant is compiled once, by a worker, into Triton's cache on disk, where the process
that measures finds it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kernels_profile.profiler.arena import Arena
from kernels_profile.profiler.bench import Bench
from kernels_profile.profiler.choosers import candidates
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.measure import SWEPT, shape_class
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.workloads import build

LIBRARY = {("ceilings", None), ("elementwise", "add"), ("elementwise", "embedding")}
"""Tables and operators that are torch's own kernels: nothing of ours to compile."""


MULTIPROCESSORS = 132
"""Of an H100 or H200, to compile for without a GPU."""


@dataclass(frozen=True)
class Task:
    """Some launches of one point at one configuration.

    Attributes:
        point: Whose launches.
        config: Number of the configuration among its candidates; -1 for the only one.
        launches: Numbers of those launches that no earlier task has.
    """

    point: Point
    config: int
    launches: tuple[int, ...]


@dataclass(frozen=True)
class Compiled:
    """What came of it.

    Attributes:
        variants: Compiled.
        wanted: All that there were.
        seconds: Wall time.
        problems: What the compiler said, once each.
    """

    variants: int
    wanted: int
    seconds: float
    problems: tuple[str, ...] = ()


def compile_ahead(
    points: Iterable[Point],
    device: str,
    processes: int,
    limit_s: float,
    capability: int | None = None,
    report: Callable[[int, int], None] = lambda done, wanted: None,
) -> Compiled:
    """Compile what the points need; what is not done in time is compiled on first use.

    Args:
        points: To be measured, the most valuable first.
        device: Where: ``cuda`` (for the GPU at hand), or ``cpu`` with a `capability`.
        processes: At most so many at once; 0 for one a core.
        limit_s: Stop after so many seconds.
        capability: Compile for this target instead, as 90 for sm_90; needs no GPU.
        report: Called with variants done and wanted.
    """
    begun = time.monotonic()
    todo = tasks(points, device)
    wanted = sum(len(task.launches) for task in todo)
    done, problems = 0, dict[str, None]()
    if not todo:
        return Compiled(0, 0, 0.0)
    context = multiprocessing.get_context("spawn")
    count = min(processes or os.cpu_count() or 1, len(todo))
    with context.Pool(count) as pool:  # leaving it ends the workers, whatever they are at
        results = pool.imap_unordered(_run, [(task, device, capability) for task in todo])
        for _ in todo:
            try:
                good, bad = results.next(timeout=max(0.0, begun + limit_s - time.monotonic()))
            except multiprocessing.TimeoutError:
                break
            done += good
            problems.update(dict.fromkeys(bad))
            report(done, wanted)
    return Compiled(done, wanted, time.monotonic() - begun, tuple(problems))


def tasks(points: Iterable[Point], device: str) -> list[Task]:
    """One task for each point and configuration that needs a variant which no earlier one does."""
    seen: set[object] = set()
    classes: set[object] = set()
    found = []
    for point in points:
        if (point.table, point.key.get("op")) in LIBRARY:
            continue
        configs = candidates(point)
        alike = _alike(point, configs)
        if alike in classes:
            continue
        classes.add(alike)
        for number in range(len(configs)) if configs else (-1,):
            new = _new_variants(launches_of(point, number, device), seen)
            if new:
                found.append(Task(point, number, new))
    return found


def launches_of(point: Point, config: int, device: str) -> list[Any]:
    """The launches of a point, recorded on the meta device."""
    import torch

    many = MULTIPROCESSORS
    if device == "cuda":
        many = torch.cuda.get_device_properties(0).multi_processor_count
    effort = replace(Effort(), max_launches=1)
    bench = Bench(Arena("meta", torch.bfloat16), effort, "meta", many)
    configs = candidates(point)
    work = build(point, bench, configs[config] if configs and config >= 0 else None)
    with recorded() as launches:
        work.run(0)
    return launches


@contextmanager
def recorded() -> Iterator[list[Any]]:
    """Collect launches instead of running them."""
    from kernels_profile.kernels.launch import Launch

    launches: list[Any] = []
    run = Launch.run
    Launch.run = lambda self: launches.append(self)  # type: ignore[method-assign]
    try:
        yield launches
    finally:
        Launch.run = run  # type: ignore[method-assign]


def variant(launch: Any) -> object:
    """What tells compiled kernels apart: the kernel, its configuration, and how it specialises."""
    signature, constants, attributes = launch.specialisation()
    return (
        launch.name,
        str(launch.config),
        str(signature),
        str(sorted(constants.items(), key=str)),
        str(sorted(attributes)),
    )


def _new_variants(launches: Sequence[Any], seen: set[object]) -> tuple[int, ...]:
    new = []
    for number, launch in enumerate(launches):
        key = variant(launch)
        if key not in seen:
            seen.add(key)
            new.append(number)
    return tuple(new)


def _alike(point: Point, configs: Sequence[Any]) -> object:
    """Points that need the same variants: a class of shapes, and which sizes are exactly 1."""
    ones = tuple(column for column in SWEPT if point.key.get(column) == 1)
    named = shape_class(point, configs) if configs else (point.table, *_widths(point))
    return named, ones


def _widths(point: Point) -> tuple[str, ...]:
    return tuple(str(value) for column, value in point.key.items() if column not in SWEPT)


def _run(given: tuple[Task, str, int | None]) -> tuple[int, list[str]]:
    """In a worker: compile the launches of a task; how many, and what went wrong."""
    task, device, capability = given
    done, problems = 0, []
    try:
        launches = launches_of(task.point, task.config, device)
    except Exception as error:  # what one point says must not end the others
        return 0, [f"{task.point.table}: {type(error).__name__}: {error}"]
    for number in task.launches:
        try:
            _compile(launches[number], capability)
            done += 1
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            problems.append(f"{launches[number].name}: {type(error).__name__}: {lines[-1]}")
    return done, problems


def _compile(launch: Any, capability: int | None) -> None:
    if capability is None:
        # What calls a kernel from Python is compiled when `run` is first asked for: a C file for
        # each list of types, half a second that the first launch would take.
        _ = launch.warm_up().run
        return
    from kernels_profile.kernels.compiling import Target, build

    build(launch, Target(capability, "", 0))
