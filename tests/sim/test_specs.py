import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sim.errors import ConfigError
from sim.model_part import split_layers
from sim.specs import (
    GIB,
    WEIGHT_BITS,
    activation_reserve_bytes,
    check_experts,
    check_tensor_parallel,
    device_names,
    kv_blocks,
    kv_bytes_per_token,
    load_device,
    load_model,
    model_names,
    weight_bytes,
)
from sim.step_cost import StepCost, expected_experts
from sim.step_time import StepWork

SHEETS = Path(__file__).parents[2] / "sim" / "specs"

NAMED_MODELS = """
    llama-2-7b llama-2-13b llama-2-70b llama-3-8b llama-3.1-8b llama-3.1-70b llama-3.1-405b
    llama-3.3-70b mistral-7b qwen2-7b qwen2.5-7b qwen2.5-72b qwen3-8b qwen3-32b yi-34b opt-13b
    opt-66b opt-175b bloom-176b mixtral-8x7b
""".split()  # noqa: SIM905
NAMED_DEVICES = """
    a100-sxm-40gb a100-sxm-80gb h100-sxm h100-pcie h200 b200 l40s l4 a10g a6000 rtx-4090
    rtx-pro-6000 mi300x
""".split()  # noqa: SIM905


def test_every_promised_model_and_device_has_a_sheet():
    assert set(NAMED_MODELS) <= set(model_names())
    assert set(NAMED_DEVICES) <= set(device_names())


@pytest.mark.parametrize("name", model_names())
def test_derived_parameters_equal_the_published_total(name):
    model = load_model(name)

    tolerance = 0 if model.published_exactly else 0.02
    assert model.parameters == pytest.approx(model.published_parameters, rel=tolerance, abs=0)


@pytest.mark.parametrize(
    ("name", "embeddings", "active"),
    [
        ("mixtral-8x7b", 2, 12.9e9),
        ("qwen3-30b-a3b", 2, 3.3e9),
        ("deepseek-v2-lite", 1, 2.4e9),
        ("deepseek-v3", 1, 36.6e9),
    ],
)
def test_a_mixture_uses_only_the_experts_that_a_token_is_sent_to(name, embeddings, active):
    """As published: DeepSeek counts the LM head but not the embedding (its README_WEIGHTS.md)."""
    model = load_model(name)
    counted = model.active_parameters - (2 - embeddings) * model.vocab * model.hidden
    assert counted == pytest.approx(active, rel=0.025)


@pytest.mark.parametrize("path", sorted(SHEETS.rglob("*.yaml")), ids=lambda p: p.stem)
def test_every_sheet_names_itself_its_sources_and_a_date(path):
    sheet = yaml.safe_load(path.read_text())

    assert sheet["name"] == path.stem
    assert all(isinstance(source, str) and source for source in sheet["sources"].values())
    assert str(sheet["accessed"]).startswith("20")


@pytest.mark.parametrize("kind", ["models", "devices"])
def test_names_and_aliases_are_unique(kind):
    sheets = [yaml.safe_load(path.read_text()) for path in (SHEETS / kind).glob("*.yaml")]
    names = [name for sheet in sheets for name in (sheet["name"], *sheet["aliases"])]

    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "tp", "kv_dtype", "expected"),
    [
        ("llama-3.1-8b", 1, "bf16", 131_072),
        ("llama-3.1-8b", 1, "fp8", 65_536),
        ("llama-3.1-8b", 2, "bf16", 65_536),
        ("llama-3.1-8b", 16, "bf16", 16_384),  # 8 KV heads on 16 GPUs: each is there twice
        ("llama-2-70b", 1, "bf16", 327_680),
        ("opt-175b", 1, "fp16", 4_718_592),
        ("deepseek-v2-lite", 1, "bf16", 31_104),
        ("deepseek-v3", 1, "bf16", 70_272),  # (512 + 64) x 61 x 2, once for all heads
        ("deepseek-v3", 8, "bf16", 70_272),  # so that every GPU needs all of it
        ("deepseek-v3", 8, "fp8", 35_136),
    ],
)
def test_kv_bytes_of_a_token(name, tp, kv_dtype, expected):
    assert kv_bytes_per_token(load_model(name), kv_dtype, tp) == expected


def test_weights_take_two_bytes_each_in_16_bits():
    model = load_model("llama-3.1-8b")
    assert weight_bytes(model) == 2 * model.parameters


def test_lower_precision_takes_fewer_bytes_but_not_for_embeddings():
    model = load_model("llama-3.1-8b")
    sizes = [weight_bytes(model, precision) for precision in ("bf16", "fp8", "int4")]

    assert sizes[0] == weight_bytes(model, "fp16")
    assert sizes[1] == weight_bytes(model, "int8")
    assert sizes[0] > sizes[1] > sizes[2] > 2 * 2 * model.vocab * model.hidden


def test_parallel_weights_sum_to_at_least_the_model():
    model = load_model("llama-3.1-70b")
    for tp in (1, 2, 4, 8, 16):
        total = tp * weight_bytes(model, tp=tp)
        assert 2 * model.parameters <= total < 2.2 * model.parameters


def test_kv_blocks_match_the_start_up_report_of_vllm():
    """vllm-project/vllm pull request 10511: Meta-Llama-3-8B on one H100 leaves 53.29 GiB."""
    blocks, sentence = kv_blocks(load_model("llama-3-8b"), load_device("h100-sxm"))

    assert blocks * 16 * 131_072 / GIB == pytest.approx(53.29, rel=0.01)
    assert str(blocks) in sentence
    assert "activation reserve (default)" in sentence


def test_weights_and_kv_of_distserve_always_fill_the_same_memory(shared):
    """Its table of KV tokens that fit on A100-80GB: what a GPU holds in all is one number."""
    import pandas as pd

    table = pd.read_csv(shared / "measured" / "distserve" / "kv_capacity_tokens.csv")
    held = []
    for row in table.query("pp == 1 and tp in (1, 2, 4, 8)").itertuples():
        model = load_model(row.model)
        kv = row.max_num_tokens * kv_bytes_per_token(model, "fp16", row.tp)
        held.append(kv + weight_bytes(model, "fp16", row.tp))

    assert len(held) >= 6
    assert max(held) / min(held) < 1.02
    assert 0.9 < max(held) / load_device("a100-sxm-80gb").memory_bytes < 0.95


def test_a_given_reserve_is_used_and_said():
    model, device = load_model("llama-3.1-8b"), load_device("h100")
    few, _ = kv_blocks(model, device, reserve_bytes=activation_reserve_bytes(1) + GIB)
    many, sentence = kv_blocks(model, device, reserve_bytes=activation_reserve_bytes(1))

    assert (many - few) == pytest.approx(GIB / (16 * 131_072), abs=1)
    assert "(given)" in sentence


@pytest.mark.parametrize(
    ("model", "gpus"), [("llama-3.1-70b", "2"), ("llama-3.1-405b", "16"), ("opt-175b", "8")]
)
def test_weights_that_do_not_fit_name_the_gpus_that_would_do(model, gpus):
    with pytest.raises(ConfigError, match=rf"it would fit on tensor_parallel: {gpus}$"):
        kv_blocks(load_model(model), load_device("h100-sxm"))


def test_a_model_that_fits_on_no_number_of_gpus_says_so():
    with pytest.raises(ConfigError, match="it fits on no number of them"):
        kv_blocks(load_model("opt-175b"), load_device("l4"), reserve_bytes=30 * GIB)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.1-8", "did you mean llama-3.1-8b?"),
        ("completely-else", "choose one of bloom-176b"),
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest(name, message):
    with pytest.raises(ConfigError, match=message):
        load_model(name)


def test_an_unknown_device_or_precision_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="device: h10 has no data sheet; did you mean"):
        load_device("h10")
    with pytest.raises(ConfigError, match="precision: bfloat16 is not known; did you mean bf16"):
        weight_bytes(load_model("llama-3.1-8b"), "bfloat16")
    with pytest.raises(ConfigError, match="kv_dtype: int8 is not known"):
        kv_bytes_per_token(load_model("llama-3.1-8b"), "int8")


@pytest.mark.parametrize("tp", [0, 3, 5, 64])
def test_a_tensor_parallelism_that_does_not_divide_the_heads_is_refused(tp):
    with pytest.raises(ConfigError, match=f"tensor_parallel: {tp} does not divide"):
        check_tensor_parallel(load_model("llama-3.1-8b"), tp)


def test_names_are_forgiving_about_case_underscores_and_organisation():
    assert load_model("meta-llama/Llama-3.1-8B-Instruct") == load_model("llama_3.1_8b")
    assert load_device("H100_SXM") == load_device("h100")


@pytest.mark.parametrize("precision", WEIGHT_BITS)
def test_fp8_without_fp8_cores_and_int4_are_computed_in_16_bits(precision):
    a100 = load_device("a100")
    expected = a100.int8_ops if precision == "int8" else a100.bf16_flops
    assert a100.peak_flops(precision) == expected


def test_latent_projections_are_on_every_gpu_and_the_rest_is_cut():
    model = load_model("deepseek-v3")
    down = 7168 * (1536 + 512 + 64) * 61
    for tp in (1, 2, 8):
        small = model.small_parameters * (tp - 1)
        held = tp * weight_bytes(model, tp=tp) / 2
        assert held == pytest.approx(model.parameters + (tp - 1) * down + small, abs=tp)


def test_groups_that_attend_apart_repeat_all_but_the_routed_experts():
    model = load_model("deepseek-v3")
    routed = 256 * 3 * 7168 * 2048 * 58
    assert model.routed_weights == routed
    held = weight_bytes(model, tp=8, data_attention=8) / 2
    assert held == pytest.approx(model.parameters - routed + routed / 8, abs=1)
    assert weight_bytes(model, tp=8, data_attention=2) == pytest.approx(
        weight_bytes(model, tp=4) - 2 * routed / 8, abs=1
    )


def test_groups_that_attend_apart_keep_more_tokens_of_latents():
    model, device = load_model("deepseek-v3"), load_device("h200")
    one, _ = kv_blocks(model, device, precision="fp8", tp=8)
    eight, sentence = kv_blocks(model, device, precision="fp8", tp=8, data_attention=8)

    assert 5 * one < eight < 8 * one
    assert eight % 8 == 0
    assert f"{eight} blocks of 16 tokens ({eight // 8} on each group)" in sentence
    with pytest.raises(ConfigError, match=r"it would fit on tensor_parallel: 16$"):
        kv_blocks(model, load_device("h100"), precision="fp8", tp=8, data_attention=8)


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        ("llama-3.1-8b", (4, 2, 1), "expert_parallel: 2: llama-3.1-8b has no experts"),
        ("llama-3.1-8b", (4, 1, 2), "data_parallel_attention: 2: llama-3.1-8b has no experts"),
        ("mixtral-8x7b", (8, 3, 1), "the 8 experts of mixtral-8x7b; choose one of 1, 2, 4, 8"),
        (
            "mixtral-8x7b",
            (16, 16, 1),
            "the 16 GPUs of .* the 8 experts of .* *choose one of 1, 2, 4, 8",
        ),
        ("mixtral-8x7b", (8, 4, 2), "set expert_parallel to the 8 GPUs of tensor_parallel, not 4"),
    ],
)
def test_experts_that_do_not_come_out_even_are_refused(model, sizes, message):
    with pytest.raises(ConfigError, match=message):
        check_experts(load_model(model), *sizes)


@pytest.mark.parametrize(
    ("model", "sizes", "message"),
    [
        ("mixtral-8x7b", (8, 3), "data_parallel_attention: 3 does not divide the 8 GPUs of "
         "tensor_parallel; choose one of 1, 2, 4, 8"),
        ("deepseek-v3", (96, 2), "96 does not divide the 128 heads of deepseek-v3 on "
         "each of 2 groups; choose one of 2, 4, 8, 16, 32, 64, 128"),
        ("deepseek-v3", (3, 1), "tensor_parallel: 3 does not divide the 128 heads of deepseek-v3"),
    ],
)  # fmt: skip
def test_groups_that_do_not_come_out_even_are_refused(model, sizes, message):
    with pytest.raises(ConfigError, match=message):
        check_tensor_parallel(load_model(model), *sizes)


def test_sizes_that_come_out_even_are_taken():
    check_experts(load_model("deepseek-v3"), 8, 8, 8)
    check_experts(load_model("mixtral-8x7b"), 8, 2)
    check_tensor_parallel(load_model("deepseek-v3"), 8, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v_head_dim": 0}, "kv_lora_rank 512 needs qk_nope_head_dim, .* not 128, 64 and 0"),
        ({"kv_lora_rank": 0}, "kv_lora_rank: 0, but other sizes of latent attention are given"),
        ({"head_dim": 128}, "a head_dim of 192, not 128 of 128 and 128"),
        ({"dense_layers": 62}, "dense_layers 62 of 61 layers"),
        ({"dense_intermediate": 0}, "give both, or neither"),
        ({"experts": 0}, "dense_layers: 3, but it has no experts"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(load_model("deepseek-v3"), **change)


DEEPSEEK_V2 = {
    "model_type": "deepseek_v2", "hidden_act": "silu", "num_hidden_layers": 60,
    "hidden_size": 5120, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 12288, "moe_intermediate_size": 1536, "n_routed_experts": 160,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 102400,
    "max_position_embeddings": 163840, "tie_word_embeddings": False, "attention_bias": False,
    "topk_method": "group_limited_greedy",
}  # fmt: skip
"""As in the config.json of deepseek-ai/DeepSeek-V2."""
DEEPSEEK_V3 = {
    **DEEPSEEK_V2, "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "vocab_size": 129280, "topk_method": "noaux_tc", "num_nextn_predict_layers": 1,
}  # fmt: skip
"""As in the config.json of deepseek-ai/DeepSeek-V3."""
DEEPSEEK_V2_LITE = {
    **DEEPSEEK_V2, "num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 16, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "n_routed_experts": 64, "q_lora_rank": None, "topk_method": "greedy",
}  # fmt: skip
"""As in the config.json of deepseek-ai/DeepSeek-V2-Lite."""


@pytest.mark.parametrize(
    ("config", "total", "kv_bytes"),
    [
        (DEEPSEEK_V2, 235_741_434_880, 60 * 576 * 2),
        (DEEPSEEK_V2_LITE, 15_706_484_224, 27 * 576 * 2),
        (DEEPSEEK_V3, 671_026_419_200, 61 * 576 * 2),
    ],
    ids=["v2", "v2-lite", "v3"],
)
def test_configs_of_deepseek_are_read(tmp_path, config, total, kv_bytes):
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model(tmp_path)

    assert model.parameters == total
    assert kv_bytes_per_token(model) == kv_bytes


@pytest.mark.parametrize(
    ("sheet", "config"), [("deepseek-v3", DEEPSEEK_V3), ("deepseek-v2-lite", DEEPSEEK_V2_LITE)]
)
def test_sheets_of_deepseek_are_what_their_config_says(tmp_path, sheet, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = {"name": "", "note": "", "published_parameters": 0, "published_exactly": False}
    read = (dataclasses.replace(load_model(each), **told) for each in (tmp_path, sheet))
    assert next(read) == next(read)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "minicpm3"}, "latent attention of a model_type minicpm3 is not described; "
         "that of deepseek_v2, deepseek_v3, kimi_k2 is"),
        ({"index_topk": 2048}, "attention to a chosen part of the context are not described"),
        ({"moe_layer_freq": 2}, "moe_layer_freq: 2: only 1 is described for deepseek_v3"),
        ({"attention_bias": True}, "attention_bias: True: only False is described"),
        ({"v_head_dim": None}, "v_head_dim: expected a positive whole number, found v_head_dim"),
        ({"kv_lora_rank": 0}, "kv_lora_rank: expected a positive whole number, found"),
    ],
)  # fmt: skip
def test_other_latent_variants_are_refused_with_the_reason(tmp_path, change, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**DEEPSEEK_V3, **change}))

    with pytest.raises(ConfigError, match=message):
        load_model(path)


def config_of(name: str) -> dict[str, object]:
    """A config.json as its publisher wrote it, less the keys that do not matter here."""
    model = load_model(name)
    return {
        "model_type": {"llama-3.1-8b": "llama", "qwen2.5-7b": "qwen2", "qwen3-8b": "qwen3",
                       "mixtral-8x7b": "mixtral"}[name],
        "hidden_act": "silu",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_positions,
        "tie_word_embeddings": False,
        **({"num_local_experts": 8, "num_experts_per_tok": 2} if model.experts else {}),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b"])
def test_a_local_config_json_gives_the_same_model(tmp_path, name):
    (tmp_path / "config.json").write_text(json.dumps(config_of(name)))

    model = load_model(tmp_path)

    assert model.parameters == load_model(name).parameters
    assert kv_bytes_per_token(model) == kv_bytes_per_token(load_model(name))
    assert model.name == tmp_path.name


def test_opt_and_bloom_configs_are_read_by_their_own_keys(tmp_path):
    opt = {"model_type": "opt", "num_hidden_layers": 40, "hidden_size": 5120,
           "vocab_size": 50272, "num_attention_heads": 40, "ffn_dim": 20480,
           "max_position_embeddings": 2048}  # fmt: skip
    bloom = {"model_type": "bloom", "n_layer": 70, "n_embed": 14336, "vocab_size": 250880,
             "num_attention_heads": 112}  # fmt: skip
    for name, config in (("opt-13b", opt), ("bloom-176b", bloom)):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config))
        assert load_model(path).parameters == load_model(name).parameters


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: expected a positive whole number, found"),
        ({"num_hidden_layers": 2.5}, "found num_hidden_layers: 2.5"),
        ({"kv_lora_rank": 512}, "latent attention of a model_type llama is not described"),
        ({"n_shared_experts": 2}, "shared experts of a model_type llama is not described"),
        ({"shared_expert_intermediate_size": 512}, "shared experts behind a gate of their own"),
        ({"hidden_act": "relu", "model_type": "new"}, "cannot tell whether its MLP is gated"),
        ({"num_key_value_heads": 5}, "heads 32 is not a multiple of kv_heads 5"),
        ({"model_type": "mamba"}, "model_type: mamba: models with layers that keep a state"),
        ({"model_type": "rwkv"}, "model_type: rwkv: models with layers that keep a state"),
        ({"model_type": "jamba"}, "model_type: jamba: models with layers that keep a state"),
        ({"model_type": "qwen3_next"}, "model_type: qwen3_next: models with layers that keep"),
        ({"architectures": ["MambaForCausalLM"]}, "architectures: MambaForCausalLM: models with"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types: linear_attention"),
        ({"attn_type_list": [1, 0]}, "attn_type_list: only layers of kind 1 are described"),
        ({"mamba_d_state": 128}, "mamba_d_state: 128: models with layers without attention"),
        ({"torch_dtype": "bfloat61"}, r"torch_dtype: bfloat61 is not known; did you mean bfloat16"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype: float8_e4m3fn is not known"),
        ({"num_experts": 0}, "num_experts: 0: expected a positive whole number"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok: 9: more than the 8"),
        ({"num_experts": 8}, "num_experts_per_tok: expected a positive whole number"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok: 2: the number of experts is absent"),
        ({"model_type": "qwen3_moe"}, "model_type: qwen3_moe: the number of experts is absent"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step: 2: only 1 is described for llama"),
    ],
)  # fmt: skip
def test_a_config_json_that_cannot_be_described_is_refused(tmp_path, change, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of("llama-3.1-8b"), **change}))

    with pytest.raises(ConfigError, match=message):
        load_model(path)


def test_an_unreadable_config_json_is_one_line(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_model(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_model(path)


W8 = {"num_bits": 8, "type": "float"}
I8 = {"num_bits": 8, "type": "int"}


def tensors(weights, inputs):
    group = {"weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("said", "weights"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        (tensors(W8, W8), "fp8"),
        (tensors(I8, I8), "int8"),
        (tensors({"num_bits": 4, "type": "int"}, None), "int4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "fp8"),
        (None, ""),
    ],
)
def test_a_quantised_checkpoint_says_the_format_of_its_weights(tmp_path, said, weights):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of("llama-3.1-8b"), "quantization_config": said}))
    assert load_model(path).weights == weights


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"quant_method": "mxfp4"}, "quant_method: mxfp4 is not described; awq, "),
        ({"load_in_4bit": True}, "quant_method: absent is not described"),
        ({"quant_method": "gptq", "bits": 8}, "gptq, bits: 8 is not described; 4 bits are"),
        (tensors(I8, None), "config_groups: int8 is not described"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 1}}, "is not described"),
        ({"quant_method": "compressed-tensors"}, "config_groups: no groups is not described"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4 is not described; FP8 is"),
        ("fp8", "expected an object, found 'fp8'"),
    ],
)
def test_other_quantisations_are_refused(tmp_path, said, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of("llama-3.1-8b"), "quantization_config": said}))
    with pytest.raises(ConfigError, match=message):
        load_model(path)


def test_a_sliding_window_is_noted(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of("llama-3.1-8b"), "sliding_window": 4096}))
    assert "4096 tokens is not modelled" in load_model(path).note


@pytest.mark.parametrize("more", [{"use_sliding_window": False}, {"sliding_window": 131072}])
def test_a_sliding_window_without_effect_is_not_noted(tmp_path, more):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of("llama-3.1-8b"), "sliding_window": 4096, **more}))
    assert load_model(path).note == ""


def test_step_cost_counts_two_flops_for_each_active_weight_and_row():
    model = load_model("mixtral-8x7b")
    flops, _ = StepCost(model).flops_and_bytes(StepWork(decode_rows=10))

    embedding_and_norms = model.vocab * model.hidden + model.small_parameters
    assert flops == pytest.approx(20 * (model.active_parameters - embedding_and_norms))


def test_step_cost_bytes_are_weights_and_keys_and_values():
    model = load_model("llama-3.1-8b")
    work = StepWork(chunks=[(100, 900)], decode_rows=4, context_tokens=4000)
    _, moved = StepCost(model, "bf16", "fp8").flops_and_bytes(work)

    weights = 2 * (model.parameters - model.small_parameters - model.vocab * model.hidden)
    assert moved == pytest.approx(weights + 65_536 * (900 + 4000 + 104))


def test_step_cost_halves_on_two_gpus():
    model = load_model("llama-3.1-70b")
    work = StepWork(chunks=[(512, 0)], decode_rows=16, context_tokens=16_000)
    one, two = (StepCost(model, tp=tp).flops_and_bytes(work) for tp in (1, 2))
    assert two == pytest.approx((one[0] / 2, one[1] / 2))


def test_step_cost_of_latent_attention_is_counted_by_hand():
    """DeepSeek-V2 paper, 2.1: 16 heads, keys of 128 + 64, values of 128, latents of 512 + 64."""
    model = load_model("deepseek-v2-lite")
    work = StepWork(chunks=[(100, 900)], decode_rows=4, context_tokens=4000)
    flops, moved = StepCost(model).flops_and_bytes(work)

    pairs = 100 * 900 + 100 * 101 // 2
    prefill = 2 * 27 * 16 * pairs * (192 + 128)
    projected_again = 2 * 27 * 900 * 512 * 16 * (128 + 128)
    decode = 2 * 27 * 16 * 4000 * (576 + 512)
    linear = 2 * 104 * model.active_linear_weights + 2 * 5 * 102400 * 2048
    assert flops == pytest.approx(prefill + projected_again + decode + linear)
    touched = expected_experts(model, 104)
    unread = 26 * (64 - touched) * model.expert_weights
    weights = 2 * (model.linear_weights - unread + 102400 * 2048)
    assert moved == pytest.approx(weights + 31_104 * (900 + 4000 + 104))


@pytest.mark.parametrize("split", [[1, 60], [2, 2, 57], [31, 30]])
def test_stages_of_a_mixture_have_its_dense_layers_in_front(split):
    model = load_model("deepseek-v3")
    stages = [part.of(model) for part in split_layers(model, len(split), split)]

    assert sum(stage.linear_weights for stage in stages) == model.linear_weights
    dense = {(1, 60): [1, 2], (2, 2, 57): [2, 1, 0], (31, 30): [3, 0]}[tuple(split)]
    assert [stage.dense_layers for stage in stages] == dense


def test_step_cost_of_groups_that_attend_apart_reads_latents_once_and_weights_in_each():
    model = load_model("deepseek-v3")
    work = StepWork(decode_rows=64, context_tokens=64_000)
    together, apart = (
        StepCost(model, "fp8", tp=8, data_attention=groups).flops_and_bytes(work)
        for groups in (1, 8)
    )
    assert together[0] == apart[0]
    kv = 70_272 * 64_064
    mixed = 58 * model.shared_weights + 3 * model.dense_weights
    held = 61 * model.attention_weights + mixed + 2 * model.vocab * model.hidden
    cut = 61 * (model.attention_weights - model.latent_down_weights) + mixed
    cut += 2 * model.vocab * model.hidden
    down = 61 * model.latent_down_weights
    assert together[1] - apart[1] == pytest.approx(kv * 7 / 8 - (held - down - cut / 8))


def test_expected_experts_grow_from_the_chosen_to_all():
    mixtral = load_model("mixtral-8x7b")
    counts = [expected_experts(mixtral, rows) for rows in (1, 2, 8, 1000)]

    assert counts[0] == pytest.approx(2)
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(8)
    assert expected_experts(load_model("llama-3.1-8b"), 7) == 1


def test_sheets_are_found_from_another_folder(tmp_path):
    code = "from sim.specs import load_model; print(load_model('opt-13b').layers)"
    root = tmp_path / "elsewhere"
    shutil.copytree(SHEETS.parent, root / "sim", ignore=shutil.ignore_patterns("__pycache__"))
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(root)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout == "40\n"
