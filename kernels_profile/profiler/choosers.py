"""Configurations that a kernel's chooser offers for the shape of a point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kernels_profile.profiler.inputs import unequal_contexts
from kernels_profile.profiler.points import Point


def candidates(point: Point) -> Sequence[Any]:
    """Configurations of the point's main kernel to choose from; empty if there is no choice."""
    found = CHOOSERS.get((point.table, str(point.key.get("op", ""))))
    return found(point) if found else ()


def _linear_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels.linear import choose

    if point.table == "per_sequence":
        return choose(point["sequences"], point["vocab"], point["hidden"])
    return choose(point["tokens"], point["n"], point["k"], point["dtype"] == "fp8")


def _greedy_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels.sampling import choose

    return choose(point["sequences"])


def _decode_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels.decode_attention import choose

    return choose(max(unequal_contexts(point["batch"], int(point["context"]), point["skew"])))


def _prefill_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels.prefill_attention import choose

    return choose(point["tokens"])


def _moe_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels.moe import choose

    return choose(point["tokens"], point["experts"], point["top_k"])


def _rotary_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels import mla_cache, rotary

    module = mla_cache if "kv_lora_rank" in point.sizes else rotary
    configs: Sequence[Any] = module.choose(point["tokens"])
    return configs


def _latent_decode_configs(point: Point) -> Sequence[Any]:
    import torch

    from kernels_profile.kernels.mla import capability_of, choose

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return choose(point["heads"], capability_of(device))


def _latent_prefill_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels.mla_prefill import choose

    return choose(point["tokens"])


def _silu_configs(point: Point) -> Sequence[Any]:
    from kernels_profile.kernels.activation import choose

    return choose(point["tokens"])


CHOOSERS: Mapping[tuple[str, str], Callable[[Point], Sequence[Any]]] = MappingProxyType(
    {
        ("linear", ""): _linear_configs,
        ("per_sequence", "lm_head"): _linear_configs,
        ("per_sequence", "lm_head_greedy"): _greedy_configs,
        ("attention_decode", ""): _decode_configs,
        ("attention_prefill", ""): _prefill_configs,
        ("attention_mixed", ""): _prefill_configs,
        ("mla_prefill", ""): _latent_prefill_configs,
        ("mla_decode", ""): _latent_decode_configs,
        ("moe", ""): _moe_configs,
        ("elementwise", "rotary"): _rotary_configs,
        ("elementwise", "silu_mul"): _silu_configs,
    }
)
"""Kernels that have several configurations for one shape, by table and operator."""
