"""Step times from tables of measured operators: `ProfiledStepTime`.

One iteration is the sum of its operators (`composition.py`), each looked up in a table by linear
interpolation (`grid.py`), then the host's time (`host.py`), then noise (`noise.py`). What depends
on a number of rows or of sampled sequences alone is kept once looked up; decode attention is a
curve over the mean context, so that a run of steps costs a few numpy operations.

Beyond the measured grid nothing is guessed silently: `outside` says what to take, each use is
counted in the steps that were run, and every summary prints the share of steps and of time.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from kernels_profile.analytic import Analytic
from kernels_profile.attention import Bools, DecodeCurve, Mark, PrefillAttention
from kernels_profile.beyond import count, refuse
from kernels_profile.composition import NOTHING, Composition, Piece, Summed, summed
from kernels_profile.graphs import GRAPHS, CudaGraphs
from kernels_profile.host import DEFAULT_HOST, HOSTS, HostOverhead
from kernels_profile.links import FROM_TABLES, Collectives
from kernels_profile.lookup import Finder
from kernels_profile.noise import Noise
from kernels_profile.parallel import ParallelLayout
from kernels_profile.table import DataSet
from kernels_profile.usage import Usage
from sim.errors import ConfigError, ProfileError
from sim.model_part import ModelPart, whole
from sim.specs import DeviceSpec, ModelSpec
from sim.step_cost import StepCost
from sim.step_time import ReplicaStepTime, StepTimeOrigin, StepWork

OutsideRule = Literal["roofline-scaled", "clamp", "error"]
MissingRule = Literal["error", "roofline"]

LIST_RUN = 12
"""Runs shorter than this are quicker step by step than in numpy and back."""

MEMO = 1 << 16
"""Row counts and batch sizes whose times are kept before the memory is dropped and filled anew."""


class ProfiledStepTime:
    """Step times of one model on one kind of GPU, from measured tables.

    Args:
        model: Architecture.
        device: Data sheet; the tables have to be of this device.
        data: Data sets, in the order in which operators are looked up.
        precision: Of the weights of linear layers, a key of `sim.specs.WEIGHT_BITS`.
        kv_dtype: Of the KV cache, ``bf16``, ``fp16`` or ``fp8``.
        tensor_parallel: GPUs of the replica (or of the stage).
        host: Host time of each step.
        part: The layers of one pipeline stage; None for all.
        outside: What to take beyond the grid: the nearest measured time scaled by the ratio that
            the analytic model gives (the default: it is right to first order, counted, and does not
            end an hour's run for one step), that time as it is, or an error.
        missing: An operator without a table is an error, or filled by the analytic model.
        strict: Both are errors, whatever else is said.
        cuda_graphs: To which sizes batches are padded.
        noise_cv: Standard deviation over mean of the steps; None takes the tables' own repeats, 0
            is none.
        collectives: Backend or model of what GPUs send each other.
        sustained_clock: Share of the clock at which the tables' kernels were timed that a serving
            load leaves to compute-bound matrix products; see `efficiency/README.md`.
        lender: Device that the tables are of, where it is another one: each time is scaled by the
            ratio that the two data sheets give with the lender's efficiencies.
        expert_parallel: Of the GPUs, how many hold experts of their own.
        imbalance: How uneven experts' popularity is, see `ParallelLayout`.
        data_parallel_attention: Groups of the GPUs that attend apart; above 1 for
            `grouped.GroupedStepTime` only.
        passed_over: There are tables of the device itself too, for the origin to say.

    Raises:
        ConfigError: GPUs that do not divide heads or experts, an unknown precision.
        ProfileError: operators that no table has, all in one, with device and tensor parallelism.
    """

    asks_spread = True

    def __init__(
        self,
        model: ModelSpec,
        device: DeviceSpec,
        data: Sequence[DataSet],
        precision: str = "bf16",
        kv_dtype: str = "bf16",
        tensor_parallel: int = 1,
        host: HostOverhead = HOSTS[DEFAULT_HOST],
        *,
        part: ModelPart | None = None,
        outside: OutsideRule = "roofline-scaled",
        missing: MissingRule = "error",
        strict: bool = False,
        cuda_graphs: CudaGraphs = GRAPHS["vllm"],
        noise_cv: float | None = None,
        collectives: Collectives = FROM_TABLES,
        sustained_clock: float = 1.0,
        expert_parallel: int = 1,
        imbalance: float = 0.0,
        data_parallel_attention: int = 1,
        lender: DeviceSpec | None = None,
        passed_over: bool = False,
    ) -> None:
        if not 0.1 <= sustained_clock <= 1:
            raise ConfigError(f"sustained_clock: {sustained_clock}: expected 0.1 to 1")
        if data_parallel_attention > 1 and type(self) is ProfiledStepTime:
            raise ValueError("groups of GPUs that attend apart: make a GroupedStepTime")
        self.layout = ParallelLayout(
            tensor_parallel, expert_parallel, data_parallel_attention, imbalance
        )
        self.layout.check(model)
        self.model = model
        self.device = device
        self.data = list(data)
        self.lender = None if lender is None or lender.name == device.name else lender
        self.passed_over = passed_over
        self.precision = precision
        self.kv_dtype = kv_dtype
        self.tensor_parallel = tensor_parallel
        self.host = host
        self.part = part or whole(model)
        self.outside: OutsideRule = "error" if strict else outside
        self.missing: MissingRule = "error" if strict else missing
        self._fillable = _fillable(strict, missing)
        self.graphs = cuda_graphs
        self.sustained_clock = sustained_clock
        load = self.layout.load(model)
        self.cost = StepCost(
            model, precision, kv_dtype, tensor_parallel, data_parallel_attention, load
        )
        self._refuses = self.outside == "error"
        self._compose(collectives)
        self.noise_cv = self._cv() if noise_cv is None else noise_cv
        self.noise_given = noise_cv is not None
        begins = self.part.embedding  # the host's time is that of the first stage
        added, floor = (host.added_us, host.floor_us) if begins else ((0.0, 0.0), (0.0, 0.0))
        self._host_ns, self._host_request_ns = (us * 1e3 for us in added)
        self._floor_ns, self._floor_request_ns = (us * 1e3 for us in floor)
        self._eager_ns = host.eager_us(self.part.layers) * 1e3
        self._rows: dict[int, Summed] = {}
        self._sampled: dict[int, Summed] = {}
        self._absorbed: dict[int, Summed] = {}
        self._curves: dict[int, DecodeCurve] = {}
        self._last_prefill: StepWork | None = None
        self._last_us: tuple[float, list[Mark]] = (0.0, [])

    # --- the contract of `StepTimeModel`

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """Length of one iteration, ns, without noise: that belongs to a replica."""
        if self._refuses:
            self.refuse(work)
        return max(1, round(self.exact_ns(work)))

    def steps_ns(
        self, work: StepWork, n: int, first_iteration: int
    ) -> list[int] | npt.NDArray[np.int64]:
        """Lengths of `n` iterations, ns, shape (n,)."""
        if self._refuses:
            self.refuse(work, n)
        return rounded(self.exact_many_ns(work, n))

    def describe(self) -> StepTimeOrigin:
        """Data sets, what is scaled or filled, graphs, host and noise."""
        from kernels_profile.provenance import describe

        return describe(self)

    def for_replica(self, seed: int, replication: int, place: int) -> ReplicaStepTime:
        """The model of one replica: its noise, and counts of its own."""
        from kernels_profile.replica_step_time import ProfiledReplica

        noise = Noise(self.noise_cv, seed, replication, place) if self.noise_cv else None
        return ProfiledReplica(self, noise)

    def quiet(self) -> ProfiledStepTime:
        """See `sim.step_time.Dissectable`: steps that never take place are not refused."""
        if not self._refuses:
            return self
        model = copy.copy(self)
        model._refuses = False
        return model

    def without_host(self) -> ProfiledStepTime:
        """See `sim.step_time.Dissectable`."""
        model = copy.copy(self)
        model._host_ns = model._host_request_ns = model._eager_ns = 0.0
        model._floor_ns = model._floor_request_ns = 0.0
        return model

    def flops_and_bytes(self, work: StepWork) -> tuple[float, float]:
        """FLOPs and bytes of memory traffic of one iteration on each GPU, for MFU and MBU."""
        return self.cost.flops_and_bytes(work)

    # --- times before noise and rounding

    def exact_ns(self, work: StepWork) -> float:
        """Time of one iteration, ns."""
        before = self._before_decodes(work)
        if self.decodes_apart(work):
            curve, deviation = self.decode_curve(work)
            before = before + curve.at(work.context_tokens / work.attending_rows, deviation)
        floor = self._floor(work)
        return before if before >= floor else floor

    def exact_many_ns(self, work: StepWork, n: int) -> list[float] | npt.NDArray[np.float64]:
        """Times of `n` iterations, ns: the same doubles added in the same order."""
        rows = work.attending_rows
        if work.chunks or not rows:
            if rows and n > 1:
                raise ValueError("a run of iterations longer than one has no prefill")
            return [self.exact_ns(work)] * n
        before, floor = self._before_decodes(work), self._floor(work)
        curve, deviation = self.decode_curve(work)
        first = work.context_tokens
        if n < LIST_RUN:
            contexts = range(first, first + n * rows, rows)
            each = [before + curve.at(c / rows, deviation) for c in contexts]
            return [ns if ns >= floor else floor for ns in each]
        many = np.arange(first, first + n * rows, rows, dtype=np.float64)
        many /= rows
        ns = before + curve.many(many, deviation)
        return np.maximum(ns, floor, out=ns)

    def _floor(self, work: StepWork) -> float:
        """What no step is shorter than: the host's time where it runs beside the GPU."""
        requests = work.decode_rows + len(work.chunks)
        floor = self._floor_ns + self._floor_request_ns * requests
        if self._eager_ns and self.graphs.eager(
            work.prefill_tokens + work.decode_rows, prefill=bool(work.chunks)
        ):
            floor += self._eager_ns + self._host_ns + self._host_request_ns * requests
        return floor

    def _before_decodes(self, work: StepWork) -> float:
        """Everything but the attention of decodes that launches on its own, ns."""
        chunks = work.chunks
        ns = self.by_rows(work).ns
        if work.sampled_rows:
            ns += self.by_samples(work).ns
        ns += self._host_ns + self._host_request_ns * (work.decode_rows + len(chunks))
        if chunks:
            ns += self.prefill(work)[0] * self.layers_ns
        return ns + self.latent(work).ns if self.model.latent else ns

    # --- what lies beyond the grid

    def count(
        self, usage: Usage, work: StepWork, start_ns: int, ends_ns: Sequence[int]
    ) -> bool | Bools:
        """Add iterations that took place to the counts of a replica: see `beyond.count`."""
        return count(self, usage, work, start_ns, ends_ns)

    def refuse(self, work: StepWork, n: int = 1) -> None:
        """Refuse iterations that lie outside of the measured grid: see `beyond.refuse`."""
        refuse(self, work, n)

    # --- the parts of a step

    def steady_parts(self, work: StepWork) -> list[Summed]:
        """Those that are the same in all iterations of a run."""
        parts = [self.by_rows(work)]
        if work.sampled_rows:
            parts.append(self.by_samples(work))
        return [*parts, self.latent(work)] if self.model.latent else parts

    def by_rows(self, work: StepWork) -> Summed:
        """What depends on the rows of a step, padded where they are captured in a graph."""
        rows = work.prefill_tokens + work.decode_rows
        if rows:
            rows = self.graphs.padded(rows, prefill=bool(work.chunks))
        return self._rows.get(rows) or self._kept(self._rows, rows, self.composed.rows)

    def by_samples(self, work: StepWork) -> Summed:
        """What depends on the sequences that it samples."""
        sampled = work.sampled_rows
        found = self._sampled.get(sampled)
        return found or self._kept(self._sampled, sampled, self.composed.sampled)

    def latent(self, work: StepWork) -> Summed:
        """What latent attention adds: projections of decodes, and of the contexts of chunks."""
        decodes = work.decode_rows
        found = self._absorbed.get(decodes)
        found = found or self._kept(self._absorbed, decodes, self.composed.absorbed)
        if not work.chunks:
            return found
        seen = work.prefill_tokens + sum(before for _, before in work.chunks)
        return found + summed(self.composed.projected, seen)

    def _kept(self, memo: dict[int, Summed], rows: int, pieces: list[Piece]) -> Summed:
        if len(memo) >= MEMO:
            memo.clear()
        return memo.setdefault(rows, summed(pieces, rows) if rows else NOTHING)

    def prefill(self, work: StepWork) -> tuple[float, list[Mark]]:
        """Attention of the chunks, with the decodes if both are one launch: us of one layer."""
        if work is not self._last_prefill:
            self._last_prefill, self._last_us = work, self._prefill(work)
        return self._last_us

    def _prefill(self, work: StepWork) -> tuple[float, list[Mark]]:
        chunks, rows = work.chunks, work.attending_rows
        tokens = sum(size for size, _ in chunks)
        history = sum(before for _, before in chunks)
        if rows and self._one_launch:
            return self._attention.with_decodes(
                len(chunks), tokens, work.prefill_pairs_x2, history,
                rows, work.context_tokens / rows,
            )  # fmt: skip
        return self._attention.alone(len(chunks), tokens, work.prefill_pairs_x2, history)

    def decodes_apart(self, work: StepWork) -> bool:
        """Whether there are decodes whose attention is a launch of its own."""
        return work.attending_rows > 0 and not (work.chunks and self._one_launch)

    def decode_curve(self, work: StepWork) -> tuple[DecodeCurve, float]:
        """Attention of so many decodes over their mean context, and the contexts' deviation."""
        rows, spread = work.attending_rows, work.context_spread
        curve = self._curves.get(rows)
        if curve is None:
            if len(self._curves) >= MEMO:
                self._curves.clear()
            curve = DecodeCurve(self.composed.decode, rows, self.composed.kink, self.layers_ns)
            self._curves[rows] = curve
        return curve, math.sqrt(spread) / rows if spread else 0.0

    # --- what it is made of

    def _compose(self, collectives: Collectives) -> None:
        tables = self.lender or self.device
        self.composed, finder = self._composition(tables, self.data, collectives)
        if self.lender is not None:
            here, _ = self._composition(self.device, [], collectives)
            self.composed.scale_to(here)
        if finder.missing and self.missing == "error":
            raise ProfileError(self._lacking(list(dict.fromkeys(finder.missing))))
        self.filled = list(dict.fromkeys(finder.missing))
        self.layers_ns = self.part.layers * 1e3
        self._one_launch = self.composed.mixed is not None
        self._attention = PrefillAttention(
            self.composed.prefill, self.composed.prefill_us, self.composed.mixed
        )

    def _composition(
        self, device: DeviceSpec, data: Sequence[DataSet], collectives: Collectives
    ) -> tuple[Composition, Finder]:
        """Operators of a device; with the lender's efficiencies, if there is one."""
        of = None if self.lender is None else self.lender.name
        analytic = Analytic(device, self.precision, self.kv_dtype, of)
        finder = Finder(data, analytic, clamp=self.outside == "clamp")
        composed = Composition(
            self.model, self.part, finder, analytic, self.precision, self.kv_dtype,
            self.layout, collectives.finder(finder, self.layout.attention_tensor),
            self.sustained_clock,
        )  # fmt: skip
        if self.layout.data_attention > 1:
            composed.exchange_by(collectives.finder(finder, self.tensor_parallel))
        return composed, finder

    def _lacking(self, missing: Sequence[str]) -> str:
        sets = ", ".join(str(data.folder) for data in self.data)
        return (
            f"profile: {self.device.name} (tensor_parallel {self.tensor_parallel}): no table has "
            f"{'; '.join(missing)} (looked in {sets}); measure or import them, "
            f"or {self._fillable}"
        )

    def _cv(self) -> float:
        """Of a step: the median over its operators' repeats, as if all of them vary together."""
        known = [op.spread for op in self.composed.operators() if op.spread is not None]
        return float(np.median(known)) if known else 0.0


def _fillable(strict: bool, missing: MissingRule) -> str:
    """How to have the roofline fill what no table has, by what was said so far."""
    if not strict:
        return "give missing: roofline"
    return "leave out strict" + ("" if missing == "roofline" else ", and give missing: roofline")


def rounded(ns: list[float] | npt.NDArray[np.float64]) -> list[int] | npt.NDArray[np.int64]:
    """Times as whole ns, half to even, at least 1."""
    if isinstance(ns, list):
        return [max(1, round(each)) for each in ns]
    whole_ns = np.rint(ns)
    np.maximum(whole_ns, 1, out=whole_ns)
    return whole_ns.astype(np.int64)
