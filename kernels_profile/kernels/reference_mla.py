"""What the MLA kernels compute, in plain torch and any float type; nothing is written in place."""

from __future__ import annotations

import torch

from kernels_profile.kernels.reference import gather, rms_norm_residual


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `(..., rope_dim)` whose numbers 2 i and 2 i + 1 are a pair."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated q_rope, and a copy of the cache with the tokens' rows (unless a slot is negative)."""
    c, s = cos[positions], sin[positions]
    latent, rope = compressed.split((norm_weight.shape[0], q_rope.shape[2]), dim=1)
    latent, _ = rms_norm_residual(latent, None, norm_weight, eps)
    written, real = cache.clone(), slots >= 0
    rows = torch.cat((latent, rotate_pairs(rope, c, s)), dim=1)
    written.flatten(0, 1)[slots[real]] = rows[real]
    return rotate_pairs(q_rope, c[:, None, :], s[:, None, :]), written


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    contexts: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Each query attends to all rows of its sequence, whose latents are values too; none: zeros."""
    out = torch.zeros_like(q_latent)
    for sequence, context in enumerate(contexts.tolist()):
        rows = gather(cache, block_table[sequence], context)
        query = torch.cat((q_latent[sequence], q_rope[sequence]), dim=-1)
        weights = (query @ rows.T * scale).softmax(dim=-1)
        if context:
            out[sequence] = weights @ rows[:, : q_latent.shape[2]]
    return out


def mla_prefill(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    chunk_starts: torch.Tensor,
    contexts: torch.Tensor,
    up_w: torch.Tensor,
    scale: float,
    nope_dim: int,
) -> torch.Tensor:
    """Each chunk attends causally to its sequence's keys and values, expanded from the cache."""
    heads, starts = q.shape[1], chunk_starts.tolist()
    outs = [q.new_zeros((0, heads, up_w.shape[0] // heads - nope_dim))]
    for sequence, context in enumerate(contexts.tolist()):
        chunk = q[starts[sequence] : starts[sequence + 1]]
        latent, rope = gather(cache, block_table[sequence], context).tensor_split(
            (up_w.shape[1],), 1
        )
        key, value = (latent @ up_w.T).view(context, heads, -1).tensor_split((nope_dim,), 2)
        outs.append(attention(chunk, key, rope, value, scale))
    return torch.cat(outs)


def attention(
    q: torch.Tensor, key: torch.Tensor, rope: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """The last tokens of a sequence over all its keys `(context, heads, nope_dim)` and ropes."""
    context, heads, _ = key.shape
    whole = torch.cat((key, rope[:, None, :].expand(-1, heads, -1)), dim=-1)
    scores = torch.einsum("qhd,khd->hqk", q, whole) * scale
    at = torch.arange(context - q.shape[0], context, device=q.device)
    hidden = torch.arange(context, device=q.device)[None, :] > at[:, None]
    return torch.einsum(
        "hqk,khv->qhv", scores.masked_fill(hidden, float("-inf")).softmax(-1), value
    )
