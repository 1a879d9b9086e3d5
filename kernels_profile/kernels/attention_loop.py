"""The loop that prefill and decode attention share: online softmax over pages of keys and values.

Sources: online softmax with the rescaled accumulator of FlashAttention-2 (Dao, 2023, algorithm 1);
keys and values found through a table of blocks as in PagedAttention (Kwon et al., SOSP 2023).
Exponentials are of base 2: scores are multiplied by scale * log2(e).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.launch import need

LOG2_E = 1.4426950408889634


@triton.jit
def attend(
    total, largest, weight, q, k_head, v_head, table, first, last, context, positions, scale,
    token_stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Let rows of q see keys `first` to `last`.

    Args:
        total: `(rows, BLOCK_D)` weighted sum of values so far, float32.
        largest: `(rows,)` largest score so far, in base 2.
        weight: `(rows,)` sum of 2^(score - largest).
        q: `(rows, BLOCK_D)`.
        k_head: Pointer to this KV head of the first slot of the cache.
        v_head: Likewise.
        table: Pointer to this sequence's row of the block table.
        first: First key, a multiple of BLOCK_N from where the loop began.
        last: End of the keys.
        context: Tokens of the sequence: what lies behind is not read.
        positions: `(rows,)` place of each row in the sequence, used if CAUSAL.
        scale: Of the scores, times log2(e).
        token_stride: Numbers between two slots of the cache.
        HEAD_DIM: Numbers per head.
        BLOCK_D: HEAD_DIM rounded up to a power of two.
        BLOCK_N: Keys per step.
        BLOCK_TOKENS: Tokens per page.
        CAUSAL: Whether a row sees no key behind its own position.
        MASKED: Whether some of these keys are hidden from some rows or behind the context.
        UPCAST: Whether operands are converted to float32.
    """
    places = tl.arange(0, BLOCK_D)
    for start in range(first, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        inside = keys < context
        if MASKED:
            page = tl.load(table + keys // BLOCK_TOKENS, mask=inside, other=0).to(tl.int64)
        else:
            page = tl.load(table + keys // BLOCK_TOKENS).to(tl.int64)
        at = (page * BLOCK_TOKENS + keys % BLOCK_TOKENS) * token_stride
        k_at = k_head + at[None, :] + places[:, None]
        v_at = v_head + at[:, None] + places[None, :]
        if MASKED or HEAD_DIM != BLOCK_D:
            real = inside if MASKED else keys >= 0
            k = tl.load(k_at, mask=real[None, :] & (places < HEAD_DIM)[:, None], other=0.0)
            v = tl.load(v_at, mask=real[:, None] & (places < HEAD_DIM)[None, :], other=0.0)
        else:
            k, v = tl.load(k_at), tl.load(v_at)
        if UPCAST:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if MASKED:
            seen = inside[None, :]
            if CAUSAL:
                seen = seen & (keys[None, :] <= positions[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - larger)
        parts = tl.exp2(scores - larger[:, None])
        weight = weight * shrink + tl.sum(parts, axis=1)
        total = tl.dot(parts.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
        largest = larger
    return total, largest, weight


def check_cache(
    name: str, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, table: torch.Tensor
) -> None:
    """Raise a ProfileError if heads or layouts do not fit together."""
    heads, head_dim, kv_heads = q.shape[1], q.shape[2], k_cache.shape[2]
    need(k_cache.shape == v_cache.shape, f"{name}: the two caches differ in shape")
    need(k_cache.is_contiguous() and v_cache.is_contiguous(), f"{name}: caches not contiguous")
    need(k_cache.shape[3] == head_dim, f"{name}: q has heads of {head_dim}, the cache others")
    need(heads % kv_heads == 0, f"{name}: {heads} heads are no multiple of {kv_heads} KV heads")
    need(q.stride()[1:] == (head_dim, 1), f"{name}: a token's heads have to be contiguous")
    need(table.dtype == torch.int32 and table.stride(1) == 1, f"{name}: block table not int32 rows")
