"""Step times from data sheets and fitted efficiencies: `RooflineStepTime`.

One iteration is the sum of its operators, in nanoseconds:

- by the rows that it computes (prefill tokens and decodes): embedding, and for each layer norms,
  QKV, rotary embedding, output, gate and up, activation, down, and two all-reduces; with experts,
  those that so many rows touch;
- by the sequences that it samples: last norm, LM head, gathering of logits, sampler;
- attention of the prefill chunks over what came before them, and of the decodes over theirs;
- the host's time, which is never zero.

The first two depend on a number of rows alone and are kept once computed. Attention of decodes is
two lines over the sum of contexts, so that a run of steps costs one multiplication and one addition
for each.

Mixtures of experts are paced by the GPU whose experts have most to do (`sim.experts`); with groups
of GPUs that attend apart, by the busiest group (`groups.py`). For latent attention see `latent.py`.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from kernels_profile.curves import CurveBook, FoundCurve
from kernels_profile.groups import busiest_group, share
from kernels_profile.host import DEFAULT_HOST, HOSTS, HostOverhead
from kernels_profile.latent import LatentAttention
from kernels_profile.operators import (
    AllReduceCurve,
    AllToAllCurve,
    Curve,
    DecodeAttentionCurve,
    ElementwiseCurve,
    GemmCurve,
    MixedAttentionCurve,
    PrefillAttentionCurve,
    SamplerCurve,
    elementwise_bytes,
    link_key,
)
from kernels_profile.parallel import ParallelLayout
from sim.errors import ProfileError
from sim.model_part import ModelPart, whole
from sim.specs import (
    KV_BYTES,
    DeviceSpec,
    ModelSpec,
    kv_heads_per_gpu,
    load_device,
    weight_bits,
)
from sim.step_cost import StepCost
from sim.step_time import StepTimeOrigin, StepWork

LIST_RUN = 32
"""Runs shorter than this are made as Python lists: that is quicker here, the more so as the
simulator sums them up as integers. More than `sim.step_time.SHORT_RUN`, as one step is little."""

NODE_GPUS = 8
"""Most GPUs whose all-reduce was measured."""

MEMO_ROWS = 1 << 17
"""Row counts whose times are kept before the memory is dropped and filled anew."""

_USUAL_DECODES, _USUAL_CONTEXT = 32, 1024
"""The step of which a stated error says what the operator's share is."""

_FREE: dict[str, Curve] = {
    "elementwise": ElementwiseCurve(0.0, math.inf),
    "sampler": SamplerCurve(0.0, 0.0),
}
"""Curves of operators that take no time: a step without them is shorter by their share."""


class RooflineStepTime:
    """Analytic step times of one model on one kind of GPU.

    Args:
        model: Architecture.
        device: Data sheet.
        precision: Of the weights of linear layers, a key of `sim.specs.WEIGHT_BITS`.
        kv_dtype: Of the KV cache, ``bf16``, ``fp16`` or ``fp8``.
        tensor_parallel: GPUs of the replica, at most 8 (one node).
        host: Host time of each step.
        expert_parallel: Of those GPUs, how many hold experts of their own.
        data_parallel_attention: Groups of them that attend apart.
        imbalance: How uneven experts' popularity is, see `ParallelLayout`.
        part: The layers of one pipeline stage, None for all. The host's time is that of the stage
            with the embedding, where steps begin.
        efficiencies: Device whose fitted efficiencies to take, such as one of the same
            architecture; None for the device's own, or those that its sheet names, or the median of
            all where there are none.

    Raises:
        ConfigError: GPUs that do not divide heads or experts, an unknown precision.
        ProfileError: more GPUs than one node has.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        precision: str = "bf16",
        kv_dtype: str = "bf16",
        tensor_parallel: int = 1,
        host: HostOverhead = HOSTS[DEFAULT_HOST],
        expert_parallel: int = 1,
        data_parallel_attention: int = 1,
        imbalance: float = 0.0,
        part: ModelPart | None = None,
        efficiencies: str | None = None,
    ) -> None:
        self.part = part or whole(model)
        model = self.part.of(model)
        named = efficiencies or device.efficiencies_of
        self.efficiencies = None if named is None else load_device(named).name
        self.layout = ParallelLayout(
            tensor_parallel, expert_parallel, data_parallel_attention, imbalance
        )
        self.layout.check(model)
        if tensor_parallel > NODE_GPUS:
            raise ProfileError(
                f"roofline: tensor_parallel: {tensor_parallel} spans more than one node; "
                f"all-reduce was measured up to {NODE_GPUS} GPUs"
            )
        self.model = model
        self.device = device
        self.precision = precision
        self.kv_dtype = kv_dtype
        self.tensor_parallel = tensor_parallel
        self.host = host
        self._groups = data_parallel_attention
        self._group_gpus = self.layout.attention_tensor
        self._load = self.layout.load(model)
        self.cost = StepCost(
            model, precision, kv_dtype, tensor_parallel, data_parallel_attention, self._load
        )
        self._find_curves()
        self._set_attention()
        begins = self.part.embedding
        added, floor = (host.added_us, host.floor_us) if begins else ((0.0, 0.0), (0.0, 0.0))
        self._host_step_ns, self._host_request_ns = (us * 1e3 for us in added)
        self._floor_ns, self._floor_request_ns = (us * 1e3 for us in floor)
        self._eager_ns = host.eager_us(self.part.layers) * 1e3
        self._rows_ns: dict[int, float] = {0: self._host_step_ns}
        self._sampled_ns: dict[int, float] = {0: 0.0}
        self._apart_ns: dict[tuple[int, int], float] = {(0, 0): self._host_step_ns}

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """Length of one iteration, ns. The iteration's number does not matter."""
        before = self._before_decodes(work)
        rows = work.attending_rows
        if not rows or work.chunks:
            return max(self._least(work), round(before))
        slope, floor = self._decode_lines(rows)
        reading = slope * work.context_tokens
        if reading < floor:
            reading = floor
        return max(self._least(work), round(before + reading))

    def steps_ns(
        self, work: StepWork, n: int, first_iteration: int
    ) -> list[int] | npt.NDArray[np.int64]:
        """Lengths of `n` iterations, ns, shape (n,): the same doubles added in the same order."""
        before, least = self._before_decodes(work), self._least(work)
        rows = work.attending_rows
        if not rows or work.chunks:
            return self._alike(work, n, max(least, round(before)))
        (slope, floor), context = self._decode_lines(rows), work.context_tokens
        contexts = range(context, context + n * rows, rows)
        if n < LIST_RUN:
            if before >= least and slope * context >= floor:  # then so it is for all that follow
                return [round(before + slope * c) for c in contexts]
            return [max(least, round(before + max(slope * c, floor))) for c in contexts]
        ns = np.arange(context, contexts.stop, rows, dtype=np.float64)
        ns *= slope
        np.maximum(ns, floor, out=ns)
        ns += before
        np.rint(ns, out=ns)
        np.maximum(ns, least, out=ns)
        return ns.astype(np.int64)

    def quiet(self) -> RooflineStepTime:
        """See `sim.step_time.Dissectable`: it has no noise and refuses nothing."""
        return self

    def without_host(self) -> RooflineStepTime:
        """See `sim.step_time.Dissectable`."""
        model = copy.copy(self)
        model._host_step_ns = model._host_request_ns = model._eager_ns = 0.0
        model._floor_ns = model._floor_request_ns = 0.0
        model._rows_ns, model._sampled_ns, model._apart_ns = {0: 0.0}, {0: 0.0}, {(0, 0): 0.0}
        return model

    def flops_and_bytes(self, work: StepWork) -> tuple[float, float]:
        """FLOPs and bytes of memory traffic of one iteration on each GPU, for MFU and MBU."""
        if not self.part.head:
            work = copy.copy(work)
            work.sampled_rows = 0
        return self.cost.flops_and_bytes(work)

    def describe(self) -> StepTimeOrigin:
        """Data and errors of the curves in use, and the host's term."""
        name = self.device.name
        borrowed = [operator for operator, fitted in self._fitted.items() if not fitted.measured]
        core = [self._fitted["gemm"], self._fitted["decode_attention"]]
        if self.efficiencies:
            origin = f"data sheet only: {name} with the efficiencies of {self.efficiencies}"
        elif any(fitted.measured for fitted in core):
            origin = f"data sheet of {name} and efficiencies fitted to its measured kernels"
            if borrowed:
                origin += f" (median of other devices for {', '.join(borrowed)})"
        else:
            origin = f"data sheet only: {name} with median efficiencies of the measured devices"
        if self.model.latent:
            origin += (
                "; latent attention was not measured: the curves of others, by bytes and FLOPs"
            )
        if str(self.layout):
            origin += f"; {self.layout}"
        if self.precision == "fp8" and not self.device.fp8_flops:
            origin += f"; {name} has no fp8 units: fp8 weights save bytes only, computed in bf16"
        origin += f"; {self.host}: {self.host.source}"
        return StepTimeOrigin("roofline", origin, self._error())

    def _error(self) -> str:
        shares = self._shares()
        parts = (
            f"{operator.replace('_', ' ')} {fitted.error:.0%}{self._borrowed(operator)}"
            f"{shares.get(operator, '')}"
            for operator, fitted in self._fitted.items()
        )
        return (
            f"median error of kernels: {', '.join(parts)}; a step: {_USUAL_DECODES} decodes at "
            f"{_USUAL_CONTEXT:,} tokens; whole steps are not validated"
        )

    def _shares(self) -> dict[str, str]:
        """How much of a decode step the operators are whose kernels are short and errors large."""
        rows = _USUAL_DECODES
        work = StepWork((), rows, rows * _USUAL_CONTEXT)
        whole = self.step_ns(work, 0)
        said = {}
        for operator, free in _FREE.items():
            without = copy.copy(self)
            without._fitted = {
                **self._fitted, operator: replace(self._fitted[operator], curve=free)
            }  # fmt: skip
            without._rows_ns, without._sampled_ns = {0: self._host_step_ns}, {0: 0.0}
            without._apart_ns = {(0, 0): self._host_step_ns}
            share = 1 - without.step_ns(work, 0) / whole
            said[operator] = f" ({share:.1%} of a step)"
        return said

    def _borrowed(self, operator: str) -> str:
        """Which format's kernels the error is of, where it is not the one of the weights."""
        own = {"fp16": "bf16"}.get(self.precision, self.precision)
        if operator != "gemm" or own == self._gemm_key():
            return ""
        return f" (of {self._gemm_key()} kernels: those of {own} were not measured)"

    def _least(self, work: StepWork) -> int:
        """What no step is shorter than, ns: the host's time, where it runs beside the GPU.

        Engines whose host does so launch every step kernel by kernel, others those with prefills.
        """
        beside = self.host.form == "max"
        if not beside and not (self._eager_ns and work.chunks):
            return 1
        requests = share(work.decode_rows + len(work.chunks), self._groups)
        floor = self._floor_ns + self._floor_request_ns * requests + self._eager_ns
        if not beside:
            floor += self._host_step_ns + self._host_request_ns * requests
        return max(1, round(floor))

    def _decode_lines(self, rows: int) -> tuple[float, float]:
        """Attention of `rows` decodes: slope over the sum of their contexts, and least time, ns."""
        if self._groups == 1:
            return self._context_ns, self._row_ns * rows
        busiest = share(rows, self._groups)
        return self._context_ns * (busiest / rows), self._row_ns * busiest

    def _before_decodes(self, work: StepWork) -> float:
        """Everything but the attention of decodes that run without prefills, ns."""
        if self._groups > 1:
            return self._before_decodes_apart(work)
        rows, sampled = work.prefill_tokens + work.decode_rows, work.sampled_rows
        ns = self._rows_ns.get(rows)
        if ns is None:
            ns = self._rows_miss(rows)
        head = self._sampled_ns.get(sampled)
        if head is None:
            head = self._sampled_miss(sampled)
        chunks = work.chunks
        ns += head + self._host_request_ns * (work.decode_rows + len(chunks))
        if self._latent is not None:
            ns += self._latent.absorbed_ns(work.decode_rows)
        if chunks:
            return ns + self._with_prefill(work)
        return ns + self._decode_t0_ns if work.attending_rows else ns

    def _before_decodes_apart(self, work: StepWork) -> float:
        """The same for the busiest of several groups; experts get the rows of all of them."""
        busiest = busiest_group(work, self._groups)
        rows = work.prefill_tokens + work.decode_rows
        ns = self._apart_ns.get((busiest.rows, rows))
        if ns is None:
            ns = self._apart_miss(busiest.rows, rows)
        head = self._sampled_ns.get(busiest.sampled)
        if head is None:
            head = self._sampled_miss(busiest.sampled)
        ns += head + self._host_request_ns * busiest.requests
        if self._latent is not None:
            ns += self._latent.absorbed_ns(busiest.decode_rows)
        if work.chunks:
            return ns + self._with_prefill(work)
        return ns + self._decode_t0_ns if work.attending_rows else ns

    def _with_prefill(self, work: StepWork) -> float:
        """Attention of a step that has prefill chunks, and of its decodes if any, ns."""
        if self._groups > 1:
            part = busiest_group(work, self._groups)
            return self._chunks_ns(
                part.prefill_tokens, part.prefill_pairs_x2, part.history, part.longest,
                part.attending, part.context_tokens,
            )  # fmt: skip
        longest = history = 0
        for tokens, before in work.chunks:
            history += before
            if tokens + before > longest:
                longest = tokens + before
        return self._chunks_ns(
            work.prefill_tokens, work.prefill_pairs_x2, history, longest,
            work.attending_rows, work.context_tokens,
        )  # fmt: skip

    def _chunks_ns(
        self, tokens: float, pairs_x2: float, history: float, longest: float, rows: int,
        context: float,
    ) -> float:  # fmt: skip
        """The same, of the sums over chunks (see `GroupWork`) and `rows` decodes."""
        busy = self._token_ns * tokens + self._pair_x2_ns * pairs_x2
        reading = self._history_ns * history
        decodes = 0.0
        if rows and self._mixed:
            busy += self._mixed_row_ns * rows + self._mixed_token_ns * context
            reading += self._context_ns * context
            longest = max(longest, context / rows)
        elif rows:
            decodes = max(self._row_ns * rows, self._context_ns * context)
        attention = self._prefill_t0_ns + max(busy, reading, self._walk_ns * longest) + decodes
        if self._latent is None:
            return attention
        widths = self._latent.up_projection()
        return attention + self.model.layers * self._gemm_us(tokens + history, *widths) * 1e3

    def _alike(self, work: StepWork, n: int, ns: int) -> list[int] | npt.NDArray[np.int64]:
        if work.attending_rows and n > 1:
            raise ValueError("a run of iterations longer than one has no prefill")
        if n < LIST_RUN:
            return [ns] * n
        return np.full(n, ns, dtype=np.int64)

    def _find_curves(self) -> None:
        book, name = CurveBook(), self.efficiencies or self.device.name
        kv = "fp8" if self.kv_dtype == "fp8" else "bf16"
        self._fitted: dict[str, FoundCurve] = {
            "gemm": book.find("gemm", name, self._gemm_key()),
            "decode_attention": book.find("decode_attention", name, kv),
            "prefill_attention": book.find("prefill_attention", name, kv),
            "elementwise": book.find("elementwise", name, "bf16"),
            "sampler": book.find("sampler", name, "any"),
        }
        if self._group_gpus > 1:
            key = link_key(self.device, _measured_gpus(self._group_gpus))
            self._fitted["all_reduce"] = book.find("all_reduce", name, key)
        if self._groups > 1:
            key = link_key(self.device, _measured_gpus(self.tensor_parallel))
            self._fitted["all_to_all"] = book.find("all_to_all", name, key)
        # Where mixed launches were not measured, chunks and decodes just add up (see README); for
        # latents engines launch them apart.
        self._mixed = kv == "bf16" and book.measured("mixed_attention", name)
        self._mixed = self._mixed and not self.model.latent
        if self._mixed:
            self._fitted["mixed_attention"] = book.find("mixed_attention", name, "bf16")
        self._head = book.find("gemm", name, "bf16").curve  # the LM head stays in 16 bits

    def _gemm_key(self) -> str:
        """Whose curve the linear layers take.

        int8 takes that of fp8, which is measured. Formats that save only bytes take that of bf16.
        """
        eight_bits = self.precision in ("fp8", "int8") and self.device.fp8_flops
        return "fp8" if eight_bits else "bf16"

    def _set_attention(self) -> None:
        """Coefficients of attention in all layers, ns for each row, token and pair."""
        model, tp, layers = self.model, self._group_gpus, self.model.layers
        heads, kv_heads = model.heads / tp, kv_heads_per_gpu(model, tp)
        bandwidth, element = self.device.memory_bytes_per_s, KV_BYTES[self.kv_dtype]
        kv_bytes = 2 * kv_heads * model.head_dim * element
        decode = self._fitted["decode_attention"].curve
        prefill = self._fitted["prefill_attention"].curve
        assert isinstance(decode, DecodeAttentionCurve)
        assert isinstance(prefill, PrefillAttentionCurve)
        self._decode_t0_ns = layers * decode.t0_us * 1e3
        self._row_ns = layers * decode.row_ns * kv_heads
        self._context_ns = layers * kv_bytes / (decode.e_bw * bandwidth) * 1e9
        self._history_ns = self._context_ns
        self._prefill_t0_ns = layers * prefill.t0_us * 1e3
        io_bytes = 4 * heads * model.head_dim + kv_bytes
        self._token_ns = layers * io_bytes / (prefill.e_io * bandwidth) * 1e9
        pair_flops = 4 * heads * model.head_dim
        rate = prefill.e_flop * self.device.bf16_flops
        self._pair_x2_ns = layers * pair_flops / 2 / rate * 1e9
        # Every table has heads of 128: the walk over wider ones takes as much longer.
        self._walk_ns = layers * prefill.tile_ns * model.head_dim / 128
        if self._mixed:
            mixed = self._fitted["mixed_attention"].curve
            assert isinstance(mixed, MixedAttentionCurve)
            self._mixed_row_ns = layers * mixed.row_ns * heads
            self._mixed_token_ns = layers * mixed.token_ns * heads
        self._latent = self._latent_attention(decode, prefill) if model.latent else None

    def _latent_attention(
        self, decode: DecodeAttentionCurve, prefill: PrefillAttentionCurve
    ) -> LatentAttention:
        """Put the coefficients of latent attention in place of those of keys and values."""
        assert isinstance(self._head, GemmCurve)
        latent = LatentAttention(
            self.model, self.device, self.kv_dtype, self._group_gpus, decode, prefill, self._head
        )
        self._row_ns, self._context_ns = latent.row_ns, latent.context_ns
        self._token_ns, self._pair_x2_ns = latent.token_ns, latent.pair_x2_ns
        self._history_ns, self._walk_ns = latent.history_ns, latent.walk_ns
        return latent

    def _rows_miss(self, rows: int) -> float:
        """Host and every operator that depends on the number of rows alone, ns; then kept."""
        if len(self._rows_ns) >= MEMO_ROWS:
            self._rows_ns = {0: self._host_step_ns}
        ns = self._rows_ns[rows] = self._host_step_ns + self._all_rows_us(rows, rows) * 1e3
        return ns

    def _apart_miss(self, rows: int, all_rows: int) -> float:
        """The same for a group with `rows` of `all_rows`, ns; then kept."""
        if len(self._apart_ns) >= MEMO_ROWS:
            self._apart_ns = {(0, 0): self._host_step_ns}
        us = self._all_rows_us(rows, all_rows)
        ns = self._apart_ns[rows, all_rows] = self._host_step_ns + us * 1e3
        return ns

    def _all_rows_us(self, rows: int, all_rows: int) -> float:
        """Layers and embedding for `rows` of a group, `all_rows` of all groups together, us."""
        model = self.model
        activation, mlp = self._activation_us(all_rows), self._mlp_us(rows, all_rows)
        us = model.expert_layers * self._layer_us(rows, activation, mlp)
        if self._groups > 1:
            us += model.expert_layers * self._exchange_us(rows, all_rows)
        if model.dense_layers:
            activation = self._elementwise_layer_us("dense_act_fn", rows)
            mlp = self._plain_us(rows, model.dense_intermediate)
            us += model.dense_layers * self._layer_us(rows, activation, mlp)
        if not self.part.embedding:
            return us
        us += self._elementwise_us(4.0 * model.hidden * rows)
        if self._group_gpus > 1:  # the embedding is cut by vocabulary
            us += self._all_reduce_us(rows)
        return us

    def _sampled_miss(self, sampled: int) -> float:
        """Last norm, LM head, gathering of logits and sampler, ns; then kept."""
        if not self.part.head:
            return 0.0
        if len(self._sampled_ns) >= MEMO_ROWS:
            self._sampled_ns = {0: 0.0}
        model, tp = self.model, self._group_gpus
        sampler = self._fitted["sampler"].curve
        assert isinstance(self._head, GemmCurve)
        assert isinstance(sampler, SamplerCurve)
        weights = model.hidden * model.vocab / tp
        moved = 2 * (weights + sampled * (model.hidden + model.vocab / tp))
        us = self._elementwise_layer_us("layernorm", sampled)
        us += self._head.us(
            moved / self.device.memory_bytes_per_s * 1e6,
            2 * sampled * weights / self.device.bf16_flops * 1e6,
        )
        if tp > 1:  # an all-gather sends half of what an all-reduce does
            us += self._link_us(model.vocab * 2 * sampled / 2)
        ns = self._sampled_ns[sampled] = (us + sampler.us(float(sampled))) * 1e3
        return ns

    def _layer_us(self, rows: int, activation_us: float, mlp_us: float) -> float:
        model, tp = self.model, self._group_gpus
        heads, kv_heads = model.heads / tp, kv_heads_per_gpu(model, tp)
        us = [self._elementwise_layer_us(x, rows) for x in ("layernorm", "layernorm", "rotary_emb")]
        us += [activation_us]
        us += [self._elementwise_layer_us("qk_norm", rows)] if model.qk_norm else []
        if self._latent is not None:
            norms = ["kv_latent_norm"] + ["q_latent_norm"] * (model.q_lora_rank > 0)
            us += [self._elementwise_layer_us(norm, rows) for norm in norms]
            us += [self._gemm_us(rows, *widths) for widths in self._latent.projections()]
        else:
            us += [self._gemm_us(rows, model.hidden, (heads + 2 * kv_heads) * model.head_dim)]
            us += [self._gemm_us(rows, heads * model.head_dim, model.hidden)]
        total = sum([*us, mlp_us])
        return total + 2 * self._all_reduce_us(rows) if tp > 1 else total

    def _mlp_us(self, rows: int, all_rows: int) -> float:
        """MLP or experts: `all_rows` are sent to experts, those of the busiest GPU set the pace."""
        model = self.model
        inner = model.intermediate / self.layout.expert_tensor
        copies = self._load.touched_on_busiest(all_rows)
        sent = self._load.pairs_on_busiest(all_rows)
        us = self._gemm_us(sent, model.hidden, (model.mlp_matrices - 1) * inner, copies)
        us += self._gemm_us(sent, inner, model.hidden, copies)
        if model.experts:
            us += self._gemm_us(rows, model.hidden, model.experts)
        if model.shared_intermediate:
            us += self._plain_us(rows, model.shared_intermediate)
            us += self._elementwise_layer_us("shared_act_fn", rows)
        return us

    def _plain_us(self, rows: int, width: int) -> float:
        """Projections of an MLP that every row goes through, cut over the GPUs of a group."""
        model, tp = self.model, self._group_gpus
        us = self._gemm_us(rows, model.hidden, (model.mlp_matrices - 1) * width / tp)
        return us + self._gemm_us(rows, width / tp, model.hidden)

    def _activation_us(self, all_rows: int) -> float:
        moved = elementwise_bytes(self.model, "act_fn", self.tensor_parallel) * all_rows
        return self._elementwise_us(moved * self._uneven(all_rows))

    def _uneven(self, all_rows: int) -> float:
        """Pairs of token and expert on the busiest GPU, over the mean of all GPUs."""
        even = all_rows * max(1, self.model.experts_per_token) / self.layout.expert
        return self._load.pairs_on_busiest(all_rows) / even

    def _exchange_us(self, rows: int, all_rows: int) -> float:
        """Tokens to the GPUs of their experts, and outputs back: two all-to-alls in bf16.

        A token is sent once to every GPU that holds any of its experts (as DeepEP does). The GPU
        that sends or gets most sets the pace.
        """
        gpus = self.tensor_parallel
        sent = rows / self._group_gpus
        got = all_rows / gpus * self._uneven(all_rows)
        message = 2.0 * self.model.hidden * max(sent, got) * self._load.gpus_of_a_token()
        curve = self._fitted["all_to_all"].curve
        assert isinstance(curve, AllToAllCurve)
        ideal_us = (gpus - 1) / gpus * message / self.device.peer_bytes_per_s * 1e6
        return 2 * curve.us(ideal_us)

    def _gemm_us(
        self, rows: float, width_in: float, width_out: float, copies: float = 1.0
    ) -> float:
        """A linear layer; `copies` of its weights are read (experts), each row uses one."""
        gemm = self._fitted["gemm"].curve
        assert isinstance(gemm, GemmCurve)
        inputs = 1 if self._gemm_key() == "fp8" else 2
        weights = width_in * width_out
        moved = copies * weights * weight_bits(self.precision) / 8
        moved += rows * (width_in * inputs + width_out * 2)
        return gemm.us(
            moved / self.device.memory_bytes_per_s * 1e6,
            2 * rows * weights / self.device.peak_flops(self.precision) * 1e6,
        )

    def _elementwise_layer_us(self, layer: str, rows: int) -> float:
        return self._elementwise_us(elementwise_bytes(self.model, layer, self._group_gpus) * rows)

    def _elementwise_us(self, moved: float) -> float:
        curve = self._fitted["elementwise"].curve
        assert isinstance(curve, ElementwiseCurve)
        return curve.us(moved / self.device.memory_bytes_per_s * 1e6)

    def _all_reduce_us(self, rows: int) -> float:
        return self._link_us(2.0 * self.model.hidden * rows)

    def _link_us(self, message: float) -> float:
        curve = self._fitted["all_reduce"].curve
        assert isinstance(curve, AllReduceCurve)
        gpus = self._group_gpus
        sent = 2 * (gpus - 1) / gpus * message
        return curve.us(sent / self.device.peer_bytes_per_s * 1e6)


def _measured_gpus(gpus: int) -> int:
    """Sizes between those measured (3, 6) take the next larger one's curve."""
    return next(n for n in (2, 4, 8) if n >= gpus)
