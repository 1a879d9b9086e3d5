"""What the shipped configs on caches, routing, agents and money say is what their numbers show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from experiments.config import load
from experiments.results import Results, run_plan

pytestmark = pytest.mark.slow

_SPLITS = ("1 prefill + 3 decode", "2 prefill + 2 decode", "3 prefill + 1 decode")
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
    drawn = [m[label]["slo_attainment"] for label in ("none", "rare", "often")]
    return (
        met == sorted(met, reverse=True)
        and late == sorted(late)
        and met[0] > met[2] + 0.1
        and drawn == sorted(drawn, reverse=True)
        and drawn[1] > drawn[2] + 0.1
    )


def zero_is_cheap_and_slow(m: Metrics) -> bool:
    costs = [m[label]["cost_usd"] for label in ("fixed", "autoscaled", "to zero")]
    late = [m[label]["ttft_s"]["p99"] for label in ("fixed", "autoscaled", "to zero")]
    hourly = [x["cost_usd"] / x["gpu_hours"] for x in m.values()]
    return (
        costs[0] > 2 * costs[1] > 3 * costs[2]
        and late == sorted(late)
        and late[2] > 100  # provisioning and loading: 60 s and 40 s
        and all(abs(each - hourly[0]) < 1e-9 for each in hourly)
    )


def roles_make_up_for_the_split(m: Metrics) -> bool:
    met = {label: x["slo_attainment"] for label, x in m.items()}
    late = {label: x["ttft_s"]["mean"] for label, x in m.items()}
    gaps = {label: x["itl_s"]["p99"] for label, x in m.items()}
    return (
        max(met["1:3"], met["3:1"]) < 0.2
        and met["2:2"] > 0.95
        and met["from 3:1"] >= met["from 1:3"] > 0.9
        and all(late[f"from {x}"] < late[x] / 10 for x in ("1:3", "3:1"))
        and late["2:2"] < late["from 1:3"]  # until the long answers of a decode replica have ended
        and gaps["colocated"] > 3 * gaps["from 1:3"]
        and all(met[x] < met[f"mixed {x}"] < met[f"from {x}"] for x in ("1:3", "3:1"))
        and late["mixed 1:3"] < late["from 1:3"]
    )


def two_h100_are_cheapest(m: Metrics) -> bool:
    meets = {label: x for label, x in m.items() if x["slo_attainment"] >= 0.95}
    cheapest = min(meets, key=lambda label: float(meets[label]["cost_usd"]))
    hourly = {label: x["cost_usd"] / x["gpu_hours"] for label, x in m.items()}
    return (
        cheapest == "2 H100"
        and "2 H200" in meets
        and "4 A100" not in meets
        and abs(hourly["2 H100"] - 3.99) < 1e-9
        and abs(hourly["2 pairs of A100"] - 1.79) < 1e-9
        and m["5 A100"]["slo_attainment"] > m["4 A100"]["slo_attainment"]
    )


def the_h200_belongs_behind(m: Metrics) -> bool:
    front, behind = m["H200 to A100"], m["A100 to H200"]
    hourly = [x["cost_usd"] / x["gpu_hours"] for x in (front, behind)]
    return (
        behind["slo_attainment"] > 0.95
        and front["slo_attainment"] < 0.5
        and behind["tpot_s"]["p99"] < front["tpot_s"]["p99"] / 1.5
        and behind["ttft_s"]["mean"] > front["ttft_s"]["mean"]
        and all(abs(each - (4.59 + 3 * 1.79) / 4) < 1e-9 for each in hourly)
        and m["4 H200 colocated"]["cost_usd"]
        > behind["cost_usd"]
        > m["2 H200 colocated"]["cost_usd"]
    )


def loading_pays(m: Metrics) -> bool:
    cache, before, beside = m["cache"], m["host before"], m["host beside"]
    return (
        cache["ttft_s"]["mean"] < m["no cache"]["ttft_s"]["mean"] / 5
        and before["ttft_s"]["mean"] < cache["ttft_s"]["mean"] / 2
        and beside["ttft_s"]["mean"] < before["ttft_s"]["mean"]
        and m["disk beside"]["ttft_s"]["mean"] < cache["ttft_s"]["mean"] / 2
        and m["disk beside"]["disk_found_tokens"] > 0
        and before["prefix_hit_rate_tokens"] > 2 * cache["prefix_hit_rate_tokens"]
    )


def short_prompts_stay(m: Metrics) -> bool:
    always, length, dynamo = m["always"], m["by length"], m["dynamo"]
    first = [x["ttft_s"]["mean"] for x in (always, length, dynamo)]
    return (
        first == sorted(first, reverse=True)
        and length["ttft_s"]["mean"] < always["ttft_s"]["mean"] / 2
        and always["tpot_s"]["mean"] < length["tpot_s"]["mean"] < dynamo["tpot_s"]["mean"]
        and length["slo_attainment"] > always["slo_attainment"]
    )


def what_is_cached_need_not_go_round(m: Metrics) -> bool:
    always, threshold = m["always"], m["threshold"]
    later = [x["ttft_s"]["mean"] - x["prefill_ttft_s"]["mean"] for x in (always, threshold)]
    return (
        threshold["ttft_s"]["mean"] < 0.75 * always["ttft_s"]["mean"]
        and later[0] > later[1] > 0  # the last token is computed again by whoever was sent for
        and m["colocated"]["ttft_s"] == m["colocated"]["prefill_ttft_s"]
    )


def swapping_beats_recomputing(m: Metrics) -> bool:
    swaps, recompute = m["distserve"], m["recompute"]
    return (
        swaps["ttft_s"]["mean"] < recompute["ttft_s"]["mean"] / 5
        and swaps["slo_attainment"] > recompute["slo_attainment"] + 0.05
        and abs(swaps["slo_attainment"] - m["all that fit"]["slo_attainment"]) < 0.1
        and m["colocated"]["slo_attainment"] > 0.9
    )


def prediction_meets_more(m: Metrics) -> bool:
    nobody, now, ahead = (m[label] for label in ("nobody", "as it is", "predicted"))
    return (
        ahead["slo_attainment"] > now["slo_attainment"] + 0.1
        and now["slo_attainment"] >= nobody["slo_attainment"]
        and ahead["ttft_s"]["p99"] < now["ttft_s"]["p99"]
    )


def fetching_prefixes_pays(m: Metrics) -> bool:
    robin, aware, fetch = m["round robin"], m["cache-aware"], m["with fetch"]
    return (
        fetch["ttft_s"]["mean"] < 0.9 * aware["ttft_s"]["mean"]
        and aware["ttft_s"]["mean"] < robin["ttft_s"]["mean"] / 2
        and fetch["slo_attainment"] > aware["slo_attainment"] > robin["slo_attainment"]
        and aware["prefix_hit_rate_tokens"] > robin["prefix_hit_rate_tokens"]
    )


def moving_helps(m: Metrics) -> bool:
    none, live, stop, again = (m[label] for label in ("none", "live", "stop", "recompute"))
    return (
        live["ttft_s"]["p99"] < none["ttft_s"]["p99"] / 2
        and live["preemptions"] < none["preemptions"] / 2
        and stop["preemptions"] < none["preemptions"] / 2
        and max(live["ttft_s"]["p99"], stop["ttft_s"]["p99"]) < again["ttft_s"]["p99"]
        and live["slo_attainment"] > none["slo_attainment"]
    )


def faster_links_wait_less(m: Metrics) -> bool:
    by_speed = [m[label] for label in ("eth25", "eth100", "ib200", "ib400", "nvlink")]
    for statistic in ("mean", "p99"):
        waits = [x["decode_wait_s"][statistic] for x in by_speed]
        if waits != sorted(waits, reverse=True):
            return False
    met = [x["slo_attainment"] for x in by_speed]
    return met == sorted(met) and met[0] < 0.5 and met[1] > 0.95


def two_and_two_is_the_split(m: Metrics) -> bool:
    one, two, three = (m[label] for label in _SPLITS)
    return (
        two["slo_attainment"] > 0.99
        and one["slo_attainment"] < 0.1
        and 0.5 < three["slo_attainment"] < 0.9
        and one["ttft_s"]["mean"] > 20 * two["ttft_s"]["mean"]
        and three["tpot_s"]["p99"] > 3 * two["tpot_s"]["p99"]
        and three["ttft_s"]["mean"] < two["ttft_s"]["mean"]
    )


@pytest.mark.parametrize(
    ("config", "holds", "says"),
    [
        ("pd_ratio", two_and_two_is_the_split, "Two and two: 100.0% of the requests"),
        ("conditional_disaggregation", short_prompts_stay, "Short prompts should stay"),
        ("llm_d", what_is_cached_need_not_go_round, "No: where the decode replica prefills"),
        ("distserve", swapping_beats_recomputing, "They keep the first token quick"),
        ("migration", moving_helps, "Yes: live migration takes the P99 TTFT from"),
        ("pd_network", faster_links_wait_less, "Below a point it decides everything"),
        ("early_rejection", prediction_meets_more, "Yes: judged by the predicted decode load"),
        ("mooncake", fetching_prefixes_pays, "Fetching prefixes brings the mean TTFT to"),
        ("offloading", loading_pays, "It pays: the mean TTFT falls"),
        ("role_switching", roles_make_up_for_the_split, "Yes: with one prefill replica"),
        ("autoscale", zero_is_cheap_and_slow, "Autoscaling between one and four replicas costs"),
        ("failures", failures_cost, "Without a failure 100.0% of the requests meet their targets"),
        ("prefix_caching", caching_pays, "vLLM's cache finds"),
        (
            "agents_and_completions",
            placement_meets,
            "sharing misses 100 ms, placement by class meets",
        ),
        ("routing", affinity_finds_more, "Keeping a session on its replica finds"),
        ("prompt_order", stable_first_wins, "With the system prompt first"),
        ("cost", two_h100_are_cheapest, "Two H100 serve this load for the least money"),
        ("pd_heterogeneous", the_h200_belongs_behind, "Behind three A100 the H200 is worth more"),
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
