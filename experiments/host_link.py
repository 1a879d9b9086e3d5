"""The link of a pool's replicas to host memory: its bandwidth, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.schema import Pool
from sim.errors import ConfigError
from sim.model_part import ModelPart
from sim.policy import Policy
from sim.replica_spec import ReplicaSpec
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


def check_disk(pool: Pool, policy: Policy, place: str) -> None:
    """A disk has the bandwidth that the config says: no sheet of ours has one."""
    kv = pool.kv
    if policy.uses_disk and kv.disk_bandwidth_bytes_per_s is None:
        raise ConfigError(
            f"{place}.disk_bandwidth_bytes_per_s: missing; policy.disk_cache_blocks needs the "
            "bandwidth of the disk, which no data sheet here has"
        )
    if kv.disk_write_bandwidth_bytes_per_s is not None and kv.disk_bandwidth_bytes_per_s is None:
        raise ConfigError(
            f"{place}.disk_write_bandwidth_bytes_per_s: {kv.disk_write_bandwidth_bytes_per_s:g} "
            "needs disk_bandwidth_bytes_per_s, that of reading"
        )


def _disk_notes(pool: Pool, policy: Policy) -> list[str]:
    read = pool.kv.disk_bandwidth_bytes_per_s
    if not policy.uses_disk:
        told = f"policy {pool.policy['name']} keeps nothing on a disk; vllm-v1 does with"
        return [] if read is None else [f"kv.disk_*: not used: {told} disk_cache_blocks."]
    assert read is not None
    write = pool.kv.disk_write_bandwidth_bytes_per_s or read
    return [
        f"disk: {int(pool.policy['disk_cache_blocks']):,} blocks for what host memory has no room "
        f"for; reads {read / 1e9:g} GB/s, writes {write / 1e9:g} GB/s, from the config."
    ]


def notes(pool: Pool, policy: Policy, spec: ReplicaSpec) -> list[str]:
    """What the link rests on, or that its keys do nothing."""
    given, rate = pool.kv.host_bandwidth_bytes_per_s, spec.host_bandwidth_bytes_per_s
    if rate is None:
        if given is None and not pool.kv.host_overlap:
            return _disk_notes(pool, policy)
        return [
            *_disk_notes(pool, policy),
            f"kv.host_*: not used: policy {pool.policy['name']} moves nothing to the host; "
            "vllm-v0 does with preemption: swap, vllm-v1 with host_cache_blocks.",
        ]
    origin = "the config" if given is not None else f"the data sheet of {pool.device}, all GPUs"
    blocks, what = policy.host_memory_blocks, "for requests that are swapped out"
    if not blocks:
        blocks, what = int(pool.policy["host_cache_blocks"]), "for what the prefix cache loses"
    return [
        f"host memory: {blocks:,} blocks {what}; host link: {rate / 1e9:g} GB/s, from {origin}.",
        *_disk_notes(pool, policy),
    ]
