"""Samples, quantiles and efforts; and what the CUDA timer does, told by a device that is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import CpuTimer, CudaTimer, Timing, Work, quantile


def test_a_timing_is_median_quantiles_and_spread() -> None:
    samples = [5.0, 1.0, 3.0, 2.0, 4.0, 10.0]
    timing = Timing.of(samples)
    assert timing.time_us == np.median(samples)
    assert timing.p10_us == pytest.approx(np.quantile(samples, 0.1))
    assert timing.p90_us == pytest.approx(np.quantile(samples, 0.9))
    assert timing.cv == pytest.approx(np.std(samples) / np.mean(samples))
    assert timing.repeats == 6
    assert quantile([7.0], 0.9) == 7.0


def test_inputs_together_exceed_the_cache_or_there_are_as_many_as_may_be() -> None:
    effort = Effort(l2_bytes=50 * 2**20, l2_times=3, max_launches=256)
    assert effort.sets(200 * 2**20) == 1
    assert effort.sets(50 * 2**20) == 3
    assert effort.sets(2**20) == 150
    assert effort.sets(2**10) == 256
    assert effort.sets(0) == 1


def test_a_graph_is_long_enough_and_has_every_set() -> None:
    effort = Effort(graph_us=200, max_launches=256)
    assert effort.launches(10.0, 1) == 20
    assert effort.launches(10.0, 150) == 150
    assert effort.launches(1000.0, 1) == 1
    assert effort.launches(0.01, 1) == 256


def test_repeats_are_bounded() -> None:
    effort = Effort(target_us=20_000, min_repeats=5, max_repeats=25)
    assert effort.repeats(1e6) == 5
    assert effort.repeats(2000) == 10
    assert effort.repeats(1) == 25


def test_a_longer_point_costs_more() -> None:
    effort = Effort()
    short, long = (Point("linear", {}, 1, us, 2**30) for us in (10.0, 100_000.0))
    assert 0 < effort.point_s(short) < 0.1
    assert effort.point_s(long) == pytest.approx(0.8, rel=0.1)  # 2 warm, 1 to size, 5 repeats


def test_the_cpu_timer_uses_each_set_of_inputs() -> None:
    used: list[int] = []
    timing = CpuTimer(repeats=4).time(Work(used.append, 3), 1.0)
    assert used == [0, 0, 1, 2, 0]
    assert timing.repeats == 4
    with pytest.raises(NotImplementedError):
        CpuTimer().in_graph(lambda: None, 2)


class Device:
    """Counts time in launches: one launch takes `launch_us`, replays do what was captured."""

    def __init__(self, launch_us: float) -> None:
        self.launch_us = launch_us
        self.now_us = 0.0
        self.captured: list[int] | None = None
        self.log: list[str] = []

    def launch(self, number: int) -> None:
        if self.captured is not None:
            self.captured.append(number)
        else:
            self.now_us += self.launch_us

    def torch(self) -> Any:
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                device.log.append("event")
                self.at = device.now_us

            def elapsed_time(self, other: Event) -> float:
                return (other.at - self.at) / 1e3

        class Graph:
            def capture_begin(self) -> None:
                device.captured = []

            def capture_end(self) -> None:
                self.launches, device.captured = device.captured, None

            def replay(self) -> None:
                device.log.append("replay")
                assert self.launches is not None
                device.now_us += device.launch_us * len(self.launches)

        class Stream:
            def wait_stream(self, other: object) -> None:
                device.log.append("wait")

        @contextmanager
        def stream(_: object) -> Iterator[None]:
            yield

        cuda = SimpleNamespace(
            Event=Event,
            CUDAGraph=Graph,
            Stream=Stream,
            stream=stream,
            current_stream=Stream,
            synchronize=lambda: device.log.append("sync"),
        )
        return SimpleNamespace(cuda=cuda)


def test_a_sample_is_a_replay_divided_by_its_launches() -> None:
    device = Device(launch_us=25.0)
    timing = CudaTimer(Effort(), device.torch()).time(Work(device.launch, 3), 25.0)
    assert timing.time_us == pytest.approx(25.0)
    assert timing.cv == 0


def test_an_estimate_far_too_low_does_not_make_graphs_too_long() -> None:
    device = Device(launch_us=50_000.0)
    timer = CudaTimer(Effort(), device.torch())
    assert timer.time(Work(device.launch, 1), 5.0).time_us == pytest.approx(50_000.0)
    assert device.now_us < 20 * 50_000.0


def test_replays_are_queued_behind_an_untimed_one_without_waiting() -> None:
    device = Device(launch_us=25.0)
    CudaTimer(Effort(min_repeats=5, max_repeats=5), device.torch()).time(
        Work(device.launch, 1), 25.0
    )
    last = device.log[device.log.index("replay") :]
    sized, timed = last[: last.index("sync")], last[last.index("sync") + 1 :]
    assert sized == ["replay", "event", "replay", "event"]
    assert timed == ["replay", *["event", "replay", "event"] * 5, "sync"]


def test_a_launch_that_fails_ends_the_capture() -> None:
    device = Device(launch_us=25.0)
    calls: list[int] = []

    def fails_in_capture(number: int) -> None:
        calls.append(number)
        if device.captured is not None:
            raise RuntimeError("no")

    timer = CudaTimer(Effort(), device.torch())
    with pytest.raises(RuntimeError, match="no"):
        timer.time(Work(fails_in_capture, 1), 25.0)
    assert device.captured is None


def test_what_is_launched_one_by_one_is_timed_until_the_device_is_idle() -> None:
    device = Device(launch_us=1.0)
    timer = CudaTimer(Effort(max_repeats=5), device.torch())
    timer.wall(lambda: device.launch(0))
    assert device.log.count("sync") == 7  # warm, first, five repeats
    replay = timer.in_graph(lambda: device.launch(0), 64)
    before = device.now_us
    replay()
    assert device.now_us - before == 64
