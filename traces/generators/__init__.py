"""Synthetic workloads whose prompts share parts: what is shared is known token by token.

A generator is a dataclass; its fields are its options, and say in their metadata where each default
comes from. None says how requests arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from sim.request import Trace
from traces.arrivals import arrive
from traces.generators.lengths import Lengths, UniformLengths
from traces.generators.parts import Documents, FewShot, PrefixRepetition, SystemPrompts
from traces.generators.surfaces import Agent, EditorChat, InlineEdit, TabCompletion
from traces.generators.words import ORDERS, Generator, sources_of
from traces.mixture import typed
from traces.reuse import prefix_reuse
from traces.sessions import begin_sessions, sessions_of

GENERATORS: Mapping[str, type[Generator]] = MappingProxyType(
    {
        "lengths": Lengths,
        "uniform-lengths": UniformLengths,
        "prefix-repetition": PrefixRepetition,
        "system-prompts": SystemPrompts,
        "few-shot": FewShot,
        "documents": Documents,
        "tab-completion": TabCompletion,
        "inline-edit": InlineEdit,
        "editor-chat": EditorChat,
        "agent": Agent,
    }
)
"""Names in a config; they stand beside the presets of `traces.presets`."""

ROW_BLOCK = 16
"""Tokens of a block id in files: the KV block of vLLM and sarathi-serve on GPUs."""

__all__ = ["GENERATORS", "ORDERS", "Generator", "as_rows", "slo_of", "sources_of"]


def as_rows(name: str, n: int, rate_per_s: float, seed: int = 0) -> Trace:
    """`n` requests of a generator with its default options, as a file of rows can say them.

    Sessions in closed loop are told by their columns; of other prompts the full blocks of
    `ROW_BLOCK` tokens get ids. Lost are that sessions share a system prompt, and what is alike
    beyond the last full block.

    Args:
        name: One of `GENERATORS`.
        n: Requests, at least 1.
        rate_per_s: Requests a second, or sessions; they arrive as a Poisson process.
        seed: Of all draws.
    """
    made = GENERATORS[name]()
    trace = made.make(n, seed)
    if made.sessions == "none":
        begun = arrive(trace, "poisson", seed=seed, rate_per_s=rate_per_s)
    else:
        begun = begin_sessions(trace, "poisson", seed=seed, rate_per_s=rate_per_s)
    if made.sessions == "typed":
        begun = typed(begun, sessions_of(begun).order)
    if begun.content is None:
        return begun
    ids = prefix_reuse(begun, ROW_BLOCK).block_ids()
    return replace(begun, content=None, block_ids=ids, block_ids_tokens=ROW_BLOCK)


def slo_of(name: str) -> dict[str, Any]:
    """Suggested targets of the class of a generator's requests; empty where it has none."""
    return dict(GENERATORS[name].slo) if name in GENERATORS else {}
