"""The link of a pool's replicas to host memory: its bandwidth, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.schema import Pool
from sim.errors import ConfigError
from sim.model_part import ModelPart
from sim.policy import Policy
from sim.replica import ReplicaSpec
from sim.specs import DeviceSpec


def bandwidth(
    pool: Pool, policy: Policy, device: DeviceSpec, stages: Sequence[ModelPart]
) -> float | None:
    """Bytes per second, all GPUs of a replica together; None where nothing moves over it."""
    if not policy.host_memory_blocks:
        return None
    given = pool.kv.host_bandwidth_bytes_per_s
    gpus = pool.tensor_parallel * len(stages)
    return gpus * device.pcie_bytes_per_s if given is None else given


def check(policy: Policy, stages: Sequence[ModelPart], place: str) -> None:
    """Swapping is modelled on replicas of one stage."""
    if policy.host_memory_blocks and len(stages) > 1:
        raise ConfigError(
            f"{place}.preemption: swap: not modelled with pipeline_parallel {len(stages)}; try "
            "pipeline_parallel: 1, or preemption: recompute"
        )


def notes(pool: Pool, policy: Policy, spec: ReplicaSpec) -> list[str]:
    """What the link rests on, or that its keys do nothing."""
    given, rate = pool.kv.host_bandwidth_bytes_per_s, spec.host_bandwidth_bytes_per_s
    if rate is None:
        if given is None and not pool.kv.host_overlap:
            return []
        return [
            f"kv.host_*: not used: policy {pool.policy['name']} moves nothing to the host; "
            "vllm-v0 does with preemption: swap."
        ]
    origin = "the config" if given is not None else f"the data sheet of {pool.device}, all GPUs"
    return [
        f"host memory: {policy.host_memory_blocks:,} blocks for requests that are swapped out; "
        f"host link: {rate / 1e9:g} GB/s, from {origin}."
    ]
