"""Whether the runs of one value meet a goal, and whether that is certain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.bundle import Bundle
from experiments.capacity.goal import Goal, Term
from experiments.capacity.search import Judged
from experiments.quantity import Sample
from experiments.statistics.intervals import Interval, Refusal
from experiments.verdict import MIN_REQUESTS
from sim.errors import ConfigError

_GROWING = ("overloaded", "backlogged")


@dataclass(frozen=True)
class Evaluation:
    """One run of one value.

    Attributes:
        verdict: Whether it kept up (`experiments.verdict`).
        samples: What it says of each term of the goal.
        arrival_rate: Requests per second that it measured; NaN where they have no time.
        arrived: Requests simulated.
        simulate_s: Seconds of one core that it took, when it was made.
        reused: It was there already.
        folder: Of its bundle.
    """

    verdict: str
    samples: tuple[Sample, ...]
    arrival_rate: float
    arrived: int
    simulate_s: float
    reused: bool
    folder: str


def evaluate(bundle: Bundle, goal: Goal, *, folder: str, reused: bool) -> Evaluation:
    """Keep of a run what a judgement needs.

    Raises:
        ConfigError: The run is too short to tell whether it is overloaded, or lacks a number.
    """
    verdict = str(bundle.summary["verdict"]["name"])
    if verdict == "too short to tell":
        raise ConfigError(
            f"{bundle.label}: {bundle.summary['verdict']['reason']} to tell whether it keeps up; "
            f"give the workload at least {MIN_REQUESTS} requests, better thousands"
        )
    rate = bundle.summary["overall"]["arrival_rate_requests_per_s"]
    return Evaluation(
        verdict=verdict,
        samples=tuple(term.quantity.sample(bundle) for term in goal.terms),
        arrival_rate=float("nan") if rate is None else float(rate),
        arrived=int(bundle.summary["requests"]["arrived"]),
        simulate_s=float(bundle.wallclock.get("simulate_s", 0.0)),
        reused=reused,
        folder=folder,
    )


@dataclass(frozen=True)
class Finding:
    """What all runs of a value say of one term.

    Attributes:
        term: Of the goal.
        value: Of all their requests together.
        interval: Of it, or why there is none.
    """

    term: Term
    value: float
    interval: Interval | Refusal

    @property
    def meets(self) -> bool:
        """Whether the value meets the term."""
        return self.term.holds(self.value)

    @property
    def clear(self) -> bool:
        """Whether both ends of the interval say the same as the value."""
        if isinstance(self.interval, Refusal):
            return False
        return self.term.holds(self.interval.low) == self.term.holds(self.interval.high)


def findings(runs: Sequence[Evaluation], goal: Goal) -> list[Finding]:
    """What runs with other seeds say of each term."""
    columns = zip(*(run.samples for run in runs), strict=True)
    return [
        Finding(term, term.quantity.value(samples), term.quantity.interval(samples))
        for term, samples in zip(goal.terms, columns, strict=True)
    ]


def growing(runs: Sequence[Evaluation]) -> int:
    """How many of the runs did not keep up with their arrivals."""
    return sum(run.verdict in _GROWING for run in runs)


def judge(runs: Sequence[Evaluation], goal: Goal) -> Judged:
    """The judgement on a value.

    The goal is met if every term holds over the requests of all runs together and at most half of
    the runs are overloaded or backlogged: latencies of a run that does not keep up say how long it
    was, so that a short enough one meets anything. It is clear if all runs agree in that, and the
    confidence intervals of the terms leave no doubt: one term that clearly fails is enough.

    Args:
        runs: Of the same value with different seeds, at least one.
        goal: What has to hold.
    """
    found, behind = findings(runs, goal), growing(runs)
    if 2 * behind > len(runs):
        return Judged(meets=False, clear=behind == len(runs))
    failed = [each for each in found if not each.meets]
    if failed:
        return Judged(meets=False, clear=any(each.clear for each in failed))
    return Judged(meets=True, clear=not behind and all(each.clear for each in found))
