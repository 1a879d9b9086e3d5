"""Definitions of the metrics, on numbers worked by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import metrics
from sim.errors import ConfigError
from sim.metric_definitions import METRICS
from sim.model_work import (
    Hardware,
    ModelWork,
    mbu,
    mfu,
    model_work,
    moved_bytes,
    useful_flops,
)
from sim.records import STATES
from sim.slo import NO_CLASS, SLO, Windows, class_groups, slo_attainment
from sim.specs import load_device, load_model

S = 1_000_000_000


def table(**columns):
    """A requests table of five: two tokens or more, one token, rejected, cut off, preempted."""
    base = {
        "arrival_ns": [0, 1 * S, 2 * S, 3 * S, 4 * S],
        "prompt_tokens": [100, 50, 10_000, 200, 300],
        "output_tokens": [5, 1, 7, 90, 3],
        "emitted_tokens": [5, 1, 0, 4, 3],
        "state": [STATES.index(s) for s in ("finished", "finished", "rejected")]
        + [STATES.index("unfinished"), STATES.index("finished")],
        "first_scheduled_ns": [S // 2, 1 * S, -1, 4 * S, 5 * S],
        "prefill_end_ns": [1 * S, 2 * S, -1, 5 * S, 6 * S],
        "first_token_ns": [1 * S, 3 * S, -1, 5 * S, 6 * S],
        "last_token_ns": [3 * S, 3 * S, -1, 8 * S, 12 * S],
        "end_ns": [3 * S, 3 * S, 2 * S, -1, 12 * S],
        "largest_itl_ns": [S, -1, -1, 2 * S, 5 * S],
        "preemptions": [0, 0, 0, 0, 2],
        "recomputed_tokens": [0, 0, 0, 0, 302],
        "cached_tokens": [0, 0, 0, 0, 0],
    }
    return {name: np.asarray(column, np.int64) for name, column in (base | columns).items()}


def same(values, expected):
    np.testing.assert_array_equal(values, np.array(expected, dtype=float))


NAN = np.nan


def test_ttft_counts_every_request_that_emitted_a_token():
    same(metrics.ttft_s(table()), [1, 2, NAN, 2, 2])


def test_prefill_ttft_differs_where_the_client_waits_longer():
    same(metrics.prefill_ttft_s(table()), [1, 1, NAN, 2, 2])


def test_queueing_delay_ends_when_first_scheduled():
    same(metrics.queueing_delay_s(table()), [0.5, 0, NAN, 1, 1])


def test_tpot_is_undefined_for_one_token_and_for_the_unfinished():
    same(metrics.tpot_s(table()), [0.5, NAN, NAN, NAN, 3])


def test_e2e_and_normalised_latency_are_of_finished_requests():
    same(metrics.e2e_s(table()), [3, 2, NAN, NAN, 8])
    same(metrics.normalised_latency_s_per_token(table()), [3 / 5, 2, NAN, NAN, 8 / 3])


def test_largest_itl_needs_two_tokens_but_no_end():
    same(metrics.largest_itl_s(table()), [1, NAN, NAN, 2, 5])


def test_times_to_the_nanosecond_survive_a_day():
    day = 86_400 * S
    requests = table(arrival_ns=[day] * 5, first_token_ns=[day + 1] * 5)
    same(metrics.ttft_s(requests), [1e-9] * 5)


def test_every_per_request_metric_is_defined_in_the_dictionary():
    assert set(metrics.PER_REQUEST) <= set(METRICS)
    assert all(key == metric.key for key, metric in METRICS.items())
    assert all(metric.definition.endswith(".") for metric in METRICS.values())
    assert all("  " not in metric.definition for metric in METRICS.values())


def test_names_in_files_end_in_their_unit():
    names = {metric.name_in_files for metric in METRICS.values()}
    assert {"ttft_s", "normalised_latency_s_per_token", "throughput_out_tokens_per_s"} <= names
    assert {"recomputed_tokens", "slo_attainment", "goodput_requests_per_s"} <= names


# Percentiles


def test_percentiles_are_values_that_occurred():
    values = np.array([1.0, 2.0, 3.0, 4.0, NAN])
    same(metrics.quantiles(values, (0.25, 0.5, 0.51, 1.0)), [1, 2, 3, 4])


def test_percentiles_of_nothing_are_nan():
    same(metrics.quantiles(np.array([NAN])), [NAN] * 4)
    same(metrics.gap_quantiles_s(metrics.merge_gaps([])), [NAN] * 4)
    assert metrics.distribution(np.array([]))["n"] == 0


def test_one_huge_gap_among_a_hundred_is_beyond_p99():
    gaps = np.array([10, 1000]), np.array([99, 1])
    same(metrics.gap_quantiles_s(gaps, (0.5, 0.99, 0.995)), [10e-9, 10e-9, 1000e-9])


def test_mean_gap_is_exact_for_a_hundred_million_gaps():
    gaps = np.array([3 * S, 3 * S + 2]), np.array([50_000_000, 50_000_000])
    summary = metrics.gap_distribution(gaps)
    assert summary["n"] == 100_000_000
    assert summary["mean"] == (3 * S + 1) / S


@given(
    st.dictionaries(st.integers(1, 10**9), st.integers(1, 50), min_size=1, max_size=30),
    st.sampled_from((0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)),
)
def test_weighted_percentiles_equal_those_of_the_listed_gaps(counts, q):
    gap_ns = np.array(sorted(counts), np.int64)
    count = np.array([counts[gap] for gap in gap_ns.tolist()], np.int64)
    listed = np.repeat(gap_ns, count)
    expected = np.quantile(listed, q, method="inverted_cdf") / S
    assert metrics.gap_quantiles_s((gap_ns, count), (q,))[0] == expected
    assert metrics.quantiles(listed / S, (q,))[0] == expected


@given(st.lists(st.dictionaries(st.integers(1, 40), st.integers(1, 9)), max_size=4))
def test_merged_gaps_count_every_gap_once(parts):
    gaps = [
        (np.array(sorted(part), np.int64), np.array([part[g] for g in sorted(part)], np.int64))
        for part in parts
    ]
    gap_ns, count = metrics.merge_gaps(gaps)
    merged = dict(zip(gap_ns.tolist(), count.tolist(), strict=True))
    keys = {gap for part in parts for gap in part}
    assert merged == {gap: sum(part.get(gap, 0) for part in parts) for gap in keys}
    assert gap_ns.tolist() == sorted(keys)


# Windows and SLOs


def test_windows_leave_out_both_ends_and_keep_the_bounds():
    arrival_ns = table()["arrival_ns"]
    mask = Windows(warm_up_s=1, drain_s=1).mask(arrival_ns)
    assert mask.tolist() == [False, True, True, True, False]


def test_windows_count_from_the_first_arrival():
    mask = Windows(warm_up_s=1).mask(table()["arrival_ns"] + 500 * S)
    assert mask.tolist() == [False, True, True, True, True]


def test_windows_that_leave_nothing_are_refused_with_the_span():
    with pytest.raises(ConfigError, match=r"warm_up_s 3 and drain_s 2 .* span 4 s"):
        Windows(3, 2).mask(table()["arrival_ns"])


def test_groups_of_gaps_leave_out_what_is_not_measured():
    requests = table() | {"request_class": np.array(["b", "a", None, "b", "a"], object)}
    group, names = class_groups(requests, np.array([True, True, True, False, True]))
    assert names == [NO_CLASS, "a", "b"]
    assert group.tolist() == [2, 1, 0, -1, 1]


def test_slo_counts_all_that_did_not_finish_as_missed():
    assert SLO(ttft_s=10).met(table()).tolist() == [True, True, False, False, True]
    assert slo_attainment(table(), SLO(ttft_s=10)) == 3 / 5


def test_slo_needs_every_target_and_a_target_is_met_when_equal():
    assert SLO(ttft_s=2, tpot_s=0.5).met(table()).tolist() == [True, True, False, False, False]
    assert SLO(itl_s=4.9).met(table()).tolist() == [True, True, False, False, False]
    assert SLO(e2e_s=3).met(table()).tolist() == [True, True, False, False, False]


def test_slo_of_a_class_overrides_what_it_names():
    requests = table() | {"request_class": np.array(["chat", "batch", "chat", "chat", "batch"])}
    slo = SLO(ttft_s=1.5, e2e_s=5, classes={"batch": SLO(ttft_s=100)})
    assert slo.met(requests).tolist() == [True, True, False, False, False]


def test_attainment_without_targets_is_undefined():
    assert np.isnan(slo_attainment(table(), SLO()))


# Rates and use


class Replica:
    joined_ns, left_ns = 0, -1
    name, pool, gpus, total_blocks = "r0", "main", 2, 10

    def __init__(self, busy_ns=0, iterations=0):
        self.busy_ns, self.iterations = busy_ns, iterations


def test_closeness_is_the_largest_latency_over_its_target():
    same(SLO(ttft_s=2, e2e_s=6).closeness(table()), [0.5, 1.0, np.inf, np.inf, 4 / 3])
    classes = np.array(["batch", None, None, None, "batch"], dtype=object)
    of_classes = SLO(ttft_s=4, classes={"batch": SLO(ttft_s=1)})
    requests = table() | {"request_class": classes}
    same(of_classes.closeness(requests), [1.0, 0.5, np.inf, np.inf, 2.0])
    for slo in (SLO(ttft_s=2), SLO(ttft_s=2, tpot_s=0.5), SLO(itl_s=4.9), of_classes):
        assert ((slo.closeness(requests) <= 1) == slo.met(requests)).all()


def test_throughput_lasts_to_the_end_of_the_run_when_something_is_unfinished():
    requests = table()
    duration_s = metrics.observed_s(requests, 0, 20 * S)
    assert duration_s == 20
    assert metrics.throughput_out_per_s(requests, duration_s) == 13 / 20
    assert metrics.throughput_in_per_s(requests, duration_s) == 650 / 20


def test_throughput_ends_with_the_last_request_when_all_ended():
    assert metrics.observed_s(table(end_ns=[3 * S] * 5), 0, 20 * S) == 3


def test_utilisation_is_a_share_of_first_arrival_to_last_end():
    same(metrics.utilisation([Replica(busy_ns=3 * S)], (1 * S, 13 * S)), [0.25])


def test_batch_size_and_kv_use_come_from_the_grid_in_the_span():
    series = {
        "time_ns": np.array([0, 1, 2, 3]) * S,
        "replica": np.zeros(4, np.int64),
        "running": np.array([9, 2, 0, 4]),
        "used_blocks": np.array([9, 5, 0, 10]),
    }
    same(metrics.batch_sizes(series, (1 * S, 3 * S)), [2, 4])
    same(metrics.kv_use(series, [Replica()], (1 * S, 3 * S)), [0.5, 0, 1])


WORK = ModelWork(
    flops_per_token=1000,
    flops_per_pair=1,
    flops_per_sample=100_000,
    kv_bytes_per_token=2,
    weight_bytes=(7,),
    peak_flops_per_s=2e6,
    peak_bytes_per_s=2e3,
)


def one_request(cached=0):
    columns = {"prompt_tokens": [3], "emitted_tokens": [3], "cached_tokens": [cached]}
    return {name: np.array(column) for name, column in columns.items()}


def test_useful_flops_count_each_token_and_each_pair_once():
    # Five tokens are computed (three of the prompt, two fed back), attending to 1 + 2 + 3 + 4 + 5.
    assert useful_flops(one_request(), WORK) == 5000 + 15 + 300_000
    assert useful_flops(one_request(cached=2), WORK) == 3000 + 12 + 300_000


def test_moved_bytes_are_weights_per_iteration_and_kv_per_context():
    # Iterations: prefill, then decodes over 4 and 5 tokens; 5 tokens are written.
    assert moved_bytes(one_request(), WORK, [Replica(iterations=3)]) == 3 * 7 + 2 * (4 + 5 + 5)


def test_mfu_and_mbu_are_shares_of_the_peak_of_all_gpus():
    assert mfu(one_request(), WORK, (0, 2 * S)) == 305_015 / 4e6
    assert mbu(one_request(), WORK, [Replica(iterations=3)], (0, 2 * S)) == 49 / 4e3
    assert np.isnan(mfu(one_request(), WORK, (0, 0)))


def test_model_work_of_llama_2_7b_is_two_flops_per_parameter():
    model, device = load_model("llama-2-7b"), load_device("a100-80gb-sxm")
    work = model_work(model, [Hardware(device, tensor_parallel=2)] * 3)
    per_token = work.flops_per_token + work.flops_per_sample
    embedding = model.vocab * model.hidden
    assert per_token == pytest.approx(2 * (model.parameters - embedding), rel=1e-3)
    assert work.flops_per_pair == 4 * 32 * 4096
    assert work.weight_bytes == pytest.approx([2 * (model.parameters - embedding)] * 3, rel=1e-3)
    assert work.peak_flops_per_s == 6 * device.bf16_flops
