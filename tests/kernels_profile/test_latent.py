import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_profile.groups import busiest_group
from kernels_profile.latent import LatentAttention
from kernels_profile.roofline import RooflineStepTime
from sim.model_part import split_layers
from sim.specs import load_device, load_model
from sim.step_time import StepWork
from tests.kernels_profile.step_properties import (
    assert_a_run_is_its_steps,
    assert_more_work_takes_no_less,
)


def roofline(model: str, device: str = "h100-sxm", **options) -> RooflineStepTime:
    return RooflineStepTime(load_model(model), load_device(device), **options)


LITE = roofline("deepseek-v2-lite")
V3 = roofline("deepseek-v3", "h200", precision="fp8", tensor_parallel=8)
APART = roofline(
    "deepseek-v3", "h200", precision="fp8", tensor_parallel=8,
    expert_parallel=8, data_parallel_attention=4, imbalance=0.5,
)  # fmt: skip
SEVERAL = [LITE, V3, APART, roofline("deepseek-v2-lite", "rtx-pro-6000", kv_dtype="fp8")]


def decodes(rows: int, mean_context: int) -> StepWork:
    return StepWork((), rows, rows * mean_context)


@given(
    model=st.sampled_from(SEVERAL),
    rows=st.integers(1, 1000),
    padding=st.integers(0, 20),
    mean_context=st.integers(1, 20_000),
    n=st.integers(1, 80),
)
@settings(max_examples=80, deadline=None)
def test_a_run_equals_single_steps_bit_for_bit(model, rows, padding, mean_context, n):
    assert_a_run_is_its_steps(model, rows, padding, mean_context, n)


@given(
    model=st.sampled_from(SEVERAL),
    chunk=st.integers(1, 4000),
    before=st.integers(0, 20_000),
    rows=st.integers(0, 500),
    mean_context=st.integers(1, 8000),
    more=st.integers(1, 1000),
)
@settings(max_examples=100, deadline=None)
def test_more_work_never_takes_less_time(model, chunk, before, rows, mean_context, more):
    assert_more_work_takes_no_less(model, chunk, before, rows, mean_context, more)


def test_it_says_that_latent_attention_was_not_measured():
    assert "latent attention was not measured" in LITE.describe().origin
    assert "latent" not in roofline("mixtral-8x7b", tensor_parallel=2).describe().origin


def test_decode_attention_comes_near_what_flashmla_states():
    """FlashMLA's README for H800 SXM5, the H100 with slower links: 660 TFLOPS where it is bound by
    compute (128 heads on one GPU), 3000 GB/s where it is bound by memory (few heads)."""
    h100 = load_device("h100-sxm")
    v3 = load_model("deepseek-v3")

    def context_ns(gpus: int) -> float:
        fitted = LITE._fitted
        return LatentAttention(
            v3, h100, "bf16", gpus, fitted["decode_attention"].curve,
            fitted["prefill_attention"].curve, LITE._head,
        ).context_ns  # fmt: skip

    flops, moved = 61 * 2 * 128 * (576 + 512), 61 * 576 * 2
    assert flops / context_ns(1) == pytest.approx(660e3, rel=0.2)
    assert moved / context_ns(16) == pytest.approx(3000, rel=0.1)


def test_decodes_over_narrow_latents_are_bound_by_compute():
    """At 8 bits a token of 128 heads takes 484 FLOPs a byte, more than an H100 has."""
    model = roofline("deepseek-v3", kv_dtype="fp8")
    prefill = model._fitted["prefill_attention"].curve
    computed = 61 * 2 * 128 * (576 + 512) / (prefill.e_flop * model.device.bf16_flops) * 1e9
    assert model._context_ns == pytest.approx(computed)


def test_decodes_multiply_their_queries_and_outputs_by_the_projection(monkeypatch):
    rows = 48
    curve, h100 = LITE._head, LITE.device
    expected = 0.0
    for width in (128, 128):  # of a key without position, and of a value
        weights = 16 * width * 512
        moved = 2 * (weights + rows * 16 * (width + 512))
        us = curve.us(
            moved / h100.memory_bytes_per_s * 1e6, 2 * rows * weights / h100.bf16_flops * 1e6
        )
        expected += 27e3 * us
    whole = LITE.step_ns(decodes(rows, 300), 0)
    monkeypatch.setattr(LatentAttention, "absorbed_ns", lambda self, decodes: 0.0)
    assert whole - LITE.step_ns(decodes(rows, 300), 0) == pytest.approx(expected, abs=1)


def test_long_contexts_cost_a_decode_far_less_than_keys_and_values_would():
    """93 % less KV than DeepSeek 67B (its paper); here against as many heads of 128."""
    model = load_model("deepseek-v2-lite")
    few, many = (LITE.step_ns(decodes(64, context), 0) for context in (4000, 8000))
    llama = roofline("llama-2-7b")
    few_llama, many_llama = (llama.step_ns(decodes(64, context), 0) for context in (4000, 8000))
    kv_of_llama = 2 * 32 * 32 * 128
    ratio = model.layers * model.kv_width / kv_of_llama
    assert (many - few) / (many_llama - few_llama) == pytest.approx(ratio, rel=0.01)


def test_latents_do_not_shrink_with_more_gpus():
    """Where reading binds, twice the GPUs read as long: only heads are cut."""
    slopes = [
        roofline("deepseek-v3", "h200", precision="fp8", tensor_parallel=tp)._context_ns
        for tp in (4, 8)
    ]
    assert slopes[0] == slopes[1]


def test_earlier_chunks_are_projected_again():
    one, two = (LITE.step_ns(StepWork([(1, before)]), 0) for before in (16_000, 32_000))
    model, peak = LITE.model, LITE.device.bf16_flops
    again = 2 * 27 * model.latent_up_weights * 16_000 / peak * 1e9
    assert two - one > again


def test_shared_experts_and_dense_layers_take_time():
    import dataclasses

    model, device = load_model("deepseek-v2-lite"), load_device("h100-sxm")
    without = dataclasses.replace(model, shared_intermediate=0)
    plain = dataclasses.replace(model, dense_layers=0, dense_intermediate=0)
    work = decodes(256, 100)
    full, no_shared, no_dense = (
        RooflineStepTime(each, device).step_ns(work, 0) for each in (model, without, plain)
    )
    read = 2 * 26 * model.shared_weights / device.memory_bytes_per_s * 1e9
    assert full - no_shared > read
    experts = 2 * (64 * model.expert_weights - model.dense_weights)
    assert no_dense - full > experts / device.memory_bytes_per_s * 1e9 / 2


@pytest.mark.parametrize("layers", [[2, 59], [3, 30, 28], [31, 30]])
@pytest.mark.parametrize("groups", [1, 8])
def test_stages_of_a_pipeline_add_up_to_the_whole(layers, groups):
    """Dense layers come first, so that the first stage has most of them."""
    options = {
        "precision": "fp8", "tensor_parallel": 8, "expert_parallel": 8,
        "data_parallel_attention": groups,
    }  # fmt: skip
    whole = roofline("deepseek-v3", "h200", **options)
    stages = [
        roofline("deepseek-v3", "h200", part=part, **options)
        for part in split_layers(whole.model, len(layers), layers)
    ]
    for work in (decodes(64, 900), StepWork([(700, 300), (9, 0)], 5, 4000)):
        total = sum(stage.step_ns(work, 0) for stage in stages)
        assert total == pytest.approx(whole.step_ns(work, 0), abs=len(layers))


@pytest.mark.parametrize("device", ["h100-sxm", "h200", "b200", "a100-sxm-80gb", "l40s"])
def test_no_step_is_quicker_than_the_data_sheet_allows(device):
    layouts = [(1, 1, 1), (8, 1, 1), (8, 8, 1), (8, 4, 1), (8, 8, 8), (8, 8, 2)]
    works = [
        decodes(1, 1), decodes(64, 1500), decodes(512, 4000), StepWork([(1, 5000)]),
        StepWork([(16, 30_000)] * 8), StepWork([(8192, 0)]),
        StepWork([(2048, 6000), (300, 0)], 128, 128 * 900),
    ]  # fmt: skip
    for (tp, expert, groups), zipf in itertools.product(layouts, (0.0, 1.0)):
        model = roofline(
            "deepseek-v2-lite", device, tensor_parallel=tp, expert_parallel=expert,
            data_parallel_attention=groups, imbalance=zipf,
        )  # fmt: skip
        for work in works:
            flops, moved = model.flops_and_bytes(work)
            ns = model.step_ns(work, 0)
            assert ns >= flops / model.device.bf16_flops * 1e9
            assert ns >= moved / model.device.memory_bytes_per_s * 1e9


def test_the_busiest_of_one_group_has_everything():
    work = StepWork([(100, 50), (30, 0)], 7, 7000, attending_rows=5, sampled_rows=6)
    part = busiest_group(work, 1)
    assert (part.rows, part.sampled, part.requests) == (137, 6, 9)
    assert (part.prefill_tokens, part.history, part.longest) == (130, 50, 150)
    assert part.prefill_pairs_x2 == work.prefill_pairs_x2
    assert (part.decode_rows, part.attending, part.context_tokens) == (7, 5, 7000)


def test_a_chunk_is_on_one_group_and_decodes_are_spread():
    work = StepWork([(100, 900), (4, 0)], 7, 7000)
    part = busiest_group(work, 4)
    assert (part.rows, part.prefill_tokens, part.history, part.longest) == (100, 100, 900, 1000)
    assert part.prefill_pairs_x2 == 100 * (1800 + 101)
    assert (part.decode_rows, part.attending, part.context_tokens) == (2, 2, 2000)
    assert (part.sampled, part.requests) == (3, 3)
