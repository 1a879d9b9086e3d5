"""A replica of the simulator whose steps run on the card, in wall time.

The event loop, the policies and all bookkeeping are the simulator's own. Only two things differ: an
event waits until the wall clock reaches it, and the length of a step is what it took, from the
decision to the tokens on the host. So a replay and a simulation differ in nothing but step times.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.clock import Clock, Instant
from sim.errors import ProfileError, called
from sim.flight import DecisionNotes, Flight
from sim.replica import Replica
from sim.request import Ints
from sim.step_time import StepTimeOrigin, StepWork

if TYPE_CHECKING:
    from kernels_profile.engine.runner import Runner

_SPIN_NS = 200_000
"""Sleeps of the operating system end late by some tens of microseconds: the rest is spun."""


class WallClock:
    """Nanoseconds since `start`."""

    def __init__(self) -> None:
        self._origin = time.perf_counter_ns()

    def start(self) -> None:
        """Now is 0."""
        self._origin = time.perf_counter_ns()

    def now_ns(self) -> int:
        """Nanoseconds since `start`."""
        return time.perf_counter_ns() - self._origin

    def wait_until(self, when_ns: float) -> None:
        """Return when the clock has reached `when_ns`."""
        while (left := when_ns - self.now_ns()) > 0:
            if left > _SPIN_NS:
                time.sleep((left - _SPIN_NS) / 1e9)


class WallClockEnvironment(Clock):
    """A SimPy environment in which nothing happens before its time on the wall clock.

    Wake-ups that were called off are not waited for.

    Args:
        clock: Started when the run is.
        limit_ns: The end of the run, which is not waited for if nothing else is left to happen.
    """

    def __init__(self, clock: WallClock, limit_ns: int | None = None) -> None:
        super().__init__(initial_time=0)
        self._clock = clock
        self._limit_ns = limit_ns

    def step(self) -> None:
        """Wait for the next event's time, then process it."""
        when = self.peek()
        over = when == self._limit_ns and len(self._queue) == 1
        if when != float("inf") and not over:
            self._clock.wait_until(when)
        super().step()


@dataclass(frozen=True)
class StepLog:
    """One step on the card.

    Attributes:
        start_ns: When the decision was asked for.
        gpu_ns: From the first kernel's start to the last one's end.
        end_ns: When its tokens were on the host.
        prefill_tokens: Rows of prefill chunks.
        decodes: Rows of decodes.
        sequences: Chunks and decodes.
    """

    start_ns: int
    gpu_ns: int
    end_ns: int
    prefill_tokens: int
    decodes: int
    sequences: int

    @property
    def host_ns(self) -> int:
        """What was not spent on the card."""
        return self.end_ns - self.start_ns - self.gpu_ns


class CardStepTime:
    """Stands where a step-time model stands: it has a card and a clock instead of a formula.

    Args:
        runner: Runs batches on the card.
        clock: The clock of the run's environment.
    """

    def __init__(self, runner: Runner, clock: WallClock) -> None:
        self.runner = runner
        self.clock = clock
        self.log: list[StepLog] = []

    def run(self, flight: Flight, replica: Replica) -> int:
        """Run a batch; returns when it was over, ns of the clock.

        Raises:
            ProfileError: The batch is padded, KV is shared or swaps, which the card does not do.
        """
        if replica.kv.has_cache:
            raise ProfileError("engine: prefix_cache: the engine shares no KV; try false")
        if replica.state.host is not None:
            raise ProfileError(
                "engine: preemption: swap: the engine moves no KV to the host; try recompute"
            )
        if _is_padded(flight):
            name = called(replica.policy)
            raise ProfileError(
                f"engine: policy {name} pads its batches, which the engine does not run"
            )
        decoding = [r for r in replica.state.running if r.group is not None] if flight.ticks else []
        gpu_ns = self.runner.run(replica.kv, list(replica.lives), flight.chunks, decoding)
        end = max(self.clock.now_ns(), flight.start_ns + 1)
        self.log.append(
            StepLog(
                flight.start_ns,
                gpu_ns,
                end,
                flight.prefill_tokens,
                len(decoding),
                len(flight.chunks) + len(decoding),
            )
        )
        return end

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """A card cannot say beforehand how long a step takes."""
        raise NotImplementedError("steps on a card are run, not asked for: use CardReplica")

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int] | Ints:
        """A card cannot say beforehand how long a step takes."""
        raise NotImplementedError("steps on a card are run, not asked for: use CardReplica")

    def describe(self) -> StepTimeOrigin:
        """Real steps."""
        return StepTimeOrigin("card", f"run on {self.runner.device_name}", "none: wall time")


class CardReplica(Replica):
    """A replica whose step-time model is a `CardStepTime`: each step is run, one at a time."""

    def _launch(self, flight: Flight) -> None:
        card = self.spec.step_time
        assert isinstance(card, CardStepTime)
        end = card.run(flight, self)
        flight.ends_ns = [end]
        if self._keeps_decisions:
            flight.notes = DecisionNotes(flight, self.state)
        self.in_flight.append(flight)
        self._wake = Instant(self.env, end - flight.start_ns, self._step_end)
        if self._check:
            self.verify()


def _is_padded(flight: Flight) -> bool:
    """Whether the batch computes anything beyond the tokens of its requests."""
    work, pieces = flight.work, [(tokens, r.computed_then) for r, tokens in flight.chunks]
    rows = (work.prefill_tokens, work.decode_rows)
    return rows != (flight.prefill_tokens, flight.decodes) or list(work.chunks) != pieces
