"""How a launch is timed: `CudaTimer` on a GPU, `CpuTimer` under Triton's interpreter.

On a GPU a sample is one replay of a CUDA graph, between two device events, divided by the launches
in it. The launches go over sets of inputs that together exceed the L2 cache several times, as the
weights and the KV cache of a model do: so none is found in the cache. Replays are queued behind an
untimed one, so that the device never waits for the host and launch latency is not in a sample.

`cv` and the quantiles are over replays, thus over means of some launches: as in a step, which runs
each kernel once a layer.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from kernels_profile.profiler.effort import Effort


@dataclass(frozen=True)
class Work:
    """One point's launches on real inputs.

    Attributes:
        run: Launches once, on the set of inputs of that number.
        sets: How many sets there are.
    """

    run: Callable[[int], object]
    sets: int = 1


@dataclass(frozen=True)
class Timing:
    """Time of one launch over repeats, us.

    Attributes:
        time_us: Median.
        p10_us: Quantile.
        p90_us: Quantile.
        cv: Standard deviation over mean.
        repeats: Samples.
    """

    time_us: float
    p10_us: float
    p90_us: float
    cv: float
    repeats: int

    @staticmethod
    def of(samples: Sequence[float]) -> Timing:
        """Summary of some samples, us; quantiles are interpolated between them."""
        ordered = sorted(samples)
        mean = statistics.fmean(ordered)
        spread = statistics.pstdev(ordered) / mean if mean > 0 else 0.0
        middle, low, high = (quantile(ordered, share) for share in (0.5, 0.1, 0.9))
        return Timing(middle, low, high, spread, len(ordered))

    def columns(self) -> dict[str, float]:
        """As columns of a table, to a tenth of a nanosecond."""
        return {
            "time_us": round(self.time_us, 4),
            "p10_us": round(self.p10_us, 4),
            "p90_us": round(self.p90_us, 4),
            "cv": round(self.cv, 5),
            "repeats": self.repeats,
        }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear between the samples beside it; `ordered` ascends."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


class Timer(Protocol):
    """Times work on one device."""

    def time(self, work: Work, estimate_us: float) -> Timing:
        """Time of one launch; the estimate decides how many go into a sample."""
        ...

    def wall(self, run: Callable[[], object]) -> Timing:
        """Time on the host's clock until the device is idle again, of one call."""
        ...

    def in_graph(self, run: Callable[[], object], times: int) -> Callable[[], object]:
        """What replays that many calls of `run` as one CUDA graph.

        Raises:
            NotImplementedError: the device has no graphs.
        """
        ...


class CpuTimer:
    """Wall time of the interpreter: shows that a profile's path works, and says nothing of a GPU.

    Args:
        repeats: Samples of each point.
    """

    def __init__(self, repeats: int = 3) -> None:
        self.repeats = repeats

    def time(self, work: Work, estimate_us: float) -> Timing:
        """One launch a sample; each set of inputs is used in turn."""
        work.run(0)
        numbers = (number % work.sets for number in range(self.repeats))
        return Timing.of([_wall_us(partial(work.run, number)) for number in numbers])

    def wall(self, run: Callable[[], object]) -> Timing:
        """Wall time of one call."""
        run()
        return Timing.of([_wall_us(run) for _ in range(self.repeats)])

    def in_graph(self, run: Callable[[], object], times: int) -> Callable[[], object]:
        """The interpreter has no graphs."""
        raise NotImplementedError("the interpreter has no CUDA graphs")


class CudaTimer:
    """Device events around replays of CUDA graphs.

    Args:
        effort: How many launches and replays.
        torch: The library; given by tests, which have no GPU.
    """

    def __init__(self, effort: Effort, torch: Any = None) -> None:
        self.effort = effort
        self._torch = import_module("torch") if torch is None else torch
        self._stream = self._torch.cuda.Stream()

    def time(self, work: Work, estimate_us: float) -> Timing:
        """Time of one launch inside a graph."""
        self._warm(work)
        launches = self.effort.launches(self._sized_us(work, estimate_us), work.sets)
        graph = self._capture(lambda i: work.run(i % work.sets), launches)
        repeats = self.effort.repeats(self._replays_us(graph, 1)[0])
        return Timing.of([us / launches for us in self._replays_us(graph, repeats)])

    def wall(self, run: Callable[[], object]) -> Timing:
        """Host time of one call and of what it launched."""
        synchronize = self._torch.cuda.synchronize

        def until_idle() -> None:
            run()
            synchronize()

        until_idle()
        first = _wall_us(until_idle)
        return Timing.of([_wall_us(until_idle) for _ in range(self.effort.repeats(first))])

    def in_graph(self, run: Callable[[], object], times: int) -> Callable[[], object]:
        """A graph of that many calls; replayed on the current stream."""
        self._warm(Work(lambda _: run()))
        graph = self._capture(lambda _: run(), times)
        replay: Callable[[], object] = graph.replay
        return replay

    def _warm(self, work: Work) -> None:
        """Compile what is not compiled, and touch the allocator, before anything is captured."""
        torch = self._torch
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for number in range(min(2, work.sets)):
                work.run(number)
        torch.cuda.synchronize()

    def _sized_us(self, work: Work, estimate_us: float) -> float:
        """What one launch takes, roughly: an estimate far too low would make graphs too long."""
        begun, ended = self._event(), self._event()
        with self._torch.cuda.stream(self._stream):
            begun.record()
            work.run(0)
            ended.record()
        self._torch.cuda.synchronize()
        # Launched alone, a short kernel waits for the host: then the estimate is the better guess.
        return max(estimate_us, 1e3 * begun.elapsed_time(ended) - LAUNCH_ALONE_US)

    def _capture(self, run: Callable[[int], object], launches: int) -> Any:
        # Not torch.cuda.graph(): that collects garbage and empties caches, 0.1 s for each point.
        graph = self._torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # what a collection would free on the device could end the capture
        try:
            with self._torch.cuda.stream(self._stream):
                graph.capture_begin()
                try:
                    for number in range(launches):
                        run(number)
                finally:
                    graph.capture_end()
        finally:
            if collecting:
                gc.enable()
        return graph

    def _replays_us(self, graph: Any, repeats: int) -> list[float]:
        pairs = [(self._event(), self._event()) for _ in range(repeats)]
        with self._torch.cuda.stream(self._stream):
            graph.replay()
            for begun, ended in pairs:
                begun.record()
                graph.replay()
                ended.record()
        self._torch.cuda.synchronize()
        return [1e3 * begun.elapsed_time(ended) for begun, ended in pairs]

    def _event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)


LAUNCH_ALONE_US = 100.0
"""Host time that may lie between two events around one eager launch: more than a launch takes."""


def _wall_us(run: Callable[[], object]) -> float:
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1e6
