"""How often a point is launched, and what that costs: the same rule for the plan and the run."""

from __future__ import annotations

from dataclasses import dataclass

from kernels_profile.profiler.points import Point


@dataclass(frozen=True)
class Effort:
    """How much work goes into one point.

    A *replay* is one CUDA graph of several launches over rotated inputs; its time divided by its
    launches is one sample.

    Attributes:
        graph_us: A replay lasts at least this long, so that the event's resolution does not matter.
        max_launches: Most launches in one graph.
        target_us: Time that all replays of a point take together, if within the repeats below.
        min_repeats: Fewest replays.
        max_repeats: Most.
        l2_bytes: The device's last-level cache.
        l2_times: Rotated inputs together are this many times as large, so that none is found there.
        capture_us: Host time to record one launch into a graph: an assumption for the plan.
        point_us: Host time of a point beside that: an assumption for the plan.
    """

    graph_us: float = 200.0
    max_launches: int = 256
    target_us: float = 20_000.0
    min_repeats: int = 5
    max_repeats: int = 25
    l2_bytes: int = 50 * 2**20
    l2_times: int = 3
    capture_us: float = 40.0
    point_us: float = 15_000.0

    def sets(self, set_bytes: int) -> int:
        """Sets of inputs to rotate; inputs too small for `max_launches` of them stay in L2."""
        if not set_bytes:
            return 1
        wanted = -(-self.l2_times * self.l2_bytes // set_bytes)
        return max(1, min(self.max_launches, wanted))

    def launches(self, launch_us: float, sets: int) -> int:
        """Launches in one graph: all sets, and long enough."""
        wanted = -(-self.graph_us // max(launch_us, 0.1))
        return max(sets, min(self.max_launches, int(wanted)))

    def repeats(self, replay_us: float) -> int:
        """Replays to time."""
        wanted = int(self.target_us // max(replay_us, 0.1))
        return max(self.min_repeats, min(self.max_repeats, wanted))

    def point_s(self, point: Point) -> float:
        """What a point is expected to cost, seconds: warm-up, capture and replays."""
        launches = self.launches(point.estimate_us, self.sets(point.set_bytes))
        replay_us = launches * point.estimate_us
        warm_us = 2 * point.estimate_us
        device_us = warm_us + (1 + self.repeats(replay_us)) * replay_us
        return (device_us + launches * self.capture_us + self.point_us) / 1e6

    def memory_bytes(self, point: Point) -> int:
        """Memory that the point needs at once."""
        return self.sets(point.set_bytes) * point.set_bytes + point.output_bytes
