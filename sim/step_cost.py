"""FLOPs and memory traffic of an iteration, from which MFU and MBU are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.specs import ModelSpec, kv_bytes_per_token, weight_bits

if TYPE_CHECKING:
    from sim.step_time import StepWork


class StepCost:
    """FLOPs and bytes of an iteration on one of `tp` GPUs.

    FLOPs are the model's: two per weight and row, and of causal attention only the pairs that
    count. Bytes are weights read once, keys and values read once and written once; activations are
    left out, as is usual for MBU.

    Args:
        model: Architecture.
        precision: Of the weights, a key of `sim.specs.WEIGHT_BITS`.
        kv_dtype: Of the KV cache, a key of `sim.specs.KV_BYTES`.
        tp: GPUs of the replica.
    """

    __slots__ = ("_bits", "_head", "_kv", "_pair", "_row", "model", "tp")

    def __init__(
        self, model: ModelSpec, precision: str = "bf16", kv_dtype: str = "bf16", tp: int = 1
    ) -> None:
        used = max(1, model.experts_per_token) * model.expert_weights
        self.model = model
        self.tp = tp
        self._bits = weight_bits(precision)
        self._row = 2.0 * model.layers * (model.attention_weights + used) / tp
        self._head = 2.0 * model.vocab * model.hidden / tp
        self._pair = 4.0 * model.layers * model.heads * model.head_dim / tp
        self._kv = kv_bytes_per_token(model, kv_dtype, tp)

    def flops_and_bytes(self, work: StepWork) -> tuple[float, float]:
        """FLOPs and bytes of memory traffic of one iteration, per GPU."""
        rows = work.prefill_tokens + work.decode_rows
        pairs = work.prefill_pairs_x2 / 2 + work.context_tokens
        flops = self._row * rows + self._pair * pairs + self._head * work.sampled_rows
        history = sum(before for _, before in work.chunks)
        kv = self._kv * (history + work.context_tokens + rows)
        return flops, self.weights_read(rows, work.sampled_rows) + kv

    def weights_read(self, rows: int, sampled_rows: int) -> float:
        """Bytes of weights that one GPU reads for `rows` rows: experts only if touched."""
        if not rows:
            return 0.0
        model = self.model
        touched = expected_experts(model, rows)
        linear = model.layers * (model.attention_weights + touched * model.expert_weights)
        head = model.vocab * model.hidden if sampled_rows else 0
        return (linear * self._bits / 8 + 2 * head) / self.tp


def expected_experts(model: ModelSpec, rows: int) -> float:
    """Distinct experts of a layer that `rows` tokens touch, if each picks its own at random.

    ``n * (1 - (1 - k / n) ** rows)``; 1 for a dense model. Real routers are less even: they touch
    fewer.
    """
    if not model.experts:
        return 1.0
    n, k = model.experts, model.experts_per_token
    return n * (1.0 - (1.0 - k / n) ** rows)
