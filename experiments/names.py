"""Names in a config: one spelling for each, and a hint where one is not known."""

from __future__ import annotations

from collections.abc import Iterable

from sim.errors import closest

LONGEST_VALUE = 60
"""Characters of a value in a message."""
_QUOTES = "'\""


def canonical(name: str) -> str:
    """The spelling we use: ``vllm_v1`` is ``vllm-v1``. Module paths of users' own classes stay."""
    return name if ":" in name else name.replace("_", "-")


def unknown(kind: str, name: object, choices: Iterable[str]) -> str:
    """One clause such as ``no policy 'saratih'; try sarathi``, listing all if none is near."""
    return f"no {kind} {brief(name)}; {suggestion(brief(name).strip(_QUOTES), choices)}"


def brief(value: object) -> str:
    """The value as Python writes it, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python writes out no integers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def suggestion(word: str, choices: Iterable[str]) -> str:
    """``try X`` for the nearest choice, else ``choose one of ...``."""
    names = sorted(choices)
    close = closest(word, names)
    if close is not None:
        return f"try {close}"
    return f"choose one of {', '.join(names)}" if names else "there is none to choose"
