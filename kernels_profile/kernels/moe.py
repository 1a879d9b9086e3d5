"""Mixture of experts: linear layers of the experts, and the block around them.

`grouped_linear` multiplies each tile of the sorted assignments (`moe_routing.py`) by the weights of
its expert. Rows are gathered and scattered by the kernel, so tokens are never copied into the
sorted order. The matrix instructions of sm_90 and sm_100 take 64 or more rows: with few tokens per
expert the product is computed transposed (`swap`), so that the 64 rows are outputs of the layer and
a tile of 16 tokens is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels_profile.kernels import activation, moe_routing
from kernels_profile.kernels import linear as dense
from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need
from kernels_profile.kernels.moe_routing import Routing, empty_routing, plan_route, route

__all__ = ["Routing", "expert_block", "grouped_linear", "route", "weighted_sum"]


@dataclass(frozen=True)
class GroupedConfig(Config):
    """Tile of the output (block_m assignments, block_n outputs) and step in k.

    Args:
        group_m: Tiles of assignments that share weights in the L2 cache.
        swap: 1 to compute the tile transposed.
    """

    block_m: int
    block_n: int
    block_k: int
    group_m: int
    swap: int


@dataclass(frozen=True)
class SumConfig(Config):
    """Outputs per program of the weighted sum."""

    block: int


def _config(m: int, n: int, k: int, warps: int, stages: int, swap: bool = False) -> GroupedConfig:
    return GroupedConfig(warps, stages, m, n, k, 8, int(swap))


FEW = (_config(16, 128, 64, 4, 4, swap=True), _config(16, 64, 128, 4, 3, swap=True))
"""For at most 16 assignments per expert: each weight is read for one tile."""
SOME = (_config(32, 128, 64, 4, 4, swap=True), _config(64, 128, 64, 4, 4))
"""For 17 to 64 per expert."""
MANY = (_config(64, 128, 64, 4, 4), _config(128, 128, 64, 8, 3), _config(128, 256, 32, 8, 4))
"""For more."""
CONFIGS = tuple(dict.fromkeys((*FEW, *SOME, *MANY)))
"""Every configuration that `choose` may name."""
SUM = SumConfig(4, 1, 1024)


def choose(tokens: int, experts: int, top_k: int) -> tuple[GroupedConfig, ...]:
    """Candidates for the mean number of assignments of those experts that can have one."""
    assignments = tokens * top_k
    mean = assignments / max(1, min(experts, assignments))
    return FEW if mean <= 16 else SOME if mean <= 64 else MANY


@triton.jit(do_not_specialize=["max_tiles", "fan_out"])
def _grouped_linear_kernel(
    x, w, out, order, offsets, totals, tiles, n, k, max_tiles, fan_out,
    EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    in_group = GROUP_M * tl.cdiv(n, BLOCK_N)
    first_tile = tl.program_id(0) // in_group * GROUP_M
    height = tl.minimum(max_tiles - first_tile, GROUP_M)
    tile = first_tile + tl.program_id(0) % in_group % height
    pid_n = tl.program_id(0) % in_group // height
    expert = tl.load(tiles + tile)
    if expert < 0:
        return
    lanes = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    real = lanes < tl.load(offsets + expert) + tl.load(totals + expert)
    # Padding reads the first token and outputs past the end the last one: nothing of them is kept.
    assignment = tl.load(order + lanes, mask=real, other=0).to(tl.int64)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    w_rows = expert.to(tl.int64) * n + tl.minimum(columns, n - 1)
    inner = tl.arange(0, BLOCK_K)
    x_at = x + (assignment // fan_out)[:, None] * k + inner[None, :]
    w_at = w + w_rows[:, None] * k + inner[None, :]
    if SWAP:
        total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        if EVEN_K:
            a, b = tl.load(x_at), tl.load(w_at)
        else:
            inside = (inner < k - start)[None, :]
            a = tl.load(x_at, mask=inside, other=0.0)
            b = tl.load(w_at, mask=inside, other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        if SWAP:
            total = tl.dot(b, tl.trans(a), total, input_precision="ieee")
        else:
            total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
        x_at += BLOCK_K
        w_at += BLOCK_K
    if SWAP:
        total = tl.trans(total)
    at = out + assignment[:, None] * n + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=real[:, None] & (columns < n)[None, :])


@triton.jit
def _weighted_sum_kernel(y, weights, out, n, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for place in tl.static_range(TOP_K):
        row = token * TOP_K + place
        value = tl.load(y + row * n + columns, mask=columns < n, other=0.0).to(tl.float32)
        total += tl.load(weights + row) * value
    tl.store(out + token * n + columns, total.to(out.dtype.element_ty), mask=columns < n)


def plan_grouped_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    routing: Routing,
    out: torch.Tensor,
    config: GroupedConfig,
    upcast: bool = False,
) -> Launch:
    """The launch of one linear layer of all experts; arguments as of `grouped_linear`."""
    _, n, k = w.shape
    need(routing.block_m == config.block_m, "grouped_linear: routed for tiles of another size")
    arguments = {
        "x": x, "w": w, "out": out, "order": routing.order, "offsets": routing.offsets,
        "totals": routing.totals, "tiles": routing.tiles, "n": n, "k": k,
        "max_tiles": routing.tiles.shape[0], "fan_out": out.shape[0] // x.shape[0],
        "EVEN_K": k % config.block_k == 0, "UPCAST": upcast,
    }  # fmt: skip
    programs = routing.tiles.shape[0] * triton.cdiv(n, config.block_n)
    return Launch(_grouped_linear_kernel, (programs,), arguments, config)


def grouped_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    routing: Routing,
    out: torch.Tensor | None = None,
    config: GroupedConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """Each assignment's row times the weights of its expert.

    Args:
        x: `(tokens, k)`, the same for all experts of a token, or `(tokens * top_k, k)`, one row for
            each assignment; contiguous.
        w: `(experts, n, k)`, contiguous, the type of x.
        routing: Of `route`, for tiles of `config.block_m`.
        out: `(tokens * top_k, n)`, contiguous; by default a new tensor of the type of x.
        config: One of `choose(tokens, experts, top_k)`; by default its first with that tile.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out, in the order of the assignments.

    Raises:
        ProfileError: A shape or type that does not fit.
    """
    tokens, top_k = routing.ids.shape
    experts, n, k = w.shape
    sizes = f"{tuple(x.shape)} and {tuple(w.shape)} for {tokens} tokens, {top_k} experts each"
    need(x.shape[0] in (tokens, tokens * top_k) and x.shape[1] == k, f"grouped_linear: {sizes}")
    need(experts == routing.experts, f"grouped_linear: w has {experts} experts")
    need(x.dtype == w.dtype, f"grouped_linear: x is {x.dtype} and w {w.dtype}")
    need(x.is_contiguous() and w.is_contiguous(), "grouped_linear: x and w have to be contiguous")
    out = x.new_empty((tokens * top_k, n)) if out is None else out
    if tokens:
        config = config or _for_tile(routing)
        plan_grouped_linear(x, w, routing, out, config, upcast).run()
    return out


def _for_tile(routing: Routing) -> GroupedConfig:
    chosen = choose(routing.ids.shape[0], routing.experts, routing.top_k)
    fitting = [c for c in (*chosen, *CONFIGS) if c.block_m == routing.block_m]
    need(bool(fitting), f"grouped_linear: no configuration has tiles of {routing.block_m}")
    return fitting[0]


def plan_weighted_sum(y: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch of `weighted_sum`."""
    tokens, n = out.shape
    arguments = {"y": y, "weights": weights, "out": out, "n": n, "TOP_K": weights.shape[1]}
    return Launch(_weighted_sum_kernel, (tokens, triton.cdiv(n, SUM.block)), arguments, SUM)


def weighted_sum(
    y: torch.Tensor, weights: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Add up what a token's experts gave.

    Args:
        y: `(tokens * top_k, n)`, contiguous.
        weights: `(tokens, top_k)` float32.
        out: `(tokens, n)`, contiguous; by default a new tensor of the type of y.

    Returns:
        out
    """
    out = y.new_empty((weights.shape[0], y.shape[1])) if out is None else out
    if out.numel():
        plan_weighted_sum(y, weights, out).run()
    return out


def plan_expert_block(
    x: torch.Tensor,
    router_w: torch.Tensor,
    gate_up_w: torch.Tensor,
    down_w: torch.Tensor,
    top_k: int,
    out: torch.Tensor,
    renormalise: bool = True,
    config: GroupedConfig | None = None,
    upcast: bool = False,
) -> list[Launch]:
    """Launches of an expert block; arguments as of `expert_block`, and out `(tokens, hidden)`."""
    (tokens, hidden), experts = x.shape, router_w.shape[0]
    inner = down_w.shape[2]
    config = config or choose(tokens, experts, top_k)[0]
    logits = x.new_empty((tokens, experts), dtype=torch.float32)
    routing = empty_routing(tokens, experts, top_k, config.block_m, str(x.device))
    between = torch.float32 if upcast else x.dtype
    sizes = (2 * inner, inner, hidden)
    wide, narrow, y = (x.new_empty((tokens * top_k, n), dtype=between) for n in sizes)
    router = dense.choose(tokens, experts, hidden)[0]
    return [
        *dense.plan_linear(x, router_w, logits, router, upcast=upcast),
        *plan_route(logits, routing, moe_routing.choose(experts)[0], renormalise),
        plan_grouped_linear(x, gate_up_w, routing, wide, config, upcast),
        activation.plan_silu_mul(wide, narrow, activation.choose(wide.shape[0])[0]),
        plan_grouped_linear(narrow, down_w, routing, y, config, upcast),
        plan_weighted_sum(y, routing.weights, out),
    ]


def expert_block(
    x: torch.Tensor,
    router_w: torch.Tensor,
    gate_up_w: torch.Tensor,
    down_w: torch.Tensor,
    top_k: int,
    renormalise: bool = True,
    out: torch.Tensor | None = None,
    config: GroupedConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """The whole feed-forward block of Mixtral or Qwen3-MoE; shared experts are linear layers apart.

    Args:
        x: `(tokens, hidden)`, contiguous.
        router_w: `(experts, hidden)`.
        gate_up_w: `(experts, 2 * inner, hidden)`, gate then up.
        down_w: `(experts, hidden, inner)`.
        top_k: Experts per token.
        renormalise: See `route`.
        out: `(tokens, hidden)`, contiguous; by default a new tensor of the type of x.
        config: One of `choose(tokens, experts, top_k)`; by default its first.
        upcast: Operands are converted to float32 after the load, and kept so between layers.

    Returns:
        out

    Raises:
        ProfileError: A shape that does not fit.
    """
    experts, hidden = router_w.shape
    inner = down_w.shape[2]
    wanted = ((experts, 2 * inner, hidden), (experts, hidden, inner))
    found = (tuple(gate_up_w.shape), tuple(down_w.shape))
    need(found == wanted and x.shape[1] == hidden, f"expert_block: {found}, not {wanted}")
    need(0 < top_k <= experts, f"expert_block: top_k is {top_k}, with {experts} experts")
    out = torch.empty_like(x) if out is None else out
    if x.shape[0]:
        weights = (router_w, gate_up_w, down_w)
        for launch in plan_expert_block(x, *weights, top_k, out, renormalise, config, upcast):
            launch.run()
    return out


SHAPES = {"Mixtral-8x7B": (4096, 14336, 8, 2), "Qwen3-30B-A3B": (2048, 768, 128, 8)}
"""Hidden size, inner size, experts, experts per token of the models compiled for."""


def compile_cases() -> list[CompileCase]:
    """Both linear layers of each model at every configuration, and the weighted sum."""
    cases = []
    for name, (hidden, inner, experts, top_k) in SHAPES.items():
        layers = ((1, 2 * inner, hidden), (top_k, hidden, inner))
        cases += [
            _case(name, experts, top_k, *layer, config) for config in CONFIGS for layer in layers
        ]
        weights = meta(512, top_k, dtype=torch.float32)
        launch = plan_weighted_sum(meta(512 * top_k, hidden), weights, meta(512, hidden))
        cases.append(CompileCase(launch, name))
    return cases


def _case(
    name: str, experts: int, top_k: int, fan: int, n: int, k: int, config: GroupedConfig
) -> CompileCase:
    """512 tokens; `fan` is the number of rows of x for each."""
    routing = empty_routing(512, experts, top_k, config.block_m, "meta")
    x, w, out = meta(512 * fan, k), meta(experts, n, k), meta(512 * top_k, n)
    launch = plan_grouped_linear(x, w, routing, out, config)
    return CompileCase(launch, f"{name} n={n} k={k}", "native")
