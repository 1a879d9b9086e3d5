"""RMS norm with residual (Zhang and Sennrich, 2019), and the norm of each head of q and k (Qwen3).

All arithmetic is in float32. As vLLM's fused kernel does, the norm is taken of the float32 sum of x
and the residual, not of the sum after it was rounded to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need

MAX_WIDTH = 32_768
"""Widest row: one program holds a row in its registers."""


@dataclass(frozen=True)
class RowConfig(Config):
    """Numbers that one program holds: a power of two, at least the width of a row."""

    block: int


@dataclass(frozen=True)
class HeadConfig(Config):
    """Heads that one program norms, and numbers of each (a power of two)."""

    block_h: int
    block_d: int


CONFIGS = (
    *(RowConfig(4, 1, block) for block in (256, 512, 1024, 2048, 4096)),
    RowConfig(8, 1, 8192),
    RowConfig(16, 1, 16_384),
    RowConfig(16, 1, MAX_WIDTH),
)
"""By the width of a row: at most 64 numbers a thread."""
HEAD_CONFIGS = (HeadConfig(4, 1, 8, 64), HeadConfig(4, 1, 8, 128), HeadConfig(4, 1, 8, 256))
"""By the width of a head, all with eight heads a program."""


def choose(width: int) -> tuple[RowConfig, ...]:
    """Candidates for rows of this width."""
    need(1 <= width <= MAX_WIDTH, f"rms_norm: width {width} is not in 1..{MAX_WIDTH}")
    return (next(config for config in CONFIGS if width <= config.block),)


@triton.jit
def _rms_norm_kernel(
    x, residual, weight, normed, total_out, x_stride, residual_stride, width, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        at = residual + row * residual_stride + columns
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(total_out + row * width + columns, total.to(total_out.dtype.element_ty), mask=inside)
    scale = tl.rsqrt(tl.sum(total * total, axis=0) / width + eps)
    scaled = total * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row * width + columns, scaled.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def _qk_norm_kernel(
    q, k, q_weight, k_weight, q_stride, k_stride, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    place = tl.arange(0, BLOCK_D)[None, :]
    of_q = (head < HEADS) & (place < HEAD_DIM)
    of_k = (head >= HEADS) & (head < HEADS + KV_HEADS) & (place < HEAD_DIM)
    q_at = q + token * q_stride + head * HEAD_DIM + place
    k_at = k + token * k_stride + (head - HEADS) * HEAD_DIM + place
    numbers = tl.load(q_at, mask=of_q, other=0.0).to(tl.float32)
    numbers += tl.load(k_at, mask=of_k, other=0.0).to(tl.float32)  # one of the two is 0
    weight = tl.load(q_weight + place + head * 0, mask=of_q, other=0.0).to(tl.float32)
    weight += tl.load(k_weight + place + head * 0, mask=of_k, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers, axis=1) / HEAD_DIM + eps)
    normed = numbers * scale[:, None] * weight
    tl.store(q_at, normed.to(q.dtype.element_ty), mask=of_q)
    tl.store(k_at, normed.to(k.dtype.element_ty), mask=of_k)


def plan_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    normed: torch.Tensor,
    total: torch.Tensor,
    config: RowConfig,
) -> Launch:
    """The launch of `rms_norm_residual`: one program a row."""
    arguments: dict[str, Any] = {
        "x": x, "residual": residual, "weight": weight, "normed": normed, "total_out": total,
        "x_stride": x.stride(0), "residual_stride": 0 if residual is None else residual.stride(0),
        "width": x.shape[1], "eps": eps,
    }  # fmt: skip
    return Launch(_rms_norm_kernel, (x.shape[0],), arguments, config)


def rms_norm_residual(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    config: RowConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum s of x and the residual; its RMS norm times the weight.

    Args:
        x: `(tokens, hidden)`, rows contiguous.
        residual: Likewise, or None for the first layer (then s is x).
        weight: `(hidden,)`.
        eps: Added to the mean square.
        out: Two contiguous `(tokens, hidden)` tensors; by default new ones.
        config: One of `choose(hidden)`; by default its first.

    Returns:
        (s / rms(s) * weight, s), of the type of x by default.
    """
    need(x.stride(1) == 1, "rms_norm: rows have to be contiguous")
    need(weight.numel() == x.shape[1], f"rms_norm: {weight.numel()} weights, rows of {x.shape[1]}")
    shapes = residual is None or residual.shape == x.shape
    need(shapes, f"rms_norm: x is {tuple(x.shape)}, the residual is not")
    normed, total = out or (x.new_empty(x.shape), x.new_empty(x.shape))
    chosen = config or choose(x.shape[1])[0]
    if x.shape[0]:
        plan_rms_norm(x, residual, weight, eps, normed, total, chosen).run()
    return normed, total


def plan_qk_norm(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float
) -> Launch:
    """The launch of `qk_norm`: one program for some heads of one token."""
    (tokens, heads, head_dim), kv_heads = q.shape, k.shape[1]
    block_d = max(64, triton.next_power_of_2(head_dim))
    found = [config for config in HEAD_CONFIGS if config.block_d == block_d]
    need(bool(found), f"qk_norm: head_dim {head_dim} is over {HEAD_CONFIGS[-1].block_d}")
    arguments: dict[str, Any] = {
        "q": q, "k": k, "q_weight": q_weight, "k_weight": k_weight, "q_stride": q.stride(0),
        "k_stride": k.stride(0), "eps": eps, "HEADS": heads, "KV_HEADS": kv_heads,
        "HEAD_DIM": head_dim,
    }  # fmt: skip
    grid = (tokens, triton.cdiv(heads + kv_heads, found[0].block_h))
    return Launch(_qk_norm_kernel, grid, arguments, found[0])


def qk_norm(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float
) -> None:
    """RMS norm of each head of q and of k, in place.

    Args:
        q: `(tokens, heads, head_dim)`, a token's heads contiguous (a part of a fused qkv will do).
        k: `(tokens, kv_heads, head_dim)`, likewise.
        q_weight: `(head_dim,)`.
        k_weight: `(head_dim,)`.
        eps: Added to the mean square.
    """
    for name, part in (("q", q), ("k", k)):
        need(part.stride()[1:] == (part.shape[2], 1), f"qk_norm: heads of {name} not contiguous")
    if q.shape[0]:
        plan_qk_norm(q, k, q_weight, k_weight, eps).run()


def compile_cases() -> list[CompileCase]:
    """Rows of every width class, and heads of 64, 128 and 256."""
    return [*map(_row_case, CONFIGS), *(_head_case(config.block_d) for config in HEAD_CONFIGS)]


def _row_case(config: RowConfig) -> CompileCase:
    x = meta(64, config.block)
    launch = plan_rms_norm(x, x, x[0], 1e-5, x, x, config)
    return CompileCase(launch, f"bf16 width={config.block}")


def _head_case(head_dim: int) -> CompileCase:
    q, k = (meta(64, n, head_dim) for n in (32, 8))
    return CompileCase(plan_qk_norm(q, k, q[0, 0], k[0, 0], 1e-6), f"bf16 head_dim={head_dim}")
