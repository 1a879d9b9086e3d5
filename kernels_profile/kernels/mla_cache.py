"""Rows of the MLA cache: where they are written, and how they are checked.

One launch normalises the compressed latent (RMS norm), rotates the rotary key, stores both in the
token's slot and rotates the queries' rotary part in place. Engines do this in two or three.
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
class WriteConfig(Config):
    """Heads of the query that one program rotates."""

    block_h: int


CONFIGS = (WriteConfig(4, 1, 8), WriteConfig(4, 1, 32))
FEW_TOKENS = 64


def choose(tokens: int) -> tuple[WriteConfig, ...]:
    """Candidates for a number of tokens, the likeliest best first."""
    return CONFIGS if tokens <= FEW_TOKENS else CONFIGS[::-1]


@triton.jit
def _latent_write_kernel(
    compressed, norm_weight, q_rope, cos, sin, positions, slots, cache, eps,
    compressed_stride, q_token_stride, q_head_stride, heads,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, ROPE // 2)
    angle = tl.load(positions + token).to(tl.int64) * (ROPE // 2) + pair
    c, s = tl.load(cos + angle).to(tl.float32), tl.load(sin + angle).to(tl.float32)
    if tl.program_id(1) == 0:
        slot = tl.load(slots + token).to(tl.int64)
        source = compressed + token * compressed_stride
        row = cache + slot * (LATENT + ROPE)
        wide = tl.arange(0, LATENT)
        latent = tl.load(source + wide).to(tl.float32)
        latent *= tl.rsqrt(tl.sum(latent * latent, 0) / LATENT + eps)
        latent *= tl.load(norm_weight + wide).to(tl.float32)
        tl.store(row + wide, latent.to(cache.dtype.element_ty), mask=slot + wide * 0 >= 0)
        even = tl.load(source + LATENT + 2 * pair).to(tl.float32)
        odd = tl.load(source + LATENT + 2 * pair + 1).to(tl.float32)
        at, stored = row + LATENT + 2 * pair, slot + pair * 0 >= 0
        tl.store(at, (even * c - odd * s).to(cache.dtype.element_ty), mask=stored)
        tl.store(at + 1, (odd * c + even * s).to(cache.dtype.element_ty), mask=stored)
    else:
        head = (tl.program_id(1) - 1) * BLOCK_H + tl.arange(0, BLOCK_H)
        kept = (head < heads)[:, None] & (pair >= 0)[None, :]
        q_at = q_rope + token * q_token_stride + head[:, None] * q_head_stride + 2 * pair[None, :]
        q_even = tl.load(q_at, mask=kept, other=0.0).to(tl.float32)
        q_odd = tl.load(q_at + 1, mask=kept, other=0.0).to(tl.float32)
        first, second = (
            q_even * c[None, :] - q_odd * s[None, :],
            q_odd * c[None, :] + q_even * s[None, :],
        )
        tl.store(q_at, first.to(q_rope.dtype.element_ty), mask=kept)
        tl.store(q_at + 1, second.to(q_rope.dtype.element_ty), mask=kept)


def plan_latent_write(
    compressed: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    q_rope: torch.Tensor,
    angles: tuple[torch.Tensor, torch.Tensor],
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    config: WriteConfig,
) -> Launch:
    """The launch of `latent_write`; `angles` are (cos, sin)."""
    tokens, heads, rope = q_rope.shape
    arguments: dict[str, Any] = {
        "compressed": compressed, "norm_weight": norm_weight, "q_rope": q_rope,
        "cos": angles[0], "sin": angles[1], "positions": positions, "slots": slots, "cache": cache,
        "eps": eps, "compressed_stride": compressed.stride(0), "q_token_stride": q_rope.stride(0),
        "q_head_stride": q_rope.stride(1), "heads": heads,
        "LATENT": compressed.shape[1] - rope, "ROPE": rope,
    }  # fmt: skip
    grid = (tokens, 1 + triton.cdiv(heads, config.block_h))
    return Launch(_latent_write_kernel, grid, arguments, config)


def latent_write(
    compressed: torch.Tensor,
    norm_weight: torch.Tensor,
    eps: float,
    q_rope: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cache: torch.Tensor,
    config: WriteConfig | None = None,
) -> None:
    """Write normalised latents and rotated keys to the cache, and rotate q_rope in place.

    Numbers 2 i and 2 i + 1 are a rotary pair, as in DeepSeek's own code; Hugging Face's reorders
    them first, queries and keys alike, which leaves every score the same.

    Args:
        compressed: `(tokens, kv_lora_rank + rope_dim)`, rows contiguous: the output of the model's
            down-projection `kv_a_proj_with_mqa`; not changed. Both sizes are powers of two.
        norm_weight: `(kv_lora_rank,)`.
        eps: Of the RMS norm.
        q_rope: `(tokens, heads, rope_dim)`, each head contiguous (a part of q will do).
        cos: `(positions, rope_dim / 2)`, contiguous.
        sin: Likewise.
        positions: `(tokens,)` int32 or int64, row of `cos` and `sin`.
        slots: `(tokens,)` int64, block * block_tokens + offset; a negative one is not written.
        cache: `(blocks, block_tokens, kv_lora_rank + rope_dim)`, contiguous.
        config: One of `choose(tokens)`; by default its first.

    Raises:
        ProfileError: A shape, type or layout that does not fit.
    """
    width, rope = compressed.shape[1], q_rope.shape[2]
    check_rows("latent_write", cache, width - rope, rope)
    need(compressed.stride(1) == 1, "latent_write: rows of compressed have to be contiguous")
    need(q_rope.stride(2) == 1, "latent_write: heads of q_rope have to be contiguous")
    whole = cos.is_contiguous() and sin.is_contiguous() and cos.shape == sin.shape
    need(whole, "latent_write: cos and sin have to be contiguous and of one shape")
    need(cos.shape[1] * 2 == rope, f"latent_write: {cos.shape[1]} angles for {rope} numbers")
    tokens = {len(x) for x in (compressed, q_rope, positions, slots)}
    need(len(tokens) == 1, f"latent_write: arguments have {sorted(tokens)} tokens")
    if compressed.shape[0]:
        chosen = config or choose(compressed.shape[0])[0]
        given = (compressed, norm_weight, eps, q_rope, (cos, sin), positions, slots)
        plan_latent_write(*given, cache, chosen).run()


def check_rows(
    name: str, cache: torch.Tensor, latent: int, rope: int, table: torch.Tensor | None = None
) -> None:
    """Raise a ProfileError unless the cache has rows of these sizes, in a layout kernels read."""
    powers = all(x == triton.next_power_of_2(x) for x in (latent, rope))
    sizes = f"latent {latent} and rope {rope}"
    need(
        powers and latent >= 32 and rope >= 16, f"{name}: {sizes} are no powers of two from 32, 16"
    )
    found = tuple(cache.shape)
    need(
        len(found) == 3 and found[2] == latent + rope, f"{name}: cache {found}, not {latent}+{rope}"
    )
    need(cache.is_contiguous(), f"{name}: the cache has to be contiguous")
    if table is not None:
        rows = table.dtype == torch.int32 and table.stride(1) == 1
        need(rows, f"{name}: block table not int32 rows")


def compile_cases() -> list[CompileCase]:
    """Every configuration for the 128 heads of DeepSeek-V3."""
    q, compressed = meta(64, 128, 192), meta(64, 576)
    angles = meta(4096, 32, dtype=torch.float32)
    places = meta(64, dtype=torch.int64)
    given = (compressed, meta(512), 1e-6, q[:, :, 128:], (angles, angles), places, places)
    return [
        CompileCase(plan_latent_write(*given, meta(64, 64, 576), config), "bf16 heads=128")
        for config in CONFIGS
    ]
