"""Serving engines as config fragments: ``engine: vllm-0.19`` and the engines' own flag names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from experiments import strict_yaml
from experiments.names import canonical, unknown
from sim.errors import ConfigError

FLAGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "max_num_seqs": ("policy", "max_num_seqs"),
        "max_num_batched_tokens": ("policy", "max_num_batched_tokens"),
        "long_prefill_token_threshold": ("policy", "long_prefill_token_threshold"),
        "scheduler_reserve_full_isl": ("policy", "reserve_full_prompt"),
        "enable_prefix_caching": ("policy", "prefix_cache"),
        "preemption_mode": ("policy", "preemption"),
        "chunk_size": ("policy", "budget_tokens"),
        "schedule_policy": ("policy", "order"),
        "chunked_prefill_size": ("policy", "chunked_prefill_size"),
        "max_prefill_tokens": ("policy", "max_prefill_tokens"),
        "max_running_requests": ("policy", "max_running_requests"),
        "enable_mixed_chunk": ("policy", "mixed_chunk"),
        "page_size": ("policy", "page_size"),
        "radix_eviction_policy": ("policy", "eviction"),
        "block_size": ("kv", "block_tokens"),
        "gpu_memory_utilization": ("kv", "gpu_memory_utilization"),
        "mem_fraction_static": ("kv", "gpu_memory_utilization"),
        "num_gpu_blocks_override": ("kv", "num_blocks"),
        "tensor_parallel_size": ("tensor_parallel",),
        "tp_size": ("tensor_parallel",),
        "pipeline_parallel_size": ("pipeline_parallel",),
    }
)
"""Flags of vLLM, sarathi-serve and SGLang, accepted in a pool or at top level, to our keys of the
same meaning. (`max_model_len` is our own key.)"""


def presets() -> dict[str, dict[str, Any]]:
    """The shipped engines: name to its entry in engines.yaml."""
    entries: dict[str, dict[str, Any]] = strict_yaml.read(Path(__file__).with_name("engines.yaml"))
    return entries


def expand(name: object, where: str) -> dict[str, Any]:
    """The pool fragment that an engine sets, values that depend on the device left as written.

    Raises:
        ConfigError: No such engine.
    """
    known = presets()
    if not isinstance(name, str) or canonical(name) not in known:
        raise ConfigError(f"{where}: {unknown('engine', name, known)}")
    fragment: dict[str, Any] = known[canonical(name)]["pool"]
    return fragment


def settle(
    pool: dict[str, Any], engine: str | None, memory_bytes: int, device: str
) -> dict[str, Any]:
    """Resolve the values of a fragment that depend on the size of the GPU.

    Args:
        pool: A pool, changed by neither user nor us since `expand`, or without such values.
        engine: The engine that the values came from.
        memory_bytes: Memory of one GPU.
        device: Its name.
    """
    rule = presets()[engine].get("large_gpu", {}) if engine else {}
    large = _is_large(rule, memory_bytes, device)

    def resolved(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if set(value) == {"large_gpu", "otherwise"}:
            return value["large_gpu" if large else "otherwise"]
        return {key: resolved(item) for key, item in value.items()}

    settled: dict[str, Any] = resolved(pool)
    return settled


def with_step_time(pool: dict[str, Any], engine: str) -> dict[str, Any]:
    """A pool with the host's time and the CUDA graphs of its engine, where nothing else is said.

    Args:
        pool: As settled; its step-time model decides which of the two it has.
        engine: Name.
    """
    chosen = pool.get("step_time", {})
    if not isinstance(chosen, Mapping):
        return pool
    said = presets()[engine].get("step_time", {})
    # Which model it is, where none is named, is found out later: see `cluster.with_step_times`.
    model = canonical(str(chosen.get("model", "profile")))
    added = {key: said[key] for key in OF_MODELS.get(model, ()) if key in said}
    return {**pool, "step_time": {**added, **chosen}} if added else pool


OF_MODELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"roofline": ("host",), "profile": ("host", "cuda_graphs")}
)
"""What an engine says about step times, by the models that take it."""


def _is_large(rule: Mapping[str, Any], memory_bytes: int, device: str) -> bool:
    if "names" in rule:
        return any(name in device for name in rule["names"])
    if "memory_gib" in rule:
        excepted = any(name in device for name in rule["except"])
        return memory_bytes >= rule["memory_gib"] * 2**30 and not excepted
    return False
