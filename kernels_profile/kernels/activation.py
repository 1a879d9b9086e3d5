"""SiLU and multiply (the gated unit of Llama's MLP; Shazeer, 2020), computed in float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need


@dataclass(frozen=True)
class ActivationConfig(Config):
    """Outputs per program."""

    block: int


CONFIGS = (ActivationConfig(4, 1, 1024), ActivationConfig(8, 1, 4096))
FEW_TOKENS = 64


def choose(tokens: int) -> tuple[ActivationConfig, ...]:
    """Candidates for a number of tokens, the likeliest best first."""
    return CONFIGS if tokens <= FEW_TOKENS else CONFIGS[::-1]


@triton.jit
def _silu_mul_kernel(gate_up, out, stride, inner, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < inner
    at = gate_up + token * stride + columns
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + inner, mask=inside, other=0.0).to(tl.float32)
    product = gate * tl.sigmoid(gate) * up
    tl.store(out + token * inner + columns, product.to(out.dtype.element_ty), mask=inside)


def plan_silu_mul(gate_up: torch.Tensor, out: torch.Tensor, config: ActivationConfig) -> Launch:
    """The launch of `silu_mul`: one program for some outputs of one token."""
    tokens, inner = out.shape
    arguments: dict[str, Any] = {
        "gate_up": gate_up, "out": out, "stride": gate_up.stride(0), "inner": inner,
    }  # fmt: skip
    grid = (tokens, triton.cdiv(inner, config.block))
    return Launch(_silu_mul_kernel, grid, arguments, config)


def silu_mul(
    gate_up: torch.Tensor,
    out: torch.Tensor | None = None,
    config: ActivationConfig | None = None,
) -> torch.Tensor:
    """silu(gate) * up.

    Args:
        gate_up: `(tokens, 2 inner)`, the gate's numbers, then the other's; rows contiguous.
        out: `(tokens, inner)`, contiguous; by default a new tensor of the same type.
        config: One of `choose(tokens)`; by default its first.

    Returns:
        out
    """
    tokens, width = gate_up.shape
    need(width % 2 == 0, f"silu_mul: {width} columns are not gate and up")
    need(gate_up.stride(1) == 1, "silu_mul: rows have to be contiguous")
    out = gate_up.new_empty((tokens, width // 2)) if out is None else out
    if tokens:
        plan_silu_mul(gate_up, out, config or choose(tokens)[0]).run()
    return out


def compile_cases() -> list[CompileCase]:
    """Every configuration at Llama-3.1-8B's 14336."""
    gate_up, out = meta(64, 28_672), meta(64, 14_336)
    launches = [plan_silu_mul(gate_up, out, config) for config in CONFIGS]
    return [CompileCase(launch, "bf16 inner=14336") for launch in launches]
