"""The prefix cache in a config: an option of `vllm-v1`, and where it is refused or does nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import cluster
from experiments.config import load
from experiments.variant import run_variant
from experiments.workload import build_workload
from sim.disk_cache import DiskBackedCache
from sim.errors import ConfigError
from sim.host_cache import TieredPrefixCache
from sim.prefix_cache import PrefixCache

CACHED = {"name": "vllm-v1", "prefix_cache": True}
BASE: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 20, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "policy": CACHED,
}
POOLS = {
    "prefill": {"replicas": 1, "policy": CACHED},
    "decode": {"replicas": 1, "policy": "vllm-v1"},
    "transfer": {"bandwidth_bytes_per_s": 5e10},
}


def build(config: dict[str, Any]) -> cluster.Built:
    plan = load(config)
    return cluster.build(plan.variants[0], plan.folder)


def test_the_option_gives_a_replica_a_cache_and_is_off_by_default() -> None:
    for policy, cached in ((CACHED, True), ("vllm-v1", False)):
        (spec,) = build({**BASE, "policy": policy}).cluster.entry.replicas
        assert isinstance(spec.policy.memory(10, 16), PrefixCache) is cached


def test_the_flag_of_vllm_is_understood() -> None:
    config = {**BASE, "policy": "vllm-v1", "enable_prefix_caching": True}
    (spec,) = build(config).cluster.entry.replicas
    assert isinstance(spec.policy.memory(10, 16), PrefixCache)


def test_a_tier_in_host_memory_has_a_link_from_the_data_sheet_and_is_told() -> None:
    built = build({**BASE, "policy": {**CACHED, "host_cache_blocks": 5000}})
    (spec,) = built.cluster.entry.replicas
    assert isinstance(spec.policy.memory(10, 16), TieredPrefixCache)
    assert spec.host_bandwidth_bytes_per_s is not None
    assert any("5,000 blocks for what the prefix cache loses" in note for note in built.notes)


def test_a_disk_behind_it_has_the_bandwidths_of_the_config() -> None:
    policy = {**CACHED, "host_cache_blocks": 5, "disk_cache_blocks": 7000}
    kv = {"disk_bandwidth_bytes_per_s": 6e9, "disk_write_bandwidth_bytes_per_s": 3e9}
    built = build({**BASE, "policy": policy, "kv": kv})
    (spec,) = built.cluster.entry.replicas
    assert isinstance(spec.policy.memory(10, 16), DiskBackedCache)
    assert (spec.disk_read_bytes_per_s, spec.disk_write_bytes_per_s) == (6e9, 3e9)
    assert any("disk: 7,000 blocks" in x and "writes 3 GB/s" in x for x in built.notes)
    unused = build({**BASE, "policy": CACHED, "kv": kv})
    assert any(note.startswith("kv.disk_*: not used") for note in unused.notes)


def test_pools_and_stages_may_have_a_cache() -> None:
    config = {**BASE, "pools": POOLS}
    del config["policy"]
    assert build(config).cluster.decode is not None
    (spec,) = build({**BASE, "pipeline_parallel": 2}).cluster.entry.replicas
    assert spec.kind is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"policy": {**CACHED, "host_cache_blocks": 5}, "pipeline_parallel": 2},
            "policy.host_cache_blocks: not modelled with pipeline_parallel 2",
        ),
        (
            {"policy": {"name": "vllm-v1", "host_cache_blocks": 5}},
            "policy.host_cache_blocks: 5 needs prefix_cache: true",
        ),
        ({"policy": {**CACHED, "host_cache_blocks": 0}}, "host_cache_blocks"),
        (
            {"policy": {**CACHED, "disk_cache_blocks": 5}},
            "policy.disk_cache_blocks: 5 needs host_cache_blocks",
        ),
        (
            {"policy": {**CACHED, "host_cache_blocks": 5, "disk_cache_blocks": 5}},
            "kv.disk_bandwidth_bytes_per_s: missing",
        ),
        (
            {"policy": CACHED, "kv": {"disk_write_bandwidth_bytes_per_s": 1e9}},
            "kv.disk_write_bandwidth_bytes_per_s: 1e.09 needs disk_bandwidth",
        ),
        (
            {"policy": {"name": "vllm-v1", "uncached_first": True}},
            "policy.uncached_first: true needs prefix_cache: true",
        ),
        ({"policy": {"name": "sarathi", "prefix_cache": True}}, "sarathi"),
    ],
)
def test_where_there_is_no_cache_one_is_refused(change: dict[str, Any], message: str) -> None:
    config = {**BASE, **change}
    if "pools" in change:
        del config["policy"]
    with pytest.raises(ConfigError, match=message):
        build(config)


def trace(folder: Path, *, with_ids: bool) -> dict[str, Any]:
    """Five requests of three blocks; the first two blocks are the same in all."""
    path = folder / "t.jsonl"
    rows = []
    for i in range(5):
        row: dict[str, Any] = {"arrival_s": i, "prompt_tokens": 96, "output_tokens": 4}
        if with_ids:
            row |= {"block_ids": [1, 2, 10 + i], "block_ids_tokens": 32}
        rows.append(json.dumps(row) + "\n")
    path.write_text("".join(rows))
    return {"workload": {"trace": str(path), "max_tokens": 8}}


def test_ids_of_a_trace_reach_the_cache_and_the_columns(tmp_path: Path) -> None:
    plan = load({**BASE, **trace(tmp_path, with_ids=True)})
    (variant,) = plan.variants
    bundle = run_variant(variant, plan.folder)
    assert bundle.requests["cached_tokens"].tolist() == [0, 64, 64, 64, 64]


def test_a_trace_without_ids_is_noted(tmp_path: Path) -> None:
    for with_ids in (False, True):
        plan = load({**BASE, **trace(tmp_path, with_ids=with_ids)})
        notes = build_workload(plan.variants[0], plan.folder, None).notes
        assert any("no block ids" in note for note in notes) is not with_ids
