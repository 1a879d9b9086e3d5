"""Greedy sampling: the largest logit of each sequence, with and without the LM head before it.

`lm_head_greedy` never stores logits: each program keeps the largest of its tile, in float32, and
a second kernel picks among tiles. `greedy` does the same over logits that are there already.
The lowest id of equal logits wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need
from kernels_profile.kernels.linear import product


@dataclass(frozen=True)
class HeadConfig(Config):
    """Tile of the logits (block_m sequences, block_n of the vocabulary), step in hidden size."""

    block_m: int
    block_n: int
    block_k: int


@dataclass(frozen=True)
class ScanConfig(Config):
    """Numbers per program, or per step of the kernel that picks among tiles."""

    block: int


FEW = (HeadConfig(4, 4, 16, 64, 128), HeadConfig(4, 3, 16, 128, 128))
"""For at most 16 sequences."""
MANY = (HeadConfig(4, 4, 64, 128, 64), HeadConfig(8, 3, 128, 128, 64))
"""For more; the smaller tile up to 64."""
CONFIGS = (*FEW, *MANY)
SCAN = ScanConfig(8, 1, 4096)
PICK = ScanConfig(4, 1, 1024)
NO_ID = tl.constexpr(2**31 - 1)


def choose(sequences: int) -> tuple[HeadConfig, ...]:
    """Candidates for a number of sequences, the likeliest best first."""
    return FEW if sequences <= 16 else MANY[:1] if sequences <= 64 else MANY[::-1]


@triton.jit(do_not_specialize=["n"])
def _lm_head_greedy_kernel(
    hidden, weight, values, ids, n, vocab, width, hidden_stride, weight_stride,
    EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # Sequences are the fast axis: all of them use a tile of the weights while it is in the cache.
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    tile = tl.program_id(1)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    logits = product(
        hidden, weight, rows, columns, n, vocab, width, hidden_stride, weight_stride, 0,
        EVEN_K, UPCAST, BLOCK_M, BLOCK_N, BLOCK_K, 1,
    )  # fmt: skip
    logits = tl.where((columns < vocab)[None, :], logits, float("-inf"))
    best = tl.max(logits, axis=1)
    first = tl.min(tl.where(logits == best[:, None], columns[None, :], NO_ID), axis=1)
    at = rows * tl.num_programs(1) + tile
    tl.store(values + at, best, mask=rows < n)
    tl.store(ids + at, first, mask=rows < n)


@triton.jit
def _scan_kernel(logits, values, ids, stride, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row * stride + columns
    numbers = tl.load(at, mask=columns < vocab, other=float("-inf")).to(tl.float32)
    best = tl.max(numbers, axis=0)
    tl.store(values + row * tl.num_programs(1) + tl.program_id(1), best)
    first = tl.min(tl.where(numbers == best, columns, NO_ID), axis=0)
    tl.store(ids + row * tl.num_programs(1) + tl.program_id(1), first)


@triton.jit(do_not_specialize=["tiles"])
def _pick_kernel(values, ids, out, tiles, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    chosen = tl.full((BLOCK,), NO_ID, dtype=tl.int32)
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        at = row * tiles + tile
        value = tl.load(values + at, mask=tile < tiles, other=float("-inf"))
        found = tl.load(ids + at, mask=tile < tiles, other=NO_ID)
        # Tiles come in the order of ids, so that an equal one later loses.
        chosen = tl.where((value > best) | ((value == best) & (found < chosen)), found, chosen)
        best = tl.maximum(best, value)
    largest = tl.max(best, axis=0)
    tl.store(out + row, tl.min(tl.where(best == largest, chosen, NO_ID), axis=0).to(tl.int64))


def plan_lm_head_greedy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    config: HeadConfig,
    upcast: bool = False,
) -> list[Launch]:
    """Launches of `lm_head_greedy`: the tiles, and the choice among them."""
    (n, width), vocab = hidden.shape, weight.shape[0]
    tiles = triton.cdiv(vocab, config.block_n)
    values, ids = _best_of_tiles(hidden, n, tiles)
    arguments: dict[str, Any] = {
        "hidden": hidden, "weight": weight, "values": values, "ids": ids, "n": n, "vocab": vocab,
        "width": width, "hidden_stride": hidden.stride(0), "weight_stride": weight.stride(0),
        "EVEN_K": width % config.block_k == 0, "UPCAST": upcast,
    }  # fmt: skip
    grid = (triton.cdiv(n, config.block_m), tiles)
    launch = Launch(_lm_head_greedy_kernel, grid, arguments, config)
    return [launch, _plan_pick(values, ids, out)]


def plan_greedy(logits: torch.Tensor, out: torch.Tensor) -> list[Launch]:
    """Launches of `greedy`: the largest of each part of a row, and the choice among them."""
    n, vocab = logits.shape
    tiles = triton.cdiv(vocab, SCAN.block)
    values, ids = _best_of_tiles(logits, n, tiles)
    arguments: dict[str, Any] = {
        "logits": logits, "values": values, "ids": ids, "stride": logits.stride(0), "vocab": vocab,
    }  # fmt: skip
    launch = Launch(_scan_kernel, (n, tiles), arguments, SCAN)
    return [launch, _plan_pick(values, ids, out)]


def _best_of_tiles(like: torch.Tensor, n: int, tiles: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = like.new_empty((n, tiles), dtype=torch.float32)
    return values, like.new_empty((n, tiles), dtype=torch.int32)


def _plan_pick(values: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> Launch:
    arguments = {"values": values, "ids": ids, "out": out, "tiles": values.shape[1]}
    return Launch(_pick_kernel, (values.shape[0],), arguments, PICK)


def lm_head_greedy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    config: HeadConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """Ids of the largest logits hidden weight^T, which are compared in float32.

    Args:
        hidden: `(n, h)`, last hidden state of each sequence that samples; rows contiguous.
        weight: `(vocab, h)`, likewise.
        out: `(n,)` int64; by default a new tensor.
        config: One of `choose(n)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out
    """
    n, width = hidden.shape
    need(weight.shape[1] == width, f"lm_head: hidden size {width}, weights of {weight.shape[1]}")
    need(hidden.stride(1) == 1 and weight.stride(1) == 1, "lm_head: rows have to be contiguous")
    out = hidden.new_empty((n,), dtype=torch.int64) if out is None else out
    if n:
        for launch in plan_lm_head_greedy(hidden, weight, out, config or choose(n)[0], upcast):
            launch.run()
    return out


def greedy(logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Id of the largest logit of each row.

    Args:
        logits: `(n, vocab)`, rows contiguous.
        out: `(n,)` int64; by default a new tensor.

    Returns:
        out
    """
    need(logits.stride(1) == 1, "greedy: rows have to be contiguous")
    out = logits.new_empty((logits.shape[0],), dtype=torch.int64) if out is None else out
    if logits.shape[0]:
        for launch in plan_greedy(logits, out):
            launch.run()
    return out


def compile_cases() -> list[CompileCase]:
    """Every configuration at Llama-3.1-8B's head, 128256 by 4096."""
    weight = meta(128_256, 4096)
    cases = []
    for config in CONFIGS:
        n = config.block_m
        ids = meta(n, dtype=torch.int64)
        launch, pick = plan_lm_head_greedy(meta(n, 4096), weight, ids, config)
        matrix = "native" if config.block_m >= 64 else "any"
        cases.append(CompileCase(launch, "bf16 128256x4096", matrix))
    scan, _ = plan_greedy(meta(64, 128_256), ids)
    return [*cases, CompileCase(pick, "int64"), CompileCase(scan, "bf16 vocab=128256")]
