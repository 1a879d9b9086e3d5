"""Multi-head latent attention (MLA): decode over a paged cache of latents, absorbed.

Source: DeepSeek-V2 (2024), section 2.1. A token's cache row is its compressed KV latent
(`kv_lora_rank` numbers, 512) and one rotary key shared by all heads (64). In decode the
up-projection of keys is absorbed into the query and that of values into the output, so that a head
attends with a query of 512 + 64 numbers over the rows as they are, and its result is a weighted
sum of latents: every row is read once for all heads, as key and as value.

The absorbed projections (two products per head, before and after) are no part of this kernel. Parts
of a context are merged as in `decode_attention`. The sums of 64 heads, the rows that wgmma takes,
are 64 x 512 float32 numbers: with them in registers nothing else has room. On sm_90 a program
therefore adds up half of the latent (and another one the other half, which costs the scores
twice), or has 32 heads and mma.sync; on sm_100 the sums are in tensor memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.attention_loop import LOG2_E
from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.decode_attention import (
    MAX_SPLITS,
    choose_splits,
    multiprocessors,
    plan_merge,
)
from kernels_profile.kernels.launch import Config, Launch, meta, need
from kernels_profile.kernels.mla_cache import check_rows, latent_write
from kernels_profile.kernels.mla_prefill import mla_attention, mla_prefill

__all__ = ["latent_write", "mla_attention", "mla_decode", "mla_prefill"]


@dataclass(frozen=True)
class DecodeConfig(Config):
    """Heads per program (rows of a tile), keys per step, and parts of the latent.

    Args:
        latent_parts: 1 for programs that add up whole latents, or 2 where registers have no room
            for that: two programs compute the same scores and add up half of the latent each.
    """

    block_h: int
    block_n: int
    latent_parts: int


SMALL = (DecodeConfig(8, 3, 16, 32, 1), DecodeConfig(4, 2, 16, 32, 1))
"""Fit everywhere, GPUs with 99 KiB of shared memory (sm_86, sm_89, sm_120) included."""
HALF = DecodeConfig(8, 2, 32, 64, 1)
"""For the 163 KiB of sm_80 and more."""
WIDE = (DecodeConfig(8, 2, 64, 64, 2), DecodeConfig(8, 2, 64, 32, 2))
"""With the matrix instructions of sm_90 and sm_100, which take 64 rows."""
TENSOR_MEMORY = DecodeConfig(8, 2, 64, 32, 1)
"""Where the accumulator is not in registers: sm_100."""
CONFIGS = (*SMALL, HALF, *WIDE, TENSOR_MEMORY)
"""Every configuration that `choose` may name."""
MERGE = Config(8, 1)


def choose(heads: int, capability: int) -> tuple[DecodeConfig, ...]:
    """Candidates for a number of heads, the likeliest best first.

    Args:
        heads: Per GPU.
        capability: Compute capability times ten, such as 90.
    """
    if heads <= 16 or capability not in (80, 90, 100, 103):
        return SMALL
    if heads <= 32 or capability == 80:
        return (HALF, SMALL[0])
    return (*WIDE, HALF) if capability == 90 else (TENSOR_MEMORY, *WIDE)


@triton.jit(do_not_specialize=["heads", "table_stride"])
def _mla_decode_kernel(
    q_latent, q_rope, cache, block_table, contexts, out, weights, heads, scale, table_stride,
    LATENT: tl.constexpr, ROPE: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    SPLIT: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_N: tl.constexpr, LATENT_PARTS: tl.constexpr,
):  # fmt: skip
    part, parts = tl.program_id(1), tl.num_programs(1)
    sequence = tl.program_id(2).to(tl.int64)
    context = tl.load(contexts + sequence)
    part_tokens = tl.cdiv(tl.cdiv(context, parts), BLOCK_N) * BLOCK_N
    begin = part * part_tokens
    end = tl.minimum(begin + part_tokens, context)

    BLOCK_V: tl.constexpr = LATENT // LATENT_PARTS
    pid = tl.program_id(0)
    head = pid // LATENT_PARTS * BLOCK_H + tl.arange(0, BLOCK_H)
    wide = pid % LATENT_PARTS * BLOCK_V + tl.arange(0, BLOCK_V)
    rest = (wide + BLOCK_V) % LATENT  # the half that this program does not add up
    narrow = tl.arange(0, ROPE)
    # Rows past the last head repeat it, keys past the end the last one: no mask on loads.
    q_row = sequence * heads + tl.minimum(head, heads - 1)[:, None]
    own = load(q_latent + q_row * LATENT + wide[None, :], UPCAST)
    own_rope = load(q_rope + q_row * ROPE + narrow[None, :], UPCAST)
    if LATENT_PARTS == 2:
        own_rest = load(q_latent + q_row * LATENT + rest[None, :], UPCAST)
    largest = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_H,), dtype=tl.float32)
    total = tl.zeros((BLOCK_H, BLOCK_V), dtype=tl.float32)
    for start in range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        token = tl.minimum(key, end - 1)
        page = tl.load(block_table + sequence * table_stride + token // BLOCK_TOKENS).to(tl.int64)
        row = cache + (page * BLOCK_TOKENS + token % BLOCK_TOKENS)[:, None] * (LATENT + ROPE)
        latent = load(row + wide[None, :], UPCAST)
        scores = tl.dot(own, tl.trans(latent), input_precision="ieee")
        if LATENT_PARTS == 2:
            other = load(row + rest[None, :], UPCAST)
            scores = tl.dot(own_rest, tl.trans(other), scores, input_precision="ieee")
        rope = load(row + LATENT + narrow[None, :], UPCAST)
        scores = tl.dot(own_rope, tl.trans(rope), scores, input_precision="ieee")
        scores = tl.where((key < end)[None, :], scores * scale, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        shrink = tl.exp2(largest - larger)
        share = tl.exp2(scores - larger[:, None])
        weight = weight * shrink + tl.sum(share, 1)
        share = share.to(latent.dtype)
        total = tl.dot(share, latent, total * shrink[:, None], input_precision="ieee")
        largest = larger
    kept = head < heads
    target = sequence * heads + head
    if SPLIT:
        target = target * parts + part
        tl.store(weights + target, largest + tl.log2(weight), mask=kept)
    result = total / tl.where(weight == 0.0, 1.0, weight)[:, None]
    at = out + target[:, None] * LATENT + wide[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=kept[:, None])


@triton.jit
def load(at, UPCAST: tl.constexpr):
    """Numbers at these addresses, in their type or in float32."""
    if UPCAST:
        return tl.load(at).to(tl.float32)
    return tl.load(at)


def plan_mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
    splits: int,
    out: torch.Tensor,
    config: DecodeConfig,
    upcast: bool = False,
) -> list[Launch]:
    """Launches of `mla_decode`: the attention, and with more than one part their merge."""
    batch, heads, latent = q_latent.shape
    split = splits > 1
    partial = out.new_empty((batch, heads, splits, latent), dtype=torch.float32) if split else out
    weights = out.new_empty((batch, heads, splits), dtype=torch.float32) if split else None
    arguments: dict[str, Any] = {
        "q_latent": q_latent, "q_rope": q_rope, "cache": cache, "block_table": block_table,
        "contexts": contexts, "out": partial, "weights": weights, "heads": heads,
        "scale": scale * LOG2_E, "table_stride": block_table.stride(0), "LATENT": latent,
        "ROPE": q_rope.shape[2], "BLOCK_TOKENS": cache.shape[1], "SPLIT": split, "UPCAST": upcast,
    }  # fmt: skip
    blocks = triton.cdiv(heads, config.block_h) * config.latent_parts
    grid = (blocks, splits, batch)
    launches = [Launch(_mla_decode_kernel, grid, arguments, config)]
    if weights is not None:
        launches.append(plan_merge(partial, weights, out, splits, latent, MERGE))
    return launches


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
    splits: int | None = None,
    out: torch.Tensor | None = None,
    config: DecodeConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """Absorbed attention of one token per sequence over its whole context, its own row included.

    Args:
        q_latent: `(batch, heads, kv_lora_rank)`, contiguous; kv_lora_rank a power of two.
        q_rope: `(batch, heads, rope_dim)`, contiguous, rotated; rope_dim a power of two.
        cache: `(blocks, block_tokens, kv_lora_rank + rope_dim)`, contiguous.
        block_table: `(batch, max_blocks)` int32, pages of each sequence.
        contexts: `(batch,)` int32, tokens of each sequence; 0 (a padding row) gives zeros.
        scale: Of the scores: (nope_dim + rope_dim) ** -0.5 of the heads before absorption, times
            whatever the model's position scaling adds.
        splits: Parts of each context; by default enough to fill the GPU for the longest context
            that the table can hold.
        out: `(batch, heads, kv_lora_rank)`, contiguous; by default new, of the type of q_latent.
        config: One of `choose(heads, capability)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out: weighted sums of latents.

    Raises:
        ProfileError: A shape, type or layout that does not fit.
    """
    batch, heads, latent = q_latent.shape
    check_rows("mla_decode", cache, latent, q_rope.shape[2], block_table)
    need(q_rope.shape[:2] == q_latent.shape[:2], "mla_decode: q_rope has other rows than q_latent")
    whole = q_latent.is_contiguous() and q_rope.is_contiguous()
    need(whole, "mla_decode: q_latent and q_rope have to be contiguous")
    rows = (contexts.shape[0], block_table.shape[0])
    need(rows == (batch, batch), f"mla_decode: {rows} contexts and table rows for {batch} queries")
    out = torch.empty_like(q_latent) if out is None else out
    config = config or choose(heads, capability_of(q_latent.device))[0]
    if splits is None:
        longest = block_table.shape[1] * cache.shape[1]
        blocks = triton.cdiv(heads, config.block_h) * config.latent_parts
        splits = choose_splits(batch, blocks, longest, multiprocessors(q_latent.device))
    need(1 <= splits <= MAX_SPLITS, f"mla_decode: {splits} splits, not 1..{MAX_SPLITS}")
    if batch:
        given = (q_latent, q_rope, cache, block_table, contexts)
        for launch in plan_mla_decode(*given, scale, splits, out, config, upcast):
            launch.run()
    return out


def capability_of(device: torch.device) -> int:
    """Compute capability times ten; 0 where there is no GPU."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor


HEADS = {"DeepSeek-V2-Lite": 16, "DeepSeek-V3": 128}
"""Heads of the models compiled for; both have latents of 512 and rotary keys of 64."""


def compile_cases() -> list[CompileCase]:
    """Every configuration on every target whose `choose` may name it, and the merge."""
    cases = [case for config in CONFIGS for case in _cases(config)]
    return [*cases, CompileCase(_launches(HALF, "DeepSeek-V3", MAX_SPLITS)[1], "latent=512")]


def _cases(config: DecodeConfig) -> list[CompileCase]:
    model = "DeepSeek-V2-Lite" if config in SMALL else "DeepSeek-V3"
    first = 100 if config == TENSOR_MEMORY else 90 if config in WIDE else 80
    matrix = "native" if config.block_h >= 64 else "any"
    return [
        CompileCase(_launches(config, model, splits)[0], f"{model} splits={splits}", matrix, first)
        for splits in (1, 8)
    ]


def _launches(config: DecodeConfig, model: str, splits: int) -> list[Launch]:
    q_latent, q_rope = meta(64, HEADS[model], 512), meta(64, HEADS[model], 64)
    numbers = meta(64, 128, dtype=torch.int32)
    given = (q_latent, q_rope, meta(1024, 64, 576), numbers, numbers[:, 0])
    return plan_mla_decode(*given, 192**-0.5, splits, q_latent, config)
