"""Multi-head latent attention (MLA): prefill of chunks over history, with keys and values per head.

Source: DeepSeek-V2 (2024), section 2.1. With many queries the latents are cheaper to expand than
to attend to: rows of the paged cache, history and chunk alike, are gathered, up-projected to a key
part of `nope_dim` and a value of `v_dim` per head, and attended to together with the rotary key
that all heads share. Heads of 192 = 128 + 64 are no power of two, so a score is the sum of two
products. Engines may keep the chunk's own keys from before the cache and merge two attentions
instead; the products are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels import linear as dense
from kernels_profile.kernels.attention_loop import LOG2_E
from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need
from kernels_profile.kernels.mla_cache import check_rows


@dataclass(frozen=True)
class PrefillConfig(Config):
    """Tokens of a chunk per program, and keys per step."""

    block_m: int
    block_n: int


@dataclass(frozen=True)
class GatherConfig(Config):
    """Rows of the cache per program."""

    block_t: int


CONFIGS = (PrefillConfig(8, 2, 128, 64), PrefillConfig(4, 2, 64, 64), PrefillConfig(4, 2, 64, 32))
"""The last fits 99 KiB of shared memory (sm_86, sm_89, sm_120)."""
GATHER = GatherConfig(4, 1, 16)


def choose(max_chunk: int) -> tuple[PrefillConfig, ...]:
    """Candidates for the longest chunk of a batch, the likeliest best first."""
    return CONFIGS[1:] if max_chunk <= 64 else CONFIGS


@triton.jit(do_not_specialize=["table_stride"])
def _gather_latent_kernel(
    cache, block_table, key_starts, latents, ropes, table_stride,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(1).to(tl.int64)
    first = tl.load(key_starts + sequence)
    context = tl.load(key_starts + sequence + 1) - first
    token = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    inside = token < context
    at = block_table + sequence * table_stride + token // BLOCK_TOKENS
    page = tl.load(at, mask=inside, other=0).to(tl.int64)
    row = cache + (page * BLOCK_TOKENS + token % BLOCK_TOKENS)[:, None] * (LATENT + ROPE)
    wide, narrow = tl.arange(0, LATENT)[None, :], tl.arange(0, ROPE)[None, :]
    kept, target = inside[:, None], (first + token).to(tl.int64)[:, None]
    tl.store(latents + target * LATENT + wide, tl.load(row + wide, mask=kept), mask=kept)
    tl.store(ropes + target * ROPE + narrow, tl.load(row + LATENT + narrow, mask=kept), mask=kept)


@triton.jit
def _attend(
    total, largest, weight, own, own_rope, kv, k_rope, first, last, position, scale, row_stride,
    NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr, BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Let queries see keys `first` to `last`; if MASKED, only those up to their own position."""
    for start in range(first, last, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        token = tl.minimum(key, last - 1) if MASKED else key
        k_at = kv + token.to(tl.int64)[:, None] * row_stride
        nope = tl.load(k_at + tl.arange(0, NOPE)[None, :])
        value = tl.load(k_at + NOPE + tl.arange(0, VALUE)[None, :])
        rope = tl.load(k_rope + token[:, None] * ROPE + tl.arange(0, ROPE)[None, :])
        if UPCAST:
            nope, value, rope = nope.to(tl.float32), value.to(tl.float32), rope.to(tl.float32)
        scores = tl.dot(own, tl.trans(nope), input_precision="ieee")
        scores = tl.dot(own_rope, tl.trans(rope), scores, input_precision="ieee") * scale
        if MASKED:
            scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - larger)
        share = tl.exp2(scores - larger[:, None])
        weight = weight * shrink + tl.sum(share, 1)
        total = tl.dot(
            share.to(value.dtype), value, total * shrink[:, None], input_precision="ieee"
        )
        largest = larger
    return total, largest, weight


@triton.jit(do_not_specialize=["heads"])
def _mla_prefill_kernel(
    q, kv, k_rope, chunk_starts, key_starts, out, scale, heads,
    NOPE: tl.constexpr, ROPE: tl.constexpr, VALUE: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(0), tl.program_id(2)
    chunk_start = tl.load(chunk_starts + sequence)
    chunk = tl.load(chunk_starts + sequence + 1) - chunk_start
    tile = tl.cdiv(chunk, BLOCK_M) - 1 - tl.program_id(1)
    if tile < 0:
        return
    key_start = tl.load(key_starts + sequence).to(tl.int64)
    context = tl.load(key_starts + sequence + 1).to(tl.int32) - key_start.to(tl.int32)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    position = context - chunk + row
    token = (chunk_start + tl.minimum(row, chunk - 1)).to(tl.int64)[:, None]
    q_at = q + (token * heads + head) * (NOPE + ROPE)
    own = tl.load(q_at + tl.arange(0, NOPE)[None, :])
    own_rope = tl.load(q_at + NOPE + tl.arange(0, ROPE)[None, :])
    if UPCAST:
        own, own_rope = own.to(tl.float32), own_rope.to(tl.float32)
    largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_M,), dtype=tl.float32)
    total = tl.zeros((BLOCK_M, VALUE), dtype=tl.float32)
    all_see = (context - chunk + tile * BLOCK_M + 1) // BLOCK_N * BLOCK_N
    last = tl.minimum(context, context - chunk + (tile + 1) * BLOCK_M)
    kv_head = kv + (key_start * heads + head) * (NOPE + VALUE)
    ropes = k_rope + key_start * ROPE
    stride = heads * (NOPE + VALUE)
    total, largest, weight = _attend(
        total, largest, weight, own, own_rope, kv_head, ropes, 0, all_see, position, scale, stride,
        NOPE, ROPE, VALUE, BLOCK_N, False, UPCAST,
    )  # fmt: skip
    total, largest, weight = _attend(
        total, largest, weight, own, own_rope, kv_head, ropes, all_see, last, position, scale,
        stride, NOPE, ROPE, VALUE, BLOCK_N, True, UPCAST,
    )  # fmt: skip
    at = out + (token * heads + head) * VALUE + tl.arange(0, VALUE)[None, :]
    result = (total / weight[:, None]).to(out.dtype.element_ty)
    tl.store(at, result, mask=(row < chunk)[:, None])


def plan_gather(
    cache: torch.Tensor,
    block_table: torch.Tensor,
    key_starts: torch.Tensor,
    latents: torch.Tensor,
    ropes: torch.Tensor,
    max_context: int,
) -> Launch:
    """The launch that copies paged rows to `(keys, latent)` and `(keys, rope)`."""
    arguments: dict[str, Any] = {
        "cache": cache, "block_table": block_table, "key_starts": key_starts, "latents": latents,
        "ropes": ropes, "table_stride": block_table.stride(0), "LATENT": latents.shape[1],
        "ROPE": ropes.shape[1], "BLOCK_TOKENS": cache.shape[1],
    }  # fmt: skip
    grid = (triton.cdiv(max_context, GATHER.block_t), key_starts.shape[0] - 1)
    return Launch(_gather_latent_kernel, grid, arguments, GATHER)


def plan_mla_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    k_rope: torch.Tensor,
    chunk_starts: torch.Tensor,
    key_starts: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    max_chunk: int,
    config: PrefillConfig,
    upcast: bool = False,
) -> Launch:
    """The launch of `mla_attention`."""
    heads, rope, value = q.shape[1], k_rope.shape[1], out.shape[2]
    arguments: dict[str, Any] = {
        "q": q, "kv": kv, "k_rope": k_rope, "chunk_starts": chunk_starts, "key_starts": key_starts,
        "out": out, "scale": scale * LOG2_E, "heads": heads, "NOPE": q.shape[2] - rope,
        "ROPE": rope, "VALUE": value, "UPCAST": upcast,
    }  # fmt: skip
    grid = (heads, triton.cdiv(max_chunk, config.block_m), key_starts.shape[0] - 1)
    return Launch(_mla_prefill_kernel, grid, arguments, config)


def mla_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    k_rope: torch.Tensor,
    chunk_starts: torch.Tensor,
    key_starts: torch.Tensor,
    scale: float,
    max_chunk: int | None = None,
    out: torch.Tensor | None = None,
    config: PrefillConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """Causal attention of chunks over keys and values per head that lie one after the other.

    Args:
        q: `(tokens, heads, nope_dim + rope_dim)`, contiguous, rotated.
        kv: `(keys, heads, nope_dim + v_dim)`, contiguous: what `kv_b_proj` gives.
        k_rope: `(keys, rope_dim)`, contiguous, rotated. All three sizes are powers of two.
        chunk_starts: `(batch + 1,)` int32, where each chunk begins in q, and the end.
        key_starts: `(batch + 1,)` int32, where each sequence's keys begin, history first.
        scale: Of the scores, usually (nope_dim + rope_dim) ** -0.5.
        max_chunk: Longest chunk, tokens; by default all tokens of q.
        out: `(tokens, heads, v_dim)`, contiguous; by default a new tensor of the type of q.
        config: One of `choose(max_chunk)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out

    Raises:
        ProfileError: A shape or layout that does not fit.
    """
    (tokens, heads, width), rope = q.shape, k_rope.shape[1]
    nope, value = width - rope, kv.shape[2] - (width - rope)
    powers = all(x >= 16 and x == triton.next_power_of_2(x) for x in (nope, rope, value))
    need(powers, f"mla_attention: {nope}, {rope}, {value} have to be powers of two from 16")
    fits = kv.shape[1] == heads and kv.shape[0] == k_rope.shape[0]
    need(fits, f"mla_attention: kv {tuple(kv.shape)} and k_rope {tuple(k_rope.shape)} do not fit")
    need(chunk_starts.shape == key_starts.shape, "mla_attention: starts of different batches")
    whole = all(x.is_contiguous() for x in (q, kv, k_rope))
    need(whole, "mla_attention: q, kv and k_rope have to be contiguous")
    out = q.new_empty((tokens, heads, value)) if out is None else out
    longest = tokens if max_chunk is None else max_chunk
    if longest and key_starts.shape[0] > 1:
        given = (q, kv, k_rope, chunk_starts, key_starts, scale, out, longest)
        plan_mla_attention(*given, config or choose(longest)[0], upcast).run()
    return out


def plan_mla_prefill(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    chunk_starts: torch.Tensor,
    key_starts: torch.Tensor,
    up_w: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    max_chunk: int,
    keys: int,
    config: PrefillConfig,
    upcast: bool = False,
) -> list[Launch]:
    """Launches of `mla_prefill`: gather, up-projection, attention."""
    latent, heads = up_w.shape[1], q.shape[1]
    latents, ropes = (cache.new_empty((keys, n)) for n in (latent, cache.shape[2] - latent))
    kv = cache.new_empty((keys, up_w.shape[0]), dtype=torch.float32 if upcast else cache.dtype)
    longest = min(keys, block_table.shape[1] * cache.shape[1])
    up = dense.choose(keys, up_w.shape[0], latent)[0]
    per_head = kv.view(keys, heads, -1)
    given = (q, per_head, ropes, chunk_starts, key_starts, scale, out, max_chunk)
    return [
        plan_gather(cache, block_table, key_starts, latents, ropes, longest),
        *dense.plan_linear(latents, up_w, kv, up, upcast=upcast),
        plan_mla_attention(*given, config, upcast),
    ]


def mla_prefill(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    chunk_starts: torch.Tensor,
    contexts: torch.Tensor,
    up_w: torch.Tensor,
    scale: float,
    nope_dim: int = 128,
    max_chunk: int | None = None,
    keys: int | None = None,
    out: torch.Tensor | None = None,
    config: PrefillConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """Causal attention of chunks whose latents are already in the paged cache.

    Needs room for keys and values of all heads: keys * heads * (nope_dim + v_dim) numbers.

    Args:
        q: `(tokens, heads, nope_dim + rope_dim)`, contiguous, rotated.
        cache: `(blocks, block_tokens, kv_lora_rank + rope_dim)`, contiguous.
        block_table: `(batch, max_blocks)` int32, pages of each sequence.
        chunk_starts: `(batch + 1,)` int32, where each chunk begins in q, and the end.
        contexts: `(batch,)` int32, tokens of each sequence, its chunk included.
        up_w: `(heads * (nope_dim + v_dim), kv_lora_rank)`, the model's `kv_b_proj`.
        scale: Of the scores, usually (nope_dim + rope_dim) ** -0.5.
        nope_dim: Of a head.
        max_chunk: Longest chunk, tokens; by default all tokens of q.
        keys: Sum of the contexts; by default read from the GPU, which waits for it and cannot be
            captured in a CUDA graph.
        out: `(tokens, heads, v_dim)`, contiguous; by default a new tensor of the type of q.
        config: One of `choose(max_chunk)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out

    Raises:
        ProfileError: A shape or layout that does not fit.
    """
    tokens, heads, width = q.shape
    latent = up_w.shape[1]
    check_rows("mla_prefill", cache, latent, width - nope_dim, block_table)
    need(up_w.shape[0] % heads == 0, f"mla_prefill: {up_w.shape[0]} outputs for {heads} heads")
    need(q.is_contiguous(), "mla_prefill: q has to be contiguous")
    value = up_w.shape[0] // heads - nope_dim
    powers = all(x >= 16 and x == triton.next_power_of_2(x) for x in (nope_dim, value))
    need(powers, f"mla_prefill: {nope_dim} and {value} have to be powers of two from 16")
    out = q.new_empty((tokens, heads, value)) if out is None else out
    longest = tokens if max_chunk is None else max_chunk
    keys = int(contexts.sum()) if keys is None else keys
    if longest and keys:
        key_starts = torch.nn.functional.pad(contexts.cumsum(0), (1, 0)).to(torch.int32)
        given = (q, cache, block_table, chunk_starts, key_starts, up_w, scale, out, longest, keys)
        for launch in plan_mla_prefill(*given, config or choose(longest)[0], upcast):
            launch.run()
    return out


def compile_cases() -> list[CompileCase]:
    """Every configuration for heads of 128 + 64 and values of 128, and the gather."""
    starts, table = meta(17, dtype=torch.int32), meta(16, 512, dtype=torch.int32)
    gather = plan_gather(meta(1024, 64, 576), table, starts, meta(8192, 512), meta(8192, 64), 512)
    q, kv, out = meta(2048, 16, 192), meta(8192, 16, 256), meta(2048, 16, 128)
    given = (q, kv, meta(8192, 64), starts, starts, 192**-0.5, out, 2048)
    attention = [plan_mla_attention(*given, config) for config in CONFIGS]
    cases = [CompileCase(launch, "bf16 heads of 128+64", "native") for launch in attention]
    return [*cases, CompileCase(gather, "bf16 latent=512")]
