"""Whether the runs of one value meet a goal, and whether that is certain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.bundle import Bundle
from experiments.capacity.goal import Goal, Term
from experiments.capacity.search import Judged
from experiments.quantity import Sample
from experiments.statistics.intervals import Interval, Refusal
from experiments.verdict import MIN_REQUESTS, UNTOLD
from sim.errors import ConfigError
from sim.fairness import session_e2e_s
from sim.metrics import NS_PER_S


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
        begins_s: Where sessions are in closed loop, time from the first one's begin to the last
            one's; else NaN.
        session_s: What they take on average, thinking included; else NaN.
    """

    verdict: str
    samples: tuple[Sample, ...]
    arrival_rate: float
    arrived: int
    simulate_s: float
    reused: bool
    folder: str
    begins_s: float = math.nan
    session_s: float = math.nan


def evaluate(bundle: Bundle, goal: Goal, *, folder: str, reused: bool) -> Evaluation:
    """Keep of a run what a judgement needs.

    Raises:
        ConfigError: The run has too few requests to tell anything, or lacks a number.
    """
    verdict = str(bundle.summary["verdict"]["name"])
    counts = bundle.summary["requests"]
    if verdict == UNTOLD and counts["arrived"] - counts["rejected"] < MIN_REQUESTS:
        raise ConfigError(
            f"{bundle.label}: {bundle.summary['verdict']['reason']} to tell whether it keeps up; "
            f"give the workload at least {MIN_REQUESTS} requests, better thousands"
        )
    begins_s, session_s = _sessions(bundle)
    rate = bundle.summary["overall"]["arrival_rate_requests_per_s"]
    return Evaluation(
        verdict=verdict,
        samples=tuple(term.quantity.sample(bundle) for term in goal.terms),
        arrival_rate=float("nan") if rate is None else float(rate),
        arrived=int(bundle.summary["requests"]["arrived"]),
        simulate_s=float(bundle.wallclock.get("simulate_s", 0.0)),
        reused=reused,
        folder=folder,
        begins_s=begins_s,
        session_s=session_s,
    )


def _sessions(bundle: Bundle) -> tuple[float, float]:
    """How long sessions in closed loop begin, and how long they take; NaN where there are none."""
    if "sessions" not in bundle.summary:
        return math.nan, math.nan
    requests = bundle.requests
    known = np.array([name is not None for name in requests["session"].tolist()], dtype=bool)
    arrival_ns = requests["arrival_ns"][known]
    _, of = np.unique(requests["session"][known].astype(str), return_inverse=True)
    begin = np.full(int(of.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(begin, of, arrival_ns)
    lengths_s = session_e2e_s(requests, np.ones(len(known), dtype=bool))
    mean_s = float(lengths_s.mean()) if len(lengths_s) else math.nan
    return float(begin.max() - begin.min()) / NS_PER_S, mean_s


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


def behind(runs: Sequence[Evaluation]) -> int:
    """How many of the runs were overloaded or backlogged."""
    return sum(run.verdict in ("overloaded", "backlogged") for run in runs)


def untold(runs: Sequence[Evaluation]) -> int:
    """How many of the runs are too short to tell whether they keep up."""
    return sum(run.verdict == UNTOLD for run in runs)


def verdicts_said(runs: Sequence[Evaluation]) -> str:
    """``, 2 overloaded or backlogged, 1 too short to tell``, or nothing."""
    late, short = behind(runs), untold(runs)
    said = f", {late} overloaded or backlogged" if late else ""
    return said + (f", {short} {UNTOLD}" if short else "")


def keeps_up(runs: Sequence[Evaluation]) -> bool:
    """Whether runs of a value keep up: none is overloaded, and at most half are backlogged.

    A run that ends in a burst is backlogged (`experiments.verdict`); its latencies are judged as
    they are. Those of an overloaded run say how long it was, so that a short one meets anything;
    and so do those of a run in which requests only gather, as it is too short for its rate.
    """
    overloaded = any(run.verdict in ("overloaded", UNTOLD) for run in runs)
    return not overloaded and 2 * behind(runs) <= len(runs)


def judge(runs: Sequence[Evaluation], goal: Goal) -> Judged:
    """The judgement on a value.

    The goal is met if every term holds over the requests of all runs together and they keep up
    (`keeps_up`). It is clear if all runs agree in that, and the confidence intervals of the terms
    leave no doubt: one term that clearly fails is enough.

    Args:
        runs: Of the same value with different seeds, at least one.
        goal: What has to hold.
    """
    found, late = findings(runs, goal), behind(runs) + untold(runs)
    numbers = tuple(each.value for each in found)
    if not keeps_up(runs):
        return Judged(False, late == len(runs), numbers)
    failed = [each for each in found if not each.meets]
    if failed:
        return Judged(False, any(each.clear for each in failed), numbers)
    return Judged(True, not late and all(each.clear for each in found), numbers)
