"""Conditional disaggregation in a config: what it gives, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from experiments import cluster
from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant
from sim.errors import ConfigError

BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 200,
        "arrivals": {"rate_per_s": 20},
        "max_tokens": 1024,
    },
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "policy": {"name": "vllm-v1"},
    "pools": {
        "prefill": {"replicas": 1},
        "decode": {"replicas": 2},
        "transfer": {"bandwidth_bytes_per_s": 50e9},
    },
}


def run(*settings: str) -> Bundle:
    plan = load(BASE, settings)
    return run_variant(plan.variants[0], plan.folder)


def test_short_prompts_stay_and_long_ones_do_not() -> None:
    got = run("pools.local_prefill.max_uncached_tokens=500")
    here = got.requests["replica"] == got.requests["decode_replica"]
    short = got.requests["prompt_tokens"] <= 500
    assert here.tolist() == short.tolist()
    assert 0 < here.sum() < 200
    tokens = int(got.requests["prompt_tokens"][short].sum())
    stayed = {"requests": int(here.sum()), "prompt_tokens": tokens, "routed": 200}
    assert got.summary["local_prefill"] == stayed
    assert len(got.transfers["request"]) == (~here & (got.requests["output_tokens"] > 1)).sum()
    assert any(note.startswith(f"local_prefill: {here.sum()} of 200") for note in got.notes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ["pools.local_prefill.max_uncached_token=5"],
            "pools.local_prefill.max_uncached_token: local_prefill has no such option; "
            "try max_uncached_tokens",
        ),
        (["pools.local_prefill.max_queue=0"], "pools.local_prefill.max_queue: 0"),
        (["pools.local_prefill.max_uncached_tokens=-1"], "max_uncached_tokens: -1"),
        (
            ["pools.local_prefill.max_queue=2", "pools.decode.policy=static"],
            "policy.name: static: prefills nobody on a decode replica",
        ),
        (
            ["pools.transfer.max_waiting_share=0.05"],
            "pools.transfer.max_waiting_share: 0.05: is for a decode side that pulls",
        ),
        (["pools.transfer.decode_first=1"], "pools.transfer.decode_first: 1"),
    ],
)
def test_what_cannot_be_is_refused(settings: list[str], message: str) -> None:
    def build() -> None:
        plan = load(BASE, settings)
        cluster.build(plan.variants[0], plan.folder)

    with pytest.raises(ConfigError) as raised:
        build()
    assert message in str(raised.value)


def test_one_pool_has_nothing_to_prefill_elsewhere() -> None:
    both = {"colocated": {"replicas": 1}, "local_prefill": {"max_queue": 1}}
    with pytest.raises(ConfigError, match=r"pools\.local_prefill: there is a colocated pool"):
        load({**BASE, "pools": both})


def test_keys_without_effect_are_told() -> None:
    plan = load(BASE, ["pools.local_prefill={}", "pools.transfer.decode_first=true"])
    notes = cluster.build(plan.variants[0], plan.folder).notes
    assert any(note.startswith("local_prefill: with max_uncached_tokens 0") for note in notes)
    assert any(note.startswith("transfer.decode_first has no effect") for note in notes)


def test_what_a_hit_saves_is_timed_where_it_was_found() -> None:
    slower = ["pools.decode.device=a100", "pools.local_prefill.max_queue=1"]
    cached = ["policy.prefix_cache=true", "workload.preset=system-prompts"]
    got = run(*slower, *cached, "workload.arrivals={process: poisson, rate_per_s: 60}")
    local = got.requests["replica"] == got.requests["decode_replica"]
    assert (got.requests["cached_tokens"][local] > 0).any()
    assert got.summary["overall"]["saved_prefill_s"] > 0
