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
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels_profile.curves import CurveBook, FoundCurve
from kernels_profile.host import DEFAULT_HOST, HOSTS, HostOverhead
from kernels_profile.operators import (
    AllReduceCurve,
    DecodeAttentionCurve,
    ElementwiseCurve,
    GemmCurve,
    MixedAttentionCurve,
    PrefillAttentionCurve,
    SamplerCurve,
    elementwise_bytes,
    link_key,
)
from sim.errors import ProfileError
from sim.specs import (
    KV_BYTES,
    DeviceSpec,
    ModelSpec,
    check_tensor_parallel,
    kv_heads_per_gpu,
    weight_bits,
)
from sim.step_cost import StepCost, expected_experts
from sim.step_time import StepTimeOrigin, StepWork

LIST_RUN = 32
"""Runs shorter than this are made as Python lists: that is quicker here, the more so as the
simulator sums them up as integers. More than `sim.step_time.SHORT_RUN`, as one step is little."""

NODE_GPUS = 8
"""Most GPUs whose all-reduce was measured."""

MEMO_ROWS = 1 << 17
"""Row counts whose times are kept before the memory is dropped and filled anew."""


class RooflineStepTime:
    """Analytic step times of one model on one kind of GPU.

    Args:
        model: Architecture.
        device: Data sheet.
        precision: Of the weights of linear layers, a key of `sim.specs.WEIGHT_BITS`.
        kv_dtype: Of the KV cache, ``bf16``, ``fp16`` or ``fp8``.
        tensor_parallel: GPUs of the replica, at most 8 (one node).
        host: Host time of each step.

    Raises:
        ConfigError: a tensor parallelism that does not divide the heads, an unknown precision.
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
    ) -> None:
        check_tensor_parallel(model, tensor_parallel)
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
        self.cost = StepCost(model, precision, kv_dtype, tensor_parallel)
        self._find_curves()
        self._set_attention()
        self._host_step_ns, self._host_request_ns = (us * 1e3 for us in host.added_us)
        self._floor_ns, self._floor_request_ns = (us * 1e3 for us in host.floor_us)
        self._rows_ns: dict[int, float] = {0: self._host_step_ns}
        self._sampled_ns: dict[int, float] = {0: 0.0}

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """Length of one iteration, ns. The iteration's number does not matter."""
        before = self._before_decodes(work)
        rows = work.attending_rows
        if not rows or work.chunks:
            return max(self._least(work), round(before))
        reading = self._context_ns * work.context_tokens
        floor = self._row_ns * rows
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
        floor, slope, context = self._row_ns * rows, self._context_ns, work.context_tokens
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

    def flops_and_bytes(self, work: StepWork) -> tuple[float, float]:
        """FLOPs and bytes of memory traffic of one iteration on each GPU, for MFU and MBU."""
        return self.cost.flops_and_bytes(work)

    def describe(self) -> StepTimeOrigin:
        """Data and errors of the curves in use, and the host's term."""
        name = self.device.name
        borrowed = [operator for operator, fitted in self._fitted.items() if not fitted.measured]
        core = [self._fitted["gemm"], self._fitted["decode_attention"]]
        if any(fitted.measured for fitted in core):
            origin = f"data sheet of {name} and efficiencies fitted to its measured kernels"
            if borrowed:
                origin += f" (median of other devices for {', '.join(borrowed)})"
        else:
            origin = f"data sheet only: {name} with median efficiencies of the measured devices"
        if self.precision == "fp8" and not self.device.fp8_flops:
            origin += f"; {name} has no fp8 units: fp8 weights save bytes only, computed in bf16"
        origin += f"; {self.host}: {self.host.source}"
        return StepTimeOrigin("roofline", origin, self._error())

    def _error(self) -> str:
        parts = (
            f"{operator.replace('_', ' ')} {fitted.error:.0%}{self._borrowed(operator)}"
            for operator, fitted in self._fitted.items()
        )
        return f"median error of kernels: {', '.join(parts)}; whole steps are not validated"

    def _borrowed(self, operator: str) -> str:
        """Which format's kernels the error is of, where it is not the one of the weights."""
        own = {"fp16": "bf16"}.get(self.precision, self.precision)
        if operator != "gemm" or own == self._gemm_key():
            return ""
        return f" (of {self._gemm_key()} kernels: those of {own} were not measured)"

    def _least(self, work: StepWork) -> int:
        """What no step is shorter than, ns: the host's time, where it runs beside the GPU."""
        if self.host.form != "max":
            return 1
        requests = work.decode_rows + len(work.chunks)
        return max(1, round(self._floor_ns + self._floor_request_ns * requests))

    def _before_decodes(self, work: StepWork) -> float:
        """Everything but the attention of decodes that run without prefills, ns."""
        rows, sampled = work.prefill_tokens + work.decode_rows, work.sampled_rows
        ns = self._rows_ns.get(rows)
        if ns is None:
            ns = self._rows_miss(rows)
        head = self._sampled_ns.get(sampled)
        if head is None:
            head = self._sampled_miss(sampled)
        chunks = work.chunks
        ns += head + self._host_request_ns * (work.decode_rows + len(chunks))
        if chunks:
            return ns + self._with_prefill(work)
        return ns + self._decode_t0_ns if work.attending_rows else ns

    def _with_prefill(self, work: StepWork) -> float:
        """Attention of a step that has prefill chunks, and of its decodes if any, ns."""
        longest: float = 0
        history = 0
        for tokens, before in work.chunks:
            history += before
            if tokens + before > longest:
                longest = tokens + before
        busy = self._token_ns * work.prefill_tokens + self._pair_x2_ns * work.prefill_pairs_x2
        reading = self._context_ns * history
        decodes = 0.0
        rows, context = work.attending_rows, work.context_tokens
        if rows and self._mixed:
            busy += self._mixed_row_ns * rows + self._mixed_token_ns * context
            reading += self._context_ns * context
            longest = max(longest, context / rows)
        elif rows:
            decodes = max(self._row_ns * rows, self._context_ns * context)
        return self._prefill_t0_ns + max(busy, reading, self._walk_ns * longest) + decodes

    def _alike(self, work: StepWork, n: int, ns: int) -> list[int] | npt.NDArray[np.int64]:
        if work.attending_rows and n > 1:
            raise ValueError("a run of iterations longer than one has no prefill")
        if n < LIST_RUN:
            return [ns] * n
        return np.full(n, ns, dtype=np.int64)

    def _find_curves(self) -> None:
        book, name = CurveBook(), self.device.name
        kv = "fp8" if self.kv_dtype == "fp8" else "bf16"
        self._fitted: dict[str, FoundCurve] = {
            "gemm": book.find("gemm", name, self._gemm_key()),
            "decode_attention": book.find("decode_attention", name, kv),
            "prefill_attention": book.find("prefill_attention", name, kv),
            "elementwise": book.find("elementwise", name, "bf16"),
            "sampler": book.find("sampler", name, "any"),
        }
        if self.tensor_parallel > 1:
            # Sizes between those measured (3, 6) take the next larger one's curve.
            gpus = next(n for n in (2, 4, 8) if n >= self.tensor_parallel)
            self._fitted["all_reduce"] = book.find("all_reduce", name, link_key(self.device, gpus))
        # Where mixed launches were not measured, chunks and decodes just add up (see README).
        self._mixed = kv == "bf16" and book.measured("mixed_attention", name)
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
        model, tp, layers = self.model, self.tensor_parallel, self.model.layers
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

    def _rows_miss(self, rows: int) -> float:
        """Host and every operator that depends on the number of rows alone, ns; then kept."""
        if len(self._rows_ns) >= MEMO_ROWS:
            self._rows_ns = {0: self._host_step_ns}
        us = self.model.layers * self._layer_us(rows) + self._elementwise_us(
            4.0 * self.model.hidden * rows
        )
        if self.tensor_parallel > 1:  # the embedding is cut by vocabulary
            us += self._all_reduce_us(rows)
        ns = self._rows_ns[rows] = self._host_step_ns + us * 1e3
        return ns

    def _sampled_miss(self, sampled: int) -> float:
        """Last norm, LM head, gathering of logits and sampler, ns; then kept."""
        if len(self._sampled_ns) >= MEMO_ROWS:
            self._sampled_ns = {0: 0.0}
        model, tp = self.model, self.tensor_parallel
        sampler = self._fitted["sampler"].curve
        assert isinstance(self._head, GemmCurve)
        assert isinstance(sampler, SamplerCurve)
        weights = model.hidden * model.vocab / tp
        moved = 2 * (weights + sampled * (model.hidden + model.vocab / tp))
        us = self._elementwise_us(elementwise_bytes(model, "layernorm", tp) * sampled)
        us += self._head.us(
            moved / self.device.memory_bytes_per_s * 1e6,
            2 * sampled * weights / self.device.bf16_flops * 1e6,
        )
        if tp > 1:  # an all-gather sends half of what an all-reduce does
            us += self._link_us(model.vocab * 2 * sampled / 2)
        ns = self._sampled_ns[sampled] = (us + sampler.us(float(sampled))) * 1e3
        return ns

    def _layer_us(self, rows: int) -> float:
        model, tp = self.model, self.tensor_parallel
        heads, kv_heads = model.heads / tp, kv_heads_per_gpu(model, tp)
        layers = ["layernorm", "layernorm", "rotary_emb", "act_fn"]
        layers += ["qk_norm"] if model.qk_norm else []
        us = sum(self._elementwise_us(elementwise_bytes(model, x, tp) * rows) for x in layers)
        us += self._gemm_us(rows, model.hidden, (heads + 2 * kv_heads) * model.head_dim)
        us += self._gemm_us(rows, heads * model.head_dim, model.hidden)
        us += self._mlp_us(rows)
        return us + 2 * self._all_reduce_us(rows) if tp > 1 else us

    def _mlp_us(self, rows: int) -> float:
        model = self.model
        inner = model.intermediate / self.tensor_parallel
        copies = expected_experts(model, rows)
        sent = rows * max(1, model.experts_per_token)
        us = self._gemm_us(sent, model.hidden, (model.mlp_matrices - 1) * inner, copies)
        us += self._gemm_us(sent, inner, model.hidden, copies)
        if model.experts:
            us += self._gemm_us(rows, model.hidden, model.experts)
        return us

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

    def _elementwise_us(self, moved: float) -> float:
        curve = self._fitted["elementwise"].curve
        assert isinstance(curve, ElementwiseCurve)
        return curve.us(moved / self.device.memory_bytes_per_s * 1e6)

    def _all_reduce_us(self, rows: int) -> float:
        return self._link_us(2.0 * self.model.hidden * rows)

    def _link_us(self, message: float) -> float:
        curve = self._fitted["all_reduce"].curve
        assert isinstance(curve, AllReduceCurve)
        gpus = self.tensor_parallel
        sent = 2 * (gpus - 1) / gpus * message
        return curve.us(sent / self.device.peer_bytes_per_s * 1e6)
