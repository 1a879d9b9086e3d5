"""Which kernels a model needs on one of its GPUs, and at which widths: `Shard`."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import ConfigError
from sim.specs import (
    ModelSpec,
    check_tensor_parallel,
    kv_bytes_per_token,
    kv_heads_per_gpu,
)


@dataclass(frozen=True)
class Shard:
    """What one of `tp` GPUs computes of a model.

    Args:
        model: Architecture.
        tp: Tensor parallelism.

    Raises:
        ConfigError: `tp` does not divide the heads, the MLP or the vocabulary.
    """

    model: ModelSpec
    tp: int

    def __post_init__(self) -> None:
        check_tensor_parallel(self.model, self.tp)
        model = self.model
        for width in (model.intermediate, model.dense_intermediate, model.shared_intermediate):
            if width % self.tp:
                raise ConfigError(
                    f"tensor_parallel: {self.tp} does not divide the intermediate width {width} "
                    f"of {model.name}"
                )

    @property
    def label(self) -> str:
        """As in ``llama-3.1-8b tp 2``."""
        return f"{self.model.name} tp {self.tp}"

    @property
    def heads(self) -> int:
        """Query heads of this GPU."""
        return self.model.heads // self.tp

    @property
    def kv_heads(self) -> int:
        """KV heads of this GPU."""
        return kv_heads_per_gpu(self.model, self.tp)

    @property
    def inner(self) -> int:
        """Width of the MLP, or of one expert, on this GPU."""
        return self.model.intermediate // self.tp

    @property
    def vocab(self) -> int:
        """Rows of the LM head on this GPU, rounded up."""
        return -(-self.model.vocab // self.tp)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers, 16 bits each."""
        return kv_bytes_per_token(self.model, "bf16", self.tp)

    def linear(self) -> list[tuple[int, int]]:
        """(n outputs, k inputs) of each linear layer, each once; routed experts are not among them.

        With latent attention also the projections to and from latents, of which those down to them
        are not cut. Those of the first layers that have no experts, and shared experts, count too.
        """
        model = self.model
        layers = self._latent() if model.latent else self._projections()
        layers.append((model.hidden, self.heads * (model.v_head_dim or model.head_dim)))
        for inner in self.mlp_widths():
            layers += [((model.mlp_matrices - 1) * inner, model.hidden), (model.hidden, inner)]
        return list(dict.fromkeys(layers))

    def mlp_widths(self) -> list[int]:
        """Widths on this GPU of the MLPs that every token goes through."""
        model = self.model
        if not model.experts:
            return [self.inner]
        widths = (model.dense_intermediate, model.shared_intermediate)
        return [width // self.tp for width in widths if width]

    def _projections(self) -> list[tuple[int, int]]:
        return [((self.heads + 2 * self.kv_heads) * self.model.head_dim, self.model.hidden)]

    def _latent(self) -> list[tuple[int, int]]:
        """As DeepSeek's own code and vLLM have them: queries and latent down, queries up, KV up."""
        model, queries = self.model, self.heads * self.model.head_dim
        up = self.heads * (model.qk_nope_head_dim + model.v_head_dim), model.kv_lora_rank
        if model.q_lora_rank:
            down = model.q_lora_rank + model.kv_width, model.hidden
            return [down, (queries, model.q_lora_rank), up]
        return [(model.kv_width, model.hidden), (queries, model.hidden), up]

    def attention(self) -> dict[str, int]:
        """Key columns of the attention tables that the model sets."""
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "head_dim": self.model.head_dim,
        }

    def elementwise(self) -> list[tuple[str, int]]:
        """(operator, width) of each element-wise kernel of ours that the model uses.

        With latent attention ``rotary`` is what norms and writes the latents too; its width is
        that of the rotated queries and of what is written.
        """
        model = self.model
        ops = [("embedding", model.hidden), ("add", model.hidden)]
        if not model.norm_bias:
            ops.append(("rms_norm", model.hidden))
        if model.q_lora_rank:
            ops.append(("rms_norm", model.q_lora_rank))
        if model.latent:
            ops.append(("rotary", self.heads * model.qk_rope_head_dim + model.kv_width))
        elif not model.position_rows and not model.embedding_norm:
            ops.append(("rotary", (self.heads + 2 * self.kv_heads) * model.head_dim))
        if model.qk_norm:
            ops.append(("qk_norm", (self.heads + self.kv_heads) * model.head_dim))
        if model.gated_mlp:
            ops += [("silu_mul", width) for width in self.mlp_widths()]
        return ops

    def without_kernel(self) -> list[str]:
        """What the model needs and we have no kernel for, in words; empty for most."""
        model = self.model
        missing = ["LayerNorm with a bias"] if model.norm_bias else []
        missing += ["learned positions"] if model.position_rows else []
        missing += ["ALiBi positions"] if model.embedding_norm else []
        missing += [] if model.gated_mlp else ["an MLP without a gate"]
        return missing
