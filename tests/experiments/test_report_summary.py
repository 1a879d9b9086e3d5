"""The summary of a run that can be worked by hand."""

import json

import numpy as np
import pytest

from experiments.summary import summarize
from sim.cost import PoolRates, Power, Rates, TokenPrices
from sim.metric_definitions import METRICS
from sim.records import FINISHED, REJECTED, UNFINISHED
from sim.slo import SLO, Windows

S = 1_000_000_000


class Replica:
    joined_ns, left_ns = 0, -1
    name, pool, gpus, total_blocks = "main-0", "main", 2, 10
    block_tokens, busy_ns, iterations, lost_blocks = 16, 5 * S, 50, 3
    host_bytes = disk_read_bytes = disk_written_bytes = 0
    found_tokens = asked_tokens = host_found_tokens = disk_found_tokens = 0
    prefill_busy_ns = 2 * S


class Tiered(Replica):
    host_bytes, disk_read_bytes, disk_written_bytes = 700, 20, 30
    found_tokens, asked_tokens = 60, 80
    host_found_tokens, disk_found_tokens = 16, 4


def requests(**columns):
    base = {
        "arrival_ns": np.array([0, 1, 2, 4]) * S,
        "prompt_tokens": np.array([10, 20, 30, 40]),
        "emitted_tokens": np.array([3, 0, 1, 2]),
        "state": np.array([FINISHED, REJECTED, FINISHED, UNFINISHED], np.int8),
        "reason": np.array([0, 1, 0, 0], np.int16),
        "first_scheduled_ns": np.array([0, -1, 2 * S, 5 * S]),
        "prefill_end_ns": np.array([1 * S, -1, 4 * S, 6 * S]),
        "first_token_ns": np.array([1 * S, -1, 4 * S, 6 * S]),
        "last_token_ns": np.array([3 * S, -1, 4 * S, 8 * S]),
        "end_ns": np.array([3 * S, 1 * S, 4 * S, -1]),
        "largest_itl_ns": np.array([S, -1, -1, 2 * S]),
        "preemptions": np.array([1, 0, 0, 2]),
        "recomputed_tokens": np.array([11, 0, 0, 5]),
        "cached_tokens": np.zeros(4, np.int64),
    }
    return base | columns


SERIES = {
    "time_ns": np.array([0, 2, 4]) * S,
    "replica": np.zeros(3, np.int64),
    "waiting": np.array([0, 0, 1]),
    "running": np.array([1, 0, 3]),
    "used_blocks": np.array([2, 0, 10]),
    "cached_blocks": np.array([0, 5, 0]),
    "lost_blocks": np.array([0, 0, 3]),
}
ITL = {"(none)": (np.array([S, 2 * S]), np.array([2, 1]))}


def summary(table=None, itl=ITL, replicas=None, **options):
    return summarize(
        table or requests(),
        itl=itl,
        series=SERIES,
        replicas=replicas or [Replica()],
        reasons=["", "over_pool"],
        run_end_ns=10 * S,
        **options,
    )


def test_every_request_is_counted_once_and_reasons_are_named():
    result = summary()
    assert result["requests"] == {
        "arrived": 4,
        "finished": 2,
        "rejected": 1,
        "cancelled": 0,
        "failed": 0,
        "unfinished": 1,
    }
    assert result["reasons"] == {"over_pool": 1}


def test_overall_metrics_of_the_hand_worked_run():
    overall = summary(slo=SLO(ttft_s=1))["overall"]
    assert overall["ttft_s"]["mean"] == pytest.approx((1 + 2 + 2) / 3)
    assert overall["itl_s"]["p50"] == 1
    assert overall["itl_s"]["p99"] == 2
    assert overall["throughput_out_tokens_per_s"] == 6 / 10
    assert overall["throughput_in_per_gpu_tokens_per_s"] == 80 / 10 / 2
    assert overall["slo_attainment"] == 1 / 4
    assert overall["goodput_requests_per_s"] == 1 / 4
    assert overall["preemptions"] == 3
    assert overall["batch_size_requests"]["mean"] == 2
    assert overall["kv_use"]["max"] == 1
    assert overall["utilisation"] == 0.5
    assert overall["mfu"] is None


def test_the_summary_names_every_metric_that_the_run_can_have():
    class Second(Replica):
        name = "main-1"

    class Plain(Replica):
        lost_blocks = None

    people = np.array(["a", "b", "b", "a"], object)
    places = {"replica": np.array([0, -1, 1, 1]), "decode_replica": np.full(4, -1)}
    swaps = np.array([1, 0, 0, 2])
    moved = {"transfer_s": np.ones(4), "decode_wait_s": np.array([2, 3, np.nan, 4])}
    table = requests(tenant=people, session=people, swap_outs=swaps, **places, **moved)
    told = {"distance_tokens": {"n": 1}, "block_tokens": 16, "capacity_tokens": [], "hit_rate": []}
    rates = Rates({"main": PoolRates("gpu", 2.0, Power(1, 3, 2))}, TokenPrices(1, 2))
    full = summary(table, replicas=[Tiered(), Second()], reuse=told, rates=rates)
    plain = summary(replicas=[Plain()])
    names = {metric.name_in_files for metric in METRICS.values()}
    absent = {m.name_in_files for m in METRICS.values() if " Absent w" in m.definition}
    assert set(full["overall"]) == names
    assert set(plain["overall"]) == names - absent
    assert full["overall"]["swap_outs"] == 3
    of_requests = {m.name_in_files for m in METRICS.values() if m.of_requests}
    assert set(full["tenants"]["a"]) <= of_requests | {"requests"}
    assert plain["tenants"] == {}
    assert full["pools"]["main"]["usd_per_gpu_hour"] == 2.0
    assert "pools" not in plain


def test_windows_leave_requests_out_of_metrics_but_not_of_the_count():
    result = summary(windows=Windows(warm_up_s=1.5))
    assert result["requests"]["arrived"] == 4
    assert result["measured_requests"]["arrived"] == 2
    assert result["overall"]["ttft_s"]["n"] == 2
    assert result["overall"]["throughput_out_tokens_per_s"] == 3 / 8.5


def test_classes_are_summed_up_apart_with_their_own_targets():
    table = requests(request_class=np.array(["a", "b", "b", "b"], object))
    itl = {"a": (np.array([S]), np.array([2])), "b": (np.array([2 * S]), np.array([1]))}
    result = summary(table, itl, slo=SLO(ttft_s=1, classes={"b": SLO(ttft_s=2)}))
    assert list(result["classes"]) == ["a", "b"]
    assert result["classes"]["b"]["slo_attainment"] == 1 / 3
    assert result["classes"]["b"]["itl_s"]["n"] == 1
    assert result["overall"]["itl_s"]["n"] == 3
    assert result["overall"]["slo_attainment"] == 2 / 4


def test_the_summary_is_strict_json_and_the_same_every_time():
    text = json.dumps(summary(), allow_nan=False)
    assert text == json.dumps(summary(), allow_nan=False)


def test_a_run_in_which_nothing_arrived_has_a_summary():
    empty = {name: column[:0] for name, column in requests().items()}
    result = summary(empty, {})
    assert result["requests"]["arrived"] == 0
    assert result["overall"]["ttft_s"]["p99"] is None
    assert result["verdict"]["name"] == "too short to tell"


def test_what_concerns_a_prefix_cache_is_absent_without_one():
    class Plain(Replica):
        lost_blocks = None

    of_caches = {"prefix_hit_rate_tokens", "prefix_hit_rate_requests", "saved_prefill_s"}
    of_caches |= {"kv_cached", "kv_free", "evicted_tokens"}
    with_cache, without = summary(), summary(replicas=[Plain()])
    assert set(with_cache["overall"]) - set(without["overall"]) == of_caches
    assert "lost_blocks" not in without["replicas"][0]
    assert with_cache["replicas"][0]["lost_blocks"] == 3


def test_tiers_say_where_tokens_were_found_and_what_moved():
    class OnHost(Tiered):
        disk_read_bytes = disk_written_bytes = disk_found_tokens = 0

    overall = summary(replicas=[Tiered()])["overall"]
    assert overall["gpu_found_tokens"] == 40
    assert (overall["host_found_tokens"], overall["disk_found_tokens"]) == (16, 4)
    assert overall["tier_hit_rate_tokens"] == 20 / 80
    assert (overall["host_bytes"], overall["disk_bytes"]) == (700, 50)
    assert "disk_bytes" not in summary(replicas=[OnHost()])["overall"]
    assert "host_bytes" not in summary()["overall"]


def test_hits_are_of_the_requests_that_were_scheduled():
    table = requests(cached_tokens=np.array([4, 0, 0, 16]))  # the second was rejected
    overall = summary(table)["overall"]
    assert overall["prefix_hit_rate_tokens"] == 20 / 80
    assert overall["prefix_hit_rate_requests"] == 2 / 3
    assert overall["evicted_tokens"] == 3 * 16


def test_blocks_are_in_use_cached_or_free():
    overall = summary()["overall"]  # of ten blocks: 2, 0, 10 in use; 0, 5, 0 cached
    assert overall["kv_cached"]["max"] == 0.5
    assert overall["kv_free"]["min"] == 0
    shares = [overall[name]["mean"] for name in ("kv_use", "kv_cached", "kv_free")]
    assert sum(shares) == pytest.approx(1)
