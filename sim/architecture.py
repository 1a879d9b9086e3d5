"""Architecture of a model: its sizes, and the weights and KV elements that follow from them."""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import ConfigError


@dataclass(frozen=True)
class ModelSpec:
    """Architecture of a decoder-only transformer; everything else is derived from it.

    Attributes:
        name: Name in a config.
        layers: Decoder layers.
        hidden: Width of the residual stream.
        heads: Query heads.
        kv_heads: Key-value heads (fewer than `heads` with grouped queries).
        head_dim: Width of one head.
        intermediate: Width of the MLP, of one expert where there are experts.
        vocab: Rows of the embedding, padding of the checkpoint included.
        max_positions: Longest context that the checkpoint allows, tokens.
        gated_mlp: Gate, up and down projections (Llama), or only up and down (OPT, BLOOM).
        experts: Experts of each MLP; 0 for a dense model.
        experts_per_token: Experts that one token is sent to.
        tied_embeddings: The LM head is the embedding.
        attention_bias: Biases of the attention: ``none``, ``qkv`` or ``all``.
        mlp_bias: The MLP has biases.
        norm_bias: Norms have a bias (LayerNorm) or none (RMSNorm).
        qk_norm: Queries and keys are normed per head (Qwen3).
        embedding_norm: The embedding is normed (BLOOM).
        position_rows: Rows of a learned position embedding (OPT), 0 for none.
        kv_lora_rank: Width of the latent from which keys and values are projected (latent attention
            as in DeepSeek-V2, arXiv 2405.04434, section 2.1); 0 for keys and values of their own.
            Then `kv_heads` equals `heads`, and `head_dim` is that of queries and keys.
        q_lora_rank: Width of the latent of the queries, 0 where they are projected at once.
        qk_nope_head_dim: Part of a query or key head that has no position.
        qk_rope_head_dim: The rest of it, rotated; all heads of a token share this part of the key.
        v_head_dim: Width of one value head under latent attention.
        dense_layers: First layers, which have a plain MLP instead of experts.
        dense_intermediate: Width of that MLP.
        shared_intermediate: Width of the experts that every token uses, together.
        router_bias: The router has a bias for each expert (DeepSeek-V3's load balancing).
        published_parameters: Total that the publisher states, 0 where unknown.
        published_exactly: That total is a count, not a rounded name.
        weights: Format of the linear layers' weights in a quantised checkpoint, a key of
            `sim.specs.WEIGHT_BITS`; empty where the file does not say, or for 16 bits.
        note: What a user should know.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    max_positions: int
    gated_mlp: bool = True
    experts: int = 0
    experts_per_token: int = 0
    tied_embeddings: bool = False
    attention_bias: str = "none"
    mlp_bias: bool = False
    norm_bias: bool = False
    qk_norm: bool = False
    embedding_norm: bool = False
    position_rows: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    dense_layers: int = 0
    dense_intermediate: int = 0
    shared_intermediate: int = 0
    router_bias: bool = False
    published_parameters: int = 0
    published_exactly: bool = False
    weights: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ConfigError(
                f"{self.name}: heads {self.heads} is not a multiple of kv_heads {self.kv_heads}"
            )
        self._check_latent()
        self._check_mixture()

    def _check_latent(self) -> None:
        parts = (self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim)
        if not self.kv_lora_rank:
            if any(parts) or self.q_lora_rank:
                raise ConfigError(
                    f"{self.name}: kv_lora_rank: 0, but other sizes of latent attention are given"
                )
            return
        if not all(parts):
            raise ConfigError(
                f"{self.name}: kv_lora_rank {self.kv_lora_rank} needs qk_nope_head_dim, "
                f"qk_rope_head_dim and v_head_dim, not {parts[0]}, {parts[1]} and {parts[2]}"
            )
        if self.kv_heads != self.heads or self.head_dim != parts[0] + parts[1]:
            raise ConfigError(
                f"{self.name}: latent attention has as many kv_heads as heads and a head_dim of "
                f"{parts[0] + parts[1]}, not {self.kv_heads} of {self.heads} and {self.head_dim}"
            )

    def _check_mixture(self) -> None:
        mixed = {
            "dense_layers": self.dense_layers,
            "dense_intermediate": self.dense_intermediate,
            "shared_intermediate": self.shared_intermediate,
            "router_bias": self.router_bias,
        }
        given = [key for key, value in mixed.items() if value]
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ConfigError(
                f"{self.name}: experts_per_token: {self.experts_per_token}: expected 1 to "
                f"{self.experts}, the number of experts"
            )
        if given and not self.experts:
            raise ConfigError(f"{self.name}: {given[0]}: {mixed[given[0]]}, but it has no experts")
        if self.dense_layers > self.layers or bool(self.dense_layers) != bool(
            self.dense_intermediate
        ):
            raise ConfigError(
                f"{self.name}: dense_layers {self.dense_layers} of {self.layers} layers with "
                f"dense_intermediate {self.dense_intermediate}: give both, or neither"
            )

    @property
    def latent(self) -> bool:
        """Keys and values are kept as one latent for all heads."""
        return self.kv_lora_rank > 0

    @property
    def kv_width(self) -> int:
        """Elements that one token keeps in one layer."""
        if self.latent:
            return self.kv_lora_rank + self.qk_rope_head_dim
        return 2 * self.kv_heads * self.head_dim

    @property
    def expert_layers(self) -> int:
        """Layers with experts; of a dense model all layers, each with one "expert"."""
        return self.layers - self.dense_layers

    @property
    def mlp_matrices(self) -> int:
        """Matrices of one MLP or expert: 3 with a gate, else 2."""
        return 3 if self.gated_mlp else 2

    @property
    def attention_weights(self) -> int:
        """Weights of one layer's QKV and output projections, biases not counted."""
        if self.latent:
            return self.latent_down_weights + self.latent_head_weights
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def latent_down_weights(self) -> int:
        """Weights of one layer's projections to latents, which every GPU needs; 0 without."""
        return self.hidden * (self.q_lora_rank + self.kv_width) if self.latent else 0

    @property
    def latent_up_weights(self) -> int:
        """Weights that project one layer's latents to keys and values; 0 without latents.

        A decode multiplies its query and its output by the same weights instead (absorbed).
        """
        return self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)

    @property
    def latent_head_weights(self) -> int:
        """Weights of one layer's projections that belong to heads, under latent attention."""
        queries = (self.q_lora_rank or self.hidden) * self.head_dim
        return self.latent_up_weights + self.heads * (queries + self.v_head_dim * self.hidden)

    @property
    def expert_weights(self) -> int:
        """Weights of one layer's MLP, or of one of its experts, biases not counted."""
        return self.mlp_matrices * self.hidden * self.intermediate

    @property
    def shared_weights(self) -> int:
        """Weights of the experts of one layer that every token uses."""
        return self.mlp_matrices * self.hidden * self.shared_intermediate

    @property
    def dense_weights(self) -> int:
        """Weights of the MLP of one of the first layers, where those have no experts."""
        return self.mlp_matrices * self.hidden * self.dense_intermediate

    @property
    def routed_weights(self) -> int:
        """Weights of all layers' experts among which a router chooses; 0 for a dense model."""
        return self.expert_layers * self.experts * self.expert_weights

    @property
    def linear_weights(self) -> int:
        """Weights of all layers' linear projections: what quantisation makes smaller."""
        return self._linear_weights(max(1, self.experts))

    @property
    def active_linear_weights(self) -> int:
        """Of `linear_weights` those that one token is multiplied with."""
        return self._linear_weights(max(1, self.experts_per_token))

    def _linear_weights(self, experts: int) -> int:
        mixed = experts * self.expert_weights + self.shared_weights
        mlps = self.expert_layers * mixed + self.dense_layers * self.dense_weights
        return self.layers * self.attention_weights + mlps

    @property
    def parameters(self) -> int:
        """All parameters of the checkpoint."""
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        return self.linear_weights + self.small_parameters + embeddings

    @property
    def active_parameters(self) -> int:
        """Parameters that one token is multiplied with (all but the unused experts)."""
        return self.parameters - self.linear_weights + self.active_linear_weights

    @property
    def small_parameters(self) -> int:
        """Norms, biases, routers and learned positions: never cut or quantised here."""
        norm = self.hidden * (2 if self.norm_bias else 1)
        qkv = self.head_dim * (self.heads + 2 * self.kv_heads)
        layer = 2 * norm
        layer += {"none": 0, "qkv": qkv, "all": qkv + self.hidden}[self.attention_bias]
        layer += (self.intermediate * (self.mlp_matrices - 1) + self.hidden) * self.mlp_bias
        layer += 2 * self.head_dim * self.qk_norm + self.kv_lora_rank + self.q_lora_rank
        router = self.hidden * self.experts + self.experts * self.router_bias
        once = norm * (2 if self.embedding_norm else 1) + self.position_rows * self.hidden
        return self.layers * layer + self.expert_layers * router + once
