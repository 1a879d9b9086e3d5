"""One rank of a decoder-only transformer on our kernels, with random weights of the real shapes.

A step takes prefill chunks and decodes together, in one launch of each kernel. Attention of a step
with a chunk runs in the prefill kernel, decodes being chunks of one token; a step of decodes alone
has the decode kernel. What another rank would add (the all-reduces of tensor parallelism) is not
run: there is one card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import ProfileError
from sim.specs import ModelSpec, check_tensor_parallel, kv_heads_per_gpu

if TYPE_CHECKING:
    import torch

ROPE_BASE = 10_000.0
"""Base of the rotary embedding: its value does not change how long a step takes."""
EPSILON = 1e-5
"""Of the norms: likewise."""


@dataclass(frozen=True)
class Rows:
    """What one step computes, as tensors on the card; r rows, c chunks, d decodes, s sampled.

    Either all rows belong to chunks, or all are decodes.

    Attributes:
        tokens: (r,) int64, ids of the input tokens.
        positions: (r,) int64, position of each in its sequence.
        slots: (r,) int64, where its key and value go: block * block_tokens + offset; -1 nowhere.
        chunk_starts: (c + 1,) int32, first row of each chunk, and their end.
        chunk_contexts: (c,) int32, tokens of each sequence, chunk included.
        chunk_tables: (c, blocks) int32, block ids.
        decode_contexts: (d,) int32, tokens of each sequence, the new one included; 0 for a row that
            only pads.
        decode_tables: (d, blocks) int32, block ids.
        sampled: (s,) int64, rows whose next token is wanted.
        longest_chunk: Rows of the longest chunk, 0 without one.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    chunk_starts: torch.Tensor
    chunk_contexts: torch.Tensor
    chunk_tables: torch.Tensor
    decode_contexts: torch.Tensor
    decode_tables: torch.Tensor
    sampled: torch.Tensor
    longest_chunk: int


@dataclass(frozen=True)
class Layer:
    """Weights of one layer on one rank; each matrix is (outputs, inputs)."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    router: torch.Tensor | None
    qk_norms: tuple[torch.Tensor, torch.Tensor] | None
    k_cache: torch.Tensor
    v_cache: torch.Tensor


def refuse_unsupported(model: ModelSpec) -> None:
    """Say which part of an architecture the engine lacks.

    Raises:
        ProfileError: biases, layer norms, learned positions, latent attention, ungated MLPs.
    """
    lacks = {
        "attention biases": model.attention_bias != "none",
        "MLPs with biases": model.mlp_bias,
        "norms with biases": model.norm_bias,
        "MLPs without a gate": not model.gated_mlp,
        "learned positions": model.position_rows > 0,
        "latent attention": getattr(model, "kv_lora_rank", 0) > 0,
    }
    named = [what for what, present in lacks.items() if present]
    if named:
        raise ProfileError(
            f"engine: {model.name} has {' and '.join(named)}, which the engine does not run; "
            "it runs models shaped like Llama, Mistral, Qwen3 and Mixtral"
        )


def weight_bytes(model: ModelSpec, tensor_parallel: int, layers: int | None = None) -> int:
    """Bytes of one rank's matrices in 16 bits; of so many layers only, if said."""
    held = model.layers if layers is None else layers
    mlp = max(1, model.experts) * model.expert_weights
    embeddings = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    return 2 * (held * (model.attention_weights + mlp) + embeddings) // tensor_parallel


def layer_block_bytes(model: ModelSpec, tensor_parallel: int, block_tokens: int) -> int:
    """Bytes of one block of keys and values in one layer on one rank, in 16 bits."""
    kv_heads = int(kv_heads_per_gpu(model, tensor_parallel))
    return 2 * 2 * kv_heads * model.head_dim * block_tokens


class RankModel:
    """One rank's share of a model.

    Args:
        model: Architecture.
        tensor_parallel: Ranks that share it; this is one of them.
        num_blocks: Blocks of KV memory.
        block_tokens: Tokens of a block.
        max_positions: Longest sequence.
        device: ``cuda`` or ``cpu``.
        dtype: Of weights, activations and KV cache.
        seed: Of the weights.
        share_layers: All layers read the weights of the first, for models that do not fit. Their
            KV caches stay apart. One layer is larger than a last-level cache, so that it is
            read from memory each time all the same.
        tables: A profile of this card, whose launch configurations are used.

    Raises:
        ProfileError: an architecture that the engine does not run.
    """

    def __init__(
        self,
        model: ModelSpec,
        *,
        tensor_parallel: int = 1,
        num_blocks: int,
        block_tokens: int = 16,
        max_positions: int,
        device: str,
        dtype: torch.dtype,
        seed: int = 0,
        share_layers: bool = False,
        tables: Path | None = None,
    ) -> None:
        import torch

        from kernels_profile.engine.configs import Tuned

        refuse_unsupported(model)
        check_tensor_parallel(model, tensor_parallel)
        self.spec = model
        self.device, self.dtype = device, dtype
        self.block_tokens = block_tokens
        self.heads = model.heads // tensor_parallel
        self.kv_heads = int(kv_heads_per_gpu(model, tensor_parallel))
        self.scale = model.head_dim**-0.5
        self._tuned = Tuned(tables)
        self._tp = tensor_parallel
        self._num_blocks = num_blocks
        self._random = torch.Generator(device).manual_seed(seed)
        self.vocab = -(-model.vocab // tensor_parallel)
        self.embedding = self._weights(self.vocab, model.hidden)
        self.final_norm = self._ones(model.hidden)
        self.head = (
            self.embedding if model.tied_embeddings else self._weights(self.vocab, model.hidden)
        )
        self.layers: list[Layer] = []
        for _ in range(model.layers):
            first = self.layers[0] if share_layers and self.layers else None
            self.layers.append(self._layer(first))
        self.cos, self.sin = self._rotations(max_positions)

    def forward(self, rows: Rows) -> torch.Tensor:
        """Next tokens of the sampled rows by greedy choice, (s,) int64; KV is written."""
        import torch

        from kernels_profile.kernels.norm import rms_norm_residual
        from kernels_profile.kernels.sampling import lm_head_greedy

        x = torch.nn.functional.embedding(rows.tokens, self.embedding)
        residual = None
        for layer in self.layers:
            normed, residual = rms_norm_residual(x, residual, layer.attention_norm, EPSILON)
            attended = self._attend(layer, self._linear(normed, layer.qkv), rows)
            x = self._linear(attended, layer.output)
            normed, residual = rms_norm_residual(x, residual, layer.mlp_norm, EPSILON)
            x = self._mlp(layer, normed)
        assert residual is not None
        last, residual = x[rows.sampled], residual[rows.sampled]
        normed, _ = rms_norm_residual(last, residual, self.final_norm, EPSILON)
        return lm_head_greedy(normed, self.head, config=self._tuned.head(len(normed), self.head))

    def _linear(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        from kernels_profile.kernels.linear import linear

        return linear(x, weights, config=self._tuned.linear(len(x), weights))

    def _attend(self, layer: Layer, qkv: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Write keys and values; attention of all rows, (r, heads * head_dim)."""
        from kernels_profile.kernels.decode_attention import decode_attention
        from kernels_profile.kernels.norm import qk_norm
        from kernels_profile.kernels.prefill_attention import prefill_attention
        from kernels_profile.kernels.rotary import rotary_kv_write

        dim, ends = self.spec.head_dim, (self.heads, self.heads + self.kv_heads)
        heads = qkv.view(qkv.shape[0], -1, dim)
        q, k, v = heads[:, : ends[0]], heads[:, ends[0] : ends[1]], heads[:, ends[1] :]
        if layer.qk_norms is not None:
            qk_norm(q, k, *layer.qk_norms, EPSILON)
        caches, tuned = (layer.k_cache, layer.v_cache), self._tuned
        shape = (self.heads, self.kv_heads, dim)
        rotary_kv_write(
            q, k, v, self.cos, self.sin, rows.positions, rows.slots, *caches,
            config=tuned.rotary(len(q), heads[0].numel()),
        )  # fmt: skip
        out = q.new_empty((len(q), self.heads, dim))
        if rows.longest_chunk:
            context = rows.chunk_tables.shape[1] * self.block_tokens
            prefill_attention(
                q, *caches, rows.chunk_tables, rows.chunk_starts, rows.chunk_contexts,
                self.scale, max_chunk=rows.longest_chunk, out=out,
                config=tuned.prefill(shape, rows.longest_chunk, context),
            )  # fmt: skip
        else:
            context = rows.decode_tables.shape[1] * self.block_tokens
            decode_attention(
                q, *caches, rows.decode_tables, rows.decode_contexts, self.scale, out=out,
                config=tuned.decode(shape, len(q), context),
            )  # fmt: skip
        return out.view(len(q), self.heads * dim)

    def _mlp(self, layer: Layer, x: torch.Tensor) -> torch.Tensor:
        if layer.router is None:
            from kernels_profile.kernels.activation import silu_mul

            width = layer.down.shape[1]
            inner = silu_mul(
                self._linear(x, layer.gate_up), config=self._tuned.activation(len(x), width)
            )
            return self._linear(inner, layer.down)
        from kernels_profile.kernels.moe import expert_block

        return expert_block(x, layer.router, layer.gate_up, layer.down, self.spec.experts_per_token)

    # --- weights

    def _layer(self, shared: Layer | None) -> Layer:
        import torch

        model = self.spec
        shape = (self._num_blocks, self.block_tokens, self.kv_heads, model.head_dim)
        k_cache, v_cache = (
            torch.zeros(shape, device=self.device, dtype=self.dtype) for _ in range(2)
        )
        if shared is not None:
            return replace(shared, k_cache=k_cache, v_cache=v_cache)
        inner, experts = model.intermediate // self._tp, model.experts
        copies = (experts,) if experts else ()
        norms = (self._ones(model.head_dim), self._ones(model.head_dim))
        return Layer(
            attention_norm=self._ones(model.hidden),
            qkv=self._weights((self.heads + 2 * self.kv_heads) * model.head_dim, model.hidden),
            output=self._weights(model.hidden, self.heads * model.head_dim),
            mlp_norm=self._ones(model.hidden),
            gate_up=self._weights(*copies, 2 * inner, model.hidden),
            down=self._weights(*copies, model.hidden, inner),
            router=self._weights(experts, model.hidden) if experts else None,
            qk_norms=norms if model.qk_norm else None,
            k_cache=k_cache,
            v_cache=v_cache,
        )

    def _weights(self, *shape: int) -> torch.Tensor:
        """Normal, with a spread that keeps activations of the order of one."""
        import torch

        values = torch.empty(shape, device=self.device, dtype=self.dtype)
        return values.normal_(0.0, shape[-1] ** -0.5, generator=self._random)

    def _ones(self, width: int) -> torch.Tensor:
        import torch

        return torch.ones(width, device=self.device, dtype=self.dtype)

    def _rotations(self, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the rotary embedding, each (positions, head_dim / 2)."""
        import torch

        half = self.spec.head_dim // 2
        rates = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(positions, dtype=torch.float64)[:, None] * rates
        cos, sin = angles.cos(), angles.sin()
        return cos.to(self.device, torch.float32), sin.to(self.device, torch.float32)
