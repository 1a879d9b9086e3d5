"""Compare kernels with their references: error measure, bounds, and inputs that show mistakes.

A check is a function that gets a `Setting` (type, device) and returns pairs of what a kernel gave
and what the float64 reference gives for the very same inputs. The same checks run in Triton's CPU
interpreter and natively on a GPU. `dense_checks.py` lists those of the dense kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

Pairs = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""(ours, reference) of every output of a kernel."""

LIMITS: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 1e-2}
)
"""Largest error of a right kernel by type. Sums are kept in float32 everywhere, so what is left is
the rounding of operands and results: about 2^-24, 2^-12 and 2^-9 each."""


@dataclass(frozen=True)
class Setting:
    """How a check is run.

    Args:
        dtype: Type of the kernel's inputs and outputs.
        device: Where they are.
        upcast: Whether kernels convert operands to float32 after the load: the interpreter stores
            bfloat16 but computes wrongly in it.
        seed: Of the random inputs.
    """

    dtype: torch.dtype
    device: str = "cpu"
    upcast: bool = False
    seed: int = 0

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Random normal numbers of this setting's type; each shape draws its own."""
        generator = torch.Generator().manual_seed(hash((self.seed, *shape)) % 2**31)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
        return drawn.to(self.dtype).to(self.device)

    @property
    def sums(self) -> torch.dtype:
        """Type of results: float32 if operands are converted to it, to lose nothing at the end."""
        return torch.float32 if self.upcast else self.dtype

    def unwritten(self, *shape: int) -> torch.Tensor:
        """An output tensor full of NaN: what a kernel does not write shows."""
        return torch.full(shape, float("nan"), dtype=self.sums, device=self.device)


@dataclass(frozen=True)
class Check:
    """A named comparison of a kernel with its reference."""

    name: str
    pairs: Callable[[Setting], Pairs]

    def errors(self, setting: Setting) -> list[tuple[float, float]]:
        """Error of each output, and the largest that its type allows."""
        return [
            (norm_ratio(ours, reference), LIMITS.get(ours.dtype, LIMITS[setting.sums]))
            for ours, reference in self.pairs(setting)
        ]

    def wrong(self, setting: Setting) -> str:
        """What is wrong with the kernel, or an empty string."""
        return "; ".join(
            f"{self.name}: output {number} has error {error:.1e}, over {limit:.0e}"
            for number, (error, limit) in enumerate(self.errors(setting))
            if not error <= limit
        )


def norm_ratio(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """norm(ours - reference) / norm(reference), infinite where ours has a NaN or another shape."""
    if ours.shape != reference.shape:
        return float("inf")
    wide, expected = ours.double().cpu(), reference.double().cpu()
    assert bool(torch.isfinite(expected).all()), "a reference has to be finite"
    error, size = float((wide - expected).norm()), float(expected.norm())
    if error != error:  # NaN
        return float("inf")
    return error / size if size else (0.0 if error == 0 else float("inf"))


@dataclass(frozen=True)
class Paged:
    """A paged cache in which only what belongs to a sequence is a number.

    Pages are in random order; slots after a sequence's end and entries of the table after its last
    page lead to NaN, so that a kernel that uses what it must not use gives NaN.

    Args:
        caches: Each `(blocks, block_tokens, ...)`.
        table: `(batch, max_blocks)` int32.
        contexts: `(batch,)` int32, tokens per sequence.
    """

    caches: tuple[torch.Tensor, ...]
    table: torch.Tensor
    contexts: torch.Tensor

    def slots(self, sequence: int, first: int, last: int) -> torch.Tensor:
        """`(last - first,)` int64 slots of some tokens of a sequence."""
        block_tokens = self.caches[0].shape[1]
        places = torch.arange(first, last)
        blocks = self.table[sequence].cpu().long()[places // block_tokens]
        return (blocks * block_tokens + places % block_tokens).to(self.table.device)


def paged(
    setting: Setting,
    contexts: Sequence[int],
    block_tokens: int,
    shapes: Sequence[tuple[int, ...]],
) -> Paged:
    """A cache that holds random numbers for sequences of these lengths.

    Args:
        setting: Type and device.
        contexts: Tokens of each sequence.
        block_tokens: Tokens per page.
        shapes: Shape of one token in each cache, such as `(kv_heads, head_dim)` twice.
    """
    pages = [-(-context // block_tokens) for context in contexts]
    poison = sum(pages)  # one page that nobody owns
    generator = torch.Generator().manual_seed(setting.seed)
    order = torch.randperm(poison, generator=generator).tolist()
    table = torch.full((len(contexts), max([*pages, 1]) + 1), poison, dtype=torch.int32)
    owned = torch.zeros((poison + 1, block_tokens), dtype=torch.bool)
    for row, (count, context) in enumerate(zip(pages, contexts, strict=True)):
        mine = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        table[row, :count] = mine
        places = torch.arange(context)
        owned[mine.long()[places // block_tokens], places % block_tokens] = True
    caches = tuple(_poisoned(setting, index, owned, shape) for index, shape in enumerate(shapes))
    lengths = torch.tensor(contexts, dtype=torch.int32)
    return Paged(caches, table.to(setting.device), lengths.to(setting.device))


def _poisoned(
    setting: Setting, index: int, owned: torch.Tensor, shape: tuple[int, ...]
) -> torch.Tensor:
    """Random numbers in slots that are owned, NaN in all others."""
    drawn = Setting(setting.dtype, "cpu", seed=setting.seed + index).normal(*owned.shape, *shape)
    drawn[~owned] = float("nan")
    return drawn.to(setting.device)
