"""What one launch is expected to take, from the roofline: to plan with, never to be reported.

The curves are those of `kernels_profile/efficiency`, fitted to other projects' kernels. Ours may be
slower, which `SLOWER` allows for; while a profile runs, the estimates are corrected by what was
measured so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernels_profile.curves import CurveBook
from kernels_profile.operators import (
    DecodeAttentionCurve,
    ElementwiseCurve,
    GemmCurve,
    PrefillAttentionCurve,
)
from sim.specs import DeviceSpec

SLOWER = 1.5
"""How much slower than those kernels ours are taken to be: an assumption, on the safe side."""

LAUNCH_US = 3.0
"""Of one kernel inside a graph: an assumption."""


class Estimator:
    """Times of single launches on a device, us.

    Args:
        device: Its data sheet.
    """

    def __init__(self, device: DeviceSpec) -> None:
        book = CurveBook()
        self.device = device
        self._gemm = {key: book.find("gemm", device.name, key).curve for key in ("bf16", "fp8")}
        self._decode = book.find("decode_attention", device.name, "bf16").curve
        self._prefill = book.find("prefill_attention", device.name, "bf16").curve
        self._elementwise = book.find("elementwise", device.name, "bf16").curve

    def linear(self, rows: float, n: int, k: int, dtype: str = "bf16", copies: float = 1) -> float:
        """`rows` times a weight of (n, k), of which `copies` are read (experts)."""
        curve = self._gemm["fp8" if dtype == "fp8" else "bf16"]
        assert isinstance(curve, GemmCurve)
        element = 1 if dtype == "fp8" else 2
        moved = element * (copies * n * k + rows * k) + 2 * rows * n
        return SLOWER * curve.us(self._memory_us(moved), self._flops_us(2 * rows * n * k, dtype))

    def prefill(self, key: Mapping[str, Any]) -> float:
        """Causal attention of equal chunks over their histories."""
        curve = self._prefill
        assert isinstance(curve, PrefillAttentionCurve)
        heads, width = key["heads"], key["head_dim"]
        rows, context = key["batch"] * key["tokens"], key["history"] + key["tokens"]
        pairs = rows * (key["history"] + (key["tokens"] + 1) / 2)
        moved = 4 * rows * heads * width + 4 * key["batch"] * context * key["kv_heads"] * width
        compute_us = self._flops_us(4 * pairs * heads * width, "bf16")
        return SLOWER * float(curve.us(self._memory_us(moved), compute_us, context * width / 128))

    def decode(self, key: Mapping[str, Any]) -> float:
        """Attention of one new token of each sequence."""
        curve = self._decode
        assert isinstance(curve, DecodeAttentionCurve)
        moved = 4 * key["batch"] * key["context"] * key["kv_heads"] * key["head_dim"]
        return SLOWER * float(curve.us(key["batch"] * key["kv_heads"], self._memory_us(moved)))

    def mixed(self, key: Mapping[str, Any]) -> float:
        """One chunk and decodes in one launch: at most the sum of both."""
        return self.prefill({**key, "batch": 1}) + self.decode({**key, "batch": key["decodes"]})

    def bytes(self, moved: float) -> float:
        """A kernel that only moves bytes."""
        curve = self._elementwise
        assert isinstance(curve, ElementwiseCurve)
        return SLOWER * curve.us(self._memory_us(moved))

    def both(self, moved: float, flops: float) -> float:
        """A kernel of known bytes and 16-bit FLOPs that has no curve of its own."""
        curve = self._gemm["bf16"]
        assert isinstance(curve, GemmCurve)
        return SLOWER * curve.us(self._memory_us(moved), self._flops_us(flops, "bf16"))

    def _memory_us(self, moved: float) -> float:
        return moved / self.device.memory_bytes_per_s * 1e6

    def _flops_us(self, flops: float, dtype: str) -> float:
        return flops / self.device.peak_flops(dtype) * 1e6
