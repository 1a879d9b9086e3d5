"""What the profiler measures: one `Point` is one row of one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Value = str | int | float


@dataclass(frozen=True)
class Point:
    """One measurement: a row of a table before it has a time.

    Attributes:
        table: The table it belongs to, a name without ``.csv``.
        key: Its key columns, by name and in the table's order.
        tier: 0 for the card's ceilings, 1 for the coarse grid, 2 and 3 for what refines it.
        estimate_us: What one launch is expected to take.
        set_bytes: One set of its inputs: weights, keys and values, activations.
        output_bytes: What one launch writes beside its inputs.
        models: Which shards it is measured for, as ``llama-3.1-8b tp 1``.
        sizes: What building its inputs takes beside the key: heads behind a width, and the like.
    """

    table: str
    key: Mapping[str, Value] = field(hash=False)
    tier: int
    estimate_us: float = 0.0
    set_bytes: int = 0
    output_bytes: int = 0
    models: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __getitem__(self, column: str) -> Any:
        """Value of one key column."""
        return self.key[column]

    @property
    def identity(self) -> tuple[str, tuple[Value, ...]]:
        """What tells it from other points, whatever it is measured for."""
        return self.table, tuple(self.key.values())

    def __str__(self) -> str:
        """As in ``linear: dtype bf16, n 6144, k 4096, tokens 64``."""
        return f"{self.table}: " + ", ".join(f"{k} {v}" for k, v in self.key.items())
