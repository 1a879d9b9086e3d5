"""Finds operators in data sets: the exact shape, else between measured shapes, else none.

Data sets are searched in their order for the exact shape first: one that a later set has wins over
one that an earlier set would be interpolated for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from kernels_profile.analytic import Analytic
from kernels_profile.grid import Floats, Grid, Outside
from kernels_profile.table import DataSet, Table
from sim.specs import ModelSpec

EQUAL_DTYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"bf16": ("bf16", "fp16"), "fp16": ("fp16", "bf16")}
)
"""Formats that stand for each other: as many bytes, and the same rate on every device here."""

FULL_GRID = 0.8
"""Share of the combinations of n and k that makes a table one over shapes, to go beyond which is
scaling, and not a guess between unlike layers."""

BACKENDS = ("custom", "vllm_graph", "graph", "vllm_eager", "nccl")
"""Collectives in order of preference: what engines launch inside CUDA graphs comes first."""


@dataclass(frozen=True)
class Operator:
    """One operator of a model on one GPU: its time over what varies from step to step.

    Attributes:
        name: For messages and summaries, such as ``linear 4096 x 14336 (fp8)``.
        grid: Measured times, or None where `fill` stands for them.
        fill: Analytic time, microseconds, of the same arguments.
        fixed: Coordinates that come before the varying ones.
        source: What it rests on.
        folder: Data set that it was found in, None where it rests on none.
        between: Shapes that it is interpolated between, "" if its own was measured.
        beyond: Its shape lies beyond those of `between`, which are scaled to it.
        spread: Median coefficient of variation over the repeats of its points, None if unknown.
        given: `fill` is what the config gives, and stands for no missing table.
        unequal: Of decode attention, times of unequal contexts over those of equal ones, a grid of
            the same axes; None where only equal ones were measured.
    """

    name: str
    grid: Grid | None
    fill: Callable[..., float]
    fixed: tuple[float, ...] = ()
    source: str = ""
    between: str = ""
    beyond: bool = False
    spread: float | None = None
    given: bool = False
    unequal: Grid | None = None
    folder: Path | None = None

    @property
    def filled(self) -> bool:
        """There is no table: the analytic model fills the gap."""
        return self.grid is None and not self.given

    def at(self, *point: float) -> tuple[float, list[Outside]]:
        """Time, microseconds, and each way in which the point lies outside of the grid."""
        if self.grid is None:
            return self.fill(*point), []
        return self.grid.at(*self.fixed, *point)


@dataclass(frozen=True)
class LentOperator(Operator):
    """An operator measured on another device, each time scaled by what two data sheets say.

    Attributes:
        target: Analytic time on this device, microseconds, with the other's efficiencies.
    """

    target: Callable[..., float] = lambda *point: 1.0

    def at(self, *point: float) -> tuple[float, list[Outside]]:
        """See `Operator.at`."""
        us, outside = super().at(*point)
        return us * (self.target(*point) / self.fill(*point)), outside


def lent(operator: Operator, here: Operator) -> Operator:
    """A measured operator of another device, scaled to `here`, the same by data sheet."""
    return LentOperator(**vars(operator), target=here.fill)


class Finder:
    """Looks operators up in data sets, in their order.

    Args:
        sets: Data sets of one device.
        analytic: The same device by data sheet.
        clamp: Take the nearest measured time beyond the grid as it is, instead of scaling it.

    Attributes:
        missing: What was looked for and not found: name, and why.
    """

    def __init__(self, sets: Sequence[DataSet], analytic: Analytic, *, clamp: bool = False) -> None:
        self.sets = sets
        self.analytic = analytic
        self._scaled = not clamp
        self.missing: list[str] = []

    # --- operators

    def linear(self, n: float, k: float, dtype: str) -> Operator:
        """A matrix product over tokens."""
        name = f"linear {n:g} x {k:g} ({dtype})"

        def fill(tokens: float) -> float:
            return self.analytic.linear(n, k, tokens, dtype)

        for rows, data in self._rows("linear", "dtype", dtype):
            exact = rows.where(n=n, k=k)
            if len(exact):
                return self._found(name, exact, data, ("tokens",), fill)
        for rows, data in self._rows("linear", "dtype", dtype):
            near = _shapes_around(rows, n, k)
            if near is not None:
                scale = lambda n_, k_, t: self.analytic.linear(n_, k_, t, dtype)  # noqa: E731
                between = f"{name} from the measured {_said(near, 'n', 'k')}"
                axes = ("n", "k", "tokens")
                return self._found(name, near, data, axes, fill, scale, (n, k), between)
        return self._missing(name, "linear", fill)

    def elementwise(self, op: str, width: float) -> Operator:
        """A norm, rotary embedding, activation, ... over tokens."""
        name = f"elementwise {op} of width {width:g}"

        def fill(tokens: float) -> float:
            return self.analytic.elementwise(op, width, tokens)

        found = list(self._rows("elementwise", "op", op))
        for rows, data in found:
            exact = rows.where(width=width)
            if len(exact):
                return self._found(name, exact, data, ("tokens",), fill)
        for rows, data in found:
            near = _neighbours(rows, "width", width)
            between = f"{name} from the measured {_said(near, 'width')}"
            scale = lambda w, t: self.analytic.elementwise(op, w, t)  # noqa: E731
            axes = ("width", "tokens")
            return self._found(name, near, data, axes, fill, scale, (width,), between)
        return self._missing(name, "elementwise", fill)

    def lm_head(self, vocab: float, hidden: float) -> tuple[Operator, bool]:
        """LM head over sequences, and whether greedy sampling is part of it."""
        for op, greedy in (("lm_head", False), ("lm_head_greedy", True)):
            for rows, data in self._rows("per_sequence", "op", op):
                exact = rows.where(vocab=vocab, hidden=hidden)
                for dtype in EQUAL_DTYPES["bf16"]:
                    chosen = exact.where(dtype=dtype)
                    if len(chosen):
                        fill = lambda s: self.analytic.linear(vocab, hidden, s, "bf16")  # noqa: E731
                        name = f"per_sequence {op} {vocab:g} x {hidden:g}"
                        found = self._found(name, chosen, data, ("sequences",), fill)
                        return found, greedy
        return self.linear(vocab, hidden, "bf16"), False

    def sampler(self, vocab: float, full_vocab: float) -> Operator:
        """From logits to tokens, over sequences; of this GPU's part of the logits or of all."""
        for rows, data in self._rows("per_sequence", "op", "sampler"):
            for size in (vocab, full_vocab):
                exact = rows.where(vocab=size)
                if len(exact):
                    hidden = exact["hidden"][0]  # which does not matter to a sampler
                    one = exact.where(hidden=hidden, dtype=exact["dtype"][0])
                    name = f"per_sequence sampler of {size:g}"
                    return self._found(name, one, data, ("sequences",), self.analytic.sampler)
        return self._missing(f"per_sequence sampler of {vocab:g}", "", self.analytic.sampler)

    def collective(self, op: str, gpus: int, backend: str | None = None) -> Operator:
        """A collective over bytes.

        Args:
            op: As in a table.
            gpus: That take part.
            backend: Whose; None for the first of `BACKENDS` that was measured.
        """
        name = f"collective {op} of {gpus} GPUs"

        def fill(message_bytes: float) -> float:
            return self.analytic.collective(op, gpus, message_bytes)

        known: dict[str, None] = {}
        for rows, data in self._rows("collective", "op", op):
            there = rows.where(gpus=gpus)
            measured = [str(word) for (word,) in there.distinct("backend")] if len(there) else []
            known |= dict.fromkeys(measured)
            wanted = [backend] if backend else [*BACKENDS, *measured]
            for choice in wanted:
                if choice in measured:
                    chosen = there.where(backend=choice)
                    return self._found(f"{name} ({choice})", chosen, data, ("bytes",), fill)
        others = f", but {', '.join(known)}" if known else ""
        return self._missing(f"{name} ({backend}{others})" if backend else name, "", fill)

    def attention(
        self,
        operator: str,
        kv_dtype: str,
        heads: float,
        kv_heads: float,
        head_dim: float,
        axes: tuple[str, ...],
        analytic: Callable[..., float],
        *,
        optional: bool = False,
    ) -> Operator | None:
        """Attention over what varies, or None where an optional table is absent.

        Args:
            operator: ``attention_prefill``, ``attention_decode`` or ``attention_mixed``.
            kv_dtype: Of the KV cache.
            heads: Query heads of one GPU.
            kv_heads: Its KV heads.
            head_dim: Width of a head.
            axes: What varies, outermost first.
            analytic: Time of (heads, *axes).
            optional: Do without it rather than fill it.
        """
        name = f"{operator} {heads:g} heads, {kv_heads:g} KV heads of {head_dim:g} ({kv_dtype})"
        same = {"kv_heads": kv_heads, "head_dim": head_dim}
        found = self._over_heads(operator, name, kv_dtype, heads, same, axes, analytic)
        if found is not None or optional:
            return found

        def fill(*point: float) -> float:
            return analytic(heads, *point)

        shape = (heads, kv_heads, head_dim)
        fewer = self._of_fewer_heads(operator, name, kv_dtype, shape, axes, fill)
        return fewer or self._missing(name, operator, fill)

    def _of_fewer_heads(
        self,
        operator: str,
        name: str,
        kv_dtype: str,
        shape: tuple[float, float, float],
        axes: tuple[str, ...],
        fill: Callable[..., float],
    ) -> Operator | None:
        """The table of 1/f of the heads, with f times the sequences: each KV head is on its own.

        Where both are in aiconfigurator's tables of A100, H100 and H200, the two differ by 2 to 5 %
        (medians, f of 2 and 4).
        """
        heads, kv_heads, head_dim = shape
        for rows, data in self._rows(operator, "kv_dtype", kv_dtype):
            same = rows.where(head_dim=head_dim)
            measured = sorted((kv for (kv,) in same.distinct("kv_heads")), reverse=True)
            for factor in (kv_heads / kv for kv in measured if kv < kv_heads):
                part = same.where(kv_heads=kv_heads / factor, heads=heads / factor)
                if len(part) and factor.is_integer():
                    columns = {**part.columns, "batch": part["batch"] / factor}
                    between = f"{name} from 1/{factor:g} of the heads, {factor:g} x the sequences"
                    scaled = Table(operator, part.path, columns)
                    return self._found(name, scaled, data, axes, fill, None, (), between)
        return None

    def latent(
        self,
        operator: str,
        model: ModelSpec,
        kv_dtype: str,
        heads: float,
        axes: tuple[str, ...],
        analytic: Callable[..., float],
    ) -> Operator:
        """Latent attention over what varies.

        Args:
            operator: ``mla_prefill`` or ``mla_decode``.
            model: Whose latents.
            kv_dtype: Of the latents in the cache.
            heads: Query heads of one GPU.
            axes: What varies, outermost first.
            analytic: Time of (heads, *axes).
        """
        rank, rope = model.kv_lora_rank, model.qk_rope_head_dim
        name = f"{operator} {heads:g} heads, latents of {rank} + {rope} ({kv_dtype})"
        same: dict[str, float] = {"kv_lora_rank": rank, "rope_dim": rope}
        if operator == "mla_prefill":
            same |= {"nope_dim": model.qk_nope_head_dim, "v_dim": model.v_head_dim}
        found = self._over_heads(operator, name, kv_dtype, heads, same, axes, analytic)
        return found or self._missing(name, operator, lambda *point: analytic(heads, *point))

    def _over_heads(
        self,
        operator: str,
        name: str,
        kv_dtype: str,
        heads: float,
        same: Mapping[str, float],
        axes: tuple[str, ...],
        analytic: Callable[..., float],
    ) -> Operator | None:
        """Attention of the shape `same`: so many heads, or between the measured ones."""

        def fill(*point: float) -> float:
            return analytic(heads, *point)

        found = [
            (rows.where(**same), data) for rows, data in self._rows(operator, "kv_dtype", kv_dtype)
        ]
        for rows, data in found:
            exact = rows.where(heads=heads)
            if len(exact):
                return self._found(name, exact, data, axes, fill)
        for rows, data in found:
            if len(rows) and rows["heads"].min() < heads < rows["heads"].max():
                near = _neighbours(rows, "heads", heads)
                between = f"{name} between the measured {_said(near, 'heads')} heads"
                every = ("heads", *axes)
                return self._found(name, near, data, every, fill, analytic, (heads,), between)
        return None

    def experts(
        self, held: int, experts: int, top_k: float, hidden: float, intermediate: float, dtype: str,
        fill: Callable[..., float],
    ) -> tuple[Operator, int]:  # fmt: skip
        """An expert block over tokens and the share of reachable experts that they touch.

        A GPU that holds `held` of `experts` takes the table of a block with all of them if its own
        was not measured: experts that no token is sent to take no time in either.

        Returns:
            The operator, and the experts of the block that was measured.
        """
        name = f"moe {held} experts, {top_k:g} a token, {hidden:g} x {intermediate:g} ({dtype})"
        shape = {"top_k": top_k, "hidden": hidden, "intermediate": intermediate}
        for block in dict.fromkeys((held, experts)):
            for rows, data in self._rows("moe", "dtype", dtype):
                exact = rows.where(experts=block, **shape)
                if len(exact):
                    reachable = np.minimum(block, exact["tokens"] * top_k)
                    columns = {**exact.columns, "share": exact["touched"] / reachable}
                    shared = Table("moe", exact.path, columns)
                    found = self._found(name, shared, data, ("tokens", "share"), fill)
                    return found, block
        return self._missing(name, "moe", fill), experts

    # --- how they are found

    def _rows(self, operator: str, column: str, word: str) -> Iterator[tuple[Table, DataSet]]:
        for data in self.sets:
            for equal in EQUAL_DTYPES.get(word, (word,)):
                rows = data.rows(operator, column, equal)
                if rows is not None:
                    yield rows, data

    def _found(
        self,
        name: str,
        rows: Table,
        data: DataSet,
        axes: tuple[str, ...],
        fill: Callable[..., float],
        scale: Callable[..., float] | None = None,
        fixed: tuple[float, ...] = (),
        between: str = "",
    ) -> Operator:
        points = np.stack([rows[axis].astype(float) for axis in axes], axis=1)
        analytic = (scale or fill) if self._scaled else None
        grid, unequal = _apart(axes, points, rows.time_us, analytic)
        source, spread = data.meta.source, _spread(rows)
        inside = points[0, len(fixed) :].tolist()
        beyond = any(out.axis in axes[: len(fixed)] for out in grid.at(*fixed, *inside)[1])
        return Operator(
            name, grid, fill, fixed, source, between, beyond, spread, unequal=unequal,
            folder=data.folder,
        )  # fmt: skip

    def _missing(self, name: str, operator: str, fill: Callable[..., float]) -> Operator:
        self.missing.append(name)
        return Operator(name, None, fill)


def _apart(
    axes: tuple[str, ...], points: Floats, us: Floats, analytic: Callable[..., float] | None
) -> tuple[Grid, Grid | None]:
    """The grid of equal contexts, and the ratios of unequal ones to it where both were measured.

    Unequal contexts are measured for fewer batches and contexts than equal ones. In one grid, a
    batch that was measured with equal contexts only would make its neighbours look equal too.
    """
    if "skew" not in axes:
        return Grid(axes, points, us, analytic), None
    skew = points[:, axes.index("skew")]
    if not (skew == 0).any() or not skew.any():
        return Grid(axes, points, us, analytic), None
    equal = Grid(axes, points[skew == 0], us[skew == 0], analytic)
    unequal = points[skew > 0]
    same = unequal.copy()
    same[:, axes.index("skew")] = 0
    base = np.array([equal.at(*point)[0] for point in same.tolist()])
    ones = np.unique(same, axis=0)
    ratios = np.concatenate([us[skew > 0] / base, np.ones(len(ones))])
    return equal, Grid(axes, np.concatenate([unequal, ones]), ratios)


def _spread(rows: Table) -> float | None:
    if "cv" not in rows.columns:
        return None
    known = rows["cv"][~np.isnan(rows["cv"].astype(float))]
    return float(np.median(known)) if len(known) else None


def _neighbours(rows: Table, column: str, value: float) -> Table:
    """The points at the nearest measured values below and above, or at the nearest one."""
    values = np.unique(rows[column].astype(float))
    i = int(np.searchsorted(values, value))
    kept = values[max(0, i - 1) : i + 1]
    return _kept(rows, np.isin(rows[column], kept))


def _kept(rows: Table, keep: Any) -> Table:
    columns = {name: values[keep] for name, values in rows.columns.items()}
    return Table(rows.operator, rows.path, columns)


def _shapes_around(rows: Table, n: float, k: float) -> Table | None:
    """The points of the shapes around (n, k); None if they do not surround it.

    In a table over a grid of shapes (see `FULL_GRID`), the nearest ones do for a shape beyond it.
    """
    ns, ks = (np.unique(rows[name].astype(float)) for name in ("n", "k"))
    shapes = set(rows.distinct("n", "k"))
    full = min(len(ns), len(ks)) >= 3 and len(shapes) >= FULL_GRID * len(ns) * len(ks)
    near: set[tuple[float, float]] = set()
    for beside in _beside(ns, n):
        measured = np.array(sorted(k_ for n_, k_ in shapes if n_ == beside))
        near |= {(beside, k_) for k_ in _beside(measured, k)}
    surrounded = ns[0] <= n <= ns[-1] and all(
        min(k_ for n_, k_ in near if n_ == beside)
        <= k
        <= max(k_ for n_, k_ in near if n_ == beside)
        for beside in {n_ for n_, _ in near}
    )
    if not (surrounded or full):
        return None
    keep = np.zeros(len(rows), bool)
    for n_, k_ in near:
        keep |= (rows["n"] == n_) & (rows["k"] == k_)
    return _kept(rows, keep)


def _beside(values: Floats, x: float) -> list[float]:
    """The value itself if it is there, else its neighbours."""
    if x in values:
        return [x]
    i = int(np.searchsorted(values, x))
    found: list[float] = values[max(0, i - 1) : i + 1].tolist()
    return found


def _said(rows: Table, *columns: str) -> str:
    shapes = [" x ".join(f"{size:g}" for size in shape) for shape in rows.distinct(*columns)]
    return ", ".join(shapes)
