"""Shapes of a model's layers on one GPU, after tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import ConfigError
from sim.specs import ModelSpec, check_tensor_parallel, kv_heads_per_gpu


@dataclass(frozen=True)
class Shard:
    """Sizes of one GPU's part of a model.

    Attributes:
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: KV heads.
        head_dim: Width of a head.
        intermediate: Width of the MLP, or of an expert.
        vocab: Rows of the LM head.
        gated: The MLP has a gate.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True

    @classmethod
    def of(cls, model: ModelSpec, tp: int) -> Shard:
        """The part of one of `tp` GPUs.

        Raises:
            ConfigError: a tensor parallelism that does not divide the model.
        """
        check_tensor_parallel(model, tp)
        if model.intermediate % tp:
            raise ConfigError(
                f"tensor_parallel {tp} does not divide the {model.intermediate} inner widths of "
                f"{model.name}"
            )
        return cls(
            model.hidden,
            model.heads // tp,
            kv_heads_per_gpu(model, tp),
            model.head_dim,
            model.intermediate // tp,
            -(-model.vocab // tp),
            model.gated_mlp,
        )

    @property
    def attention(self) -> dict[str, int]:
        """Key columns of the attention tables."""
        return {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}

    @property
    def qkv(self) -> tuple[int, int]:
        """(outputs, inputs) of the projection to queries, keys and values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden

    @property
    def output(self) -> tuple[int, int]:
        """(outputs, inputs) of the projection after attention."""
        return self.hidden, self.heads * self.head_dim

    @property
    def up(self) -> tuple[int, int]:
        """(outputs, inputs) of gate and up together, or of up alone."""
        return (2 if self.gated else 1) * self.intermediate, self.hidden

    @property
    def down(self) -> tuple[int, int]:
        """(outputs, inputs) of the projection back to the residual stream."""
        return self.hidden, self.intermediate

    @property
    def rotary(self) -> int:
        """Width of queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def qk(self) -> int:
        """Width of queries and keys together."""
        return (self.heads + self.kv_heads) * self.head_dim
