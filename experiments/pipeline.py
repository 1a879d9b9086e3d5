"""Pools with pipeline stages: the layers of each, its step times, and the link between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments import parts
from experiments.explain import placed
from experiments.schema import Experiment, Pool, StageLink
from sim import stages as staged
from sim.chunked_pipeline import ChunkedPipelineReplica
from sim.errors import ConfigError
from sim.metrics import run_span_ns
from sim.model_part import ModelPart, split_layers
from sim.pipeline import PipelineReplica
from sim.policy import Policy
from sim.records import SimulationResult
from sim.specs import DeviceSpec, ModelSpec
from sim.step_time import StepTimeModel

_TENSORS, _ELEMENT_BYTES = 2, 2
"""What one stage sends to the next for a token: hidden state and residual, 16 bits an element, as
vLLM's models do (``intermediate_tensors`` in ``vllm/model_executor/models/llama.py``)."""


def parts_of(
    pool: Pool, role: str, model: ModelSpec, where: Callable[..., str]
) -> tuple[ModelPart, ...]:
    """The layers of each stage, one stage for a pool without a pipeline.

    Raises:
        ConfigError: Layers that do not add up; keys of a pipeline where there is none.
    """
    if pool.pipeline_parallel == 1:
        for key, default in (
            ("stage_layers", None),
            ("stage_link", StageLink()),
            ("chunked_pipeline", False),
        ):
            if getattr(pool, key) != default:
                place = where("pools", role, key)
                raise ConfigError(f"{place}: there is one stage; set pipeline_parallel")
    try:
        return split_layers(model, pool.pipeline_parallel, pool.stage_layers)
    except ConfigError as error:
        key = str(error).partition(":")[0]
        raise ConfigError(placed(where("pools", role, key), error)) from None


def step_time(
    pool: Pool,
    model: ModelSpec,
    device: DeviceSpec,
    stages: Sequence[ModelPart],
    where: str,
    folder: Path,
) -> StepTimeModel:
    """Step times of a replica: those of all layers, or one of each stage.

    Args:
        pool: The pool.
        model: Architecture.
        device: Data sheet.
        stages: The layers of each stage.
        where: File and key, for messages.
        folder: Where tables are looked for first.
    """
    if len(stages) == 1:
        return parts.step_time(pool, model, device, where, folder)
    models = [parts.step_time(pool, model, device, where, folder, part) for part in stages]
    return staged.PipelineStepTime(models, _link(pool, model, device))


def kind_of(pool: Pool, policy: Policy, where: str) -> type[PipelineReplica] | None:
    """The class of the pool's replicas; None for that of one stage.

    Args:
        pool: The pool.
        policy: As built from it.
        where: File and key of the pool, for messages.

    Raises:
        ConfigError: Chunks of a prompt at once, where its policy cuts none.
    """
    if pool.chunked_pipeline and not policy.cuts_prompts:
        raise ConfigError(
            f"{where}.chunked_pipeline: true: policy {pool.policy['name']} computes prompts whole; "
            "try vllm-v1 or sarathi"
        )
    if pool.chunked_pipeline:
        return ChunkedPipelineReplica
    return PipelineReplica if pool.pipeline_parallel > 1 else None


def check_transfer(experiment: Experiment, where: Callable[..., str]) -> None:
    """Refuse KV sent chunk by chunk where a chunk counts before it is computed."""
    prefill, transfer = experiment.pools.prefill, experiment.pools.transfer
    if prefill is None or transfer is None:
        return
    if prefill.chunked_pipeline and transfer.overlap == "chunked":
        raise ConfigError(
            f"{where('pools', 'transfer', 'overlap')}: chunked: not modelled with "
            "chunked_pipeline; try overlap: layerwise"
        )


def _link(pool: Pool, model: ModelSpec, device: DeviceSpec) -> staged.StageLink:
    link = pool.stage_link
    return staged.StageLink(
        bytes_per_token=link.bytes_per_token or _TENSORS * _ELEMENT_BYTES * model.hidden,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s or device.peer_bytes_per_s,
        latency_s=link.latency_s,
    )


def notes(
    pool: Pool, model: ModelSpec, device: DeviceSpec, stages: Sequence[ModelPart]
) -> list[str]:
    """What a reader should know of the stages and of what moves between them."""
    if len(stages) == 1:
        return []
    link, given = _link(pool, model, device), pool.stage_link.bandwidth_bytes_per_s is not None
    origin = "as configured" if given else f"the data sheet's link of {device.name}"
    layers = " + ".join(str(part.layers) for part in stages)
    return [
        f"pipeline of {len(stages)} stages of {layers} layers: activations of "
        f"{link.bytes_per_token:,} bytes a token move at {link.bandwidth_bytes_per_s / 1e9:g} GB/s "
        f"({origin}) after {link.latency_s * 1e6:g} us; moves do not contend for links."
    ]


def bubbles(result: SimulationResult) -> list[str]:
    """How much of the run each stage was idle, or waited for the next one; a sentence a pool."""
    start_ns, end_ns = run_span_ns(result.requests, result.end_ns)
    busy: dict[str, list[tuple[int, ...]]] = {}
    for replica in result.replicas:
        if replica.stage_busy_ns:
            busy.setdefault(replica.pool, []).append(replica.stage_busy_ns)
    notes = []
    for pool, replicas in busy.items():
        span_ns = max(1, end_ns - start_ns) * len(replicas)
        idle = [1 - sum(stage) / span_ns for stage in zip(*replicas, strict=True)]
        shares = ", ".join(f"{share:.1%}" for share in idle)
        notes.append(
            f"pipeline stages of pool {pool}, first to last, did nothing for {shares} of the run: "
            "bubbles, and waiting for requests (steps.parquet has each)."
        )
    return notes
