"""What the shipped configs on caches, routing and agents say is what their numbers show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from experiments.config import load
from experiments.results import Results, run_plan

pytestmark = pytest.mark.slow

Metrics = dict[str, dict[str, Any]]


def caching_pays(m: Metrics) -> bool:
    no_cache, vllm = m["no cache"], m["vllm"]
    lpm, fcfs = m["sglang lpm"], m["sglang fcfs"]
    return (
        vllm["ttft_s"]["mean"] < no_cache["ttft_s"]["mean"] / 5
        and lpm["ttft_s"]["mean"] < fcfs["ttft_s"]["mean"] / 2
        and lpm["prefix_hit_rate_tokens"] > fcfs["prefix_hit_rate_tokens"]
    )


def placement_meets(m: Metrics) -> bool:
    p99 = {label: x["classes"]["tab-completion"]["ttft_s"]["p99"] for label, x in m.items()}
    return p99["shared"] > 0.1 and p99["affinity"] > 0.1 and p99["placed"] < 0.1


def affinity_finds_more(m: Metrics) -> bool:
    affinity, robin = m["affinity"], m["round robin"]
    return (
        affinity["prefix_hit_rate_tokens"] > 1.2 * robin["prefix_hit_rate_tokens"]
        and affinity["ttft_s"]["mean"] < robin["ttft_s"]["mean"] / 2
        and m["kv-aware"]["ttft_s"]["mean"] < robin["ttft_s"]["mean"]
    )


def stable_first_wins(m: Metrics) -> bool:
    stable, variable = m["stable first"], m["variable first"]
    return (
        variable["prefix_hit_rate_tokens"] == 0
        and stable["prefix_hit_rate_tokens"] > 0.9
        and stable["ttft_s"]["mean"] < variable["ttft_s"]["mean"] / 2
    )


def failures_cost(m: Metrics) -> bool:
    met = [m[label]["slo_attainment"] for label in ("none", "one", "two", "three")]
    late = [m[label]["ttft_s"]["p99"] for label in ("none", "one", "two", "three")]
    return met == sorted(met, reverse=True) and late == sorted(late) and met[0] > met[2] + 0.1


@pytest.mark.parametrize(
    ("config", "holds", "says"),
    [
        ("failures", failures_cost, "Without a failure 100.0% of the requests meet their targets"),
        ("prefix_caching", caching_pays, "vLLM's cache finds"),
        (
            "agents_and_completions",
            placement_meets,
            "sharing misses 100 ms, placement by class meets",
        ),
        ("routing", affinity_finds_more, "Keeping a session on its replica finds"),
        ("prompt_order", stable_first_wins, "With the system prompt first"),
    ],
)
def test_a_shipped_answer_has_the_direction_of_its_numbers(
    config: str, holds: Callable[[Metrics], bool], says: str
) -> None:
    results: Results = run_plan(load(config))
    metrics = {
        x.label: {**x.summary["overall"], "classes": x.summary["classes"]} for x in results.bundles
    }

    assert holds(metrics)
    assert says in " ".join(results.answer.split())
