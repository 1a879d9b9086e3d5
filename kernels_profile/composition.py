"""Which operators one step of a model is made of, found in tables: `Composition`.

Of the layers of one pipeline stage (or of all), per GPU: what depends on the rows that a step
computes, what depends on the sequences that it samples, and attention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from kernels_profile.analytic import Analytic
from kernels_profile.attention import Mark
from kernels_profile.lookup import Finder, Operator, lent
from kernels_profile.parallel import ParallelLayout
from sim.model_part import ModelPart
from sim.specs import ModelSpec, kv_heads_per_gpu


@dataclass(frozen=True)
class Piece:
    """An operator that a step runs.

    Attributes:
        operator: Over what `point` gives.
        times: How often.
        point: Its arguments, from the rows (or sampled sequences) of the step.
        stretch: What its time is multiplied by under a sustained load, from the same; None for 1.
    """

    operator: Operator
    times: int
    point: Callable[[int], tuple[float, ...]]
    stretch: Callable[[int], float] | None = None


def _rows(rows: int) -> tuple[float, ...]:
    return (rows,)


@dataclass(frozen=True)
class Summed:
    """What some pieces take together.

    Attributes:
        ns: Time.
        filled_ns: Of that, by the analytic model for want of a table.
        marks: Uses of times beyond what was measured.
    """

    ns: float
    filled_ns: float
    marks: tuple[Mark, ...]

    def __add__(self, other: Summed) -> Summed:
        return Summed(
            self.ns + other.ns, self.filled_ns + other.filled_ns, self.marks + other.marks
        )


NOTHING = Summed(0.0, 0.0, ())


def summed(pieces: list[Piece], rows: int) -> Summed:
    """The pieces of a step one after the other."""
    total = filled = 0.0
    marks: list[Mark] = []
    for piece in pieces:
        us, found = piece.operator.at(*piece.point(rows))
        us *= piece.times
        if piece.stretch is not None:
            us *= piece.stretch(rows)
        total += us
        if piece.operator.filled:
            filled += us
        marks += [Mark(piece.operator.name, outside, us) for outside in found]
    return Summed(total * 1e3, filled * 1e3, tuple(marks))


class Composition:
    """The operators of a model (or of one stage of it) on one of `tp` GPUs.

    Args:
        model: Architecture, of all layers.
        part: The layers of this stage.
        finder: Where operators are looked up; what it does not find is in its `missing`.
        analytic: The device by data sheet.
        precision: Of the linear layers.
        kv_dtype: Of the KV cache.
        layout: GPUs of the stage, and which of them hold which experts.
        collective: Gives the operator of a collective by name.
        clock: Share of the clock of the tables' kernels that a sustained load leaves.

    Attributes:
        rows: Pieces by rows of the step.
        sampled: Pieces by sequences that go through the LM head.
        everyone: Pieces by the rows of all groups of GPUs that attend apart: routed experts. With
            one group they are among `rows`.
        exchange: Tokens to their experts, or outputs back, over bytes of one GPU; None with one
            group.
        absorbed: Pieces by decodes: under latent attention, projections of their queries to the
            latents and of their outputs back.
        projected: Pieces by tokens of the chunks' contexts: under latent attention, projections to
            keys and values.
        prefill: Attention of chunks over (batch, history, tokens).
        decode: Attention of decodes over (batch, skew, context).
        mixed: Of both in one launch over (decodes, context, history, tokens); None if not measured.
    """

    def __init__(
        self,
        model: ModelSpec,
        part: ModelPart,
        finder: Finder,
        analytic: Analytic,
        precision: str,
        kv_dtype: str,
        layout: ParallelLayout,
        collective: Callable[[str], Operator],
        clock: float = 1.0,
    ) -> None:
        self.model, self.part, self.tp = model, part, layout.attention_tensor
        self.stage = part.of(model)
        self.layout, self.load = layout, layout.load(model)
        self._slower = 1 / clock - 1
        self.precision, self.kv_dtype = precision, kv_dtype
        self.finder, self.analytic = finder, analytic
        self._collective = collective
        self.heads = model.heads // self.tp
        self.kv_heads = kv_heads_per_gpu(model, self.tp)
        self.everyone: list[Piece] = []
        self.exchange: Operator | None = None
        self.rows = self._of_rows()
        self.sampled = self._of_sampled() if part.head else []
        self.absorbed = self._absorbed() if model.latent else []
        self.projected = self._projected() if model.latent else []
        self._find_attention()

    def operators(self) -> list[Operator]:
        """All of them."""
        pieces = [piece.operator for pieces in self._lists() for piece in pieces]
        pieces += [self.exchange] if self.exchange else []
        return [*pieces, self.prefill, self.decode, *([self.mixed] if self.mixed else [])]

    # --- by rows

    def _of_rows(self) -> list[Piece]:
        model, layers = self.model, self.part.layers
        pieces = [
            self._elementwise("rms_norm", model.hidden, 2 * layers + self.part.head),
            *self._projections(layers),
            *self._mlps(),
        ]
        if self.part.embedding:
            pieces.append(self._elementwise("embedding", model.hidden, 1))
        if self.tp > 1:  # the embedding is cut by vocabulary
            pieces.append(self._all_reduce(2 * layers + self.part.embedding))
        return pieces

    def _projections(self, layers: int) -> list[Piece]:
        """What surrounds attention: QKV, output, rotary embedding, norms of queries and keys."""
        model, width = self.model, self.model.head_dim
        heads, kv_heads = self.heads, self.kv_heads
        if model.latent:
            return self._latent_projections(layers)
        pieces = [
            self._linear((heads + 2 * kv_heads) * width, model.hidden, layers),
            self._linear(model.hidden, heads * width, layers),
            self._elementwise("rotary", (heads + 2 * kv_heads) * width, layers),
        ]
        if model.qk_norm:
            pieces.append(self._elementwise("qk_norm", (heads + kv_heads) * width, layers))
        return pieces

    def _latent_projections(self, layers: int) -> list[Piece]:
        """The same for latents; rotary embedding norms and writes those of keys and values too."""
        model = self.model
        latent = self.analytic.latent(model, self.heads)
        rotated = self.heads * model.qk_rope_head_dim + model.kv_width
        pieces = [self._linear(n, k, layers) for k, n in latent.projections()]
        pieces.append(self._elementwise("rotary", rotated, layers))
        if model.q_lora_rank:
            pieces.append(self._elementwise("rms_norm", model.q_lora_rank, layers))
        return pieces

    def _absorbed(self) -> list[Piece]:
        """A product for each head, as the linear layer of the same weights and FLOPs.

        That layer is what a prefill projects latents up by. Engines keep the weights in 16 bits.
        """
        k, n = self.analytic.latent(self.model, self.heads).up_projection()
        return [self._linear(n, k, self.part.layers, "bf16")]

    def _projected(self) -> list[Piece]:
        k, n = self.analytic.latent(self.model, self.heads).up_projection()
        return [self._linear(n, k, self.part.layers)]

    def _mlps(self) -> list[Piece]:
        model, stage = self.model, self.stage
        if not model.experts:
            return self._mlp(model.intermediate, stage.layers)
        pieces = [self._experts(stage.expert_layers)] if stage.expert_layers else []
        if self.layout.data_attention > 1:
            self.everyone, pieces = pieces, []
        if model.shared_intermediate and stage.expert_layers:
            pieces += self._mlp(model.shared_intermediate, stage.expert_layers)
        if stage.dense_layers:
            pieces += self._mlp(stage.dense_intermediate, stage.dense_layers)
        return pieces

    def _mlp(self, intermediate: int, layers: int) -> list[Piece]:
        inner = intermediate // self.tp
        return [
            self._linear((self.model.mlp_matrices - 1) * inner, self.model.hidden, layers),
            self._elementwise("silu_mul", inner, layers),
            self._linear(self.model.hidden, inner, layers),
        ]

    def _experts(self, layers: int) -> Piece:
        """Expert blocks: tokens and the share of the experts within reach that they touch."""
        model = self.model
        inner = model.intermediate // self.layout.expert_tensor
        held = model.experts // self.layout.expert
        operator, experts = self.finder.experts(
            held, model.experts, model.experts_per_token, model.hidden, inner, self.precision,
            partial(self._experts_us, inner),
        )  # fmt: skip
        return Piece(operator, layers, partial(self._touched, experts))

    def exchange_by(self, collective: Callable[[str], Operator]) -> None:
        """Set how groups of GPUs that attend apart send tokens to each other."""
        self.exchange = collective("all_to_all")

    def exchanged_bytes(self, rows: float, all_rows: int) -> float:
        """Bytes of an all-to-all on the GPU that sends or gets most, 16 bits an element.

        Args:
            rows: Of the busiest group.
            all_rows: Of all groups. A token is sent once to each GPU with any of its experts.
        """
        gpus = self.layout.tensor
        even = all_rows * self.model.experts_per_token / gpus
        got = all_rows / gpus * self.load.pairs_on_busiest(all_rows) / even
        most = max(rows / self.tp, got)
        return 2.0 * self.model.hidden * most * self.load.gpus_of_a_token()

    def _touched(self, experts: int, rows: int) -> tuple[float, ...]:
        """Of the GPU with most to do: tokens that send as many pairs, and the share they touch."""
        tokens = self.load.pairs_on_busiest(rows) / self.model.experts_per_token
        reachable = min(experts, tokens * self.model.experts_per_token)
        return tokens, self.load.touched_on_busiest(rows) / reachable

    def _experts_us(self, inner: int, tokens: float, share: float) -> float:
        """An expert block by the analytic model: router, up, activation, down."""
        model, analytic = self.model, self.analytic
        sent = tokens * model.experts_per_token
        touched = share * min(model.experts, sent)
        return (
            analytic.linear(model.experts, model.hidden, tokens, "bf16")
            + analytic.experts((model.mlp_matrices - 1) * inner, model.hidden, sent, touched)
            + analytic.elementwise("silu_mul", inner, sent)
            + analytic.experts(model.hidden, inner, sent, touched)
        )

    # --- by sampled sequences

    def _of_sampled(self) -> list[Piece]:
        model, tp = self.model, self.tp
        vocab = -(-model.vocab // tp)
        head, greedy = self.finder.lm_head(vocab, model.hidden)
        pieces = [Piece(head, 1, _rows)]
        if not greedy:
            pieces.append(Piece(self.finder.sampler(vocab, model.vocab), 1, _rows))
        if tp > 1:
            gathered = 2 * model.vocab  # bytes of the 16-bit logits of one sequence
            gather = self._collective("all_gather")
            pieces.append(Piece(gather, 1, lambda sequences: (gathered * sequences,)))
        return pieces

    # --- attention

    def _find_attention(self) -> None:
        if self.model.latent:
            self._find_latent_attention()
            return
        heads, kv_heads, width = self.heads, self.kv_heads, self.model.head_dim
        analytic = self.analytic

        def prefill(heads: float, batch: float, history: float, tokens: float) -> float:
            return analytic.prefill(heads, kv_heads, width, batch, tokens, history)

        def decode(heads: float, batch: float, skew: float, context: float) -> float:
            return analytic.decode(kv_heads, width, batch, context)

        def mixed(
            heads: float, decodes: float, context: float, history: float, tokens: float
        ) -> float:
            return analytic.mixed(heads, kv_heads, width, tokens, history, decodes, context)

        def find(
            kind: str, axes: tuple[str, ...], fill: Callable[..., float], *, optional: bool = False
        ) -> Operator | None:
            return self.finder.attention(
                f"attention_{kind}", self.kv_dtype, heads, kv_heads, width, axes, fill,
                optional=optional,
            )  # fmt: skip

        chunks = find("prefill", ("batch", "history", "tokens"), prefill)
        decodes = find("decode", ("batch", "skew", "context"), decode)
        assert chunks is not None
        assert decodes is not None
        self.prefill, self.decode = chunks, decodes
        self.mixed = find(
            "mixed", ("decodes", "context", "history", "tokens"), mixed, optional=True
        )
        self.prefill_us = partial(prefill, heads)
        self.kink = analytic.decode_kink(kv_heads, width)

    def _find_latent_attention(self) -> None:
        """Attention over latents by decodes, and over keys and values made of them by chunks."""
        model, latent = self.model, self.analytic.latent

        def prefill(heads: float, batch: float, history: float, tokens: float) -> float:
            return latent(model, heads).prefill_us(batch, tokens, history)

        def decode(heads: float, batch: float, skew: float, context: float) -> float:
            return latent(model, heads).decode_us(batch, context)

        chunks, decodes = ("batch", "history", "tokens"), ("batch", "skew", "context")
        find = partial(self.finder.latent, model=model, kv_dtype=self.kv_dtype, heads=self.heads)
        self.prefill = find("mla_prefill", axes=chunks, analytic=prefill)
        self.decode = find("mla_decode", axes=decodes, analytic=decode)
        self.mixed = None  # engines launch them apart
        self.prefill_us = partial(prefill, self.heads)
        own = latent(model, self.heads)
        self.kink = own.row_ns / own.context_ns

    # --- pieces

    def _linear(self, n: float, k: float, times: int, dtype: str = "") -> Piece:
        operator = self.finder.linear(n, k, dtype or self.precision)
        if not self._slower:
            return Piece(operator, times, _rows)
        slower, share = self._slower, self.analytic.compute_share
        return Piece(operator, times, _rows, lambda rows: 1 + slower * share(n, k, rows, dtype))

    def _elementwise(self, op: str, width: float, times: int) -> Piece:
        return Piece(self.finder.elementwise(op, width), times, _rows)

    def _all_reduce(self, times: int) -> Piece:
        row = 2 * self.model.hidden  # bytes
        return Piece(self._collective("all_reduce"), times, lambda rows: (row * rows,))

    # --- tables of another device

    def scale_to(self, here: Composition) -> None:
        """Turn operators measured on another device into those of this one.

        Args:
            here: The same composition by this device's data sheet, with the other's efficiencies.
        """
        for pieces, others in zip(self._lists(), here._lists(), strict=True):
            pieces[:] = [
                replace(piece, operator=lent(piece.operator, other.operator))
                for piece, other in zip(pieces, others, strict=True)
            ]
        self.prefill = lent(self.prefill, here.prefill)
        self.decode = lent(self.decode, here.decode)
        if self.exchange is not None and here.exchange is not None:
            self.exchange = lent(self.exchange, here.exchange)

    def _lists(self) -> tuple[list[Piece], ...]:
        return self.rows, self.sampled, self.everyone, self.absorbed, self.projected
