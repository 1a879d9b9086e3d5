"""A trace of a benchmark run: the same requests, arriving when they did as far as the file says."""

from __future__ import annotations

import heapq
import math
import re
from typing import TYPE_CHECKING

import numpy as np

from experiments.validation.measured import Measurement
from sim.request import NEVER, Trace

if TYPE_CHECKING:
    import pandas as pd


_SAID_BY_TRACE = re.compile("requests failed;|no arrival times")
"""Notes of a measurement that say what those of its trace say."""


def trace_of(measurement: Measurement, seed: int = 0) -> Trace:
    """The requests that were served, in order of arrival.

    Arrival times are those of the file; else, of a run with a limit on concurrency and no limit on
    the rate, those that follow from it and the measured latencies; else all 0 (rate inf), or drawn
    anew at the file's rate and burstiness; else none. The last note says which; those before it
    are of requests that are left out, and of the measurement.

    Args:
        measurement: Of `measured.read_measurement`.
        seed: Of the draws.
    """
    served = measurement.served
    left_out = len(measurement.requests) - len(served)
    notes = [f"{left_out} failed requests are left out."] if left_out else []
    notes += [note for note in measurement.notes if not _SAID_BY_TRACE.search(note)]
    times_s, how = _arrivals(served, measurement)
    order = np.argsort(times_s, kind="stable")
    trace = Trace(
        arrival_ns=np.rint(times_s[order] * 1e9).astype(np.int64),
        prompt_tokens=served.prompt_tokens.to_numpy(np.int64)[order],
        output_tokens=served.output_tokens.to_numpy(np.int64)[order],
        max_tokens=np.zeros(len(served), np.int64),
        row=served.index.to_numpy(np.int64)[order] + 1,
        source=measurement.source,
        notes=notes,
    )
    rate = measurement.settings.get("request_rate")
    if how:
        trace.notes.append(how)
    elif isinstance(rate, float):
        trace = _drawn(trace, rate, measurement.settings.get("burstiness"), seed)
    else:
        trace.arrival_ns[:] = NEVER
        trace.notes.append(
            "Arrival times: none, as the file has neither times nor a rate; choose `arrivals` in "
            "the config."
        )
    return trace


def _arrivals(served: pd.DataFrame, measurement: Measurement) -> tuple[np.ndarray, str]:
    """Times (n,), s, and how they were got; an empty text where they were not."""
    if served.arrival_s.notna().all():
        return served.arrival_s.to_numpy(float), "Arrival times: as the file has them."
    rate = measurement.settings.get("request_rate")
    limit = measurement.settings.get("max_concurrency")
    if rate == math.inf and isinstance(limit, int) and served.e2e_s.notna().all():
        times = closed_loop(served.e2e_s.to_numpy(float), limit)
        return times, (
            f"Arrival times: the file has none; they follow from at most {limit} requests at once "
            "and the measured latencies. A closed loop needs none: "
            f"arrivals: {{process: closed-loop, concurrency: {limit}}}."
        )
    if rate == math.inf:
        return np.zeros(len(served)), "Arrival times: all at once, as the request rate was inf."
    return np.zeros(len(served)), ""


def closed_loop(latencies_s: np.ndarray, limit: int) -> np.ndarray:
    """Start of each request, (n,), s, where the next one starts as soon as fewer than `limit` run.

    Args:
        latencies_s: Start to end of each, (n,), in the order in which they were sent.
        limit: Most requests at once.
    """
    starts = np.zeros(len(latencies_s))
    ends: list[float] = []
    for i, latency in enumerate(latencies_s.tolist()):
        start = heapq.heappop(ends) if len(ends) >= limit else 0.0
        starts[i] = start
        heapq.heappush(ends, start + latency)
    return starts


def _drawn(trace: Trace, rate_per_s: float, burstiness: object, seed: int) -> Trace:
    """Drawn anew, as the tools draw: Gamma gaps of shape `burstiness`, 1 being Poisson."""
    from traces.arrivals import arrive

    shape = float(burstiness) if isinstance(burstiness, int | float) else 1.0
    drawn = (
        arrive(trace, "poisson", seed=seed, rate_per_s=rate_per_s)
        if shape == 1
        else arrive(trace, "gamma", seed=seed, rate_per_s=rate_per_s, cv=1 / math.sqrt(shape))
    )
    drawn.notes[-1:] = [
        f"Arrival times: the file has none; drawn anew at its rate of {rate_per_s:g} a second "
        f"and burstiness {shape:g} (seed {seed}), so not those of the run."
    ]
    return drawn
