"""Serves a trace on a real card with our kernels, and compares it with its own simulation.

The same policy class decides in both; what differs is where a step's time comes from. Needs torch,
triton, simpy, numpy and pyyaml, and nothing else of the tools around an experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_profile.host import HostOverhead
from policies.routing import RoundRobin
from sim import metrics, specs
from sim.cluster import Cluster
from sim.errors import ProfileError
from sim.event_loop import simulate
from sim.policy import Policy
from sim.pool import PoolSpec
from sim.records import Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Trace

if TYPE_CHECKING:
    from kernels_profile.engine.realtime import CardStepTime, StepLog
    from sim.step_time import StepTimeModel

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)
"""Batches of decodes that the engine captures; fewer than real engines, as each takes a second."""


@dataclass(frozen=True)
class Plan:
    """What is served, and on what.

    Attributes:
        model: Sheet of the model, or the model itself.
        device: Sheet of the card, for the simulation.
        policy: What runs next.
        trace: The requests; arrival times from 0 on.
        num_blocks: Blocks of KV memory.
        block_tokens: Tokens of a block.
        tensor_parallel: Ranks that the model is cut into; one of them is run.
        duration_s: When the run stops, whatever is left.
        seed: Of weights and prompts.
        share_layers: All layers read the weights of the first: for models that do not fit.
        tables: A profile of the card, whose launch configurations are used; None for the kernels'
            first choices.
    """

    model: specs.ModelSpec
    device: specs.DeviceSpec
    policy: Policy
    trace: Trace
    num_blocks: int
    block_tokens: int = 16
    tensor_parallel: int = 1
    duration_s: float = 120.0
    seed: int = 0
    share_layers: bool = False
    tables: Path | None = None


@dataclass(frozen=True)
class Comparison:
    """One statistic of the requests that finished on the card and in the simulation.

    Attributes:
        metric: ``ttft``, ``tpot``, ``e2e``, or ``itl`` over all gaps.
        statistic: ``mean``, ``p50``, ``p90`` or ``p99``.
        measured_s: On the card, seconds.
        simulated_s: In the simulation, seconds.
        request_error: Median over requests of their own absolute relative error; None for `itl`.
    """

    metric: str
    statistic: str
    measured_s: float
    simulated_s: float
    request_error: float | None = None

    @property
    def error(self) -> float:
        """Signed relative error of the simulation."""
        return self.simulated_s / self.measured_s - 1


def serve(
    plan: Plan, device: str = "cuda", *, graphs: bool = True
) -> tuple[SimulationResult, list[StepLog], float]:
    """Serve the trace on the card in wall time.

    Args:
        plan: What to serve.
        device: ``cuda``, or ``cpu`` under Triton's interpreter (for tests: its times mean nothing).
        graphs: Capture CUDA graphs of decode batches first, and run steps of every size.

    Returns:
        What happened, its times being wall time; every step; and how long launching a layer without
        a CUDA graph takes, us (0 on a CPU, where nothing is launched).

    Raises:
        ProfileError: A model that the engine does not run, or a policy that pads its batches.
    """
    import torch

    from kernels_profile.engine.model import RankModel
    from kernels_profile.engine.realtime import (
        CardReplica,
        CardStepTime,
        WallClock,
        WallClockEnvironment,
    )
    from kernels_profile.engine.runner import Runner

    longest = int((plan.trace.prompt_tokens + plan.trace.max_tokens).max())
    on_gpu = device == "cuda"
    model = RankModel(
        plan.model,
        tensor_parallel=plan.tensor_parallel,
        num_blocks=plan.num_blocks,
        block_tokens=plan.block_tokens,
        max_positions=longest,
        device=device,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        seed=plan.seed,
        share_layers=plan.share_layers,
        tables=plan.tables,
    )
    sizes = [size for size in GRAPH_SIZES if size <= plan.policy.seats] if on_gpu and graphs else []
    runner = Runner(
        model,
        plan.num_blocks,
        graph_sizes=sizes,
        max_blocks=-(-longest // plan.block_tokens),
        seed=plan.seed,
    )
    room = plan.num_blocks * plan.block_tokens
    layer_us = runner.warm_up(min(longest, room), plan.policy.seats) if on_gpu and graphs else 0.0
    clock = WallClock()
    card = CardStepTime(runner, clock)
    spec = _replica(plan, card, kind=CardReplica)
    limit_ns = round(plan.duration_s * 1e9)
    environment = WallClockEnvironment(clock, limit_ns)
    clock.start()
    result = simulate(
        plan.trace,
        Cluster(PoolSpec("replica", [spec], RoundRobin())),
        seed=plan.seed,
        fast_forward=False,
        until_ns=limit_ns,
        record=Record(steps=False),
        environment=environment,
    )
    return result, card.log, layer_us


def simulated(plan: Plan, step_time: StepTimeModel) -> SimulationResult:
    """The same run, simulated.

    Args:
        plan: What was served.
        step_time: Length of its steps.
    """
    return simulate(
        plan.trace,
        Cluster(PoolSpec("replica", [_replica(plan, step_time)], RoundRobin())),
        seed=plan.seed,
        until_ns=round(plan.duration_s * 1e9),
        record=Record(steps=False),
    )


def host_of(log: Sequence[StepLog], eager_layer_us: float = 0.0) -> HostOverhead:
    """The engine's own host time, from its timers: a fixed part and one for each sequence.

    Launching layers one by one is not in it: as long as it goes on, the card counts as busy. Least
    squares on what each step took beyond the time on the card; a part that would be below 0
    is 0.
    """
    sequences = np.array([step.sequences for step in log], float)
    host_us = np.array([step.host_ns for step in log]) / 1e3
    terms = np.stack([np.ones_like(sequences), sequences], axis=1)
    step_us, request_us = np.linalg.lstsq(terms, host_us, rcond=None)[0]
    if request_us < 0:
        step_us, request_us = host_us.mean(), 0.0
    elif step_us < 0:
        step_us, request_us = 0.0, float(sequences @ host_us / (sequences @ sequences))
    source = "timers of the engine in this replay"
    return HostOverhead(
        float(step_us), float(request_us), source, eager_layer_us=round(eager_layer_us, 2)
    )


def compare(measured: SimulationResult, simulation: SimulationResult) -> list[Comparison]:
    """TTFT, ITL, TPOT and E2E of the requests that finished in both runs.

    Raises:
        ProfileError: none did.
    """
    index = finished_in_both(measured, simulation)
    if not len(index):
        raise ProfileError("replay: no request finished in both runs; serve for longer, or fewer")
    runs = (measured, simulation)
    rows: list[Comparison] = []
    for name, of in METRICS.items():
        rows += _compared(name, *(of(rows_of(result, index)) for result in runs))
    gaps = [np.concatenate([np.diff(r.token_times_ns(int(i))) for i in index]) for r in runs]
    return [*rows, *_compared("itl", *(each / 1e9 for each in gaps), paired=False)]


METRICS = {"ttft": metrics.ttft_s, "tpot": metrics.tpot_s, "e2e": metrics.e2e_s}


def finished_in_both(a: SimulationResult, b: SimulationResult) -> np.ndarray[Any, Any]:
    """Trace indices of the requests that finished in both runs, ascending."""
    done = [result.requests["index"][metrics.finished(result.requests)] for result in (a, b)]
    return np.intersect1d(done[0], done[1])


def rows_of(result: SimulationResult, index: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The rows of some requests by trace index, as columns."""
    at = np.searchsorted(result.requests["index"], index)
    return {name: column[at] for name, column in result.requests.items()}


def _compared(
    name: str, measured: Any, simulation: Any, *, paired: bool = True
) -> Iterator[Comparison]:
    given = [values[~np.isnan(values)] for values in (measured, simulation)]
    if not len(given[0]):
        return
    error = float(np.median(np.abs(given[1] / given[0] - 1))) if paired else None
    a, b = given
    yield Comparison(name, "mean", float(a.mean()), float(b.mean()), error)
    for label, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        x, y = (float(metrics.quantiles(values, [q])[0]) for values in given)
        yield Comparison(name, label, x, y, error)


def _replica(
    plan: Plan, step_time: StepTimeModel | CardStepTime, kind: type | None = None
) -> ReplicaSpec:
    return ReplicaSpec(
        policy=plan.policy,
        num_blocks=plan.num_blocks,
        step_time=step_time,
        block_tokens=plan.block_tokens,
        kind=kind,
    )
