"""Autoscaling: what an autoscaler sees of its pool, what it says, and the rules that follow.

A pool with a `ScalingSpec` is looked at every `interval_ns`, at the multiples k = 1, 2, ... of it,
in phase (2c) of the instant: after the events of the list and the ends of drains, the entry pool
before the decode pool. Nothing is looked at any more when nothing else is left to happen.

- **Current** replicas are those that are up and those that are starting. Draining, gone and failed
  ones are missing, so that an autoscaler may replace a failed one; when that comes back there is
  one more, which the next look may drain.
- The autoscaler says how many it **wants** (`Autoscaler.wanted`), at least 1 while a request waits
  for a replica; that is cut to `min_replicas` .. `max_replicas`, and is the recommendation of this
  instant. At 0 the number at the start is one.
- **Cool-down** is the stabilisation window of the Kubernetes HPA (v1.33,
  pkg/controller/podautoscaler/horizontal.go, stabilizeRecommendationWithBehaviors): of the
  recommendations later than now - `cool_down_up_ns`, this one included, the smallest is the floor,
  of those later than now - `cool_down_down_ns` the largest is the ceiling. The current number is
  raised to the floor, or lowered to the ceiling, else kept; then cut to min .. max again. (The
  HPA's limits on pods per period are not modelled.)
- **More**: with `take_back`, draining replicas are up again first, lowest index first; one that
  drains to change its role is not taken back. (Kubernetes never takes a pod back, so this is off by
  default.) Then new ones are started, like the pool's first replica. Each has the next index at
  once, and is up `start_ns` later (at least 1 ns) in (2c): it takes part from (2d) of that instant.
- **Fewer**: those that are starting are called off first, highest index first, and are gone at
  once; then replicas that are up drain, fewest outstanding requests first, ties to the highest
  index (rule 82 from there on).
- **From zero**: a request that finds no replica waits at the router, or between the pools (rule
  78), and asks, as through the activator of Knative: if none that could run it is up or starting,
  then after phase (3) of that instant, whatever the cool-down says, one draining replica is taken
  back (with `take_back`), or one is started. It waits until that is up, and is routed by rule 61.
  The number there is then is a recommendation of this instant, so that a cool-down keeps it.
- **Beginning at zero** (`from_zero`): the pool's one replica is gone at 0, before anything happens,
  and is not recorded as a change; the number at the start is 0. The first one that is started has
  the index 1.

- **The limit** `max_replicas` is on current replicas. Draining ones, and failed ones that are still
  to be restored, are there besides, and are paid for.

A replica belongs to the pool, and is paid for (`sim.cost`), from when it is started until it is
gone; it is counted as up, and gets requests, from when it is up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from sim.errors import ConfigError
from sim.policy import ReplicaView
from sim.request import NEVER

if TYPE_CHECKING:
    from sim.records import Lifetime


class PoolView:
    """What an autoscaler, or a role switcher, sees of a pool; the numbers are exact as of now.

    Attributes:
        now_ns: This instant.
        since_ns: That of the last look, 0 before the first.
        role: ``both``, ``prefill`` or ``decode``.
        replicas: Those that are up, in index order.
        busy_ns: Of each of them, time with a step in flight since the last look.
        starting: Replicas that have been started and are not up yet.
        draining: Replicas that take no more requests, and still have some.
        failed: Replicas that are down.
        without_replica: Requests that wait for a replica of this pool to come up.
        arrivals: Requests that arrived at the cluster since the last look, rejected ones included.
    """

    def __init__(
        self,
        now_ns: int,
        since_ns: int,
        role: str,
        replicas: Sequence[ReplicaView],
        busy_ns: Sequence[int],
        *,
        starting: int = 0,
        draining: int = 0,
        failed: int = 0,
        without_replica: int = 0,
        arrivals: int = 0,
        live: Iterable[Lifetime] = (),
        ended: Iterable[Lifetime] = (),
    ) -> None:
        self.now_ns, self.since_ns, self.role = now_ns, since_ns, role
        self.replicas, self.busy_ns = replicas, busy_ns
        self.starting, self.draining, self.failed = starting, draining, failed
        self.without_replica, self.arrivals = without_replica, arrivals
        self._live, self._ended = live, ended

    @property
    def current(self) -> int:
        """Replicas that are up or starting."""
        return len(self.replicas) + self.starting

    def ttfts_ns(self) -> list[int]:
        """TTFT of each request of the cluster that got its first token since the last look, ns."""
        firsts = ((x.first_token_ns, x.arrival.arrival_ns) for x in (*self._live, *self._ended))
        return [first - came for first, came in firsts if first > self.since_ns]

    def ages_ns(self) -> list[int]:
        """Time since its arrival of each request that has no first token yet, ns."""
        waiting = (x for x in self._live if x.first_token_ns == NEVER)
        return [self.now_ns - x.arrival.arrival_ns for x in waiting]

    def tpots_ns(self) -> list[float]:
        """Mean gap between tokens of each request that ended since the last look, ns."""
        return [
            (x.last_token_ns - x.first_token_ns) / (x.delivered - 1)
            for x in self._ended
            if x.delivered > 1
        ]


class Autoscaler:
    """How many replicas a pool should have.

    Subclass it as a dataclass, whose fields are its options, and write `wanted`. Each pool of a run
    works on a copy, so that it may keep what it saw. It draws nothing, and sees no output lengths
    but those of requests that have ended.

    Class attributes:
        sees_latencies: It asks for `PoolView.tpots_ns` or `ttfts_ns`, so that requests that end
            are kept until the next look.
    """

    sees_latencies: ClassVar[bool] = False

    def check(self) -> None:
        """Raise `ConfigError` if these options cannot work."""

    def wanted(self, pool: PoolView) -> int:
        """Replicas to have, up and starting ones together."""
        raise NotImplementedError(f"{type(self).__name__} must say how many: wanted(pool)")


@dataclass(frozen=True)
class ScalingSpec:
    """How a pool grows and shrinks; the rules are above.

    Attributes:
        autoscaler: Says how many replicas it wants.
        min_replicas: Fewest, up and starting ones together; 0 lets a pool be off while idle.
        max_replicas: Most.
        interval_ns: Time between looks.
        cool_down_up_ns: Window over which it has to want more, 0 for none.
        cool_down_down_ns: Window over which it has to want fewer, 0 for none.
        start_ns: From the order until a replica is up.
        take_back: Draining replicas are taken back before others are started.
        from_zero: The run begins without replicas; the pool's one says what those are like that are
            started, and is gone at 0.
    """

    autoscaler: Autoscaler
    min_replicas: int = 1
    max_replicas: int = 10
    interval_ns: int = 15_000_000_000
    cool_down_up_ns: int = 0
    cool_down_down_ns: int = 300_000_000_000
    start_ns: int = 0
    take_back: bool = False
    from_zero: bool = False

    def __post_init__(self) -> None:
        if self.max_replicas < max(1, self.min_replicas):
            raise ConfigError(
                f"max_replicas: {self.max_replicas}: expected at least 1, and min_replicas "
                f"({self.min_replicas})"
            )
        if self.from_zero and self.min_replicas:
            raise ConfigError(f"min_replicas: {self.min_replicas}: expected 0 to begin at zero")
        if self.interval_ns < 1:
            raise ConfigError(f"interval_s: {self.interval_ns} ns: expected more than 0")
        if min(self.min_replicas, self.cool_down_up_ns, self.cool_down_down_ns, self.start_ns) < 0:
            raise ConfigError("min_replicas, cool-downs and start-up times are at least 0")
        self.autoscaler.check()


class CoolDown:
    """The recommendations of the last time, and what they let through.

    Args:
        spec: Windows and limits.
        replicas: Number at the start.
    """

    def __init__(self, spec: ScalingSpec, replicas: int) -> None:
        self._spec = spec
        self._said = [(0, replicas)]  # when, how many

    def note(self, now_ns: int, number: int) -> None:
        """This is a recommendation of now."""
        self._said.append((now_ns, number))

    def number(self, now_ns: int, wanted: int, current: int) -> int:
        """How many replicas to have, if `wanted` is said now."""
        spec = self._spec
        wanted = self._within(wanted)
        self.note(now_ns, wanted)
        floor = min(n for when, n in self._said if self._counts(when, now_ns, up=True))
        ceiling = max(n for when, n in self._said if self._counts(when, now_ns, up=False))
        longest = max(spec.cool_down_up_ns, spec.cool_down_down_ns)
        self._said = [each for each in self._said if each[0] > now_ns - longest]
        return self._within(min(max(current, floor), ceiling))

    def _counts(self, when_ns: int, now_ns: int, *, up: bool) -> bool:
        window_ns = self._spec.cool_down_up_ns if up else self._spec.cool_down_down_ns
        return when_ns == now_ns or when_ns > now_ns - window_ns

    def _within(self, number: int) -> int:
        return min(max(number, self._spec.min_replicas), self._spec.max_replicas)
