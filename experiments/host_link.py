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
    if not policy.uses_host_link:
        return None
    given = pool.kv.host_bandwidth_bytes_per_s
    gpus = pool.tensor_parallel * len(stages)
    return gpus * device.pcie_bytes_per_s if given is None else given


def check(policy: Policy, stages: Sequence[ModelPart], place: str) -> None:
    """What moves KV to the host is modelled on replicas of one stage."""
    if policy.uses_host_link and not policy.host_memory_blocks and len(stages) > 1:
        raise ConfigError(
            f"{place}.host_cache_blocks: not modelled with pipeline_parallel {len(stages)}; try "
            "pipeline_parallel: 1, or leave it out"
        )
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
            "vllm-v0 does with preemption: swap, vllm-v1 with host_cache_blocks."
        ]
    origin = "the config" if given is not None else f"the data sheet of {pool.device}, all GPUs"
    blocks, what = policy.host_memory_blocks, "for requests that are swapped out"
    if not blocks:
        blocks, what = int(pool.policy["host_cache_blocks"]), "for what the prefix cache loses"
    return [
        f"host memory: {blocks:,} blocks {what}; host link: {rate / 1e9:g} GB/s, from {origin}."
    ]
