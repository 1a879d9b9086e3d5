"""`model: config.json`: what the file says and the config does not set accordingly is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import cluster
from experiments.config import load
from sim.errors import ConfigError

MISTRAL: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}  # fmt: skip
"""As in the config.json of mistralai/Mistral-7B-v0.1."""
FP8 = {"quant_method": "fp8"}


def config(tmp_path: Path, model: dict[str, Any], **more: Any) -> dict[str, Any]:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model))
    return {
        "workload": {"preset": "azure-conv-2023", "requests": 3},
        "model": str(path),
        "device": "h100-sxm",
        "policy": "vllm-v1",
        **more,
    }


def test_the_window_of_mistral_is_a_note_of_the_run(tmp_path: Path) -> None:
    plan = load(config(tmp_path, MISTRAL))
    notes = cluster.build(plan.variants[0], plan.folder).notes

    assert any("its sliding window of 4096 tokens is not modelled" in note for note in notes)


def test_a_note_of_a_sheet_is_not_one_of_the_run() -> None:
    workload = {"preset": "azure-conv-2023", "requests": 3}
    plan = load({"workload": workload, "model": "mistral-7b", "policy": "vllm-v1"})

    assert not any("sliding" in note for note in cluster.build(plan.variants[0], plan.folder).notes)


@pytest.mark.parametrize("precision", [{}, {"precision": "bf16"}, {"precision": "int4"}])
def test_quantised_weights_need_the_same_precision(tmp_path: Path, precision: Any) -> None:
    with pytest.raises(ConfigError, match=r"precision: weights: .* set precision: fp8, or take"):
        load(config(tmp_path, {**MISTRAL, "quantization_config": FP8}, **precision))


def test_quantised_weights_with_that_precision_are_taken(tmp_path: Path) -> None:
    quantised = {**MISTRAL, "quantization_config": FP8}

    assert load(config(tmp_path, quantised, precision="fp8")).variants
    assert load(config(tmp_path, MISTRAL, precision="fp8")).variants  # by the engine
