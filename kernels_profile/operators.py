"""Times of single operators as closed forms; floats or numpy arrays alike, microseconds.

Each form has the data sheet's ideal time in it, so that its coefficients are efficiencies (shares
of a peak) and fixed times. `fit.py` finds them, `efficiency/*.csv` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sim.specs import DeviceSpec, ModelSpec, kv_heads_per_gpu

Number = TypeVar("Number", float, npt.NDArray[np.float64])


@dataclass(frozen=True)
class GemmCurve:
    """``t0 + ((bytes / (e_bw BW))^p + (flops / (e_flop peak))^p)^(1/p)``.

    Attributes:
        t0_us: Launch, prologue and tail.
        e_bw: Share of the memory bandwidth.
        e_flop: Share of the peak of its precision.
        p: How sharp the knee of the roofline is: 1 adds both times, large takes the greater.
    """

    t0_us: float
    e_bw: float
    e_flop: float
    p: float

    def us(self, memory_us: Number, compute_us: Number) -> Number:
        """Time from the ideal times of its bytes and of its FLOPs."""
        both = (memory_us / self.e_bw) ** self.p + (compute_us / self.e_flop) ** self.p
        return self.t0_us + both ** (1 / self.p)


@dataclass(frozen=True)
class DecodeAttentionCurve:
    """``t0 + max(row_ns * rows * KV heads, KV bytes / (e_bw BW))``: two lines over the context.

    Attributes:
        t0_us: Launch, split and merge.
        row_ns: Of one row and KV head, whose smallest tile is computed however short its context.
        e_bw: Share of the memory bandwidth.
    """

    t0_us: float
    row_ns: float
    e_bw: float

    def us(self, row_heads: Number, memory_us: Number) -> Number:
        """Time from rows x KV heads of the GPU, and the ideal time of their keys and values."""
        rows, reading = self.row_ns * row_heads / 1e3, memory_us / self.e_bw
        return self.t0_us + np.maximum(rows, reading)


@dataclass(frozen=True)
class PrefillAttentionCurve:
    """``t0 + max(io / (e_io BW) + flops / (e_flop peak), tile_ns * longest context)``.

    The second term is the time of one row of tiles, which walks over all keys and values before it
    can end: it governs short chunks behind a long history, which leave most of the GPU idle.

    Attributes:
        t0_us: Launch.
        e_io: Share of the memory bandwidth for queries, keys, values and output of the chunk.
        e_flop: Share of the bf16 peak over the pairs that count.
        tile_ns: Of a tile, for each token of the context.
    """

    t0_us: float
    e_io: float
    e_flop: float
    tile_ns: float

    def us(self, io_us: Number, compute_us: Number, longest_context: Number) -> Number:
        """Time from the ideal times of all chunks together, and the longest context among them."""
        work, walk = io_us / self.e_io + compute_us / self.e_flop, self.tile_ns * longest_context
        return self.t0_us + np.maximum(work, walk / 1e3)


@dataclass(frozen=True)
class MixedAttentionCurve:
    """What decodes add to a launch that has prefill chunks too, where it was measured.

    FlashAttention 2 runs such a batch by its prefill kernel: a decode is a tile of one row for each
    query head, and walks over its whole context. The work of decodes and chunks adds up, and the
    longest walk bounds it from below.

    Attributes:
        row_ns: Of one decode and query head.
        token_ns: Of one token of context and query head.
    """

    row_ns: float
    token_ns: float

    def us(
        self,
        t0_us: Number,
        prefill_us: Number,
        walk_us: Number,
        row_heads: Number,
        context_heads: Number,
    ) -> Number:
        """Time of the launch, from the fixed time, work and walk of its chunks (and decodes)."""
        decodes = (self.row_ns * row_heads + self.token_ns * context_heads) / 1e3
        return t0_us + np.maximum(prefill_us + decodes, walk_us)


@dataclass(frozen=True)
class AllReduceCurve:
    """``alpha + 2 (n - 1) / n * bytes / (e_link * link)``, for n GPUs: latency and bandwidth.

    Attributes:
        alpha_us: Latency.
        e_link: Share of the bandwidth to the peers, one direction.
    """

    alpha_us: float
    e_link: float

    def us(self, link_us: Number) -> Number:
        """Time from the ideal time on the link of what each GPU has to send."""
        return self.alpha_us + link_us / self.e_link


@dataclass(frozen=True)
class ElementwiseCurve:
    """``t0 + bytes / (e_bw BW)``: norms, rotary embedding, activation.

    Attributes:
        t0_us: Launch.
        e_bw: Rate as a share of the memory bandwidth; above 1 where activations stay in cache.
    """

    t0_us: float
    e_bw: float

    def us(self, memory_us: Number) -> Number:
        """Time from the ideal time of its bytes."""
        return self.t0_us + memory_us / self.e_bw


@dataclass(frozen=True)
class SamplerCurve:
    """``t0 + row * sequences``: from logits to tokens.

    Attributes:
        t0_us: Its kernels' launches.
        row_us: Of one sequence.
    """

    t0_us: float
    row_us: float

    def us(self, sequences: Number) -> Number:
        """Time for that many sequences."""
        return self.t0_us + self.row_us * sequences


@dataclass(frozen=True)
class AllToAllCurve:
    """``alpha + (n - 1) / n * bytes / (e_link * link)``, for n GPUs that send `bytes` each.

    Attributes:
        alpha_us: Latency.
        e_link: Share of the bandwidth to the peers, one direction.
    """

    alpha_us: float
    e_link: float

    def us(self, link_us: Number) -> Number:
        """Time from the ideal time on the link of what each GPU has to send to others."""
        return self.alpha_us + link_us / self.e_link


Curve = (
    GemmCurve
    | DecodeAttentionCurve
    | PrefillAttentionCurve
    | MixedAttentionCurve
    | AllReduceCurve
    | AllToAllCurve
    | ElementwiseCurve
    | SamplerCurve
)

CURVES: Mapping[str, type[Curve]] = {
    "gemm": GemmCurve,
    "decode_attention": DecodeAttentionCurve,
    "prefill_attention": PrefillAttentionCurve,
    "mixed_attention": MixedAttentionCurve,
    "all_reduce": AllReduceCurve,
    "all_to_all": AllToAllCurve,
    "elementwise": ElementwiseCurve,
    "sampler": SamplerCurve,
}
"""Operators that have a file in `efficiency/`."""


def median_curve(curves: Sequence[Curve]) -> Curve:
    """The curve whose every coefficient is the median of the given ones'."""
    columns = zip(*(astuple(curve) for curve in curves), strict=True)
    return type(curves[0])(*(float(f"{median(column):.4g}") for column in columns))


def link_key(device: DeviceSpec, gpus: int) -> str:
    """Which all-reduces compare: the kind of link and the number of GPUs."""
    return f"{'nvlink' if device.nvlink_bytes_per_s else 'pcie'}-{gpus}"


def elementwise_bytes(model: ModelSpec, layer: str, tp: int) -> float:
    """Bytes that one element-wise layer moves for one token on one GPU, 16 bits each.

    A fused add-and-norm reads and writes hidden state and residual; the rotary embedding reads and
    writes queries and keys and stores keys and values; the activation reads what up (and gate)
    projections gave and writes one of them. Under latent attention only parts of queries and keys
    are rotated, and the latents are normed and stored.
    """
    heads, kv_heads = model.heads / tp, kv_heads_per_gpu(model, tp)
    width = model.intermediate * max(1, model.experts_per_token) / tp
    rotated = (heads + 2 * kv_heads) * model.head_dim
    if model.latent:
        rotated = heads * model.qk_rope_head_dim + model.kv_width
    gate = 3 if model.gated_mlp else 2
    elements = {
        "layernorm": 4 * model.hidden,
        "rotary_emb": 2 * rotated,
        "qk_norm": 2 * (heads + kv_heads) * model.head_dim,
        "kv_latent_norm": 2 * model.kv_lora_rank,
        "q_latent_norm": 2 * model.q_lora_rank,
        "act_fn": gate * width,
        "shared_act_fn": gate * model.shared_intermediate / tp,
        "dense_act_fn": gate * model.dense_intermediate / tp,
    }
    return 2.0 * elements[layer]
