"""Launches of latent attention (DeepSeek) over a paged cache of latents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels_profile.profiler.bench import BLOCK_TOKENS, EPS, Bench
from kernels_profile.profiler.choosers import candidates
from kernels_profile.profiler.inputs import unequal_contexts
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import Work
from kernels_profile.profiler.work_attention import angles, block_table, blocks_of, slots_of


def latent_decodes(point: Point, bench: Bench, config: Any) -> Work:
    """Absorbed attention: queries are given in the latent, and so is what comes out."""
    from kernels_profile.kernels.decode_attention import choose_splits
    from kernels_profile.kernels.mla import mla_decode

    contexts = unequal_contexts(point["batch"], int(point["context"]), point["skew"])
    rows, latent, rope = (point["batch"], point["heads"]), point["kv_lora_rank"], point["rope_dim"]
    lengths = bench.whole(contexts)
    sets = [
        (
            bench.arena.take(*rows, latent),
            bench.arena.take(*rows, rope),
            *_paged(contexts, latent + rope, bench, i),
        )
        for i in bench.sets(point)
    ]
    scale = (latent + rope) ** -0.5  # its value does not matter to the time
    config = config or candidates(point)[0]
    blocks = -(-point["heads"] // config.block_h)
    longest = blocks_of(max(contexts)) * BLOCK_TOKENS
    splits = choose_splits(point["batch"], blocks, longest, bench.multiprocessors)

    def run(i: int) -> object:
        q_latent, q_rope, cache, table = sets[i]
        return mla_decode(q_latent, q_rope, cache, table, lengths, scale, splits, config=config)

    return Work(run, len(sets))


def latent_chunks(point: Point, bench: Bench, config: Any) -> Work:
    """Attention per head: gathering the latents, and attending to the keys made of them.

    The projection of latents to keys and values between the two is a linear layer, with a row for
    each token of the contexts; it is in the table of those.
    """
    from kernels_profile.kernels.mla_prefill import plan_gather, plan_mla_attention

    batch, tokens, heads = point["batch"], point["tokens"], point["heads"]
    nope, latent, rope = point["nope_dim"], point["kv_lora_rank"], point["rope_dim"]
    contexts = [int(point["history"] + tokens)] * batch
    keys = sum(contexts)
    starts, key_starts = (
        bench.whole(np.cumsum([0, *lengths])) for lengths in ([tokens] * batch, contexts)
    )
    config = config or candidates(point)[0]
    scale = (nope + rope) ** -0.5

    def one_set(seed: int) -> tuple[Any, ...]:
        q = bench.arena.take(batch * tokens, heads, nope + rope)
        kv = bench.arena.take(keys, heads, nope + point["v_dim"])
        gathered = bench.arena.take(keys, latent), bench.arena.take(keys, rope)
        return q, kv, gathered, *_paged(contexts, latent + rope, bench, seed)

    sets = [one_set(i) for i in bench.sets(point)]

    def run(i: int) -> object:
        q, kv, (latents, ropes), cache, table = sets[i]
        out = q.new_empty((batch * tokens, heads, point["v_dim"]))
        plan_gather(cache, table, key_starts, latents, ropes, contexts[0]).run()
        given = (q, kv, ropes, starts, key_starts, scale, out, tokens)
        plan_mla_attention(*given, config).run()
        return out

    return Work(run, len(sets))


def latent_write(point: Point, bench: Bench, config: Any) -> Work:
    """Norm of the latents, rotary embedding of the queries' and keys' parts, write to the cache."""
    from kernels_profile.kernels import mla_cache

    tokens, sizes = point["tokens"], point.sizes
    latent, rope = sizes["kv_lora_rank"], sizes["rope_dim"]
    positions, slots = bench.whole(np.arange(tokens), "int64"), slots_of(tokens, bench)
    cos, sin = angles(tokens, rope, bench)
    weight, blocks = bench.arena.take(latent), -(-tokens // BLOCK_TOKENS)
    sets = [
        (
            bench.arena.take(tokens, latent + rope),
            bench.arena.take(tokens, sizes["heads"], rope),
            bench.arena.take(blocks, BLOCK_TOKENS, latent + rope),
        )
        for _ in bench.sets(point)
    ]

    def run(i: int) -> None:
        compressed, q_rope, cache = sets[i]
        places = (cos, sin, positions, slots)
        mla_cache.latent_write(compressed, weight, EPS, q_rope, *places, cache, config=config)

    return Work(run, len(sets))


def _paged(contexts: Sequence[int], width: int, bench: Bench, seed: int) -> tuple[Any, Any]:
    """A cache, (blocks, block_tokens, width), and the table of its blocks."""
    table, blocks = block_table(contexts, seed)
    return bench.arena.take(blocks, BLOCK_TOKENS, width), bench.whole(table)
