"""Runs the simulator on a config and on requests, and keeps what is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments import cluster, parts
from experiments.config import load
from experiments.schema import Pool
from experiments.validation.outcome import Floats
from sim.batch import Cause
from sim.event_loop import simulate
from sim.records import FINISHED, Record, SimulationResult

if TYPE_CHECKING:
    from sim.cluster import Cluster
    from sim.event_loop import ArrivalSource
    from sim.step_time import StepTimeModel

Ints = npt.NDArray[np.int64]

_STAND_IN = {"preset": "sharegpt-like", "requests": 1}
"""A config needs a workload; the requests of a case come from its measurement."""


class Server:
    """A config, built once, that serves the requests of several rows.

    Args:
        config: As a user would write it, without a workload.
        folder: Where relative paths start.

    Attributes:
        notes: Where its numbers come from.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path | None = None) -> None:
        plan = load({"workload": _STAND_IN, **config})
        self.experiment = plan.variants[0]
        self.folder = folder or plan.folder
        built = cluster.build(self.experiment, self.folder)
        self._cluster = built.cluster
        self.notes = built.notes

    @property
    def step_time(self) -> StepTimeModel:
        """Of its first replica."""
        return self._cluster.entry.replicas[0].step_time

    def run(
        self,
        source: ArrivalSource,
        policy: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
    ) -> Served:
        """Serve requests.

        Args:
            source: What arrives.
            policy: Options of the policy that differ from the config's; with a name, another one.
            seed: Of routers and noise.
        """
        result = simulate(
            source,
            self._with_policy(policy) if policy else self._cluster,
            seed=seed,
            record=Record(steps=True, series_points=0),
        )
        return Served(result)

    def _with_policy(self, options: Mapping[str, Any]) -> Cluster:
        pool = self.experiment.pools.colocated
        assert pool is not None
        whole = options if "name" in options else {**pool.policy, **options}
        changed: Pool = pool.model_copy(update={"policy": dict(whole)})
        policy = parts.policy(changed, "policy", self.folder)
        entry = self._cluster.entry
        replicas = [replace(spec, policy=policy) for spec in entry.replicas]
        return replace(self._cluster, entry=replace(entry, replicas=replicas))


@dataclass(frozen=True)
class Served:
    """What one run came to; arrays have one entry per request, in order of the trace."""

    result: SimulationResult

    @cached_property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Which requests were served in full."""
        done: npt.NDArray[np.bool_] = self._column("state") == FINISHED
        return done

    @cached_property
    def ttft_s(self) -> Floats:
        """Arrival to first token."""
        return (self._column("first_token_ns") - self._column("arrival_ns")) / 1e9

    @cached_property
    def e2e_s(self) -> Floats:
        """Arrival to last token."""
        return (self._column("last_token_ns") - self._column("arrival_ns")) / 1e9

    @cached_property
    def decoding_s(self) -> Floats:
        """First token to last."""
        return (self._column("last_token_ns") - self._column("first_token_ns")) / 1e9

    @cached_property
    def gaps(self) -> Ints:
        """Tokens after the first."""
        return self._column("output_tokens") - 1

    @cached_property
    def tpot_s(self) -> Floats:
        """Mean gap between tokens; NaN of one token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.gaps > 0, self.decoding_s / self.gaps, np.nan)

    @cached_property
    def itl(self) -> tuple[Ints, Ints]:
        """Distinct gaps between tokens, ns, and how often each occurs, (k,)."""
        found = self.result.itl(np.zeros(len(self.gaps), np.int64))
        return found[0] if found else (np.zeros(1, np.int64), np.ones(1, np.int64))

    @property
    def end_s(self) -> float:
        """The last token of all."""
        return float(self._column("last_token_ns").max()) / 1e9

    @cached_property
    def blocked(self) -> float:
        """Share of time in which a request waited for blocks, or lost them."""
        steps = self.result.steps
        assert steps is not None
        length = steps["end_ns"] - steps["start_ns"]
        short = np.isin(steps["cause"], [Cause.NO_BLOCKS, Cause.PREEMPTED])
        return float(length[short].sum() / max(1, length.sum()))

    @cached_property
    def mean_running(self) -> float:
        """Requests that run, mean over the time from first to last token of all."""
        span = self._column("last_token_ns") - self._column("first_scheduled_ns")
        return float(span.sum() / max(1, self._column("last_token_ns").max()))

    def running_at(self, times_s: Floats) -> Floats:
        """Requests that run at some times, (k,)."""
        return self._between("first_scheduled_ns", "last_token_ns", times_s)

    def waiting_at(self, times_s: Floats) -> Floats:
        """Requests that have arrived and were never scheduled, at some times, (k,)."""
        return self._between("arrival_ns", "first_scheduled_ns", times_s)

    def tokens_between(self, from_s: Floats, to_s: Floats, *, prompts: bool) -> Floats:
        """Tokens emitted in each window, (k,); with prompts, theirs count when prefill ends."""
        n = len(self.gaps)
        times = np.sort(np.concatenate([self.result.token_times_ns(i) for i in range(n)])) / 1e9
        made = np.searchsorted(times, to_s) - np.searchsorted(times, from_s)
        if prompts:
            ends = self._column("first_token_ns") / 1e9
            order = np.argsort(ends)
            total = np.concatenate([[0], np.cumsum(self._column("prompt_tokens")[order])])
            ends = ends[order]
            made = made + total[np.searchsorted(ends, to_s)] - total[np.searchsorted(ends, from_s)]
        return made.astype(np.float64)

    def _between(self, start: str, end: str, times_s: Floats) -> Floats:
        ns = times_s * 1e9
        begun = np.searchsorted(np.sort(self._column(start)), ns, side="right")
        over = np.searchsorted(np.sort(self._column(end)), ns, side="right")
        return (begun - over).astype(np.float64)

    def _column(self, name: str) -> Ints:
        column: Ints = self.result.requests[name].astype(np.int64)
        return column
