"""Times of single operators by data sheet and fitted efficiencies, at any size.

What `RooflineStepTime` sums up, operator by operator: where a table ends, its last time is scaled
by the ratio of these; where one is missing, they fill the gap if a config asks for that.
"""

from __future__ import annotations

from kernels_profile.curves import CurveBook
from kernels_profile.latent import LatentAttention
from kernels_profile.operators import (
    AllReduceCurve,
    AllToAllCurve,
    Curve,
    DecodeAttentionCurve,
    ElementwiseCurve,
    GemmCurve,
    MixedAttentionCurve,
    PrefillAttentionCurve,
    SamplerCurve,
    link_key,
)
from sim.specs import KV_BYTES, DeviceSpec, ModelSpec, weight_bits

ELEMENTWISE_BYTES = {
    "embedding": 4.0,
    "rms_norm": 8.0,
    "rotary": 4.0,
    "qk_norm": 4.0,
    "silu_mul": 6.0,
    "add": 6.0,
}
"""Bytes that an operator moves for each element of its width, 16 bits each (see
`operators.elementwise_bytes`)."""


class Analytic:
    """Operators of one device, microseconds.

    Args:
        device: Data sheet.
        precision: Of the linear layers.
        kv_dtype: Of the KV cache.
        efficiencies: Device whose fitted efficiencies to take; None for its own, or those that its
            sheet names.
    """

    def __init__(
        self, device: DeviceSpec, precision: str, kv_dtype: str, efficiencies: str | None = None
    ) -> None:
        self.device = device
        self._of = efficiencies or device.efficiencies_of or device.name
        self.precision = precision
        self.kv_bytes = KV_BYTES[kv_dtype]
        self._kv_dtype = kv_dtype
        self._book = CurveBook()
        self._kv = "fp8" if kv_dtype == "fp8" else "bf16"
        self._found: dict[tuple[str, str], Curve] = {}
        self._mixed = self._kv == "bf16" and self._book.measured("mixed_attention", self._of)

    def linear(self, n: float, k: float, tokens: float, dtype: str = "") -> float:
        """A matrix product of `tokens` rows."""
        dtype = dtype or self.precision
        eight_bits = bool(dtype in ("fp8", "int8") and self.device.fp8_flops)
        curve = self._curve("gemm", "fp8" if eight_bits else "bf16")
        assert isinstance(curve, GemmCurve)
        moved = n * k * weight_bits(dtype) / 8 + tokens * (k * (1 if eight_bits else 2) + n * 2)
        flops = 2.0 * n * k * tokens
        return float(
            curve.us(
                moved / self.device.memory_bytes_per_s * 1e6,
                flops / self.device.peak_flops(dtype) * 1e6,
            )
        )

    def compute_share(self, n: float, k: float, tokens: float, dtype: str = "") -> float:
        """By how much of its time a matrix product computes beyond what memory needs, 0 to 1.

        0 up to the ridge of the roofline, and near 1 far beyond it.
        """
        dtype = dtype or self.precision
        moved = n * k * weight_bits(dtype) / 8 + tokens * (k + n) * 2
        busy = 2.0 * n * k * tokens / self.device.peak_flops(dtype)
        return max(0.0, 1 - moved / self.device.memory_bytes_per_s / busy)

    def experts(self, n: float, k: float, tokens: float, touched: float) -> float:
        """A grouped matrix product: `tokens` rows over `touched` experts' weights."""
        eight_bits = bool(self.precision in ("fp8", "int8") and self.device.fp8_flops)
        curve = self._curve("gemm", "fp8" if eight_bits else "bf16")
        assert isinstance(curve, GemmCurve)
        moved = touched * n * k * weight_bits(self.precision) / 8
        moved += tokens * (k * (1 if eight_bits else 2) + n * 2)
        return float(
            curve.us(
                moved / self.device.memory_bytes_per_s * 1e6,
                2.0 * n * k * tokens / self.device.peak_flops(self.precision) * 1e6,
            )
        )

    def elementwise(self, op: str, width: float, tokens: float) -> float:
        """A norm, rotary embedding, activation or embedding."""
        curve = self._curve("elementwise", "bf16")
        assert isinstance(curve, ElementwiseCurve)
        moved = ELEMENTWISE_BYTES[op] * width * tokens
        return float(curve.us(moved / self.device.memory_bytes_per_s * 1e6))

    def prefill(
        self,
        heads: float,
        kv_heads: float,
        head_dim: float,
        batch: float,
        tokens: float,
        history: float,
    ) -> float:
        """One launch of `batch` chunks."""
        curve = self._curve("prefill_attention", self._kv)
        assert isinstance(curve, PrefillAttentionCurve)
        chunk_us, read_us = self._prefill_us(curve, heads, kv_heads, head_dim, tokens, history)
        walk = curve.tile_ns * head_dim / 128 * (tokens + history) / 1e3
        return curve.t0_us + max(batch * chunk_us, batch * read_us, walk)

    def _prefill_us(
        self,
        curve: PrefillAttentionCurve,
        heads: float,
        kv_heads: float,
        head_dim: float,
        tokens: float,
        history: float,
    ) -> tuple[float, float]:
        """Work of one chunk, and reading of what came before it."""
        kv = 2 * kv_heads * head_dim * self.kv_bytes
        bandwidth = self.device.memory_bytes_per_s
        io = tokens * (4 * heads * head_dim + kv) / bandwidth * 1e6 / curve.e_io
        pairs = tokens * (history + (tokens + 1) / 2)
        flops = 4 * heads * head_dim * pairs / self.device.bf16_flops * 1e6 / curve.e_flop
        decode = self._curve("decode_attention", self._kv)
        assert isinstance(decode, DecodeAttentionCurve)
        return io + flops, history * kv / (decode.e_bw * bandwidth) * 1e6

    def decode(self, kv_heads: float, head_dim: float, batch: float, context: float) -> float:
        """One launch of `batch` decodes: two lines over the context, see `decode_kink`."""
        curve = self._curve("decode_attention", self._kv)
        assert isinstance(curve, DecodeAttentionCurve)
        reading = batch * context * self._token_us(curve, kv_heads, head_dim)
        return curve.t0_us + max(curve.row_ns * batch * kv_heads / 1e3, reading)

    def decode_kink(self, kv_heads: float, head_dim: float) -> float:
        """The context, tokens, at which the two lines of `decode` meet."""
        curve = self._curve("decode_attention", self._kv)
        assert isinstance(curve, DecodeAttentionCurve)
        return curve.row_ns * kv_heads / 1e3 / self._token_us(curve, kv_heads, head_dim)

    def _token_us(self, curve: DecodeAttentionCurve, kv_heads: float, head_dim: float) -> float:
        kv = 2 * kv_heads * head_dim * self.kv_bytes
        return kv / (curve.e_bw * self.device.memory_bytes_per_s) * 1e6

    def mixed(
        self,
        heads: float,
        kv_heads: float,
        head_dim: float,
        tokens: float,
        history: float,
        decodes: float,
        context: float,
    ) -> float:
        """One launch with a chunk and decodes; the sum of two where it was not measured."""
        if not self._mixed:
            chunk = self.prefill(heads, kv_heads, head_dim, 1, tokens, history)
            return chunk + self.decode(kv_heads, head_dim, decodes, context)
        curve = self._curve("prefill_attention", self._kv)
        extra = self._curve("mixed_attention", "bf16")
        assert isinstance(curve, PrefillAttentionCurve)
        assert isinstance(extra, MixedAttentionCurve)
        chunk_us, _ = self._prefill_us(curve, heads, kv_heads, head_dim, tokens, history)
        rows = decodes * heads
        work = chunk_us + (extra.row_ns * rows + extra.token_ns * rows * context) / 1e3
        longest = max(tokens + history, context)
        return curve.t0_us + max(work, curve.tile_ns * head_dim / 128 * longest / 1e3)

    def latent(self, model: ModelSpec, heads: float) -> LatentAttention:
        """Latent attention of a model with so many heads on this GPU."""
        decode = self._curve("decode_attention", self._kv)
        prefill = self._curve("prefill_attention", self._kv)
        gemm = self._curve("gemm", "bf16")
        assert isinstance(decode, DecodeAttentionCurve)
        assert isinstance(prefill, PrefillAttentionCurve)
        assert isinstance(gemm, GemmCurve)
        gpus = model.heads / heads
        return LatentAttention(model, self.device, self._kv_dtype, gpus, decode, prefill, gemm)

    def collective(self, op: str, gpus: int, message_bytes: float) -> float:
        """A collective; all but the all-reduce send half of what it does.

        All-gather and reduce-scatter take the latency and the rate of the all-reduce.
        """
        larger = next((n for n in (2, 4, 8) if n >= gpus), 8)
        fitted = "all_to_all" if op == "all_to_all" else "all_reduce"
        curve = self._curve(fitted, link_key(self.device, larger))
        assert isinstance(curve, AllReduceCurve | AllToAllCurve)
        sent = (gpus - 1) / gpus * message_bytes * (2 if op == "all_reduce" else 1)
        return float(curve.us(sent / self.device.peer_bytes_per_s * 1e6))

    def sampler(self, sequences: float) -> float:
        """From logits to tokens."""
        curve = self._curve("sampler", "any")
        assert isinstance(curve, SamplerCurve)
        return float(curve.us(sequences))

    def _curve(self, operator: str, key: str) -> Curve:
        if (operator, key) not in self._found:
            self._found[operator, key] = self._book.find(operator, self._of, key).curve
        return self._found[operator, key]
