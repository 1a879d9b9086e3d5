"""Autoscalers: how many replicas a pool should have (`sim.autoscale` has the rules around them)."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

from sim.autoscale import Autoscaler, PoolView
from sim.errors import ConfigError

NS_PER_S = 1_000_000_000


def exact(number: float) -> Fraction:
    """A number as its shortest decimal text says it: 0.6 is six tenths."""
    return Fraction(repr(number))


@dataclass
class QueueLength(Autoscaler):
    """As many replicas as the queue needs at a number of requests for each.

    ceil(requests / target) over the requests outstanding on the replicas that are up and those that
    wait for a replica; with ``count: waiting`` only those in a queue, and those without a replica.
    With no request it wants none, and so min_replicas.

    Source: an external metric with an AverageValue target, as KEDA hands it to the HPA (Kubernetes
    v1.33, pkg/controller/podautoscaler/replica_calculator.go, GetExternalPerPodMetricReplicas);
    the metrics are vLLM's num_requests_running and num_requests_waiting. The HPA's tolerance is not
    applied: one request more than so many replicas are for is one replica more.

    Args:
        target: Requests for each replica.
        count: ``outstanding``: running and waiting ones; ``waiting``: only those in a queue.
    """

    target: float = field(default=16.0, metadata={"minimum": 1e-3})
    count: str = "outstanding"

    def check(self) -> None:
        """Raise `ConfigError` for something else to count."""
        if self.count not in ("outstanding", "waiting"):
            raise ConfigError(f"count: {self.count}: expected outstanding or waiting")

    def wanted(self, pool: PoolView) -> int:
        """The requests there are, by the target."""
        if self.count == "waiting":
            there = sum(replica.waiting for replica in pool.replicas)
        else:
            there = sum(replica.outstanding for replica in pool.replicas)
        return ceil((there + pool.without_replica) / exact(self.target))


@dataclass
class Utilisation(Autoscaler):
    """Replicas that are busy for a share of the time: the formula of the Kubernetes HPA.

    The metric is the share of the time since the last look in which a replica that is up had a step
    in flight. With ratio = mean metric / target: within `tolerance` of 1 the current number stays,
    else ceil(replicas up x ratio). Replicas that start count as idle where that would raise the
    number: if over all of them the ratio is not above 1 + tolerance, the number stays. With none up
    the number stays: a pool at zero is woken by a request.

    Source: Kubernetes v1.33 documentation, "Horizontal Pod Autoscaling", section Algorithm details
    (tolerance 0.1 by default; pods not ready count as using nothing when scaling up).

    Args:
        target: Share of the time, above 0 and at most 1.
        tolerance: Deviation from 1 of the ratio that changes nothing.
    """

    target: float = field(default=0.7, metadata={"minimum": 1e-3, "maximum": 1})
    tolerance: float = 0.1

    def wanted(self, pool: PoolView) -> int:
        """The current number times the ratio."""
        up, span_ns = len(pool.replicas), pool.now_ns - pool.since_ns
        if not up:
            return pool.current
        needed = Fraction(sum(pool.busy_ns), span_ns) / exact(self.target)
        slack = exact(self.tolerance)
        if abs(needed / up - 1) <= slack:
            return pool.current
        if needed > up and needed / pool.current <= 1 + slack:
            return pool.current
        return ceil(needed)


@dataclass
class SLOHeadroom(Autoscaler):
    """More replicas while latencies come near their targets, fewer while they are far below.

    The pressure is the largest of: TTFT at the quantile / `ttft_s`, over requests that got their
    first token since the last look and those that have waited longer than `ttft_s` for it; TPOT at
    the quantile / `tpot_s`, over requests that ended since. The quantile is a value that occurred
    (rule 59). Above `high` it wants ceil(current x pressure / high), but at most twice the current
    number; below `low` one fewer; between, and with nothing to judge by, what there is. With no
    request at all, neither running nor waiting, it wants none, and so min_replicas.

    Source: ours, with the targets of the SLA planner of NVIDIA Dynamo, which predicts the load and
    corrects its profiles by the TTFT and ITL observed; here nothing is predicted or profiled.

    Args:
        ttft_s: Target of the TTFT, seconds; None: not looked at.
        tpot_s: Target of the TPOT, seconds; None: not looked at.
        quantile: Share of the requests that the latency is taken at.
        high: Pressure above which replicas are added.
        low: Pressure below which one is taken away.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    quantile: float = field(default=0.95, metadata={"minimum": 1e-3, "maximum": 1})
    high: float = field(default=0.8, metadata={"minimum": 1e-3})
    low: float = 0.3

    sees_latencies = True

    def check(self) -> None:
        """Raise `ConfigError` without a target, or with limits that cross."""
        if self.ttft_s is None and self.tpot_s is None:
            raise ConfigError("slo-headroom needs a target: give ttft_s, tpot_s or both")
        if self.low >= self.high:
            raise ConfigError(f"low: {self.low:g}: expected less than high ({self.high:g})")

    def wanted(self, pool: PoolView) -> int:
        """By the pressure."""
        current, pressure = pool.current, self.pressure(pool)
        if pressure is None:
            idle = not pool.without_replica and not any(x.outstanding for x in pool.replicas)
            return 0 if idle else current
        if pressure > exact(self.high):
            return min(2 * current, ceil(current * pressure / exact(self.high))) or 1
        return current - 1 if pressure < exact(self.low) else current

    def pressure(self, pool: PoolView) -> Fraction | None:
        """Of the latencies by their targets, the largest; None if there are none."""
        found = []
        if self.ttft_s:
            target = exact(self.ttft_s) * NS_PER_S
            late = [age for age in pool.ages_ns() if age > target]
            found += _share([*pool.ttfts_ns(), *late], self.quantile, target)
        if self.tpot_s:
            found += _share(pool.tpots_ns(), self.quantile, exact(self.tpot_s) * NS_PER_S)
        return max(found, default=None)


def _share(values: list[int] | list[float], quantile: float, target: Fraction) -> list[Fraction]:
    """The quantile by its target, or nothing if there are no values."""
    if not values:
        return []
    rank = max(1, ceil(exact(quantile) * len(values)))
    return [Fraction(sorted(values)[rank - 1]) / target]


@dataclass
class Schedule(Autoscaler):
    """A number of replicas by the time of day, of the run or of a period.

    Of the entries whose time is over the last one counts; before the first, the last entry of the
    period before, or without a period what there is.

    Source: the cron scaler of KEDA 2.15 and the scheduled actions of Amazon EC2 Auto Scaling, in
    seconds from the start of the run instead of a calendar.

    Args:
        at_s: Seconds, in rising order.
        replicas: How many from each of them on.
        period_s: Begin again after so many seconds, 86400 for a day; None: never.
    """

    at_s: list[float]
    replicas: list[int] = field(metadata={"minimum": 0})
    period_s: float | None = None

    def check(self) -> None:
        """Raise `ConfigError` if times and numbers do not go together."""
        if not self.at_s or len(self.at_s) != len(self.replicas):
            raise ConfigError(
                f"at_s and replicas: {len(self.at_s)} times and {len(self.replicas)} numbers: "
                "expected as many of both, at least 1"
            )
        if self.at_s != sorted(set(self.at_s)) or self.at_s[0] < 0:
            raise ConfigError("at_s: expected times of at least 0 in rising order")
        if min(self.replicas) < 0:
            raise ConfigError(f"replicas: {min(self.replicas)}: expected at least 0")
        if self.period_s is not None and self.period_s <= self.at_s[-1]:
            raise ConfigError(f"period_s: {self.period_s:g}: expected more than the last of at_s")

    def wanted(self, pool: PoolView) -> int:
        """That of the last entry whose time is over."""
        now: Fraction = Fraction(pool.now_ns, NS_PER_S)
        if self.period_s is not None:
            now %= exact(self.period_s)
        over = [n for at, n in zip(self.at_s, self.replicas, strict=True) if exact(at) <= now]
        if over:
            return over[-1]
        return pool.current if self.period_s is None else self.replicas[-1]
