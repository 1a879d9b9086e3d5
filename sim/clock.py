"""Instants: integer nanoseconds, and the fixed order of what happens within one (rules 1 and 61).

SimPy orders events of one time by priority. Ours is the phase, then the replica's place, so that
each phase is completed for all replicas before the next begins, and no order depends on which code
happened to schedule first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from heapq import heappop, heappush
from typing import Any

from simpy import Environment
from simpy.core import EmptySchedule, Infinity, SimTime
from simpy.events import Event


def now_ns(env: Environment) -> int:
    """The simulated clock; an int, as every delay is one."""
    now: int = env._now  # type: ignore[assignment]
    return now


def more_now(env: Environment) -> bool:
    """Whether anything else is to happen at this very instant."""
    queue = env._queue
    return bool(queue) and queue[0][0] <= env._now and env.peek() <= env._now


class Phase(IntEnum):
    """Phases of an instant, in order; a new one is one more line here.

    Values leave room for the replica's place below them. SimPy's own priorities 0 and 1 come first.
    """

    STEP_END = 1 << 32
    COPY_END = (2 << 32) - (1 << 30)
    TRANSFER_END = 2 << 32
    CANCEL = 3 << 32
    HOLD_END = (4 << 32) - (1 << 30)
    CLUSTER_EVENT = 4 << 32
    MIGRATION = (5 << 32) - 2
    SNAPSHOT = (5 << 32) - 1
    HAND_OVER = 5 << 32
    ARRIVAL = 6 << 32
    CAUSED_ARRIVAL = 7 << 32
    SCHEDULE = 8 << 32
    SEND = (9 << 32) - 1
    SAMPLE = 9 << 32


class Clock(Environment):
    """Simulated time, on which wake-ups that were called off leave no trace.

    SimPy would still advance to their time: a client's patience that was not needed, or a run of
    iterations that was cut, would lengthen the simulation.
    """

    def step(self) -> None:
        """Process the next event that anybody waits for (SimPy's own step, but for that)."""
        queue = self._queue
        while queue:
            when_ns, _, _, event = heappop(queue)
            callbacks = event.callbacks
            if event.__class__ is Tick and not event.matters and self._only_ticks():
                continue
            if callbacks or not event._ok:
                break
        else:
            raise EmptySchedule
        self._now = when_ns
        event.callbacks = None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value

    def peek(self) -> SimTime:
        """Time of the next event that anybody waits for; infinity if there is none."""
        queue = self._queue
        while queue and not queue[0][3].callbacks and queue[0][3]._ok:
            heappop(queue)
        if not queue or (queue[0][3].__class__ is Tick and self._only_ticks()):
            return Infinity
        return queue[0][0]

    def instants(self) -> Iterator[int]:
        """Run until nothing is left, stopping after each instant in which things happened.

        An instant in which routers' snapshots were taken, or the series was sampled, and nothing
        else, is none.

        Yields:
            The instant whose phases are over.
        """
        happened = False
        while True:
            when_ns = self.peek()
            if happened and when_ns > self._now:
                happened = False
                yield now_ns(self)
                continue  # whoever was told may have done more at this very instant
            if when_ns == Infinity:
                return
            priority = int(self._queue[0][1])
            happened = happened or (priority != Phase.SNAPSHOT and priority < Phase.SAMPLE)
            self.step()

    def _only_ticks(self) -> bool:
        """Whether nothing is left to happen but looks at what no longer changes."""
        return all(
            (isinstance(event, Tick) and not event.matters) or (event._ok and not event.callbacks)
            for _, _, _, event in self._queue
        )


class Instant(Event):
    """A wake-up some time from now, in a phase (and place) given by its priority.

    It cannot be moved in SimPy's heap. To move one, another takes over its callbacks
    (`replace`); a wake-up without callbacks is void and passes unnoticed.
    """

    def __init__(self, env: Environment, delay_ns: int, priority: int) -> None:
        self.env = env
        self.callbacks: list[Callable[[Any], None]] = []
        self._ok = True
        self._value = None
        # What `Environment.schedule` does, as no event is made as often as these.
        entry = (env._now + delay_ns, priority, next(env._eid), self)
        heappush(env._queue, entry)  # type: ignore[misc]

    def call_off(self) -> None:
        """It never happens, if it has not happened yet."""
        self.callbacks = []

    def replace(self, delay_ns: int, priority: int) -> Instant:
        """Void this wake-up; return another, `delay_ns` from now, for the same waiters."""
        other = Instant(self.env, delay_ns, priority)
        other.callbacks, self.callbacks = self.callbacks, []
        return other


class Tick(Instant):
    """A wake-up that only looks. Where nothing else is left to happen it does not happen either.

    Args:
        matters: Whether it may bring on something else; where one of those left does, all happen.
    """

    def __init__(
        self,
        env: Environment,
        delay_ns: int,
        priority: int,
        matters: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(env, delay_ns, priority)
        self._matters = matters

    @property
    def matters(self) -> bool:
        """Whether the run has to wait for it."""
        return bool(self.callbacks) and self._matters is not None and self._matters()


class Doorbell(Event):
    """A wake-up that nobody has set yet: `ring` sets it for a phase of the present instant."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.rung = False

    def ring(self, priority: int) -> None:
        """Wake whoever waits, in the given phase of this instant; ringing twice is ringing once."""
        if not self.rung:
            self.rung = True
            self._ok = True
            self._value = None
            self.env.schedule(self, priority, 0)  # type: ignore[arg-type]


def looks_to_come(env: Environment) -> bool:
    """Whether somebody will look at the cluster, and may change it then (an autoscaler)."""
    return any(
        isinstance(event, Tick) and event.callbacks and int(priority) != Phase.SNAPSHOT
        for _, priority, _, event in env._queue
    )
