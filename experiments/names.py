"""Names in a config: one spelling for each, and a hint where one is not known."""

from __future__ import annotations

from collections.abc import Iterable

from sim.errors import closest


def canonical(name: str) -> str:
    """The spelling we use: ``vllm_v1`` is ``vllm-v1``. Module paths of users' own classes stay."""
    return name if ":" in name else name.replace("_", "-")


def unknown(kind: str, name: object, choices: Iterable[str]) -> str:
    """One clause such as ``no policy 'saratih'; try sarathi``, listing all if none is near."""
    return f"no {kind} {name!r}; {suggestion(str(name), choices)}"


def suggestion(word: str, choices: Iterable[str]) -> str:
    """``try X`` for the nearest choice, else ``choose one of ...``."""
    names = sorted(choices)
    close = closest(word, names)
    if close is not None:
        return f"try {close}"
    return f"choose one of {', '.join(names)}" if names else "there is none to choose"
