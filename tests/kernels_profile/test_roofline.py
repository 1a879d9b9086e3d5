import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_profile import STEP_TIMES
from kernels_profile.curves import CurveBook
from kernels_profile.host import DEFAULT_HOST, HOSTS, HostOverhead, load_host
from kernels_profile.operators import CURVES, median_curve
from kernels_profile.roofline import LIST_RUN, MEMO_ROWS, RooflineStepTime
from sim.errors import ConfigError, ProfileError
from sim.specs import (
    KV_BYTES,
    WEIGHT_BITS,
    device_names,
    kv_blocks,
    load_device,
    load_model,
    model_names,
)
from sim.step_time import StepTimeModel, StepWork
from tests.kernels_profile.step_properties import assert_more_work_takes_no_less

MEASURED = ["a100-sxm-80gb", "h100-sxm", "h200", "b200", "l40s", "rtx-pro-6000"]


def roofline(model: str, device: str, **options) -> RooflineStepTime:
    return RooflineStepTime(load_model(model), load_device(device), **options)


LLAMA = roofline("llama-3.1-8b", "h100-sxm")
MIXTRAL = roofline("mixtral-8x7b", "b200", precision="fp8", kv_dtype="fp8", tensor_parallel=2)
OPT = roofline("opt-13b", "a6000", precision="fp16", host=HostOverhead(1.0, 0.01))
MIXED = roofline("llama-3.1-8b", "rtx-pro-6000")
SEVERAL = [LLAMA, MIXTRAL, OPT, MIXED]


def decodes(rows: int, context: int) -> StepWork:
    """`rows` decodes whose contexts sum to `context`."""
    return StepWork((), rows, context)


def test_it_is_a_step_time_model():
    assert isinstance(LLAMA, StepTimeModel)
    assert set(STEP_TIMES) >= {"linear", "roofline"}
    built = STEP_TIMES["roofline"](model=LLAMA.model, device=LLAMA.device)
    assert built.step_ns(decodes(8, 8000), 0) == LLAMA.step_ns(decodes(8, 8000), 0)


@given(
    model=st.sampled_from(SEVERAL),
    rows=st.integers(1, 2000),
    padding=st.integers(0, 50),
    mean_context=st.integers(1, 20_000),
    n=st.integers(1, 100),
    first=st.integers(0, 10**6),
)
@settings(max_examples=100, deadline=None)
def test_a_run_equals_single_steps_bit_for_bit(model, rows, padding, mean_context, n, first):
    context = rows * mean_context
    work = StepWork((), rows + padding, context, attending_rows=rows)

    run = model.steps_ns(work, n, first)

    single = [
        model.step_ns(
            StepWork((), rows + padding, context + k * rows, attending_rows=rows), first + k
        )
        for k in range(n)
    ]
    assert list(run) == single
    assert min(single) >= 1


def test_a_run_across_the_knee_of_decode_attention_equals_single_steps():
    knee = int(LLAMA._row_ns * 100 / LLAMA._context_ns)
    for n in (LIST_RUN - 1, 400):
        start = knee - n * 50
        run = LLAMA.steps_ns(decodes(100, start), n, 0)
        assert list(run) == [LLAMA.step_ns(decodes(100, start + 100 * k), k) for k in range(n)]
        assert run[0] == run[n // 4]
        assert run[-1] > run[0]


def test_short_runs_are_lists_and_long_ones_arrays():
    short = LLAMA.steps_ns(decodes(4, 400), LIST_RUN - 1, 0)
    long = LLAMA.steps_ns(decodes(4, 400), LIST_RUN, 0)

    assert isinstance(short, list)
    assert all(type(ns) is int for ns in short)
    assert isinstance(long, np.ndarray)
    assert long.dtype == np.int64


@pytest.mark.parametrize("n", [1, LIST_RUN + 1])
def test_steps_without_attention_are_all_alike(n):
    work = StepWork((), 5, 0, attending_rows=0)
    assert list(LLAMA.steps_ns(work, n, 0)) == [LLAMA.step_ns(work, 0)] * n


def test_a_step_with_prefill_is_a_run_of_one():
    work = StepWork([(100, 0)], 4, 400)

    assert list(LLAMA.steps_ns(work, 1, 0)) == [LLAMA.step_ns(work, 0)]
    with pytest.raises(ValueError, match="has no prefill"):
        LLAMA.steps_ns(work, 2, 0)


@given(
    model=st.sampled_from(SEVERAL),
    chunk=st.integers(1, 4000),
    before=st.integers(0, 20_000),
    rows=st.integers(0, 500),
    mean_context=st.integers(1, 8000),
    more=st.integers(1, 1000),
)
@settings(max_examples=150, deadline=None)
def test_more_work_never_takes_less_time(model, chunk, before, rows, mean_context, more):
    assert_more_work_takes_no_less(model, chunk, before, rows, mean_context, more)


@given(
    model=st.sampled_from(SEVERAL),
    rows=st.integers(1, 1000),
    context=st.integers(1, 10_000_000),
    more=st.integers(1, 100_000),
)
@settings(max_examples=200, deadline=None)
def test_longer_contexts_and_more_decodes_never_take_less_time(model, rows, context, more):
    base = model.step_ns(decodes(rows, context), 0)
    assert model.step_ns(decodes(rows, context + more), 0) >= base
    assert model.step_ns(decodes(rows + 1, context), 0) >= base


WORKS = [
    decodes(1, 1),
    decodes(1, 2000),
    decodes(64, 64 * 1500),
    decodes(512, 512 * 400),
    StepWork([(1, 5000)]),
    StepWork([(16, 30_000)] * 8),
    StepWork([(512, 0)]),
    StepWork([(8192, 0)]),
    StepWork([(2048, 6000), (300, 0)], 128, 128 * 900),
]


@pytest.mark.parametrize("device", device_names())
def test_no_step_is_quicker_than_the_data_sheet_allows(device):
    precisions = itertools.cycle(itertools.product(WEIGHT_BITS, KV_BYTES))
    for name in model_names():
        for tp in (1, 4):
            precision, kv_dtype = next(precisions)
            model = roofline(
                name, device, precision=precision, kv_dtype=kv_dtype, tensor_parallel=tp
            )
            sheet = model.device
            peak = max(sheet.peak_flops(precision), sheet.bf16_flops)
            for work in WORKS:
                flops, moved = model.flops_and_bytes(work)
                ns = model.step_ns(work, 0)
                assert ns >= flops / peak * 1e9
                assert ns >= moved / sheet.memory_bytes_per_s * 1e9


@pytest.mark.parametrize("device", device_names())
def test_every_model_that_fits_on_a_node_runs_and_says_where_its_times_come_from(device):
    fitted = 0
    for name, tp in itertools.product(model_names(), (1, 2, 4, 8)):
        try:
            kv_blocks(load_model(name), load_device(device), tp=tp)
        except ConfigError:
            continue
        model = roofline(name, device, tensor_parallel=tp)
        assert model.step_ns(decodes(1, 100), 0) > 1000
        told = model.describe()
        assert told.model == "roofline"
        assert "gemm" in told.error
        only = device not in MEASURED and device != "rtx-4090"
        assert ("data sheet only" in told.origin) == only
        fitted += 1
    assert fitted > 10


def test_a_device_of_the_same_chip_lends_its_efficiencies():
    """The sheet of the 40 GB A100 names the 80 GB one; a config may name any."""
    big, small = (roofline("llama-2-7b", name) for name in ("a100", "a100-sxm-40gb"))
    assert "data sheet only: a100-sxm-40gb with the efficiencies of a100-sxm-80gb" in (
        small.describe().origin
    )
    work = decodes(1, 100)
    narrower = big.device.memory_bytes_per_s / small.device.memory_bytes_per_s
    assert 1 < small.step_ns(work, 0) / big.step_ns(work, 0) < narrower
    other = roofline("llama-2-7b", "a100-sxm-40gb", efficiencies="h100")
    assert other.efficiencies == "h100-sxm"
    with pytest.raises(ConfigError, match="did you mean"):
        roofline("llama-2-7b", "a100", efficiencies="h10")


def test_a_borrowed_curve_is_named():
    told = roofline("llama-3.1-8b", "a100", kv_dtype="fp8").describe()
    assert "median of other devices for decode_attention, prefill_attention" in told.origin


@pytest.mark.parametrize("device", ["h100-sxm", "a100-sxm-80gb", "b200"])
def test_more_gpus_on_nvlink_are_quicker_but_less_than_proportionally(device):
    work = StepWork([(2048, 0)], 64, 64_000)
    times = [
        roofline("llama-3.1-70b", device, tensor_parallel=tp).step_ns(work, 0)
        for tp in (1, 2, 4, 8)
    ]
    for one, two in itertools.pairwise(times):
        assert one / 2 < two < one


def test_more_than_one_node_is_refused():
    with pytest.raises(ProfileError, match="tensor_parallel: 16 spans more than one node"):
        roofline("llama-3.1-405b", "h100", tensor_parallel=16)


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="precision: int3 is not known; did you mean int"):
        roofline("llama-3.1-8b", "h100", precision="int3")
    with pytest.raises(ConfigError, match="kv_dtype: fp4 is not known"):
        roofline("llama-3.1-8b", "h100", kv_dtype="fp4")


def test_lower_precision_is_quicker_where_weights_are_read():
    work = decodes(4, 4000)
    times = [
        roofline("llama-3.1-70b", "h200", precision=precision).step_ns(work, 0)
        for precision in ("bf16", "fp8", "int4")
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.5 * times[1]


@pytest.mark.parametrize("options", [{}, {"tensor_parallel": 8}])
def test_large_errors_of_short_kernels_stand_beside_their_share_of_a_step(options):
    """An error of 60 % of what takes a hundredth of a step is no error of the step."""
    model = roofline("llama-3.1-70b", "h100", precision="fp8", **options)
    told = model.describe().error
    shares = {
        word: float(share)
        for word, share in re.findall(r"(elementwise|sampler) \d+% \(([\d.]+)% of a step\)", told)
    }
    work = decodes(32, 1024)
    sampler = model._fitted["sampler"].curve
    itself = sampler.us(32.0) * 1e3 / model.step_ns(work, 0)

    assert "a step: 32 decodes at 1,024 tokens" in told
    assert shares["sampler"] == pytest.approx(100 * itself, abs=0.06)
    assert 0 < shares["sampler"] < shares["elementwise"] < 25


def test_formats_that_were_not_measured_are_said():
    fp8 = roofline("llama-3.1-8b", "a100", precision="fp8").describe()
    assert "has no fp8 units: fp8 weights save bytes only, computed in bf16" in fp8.origin
    assert "(of bf16 kernels: those of fp8 were not measured)" in fp8.error
    int4 = roofline("llama-3.1-8b", "h100", precision="int4").describe()
    assert "(of bf16 kernels: those of int4 were not measured)" in int4.error
    int8 = roofline("llama-3.1-8b", "h100", precision="int8").describe()
    assert "(of fp8 kernels: those of int8 were not measured)" in int8.error
    for precision in ("bf16", "fp16", "fp8"):
        told = roofline("llama-3.1-8b", "h100", precision=precision).describe()
        assert "kernels: those of" not in told.error


def test_int4_saves_no_compute():
    work = StepWork([(8192, 0)])
    bf16, int4 = (
        roofline("llama-3.1-8b", "h100", precision=precision).step_ns(work, 0)
        for precision in ("bf16", "int4")
    )
    assert 0.95 < int4 / bf16 <= 1


def test_fp8_kv_is_quicker_at_long_contexts():
    work = decodes(64, 64 * 8000)
    bf16, fp8 = (
        roofline("llama-3.1-8b", "b200", kv_dtype=kv).step_ns(work, 0) for kv in ("bf16", "fp8")
    )
    assert fp8 < 0.75 * bf16


def test_a_mixture_reads_the_experts_that_its_rows_touch():
    mixtral = roofline("mixtral-8x7b", "h200")
    one, many = (mixtral.step_ns(decodes(rows, rows * 100), 0) for rows in (1, 32))
    assert 2 < many / one < 4.5


def test_the_host_adds_its_time_to_every_step():
    slow = HostOverhead(2000.0, 10.0)
    quick = HostOverhead(1000.0, 0.0)
    work = StepWork([(64, 0), (32, 0)], 8, 8000)
    slow_ns, quick_ns = (
        roofline("llama-3.1-8b", "h100", host=host).step_ns(work, 0) for host in (slow, quick)
    )
    assert slow_ns - quick_ns == pytest.approx(1_000_000 + 10 * 10_000, abs=1)
    assert "host 2000 us a step + 10 us a request: given in the config" in (
        roofline("llama-3.1-8b", "h100", host=slow).describe().origin
    )


@pytest.mark.parametrize("terms", [(0.0, 0.0), (-1.0, 2.0), (float("nan"), 1.0)])
def test_a_host_that_takes_no_time_is_refused(terms):
    with pytest.raises(ConfigError, match="no engine's host takes no time"):
        HostOverhead(*terms)


def test_presets_of_the_host_name_their_source():
    assert DEFAULT_HOST in HOSTS
    assert all(host.source != "given in the config" for host in HOSTS.values())
    assert load_host("vllm-0.12").request_us > load_host("vllm-v1").request_us > 0
    with pytest.raises(ConfigError, match=r"vllm-0\.13 is no preset; did you mean vllm-0\.12"):
        load_host("vllm-0.13")


def test_kept_times_are_bounded():
    model = roofline("llama-3.1-8b", "h100")
    model._rows_ns = dict.fromkeys(range(MEMO_ROWS), 1.0)
    model._sampled_ns = dict.fromkeys(range(MEMO_ROWS), 1.0)

    ns = model.step_ns(decodes(MEMO_ROWS + 1, 10**6), 0)

    assert ns == LLAMA.step_ns(decodes(MEMO_ROWS + 1, 10**6), 0)
    assert len(model._rows_ns) == len(model._sampled_ns) == 2


def test_use_of_the_device_stays_below_its_peak():
    work = StepWork([(8192, 0)])
    flops, _ = LLAMA.flops_and_bytes(work)
    mfu = flops / LLAMA.device.bf16_flops / LLAMA.step_ns(work, 0) * 1e9
    assert 0.5 < mfu < 0.8

    work = decodes(8, 8 * 2000)
    _, moved = LLAMA.flops_and_bytes(work)
    mbu = moved / LLAMA.device.memory_bytes_per_s / LLAMA.step_ns(work, 0) * 1e9
    assert 0.6 < mbu < 0.9


def test_a_curve_for_nothing_fitted_is_refused():
    with pytest.raises(ProfileError, match="gemm was fitted for no fp4; did you mean"):
        CurveBook().find("gemm", "h100-sxm", "fp4")


@pytest.mark.parametrize("operator", CURVES)
def test_every_fitted_curve_names_its_errors_and_source(operator):
    rows = CurveBook()._rows[operator]
    assert rows
    for row in rows:
        assert float(row["median_error"]) < 0.3
        assert float(row["heldout_error"]) < 0.35
        assert row["source"]
        for name, value in row.items():
            if name in ("e_flop", "e_link", "e_io") or (
                name == "e_bw" and operator != "elementwise"
            ):
                assert 0 < float(value) <= 1


def test_the_median_curve_takes_each_coefficient_by_itself():
    book = CurveBook()
    fitted = [book.find("gemm", name, "bf16").curve for name in (*MEASURED, "rtx-4090")]
    borrowed = book.find("gemm", "mi300x", "bf16")

    assert borrowed.curve == median_curve(fitted)
    assert not borrowed.measured
    assert borrowed.error > 0.05


def ratios(model: RooflineStepTime, works: list[StepWork], measured_ms: list[float]) -> np.ndarray:
    ns = np.array([model.step_ns(work, 0) for work in works])
    return ns / 1e6 / np.array(measured_ms)


def read(shared: Path, name: str):
    import pandas as pd

    return pd.read_csv(shared / "measured" / name)


def test_prefills_of_splitwise_are_of_the_right_size(shared):
    """Llama-2-70B on A100, an engine of 2023 without CUDA graphs: slower, by less than half."""
    table = read(shared, "splitwise/step_times.csv").query(
        "batch_size == 1 and prompt_tokens >= 512"
    )
    for tp, rows in table.groupby("tp"):
        model = roofline("llama-2-70b", "a100", precision="fp16", tensor_parallel=int(tp))
        works = [StepWork([(int(tokens), 0)]) for tokens in rows.prompt_tokens]
        ratio = ratios(model, works, rows.prompt_time_ms.tolist())
        assert ratio.min() > 0.5
        assert ratio.max() < 1.05


def test_prefills_of_sarathi_are_of_the_right_size(shared):
    """Yi-34B on two A100 PCIe cards, which clock lower than the SXM ones."""
    rows = read(shared, "sarathi_serve/step_times_yi34b_a100.csv").query("prefill_tokens >= 512")
    model = roofline("yi-34b", "a100", precision="fp16", tensor_parallel=2)
    works = [StepWork([(int(tokens), 0)]) for tokens in rows.prefill_tokens]
    ratio = ratios(model, works, rows.step_ms.tolist())
    assert ratio.min() > 0.6
    assert ratio.max() < 1.05


def test_saturated_decodes_are_quicker_than_on_a_card_of_less_bandwidth(shared):
    rows = read(shared, "gpullm_adapter/saturated_vllm_v1.csv").query("kind == 'output'")
    works = [
        decodes(int(row.max_num_seqs), int(row.max_num_seqs * (5 + row.output_tokens / 2)))
        for row in rows.itertuples()
    ]
    ratio = ratios(LLAMA, works, rows.itl_median_ms.tolist())
    assert ratio.min() > 0.45
    assert ratio.max() < 1.0


def test_a_server_not_used_for_any_fit_is_met_within_a_tenth(shared):
    """Llama-3.3-70B fp8 on one and two H200, vLLM 0.10.2 (asynchronous scheduling), light load."""
    table = read(shared, "aiconfigurator/serving_concurrency_sweeps.csv")
    rows = table[
        (table.system == "h200_sxm") & (table.backend == "vllm") & (table.isl == 1024)
        & (table.concurrency <= 16) & (table.osl == 1024)
    ]  # fmt: skip
    found = []
    for row in rows.itertuples():
        model = roofline(
            "llama-3.3-70b", "h200", precision="fp8", kv_dtype="fp8",
            tensor_parallel=int(row.tp_size),
        )  # fmt: skip
        running = int(row.concurrency)
        context = round(0.9 * (row.isl + row.osl / 2) * running)  # lengths uniform in 0.8 to 1
        found.append(model.step_ns(decodes(running, context), 0) / 1e6 / row.silicon_tpot_ms)
    assert len(found) == 6
    assert min(found) > 0.9
    assert max(found) < 1.05


def test_presets_of_timers_are_what_the_script_finds(shared):
    from kernels_profile.fit_host import eager_row, scheduler_row

    for row in (scheduler_row(shared / "measured"), eager_row(shared / "measured")):
        assert_preset(row)


@pytest.mark.slow
def test_presets_are_what_the_script_finds(shared):
    from kernels_profile.fit_host import rows

    found = list(rows(shared / "measured"))
    assert len(found) == 5
    for row in found:
        assert row["median_error"] < 0.05
        assert_preset(row)


def assert_preset(row):
    preset = load_host(row["name"])
    for term in ("step_us", "request_us", "eager_layer_us"):
        assert getattr(preset, term) == pytest.approx(row[term], rel=0.01)
    assert preset.form == row["form"]


def test_experts_are_met_as_profiled(shared):
    """Expert block of Qwen3-30B-A3B on an RTX PRO 6000, not used for any fit: 8 to 128 experts."""
    rows = read(shared, "llmservingsim/ops_moe.csv").query("tp == 1")
    model = roofline("qwen3-30b-a3b", "rtx-pro-6000")
    ratio = []
    for row in rows.itertuples():
        sent, copies = row.tokens * 8, float(row.activated_experts)
        us = model._gemm_us(sent, 2048, 2 * 768, copies) + model._gemm_us(sent, 768, 2048, copies)
        us += model._gemm_us(row.tokens, 2048, 128) + model._activation_us(row.tokens)
        ratio.append(us / row.time_us)
    assert len(ratio) == 50
    assert 0.97 < np.median(ratio) < 1.03
    assert np.median(np.abs(np.array(ratio) - 1)) < 0.06
    assert np.quantile(np.abs(np.array(ratio) - 1), 0.9) < 0.2


@pytest.mark.slow
def test_committed_coefficients_are_what_the_script_finds(shared, tmp_path, monkeypatch):
    import csv

    from kernels_profile import fit

    committed = fit.OUT
    monkeypatch.setattr(fit, "OUT", tmp_path)
    fit.main(shared / "measured")

    for path in sorted(tmp_path.glob("*.csv")):
        old = list(csv.DictReader((committed / path.name).read_text().splitlines()))
        new = list(csv.DictReader(path.read_text().splitlines()))
        assert len(old) == len(new) > 0
        for before, after in zip(old, new, strict=True):
            errors = {key for key in before if key.endswith("error")}
            assert before["source"] == after["source"]
            for key in errors:
                assert float(after[key]) == pytest.approx(
                    float(before[key]), abs=0.005, nan_ok=True
                )
