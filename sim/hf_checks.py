"""What a ``config.json`` may say that changes the result: refused, or told to whoever runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.errors import ConfigError, nearest

DEEPSEEK = {"deepseek_v2", "deepseek_v3", "kimi_k2"}
"""Families with latent attention and experts as in DeepSeek-V2 and DeepSeek-V3."""

_RECURRENT = (
    "mamba", "rwkv", "jamba", "bamba", "zamba", "recurrent_gemma", "recurrentgemma", "griffin",
    "nemotron_h", "nemotronh", "hybrid", "lfm2", "xlstm", "retnet", "hyena", "qwen3_next",
    "qwen3next", "kimi_linear", "kimilinear", "falcon_h1", "falconh1", "plamo2",
    "minimax_text", "minimaxtext", "minimax_m1", "minimaxm1",
)  # fmt: skip
"""Parts of the names of families that have layers with a state instead of, or beside, attention."""

_UNLIKE = {
    "shared_expert_intermediate_size": "shared experts behind a gate of their own",
    "layers_block_type": "layers without attention",
    "hybrid_override_pattern": "layers without attention",
    "attn_layer_period": "layers without attention",
    "ssm_cfg": "layers without attention",
    "ssm_state_size": "layers without attention",
    "mamba_d_state": "layers without attention",
    "is_encoder_decoder": "an encoder",
    "index_topk": "attention to a chosen part of the context",
    "attention_chunk_size": "attention to a chosen part of the context",
    "mlp_only_layers": "layers without experts among those with experts",
}
"""Keys that, if set, mean an architecture that `ModelSpec` does not describe."""

_OF_DEEPSEEK = {
    "kv_lora_rank": "latent attention",
    "n_shared_experts": "shared experts",
    "first_k_dense_replace": "dense layers among those with experts",
}
"""Keys whose meaning is known for the families `DEEPSEEK` only: others differ in detail."""

_ONE = ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step")
"""Of how many layers one has experts: every layer, or the model is not described."""

_LAYER_TYPES = {"full_attention", "sliding_attention", "attention"}

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")

_DTYPES = {"bfloat16", "float16", "float32", "auto"}
"""Formats of unquantised checkpoints; engines run float32 ones in 16 bits unless told otherwise."""

_QUANT_METHODS = {
    "awq": "int4", "gptq": "int4", "gptq_marlin": "int4", "awq_marlin": "int4", "fp8": "fp8",
    "fbgemm_fp8": "fp8", "compressed-tensors": "", "modelopt": "",
}  # fmt: skip
"""Known ``quant_method`` and the format of the weights; empty where other keys say it."""


def refuse_unlike(path: Path, config: dict[str, Any], family: str) -> None:
    """Refuse what `ModelSpec` does not describe, with the key and the reason.

    Raises:
        ConfigError: As said.
    """
    _refuse_recurrent(path, config, family)
    for key, what in _UNLIKE.items():
        if config.get(key):
            raise ConfigError(f"{path}: {key}: {config[key]}: models with {what} are not described")
    for key in _ONE:
        if config.get(key, 1) not in (1, None):
            raise ConfigError(
                f"{path}: {key}: {config[key]}: only 1 is described for {family or 'any model'}"
            )
    _refuse_mixture(path, config, family)
    dtype = str(config.get("torch_dtype") or config.get("dtype") or "auto").removeprefix("torch.")
    if dtype not in _DTYPES:
        key = "torch_dtype" if config.get("torch_dtype") else "dtype"
        raise ConfigError(f"{path}: {key}: {dtype} is not known{nearest(dtype, _DTYPES)}")
    _refuse_latent(path, config, family)


def _refuse_recurrent(path: Path, config: dict[str, Any], family: str) -> None:
    named = config.get("architectures")
    classes = [str(each) for each in named] if isinstance(named, list) else []
    for key, name in (("model_type", family), *(("architectures", each) for each in classes)):
        if any(part in name.lower() for part in _RECURRENT):
            raise ConfigError(
                f"{path}: {key}: {name}: models with layers that keep a state (recurrent, linear "
                "or state-space) are not described; transformers whose every layer attends are"
            )
    kinds = config.get("attn_type_list")  # of MiniMax: 1 is attention, 0 a linear one
    if isinstance(kinds, list) and any(kind != 1 for kind in kinds):
        raise ConfigError(f"{path}: attn_type_list: only layers of kind 1 are described")
    types = config.get("layer_types")
    for each in types if isinstance(types, list) else []:
        if each not in _LAYER_TYPES:
            raise ConfigError(
                f"{path}: layer_types: {each}: only layers of {', '.join(sorted(_LAYER_TYPES))} "
                "are described"
            )


def _refuse_mixture(path: Path, config: dict[str, Any], family: str) -> None:
    """Counts of experts that contradict one another, or that of a dense model in a mixture."""
    given = {key: config[key] for key in _EXPERTS if config.get(key) is not None}
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"{path}: {key}: {value!r}: expected a positive whole number; for a dense model "
                "leave it out"
            )
    chosen = config.get("num_experts_per_tok")
    if not given and (chosen or "moe" in family or family == "mixtral"):
        said = f"num_experts_per_tok: {chosen}" if chosen else f"model_type: {family}"
        raise ConfigError(f"{path}: {said}: the number of experts is absent: {_EXPERTS[0]}")
    experts = next(iter(given.values()), 0)
    if given and isinstance(chosen, int) and chosen > experts:
        raise ConfigError(
            f"{path}: num_experts_per_tok: {chosen}: more than the {experts} experts of "
            f"{next(iter(given))}"
        )


def _refuse_latent(path: Path, config: dict[str, Any], family: str) -> None:
    if family not in DEEPSEEK:
        for key, what in _OF_DEEPSEEK.items():
            if config.get(key):
                raise ConfigError(
                    f"{path}: {key}: {config[key]}: {what} of a model_type "
                    f"{family or 'not stated'} is not described; that of "
                    f"{', '.join(sorted(DEEPSEEK))} is"
                )
    elif config.get("attention_bias"):
        raise ConfigError(
            f"{path}: attention_bias: {config['attention_bias']}: only False is described for "
            f"{family}"
        )


def weights_format(path: Path, config: dict[str, Any]) -> str:
    """The ``precision.weights`` that a quantised checkpoint needs; empty for 16 bits.

    Raises:
        ConfigError: A quantisation of another kind than the described ones.
    """
    said = config.get("quantization_config") or config.get("compression_config")
    if not said:
        return ""
    if not isinstance(said, dict):
        raise ConfigError(f"{path}: quantization_config: expected an object, found {said!r}")
    method = str(said.get("quant_method", "")).lower()
    if method not in _QUANT_METHODS:
        raise _not_described(path, f"quant_method: {method or 'absent'}", "")
    if method == "compressed-tensors":
        return _of_groups(path, said)
    if method == "modelopt":
        return _of_modelopt(path, said)
    if _QUANT_METHODS[method] == "int4" and said.get("bits", said.get("w_bit", 4)) != 4:
        bits = said.get("bits", said.get("w_bit"))
        raise _not_described(path, f"quant_method: {method}, bits: {bits}", "4 bits are")
    return _QUANT_METHODS[method]


def _of_groups(path: Path, said: dict[str, Any]) -> str:
    """The one format of all groups of compressed-tensors."""
    groups = said.get("config_groups")
    kinds = sorted({_kind(each) for each in groups.values()} if isinstance(groups, dict) else ())
    known = {"float8 x float8": "fp8", "int8 x int8": "int8", "int4": "int4"}
    if len(kinds) == 1 and kinds[0] in known:
        return known[kinds[0]]
    told = ", ".join(kinds) or "no groups"
    hint = "float8 x float8, int8 x int8 and int4 (weights x activations) are"
    raise _not_described(path, f"config_groups: {told}", hint)


def _kind(group: object) -> str:
    """Type and bits of the weights and, where they are quantised too, of the activations."""
    said = group if isinstance(group, dict) else {}
    parts = [said.get(key) for key in ("weights", "input_activations")]
    return " x ".join(
        f"{part.get('type')}{part.get('num_bits')}" for part in parts if isinstance(part, dict)
    )


def _of_modelopt(path: Path, said: dict[str, Any]) -> str:
    kind = str(said.get("quant_algo", "absent"))
    if kind.upper() == "FP8":
        return "fp8"
    raise _not_described(path, f"quant_algo: {kind}", "FP8 is")


def _not_described(path: Path, what: str, hint: str) -> ConfigError:
    known = hint or f"{', '.join(sorted(_QUANT_METHODS))} are"
    return ConfigError(
        f"{path}: quantization_config.{what} is not described; {known}. To simulate the model "
        "unquantised, take the key out"
    )


def window_note(config: dict[str, Any]) -> str:
    """What to tell of a sliding window, which is not modelled; empty where it has no effect."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return ""
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and isinstance(window, int) and window >= longest:
        return ""
    return (
        f"its sliding window of {window} tokens is not modelled: attention reads all of the context"
    )
