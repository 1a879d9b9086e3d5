"""What data sets hold, and which models can be simulated with them: for people who look at one."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kernels_profile.analytic import Analytic
from kernels_profile.composition import Composition
from kernels_profile.grid import Grid
from kernels_profile.links import FROM_TABLES
from kernels_profile.lookup import Finder, Operator
from kernels_profile.parallel import ParallelLayout
from kernels_profile.table import OPERATORS, DataSet, Table
from sim.errors import ConfigError, ProfileError
from sim.model_part import whole
from sim.specs import DeviceSpec, ModelSpec

AXES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "linear": ("tokens",),
        "attention_prefill": ("batch", "history", "tokens"),
        "attention_decode": ("batch", "skew", "context"),
        "attention_mixed": ("decodes", "context", "history", "tokens"),
        "mla_prefill": ("batch", "history", "tokens"),
        "mla_decode": ("batch", "skew", "context"),
        "elementwise": ("tokens",),
        "per_sequence": ("sequences",),
        "collective": ("bytes",),
        "moe": ("tokens", "touched"),
    }
)
"""What is interpolated over; the other keys of a table are its shapes."""

GPUS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Contents:
    """One table of a data set.

    Attributes:
        operator: Its name.
        points: Rows.
        shapes: Lists of times over the axes.
        words: Words that occur in each text column.
        ranges: Smallest and largest value, and number of values, of each axis.
        error: Median relative error of points taken from their neighbours along the last axis;
            None where no list is long enough.
        repeats: Whether the variation over repeats is known.
    """

    operator: str
    points: int
    shapes: int
    words: Mapping[str, tuple[str, ...]]
    ranges: Mapping[str, tuple[float, float, int]]
    error: float | None
    repeats: bool


def contents(data: DataSet) -> list[Contents]:
    """The tables of a data set.

    Raises:
        ProfileError: a table is wrong; see `table.read_table`.
    """
    tables = (data.table(name) for name in OPERATORS)
    return [_contents(table) for table in tables if table is not None]


def findings(data: DataSet) -> list[str]:
    """What a data set says of the card itself and of whole steps, a sentence each."""
    said = []
    for operator, column in (("ceilings", "value"), ("overhead", "time_us")):
        table = data.table(operator)
        if table is not None:
            each = zip(table["what"], table[column], _units(table), strict=True)
            said.append(f"{operator}: {', '.join(f'{what} {x:.4g} {u}' for what, x, u in each)}")
    steps = data.table("step")
    if steps is not None:
        for model, gpus in steps.distinct("model", "tp"):
            rows = steps.where(model=model, tp=gpus)
            ratio = float(np.median(rows["operators_us"] / rows.time_us))
            said.append(
                f"{model}, tp {gpus:g}: operators add up to {ratio:.3f} of {len(rows)} whole "
                f"step{'s' * (len(rows) > 1)} (median)"
            )
    return said


def _units(table: Table) -> list[str]:
    if table.operator == "overhead":
        return [f"us ({size:g})" for size in table["size"]]
    units: list[str] = table["unit"].tolist() if "unit" in table.columns else [""] * len(table)
    return units


def _contents(table: Table) -> Contents:
    columns = OPERATORS[table.operator]
    axes = AXES.get(table.operator, ())
    keys = tuple(name for name in columns.keys if name not in axes)
    ranges = {
        axis: (float(table[axis].min()), float(table[axis].max()), len(np.unique(table[axis])))
        for axis in axes
    }
    errors = [error for grid in _grids(table, keys, axes) for error in grid.left_out_errors()]
    return Contents(
        table.operator,
        len(table),
        len(table.distinct(*keys)),
        {name: tuple(sorted(set(table[name].tolist()))) for name in columns.texts},
        ranges,
        statistics.median(errors) if errors else None,
        "cv" in table.columns and not bool(np.isnan(table["cv"]).all()),
    )


def _grids(table: Table, keys: tuple[str, ...], axes: tuple[str, ...]) -> list[Grid]:
    """One grid of each shape."""
    if not axes:
        return []
    grids = []
    for shape in table.distinct(*keys):
        rows = table.where(**dict(zip(keys, shape, strict=True)))
        grids.append(Grid(axes, np.stack([rows[axis] for axis in axes], axis=1), rows.time_us))
    return grids


class _Prober(Finder):
    """Finds operators without building their grids, which take longest."""

    def _found(
        self,
        name: str,
        rows: Table,
        data: DataSet,
        axes: tuple[str, ...],
        fill: Callable[..., float],
        *more: object,
    ) -> Operator:
        return Operator(name, None, fill, given=True)


def missing(
    model: ModelSpec,
    device: DeviceSpec,
    sets: Sequence[DataSet],
    precision: str = "bf16",
    kv_dtype: str = "bf16",
    tensor_parallel: int = 1,
) -> list[str] | None:
    """Operators of a model that no data set has; None where so many GPUs cannot share it.

    Args:
        model: Architecture.
        device: Data sheet of the tables.
        sets: In the order in which they are looked up.
        precision: Of the linear layers.
        kv_dtype: Of the KV cache.
        tensor_parallel: GPUs.
    """
    layout = ParallelLayout(tensor_parallel)
    try:
        layout.check(model)
    except ConfigError:
        return None
    analytic = Analytic(device, precision, kv_dtype)
    finder = _Prober(sets, analytic)
    collective = FROM_TABLES.finder(finder, tensor_parallel)
    Composition(model, whole(model), finder, analytic, precision, kv_dtype, layout, collective)
    return list(dict.fromkeys(finder.missing))


def serves(
    model: ModelSpec, device: DeviceSpec, sets: Sequence[DataSet]
) -> dict[str, dict[int, list[str]]]:
    """What each precision of a model lacks on each number of GPUs that divides it.

    Of precisions those that a table of linear layers or of experts has, with a 16-bit KV cache.
    """
    found: dict[str, dict[int, list[str]]] = {}
    for precision, gpus in itertools.product(_precisions(sets), GPUS):
        try:
            lacking = missing(model, device, sets, precision, tensor_parallel=gpus)
        except (ConfigError, ProfileError):  # the device does not compute in that precision
            continue
        if lacking is not None:
            found.setdefault(precision, {})[gpus] = lacking
    return found


def _precisions(sets: Sequence[DataSet]) -> list[str]:
    tables = [data.table(name) for data in sets for name in ("linear", "moe")]
    found = {word for table in tables if table is not None for word in table["dtype"].tolist()}
    return sorted({"bf16" if word == "fp16" else word for word in found})
