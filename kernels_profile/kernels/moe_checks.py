"""What the mixture-of-experts kernels are held against their references on; see `dense_checks.py`.

Experts without a token, with one, and with one more than a tile; sizes that are no multiples of
tiles; NaN in the weights of experts that no token takes, and in rows of padding.
"""

from __future__ import annotations

from functools import partial

import torch

from kernels_profile.kernels import moe
from kernels_profile.kernels import reference_moe as reference
from kernels_profile.kernels.checking import Check, Pairs, Setting

ROUTES = ((1, 8, 2), (70, 8, 2), (70, 60, 6), (33, 128, 8), (5, 3, 3))
"""(tokens, experts, top_k)"""
TAKEN = {
    "one token": [[2, 0]],
    "one expert": [[1, 3]] * 19,
    "unequal": [[0, 5]] * 17 + [[0, 2]] * 3 + [[5, 0]] * 20,
}
"""Experts of each token, of 6: expert 4 never has one."""


def route_pairs(tokens: int, experts: int, top_k: int, renormalise: bool, at: Setting) -> Pairs:
    """Ids, weights, and every tile's expert and assignments; with equal logits in each row."""
    logits = at.normal(tokens, experts)
    logits[:, -1] = logits[:, 0]
    ours = moe.route(logits, top_k, 16, renormalise)
    ids, weights = reference.route(logits.double(), top_k, renormalise)
    tiles = reference.sort_by_expert(ids, experts, 16)
    pairs = [(ours.ids, ids), (ours.weights, weights)]
    found, expected = tiles_of(ours), [number for tile in tiles for number in tile]
    return [*pairs, (torch.tensor(found), torch.tensor(expected))]


def tiles_of(routing: moe.Routing) -> list[int]:
    """Expert and assignments of each tile, one after the other, as the layers read them."""
    numbers = []
    ends = (routing.offsets[:-1] + routing.totals).tolist()
    for tile, expert in enumerate(routing.tiles.tolist()):
        if expert >= 0:
            first = tile * routing.block_m
            last = min(first + routing.block_m, ends[expert])
            numbers += [expert, *routing.order[first:last].tolist()]
    return numbers


def routed(taken: str, block_m: int, at: Setting) -> moe.Routing:
    """A routing by logits that make each token take the experts of `TAKEN`."""
    chosen = torch.tensor(TAKEN[taken], device=at.device)
    logits = torch.zeros((len(chosen), 6), device=at.device)
    logits.scatter_(1, chosen, torch.tensor([3.0, 2.0], device=at.device).expand(chosen.shape))
    return moe.route(logits, 2, block_m)


def grouped_pairs(
    taken: str, n: int, k: int, each: bool, config: moe.GroupedConfig, at: Setting
) -> Pairs:
    """Rows of x of each token, or of each assignment; weights of idle experts are NaN."""
    routing = routed(taken, config.block_m, at)
    routing.order[tile_padding(routing)] = 0  # whose row would be overwritten
    x = at.normal(routing.ids.numel() if each else routing.ids.shape[0], k)
    w = at.normal(6, n, k)
    w[routing.totals == 0] = float("nan")
    out = at.unwritten(routing.ids.numel(), n)
    ours = moe.grouped_linear(x, w, routing, out, config, at.upcast)
    return [(ours, reference.grouped_linear(x.double(), w.double(), routing.ids))]


def tile_padding(routing: moe.Routing) -> torch.Tensor:
    """Which places of `order` hold no assignment."""
    place = torch.arange(routing.order.shape[0], device=routing.order.device)
    ends = routing.offsets[:-1] + routing.totals
    used = (place[:, None] >= routing.offsets[:-1]) & (place[:, None] < ends)
    return ~used.any(dim=1)


def block_pairs(
    tokens: int, experts: int, top_k: int, renormalise: bool, config: moe.GroupedConfig, at: Setting
) -> Pairs:
    """Router, experts and sum, small weights so that activations stay near 1."""
    hidden, inner = 40, 24
    router, down = at.normal(experts, hidden), at.normal(experts, hidden, inner, scale=0.2)
    given = (
        at.normal(tokens, hidden),
        router,
        at.normal(experts, 2 * inner, hidden, scale=0.2),
        down,
    )
    ours = moe.expert_block(
        *given, top_k, renormalise, at.unwritten(tokens, hidden), config, at.upcast
    )
    wide = [x.double() for x in given]
    return [(ours, reference.expert_block(wide[0], wide[1], wide[2], wide[3], top_k, renormalise))]


def sum_pairs(at: Setting) -> Pairs:
    """More outputs than one program has."""
    y, weights = at.normal(9, 1100), at.normal(3, 3).float()
    return [
        (
            moe.weighted_sum(y, weights, at.unwritten(3, 1100)),
            reference.weighted_sum(y.double(), weights.double()),
        )
    ]


def moe_checks() -> list[Check]:
    """All of them; every configuration of the experts' layers is run."""
    routes = [
        Check(f"route {shape} renormalise={r}", partial(route_pairs, *shape, r))
        for shape in ROUTES
        for r in (True, False)
    ]
    layers = [
        Check(f"grouped_linear {taken} {config}", partial(grouped_pairs, taken, n, k, each, config))
        for config in moe.CONFIGS
        for taken, n, k, each in (
            ("one token", 5, 70, False),
            ("one expert", 70, 64, True),
            ("unequal", 130, 129, False),
        )
    ]
    blocks = [
        Check(f"expert_block {t} {e} {k} {c}", partial(block_pairs, t, e, k, r, c))
        for t, e, k, r, c in (
            (1, 8, 2, True, moe.FEW[0]),
            (21, 8, 2, True, moe.SOME[1]),
            (9, 20, 6, False, moe.FEW[1]),
        )
    ]
    return [*routes, *layers, *blocks, Check("weighted_sum", sum_pairs)]
