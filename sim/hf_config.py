"""Reads the architecture of a model from a local Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.hf_checks import DEEPSEEK, refuse_unlike, weights_format, window_note
from sim.specs import ModelSpec

_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab": ("vocab_size",),
}
"""Names under which the families store what every model has."""

_PLAIN_MLP = {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "mpt", "opt", "phi",
              "starcoder2"}  # fmt: skip
"""Families whose MLP has no gate; they also use LayerNorm and biases."""

_TIED = {"bloom", "falcon", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "mpt", "opt"}
"""Families that tie the LM head unless their config says otherwise (transformers' own default)."""


def model_from_config(path: Path) -> ModelSpec:
    """The architecture that a ``config.json`` describes, named after its folder.

    Raises:
        ConfigError: unreadable, a size is absent, or an architecture `ModelSpec` does not describe.
    """
    config = _read(path)
    family = str(config.get("model_type", ""))
    refuse_unlike(path, config, family)
    sizes = {name: _size(path, config, *keys) for name, keys in _KEYS.items()}
    gated = _is_gated(path, family, config)
    default_inner = 4 * sizes["hidden"] if family in _PLAIN_MLP else None
    experts = _optional(config, "num_local_experts", "num_experts", "n_routed_experts") or 0
    inner = ("moe_intermediate_size", "intermediate_size") if experts else ("intermediate_size",)
    model = ModelSpec(
        name=str(config.get("_name_or_path") or path.resolve().parent.name).rsplit("/", 1)[-1],
        layers=sizes["layers"],
        hidden=sizes["hidden"],
        heads=sizes["heads"],
        vocab=sizes["vocab"],
        kv_heads=_kv_heads(family, config, sizes["heads"]),
        head_dim=_optional(config, "head_dim") or sizes["hidden"] // sizes["heads"],
        intermediate=_size(path, config, *inner, "ffn_dim", "n_inner", default=default_inner),
        max_positions=_size(
            path, config, "max_position_embeddings", "n_positions", "seq_length", "max_seq_len",
            default=2048 if family in {"bloom", "falcon"} else None,
        ),
        gated_mlp=gated,
        experts=experts,
        experts_per_token=_size(path, config, "num_experts_per_tok") if experts else 0,
        tied_embeddings=bool(config.get("tie_word_embeddings", family in _TIED)),
        attention_bias=_attention_bias(family, config),
        mlp_bias=bool(config.get("mlp_bias", family in _PLAIN_MLP)),
        norm_bias=family in _PLAIN_MLP,
        qk_norm=family in {"qwen3", "qwen3_moe"},
        embedding_norm=family == "bloom",
        # OPT's table has two rows more than it has positions (transformers' OPTLearnedPositional).
        position_rows=_size(path, config, "max_position_embeddings") + 2 if family == "opt" else 0,
        weights=weights_format(path, config),
        note=window_note(config),
    )  # fmt: skip
    return _with_latents(path, config, model) if family in DEEPSEEK else model


def _with_latents(path: Path, config: dict[str, Any], model: ModelSpec) -> ModelSpec:
    """The same with what DeepSeek's models have: latents, shared experts, first dense layers."""
    nope, rope = (_size(path, config, f"qk_{part}_head_dim") for part in ("nope", "rope"))
    dense = min(_optional(config, "first_k_dense_replace") or 0, model.layers)
    return replace(
        model,
        kv_heads=model.heads,
        head_dim=nope + rope,
        kv_lora_rank=_size(path, config, "kv_lora_rank"),
        q_lora_rank=_optional(config, "q_lora_rank") or 0,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=_size(path, config, "v_head_dim"),
        dense_layers=dense if model.experts else 0,
        dense_intermediate=(
            _size(path, config, "intermediate_size") if model.experts and dense else 0
        ),
        shared_intermediate=(_optional(config, "n_shared_experts") or 0) * model.intermediate,
        router_bias=config.get("topk_method") == "noaux_tc",
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"model: {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: expected an object, found {type(config).__name__}")
    # A model of several kinds of input keeps its language part in here.
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def _optional(config: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _size(path: Path, config: dict[str, Any], *keys: str, default: int | None = None) -> int:
    value = _optional(config, *keys)
    if value is None:
        value = default
    if value is None:
        found = next((f"{key}: {config[key]!r}" for key in keys if key in config), "no such key")
        raise ConfigError(f"{path}: {keys[0]}: expected a positive whole number, found {found}")
    return value


def _is_gated(path: Path, family: str, config: dict[str, Any]) -> bool:
    if family in _PLAIN_MLP:
        return False
    activation = str(config.get("hidden_act") or config.get("hidden_activation") or "")
    if activation in {"silu", "swish", "swiglu"} or family.startswith("gemma"):
        return True
    raise ConfigError(
        f"{path}: model_type: {family or 'absent'} with hidden_act {activation or 'absent'}: "
        "cannot tell whether its MLP is gated; write its sizes as one of the known families does"
    )


def _kv_heads(family: str, config: dict[str, Any], heads: int) -> int:
    shared = config.get("multi_query", family == "gpt_bigcode")
    if shared and not config.get("new_decoder_architecture"):
        return 1
    return _optional(config, "num_key_value_heads", "num_kv_heads", "n_head_kv") or heads


def _attention_bias(family: str, config: dict[str, Any]) -> str:
    if config.get("attention_bias") or family in _PLAIN_MLP - {"falcon", "gptj", "mpt"}:
        return "all"
    return "qkv" if family.startswith("qwen2") else "none"
