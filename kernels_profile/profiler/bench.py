"""Where the inputs of a point are made, on a GPU, for the interpreter, or without memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels_profile.profiler.arena import Arena
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.points import Point

BLOCK_TOKENS = 16
"""Tokens of a KV block, as in vLLM."""

EPS = 1e-5
"""Of RMS norms; its value does not change their time."""


@dataclass(frozen=True)
class Bench:
    """Where inputs are made.

    Attributes:
        arena: Memory for them.
        effort: How many sets.
        device: ``cuda``, ``cpu`` or ``meta``.
        multiprocessors: Of the GPU: into how many parts decode attention splits its contexts.
    """

    arena: Arena
    effort: Effort
    device: str
    multiprocessors: int = 1

    def sets(self, point: Point) -> range:
        """Numbers of the sets of inputs of a point."""
        return range(self.effort.sets(point.set_bytes))

    def whole(self, values: Any, dtype: str = "int32") -> Any:
        """A tensor of whole numbers."""
        return self.given(values, dtype)

    def given(self, values: Any, dtype: str) -> Any:
        """A tensor of these values, of that type of torch's."""
        import torch

        kind = getattr(torch, dtype)
        if self.device == "meta":
            return torch.empty(np.shape(values), dtype=kind, device="meta")
        return torch.as_tensor(np.asarray(values), dtype=kind).to(self.device)

    def ones(self, *shape: int, dtype: str = "float32") -> Any:
        """A tensor of ones."""
        import torch

        return torch.ones(shape, dtype=getattr(torch, dtype), device=self.device)
