"""Launches of attention over paged keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_profile.profiler.bench import BLOCK_TOKENS, Bench
from kernels_profile.profiler.inputs import unequal_contexts
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import Work


@dataclass(frozen=True)
class Paged:
    """One set of paged keys and values, its blocks in random order.

    Attributes:
        k_cache: (blocks, block_tokens, kv_heads, head_dim).
        v_cache: Likewise.
        table: (batch, most blocks) int32, block ids.
        contexts: (batch,) int32, tokens.
    """

    k_cache: Any
    v_cache: Any
    table: Any
    contexts: Any


def block_table(contexts: Sequence[int], seed: int) -> tuple[np.ndarray[Any, Any], int]:
    """Block ids of each sequence, (batch, most blocks) int32, and how many blocks there are.

    What lies beyond a sequence's blocks is 0, and never read.
    """
    held = [blocks_of(context) for context in contexts]
    order = np.random.default_rng(seed).permutation(sum(held)).astype(np.int32)
    table = np.zeros((len(held), max(held)), np.int32)
    begin = 0
    for row, blocks in zip(table, held, strict=True):
        row[:blocks] = order[begin : begin + blocks]
        begin += blocks
    return table, int(sum(held))


def blocks_of(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK_TOKENS)


def _paged(contexts: Sequence[int], point: Point, bench: Bench, seed: int) -> Paged:
    table, blocks = block_table(contexts, seed)
    shape = (blocks, BLOCK_TOKENS, point["kv_heads"], point["head_dim"])
    caches = bench.arena.take(*shape), bench.arena.take(*shape)
    return Paged(*caches, bench.whole(table), bench.whole(contexts))


def decodes(point: Point, bench: Bench, config: Any) -> Work:
    from kernels_profile.kernels.decode_attention import choose_splits, decode_attention

    contexts = unequal_contexts(point["batch"], int(point["context"]), point["skew"])
    shape = (point["batch"], point["heads"], point["head_dim"])
    sets = [
        (bench.arena.take(*shape), _paged(contexts, point, bench, i)) for i in bench.sets(point)
    ]
    scale = point["head_dim"] ** -0.5
    longest = blocks_of(max(contexts)) * BLOCK_TOKENS
    splits = choose_splits(point["batch"], point["kv_heads"], longest, bench.multiprocessors)

    def run(i: int) -> object:
        q, kv = sets[i]
        caches = kv.k_cache, kv.v_cache, kv.table
        return decode_attention(q, *caches, kv.contexts, scale, splits, config=config)

    return Work(run, len(sets))


def chunks(point: Point, bench: Bench, config: Any) -> Work:
    chunks = [point["tokens"]] * point["batch"]
    contexts = [int(point["history"] + point["tokens"])] * point["batch"]
    return _chunks(chunks, contexts, point, bench, config)


def chunk_and_decodes(point: Point, bench: Bench, config: Any) -> Work:
    """The chunk first, then a chunk of one token for each decode: one launch for all."""
    chunks = [point["tokens"], *[1] * point["decodes"]]
    contexts = [int(point["history"] + point["tokens"])]
    contexts += [int(point["context"])] * point["decodes"]
    return _chunks(chunks, contexts, point, bench, config)


def _chunks(
    chunks: Sequence[int], contexts: Sequence[int], point: Point, bench: Bench, config: Any
) -> Work:
    from kernels_profile.kernels.prefill_attention import prefill_attention

    starts = bench.whole(np.cumsum([0, *chunks]))
    shape = (sum(chunks), point["heads"], point["head_dim"])
    sets = [
        (bench.arena.take(*shape), _paged(contexts, point, bench, i)) for i in bench.sets(point)
    ]
    scale, longest = point["head_dim"] ** -0.5, max(chunks)

    def run(i: int) -> object:
        q, kv = sets[i]
        caches = kv.k_cache, kv.v_cache, kv.table
        return prefill_attention(q, *caches, starts, kv.contexts, scale, longest, config=config)

    return Work(run, len(sets))


def slots_of(tokens: int, bench: Bench) -> Any:
    """Where the tokens of a sequence go whose blocks lie in random order, (tokens,) int64."""
    table, _ = block_table([tokens], 0)
    at = np.arange(tokens)
    slots = table[0].astype(np.int64)[at // BLOCK_TOKENS] * BLOCK_TOKENS + at % BLOCK_TOKENS
    return bench.whole(slots, "int64")


def angles(tokens: int, head_dim: int, bench: Bench) -> tuple[Any, Any]:
    """Cosines and sines, (tokens, head_dim / 2) float32.

    Real ones: q is rotated in place, launch after launch, and must not grow.
    """
    rates = 10_000.0 ** -(np.arange(head_dim // 2) / (head_dim // 2))
    turned = np.arange(tokens)[:, None] * rates
    return bench.given(np.cos(turned), "float32"), bench.given(np.sin(turned), "float32")
