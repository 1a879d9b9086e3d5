"""`sglang` in a config: its engine preset and flags, and where it is refused."""

from __future__ import annotations

from typing import Any

import pytest

import phasewise
from experiments import cluster
from experiments.config import load
from experiments.workload import build_workload
from policies.sglang import LongestPrefix
from sim.errors import ConfigError
from sim.radix_cache import RadixCache

BASE: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 20, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
}
POOLS = {
    "prefill": {"replicas": 1, "policy": "vllm-v1"},
    "decode": {"replicas": 1, "policy": "sglang"},
    "transfer": {"bandwidth_bytes_per_s": 5e10},
}


def build(config: dict[str, Any]) -> cluster.Built:
    plan = load({**BASE, **config})
    return cluster.build(plan.variants[0], plan.folder)


@pytest.mark.parametrize(("device", "chunk"), [("h100-sxm", 8192), ("mi300x", 16384)])
def test_the_engine_is_first_come_with_chunks_by_the_size_of_the_gpu(
    device: str, chunk: int
) -> None:
    (spec,) = build({"engine": "sglang-0.5", "device": device}).cluster.entry.replicas
    policy = spec.policy
    assert isinstance(policy, LongestPrefix)
    assert (policy.order, policy.chunked_prefill_size, policy.page_size) == ("fcfs", chunk, 1)
    assert spec.block_tokens == 1
    assert isinstance(policy.memory(100, 1), RadixCache)


def test_the_order_is_an_option_of_the_policy_and_not_that_of_the_pool() -> None:
    for said in (
        {"policy": {"name": "sglang", "order": "fcfs"}},
        {"policy.name": "sglang", "policy.order": "fcfs"},
        {"policy": "sglang", "compare": [{"label": "a", "policy.order": "fcfs"}, {"label": "b"}]},
    ):
        (spec,) = build(said).cluster.entry.replicas
        assert isinstance(spec.policy, LongestPrefix)
        assert spec.policy.order == "fcfs"
        assert spec.order.first_come


def test_the_flags_of_the_engine_are_understood() -> None:
    flags = {"schedule_policy": "lpm", "radix_eviction_policy": "lfu", "page_size": 16}
    (spec,) = build({"engine": "sglang-0.5", **flags}).cluster.entry.replicas
    policy = spec.policy
    assert isinstance(policy, LongestPrefix)
    assert (policy.order, policy.eviction, policy.page_size) == ("lpm", "lfu", 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pools": POOLS}, "pools.decode.policy.name: sglang: not modelled in a decode pool"),
        (
            {"policy": "sglang", "pipeline_parallel": 2},
            "policy.name: sglang: not modelled with pipeline_parallel 2; try pipeline_parallel: 1",
        ),
        ({"policy": "sglang", "order": "priority"}, "order: priority: sglang sorts its queue"),
        ({"policy": {"name": "sglang", "mixed_chunk": True}}, "mixed_chunk: true is not modelled"),
        (
            {"policy": {"name": "sglang", "order": "fifo"}},
            "policy.order: fifo: expected one of lpm, fcfs; try fcfs",
        ),
        (
            {"policy": {"name": "sglang", "prefix_cache": False, "eviction": "lru"}},
            "policy.eviction: lru: needs prefix_cache: true",
        ),
        (
            {"policy": {"name": "sglang", "prefix_cache": False, "order": "lpm"}},
            "policy.order: lpm: needs prefix_cache: true",
        ),
    ],
)
def test_what_it_does_not_go_with_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(change)


@pytest.mark.parametrize("kept", [True, False])
def test_first_come_without_a_cache_is_no_contradiction(kept: bool) -> None:
    build({"policy": {"name": "sglang", "prefix_cache": kept, "order": "fcfs"}})


@pytest.mark.parametrize("kept", [True, False])
def test_a_trace_that_says_nothing_of_its_texts_is_noted(kept: bool) -> None:
    plan = load({**BASE, "policy": {"name": "sglang", "prefix_cache": kept}})
    notes = build_workload(plan.variants[0], plan.folder, None).notes
    assert any("no two requests share anything" in note for note in notes) is kept


def test_it_runs_and_counts_memory_in_tokens() -> None:
    config = {**BASE, "policy": "sglang", "kv.num_blocks": 1000, "check": True}
    fast, stepped = (phasewise.run(config, fast_forward=on, label="x") for on in (True, False))
    assert fast.requests("x").equals(stepped.requests("x"))
    assert (fast.requests("x")["state"] == "finished").all()
