"""The points of each table: key columns, expected time and bytes of every one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernels_profile.profiler.estimate import LAUNCH_US, Estimator
from kernels_profile.profiler.grids import Grids
from kernels_profile.profiler.inputs import can_be_skewed, unequal_contexts
from kernels_profile.profiler.points import Point, Value
from kernels_profile.profiler.shapes import Shard
from sim.step_cost import expected_experts

ELEMENT = 2
"""Bytes of an activation, and of a weight that is not fp8."""


@dataclass(frozen=True)
class Scope:
    """What all points of a plan have in common.

    Attributes:
        grids: How finely.
        estimator: Of the device.
        dtypes: Of the linear layers, the 16-bit one first.
        graphs: The device has CUDA graphs.
    """

    grids: Grids
    estimator: Estimator
    dtypes: Sequence[str]
    graphs: bool = True

    @property
    def wide(self) -> str:
        """The 16-bit type: of caches, activations and everything that is not a linear layer."""
        return self.dtypes[0]


def card_points(scope: Scope) -> Iterator[Point]:
    """The card's own ceilings, and what launching costs.

    `kernel_launch` and `graph_replay` are times on the host's clock, until the device is idle, of
    `size` launches of a small kernel: one by one, and as one CUDA graph.
    """
    estimator, grids = scope.estimator, scope.grids
    copied = grids.copy_bytes
    yield Point("ceilings", {"what": "copy"}, 0, estimator.bytes(2 * copied), 2 * copied)
    for dtype in scope.dtypes:
        side = grids.matmul_side
        us = estimator.linear(side, side, side, dtype)
        key, sizes = {"what": f"matmul_{dtype}"}, {"side": side}
        yield Point("ceilings", key, 0, us, 2 * ELEMENT * side**2, sizes=sizes)
    for tier, values in grids.overhead.points():
        for what in ("kernel_launch", "graph_replay") if scope.graphs else ("kernel_launch",):
            us = LAUNCH_US * values["size"] * (5 if what == "kernel_launch" else 1)
            yield Point("overhead", {"what": what, **values}, tier - 1, us)


def shard_points(shard: Shard, scope: Scope) -> Iterator[Point]:
    """Everything that one shard of a model needs."""
    yield from _linear(shard, scope)
    yield from _latent(shard, scope) if shard.model.latent else _attention(shard, scope)
    yield from _elementwise(shard, scope)
    yield from _sequences(shard, scope)
    if shard.model.experts:
        yield from _moe(shard, scope)


def _linear(shard: Shard, scope: Scope) -> Iterator[Point]:
    for tier, values in scope.grids.linear.points():
        for dtype in scope.dtypes:
            for n, k in shard.linear():
                tokens, element = int(values["tokens"]), 1 if dtype == "fp8" else ELEMENT
                yield Point(
                    "linear",
                    {"dtype": dtype, "n": n, "k": k, "tokens": tokens},
                    tier,
                    scope.estimator.linear(tokens, n, k, dtype),
                    element * (n * k + tokens * k),
                    ELEMENT * tokens * n,
                    (shard.label,),
                )


def _attention(shard: Shard, scope: Scope) -> Iterator[Point]:
    grids, estimator = scope.grids, scope.estimator
    fixed = {"kv_dtype": scope.wide, **shard.attention()}
    for tier, values in [*grids.prefill.points(), *grids.prompts.points()]:
        key = {**fixed, **values}
        yield from _attending("attention_prefill", key, tier, estimator.prefill(key), shard)
    for tier, values in decode_values(scope.grids, shard.model.max_positions):
        key = {**fixed, **values}
        yield from _attending("attention_decode", key, tier, estimator.decode(key), shard)
    for tier, values in grids.mixed.points():
        key = {**fixed, **values}
        yield from _attending("attention_mixed", key, tier, estimator.mixed(key), shard)


def _attending(
    table: str, key: Mapping[str, Any], tier: int, us: float, shard: Shard
) -> Iterator[Point]:
    """One point, unless it is longer than the model's contexts."""
    if longest_context(key) > shard.model.max_positions:
        return
    rows = key.get("batch", 1) * key.get("tokens", 1) + key.get("decodes", 0)
    queries = ELEMENT * rows * key["heads"] * key["head_dim"]
    cached = 2 * ELEMENT * cached_tokens(key) * key["kv_heads"] * key["head_dim"]
    yield Point(table, key, tier, us, cached + queries, queries, (shard.label,))


def decode_values(grids: Grids, longest: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """(tier, batch, context and skew) of decodes, none of whose contexts is over `longest`."""
    for tier, values in [*grids.decode.points(), *grids.skewed.points()]:
        batch, context, skew = int(values["batch"]), int(values["context"]), values["skew"]
        if context > longest or not can_be_skewed(batch, skew):
            continue
        if skew and max(unequal_contexts(batch, context, skew)) > longest:
            continue
        yield tier, values


def longest_context(key: Mapping[str, Any]) -> int:
    """The longest (mean) context among the sequences of an attention point."""
    return max(int(key.get("history", 0) + key.get("tokens", 0)), int(key.get("context", 0)))


def cached_tokens(key: Mapping[str, Any]) -> int:
    """Tokens whose keys and values an attention point reads."""
    chunk = key.get("history", 0) + key.get("tokens", 0)
    if "decodes" in key:
        return int(chunk + key["decodes"] * key["context"])
    return int(key["batch"] * (key.get("context", chunk)))


def _latent(shard: Shard, scope: Scope) -> Iterator[Point]:
    """Latent attention: prefills attend per head, decodes in the latent itself (absorbed)."""
    model, grids = shard.model, scope.grids
    fixed = {
        "kv_dtype": scope.wide,
        "heads": shard.heads,
        "kv_lora_rank": model.kv_lora_rank,
        "rope_dim": model.qk_rope_head_dim,
    }
    heads = {"nope_dim": model.qk_nope_head_dim, "v_dim": model.v_head_dim}
    for tier, values in [*grids.prefill.points(), *grids.prompts.points()]:
        yield from _latent_point("mla_prefill", {**fixed, **heads, **values}, tier, shard, scope)
    for tier, values in decode_values(grids, model.max_positions):
        yield from _latent_point("mla_decode", {**fixed, **values}, tier, shard, scope)


def _latent_point(
    table: str, key: Mapping[str, Any], tier: int, shard: Shard, scope: Scope
) -> Iterator[Point]:
    if longest_context(key) > shard.model.max_positions:
        return
    cached, rows = cached_tokens(key), key["batch"] * key.get("tokens", 1)
    latent = key["kv_lora_rank"] + key["rope_dim"]
    if table == "mla_decode":
        width = key["heads"] * (latent + key["kv_lora_rank"])
        pairs, moved = cached, ELEMENT * (cached * latent + rows * width)
    else:
        width = key["heads"] * (key["nope_dim"] + key["rope_dim"] + key["v_dim"])
        pairs = rows * (key["history"] + (key["tokens"] + 1) / 2)
        moved = ELEMENT * (cached + rows) * width
    us = scope.estimator.both(moved, 2 * pairs * width)
    yield Point(table, key, tier, us, moved, ELEMENT * rows * width, (shard.label,))


MOVED = {"embedding": 2, "add": 3, "rms_norm": 4, "rotary": 2, "qk_norm": 2, "silu_mul": 3}
"""Elements that an element-wise kernel reads and writes for each element of its width."""


def _elementwise(shard: Shard, scope: Scope) -> Iterator[Point]:
    model = shard.model
    sizes = {
        "heads": shard.heads,
        "kv_heads": shard.kv_heads,
        "head_dim": model.head_dim,
        "vocab": shard.vocab,
    }
    if model.latent:
        sizes |= {"kv_lora_rank": model.kv_lora_rank, "rope_dim": model.qk_rope_head_dim}
    for tier, values in scope.grids.elementwise.points():
        for op, width in shard.elementwise():
            tokens = int(values["tokens"])
            moved = ELEMENT * MOVED[op] * width * tokens
            yield Point(
                "elementwise",
                {"op": op, "width": width, "tokens": tokens},
                tier,
                scope.estimator.bytes(moved),
                moved,
                moved,
                (shard.label,),
                sizes,
            )


def _sequences(shard: Shard, scope: Scope) -> Iterator[Point]:
    """LM head, alone and with greedy sampling fused, and sampling from given logits.

    With tensor parallelism the logits are gathered first: the sampler sees the whole vocabulary.
    """
    hidden, vocab, estimator = shard.model.hidden, shard.vocab, scope.estimator
    for tier, values in scope.grids.sequences.points():
        rows = int(values["sequences"])
        for op in ("lm_head", "lm_head_greedy", "sampler"):
            width = shard.model.vocab if op == "sampler" else vocab
            fixed = {"op": op, "dtype": scope.wide, "vocab": width, "hidden": hidden}
            if op == "sampler":
                us, inputs = estimator.bytes(ELEMENT * rows * width), ELEMENT * rows * width
            else:
                us = estimator.linear(rows, vocab, hidden)
                inputs = ELEMENT * hidden * (vocab + rows)
            outputs = ELEMENT * rows * vocab if op == "lm_head" else 8 * rows
            key = {**fixed, "sequences": rows}
            yield Point("per_sequence", key, tier, us, inputs, outputs, (shard.label,))


def _moe(shard: Shard, scope: Scope) -> Iterator[Point]:
    """The block of routed experts: router, routing, both products, activation, weighted sum."""
    model, inner, estimator = shard.model, shard.inner, scope.estimator
    for tier, values in scope.grids.moe.points():
        tokens = int(values["tokens"])
        touched = touched_experts(shard, tokens, values["touched_share"])
        key: dict[str, Value] = {
            "dtype": scope.wide,
            "experts": model.experts,
            "top_k": model.experts_per_token,
            "hidden": model.hidden,
            "intermediate": inner,
            "tokens": tokens,
            "touched": touched,
        }
        sent = tokens * model.experts_per_token
        us = estimator.linear(sent, 2 * inner, model.hidden, copies=touched)
        us += estimator.linear(sent, model.hidden, inner, copies=touched)
        us += 6 * LAUNCH_US + estimator.bytes(4 * ELEMENT * sent * (model.hidden + inner))
        inputs = ELEMENT * (3 * model.experts * model.hidden * inner + tokens * model.hidden)
        outputs = ELEMENT * sent * (2 * model.hidden + 3 * inner)
        yield Point("moe", key, tier, us, inputs, outputs, (shard.label,))


def touched_experts(shard: Shard, tokens: int, share: float) -> int:
    """A share of the distinct experts that tokens touch if each chooses at random."""
    model = shard.model
    most = min(model.experts, tokens * model.experts_per_token)
    wanted = round(share * expected_experts(model, tokens))
    return max(model.experts_per_token, min(most, wanted))
