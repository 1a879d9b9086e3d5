"""Launches that show what the card itself can do."""

from __future__ import annotations

from typing import Any

from kernels_profile.profiler.bench import EPS, Bench
from kernels_profile.profiler.points import Point
from kernels_profile.profiler.timing import Work


def ceilings(point: Point, bench: Bench, config: Any) -> Work:
    import torch

    if point["what"] == "copy":
        elements = point.set_bytes // 4
        source, target = bench.arena.take(elements), bench.arena.take(elements)
        return Work(lambda i: target.copy_(source))
    side = point.sizes["side"]
    if point["what"] == "matmul_fp8":
        a, b = (bench.arena.take(side, side, dtype=torch.float8_e4m3fn) for _ in range(2))
        one = bench.ones(1)
        return Work(lambda i: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16))
    a, b = bench.arena.take(side, side), bench.arena.take(side, side)
    return Work(lambda i: torch.mm(a, b.t()))


def overhead(point: Point, bench: Bench, config: Any) -> Work:
    """One launch of a small kernel: the RMS norm of one token, as an engine would call it."""
    from kernels_profile.kernels.norm import rms_norm_residual

    x, residual, weight = (bench.arena.take(1, 128) for _ in range(3))
    return Work(lambda i: rms_norm_residual(x, residual, weight[0], EPS))
