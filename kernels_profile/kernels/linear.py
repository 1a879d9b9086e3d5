"""Linear layers: y = x w^T on tensor cores, in 16 bits or fp8, with split-K for few tokens.

Programs are numbered in groups of `group_m` rows of tiles, so that programs that run at the same
time share rows of x and w in the L2 cache (Triton's matrix-multiplication tutorial). With few
tokens there are too few tiles to fill a GPU: `split_k` programs share one tile, each over a part of
k; their float32 partial sums are added by a second kernel in a fixed order, so results repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from kernels_profile.kernels.compiling import CompileCase
from kernels_profile.kernels.launch import Config, Launch, meta, need
from sim.errors import ProfileError


@dataclass(frozen=True)
class LinearConfig(Config):
    """Tile of the output (block_m tokens, block_n outputs), step in k, and how k is split."""

    block_m: int
    block_n: int
    block_k: int
    group_m: int = 8
    split_k: int = 1


@dataclass(frozen=True)
class SumConfig(Config):
    """Elements per program of the kernel that adds partial sums."""

    block: int


def _config(m: int, n: int, k: int, warps: int, stages: int, split: int = 1) -> LinearConfig:
    return LinearConfig(warps, stages, m, n, k, split_k=split)


FEW = (
    _config(16, 64, 128, 4, 4),
    _config(16, 64, 128, 4, 4, split=4),
    _config(16, 128, 128, 4, 3, split=8),
)
"""For at most 16 tokens: the weights' bytes are the cost, so many loads in flight."""
SOME = (
    _config(64, 64, 64, 4, 4),
    _config(64, 64, 64, 4, 4, split=4),
    _config(64, 128, 64, 4, 4, split=2),
)
"""For 17 to 64 tokens (64 rows are the least that wgmma and tcgen05 take)."""
BATCH = (
    _config(64, 128, 64, 4, 4),
    _config(128, 128, 64, 8, 4, split=2),
    _config(128, 128, 64, 8, 4),
)
"""For 65 to 512 tokens, a large decode batch: still few tiles."""
MANY = (
    _config(128, 256, 64, 8, 3),
    _config(128, 128, 64, 8, 4),
    _config(128, 128, 64, 4, 3),
)
"""For more tokens."""
CLASSES = ((16, FEW), (64, SOME), (512, BATCH))
"""Most tokens, and the configurations up to there."""
CONFIGS = tuple(dict.fromkeys((*FEW, *SOME, *BATCH, *MANY)))
"""Every configuration that `choose` may name for 16-bit operands."""
CONFIGS_FP8 = tuple(replace(config, block_k=2 * config.block_k) for config in CONFIGS)
"""The same bytes per step in fp8."""
SUM = SumConfig(4, 1, 1024)


def choose(m: int, n: int, k: int, fp8: bool = False) -> tuple[LinearConfig, ...]:
    """Candidates for a shape, the likeliest best first; whoever profiles times each."""
    found = next((configs for most, configs in CLASSES if m <= most), MANY)
    return tuple(CONFIGS_FP8[CONFIGS.index(config)] for config in found) if fp8 else found


@triton.jit(do_not_specialize=["m"])
def _linear_kernel(
    x, w, out, x_scale, w_scale, m, n, k, x_stride, w_stride,
    EVEN_K: tl.constexpr, X_ROWS: tl.constexpr, W_ROWS: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    pid_m, pid_n = _tile(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    part = tl.program_id(1)
    rows = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    total = product(
        x, w, rows, columns, m, n, k, x_stride, w_stride, part,
        EVEN_K, UPCAST, BLOCK_M, BLOCK_N, BLOCK_K, SPLIT_K,
    )  # fmt: skip
    if x_scale is not None:
        total *= _scales(x_scale, rows, m, X_ROWS)[:, None]
        total *= _scales(w_scale, columns, n, W_ROWS)[None, :]
    kept = (rows < m)[:, None] & (columns < n)[None, :]
    at = out + part.to(tl.int64) * m * n + rows.to(tl.int64)[:, None] * n + columns[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=kept)


@triton.jit
def product(
    x, w, rows, columns, m, n, k, x_stride, w_stride, part,
    EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Rows of x times columns (rows of w), over steps `part`, `part + SPLIT_K`, ... of k."""
    inner = part * BLOCK_K + tl.arange(0, BLOCK_K)
    # Rows past the end read the last one instead: no mask in the loop, and nothing of them is kept.
    x_rows = tl.minimum(rows, m - 1).to(tl.int64)
    w_rows = tl.minimum(columns, n - 1).to(tl.int64)
    x_at = x + x_rows[:, None] * x_stride + inner[None, :]
    w_at = w + w_rows[None, :] * w_stride + inner[:, None]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(part * BLOCK_K, k, BLOCK_K * SPLIT_K):
        if EVEN_K:
            a, b = tl.load(x_at), tl.load(w_at)
        else:
            left = k - start
            a = tl.load(x_at, mask=tl.arange(0, BLOCK_K)[None, :] < left, other=0.0)
            b = tl.load(w_at, mask=tl.arange(0, BLOCK_K)[:, None] < left, other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
        x_at += BLOCK_K * SPLIT_K
        w_at += BLOCK_K * SPLIT_K
    return total


@triton.jit
def _tile(pid, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Row and column of a program's tile: down `GROUP_M` rows of tiles, then the next column."""
    in_group = GROUP_M * tiles_n
    first = pid // in_group * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    return first + pid % in_group % height, pid % in_group // height


@triton.jit
def _scales(scale, index, size, ROWS: tl.constexpr):
    """Scale of each row, or one for all of them."""
    if ROWS:
        return tl.load(scale + tl.minimum(index, size - 1))
    return tl.load(scale + index * 0)


@triton.jit(do_not_specialize=["size"])
def _sum_parts_kernel(parts, out, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + part * size.to(tl.int64) + at, mask=at < size, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < size)


def plan_linear(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor,
    config: LinearConfig,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    upcast: bool = False,
) -> list[Launch]:
    """Launches of one linear layer: the product, and with split-K the sum of its parts.

    Args:
        x: `(m, k)`, rows contiguous, any distance between rows.
        w: `(n, k)`, likewise.
        out: `(m, n)`, contiguous, 16 or 32 bits.
        config: Block sizes.
        scales: Of x (one, or one per row) and of w (one, or one per row), float32.
        upcast: Operands are converted to float32 after the load (to check types that the
            interpreter cannot compute with).
    """
    (m, k), n = x.shape, w.shape[0]
    split = config.split_k
    target = out if split == 1 else out.new_empty((split, m, n), dtype=torch.float32)
    x_scale, w_scale = scales or (None, None)
    arguments: dict[str, Any] = {
        "x": x, "w": w, "out": target, "x_scale": x_scale, "w_scale": w_scale,
        "m": m, "n": n, "k": k, "x_stride": x.stride(0), "w_stride": w.stride(0),
        "EVEN_K": k % config.block_k == 0,
        "X_ROWS": x_scale is not None and x_scale.numel() > 1,
        "W_ROWS": w_scale is not None and w_scale.numel() > 1,
        "UPCAST": upcast,
    }  # fmt: skip
    tiles = triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n)
    launches = [Launch(_linear_kernel, (tiles, split), arguments, config)]
    if split > 1:
        adding = {"parts": target, "out": out, "size": m * n, "PARTS": split}
        launches.append(Launch(_sum_parts_kernel, (triton.cdiv(m * n, SUM.block),), adding, SUM))
    return launches


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    out: torch.Tensor | None = None,
    config: LinearConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """y = x w^T.

    Args:
        x: `(m, k)`; rows contiguous.
        w: `(n, k)`; rows contiguous; the type of x.
        out: `(m, n)`, contiguous; by default a new tensor of the type of x.
        config: One of `choose(m, n, k)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Returns:
        out
    """
    m, n, k = _shape(x, w)
    out = x.new_empty((m, n)) if out is None else _checked(out, m, n)
    if m:
        for launch in plan_linear(x, w, out, config or choose(m, n, k)[0], upcast=upcast):
            launch.run()
    return out


def linear_fp8(
    x8: torch.Tensor,
    w8: torch.Tensor,
    x_scale: torch.Tensor,
    w_scale: torch.Tensor,
    out: torch.Tensor | None = None,
    config: LinearConfig | None = None,
    upcast: bool = False,
) -> torch.Tensor:
    """y = (x8 w8^T) x_scale w_scale, from e4m3 to bfloat16, sums in float32.

    On Hopper the sum inside a matrix instruction has about 14 bits (DeepSeek-V3, section 3.3.2).

    Args:
        x8: `(m, k)` float8_e4m3fn.
        w8: `(n, k)` float8_e4m3fn.
        x_scale: float32, one number `()` or `(1,)`, or one per token, `(m,)`.
        w_scale: float32, one number, or one per output, `(n,)`.
        out: `(m, n)`; by default a new bfloat16 tensor.
        config: One of `choose(m, n, k, fp8=True)`; by default its first.
        upcast: Operands are converted to float32 after the load.

    Raises:
        ProfileError: The GPU is older than sm_89, which has fp8 matrix instructions; a wrong size.
    """
    m, n, k = _shape(x8, w8)
    need(x8.dtype == torch.float8_e4m3fn, f"linear_fp8: x8 is {x8.dtype}, not float8_e4m3fn")
    need_fp8(x8.device)
    for name, scale, rows in (("x_scale", x_scale, m), ("w_scale", w_scale, n)):
        sizes = f"{name} has {scale.numel()} numbers, not 1 or {rows}"
        need(scale.numel() in (1, rows), f"linear_fp8: {sizes}")
    out = x8.new_empty((m, n), dtype=torch.bfloat16) if out is None else _checked(out, m, n)
    if m:
        chosen, scales = config or choose(m, n, k, fp8=True)[0], (x_scale, w_scale)
        for launch in plan_linear(x8, w8, out, chosen, scales, upcast):
            launch.run()
    return out


def need_fp8(device: torch.device) -> None:
    """Raise a ProfileError if this is a GPU without fp8 matrix instructions."""
    if device.type != "cuda":
        return
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < (8, 9):
        raise ProfileError(
            f"{torch.cuda.get_device_name(device)} (sm_{major}{minor}) has no fp8 matrix "
            "instructions; they need sm_89 or newer: profile bf16 instead"
        )


def _shape(x: torch.Tensor, w: torch.Tensor) -> tuple[int, int, int]:
    (m, k), n = x.shape, w.shape[0]
    need(w.shape[1] == k, f"linear: x has {k} inputs and w {w.shape[1]}")
    need(w.dtype == x.dtype, f"linear: x is {x.dtype} and w {w.dtype}")
    need(k == 1 or (x.stride(1) == 1 and w.stride(1) == 1), "linear: rows have to be contiguous")
    return m, n, k


def _checked(out: torch.Tensor, m: int, n: int) -> torch.Tensor:
    need(tuple(out.shape) == (m, n), f"linear: out is {tuple(out.shape)}, not {(m, n)}")
    need(out.is_contiguous(), "linear: out has to be contiguous")
    return out


def compile_cases() -> list[CompileCase]:
    """Every configuration at the shape of Llama-3.1-8B's attention output (4096 by 4096)."""
    cases = [c for config in CONFIGS for c in _cases(config, torch.bfloat16, 80)]
    cases += [c for config in CONFIGS_FP8 for c in _cases(config, torch.float8_e4m3fn, 90)[:1]]
    return list({case.name: case for case in cases}.values())


def _cases(config: LinearConfig, dtype: torch.dtype, first: int) -> list[CompileCase]:
    m = n = k = 4096
    x, w, out = meta(m, k, dtype=dtype), meta(n, k, dtype=dtype), meta(m, n)
    scale = meta(1, dtype=torch.float32)
    fp8 = dtype == torch.float8_e4m3fn
    matrix = "native" if config.block_m >= 64 else "any"
    about = f"{'fp8' if fp8 else 'bf16'} n={n} k={k}"
    launches = plan_linear(x, w, out, config, (scale, scale) if fp8 else None)
    kinds, abouts = (matrix, ""), (about, f"fp32 parts={config.split_k}")
    return [CompileCase(*of, first) for of in zip(launches, abouts, kinds, strict=False)]
