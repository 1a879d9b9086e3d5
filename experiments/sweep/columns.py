"""The columns of a sweep's data set: who, with which settings, how it ended, and every number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from experiments.sweep.definition import Definition, Setting
from experiments.sweep.points import canonical
from experiments.sweep.unit import WALL_FIELDS, Row, scale_column
from sim.metric_definitions import METRICS, STATISTICS
from sim.records import STATES

if TYPE_CHECKING:
    import pyarrow as pa

KEY = ("point", "variant", "replication")
"""Columns that name a row."""
HEAD: Mapping[str, str] = MappingProxyType(
    {
        "number": "int",
        "point": "text",
        "variant": "text",
        "replication": "int",
        "run_seed": "int",
        "policy": "text",
    }
)
_END = {"status": "text", "error": "text", "verdict": "text", "gpus": "int"}
_WALL = dict(zip(WALL_FIELDS, ("number", "text"), strict=True))


def columns_of(definition: Definition, settings: Iterable[Setting]) -> dict[str, str]:
    """Every column a row can have, in order, and its type: ``int``, ``number``, ``bool``, ``text``.

    Args:
        definition: Of the sweep.
        settings: Of all points.
    """
    found = list(settings)
    swept = {key: _type([each[key] for each in found if key in each]) for key in definition.keys}
    counts = {f"requests.{name}": "int" for name in ("arrived", *STATES)}
    numbers = [name for metric in METRICS.values() for name in _names(metric)]
    scales = [scale_column(scale) for scale in definition.slo_scales]
    scales += [f"slo_scale.p{p}" for p in (50, 90, 99)]
    more = [quantity.text for quantity in definition.quantities]
    rest = dict.fromkeys([*numbers, *scales, *more], "number")
    return {**HEAD, **swept, **_END, **counts, **rest, **_WALL}


def _names(metric: Any) -> list[str]:
    name = metric.name_in_files
    return [f"{name}.{statistic}" for statistic in STATISTICS] if metric.spread else [name]


def _type(values: Sequence[Any]) -> str:
    if all(isinstance(value, bool) for value in values):
        return "bool"
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        return "text"
    return "int" if all(isinstance(value, int) for value in values) else "number"


def with_settings(row: Row, setting: Setting, columns: Mapping[str, str]) -> Row:
    """A row with the settings of its point; what is no single value, as JSON."""
    told = {key: value for key, value in setting.items() if columns[key] != "text"}
    texts = {
        key: value if isinstance(value, str) else canonical(value)
        for key, value in setting.items()
        if columns[key] == "text" and value is not None
    }
    return {**row, **told, **texts}


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """The columns as pyarrow has them."""
    import pyarrow as pa

    types = {"int": pa.int64(), "number": pa.float64(), "bool": pa.bool_(), "text": pa.string()}
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def table_of(rows: Sequence[Row], columns: Mapping[str, str]) -> pa.Table:
    """Rows as a table with all columns.

    Raises:
        AssertionError: A row has a column that is none of these.
    """
    import pyarrow as pa

    for row in rows:
        assert row.keys() <= columns.keys(), f"no such columns: {row.keys() - columns.keys()}"
    schema = schema_of(columns)
    arrays = [
        pa.array([_value(row.get(name), kind) for row in rows], type=field.type)
        for (name, kind), field in zip(columns.items(), schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _value(value: Any, kind: str) -> Any:
    return float(value) if kind == "number" and value is not None else value
