"""Synthetic workloads whose prompts share parts: what is shared is known token by token.

A generator is a dataclass; its fields are its options, and say in their metadata where each default
comes from. None says how requests arrive.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from traces.generators.parts import Documents, FewShot, PrefixRepetition, SystemPrompts
from traces.generators.surfaces import Agent, EditorChat, InlineEdit, TabCompletion
from traces.generators.words import ORDERS, Generator, sources_of

GENERATORS: Mapping[str, type[Generator]] = MappingProxyType(
    {
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

__all__ = ["GENERATORS", "ORDERS", "Generator", "slo_of", "sources_of"]


def slo_of(name: str) -> dict[str, Any]:
    """Suggested targets of the class of a generator's requests; empty where it has none."""
    return dict(GENERATORS[name].slo) if name in GENERATORS else {}
