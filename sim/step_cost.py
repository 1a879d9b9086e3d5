"""FLOPs and memory traffic of an iteration, from which MFU and MBU are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.architecture import ModelSpec
from sim.experts import ExpertLoad
from sim.experts import expected_experts as expected_experts
from sim.specs import kv_bytes_per_token, repeated_weights, weight_bits

if TYPE_CHECKING:
    from sim.step_time import StepWork


class StepCost:
    """FLOPs and bytes of an iteration on one of `tp` GPUs, the mean of all of them.

    FLOPs are the model's: two per weight and row, and of causal attention only the pairs that
    count. Bytes are weights read once, keys and values read once and written once; activations are
    left out, as is usual for MBU.

    Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) is computed as engines do. A
    prefill projects the latents of its context to keys and values of each head, those of earlier
    chunks again. A decode attends to the latents themselves: the same weights are applied to its
    query and its output instead.

    Args:
        model: Architecture.
        precision: Of the weights, a key of `sim.specs.WEIGHT_BITS`.
        kv_dtype: Of the KV cache, a key of `sim.specs.KV_BYTES`.
        tp: GPUs of the replica.
        data_attention: Groups of them that attend apart, each with all weights but the experts'.
        load: How tokens spread over experts. Default: evenly.
    """

    __slots__ = (
        "_bits", "_decode_pair", "_groups", "_head", "_history", "_kv", "_load", "_pair",
        "_repeated", "_row", "model", "tp",
    )  # fmt: skip

    def __init__(
        self,
        model: ModelSpec,
        precision: str = "bf16",
        kv_dtype: str = "bf16",
        tp: int = 1,
        data_attention: int = 1,
        load: ExpertLoad | None = None,
    ) -> None:
        group = tp // data_attention
        self.model = model
        self.tp = tp
        self._groups = data_attention
        self._load = load or ExpertLoad(model)
        self._bits = weight_bits(precision)
        self._row = 2.0 * model.active_linear_weights / tp
        self._head = 2.0 * model.vocab * model.hidden / tp
        self._pair = prefill_pair_flops(model) / tp
        self._decode_pair = decode_pair_flops(model) / tp
        self._history = 2.0 * model.layers * model.latent_up_weights / tp
        self._repeated = repeated_weights(model, group) if model.latent else 0
        self._kv = kv_bytes_per_token(model, kv_dtype, group)

    def flops_and_bytes(self, work: StepWork) -> tuple[float, float]:
        """FLOPs and bytes of memory traffic of one iteration, per GPU."""
        rows = work.prefill_tokens + work.decode_rows
        history = sum(before for _, before in work.chunks)
        flops = self._row * rows + self.attention_flops(work)
        flops += self._head * work.sampled_rows
        kv = self._kv * (history + work.context_tokens + rows) / self._groups
        return flops, self.weights_read(rows, work.sampled_rows) + kv

    def attention_flops(self, work: StepWork) -> float:
        """Of these FLOPs, those of attention itself: scores, values, and projections of latents."""
        if not self.model.latent:
            return self._pair * (work.prefill_pairs_x2 / 2 + work.context_tokens)
        history = sum(before for _, before in work.chunks)
        decodes = self._decode_pair * work.context_tokens
        return self._pair * work.prefill_pairs_x2 / 2 + self._history * history + decodes

    def weights_read(self, rows: int, sampled_rows: int) -> float:
        """Bytes of weights that one GPU reads for `rows` rows: experts only if touched."""
        if not rows:
            return 0.0
        model = self.model
        attention = model.attention_weights + self._repeated
        mixed = self._groups * (attention + model.shared_weights)
        linear = model.expert_layers * (mixed + self._load.touched(rows) * model.expert_weights)
        linear += model.dense_layers * self._groups * (attention + model.dense_weights)
        head = self._groups * model.vocab * model.hidden if sampled_rows else 0
        return (linear * self._bits / 8 + 2 * head) / self.tp


def prefill_pair_flops(model: ModelSpec) -> float:
    """FLOPs of a query token and a token that it attends to, in all layers: scores and values."""
    if model.latent:
        return 2.0 * model.layers * model.heads * (model.head_dim + model.v_head_dim)
    return 4.0 * model.layers * model.heads * model.head_dim


def decode_pair_flops(model: ModelSpec) -> float:
    """The same in a decode, which under latent attention reads latents instead of values."""
    if model.latent:
        return 2.0 * model.layers * model.heads * (model.kv_width + model.kv_lora_rank)
    return prefill_pair_flops(model)
