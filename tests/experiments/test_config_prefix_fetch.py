"""The key `prefix_fetch` and the router mooncake in a config."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import cluster
from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant
from sim.errors import ConfigError

BASE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "replicas": 3,
    "policy": {"name": "vllm-v1", "prefix_cache": True},
    "router": "mooncake",
    "workload": {
        "preset": {"name": "prefix-repetition", "prefix_tokens": 8192},
        "requests": 60,
        "arrivals": {"process": "poisson", "rate_per_s": 40},
    },
}
TWO_POOLS: dict[str, Any] = {
    "pools": {
        "prefill": {"replicas": 2},
        "decode": {"replicas": 1},
        "transfer": {"bandwidth_bytes_per_s": 50e9, "latency_s": 1e-3},
    },
    "decode_router": "least-kv",
    "prefix_fetch": {},
}


def run(base: dict[str, Any], *settings: str) -> Bundle:
    plan = load(base, settings)
    return run_variant(plan.variants[0], plan.folder)


def test_what_was_fetched_is_in_the_summary_and_per_request() -> None:
    got = run(BASE, "prefix_fetch.bandwidth_bytes_per_s=50e9")
    said, tokens = got.summary["prefix_fetch"], got.requests["fetched_tokens"]
    assert said["fetches"] == (tokens > 0).sum() > 0
    assert said["tokens"] == tokens.sum()
    assert said["bytes"] == said["tokens"] * 131072
    # 131072 bytes a token at 50e9 a second.
    wait = got.requests["fetch_wait_ns"]
    assert wait.tolist() == [round(t * 131072 / 50e9 * 1e9) for t in tokens.tolist()]
    assert any(note.startswith("prefix_fetch: ") for note in got.notes)
    assert "fetched_tokens" not in run(BASE).requests


def test_with_two_pools_the_bandwidth_is_that_of_the_transfer() -> None:
    one = {key: value for key, value in BASE.items() if key != "replicas"} | TWO_POOLS
    got = run(one)
    fetched = got.requests["fetched_tokens"] > 0
    assert fetched.any()
    assert (got.requests["fetch_wait_ns"][fetched] > 1_000_000).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["prefix_fetch.balancing_threshold=2"],
            "prefix_fetch.bandwidth_bytes_per_s: is required, as no transfer says one",
        ),
        (["prefix_fetch.bandwidth=1e9"], "prefix_fetch has no such option; try bandwidth_bytes"),
        (
            ["prefix_fetch.bandwidth_bytes_per_s=1e9", "policy.prefix_cache=false"],
            "prefix_fetch: policy vllm-v1 has no cache of blocks",
        ),
        (
            ["prefix_fetch.bandwidth_bytes_per_s=1e9", "policy.host_cache_blocks=5"],
            "prefix_fetch: policy vllm-v1 has no cache of blocks on the GPU alone",
        ),
        (["router_snapshot_s=0.1"], "router: mooncake: looks into caches"),
    ],
)
def test_what_cannot_be_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(BASE, settings)


def test_mooncake_is_no_router_of_decode_pools() -> None:
    two = {key: value for key, value in BASE.items() if key != "replicas"} | TWO_POOLS
    del two["decode_router"]
    with pytest.raises(ConfigError, match="decode_router: mooncake: chooses where to prefill"):
        load(two)


def test_one_replica_fetches_from_nobody() -> None:
    plan = load(BASE, ["prefix_fetch.bandwidth_bytes_per_s=1e9", "replicas=1"])
    built = cluster.build(plan.variants[0], plan.folder)
    assert any(note.startswith("prefix_fetch has no effect") for note in built.notes)
