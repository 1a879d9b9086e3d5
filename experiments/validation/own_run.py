"""A server's own run, simulated: the requests that it served, at the same times, on a config."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments import cluster
from experiments.schema import Experiment
from experiments.validation.bench_trace import trace_of
from experiments.validation.measured import Measurement
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.metrics import NS_PER_S, Floats, Gaps, e2e_s, finished, tpot_s, ttft_s
from sim.records import Record, SimulationResult
from sim.request import NEVER, Ints, Trace
from traces.arrivals import make_source

if TYPE_CHECKING:
    import pandas as pd

_GAPS_SEEN = 0.98
"""Share of the gaps between tokens that a file must hold for ITL to be compared: with less, its
gaps are between chunks of several tokens."""


@dataclass(frozen=True)
class Latencies:
    """What a run came to, measured or simulated; arrays (n,) in the order of the trace.

    Attributes:
        arrival_s: NaN where it is not known.
        ttft_s: Arrival to first token; NaN where it is not known.
        tpot_s: Mean gap between tokens; NaN for one token.
        e2e_s: Arrival to last token.
        gaps: Distinct gaps between tokens, ns, and how often each occurred; None where unknown.
        span_s: First arrival to last token of all; NaN where it is not known.
    """

    arrival_s: Floats
    ttft_s: Floats
    tpot_s: Floats
    e2e_s: Floats
    gaps: Gaps | None
    span_s: float


@dataclass(frozen=True)
class Replay:
    """The requests of a measurement on a config, ready to be simulated.

    Attributes:
        experiment: The variant; its workload is not used.
        folder: Where its relative paths start.
        where: Config and variant, for messages.
        trace: The requests that were served; `row` is their place in the file, from 1.
        concurrency: Places of a closed loop; None where arrivals are those of the trace.
        requests: Rows of `Measurement.requests`, (n,), in the order of the trace.
        measured: Their latencies.
        drawn: Whether arrival times are not those of the run, but drawn anew at its rate.
        notes: What a reader should know, one sentence each.
    """

    experiment: Experiment
    folder: Path
    where: str
    trace: Trace
    concurrency: int | None
    requests: pd.DataFrame
    measured: Latencies
    drawn: bool
    notes: tuple[str, ...]

    def run(self, experiment: Experiment | None = None) -> SimulationResult:
        """Simulate the requests.

        Args:
            experiment: Another one, such as with another host; the replay's own by default.

        Raises:
            ConfigError: The simulation does not serve a request that the server did.
        """
        chosen = experiment or self.experiment
        result = simulate(
            make_source(self.trace, self.concurrency),
            cluster.build(chosen, self.folder).cluster,
            seed=chosen.seed,
            fast_forward=chosen.fast_forward,
            check=chosen.check,
            record=Record(),
        )
        self._refuse_unserved(result)
        return result

    def _refuse_unserved(self, result: SimulationResult) -> None:
        served = finished(result.requests)
        if len(served) == len(self.trace) and served.all():
            return
        lost = np.flatnonzero(~served)
        first = int(result.requests["index"][lost[0]]) if len(lost) else len(served)
        code = result.requests["reason"][lost[0]] if len(lost) else 0
        why = result.reasons[code] or "it never ended"
        raise ConfigError(
            f"{self.where}: {len(self.trace) - int(served.sum())} of {len(self.trace)} requests "
            f"that the server served are not served in the simulation; the first is request "
            f"{self.trace.row[first]} of {self.trace.source} ({why}): check max_model_len, the KV "
            "memory and the limits of the policy"
        )


def prepare(
    experiment: Experiment,
    folder: Path,
    where: str,
    measurement: Measurement,
    concurrency: int | None = None,
) -> Replay:
    """Lay a measurement's requests on a config.

    Args:
        experiment: Resolved and checked.
        folder: Where its relative paths start.
        where: Config and variant, for messages.
        measurement: Of `measured.read_measurement`.
        concurrency: Serve them in a closed loop of so many places, whatever the file says.

    Raises:
        ConfigError: Neither arrival times nor a rate are known; a request is longer than the
            config's limit.
    """
    trace = trace_of(measurement, experiment.seed)
    *told, how = trace.notes
    places, said = _arrivals(trace, measurement, concurrency, how)
    trace = replace(trace, max_tokens=trace.output_tokens)
    built = cluster.build(experiment, folder)
    _refuse_over_long(trace, built.max_model_len, where)
    requests = measurement.requests.loc[trace.row - 1]
    measured = measured_latencies(requests, trace, measurement)
    notes = [*told, said]
    notes += _of_gaps(requests, measured)
    if experiment.warm_up_s or experiment.drain_s:
        notes.append("warm_up_s and drain_s of the config are not used: all requests count.")
    notes += [*experiment.notes, *built.notes]
    return Replay(
        experiment=experiment,
        folder=folder,
        where=where,
        trace=trace,
        concurrency=places,
        requests=requests,
        measured=measured,
        drawn=places is None and "drawn anew" in how,
        notes=tuple(dict.fromkeys(notes)),
    )


def _arrivals(
    trace: Trace, measurement: Measurement, concurrency: int | None, how: str
) -> tuple[int | None, str]:
    """Places of a closed loop, or None; and what was done, in a sentence."""
    limit = measurement.settings.get("max_concurrency")
    if concurrency is not None:
        return concurrency, f"Arrivals: a closed loop of {concurrency} requests, as was asked for."
    if "closed loop" in how and isinstance(limit, int):
        return limit, (
            f"Arrivals: a closed loop of {limit} requests, the file's limit on concurrency; it "
            "holds no arrival times."
        )
    if len(trace) and trace.arrival_ns[0] == NEVER:
        raise ConfigError(
            f"{measurement.source}: holds neither arrival times nor the rate of the run; give "
            "--concurrency N if it was a closed loop, or --column arrival_s=THEIRS for a CSV"
        )
    if "drawn anew" in how:
        how += " Single requests met other batches then: compare distributions."
    if isinstance(limit, int):
        how += (
            f" The run had at most {limit} requests at once: --concurrency {limit} serves them in "
            "a closed loop."
        )
    return None, how


def _refuse_over_long(trace: Trace, limit: int | None, where: str) -> None:
    total = trace.prompt_tokens + trace.output_tokens
    over = total > (limit or math.inf)
    if over.any():
        at = int(over.argmax())
        raise ConfigError(
            f"{where}: max_model_len {limit:,}: request {trace.row[at]} of {trace.source} has "
            f"{trace.prompt_tokens[at]:,} prompt and {trace.output_tokens[at]:,} output tokens "
            f"({int(over.sum())} such requests); the server that served it has a larger one"
        )


def _of_gaps(requests: pd.DataFrame, measured: Latencies) -> list[str]:
    if measured.gaps is not None:
        return []
    if requests.itl_s.notna().any():
        return ["ITL is not compared: the file's gaps are between chunks of several tokens."]
    return ["ITL is not compared: the file has no gaps between tokens."]


# --- latencies


def measured_latencies(requests: pd.DataFrame, trace: Trace, measurement: Measurement) -> Latencies:
    """Those of the file.

    Args:
        requests: Rows of `Measurement.requests` in the order of `trace`.
        trace: The requests.
        measurement: What the file says of the run.
    """
    arrival_s = requests.arrival_s.to_numpy(float)
    latency_s = requests.e2e_s.to_numpy(float)
    known = not (np.isnan(arrival_s).any() or np.isnan(latency_s).any())
    said = measurement.settings.get("duration_s")
    span_s = float(said) if isinstance(said, int | float) else math.nan
    if known:
        span_s = float((arrival_s + latency_s).max() - arrival_s.min())
    return Latencies(
        arrival_s=arrival_s,
        ttft_s=requests.ttft_s.to_numpy(float),
        tpot_s=requests.tpot_s.to_numpy(float),
        e2e_s=latency_s,
        gaps=_measured_gaps(requests.itl_s, int((trace.output_tokens - 1).sum())),
        span_s=span_s,
    )


def _measured_gaps(lists: Iterable[object], tokens: int) -> Gaps | None:
    """All gaps counted; None where they are not those between single tokens."""
    held = [np.asarray(each, float) for each in lists if isinstance(each, list) and each]
    found = np.concatenate(held) if held else np.zeros(0)
    if not len(found) or len(found) < _GAPS_SEEN * tokens:
        return None
    gap_ns, count = np.unique(np.rint(found * NS_PER_S).astype(np.int64), return_counts=True)
    return gap_ns, count.astype(np.int64)


def simulated_latencies(result: SimulationResult) -> Latencies:
    """Those of a simulation in which every request was served."""
    requests = result.requests
    arrival_s = requests["arrival_ns"] / NS_PER_S
    last_s = requests["last_token_ns"] / NS_PER_S
    none: tuple[Ints, Ints] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    return Latencies(
        arrival_s=arrival_s,
        ttft_s=ttft_s(requests),
        tpot_s=tpot_s(requests),
        e2e_s=e2e_s(requests),
        gaps=result.itl(np.zeros(len(arrival_s), np.int64)).get(0, none),
        span_s=float(last_s.max() - arrival_s.min()),
    )
