"""Whether a run kept up with its arrivals: stable, backlogged, overloaded or too short to tell.

Latencies of an overloaded run say how long it was, not how good the policy is, so every table and
figure carries the verdict. It is made from the requests table alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from sim.metrics import NS_PER_S, Floats, Ints, Requests, e2e_s, queueing_delay_s
from sim.records import REJECTED

Name = Literal["stable", "backlogged", "overloaded", "too short to tell"]

UNTOLD: Name = "too short to tell"
"""The verdict on runs of which nothing can be said: no overload, and no proof against it."""

MIN_REQUESTS = 200
"""Fewer requests than this tell nothing."""

BATCHES = 10
"""Equal parts of the second half of the arrival window; few, so that their means are nearly
independent of each other, which the confidence interval takes them to be. On M/D/1 queues the
verdict is then right in at least 97 % of seeds at loads 0.5 and 0.8 from 1,000 requests on; at load
1.1 it needs 5,000, with 1,000 it says backlogged in one seed of five."""

CONFIDENCE = 0.99
"""One-sided, of a positive slope."""

STUDENT_T = 2.896459447709622
"""Student's t at `CONFIDENCE` with `BATCHES` - 2 degrees of freedom, scipy.stats.t.ppf(0.99, 8).
Importing scipy for this one number would take longer than many a run."""

QUEUE_TIMES_MEDIAN = 10
"""A queue this many times its median is a backlog."""

DELAY_TIMES_SERVICE = 10
"""A queue that waits this many times as long as a request takes to serve is a backlog."""

DEFINITION = (
    "overloaded: over the second half of the arrival window the number of requests in system "
    f"grows with {CONFIDENCE:.0%} confidence (line through {BATCHES} batch means), and that line "
    "at least doubles over the window, from its own start and from the mean of the first quarter; "
    "too short to tell instead if that half is shorter than "
    f"{BATCHES} times the mean time from first scheduled to last token, and fewer than half of "
    "those in system at the last arrival wait for their first schedule; "
    "backlogged: at the last arrival the queue is over "
    f"{QUEUE_TIMES_MEDIAN} times its median, or takes longer to start than the P99 of E2E, or "
    f"longer than {DELAY_TIMES_SERVICE} times the median time from first scheduled to last token; "
    f"else stable. Under {MIN_REQUESTS} requests, rejected ones not counted: too short to tell."
)
"""The rule in one sentence, for `phasewise metrics` and the README."""


@dataclass(frozen=True)
class Verdict:
    """What can be said of a run as a whole.

    Attributes:
        name: The verdict.
        reason: The numbers that it rests on, one line.
    """

    name: Name
    reason: str

    @property
    def mark(self) -> str:
        """What stands behind a label in figures: empty where latencies can be taken as they are."""
        return "" if self.name == "stable" else self.name


@dataclass(frozen=True)
class Trend:
    """A line through the number of requests in system over the second half of the arrival window.

    Attributes:
        slope_per_s: Requests per second.
        slope_low_per_s: Lower end of the one-sided confidence interval of the slope.
        at_start: The line at the start of the window, requests.
        at_end: The line at the end of the window, requests.
        first_quarter: Mean over the first quarter of the window, requests.
    """

    slope_per_s: float
    slope_low_per_s: float
    at_start: float
    at_end: float
    first_quarter: float

    @property
    def overloaded(self) -> bool:
        """Whether it grows for certain, and at least doubles over the window.

        The line alone would take the rise out of a random dip in mid-window for growth: where many
        requests run at once, batch means depend on each other. Hence the look at the first quarter.
        """
        before = max(self.at_start, self.first_quarter)
        return self.slope_low_per_s > 0 and self.at_end >= 2 * before


def judge(requests: Requests) -> Verdict:
    """Give the verdict on a run from all its requests, warm-up and drain included.

    A run that rejects most of its requests may well be stable, so the reason names their share.
    """
    entered = {name: column[requests["state"] != REJECTED] for name, column in requests.items()}
    verdict = _judge_entered(entered)
    arrived = len(requests["arrival_ns"])
    rejected = arrived - len(entered["arrival_ns"])
    if not rejected:
        return verdict
    share = f"{rejected:,} of {arrived:,} requests rejected ({rejected / arrived:.1%})"
    return replace(verdict, reason=f"{verdict.reason}; {share}")


def _judge_entered(entered: Requests) -> Verdict:
    count = len(entered["arrival_ns"])
    if count < MIN_REQUESTS:
        return Verdict(UNTOLD, f"{count} request{'s' * (count != 1)}; needs {MIN_REQUESTS}")
    first, last = int(entered["arrival_ns"].min()), int(entered["arrival_ns"].max())
    trend = fit_trend(entered, first, last)
    if trend is not None and trend.overloaded:
        there = _present(entered["arrival_ns"], _or_never(entered["end_ns"]), last)
        if (why := _too_short(entered, first, last, there)) is not None:
            return Verdict(UNTOLD, why)
        return Verdict(
            "overloaded",
            f"requests in system grow by {trend.slope_per_s:.3g} a second (99 % sure of "
            f"{trend.slope_low_per_s:.3g}), to {there:,} at the last arrival",
        )
    return _judge_queue(entered, first, last)


def _too_short(entered: Requests, first: int, last: int, there: int) -> str | None:
    """Why a rise of the number in system is no overload yet: a batch mean is short, and few wait.

    A burst fills a server that runs many requests at once for as long as these take, and the means
    of parts shorter than that are not independent.
    """
    queue = _present(entered["arrival_ns"], _or_never(entered["first_scheduled_ns"]), last)
    service = e2e_s(entered) - queueing_delay_s(entered)
    service_s = float(np.nanmean(service)) if not np.isnan(service).all() else np.inf
    half_s = (last - first) / 2 / NS_PER_S
    if 2 * queue >= there or half_s >= BATCHES * service_s:
        return None
    return (
        f"requests in system grow to {there:,} at the last arrival, of which {queue:,} wait, in "
        f"half a window of {half_s:.3g} s; needs {BATCHES * service_s:.3g} s, as serving takes "
        f"{service_s:.3g} s"
    )


def _judge_queue(entered: Requests, first: int, last: int) -> Verdict:
    left_queue = _or_never(entered["first_scheduled_ns"])
    queue = _present(entered["arrival_ns"], left_queue, last)
    waiting = (entered["arrival_ns"] <= last) & (left_queue > last)
    drain_s = (left_queue[waiting].max() - last) / NS_PER_S if waiting.any() else 0.0
    # The median counts as at least one request: ten times an empty queue would be any queue.
    usual = max(1, _median_over_time(entered["arrival_ns"], left_queue, first, last))
    service_s = _median(e2e_s(entered) - queueing_delay_s(entered))
    p99_s = _p99(e2e_s(entered))
    text = f"{queue} request{'s wait' if queue != 1 else ' waits'} at the last arrival"
    alone = "s" * (queue == 1)
    if queue > QUEUE_TIMES_MEDIAN * usual:
        return Verdict("backlogged", f"{text}; the median is {usual:g}")
    if drain_s > p99_s:
        return Verdict(
            "backlogged", f"{text} and take{alone} {drain_s:.3g} s to start; P99 E2E {p99_s:.3g} s"
        )
    if drain_s > DELAY_TIMES_SERVICE * service_s:
        return Verdict(
            "backlogged",
            f"{text} and take{alone} {drain_s:.3g} s to start; serving takes {service_s:.3g} s",
        )
    return Verdict("stable", text)


def fit_trend(entered: Requests, first_ns: int, last_ns: int) -> Trend | None:
    """Fit the number in system against time by batch means; None where the window has no length.

    Args:
        entered: Requests that were not rejected.
        first_ns: First arrival.
        last_ns: Last arrival.
    """
    middle_ns = (first_ns + last_ns) / 2
    edges = np.linspace(middle_ns, last_ns, BATCHES + 1)
    if edges[0] >= edges[-1]:
        return None
    present = entered["arrival_ns"], _or_never(entered["end_ns"])
    means = _mean_present(*present, edges)
    early = _mean_present(*present, np.array([first_ns, (first_ns + middle_ns) / 2]))
    middle_s = (edges[:-1] + edges[1:]) / 2 / NS_PER_S
    slope, error = _line(middle_s - middle_s.mean(), means - means.mean())

    def line(ns: float) -> float:
        return float(means.mean() + slope * (ns / NS_PER_S - middle_s.mean()))

    low = slope - error * STUDENT_T
    return Trend(slope, low, line(first_ns), line(last_ns), float(early[0]))


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope of the least-squares line through centred points, and its standard error."""
    slope = float(x @ y / (x @ x))
    residual = y - slope * x
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))


def _or_never(ns: Ints) -> Ints:
    return np.where(ns < 0, np.iinfo(np.int64).max, ns)


def _present(start_ns: Ints, end_ns: Ints, at_ns: int) -> int:
    return int(((start_ns <= at_ns) & (end_ns > at_ns)).sum())


def _mean_present(start_ns: Ints, end_ns: Ints, edges: Floats) -> Floats:
    """Mean number present between consecutive edges, shape (len(edges) - 1,)."""
    time_ns, number = _steps(start_ns, end_ns)
    area = np.concatenate(([0.0], np.cumsum(number[:-1] * np.diff(time_ns.astype(np.float64)))))
    step = np.clip(np.searchsorted(time_ns, edges, side="right") - 1, 0, None)
    until = area[step] + number[step] * (edges - time_ns[step])
    return np.diff(until) / np.diff(edges)


def _median_over_time(start_ns: Ints, end_ns: Ints, first: int, last: int) -> float:
    """Median, weighted by time, of the number present from first to last."""
    time_ns, number = _steps(start_ns, end_ns)
    length = np.diff(np.append(np.clip(time_ns, first, last), last))
    if not length.any():
        return 0.0
    return float(np.quantile(number, 0.5, weights=length, method="inverted_cdf"))


def _steps(start_ns: Ints, end_ns: Ints) -> tuple[Ints, Ints]:
    """Instants at which the number present changes, ascending, and the number from there on."""
    ended = end_ns[end_ns < np.iinfo(np.int64).max]
    time_ns, position = np.unique(np.concatenate((start_ns, ended)), return_inverse=True)
    change = np.zeros(len(time_ns), np.int64)
    np.add.at(change, position[: len(start_ns)], 1)
    np.add.at(change, position[len(start_ns) :], -1)
    return time_ns, np.cumsum(change)


def _median(values: Floats) -> float:
    defined = values[~np.isnan(values)]
    return float(np.median(defined)) if len(defined) else np.inf


def _p99(values: Floats) -> float:
    defined = values[~np.isnan(values)]
    return float(np.quantile(defined, 0.99, method="inverted_cdf")) if len(defined) else np.inf
