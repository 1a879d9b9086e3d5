"""Causal attention of a chunk of prompt over paged history and itself, grouped heads (GQA).

One program takes `block_m` tokens of one head of one sequence and walks over its keys, first those
that all its rows see, unmasked, then the diagonal. Heads are the fastest axis of the grid, so that
heads that share keys run together and find them in the L2 cache; the longest tiles start first.
Sources: FlashAttention-2 (Dao, 2023), PagedAttention (Kwon et al., SOSP 2023).
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
class PrefillConfig(Config):
    """Tokens of a chunk per program, and keys per step."""

    block_m: int
    block_n: int


CONFIGS = (
    PrefillConfig(8, 5, 128, 64),
    PrefillConfig(8, 2, 128, 64),
    PrefillConfig(4, 3, 64, 32),
)
"""As keys are found through the block table, five stages keep two tiles on their way, three keep
one, two keep one and wait for the table. Tiles of 128 by 128 would do on sm_90, but spill registers
on sm_80."""
SHORT_TOKENS = 64
"""Chunks up to this long would leave half of the larger tile empty."""


def choose(max_chunk: int) -> tuple[PrefillConfig, ...]:
    """Candidates for the longest chunk of a batch, the likeliest best first."""
    return CONFIGS[2:] if max_chunk <= SHORT_TOKENS else CONFIGS


@triton.jit(do_not_specialize=["table_stride"])
def _prefill_attention_kernel(
    q, k_cache, v_cache, block_table, chunk_starts, contexts, out, scale, q_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(0), tl.program_id(2)
    chunk_start = tl.load(chunk_starts + sequence)
    chunk = tl.load(chunk_starts + sequence + 1) - chunk_start
    tile = tl.cdiv(chunk, BLOCK_M) - 1 - tl.program_id(1)
    if tile < 0:
        return
    context = tl.load(contexts + sequence)
    history = context - chunk
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    places = tl.arange(0, BLOCK_D)
    kept = (rows < chunk)[:, None] & (places < HEAD_DIM)[None, :]
    token = (chunk_start + rows).to(tl.int64)[:, None]
    own = tl.load(q + token * q_stride + head * HEAD_DIM + places[None, :], mask=kept, other=0.0)
    if UPCAST:
        own = own.to(tl.float32)

    offset = (head // GROUP) * HEAD_DIM
    table = block_table + sequence.to(tl.int64) * table_stride
    largest = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    weight = tl.zeros((BLOCK_M,), dtype=tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    all_see = (history + tile * BLOCK_M + 1) // BLOCK_N * BLOCK_N
    last = tl.minimum(context, history + (tile + 1) * BLOCK_M)
    total, largest, weight = attend(
        total, largest, weight, own, k_cache + offset, v_cache + offset, table, 0, all_see, context,
        history + rows, scale, KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, BLOCK_N, BLOCK_TOKENS,
        True, False, UPCAST,
    )  # fmt: skip
    total, largest, weight = attend(
        total, largest, weight, own, k_cache + offset, v_cache + offset, table, all_see, last,
        context, history + rows, scale, KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, BLOCK_N,
        BLOCK_TOKENS, True, True, UPCAST,
    )  # fmt: skip
    at = out + (token * KV_HEADS * GROUP + head) * HEAD_DIM + places[None, :]
    tl.store(at, (total / weight[:, None]).to(out.dtype.element_ty), mask=kept)


def plan_prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    chunk_starts: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
    out: torch.Tensor,
    max_chunk: int,
    config: PrefillConfig,
    upcast: bool = False,
) -> Launch:
    """The launch of `prefill_attention`."""
    (_, heads, head_dim), (_, block_tokens, kv_heads, _) = q.shape, k_cache.shape
    arguments: dict[str, Any] = {
        "q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table,
        "chunk_starts": chunk_starts, "contexts": contexts, "out": out, "scale": scale * LOG2_E,
        "q_stride": q.stride(0), "table_stride": block_table.stride(0), "KV_HEADS": kv_heads,
        "GROUP": heads // kv_heads, "HEAD_DIM": head_dim,
        "BLOCK_D": max(16, triton.next_power_of_2(head_dim)), "BLOCK_TOKENS": block_tokens,
        "UPCAST": upcast,
    }  # fmt: skip
    grid = (heads, triton.cdiv(max_chunk, config.block_m), contexts.shape[0])
    return Launch(_prefill_attention_kernel, grid, arguments, config)


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    chunk_starts: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
    max_chunk: int | None = None,
    out: torch.Tensor | None = None,
    config: PrefillConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """Causal attention of the chunks of a batch, whose keys and values are already in the cache.

    Args:
        q: `(tokens, heads, head_dim)`, the chunks one after the other; a token's heads contiguous.
        k_cache: `(blocks, block_tokens, kv_heads, head_dim)`, contiguous.
        v_cache: Likewise.
        block_table: `(batch, max_blocks)` int32, pages of each sequence.
        chunk_starts: `(batch + 1,)` int32, where each chunk begins in q, and the end. A chunk may
            be empty or one token.
        contexts: `(batch,)` int32, tokens of each sequence, its chunk included.
        scale: Of the scores, usually head_dim ** -0.5.
        max_chunk: Longest chunk, tokens; by default all tokens of q, which is safe but starts
            programs that find nothing to do.
        out: `(tokens, heads, head_dim)`, contiguous; by default a new tensor of the type of q.
        config: One of `choose(max_chunk)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out
    """
    check_cache("prefill_attention", q, k_cache, v_cache, block_table)
    batch = contexts.shape[0]
    starts = chunk_starts.shape[0]
    need(starts == batch + 1, f"prefill_attention: {starts} chunk starts for {batch} sequences")
    out = q.new_empty(q.shape) if out is None else out
    longest = q.shape[0] if max_chunk is None else max_chunk
    if longest and batch:
        plan_prefill_attention(
            q, k_cache, v_cache, block_table, chunk_starts, contexts, scale, out, longest,
            config or choose(longest)[0], upcast,
        ).run()  # fmt: skip
    return out


def compile_cases() -> list[CompileCase]:
    """Every configuration for heads of 128 (four share one KV head) and of 64."""
    return [_case(config, *heads) for config in CONFIGS for heads in ((32, 8, 128), (32, 32, 64))]


def _case(config: PrefillConfig, heads: int, kv_heads: int, head_dim: int) -> CompileCase:
    q, cache = meta(2048, heads, head_dim), meta(1024, 16, kv_heads, head_dim)
    numbers = meta(16, 512, dtype=torch.int32)
    launch = plan_prefill_attention(
        q, cache, cache, numbers, numbers[0], numbers[:, 0], head_dim**-0.5, q, 2048, config
    )
    return CompileCase(launch, f"bf16 heads={heads}/{kv_heads} head_dim={head_dim}", "native")
