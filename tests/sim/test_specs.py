import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sim.errors import ConfigError
from sim.specs import (
    GIB,
    WEIGHT_BITS,
    activation_reserve_bytes,
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


def test_a_mixture_uses_only_the_experts_that_a_token_is_sent_to():
    assert load_model("mixtral-8x7b").active_parameters == pytest.approx(12.9e9, rel=0.01)


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
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"n_shared_experts": 2}, "shared experts"),
        ({"hidden_act": "relu", "model_type": "new"}, "cannot tell whether its MLP is gated"),
        ({"num_key_value_heads": 5}, "heads 32 is not a multiple of kv_heads 5"),
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


def test_a_sliding_window_is_noted(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config_of("llama-3.1-8b"), "sliding_window": 4096}))
    assert "4096 tokens is not modelled" in load_model(path).note


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
