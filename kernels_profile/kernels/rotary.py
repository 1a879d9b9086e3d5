"""Rotary position embedding (Su et al., 2021), fused with writing K and V to the paged cache.

One launch rotates q in place and stores rotated k, and v, in the slots that the scheduler gave them
(vLLM does this in two kernels, `rotary_embedding` and `reshape_and_cache`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need


@dataclass(frozen=True)
class RotaryConfig(Config):
    """Heads that one program rotates."""

    block_h: int


CONFIGS = (RotaryConfig(4, 1, 8), RotaryConfig(4, 1, 32))
"""Few heads a program where there are few tokens."""
FEW_TOKENS = 64


def choose(tokens: int) -> tuple[RotaryConfig, ...]:
    """Candidates for a number of tokens, the likeliest best first."""
    return CONFIGS if tokens <= FEW_TOKENS else CONFIGS[::-1]


@triton.jit
def _rotary_kv_write_kernel(
    q, k, v, cos, sin, positions, slots, k_cache, v_cache,
    q_stride, k_stride, v_stride, angle_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    place = tl.arange(0, HALF)[None, :]
    in_half = place < HEAD_DIM // 2
    slot = tl.load(slots + token).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * angle_stride + place, mask=in_half, other=0.0).to(tl.float32)
    s = tl.load(sin + position * angle_stride + place, mask=in_half, other=0.0).to(tl.float32)

    kv_head = head - HEADS
    of_q = (head < HEADS) & in_half
    of_k = (kv_head >= 0) & (kv_head < KV_HEADS) & in_half
    stored = of_k & (slot + head * 0 >= 0)
    q_at = q + token * q_stride + head * HEAD_DIM + place
    k_at = k + token * k_stride + kv_head * HEAD_DIM + place
    v_at = v + token * v_stride + kv_head * HEAD_DIM + place
    cached = (slot * KV_HEADS + kv_head) * HEAD_DIM + place
    half = HEAD_DIM // 2
    # A head is of q or of k: where it is not, the load gives 0.
    first = tl.load(q_at, mask=of_q, other=0.0).to(tl.float32)
    first += tl.load(k_at, mask=of_k, other=0.0).to(tl.float32)
    second = tl.load(q_at + half, mask=of_q, other=0.0).to(tl.float32)
    second += tl.load(k_at + half, mask=of_k, other=0.0).to(tl.float32)
    low, high = first * c - second * s, second * c + first * s
    tl.store(q_at, low.to(q.dtype.element_ty), mask=of_q)
    tl.store(q_at + half, high.to(q.dtype.element_ty), mask=of_q)
    tl.store(k_cache + cached, low.to(k_cache.dtype.element_ty), mask=stored)
    tl.store(k_cache + cached + half, high.to(k_cache.dtype.element_ty), mask=stored)
    low_v = tl.load(v_at, mask=stored)
    high_v = tl.load(v_at + half, mask=stored)
    tl.store(v_cache + cached, low_v.to(v_cache.dtype.element_ty), mask=stored)
    tl.store(v_cache + cached + half, high_v.to(v_cache.dtype.element_ty), mask=stored)


def plan_rotary(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    slots: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    config: RotaryConfig,
) -> Launch:
    """The launch of `rotary_kv_write`; `angles` are (cos, sin), `caches` those of k and v."""
    (tokens, heads, head_dim), kv_heads = q.shape, k.shape[1]
    arguments: dict[str, Any] = {
        "q": q, "k": k, "v": v, "cos": angles[0], "sin": angles[1], "positions": positions,
        "slots": slots, "k_cache": caches[0], "v_cache": caches[1], "q_stride": q.stride(0),
        "k_stride": k.stride(0), "v_stride": v.stride(0), "angle_stride": angles[0].stride(0),
        "HEADS": heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim,
        "HALF": triton.next_power_of_2(head_dim // 2),
    }  # fmt: skip
    grid = (tokens, triton.cdiv(heads + kv_heads, config.block_h))
    return Launch(_rotary_kv_write_kernel, grid, arguments, config)


def rotary_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    config: RotaryConfig | None = None,
) -> None:
    """Rotate q in place, and write rotated k, and v, to the cache.

    Number i of a head is paired with number i + head_dim / 2 (Llama in Hugging Face's order).

    Args:
        q: `(tokens, heads, head_dim)`, a token's heads contiguous (a part of a fused qkv will do).
        k: `(tokens, kv_heads, head_dim)`, likewise; not changed.
        v: Likewise.
        cos: `(positions, head_dim / 2)`, rows contiguous.
        sin: Likewise.
        positions: `(tokens,)` int32 or int64, row of `cos` and `sin`.
        slots: `(tokens,)` int64, block * block_tokens + offset; a negative one is not written.
        k_cache: `(blocks, block_tokens, kv_heads, head_dim)`, contiguous.
        v_cache: Likewise.
        config: One of `choose(tokens)`; by default its first.
    """
    for name, part in (("q", q), ("k", k), ("v", v)):
        need(part.stride()[1:] == (part.shape[2], 1), f"rotary: heads of {name} not contiguous")
    need(q.shape[2] % 2 == 0, f"rotary: head_dim {q.shape[2]} is odd")
    for cache in (k_cache, v_cache):
        need(cache.is_contiguous(), "rotary: caches have to be contiguous")
        need(cache.shape[2:] == k.shape[1:], "rotary: a cache's heads are not those of k")
    same = cos.stride() == sin.stride() and cos.stride(1) == 1
    need(same, "rotary: rows of cos and sin have to be contiguous and equally far apart")
    if q.shape[0]:
        chosen = config or choose(q.shape[0])[0]
        caches = (k_cache, v_cache)
        plan_rotary(q, k, v, (cos, sin), positions, slots, caches, chosen).run()


def compile_cases() -> list[CompileCase]:
    """Every configuration for Llama-3.1-8B's heads, and for heads of 64."""
    return [_case(config, head_dim) for config in CONFIGS for head_dim in (64, 128)]


def _case(config: RotaryConfig, head_dim: int) -> CompileCase:
    qkv = meta(64, 48 * head_dim).view(64, 48, head_dim)
    cache = meta(256, 16, 8, head_dim)
    angles = meta(4096, head_dim // 2, dtype=torch.float32)
    places = meta(64, dtype=torch.int64)
    q, k, v = qkv[:, :32], qkv[:, 32:40], qkv[:, 40:]
    launch = plan_rotary(q, k, v, (angles, angles), places, places, (cache, cache), config)
    return CompileCase(launch, f"bf16 heads=32/8 head_dim={head_dim}")
