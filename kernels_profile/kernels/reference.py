"""What the dense kernels compute, in plain torch and any float type (float64 in the checks).

Signatures are the kernels'; nothing is written in place: what a kernel changes is returned.
"""

from __future__ import annotations

import torch


def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """`(m, k)` and `(n, k)` to `(m, n)`: x w^T."""
    return x @ w.T


def linear_fp8(
    x8: torch.Tensor, w8: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor
) -> torch.Tensor:
    """(x8 w8^T) x_scale w_scale, with one scale per row of each operand or one for all."""
    product = x8.to(x_scale.dtype) @ w8.to(x_scale.dtype).T
    return product * x_scale.reshape(-1, 1) * w_scale.reshape(1, -1)


def rms_norm_residual(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum s of x and the residual, `(tokens, hidden)`: (s / rms(s) * weight, s)."""
    total = x if residual is None else x + residual
    scale = torch.rsqrt((total * total).mean(dim=-1, keepdim=True) + eps)
    return total * scale * weight, total


def qk_norm(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMS norm of each head of q `(tokens, heads, head_dim)` and of k, as Qwen3 has it."""
    return (
        rms_norm_residual(q, None, q_weight, eps)[0],
        rms_norm_residual(k, None, k_weight, eps)[0],
    )


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `(tokens, heads, head_dim)` by `(tokens, head_dim / 2)` angles.

    Number i of a head is paired with i + head_dim / 2 (GPT-NeoX; Llama in Hugging Face's order).
    """
    first, second = x.chunk(2, dim=-1)
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat((first * c - second * s, second * c + first * s), dim=-1)


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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotated q, and copies of the caches with rotated k and v in their slots (unless negative)."""
    c, s = cos[positions], sin[positions]
    k_new, v_new = k_cache.clone(), v_cache.clone()
    real = slots >= 0
    k_new.flatten(0, 1)[slots[real]] = rotate(k, c, s)[real]
    v_new.flatten(0, 1)[slots[real]] = v[real]
    return rotate(q, c, s), k_new, v_new


def gather(cache: torch.Tensor, block_row: torch.Tensor, context: int) -> torch.Tensor:
    """The first `context` tokens of one sequence, `(context, kv_heads, head_dim)`."""
    blocks = -(-context // cache.shape[1])
    return cache[block_row[:blocks].long()].flatten(0, 1)[:context]


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, first: int
) -> torch.Tensor:
    """Causal attention of `(tokens, heads, head_dim)` at positions `first`, `first + 1`, ... over
    `(context, kv_heads, head_dim)`; head h reads KV head h // (heads / kv_heads)."""
    group = q.shape[1] // k.shape[1]
    k, v = (cache.repeat_interleave(group, dim=1) for cache in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    at = torch.arange(first, first + q.shape[0], device=q.device)
    hidden = torch.arange(k.shape[0], device=q.device)[None, :] > at[:, None]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    chunk_starts: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Each chunk of q attends causally to its sequence's history and to itself."""
    out = torch.zeros_like(q)
    starts = chunk_starts.tolist()
    for row, context in enumerate(contexts.tolist()):
        first, last = starts[row], starts[row + 1]
        k, v = (gather(cache, block_table[row], context) for cache in (k_cache, v_cache))
        if last > first:
            out[first:last] = attention(q[first:last], k, v, scale, context - (last - first))
    return out


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Each row of q `(batch, heads, head_dim)` attends to its whole context; none gives zeros."""
    out = torch.zeros_like(q)
    for row, context in enumerate(contexts.tolist()):
        k, v = (gather(cache, block_table[row], context) for cache in (k_cache, v_cache))
        if context:
            out[row] = attention(q[row : row + 1], k, v, scale, context - 1)[0]
    return out


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`(tokens, 2 inner)`, gate then up, to `(tokens, inner)`: silu(gate) * up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def lm_head_greedy(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Ids of the largest logits, `(n,)` int64; the lowest id of equal ones."""
    return greedy(hidden @ weight.T)


def greedy(logits: torch.Tensor) -> torch.Tensor:
    """Id of the largest of each row; the lowest of equal ones (torch.argmax promises none)."""
    best = logits == logits.max(dim=-1, keepdim=True).values
    return best.int().argmax(dim=-1)
