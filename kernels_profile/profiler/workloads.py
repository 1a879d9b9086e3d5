"""From a point to launches of our kernels on inputs of its shape.

Every builder works on a GPU, under the interpreter, and on torch's `meta` device, where it gives
the launches that have to be compiled. The sets of inputs that a builder makes differ in everything
that a kernel reads: weights, keys and values, activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from kernels_profile.profiler.arena import Arena
from kernels_profile.profiler.bench import Bench
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import Work
from kernels_profile.profiler.work_attention import chunk_and_decodes, chunks, decodes
from kernels_profile.profiler.work_card import ceilings, overhead
from kernels_profile.profiler.work_elementwise import elementwise
from kernels_profile.profiler.work_latent import latent_chunks, latent_decodes
from kernels_profile.profiler.work_linear import expert_block, linear_layer, per_sequence

Builder = Callable[[Point, Bench, Any], Work]


def build(point: Point, bench: Bench, config: Any = None) -> Work:
    """The launches of a point; `config` is one of `candidates(point)`, None for its first."""
    return BUILDERS[point.table](point, bench, config)


def taken(point: Point, bench: Bench) -> Mapping[Any, int]:
    """Elements that building a point takes from an arena, by type; nothing is allocated."""
    arena = Arena("meta", bench.arena.dtype)
    build(point, replace(bench, arena=arena, device="meta"))
    return arena.used


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "ceilings": ceilings,
        "overhead": overhead,
        "linear": linear_layer,
        "attention_prefill": chunks,
        "attention_decode": decodes,
        "attention_mixed": chunk_and_decodes,
        "mla_prefill": latent_chunks,
        "mla_decode": latent_decodes,
        "elementwise": elementwise,
        "per_sequence": per_sequence,
        "moe": expert_block,
    }
)
"""What makes the launches of each table's points."""
