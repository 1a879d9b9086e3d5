"""How finely each operator is measured: the axes, in three tiers.

Each tier adds values to the axes of the one before. A table's points of a tier are the product of
its axes so far, less what an earlier tier has: so the points of every tier together with those
before form a full grid, in which one can interpolate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

COARSE, FINE, FINEST = 1, 2, 3
TIERS = (COARSE, FINE, FINEST)

Axis = tuple[tuple[int | float, ...], ...]
"""Values added by each tier."""

CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Batches that vLLM V1 captures in CUDA graphs up to 512: steps of decodes have these rows."""


def upto(axis: Axis, tier: int) -> list[int | float]:
    """All values of an axis at a tier, ascending."""
    return sorted({value for values in axis[:tier] for value in values})


@dataclass(frozen=True)
class Grid:
    """Axes of one table, by column.

    Attributes:
        axes: The values that each tier adds, by column; a column keeps the table's name.
    """

    axes: Mapping[str, Axis]

    def points(self) -> Iterator[tuple[int, dict[str, int | float]]]:
        """(tier, values by column) of every point, coarse ones first."""
        seen: set[tuple[int | float, ...]] = set()
        for tier in TIERS:
            for values in product(*(upto(axis, tier) for axis in self.axes.values())):
                if values not in seen:
                    seen.add(values)
                    yield tier, dict(zip(self.axes, values, strict=True))


@dataclass(frozen=True)
class Grids:
    """The grids of every table.

    `skewed` is a grid of its own, for decode attention over unequal contexts: coarser than that of
    equal ones; `prompts` are several chunks in one launch. `copy_bytes` and `matmul_side` (rows,
    columns and depth) are what the card's ceilings are measured with.
    """

    linear: Grid
    prefill: Grid
    prompts: Grid
    decode: Grid
    skewed: Grid
    mixed: Grid
    elementwise: Grid
    sequences: Grid
    moe: Grid
    overhead: Grid
    copy_bytes: int
    matmul_side: int


FULL = Grids(
    linear=Grid(
        {
            "tokens": (
                (1, 16, 64, 256, 1024, 2048, 8192),
                (2, 4, 8, 32, 128, 192, 384, 512, 768, 1536, 3072, 4096, 6144, 16384),
                (*CAPTURED, 640, 896, 1280, 1792, 2560, 3584, 5120, 7168, 12288),
            )
        }
    ),
    prefill=Grid(
        {
            "batch": ((1,), (), ()),
            "tokens": (
                (128, 512, 2048, 8192),
                (16, 64, 256, 1024, 4096, 16384),
                (32, 384, 768, 1536, 3072, 6144),
            ),
            "history": ((0, 4096), (512, 2048, 8192, 32768), (1024, 16384, 65536, 122880)),
        }
    ),
    prompts=Grid(
        {
            "batch": ((4,), (2, 8), (16,)),
            "tokens": ((256, 1024), (64, 512, 2048), (128, 4096)),
            "history": ((0,), (2048,), (8192,)),
        }
    ),
    decode=Grid(
        {
            "batch": (
                (1, 16, 64, 256),
                (2, 4, 8, 32, 128, 512),
                (24, 48, 96, 192, 384),
            ),
            "context": (
                (128, 1024, 8192),
                (16, 512, 2048, 4096, 32768),
                (256, 768, 1536, 3072, 6144, 16384, 65536, 131072),
            ),
            "skew": ((0,), (), ()),
        }
    ),
    skewed=Grid(
        {
            "batch": ((16, 128), (64, 256), (32, 512)),
            "context": ((1024,), (512, 4096), (2048, 8192)),
            "skew": ((1.0,), (0.5,), (0.25, 1.5)),
        }
    ),
    mixed=Grid(
        {
            "tokens": ((512, 2048), (128, 1024), (256, 4096)),
            "history": ((0, 4096), (1024,), (16384,)),
            "decodes": ((16, 128), (4, 64), (32, 256)),
            "context": ((1024, 4096), (256,), (2048,)),
        }
    ),
    elementwise=Grid(
        {
            "tokens": (
                (1, 64, 512, 2048, 8192),
                (16, 128, 256, 1024, 4096, 16384),
                (8, 32, 192, 384, 768, 1536, 3072, 6144),
            )
        }
    ),
    sequences=Grid(
        {
            "sequences": (
                (1, 64, 256),
                (4, 16, 32, 128, 512),
                (2, 8, 24, 48, 96, 192, 384, 1024),
            )
        }
    ),
    moe=Grid(
        {
            "tokens": (
                (1, 16, 64, 256, 2048),
                (4, 8, 32, 128, 512, 1024, 4096, 8192),
                (2, 24, 48, 96, 192, 384, 768, 1536, 3072),
            ),
            "touched_share": ((1.0,), (0.5,), (0.75,)),
        }
    ),
    overhead=Grid({"size": ((1, 64, 512), (16, 256), (4, 1024))}),
    copy_bytes=2**30,
    matmul_side=8192,
)
"""What a profile of a GPU measures."""

TINY = Grids(
    linear=Grid({"tokens": ((1, 5), (3,), ())}),
    prefill=Grid(
        {"batch": ((1,), (), ()), "tokens": ((5,), (3,), ()), "history": ((0, 7), (), ())}
    ),
    prompts=Grid({"batch": ((2,), (), ()), "tokens": ((3,), (), ()), "history": ((0,), (), ())}),
    decode=Grid(
        {"batch": ((1, 3), (2,), ()), "context": ((9,), (20,), ()), "skew": ((0,), (), ())}
    ),
    skewed=Grid({"batch": ((4,), (), ()), "context": ((9,), (), ()), "skew": ((1.0,), (), ())}),
    mixed=Grid(
        {
            "tokens": ((4,), (), ()),
            "history": ((5,), (0,), ()),
            "decodes": ((2,), (), ()),
            "context": ((6,), (), ()),
        }
    ),
    elementwise=Grid({"tokens": ((1, 4), (3,), ())}),
    sequences=Grid({"sequences": ((1, 3), (2,), ())}),
    moe=Grid({"tokens": ((1, 3), (5,), ()), "touched_share": ((1.0,), (0.5,), ())}),
    overhead=Grid({"size": ((1, 4), (), ())}),
    copy_bytes=2**12,
    matmul_side=32,
)
"""What the interpreter can walk through on a CPU: for tests of the profiler, not of any device."""
