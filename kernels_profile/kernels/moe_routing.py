"""Routing of a mixture of experts: top-k of a softmax, then tokens sorted by expert.

An *assignment* is a token with one of its experts, numbered token * top_k + place. The experts'
linear layers work on tiles of `block_m` assignments of one expert each, so every expert's run in
the sorted order is padded up to a multiple of `block_m`, as MegaBlocks (Gale et al., MLSys 2023,
section 4) and the fused experts of vLLM do. Two launches, no atomics: the order is the same every
time (by expert, then by assignment), and nothing waits for the host, so a CUDA graph can hold it.
Their number of tiles is therefore the most that any routing can need; tiles beyond the last name
expert -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, need


@dataclass(frozen=True)
class RouteConfig(Config):
    """Tokens per program, whose assignments are also counted and placed together."""

    block_t: int


FEW_EXPERTS = RouteConfig(4, 1, 64)
MANY_EXPERTS = RouteConfig(8, 1, 32)
"""For more than 32 experts: rows of logits are kept in registers."""
CONFIGS = (FEW_EXPERTS, MANY_EXPERTS)
CHUNKS = tl.constexpr(32)
"""Rows of counts, tiles or assignments that a step of a loop looks at."""


def choose(experts: int) -> tuple[RouteConfig, ...]:
    """Candidates for a number of experts."""
    return (FEW_EXPERTS,) if experts <= 32 else (MANY_EXPERTS,)


@dataclass(frozen=True)
class Routing:
    """Which experts each token takes, and the order in which the experts' tiles take tokens.

    Args:
        ids: `(tokens, top_k)` int32, experts of each token, the best first.
        weights: `(tokens, top_k)` float32.
        order: `(max_tiles * block_m,)` int32, assignments by expert; undefined in the padding.
        offsets: `(experts + 1,)` int32, where each expert's run begins in `order`, a multiple of
            block_m; the last is the end.
        totals: `(experts,)` int32, assignments of each expert.
        tiles: `(max_tiles,)` int32, expert of each tile, -1 after the last one.
        block_m: Assignments per tile.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    order: torch.Tensor
    offsets: torch.Tensor
    totals: torch.Tensor
    tiles: torch.Tensor
    block_m: int

    @property
    def top_k(self) -> int:
        """Experts per token."""
        return self.ids.shape[1]

    @property
    def experts(self) -> int:
        """Experts held here."""
        return self.totals.shape[0]


def empty_routing(tokens: int, experts: int, top_k: int, block_m: int, device: str) -> Routing:
    """Memory for a routing."""
    tiles = most_tiles(tokens * top_k, experts, block_m)

    def ints(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    weights = torch.empty((tokens, top_k), dtype=torch.float32, device=device)
    places = (ints(tiles * block_m), ints(experts + 1), ints(experts), ints(tiles))
    return Routing(ints(tokens, top_k), weights, *places, block_m)


def most_tiles(assignments: int, experts: int, block_m: int) -> int:
    """Most tiles that any routing of so many assignments needs."""
    return (assignments + min(experts, assignments) * (block_m - 1)) // block_m


@triton.jit(do_not_specialize=["tokens"])
def _route_kernel(
    logits, ids, weights, counts, tokens, experts,
    TOP_K: tl.constexpr, PAD_K: tl.constexpr, RENORMALISE: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    columns = tl.arange(0, BLOCK_E)
    places = tl.arange(0, PAD_K)
    real = (rows < tokens)[:, None] & (columns < experts)[None, :]
    at = rows.to(tl.int64)[:, None] * experts + columns[None, :]
    left = tl.load(logits + at, mask=real, other=0.0).to(tl.float32)
    left = tl.where((columns < experts)[None, :], left, float("-inf"))
    highest = tl.max(left, 1)
    total = tl.sum(tl.exp(left - highest[:, None]), 1)
    expert = tl.zeros((BLOCK_T, PAD_K), dtype=tl.int32)
    share = tl.zeros((BLOCK_T, PAD_K), dtype=tl.float32)
    taken = tl.zeros((BLOCK_T, BLOCK_E), dtype=tl.int32)
    for place in range(TOP_K):
        best = tl.argmax(left, 1)  # the lowest of equal ones
        value = tl.exp(tl.max(left, 1) - highest)
        here = (places == place)[None, :]
        expert = tl.where(here, best[:, None], expert)
        share = tl.where(here, value[:, None], share)
        hit = columns[None, :] == best[:, None]
        taken = tl.where(hit, 1, taken)
        left = tl.where(hit, float("-inf"), left)
    if RENORMALISE:
        total = tl.sum(share, 1)
    share = share / total[:, None]
    target = rows.to(tl.int64)[:, None] * TOP_K + places[None, :]
    kept = (rows < tokens)[:, None] & (places < TOP_K)[None, :]
    tl.store(ids + target, expert, mask=kept)
    tl.store(weights + target, share, mask=kept)
    count = tl.sum(tl.where(real, taken, 0), 0)
    tl.store(counts + tl.program_id(0) * experts + columns, count, mask=columns < experts)


@triton.jit(do_not_specialize=["tokens", "chunks", "max_tiles"])
def _place_kernel(
    ids, counts, order, offsets, totals, tiles, tokens, experts, chunks, max_tiles,
    TOP_K: tl.constexpr, TILE: tl.constexpr, BLOCK_A: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    columns = tl.arange(0, BLOCK_E)
    some = tl.arange(0, CHUNKS)
    total = tl.zeros((BLOCK_E,), dtype=tl.int32)
    before = tl.zeros((BLOCK_E,), dtype=tl.int32)  # assignments of earlier chunks
    for first in range(0, chunks, CHUNKS):
        index = first + some
        real = (index < chunks)[:, None] & (columns < experts)[None, :]
        count = tl.load(counts + index[:, None] * experts + columns[None, :], mask=real, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where((index < chunk)[:, None], count, 0), 0)
    padded = tl.cdiv(total, TILE) * TILE
    end = tl.cumsum(padded, 0)
    if chunk == 0:
        tl.store(totals + columns, total, mask=columns < experts)
        tl.store(offsets + columns, end - padded, mask=columns < experts)
        tl.store(offsets + experts, tl.sum(padded, 0))
    for first in range(chunk * CHUNKS, max_tiles, chunks * CHUNKS):
        tile = first + some
        owner = tl.sum((end[None, :] <= (tile * TILE)[:, None]).to(tl.int32), 1)
        owner = tl.where(owner < experts, owner, -1)
        tl.store(tiles + tile, owner, mask=tile < max_tiles)
    lanes = tl.arange(0, BLOCK_A)
    begin = chunk * BLOCK_T * TOP_K
    size = tl.minimum(BLOCK_T * TOP_K, tokens * TOP_K - begin)
    expert = tl.load(ids + begin + lanes, mask=lanes < size, other=0)
    rank = tl.zeros((BLOCK_A,), dtype=tl.int32)  # earlier ones of this chunk with the same expert
    for first in range(0, BLOCK_A, CHUNKS):
        other = first + some
        theirs = tl.load(ids + begin + other, mask=other < size, other=-1)
        same = (theirs[None, :] == expert[:, None]) & (other[None, :] < lanes[:, None])
        rank += tl.sum(same.to(tl.int32), 1)
    place = tl.gather(end - padded + before, expert, 0) + rank
    tl.store(order + place, begin + lanes, mask=lanes < size)


def plan_route(
    logits: torch.Tensor, routing: Routing, config: RouteConfig, renormalise: bool = True
) -> list[Launch]:
    """Launches that fill a routing: the choice with counts per chunk of tokens, then the order.

    Args:
        logits: `(tokens, experts)`, contiguous.
        routing: Of `empty_routing`.
        config: Tokens per program.
        renormalise: See `route`.
    """
    tokens, experts = logits.shape
    chunks = triton.cdiv(tokens, config.block_t)
    counts = routing.ids.new_empty((chunks, experts))
    top_k = routing.top_k
    both = {
        "ids": routing.ids, "counts": counts, "tokens": tokens, "experts": experts,
        "TOP_K": top_k, "BLOCK_E": triton.next_power_of_2(experts),
    }  # fmt: skip
    choice = {
        "logits": logits, "weights": routing.weights,
        "PAD_K": triton.next_power_of_2(top_k), "RENORMALISE": renormalise,
    }  # fmt: skip
    places = {
        "order": routing.order, "offsets": routing.offsets, "totals": routing.totals,
        "tiles": routing.tiles, "chunks": chunks, "max_tiles": routing.tiles.shape[0],
        "TILE": routing.block_m,
        "BLOCK_A": max(32, triton.next_power_of_2(config.block_t * top_k)),
    }  # fmt: skip
    return [
        Launch(_route_kernel, (chunks,), both | choice, config),
        Launch(_place_kernel, (chunks,), both | places, config),
    ]


def route(
    logits: torch.Tensor,
    top_k: int,
    block_m: int = 64,
    renormalise: bool = True,
    config: RouteConfig | None = None,
) -> Routing:
    """Choose each token's experts and sort the tokens by expert.

    Args:
        logits: `(tokens, experts)`, any float type; computed in float32.
        top_k: Experts per token; the lowest number of equal ones.
        block_m: Assignments per tile of the experts' layers.
        renormalise: Whether the weights of a token add up to 1, which is a softmax over the chosen
            logits (Jiang et al. 2024, "Mixtral of Experts", section 2.1; `norm_topk_prob: true`
            of Qwen3-30B-A3B). Without, they are the softmax over all experts (DeepSeek-V2-Lite,
            whose `routed_scaling_factor` is 1). DeepSeek-V3's sigmoid scores, bias and groups of
            experts are not modelled.
        config: One of `choose(experts)`.

    Raises:
        ProfileError: top_k does not fit the experts, or logits are not contiguous.
    """
    tokens, experts = logits.shape
    need(0 < top_k <= experts, f"route: top_k is {top_k}, with {experts} experts")
    need(logits.is_contiguous(), "route: logits have to be contiguous")
    routing = empty_routing(tokens, experts, top_k, block_m, str(logits.device))
    if not tokens:
        routing.offsets.zero_()
        routing.totals.zero_()
        return routing
    for launch in plan_route(logits, routing, config or choose(experts)[0], renormalise):
        launch.run()
    return routing


MODELS = {"mixtral": (8, 2, True), "qwen3": (128, 8, True), "v2-lite": (64, 6, False)}
"""Experts, experts per token and renormalisation of the models compiled for."""


def compile_cases() -> list[CompileCase]:
    """Routing of Mixtral-8x7B, Qwen3-30B-A3B and DeepSeek-V2-Lite, and of 256 experts."""
    cases = []
    for name, (experts, top_k, renormalise) in (MODELS | {"256": (256, 8, True)}).items():
        logits = torch.empty((4096, experts), dtype=torch.float32, device="meta")
        routing = empty_routing(4096, experts, top_k, 64, "meta")
        for config in choose(experts):
            launches = plan_route(logits, routing, config, renormalise)
            cases += [CompileCase(launch, f"experts of {name}") for launch in launches]
    return cases
