"""Inputs of the kernels: slices of memory that is filled with random numbers once.

Filling anew for each point would take longer than timing it. Values are normal: how long a matrix
product takes depends on the power that its operands draw, and zeros draw little.
"""

from __future__ import annotations

import math
from typing import Any

ALIGNMENT = 256
"""Elements, thus at least as many bytes: Triton compiles another variant for addresses that are no
multiple of 16 bytes."""

IDLE_BYTES = 4 * 2**30
"""Memory that the allocator may keep unused."""

RANDOM_BYTES = 256 * 2**20
"""Random numbers that are drawn; a larger arena repeats them."""


class Arena:
    """Hands out tensors that do not overlap, until `reset`.

    Args:
        device: ``cuda``, ``cpu``, or ``meta`` (shapes without memory, to compile with).
        dtype: Of what `take` gives by default.

    Attributes:
        used: Elements handed out since `reset`, by type.
    """

    def __init__(self, device: str, dtype: Any) -> None:
        self.device = device
        self.dtype = dtype
        self.used: dict[Any, int] = {}
        self._blocks: dict[Any, Any] = {}

    def reset(self) -> None:
        """Everything handed out may be handed out again."""
        self.used.clear()

    def reserve(self, elements: int, dtype: Any = None) -> None:
        """Make room for that many elements of a type before they are taken."""
        import torch

        dtype = dtype or self.dtype
        block = self._blocks.get(dtype)
        if self.device == "meta" or (block is not None and block.numel() >= elements):
            return
        self._blocks.pop(dtype, None)
        del block
        if self.device == "cuda":
            torch.cuda.empty_cache()  # the smaller one goes first: both may not fit
        self._blocks[dtype] = _random(elements, dtype, self.device)

    def tidy(self) -> None:
        """Give back what the device's allocator keeps but does not use, if that is much.

        Every CUDA graph has memory of its own, which is only given back so; an allocator that runs
        out while a graph is captured cannot help itself.
        """
        import torch

        if self.device != "cuda":
            return
        if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > IDLE_BYTES:
            torch.cuda.empty_cache()

    def take(self, *shape: int, dtype: Any = None) -> Any:
        """A tensor of this shape that overlaps no other since `reset`.

        Raises:
            ValueError: it was not reserved.
        """
        import torch

        dtype = dtype or self.dtype
        begin, size = self.used.get(dtype, 0), math.prod(shape)
        self.used[dtype] = begin + -(-size // ALIGNMENT) * ALIGNMENT
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        block = self._blocks[dtype]
        if begin + size > block.numel():
            raise ValueError(f"arena of {block.numel()} elements: {begin} used, {size} wanted")
        return block[begin : begin + size].view(shape)


def _random(elements: int, dtype: Any, device: str) -> Any:
    """Normal numbers; from a fixed seed, so that every run has the same inputs."""
    import torch

    generator = torch.Generator(device).manual_seed(0)
    drawn = min(elements, RANDOM_BYTES // 4)
    wide = torch.empty(drawn, device=device, dtype=torch.float32).normal_(generator=generator)
    narrow = wide.to(dtype)
    if drawn == elements:
        return narrow
    block = torch.empty(elements, device=device, dtype=dtype)
    for begin in range(0, elements, drawn):
        part = block[begin : begin + drawn]
        part.copy_(narrow[: part.numel()])
    return block
