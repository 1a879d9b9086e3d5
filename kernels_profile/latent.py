"""Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) from data sheets and fitted curves.

Nothing of it was measured here: linear layers take the curve of matrix products, attention those
that were fitted to grouped queries, by bytes and FLOPs. Engines compute it in two ways (vLLM's
`vllm/v1/attention/backends/mla/common.py`):

- a prefill projects the latents of its context, those of earlier chunks again, to keys and values
  of every head, and attends to these;
- a decode attends to the latents themselves: its query is first multiplied by the part of the same
  projection that makes keys (W_UK), its output by the part that makes values (W_UV), both in 16
  bits. All heads of a GPU read the same latents, which every GPU of the group has in full.
"""

from __future__ import annotations

from kernels_profile.operators import DecodeAttentionCurve, GemmCurve, PrefillAttentionCurve
from sim.specs import KV_BYTES, DeviceSpec, ModelSpec

MEMO = 1 << 16
"""Counts of decodes whose times are kept before the memory is dropped and filled anew."""


class LatentAttention:
    """Coefficients of latent attention in all layers on one GPU, ns.

    Args:
        model: Architecture.
        device: Data sheet.
        kv_dtype: Of the latents in the cache.
        gpus: GPUs over which the heads are cut.
        decode: Fitted to decode attention of grouped queries.
        prefill: Fitted to prefill attention.
        gemm: Of 16-bit matrix products.

    Attributes:
        row_ns: Least of one decode, whose latents are as wide as that many heads of 128.
        context_ns: Of one token of context: reading its latent, or computing with it.
        token_ns: Of one token of a chunk: reading and writing.
        pair_x2_ns: Of half a pair of causal attention.
        history_ns: Of one token before a chunk, whose keys and values are read.
        walk_ns: Of a tile, for each token of the context.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        kv_dtype: str,
        gpus: float,
        decode: DecodeAttentionCurve,
        prefill: PrefillAttentionCurve,
        gemm: GemmCurve,
    ) -> None:
        self.model = model
        self.device = device
        self.heads = model.heads / gpus
        self._gemm = gemm
        self._absorbed_ns: dict[int, float] = {0: 0.0}
        self._decode_t0_us, self._prefill_t0_us = decode.t0_us, prefill.t0_us
        layers, bandwidth = model.layers, device.memory_bytes_per_s
        rate = prefill.e_flop * device.bf16_flops
        reading = model.kv_width * KV_BYTES[kv_dtype] / (decode.e_bw * bandwidth)
        computing = 2 * self.heads * (model.kv_width + model.kv_lora_rank) / rate
        self.context_ns = layers * max(reading, computing) * 1e9
        self.row_ns = layers * decode.row_ns * model.kv_width / 128
        widths = model.head_dim + model.v_head_dim
        # Queries and output of the chunk, and its keys and values, 16 bits each.
        self.token_ns = layers * 2 * self.heads * 2 * widths / (prefill.e_io * bandwidth) * 1e9
        self.pair_x2_ns = layers * self.heads * widths / rate * 1e9
        self.history_ns = layers * 2 * self.heads * widths / (decode.e_bw * bandwidth) * 1e9
        self.walk_ns = layers * prefill.tile_ns * widths / 256

    def decode_us(self, decodes: float, context: float) -> float:
        """Attention of decodes of a mean context in one layer."""
        ns = decodes * max(self.row_ns, self.context_ns * context)
        return self._decode_t0_us + ns / self.model.layers / 1e3

    def prefill_us(self, batch: float, tokens: float, history: float) -> float:
        """Attention of equal chunks in one layer, their keys and values projected before."""
        pairs_x2 = tokens * (2 * history + tokens + 1)
        busy = batch * (self.token_ns * tokens + self.pair_x2_ns * pairs_x2)
        reading = batch * self.history_ns * history
        ns = max(busy, reading, self.walk_ns * (tokens + history))
        return self._prefill_t0_us + ns / self.model.layers / 1e3

    def absorbed_ns(self, decodes: int) -> float:
        """Projections of the queries of decodes to the latents, and of their outputs back, ns."""
        ns = self._absorbed_ns.get(decodes)
        if ns is None:
            model = self.model
            if len(self._absorbed_ns) >= MEMO:
                self._absorbed_ns = {0: 0.0}
            us = self._batched_us(decodes, model.qk_nope_head_dim)
            us += self._batched_us(decodes, model.v_head_dim)
            ns = self._absorbed_ns[decodes] = model.layers * us * 1e3
        return ns

    def _batched_us(self, rows: int, width: int) -> float:
        """A product for each head, between its own width and the latents', in 16 bits."""
        weights = self.heads * width * self.model.kv_lora_rank
        moved = weights + rows * self.heads * (width + self.model.kv_lora_rank)
        return self._gemm.us(
            2 * moved / self.device.memory_bytes_per_s * 1e6,
            2 * rows * weights / self.device.bf16_flops * 1e6,
        )

    def projections(self) -> list[tuple[float, float]]:
        """Inputs and outputs of the linear layers that every row of a layer goes through."""
        model = self.model
        queries, kv = self.heads * model.head_dim, model.kv_width
        back = (self.heads * model.v_head_dim, float(model.hidden))
        if model.q_lora_rank:
            down = (float(model.hidden), float(model.q_lora_rank + kv))
            return [down, (float(model.q_lora_rank), queries), back]
        return [(float(model.hidden), queries), (float(model.hidden), float(kv)), back]

    def up_projection(self) -> tuple[float, float]:
        """Inputs and outputs of the layer that makes keys and values of a prefill's context."""
        model = self.model
        return model.kv_lora_rank, self.heads * (model.qk_nope_head_dim + model.v_head_dim)
