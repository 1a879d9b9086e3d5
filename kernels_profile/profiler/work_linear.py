"""Launches of linear layers, the LM head, sampling, and blocks of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels_profile.profiler.bench import Bench
from kernels_profile.profiler.inputs import assign_experts
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import Work


def linear_layer(point: Point, bench: Bench, config: Any) -> Work:
    rows, n, k = point["tokens"], point["n"], point["k"]
    if point["dtype"] == "fp8":
        return _linear_fp8(rows, n, k, bench.sets(point), bench, config)
    return _product(rows, n, k, bench.sets(point), bench, config)


def _product(rows: int, n: int, k: int, sets: range, bench: Bench, config: Any) -> Work:
    from kernels_profile.kernels.linear import linear

    pairs = [(bench.arena.take(rows, k), bench.arena.take(n, k)) for _ in sets]
    return Work(lambda i: linear(*pairs[i], config=config), len(sets))


def _linear_fp8(rows: int, n: int, k: int, sets: range, bench: Bench, config: Any) -> Work:
    import torch

    from kernels_profile.kernels.linear import linear_fp8

    def take(*shape: int) -> Any:
        return bench.arena.take(*shape, dtype=torch.float8_e4m3fn)

    pairs = [(take(rows, k), take(n, k)) for _ in sets]
    scale = bench.ones(1)
    return Work(lambda i: linear_fp8(*pairs[i], scale, scale, config=config), len(sets))


def per_sequence(point: Point, bench: Bench, config: Any) -> Work:
    rows, vocab, hidden, sets = (
        point["sequences"], point["vocab"], point["hidden"], bench.sets(point),
    )  # fmt: skip
    if point["op"] == "lm_head":
        return _product(rows, vocab, hidden, sets, bench, config)
    from kernels_profile.kernels.sampling import greedy, lm_head_greedy

    if point["op"] == "sampler":
        logits = [bench.arena.take(rows, vocab) for _ in sets]
        return Work(lambda i: greedy(logits[i]), len(sets))

    pairs = [(bench.arena.take(rows, hidden), bench.arena.take(vocab, hidden)) for _ in sets]
    return Work(lambda i: lm_head_greedy(*pairs[i], config=config), len(sets))


def expert_block(point: Point, bench: Bench, config: Any) -> Work:
    """Tokens that a router of identity rows sends exactly where `assign_experts` says."""
    from kernels_profile.kernels import moe

    tokens, hidden, inner = point["tokens"], point["hidden"], point["intermediate"]
    experts, top_k = point["experts"], point["top_k"]
    chosen = assign_experts(tokens, experts, top_k, point["touched"])
    router = bench.given(np.eye(experts, hidden), "float32").to(bench.arena.dtype)
    picks = bench.given(_picks(chosen, experts), "float32").to(bench.arena.dtype)

    def one_set() -> tuple[Any, Any, Any]:
        x = bench.arena.take(tokens, hidden).clone()
        x[:, :experts] = picks
        gate_up = bench.arena.take(experts, 2 * inner, hidden)
        return x, gate_up, bench.arena.take(experts, hidden, inner)

    sets = [one_set() for _ in bench.sets(point)]

    def run(i: int) -> object:
        x, gate_up, down = sets[i]
        return moe.expert_block(x, router, gate_up, down, top_k, config=config)

    return Work(run, len(sets))


def _picks(chosen: np.ndarray[Any, Any], experts: int) -> np.ndarray[Any, Any]:
    """Logits that send tokens where `chosen` says, (tokens, experts).

    The router's row of expert e reads number e of a token: 8 for a chosen one and a little more
    for the earlier ones, -8 for the others.
    """
    picks = np.full((len(chosen), experts), -8.0)
    ranks = 8 + np.arange(chosen.shape[1])[::-1] / 4
    np.put_along_axis(picks, chosen, np.broadcast_to(ranks, chosen.shape), axis=1)
    return picks
