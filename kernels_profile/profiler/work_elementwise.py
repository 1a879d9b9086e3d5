"""Launches of element-wise kernels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from kernels_profile.profiler.bench import BLOCK_TOKENS, EPS, Bench
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import Work
from kernels_profile.profiler.work_attention import angles, slots_of
from kernels_profile.profiler.work_latent import latent_write


def elementwise(point: Point, bench: Bench, config: Any) -> Work:
    return ELEMENTWISE[point["op"]](point, bench, config)


def _embedding(point: Point, bench: Bench, config: Any) -> Work:
    from torch.nn.functional import embedding

    tokens, rows = point["tokens"], point.sizes["vocab"]
    table = bench.arena.take(rows, point["width"])
    ids = [
        bench.whole(np.random.default_rng(i).integers(rows, size=tokens), "int64")
        for i in bench.sets(point)
    ]
    return Work(lambda i: embedding(ids[i], table), len(ids))


def _add(point: Point, bench: Bench, config: Any) -> Work:
    shape = point["tokens"], point["width"]
    pairs = [(bench.arena.take(*shape), bench.arena.take(*shape)) for _ in bench.sets(point)]
    return Work(lambda i: pairs[i][0] + pairs[i][1], len(pairs))


def _rms_norm(point: Point, bench: Bench, config: Any) -> Work:
    from kernels_profile.kernels.norm import rms_norm_residual

    shape = point["tokens"], point["width"]
    weight = bench.arena.take(point["width"])
    pairs = [(bench.arena.take(*shape), bench.arena.take(*shape)) for _ in bench.sets(point)]
    return Work(lambda i: rms_norm_residual(*pairs[i], weight, EPS, config=config), len(pairs))


def _qk_norm(point: Point, bench: Bench, config: Any) -> Work:
    from kernels_profile.kernels.norm import qk_norm

    tokens, sizes = point["tokens"], point.sizes
    weight = bench.arena.take(sizes["head_dim"])
    pairs = [
        (
            bench.arena.take(tokens, sizes["heads"], sizes["head_dim"]),
            bench.arena.take(tokens, sizes["kv_heads"], sizes["head_dim"]),
        )
        for _ in bench.sets(point)
    ]
    return Work(lambda i: qk_norm(*pairs[i], weight, weight, EPS), len(pairs))


def _rotary(point: Point, bench: Bench, config: Any) -> Work:
    """Each token at its place in one long sequence; its keys go to blocks in random order."""
    from kernels_profile.kernels.rotary import rotary_kv_write

    if "kv_lora_rank" in point.sizes:
        return latent_write(point, bench, config)
    tokens, sizes = point["tokens"], point.sizes
    head_dim, kv_heads = sizes["head_dim"], sizes["kv_heads"]
    cos, sin = angles(tokens, head_dim, bench)
    positions, slots = bench.whole(np.arange(tokens), "int64"), slots_of(tokens, bench)
    blocks = -(-tokens // BLOCK_TOKENS)

    def one_set() -> tuple[Any, ...]:
        shapes = [(tokens, heads, head_dim) for heads in (sizes["heads"], kv_heads, kv_heads)]
        cache = (blocks, BLOCK_TOKENS, kv_heads, head_dim)
        return tuple(bench.arena.take(*shape) for shape in (*shapes, cache, cache))

    sets = [one_set() for _ in bench.sets(point)]

    def run(i: int) -> None:
        q, k, v, k_cache, v_cache = sets[i]
        rotary_kv_write(q, k, v, cos, sin, positions, slots, k_cache, v_cache, config=config)

    return Work(run, len(sets))


def _silu_mul(point: Point, bench: Bench, config: Any) -> Work:
    from kernels_profile.kernels.activation import silu_mul

    inputs = [bench.arena.take(point["tokens"], 2 * point["width"]) for _ in bench.sets(point)]
    return Work(lambda i: silu_mul(inputs[i], config=config), len(inputs))


ELEMENTWISE: Mapping[str, Any] = MappingProxyType(
    {
        "embedding": _embedding,
        "add": _add,
        "rms_norm": _rms_norm,
        "qk_norm": _qk_norm,
        "rotary": _rotary,
        "silu_mul": _silu_mul,
    }
)
