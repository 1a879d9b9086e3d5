"""Attention of one new token per sequence over its paged context, the context split over programs.

One program takes all query heads of one KV head, so that each key is read once and a tensor core
can multiply, and one part of the context. Parts are merged by a second kernel, each weighted by its
sum of exponentials. A sequence's own context is what is split, so a long one among short ones is
spread over as many programs as any.
Sources: Flash-Decoding (Dao et al., 2023), PagedAttention (Kwon et al., SOSP 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.attention_loop import LOG2_E, attend, check_cache
from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need


@dataclass(frozen=True)
class DecodeConfig(Config):
    """Keys per step; the rows of a tile are the heads that share a KV head, at least 16."""

    block_n: int


CONFIGS = (DecodeConfig(4, 5, 64), DecodeConfig(4, 3, 128), DecodeConfig(4, 7, 32))
"""Keys are found through the block table, whose load takes stages of its own: with s stages
(s - 1) / 2 tiles of keys and values are on their way while one is used."""
MERGE = Config(4, 1)
"""The kernel that merges parts has no block sizes to choose."""
MAX_SPLITS = 64
"""Parts that the merging kernel takes: 64 of 128 float32 numbers are 64 registers a thread."""
MIN_SPLIT_TOKENS = 256
"""A part shorter than this costs more to merge than it saves."""
PROGRAMS_PER_SM = 4
"""Enough to hide latency and to even out unequal contexts."""


def choose(max_context: int) -> tuple[DecodeConfig, ...]:
    """Candidates for the longest context, the likeliest best first."""
    return CONFIGS if max_context > 64 else CONFIGS[:1]


def choose_splits(batch: int, kv_heads: int, max_context: int, sms: int) -> int:
    """Parts of each context: a power of two that gives each multiprocessor about four programs.

    Args:
        batch: Sequences.
        kv_heads: Per GPU.
        max_context: Tokens.
        sms: Multiprocessors of the GPU.
    """
    wanted = triton.cdiv(PROGRAMS_PER_SM * sms, max(batch * kv_heads, 1))
    useful = max(1, max_context // MIN_SPLIT_TOKENS)
    return min(MAX_SPLITS, triton.next_power_of_2(min(wanted, useful)))


@triton.jit(do_not_specialize=["table_stride"])
def _decode_attention_kernel(
    q, k_cache, v_cache, block_table, contexts, out, weights, scale, q_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_TOKENS: tl.constexpr, SPLIT: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    kv_head, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    sequence = tl.program_id(2).to(tl.int64)
    context = tl.load(contexts + sequence)
    part_tokens = tl.cdiv(tl.cdiv(context, parts), BLOCK_N) * BLOCK_N
    first = part * part_tokens
    last = tl.minimum(first + part_tokens, context)

    rows = tl.arange(0, BLOCK_H)
    places = tl.arange(0, BLOCK_D)
    kept = (rows < GROUP)[:, None] & (places < HEAD_DIM)[None, :]
    heads = kv_head * GROUP + rows
    q_at = q + sequence * q_stride + heads[:, None] * HEAD_DIM + places[None, :]
    own = tl.load(q_at, mask=kept, other=0.0)
    if UPCAST:
        own = own.to(tl.float32)
    offset = kv_head * HEAD_DIM
    table = block_table + sequence * table_stride
    largest = tl.full((BLOCK_H,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_H,), dtype=tl.float32)
    total = tl.zeros((BLOCK_H, BLOCK_D), dtype=tl.float32)
    full = first + tl.maximum(last - first, 0) // BLOCK_N * BLOCK_N
    total, largest, weight = attend(
        total, largest, weight, own, k_cache + offset, v_cache + offset, table, first, full,
        context, rows, scale, KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS,
        False, False, UPCAST,
    )  # fmt: skip
    total, largest, weight = attend(
        total, largest, weight, own, k_cache + offset, v_cache + offset, table, full, last,
        context, rows, scale, KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS,
        False, True, UPCAST,
    )  # fmt: skip
    weight = tl.where(weight == 0.0, 1.0, weight)  # no keys: total is 0 and largest is -inf
    result = total / weight[:, None]
    row = sequence * KV_HEADS * GROUP + heads
    if SPLIT:
        row = row * parts + part
        tl.store(weights + row, largest + tl.log2(weight), mask=rows < GROUP)
    at = out + row[:, None] * HEAD_DIM + places[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["parts"])
def merge_parts_kernel(
    partial, weights, out, parts,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Add up the parts of a row, each by its share of the sum of exponentials."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK_S)
    places = tl.arange(0, BLOCK_D)
    logs = tl.load(weights + row * parts + part, mask=part < parts, other=float("-inf"))
    largest = tl.max(logs, axis=0)
    share = tl.exp2(logs - tl.where(largest == float("-inf"), 0.0, largest))
    kept = (share > 0.0)[:, None] & (places < HEAD_DIM)[None, :]
    at = partial + (row * parts + part)[:, None] * HEAD_DIM + places[None, :]
    numbers = tl.load(at, mask=kept, other=0.0)
    weight = tl.sum(share, axis=0)
    merged = tl.sum(numbers * share[:, None], axis=0) / tl.where(weight == 0.0, 1.0, weight)
    at = out + row * HEAD_DIM + places
    tl.store(at, merged.to(out.dtype.element_ty), mask=places < HEAD_DIM)


def plan_decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
    splits: int,
    out: torch.Tensor,
    config: DecodeConfig,
    upcast: bool = False,
) -> list[Launch]:
    """Launches of `decode_attention`: the attention, and with more than one part their merge."""
    (batch, heads, head_dim), (_, block_tokens, kv_heads, _) = q.shape, k_cache.shape
    block_d = max(16, triton.next_power_of_2(head_dim))
    split = splits > 1
    partial = out.new_empty((batch, heads, splits, head_dim), dtype=torch.float32) if split else out
    weights = out.new_empty((batch, heads, splits), dtype=torch.float32) if split else None
    arguments: dict[str, Any] = {
        "q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table,
        "contexts": contexts, "out": partial, "weights": weights, "scale": scale * LOG2_E,
        "q_stride": q.stride(0), "table_stride": block_table.stride(0), "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads, "HEAD_DIM": head_dim, "BLOCK_D": block_d,
        "BLOCK_H": max(16, triton.next_power_of_2(heads // kv_heads)),
        "BLOCK_TOKENS": block_tokens, "SPLIT": split, "UPCAST": upcast,
    }  # fmt: skip
    launches = [Launch(_decode_attention_kernel, (kv_heads, splits, batch), arguments, config)]
    if weights is not None:
        launches.append(plan_merge(partial, weights, out, splits, block_d, MERGE))
    return launches


def plan_merge(
    partial: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    splits: int,
    block_d: int,
    config: Config,
) -> Launch:
    """The launch that merges the parts of each row of `out`, `(batch, heads, width)`."""
    batch, heads, width = out.shape
    merging: dict[str, Any] = {
        "partial": partial, "weights": weights, "out": out, "parts": splits,
        "HEAD_DIM": width, "BLOCK_D": block_d, "BLOCK_S": triton.next_power_of_2(splits),
    }  # fmt: skip
    return Launch(merge_parts_kernel, (batch * heads,), merging, config)


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
    splits: int | None = None,
    out: torch.Tensor | None = None,
    config: DecodeConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """Attention of one token per sequence over its whole context, its own key included.

    Args:
        q: `(batch, heads, head_dim)`, a token's heads contiguous.
        k_cache: `(blocks, block_tokens, kv_heads, head_dim)`, contiguous.
        v_cache: Likewise.
        block_table: `(batch, max_blocks)` int32, pages of each sequence.
        contexts: `(batch,)` int32, tokens of each sequence; 0 (a padding row) gives zeros.
        scale: Of the scores, usually head_dim ** -0.5.
        splits: Parts of each context; by default `choose_splits` for the longest context that the
            table can hold (contexts are on the GPU and are not waited for).
        out: `(batch, heads, head_dim)`, contiguous; by default a new tensor of the type of q.
        config: One of `choose(max_context)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out
    """
    check_cache("decode_attention", q, k_cache, v_cache, block_table)
    rows = contexts.shape[0]
    need(rows == q.shape[0], f"decode_attention: {rows} contexts for {q.shape[0]} rows of q")
    out = q.new_empty(q.shape) if out is None else out
    max_context = block_table.shape[1] * k_cache.shape[1]
    if splits is None:
        splits = choose_splits(q.shape[0], k_cache.shape[2], max_context, multiprocessors(q.device))
    need(1 <= splits <= MAX_SPLITS, f"decode_attention: {splits} splits, not 1..{MAX_SPLITS}")
    chosen = config or choose(max_context)[0]
    if rows:
        for launch in plan_decode_attention(
            q, k_cache, v_cache, block_table, contexts, scale, splits, out, chosen, upcast
        ):
            launch.run()
    return out


def multiprocessors(device: torch.device) -> int:
    """Of a GPU; 1 where there is none."""
    if device.type != "cuda":
        return 1  # the interpreter runs one program at a time
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def compile_cases() -> list[CompileCase]:
    """Every configuration for heads of 128 (four share one KV head); one unsplit; one for 64.

    Tiles have 16 rows, fewer than wgmma and tcgen05 take, and memory sets the pace: mma.sync does.
    """
    grouped, single = (32, 8, 128), (32, 32, 64)
    cases = [_cases(config, *grouped, MAX_SPLITS)[0] for config in CONFIGS]
    cases += _cases(CONFIGS[0], *grouped, 1) + _cases(CONFIGS[0], *single, MAX_SPLITS)
    return [*cases, _cases(CONFIGS[0], *grouped, MAX_SPLITS)[1]]


def _cases(
    config: DecodeConfig, heads: int, kv_heads: int, head_dim: int, splits: int
) -> list[CompileCase]:
    q, cache = meta(64, heads, head_dim), meta(1024, 16, kv_heads, head_dim)
    numbers = meta(64, 512, dtype=torch.int32)
    launches = plan_decode_attention(
        q, cache, cache, numbers, numbers[:, 0], head_dim**-0.5, splits, q, config
    )
    about = f"bf16 heads={heads}/{kv_heads} head_dim={head_dim} splits={splits}"
    kinds = ("any", "")
    return [CompileCase(la, about, kind) for la, kind in zip(launches, kinds, strict=False)]
