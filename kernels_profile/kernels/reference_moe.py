"""What the mixture-of-experts kernels compute, in plain torch and any float type."""

from __future__ import annotations

import torch

from kernels_profile.kernels.reference import silu_mul


def route(
    logits: torch.Tensor, top_k: int, renormalise: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids `(tokens, top_k)` of the largest logits, the lowest of equal ones, and their weights."""
    ids = logits.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = logits.softmax(dim=-1).gather(1, ids)
    return ids, weights / weights.sum(dim=-1, keepdim=True) if renormalise else weights


def sort_by_expert(ids: torch.Tensor, experts: int, block_m: int) -> list[list[int]]:
    """For each tile of `block_m`: its expert, then its assignments, in order."""
    flat = ids.flatten().tolist()
    runs = [[i for i, owner in enumerate(flat) if owner == expert] for expert in range(experts)]
    return [
        [expert, *run[first : first + block_m]]
        for expert, run in enumerate(runs)
        for first in range(0, len(run), block_m)
    ]


def grouped_linear(x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Each assignment's row of x times the weights `(experts, n, k)` of its expert."""
    fan_out = ids.numel() // x.shape[0]
    rows = x.repeat_interleave(fan_out, dim=0)
    return torch.stack([w[e] @ row for e, row in zip(ids.flatten().tolist(), rows, strict=True)])


def weighted_sum(y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`(tokens * top_k, n)` to `(tokens, n)`."""
    return (y.unflatten(0, weights.shape) * weights[:, :, None]).sum(dim=1)


def expert_block(
    x: torch.Tensor,
    router_w: torch.Tensor,
    gate_up_w: torch.Tensor,
    down_w: torch.Tensor,
    top_k: int,
    renormalise: bool = True,
) -> torch.Tensor:
    """Every token through each of its experts, weighted."""
    ids, weights = route(x @ router_w.T, top_k, renormalise)
    inner = silu_mul(grouped_linear(x, gate_up_w, ids))
    return weighted_sum(grouped_linear(inner, down_w, ids), weights)
