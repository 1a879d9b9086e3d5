"""Counts in messages."""

from __future__ import annotations


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """``1 run``, ``5 runs``.

    Args:
        number: Of things.
        singular: What one of them is called.
        plural: What several are called; None for an ``s`` more.
    """
    name = singular if number == 1 else plural or f"{singular}s"
    return f"{number:,} {name}"
