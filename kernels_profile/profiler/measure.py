"""Measures one point: makes its inputs, chooses the kernel's configuration, times it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kernels_profile.profiler.arena import Arena
from kernels_profile.profiler.bench import Bench
from kernels_profile.profiler.choosers import candidates
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import CpuTimer, CudaTimer, Timer, Timing, Work
from kernels_profile.profiler.workloads import build, taken
from kernels_profile.table import OPERATORS

SWEPT = ("tokens", "history", "batch", "context", "decodes", "skew", "sequences", "touched")
"""Columns over which a configuration is chosen for a range, not for each value."""


def shape_class(point: Point, configs: Sequence[Any]) -> tuple[str, ...]:
    """Points of one class share a configuration: equal widths, and swept columns within 4 times."""
    known = OPERATORS[point.table]
    parts = [point.table]
    for column in known.keys:
        value = point[column]
        if column in SWEPT:
            value = f"{column}<{4 ** _power_of_four(float(value))}"
        parts.append(str(value))
    return (*parts, f"of {len(configs)}: {configs[0]}")


def class_name(point: Point, configs: Sequence[Any]) -> str:
    """The class as one text, for the file of choices."""
    return " ".join(shape_class(point, configs))


def _power_of_four(value: float) -> int:
    power = 0
    while 4**power <= value:
        power += 1
    return power


class Choices:
    """Which configuration was quickest for each class of shapes; kept in a file beside the tables.

    Args:
        path: Where the choices of an earlier run are, and new ones go.
    """

    COLUMNS = ("shapes", "config", "time_us", "others")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chosen: dict[str, str] = {}
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # less a line that was cut off
            if whole != text:
                path.write_text(whole, encoding="utf-8")
            for row in csv.DictReader(whole.splitlines()):
                self._chosen[row["shapes"]] = row["config"]

    def of(self, point: Point) -> Any:
        """The choice for points of this shape; None if there is only one, or none was made yet."""
        configs = candidates(point)
        return self.find(configs, point) if len(configs) > 1 else None

    def find(self, configs: Sequence[Any], point: Point) -> Any:
        """The one of these configurations that an earlier point of the class was quickest with."""
        said = self._chosen.get(class_name(point, configs))
        return next((config for config in configs if str(config) == said), None)

    def add(
        self,
        point: Point,
        configs: Sequence[Any],
        times: Mapping[str, float],
        problems: Mapping[str, Exception] = MappingProxyType({}),
    ) -> Any:
        """Keep the quickest of some configurations; returns it.

        Args:
            point: Where they were timed.
            configs: All of its candidates.
            times: What each took, us.
            problems: Why some could not run.
        """
        name = class_name(point, configs)
        best = min((c for c in configs if str(c) in times), key=lambda c: times[str(c)])
        self._chosen[name] = str(best)
        new = not self.path.is_file() or not self.path.stat().st_size
        tried = [f"{config}: {us:.2f}" for config, us in times.items()]
        tried += [f"{config}: {type(why).__name__}" for config, why in problems.items()]
        with self.path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if new:
                writer.writerow(self.COLUMNS)
            writer.writerow([name, str(best), f"{times[str(best)]:.4f}", "; ".join(tried)])
        return best


class Measurer:
    """Measures points on one device.

    Args:
        device: ``cuda`` or ``cpu``.
        effort: How often each point is launched.
        choices: Configurations chosen so far.
        timer: By default events on a GPU, wall time under the interpreter.
    """

    def __init__(
        self, device: str, effort: Effort, choices: Choices, timer: Timer | None = None
    ) -> None:
        import torch

        dtype = torch.bfloat16 if device == "cuda" else torch.float16
        many = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 1
        self.bench = Bench(Arena(device, dtype), effort, device, many)
        self.choices = choices
        self.timer = timer or (CudaTimer(effort) if device == "cuda" else CpuTimer())
        self._quick = timer or (CudaTimer(quick(effort)) if device == "cuda" else CpuTimer(1))

    def measure(self, point: Point) -> dict[str, Any]:
        """Measured columns of the point's row."""
        self._reserve(point)
        if point.table == "overhead":
            return self._overhead(point).columns()
        timing = self._timing(point)
        if point.table == "ceilings":
            return rate(point, timing)
        return timing.columns()

    def _reserve(self, point: Point) -> None:
        arena = self.bench.arena
        arena.tidy()
        for dtype, elements in taken(point, self.bench).items():
            arena.reserve(elements, dtype)

    def _work(self, point: Point, config: Any) -> Work:
        self.bench.arena.reset()
        return build(point, self.bench, config)

    def _timing(self, point: Point) -> Timing:
        config = self._config(point)
        return self.timer.time(self._work(point, config), point.estimate_us)

    def _config(self, point: Point) -> Any:
        """The quickest candidate of the point's class; timed at the first point of it."""
        configs = candidates(point)
        if len(configs) < 2:
            return None
        found = self.choices.find(configs, point)
        if found is not None:
            return found
        times, problems = self._try(point, configs)
        return self.choices.add(point, configs, times, problems)

    def _try(
        self, point: Point, configs: Sequence[Any]
    ) -> tuple[dict[str, float], dict[str, Exception]]:
        """What each of some configurations takes, us, or why it cannot run; one has to."""
        times: dict[str, float] = {}
        problems: dict[str, Exception] = {}
        for config in configs:
            try:
                timing = self._quick.time(self._work(point, config), point.estimate_us)
            except Exception as error:  # too much shared memory for this card, say
                problems[str(config)] = error
                continue
            times[str(config)] = timing.time_us
        if not times:
            raise next(iter(problems.values()))
        return times, problems

    def _overhead(self, point: Point) -> Timing:
        work, times = self._work(point, None), int(point["size"])
        if point["what"] == "graph_replay":
            return self.timer.wall(self.timer.in_graph(lambda: work.run(0), times))

        def one_by_one() -> None:
            for _ in range(times):
                work.run(0)

        return self.timer.wall(one_by_one)


def quick(effort: Effort) -> Effort:
    """Enough to tell candidates apart."""
    return replace(effort, target_us=2_000.0, min_repeats=3, max_repeats=5)


def rate(point: Point, timing: Timing) -> dict[str, Any]:
    """A ceiling as a rate: bytes read and written, or floating-point operations, per second."""
    if point["what"] == "copy":
        amount, unit = point.set_bytes, "bytes/s"
    else:
        amount, unit = 2 * point.sizes["side"] ** 3, "flop/s"
    columns = timing.columns()
    del columns["time_us"]
    return {"value": float(f"{amount / timing.time_us * 1e6:.6g}"), "unit": unit, **columns}
