"""Launch configurations that a profile of this card found quickest, for the engine's kernels.

The engine has to launch what was timed: else a step and the sum of its operators would differ by
the choice of tiles. Blocks of experts keep their first choice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernels_profile.profiler.measure import Choices
from kernels_profile.profiler.points import Point

Key = tuple[str, tuple[tuple[str, str | int], ...]]


class Tuned:
    """Configurations by kernel and shape; None where the kernel's own first choice stands.

    Args:
        tables: A data set with `launch_configs.csv`, or None: every kernel's first choice.
    """

    def __init__(self, tables: Path | None = None) -> None:
        self._choices = None if tables is None else Choices(tables / "launch_configs.csv")
        self._found: dict[Key, Any] = {}

    def linear(self, tokens: int, weights: Any) -> Any:
        """For a product with `weights`, (outputs, inputs)."""
        n, k = weights.shape
        return self._of("linear", dtype="bf16", n=n, k=k, tokens=tokens)

    def head(self, sequences: int, weights: Any) -> Any:
        """For the LM head with greedy choice."""
        vocab, hidden = weights.shape
        sizes = {"vocab": vocab, "hidden": hidden, "sequences": sequences}
        return self._of("per_sequence", op="lm_head_greedy", dtype="bf16", **sizes)

    def activation(self, tokens: int, width: int) -> Any:
        """For SiLU and multiply, by the outputs' width."""
        return self._of("elementwise", op="silu_mul", width=width, tokens=tokens)

    def rotary(self, tokens: int, width: int) -> Any:
        """For the rotary embedding, by the width of queries, keys and values together."""
        return self._of("elementwise", op="rotary", width=width, tokens=tokens)

    def prefill(self, heads: tuple[int, int, int], tokens: int, context: int) -> Any:
        """For chunks of at most so many tokens; `heads` are (query, KV, width of each)."""
        sizes = {"batch": 1, "tokens": tokens, "history": max(0, context - tokens)}
        return self._of("attention_prefill", kv_dtype="bf16", **_named(heads), **sizes)

    def decode(self, heads: tuple[int, int, int], batch: int, context: int) -> Any:
        """For decodes whose tables hold so long a context."""
        sizes = {"batch": batch, "context": context, "skew": 0}
        return self._of("attention_decode", kv_dtype="bf16", **_named(heads), **sizes)

    def _of(self, table: str, **key: str | int) -> Any:
        if self._choices is None:
            return None
        known = (table, tuple(key.items()))
        if known not in self._found:
            self._found[known] = self._choices.of(Point(table, key, tier=1))
        return self._found[known]


def _named(heads: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("heads", "kv_heads", "head_dim"), heads, strict=True))
