"""The comparison by class or by tenant: one row for each of them and variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from experiments.report import RunHead, unique_labels
from experiments.tables import Column, Comparison, Value
from sim.errors import ConfigError
from sim.metric_definitions import METRICS

By = Literal["class", "tenant"]
_GROUP = {"class": "classes", "tenant": "tenants"}
_COLUMNS = (
    ("ttft", "p50", "P50 (s)", 1.0),
    ("ttft", "p99", "P99 (s)", 1.0),
    ("tpot", "p99", "P99 (ms)", 1e3),
    ("itl", "p99", "P99 (ms)", 1e3),
    ("e2e", "p99", "P99 (s)", 1.0),
    ("slo_attainment", "", "(%)", 100.0),
    ("prefix_hit_rate_tokens", "", "(%)", 100.0),
)
MOST_ROWS = 24
"""Rows up to which a run prints it unasked."""


def has_groups(bundles: Sequence[RunHead], by: By) -> bool:
    """Whether any variant tells classes, or tenants, apart."""
    return any(bundle.summary.get(_GROUP[by]) for bundle in bundles)


def compare_by(bundles: Sequence[RunHead], by: By) -> Comparison:
    """Lay the classes, or tenants, of all variants side by side, those of one name together.

    Args:
        bundles: At least one.
        by: What rows are of, besides variants.

    Raises:
        ConfigError: No variant has any.
    """
    if not has_groups(bundles, by):
        raise ConfigError(f"table: no variant has more than one {by}")
    labels = unique_labels(bundles)
    blocks: dict[str, dict[str, Mapping[str, Any]]] = {}
    for label, bundle in zip(labels, bundles, strict=True):
        for name, block in bundle.summary.get(_GROUP[by], {}).items():
            blocks.setdefault(name, {})[label] = block
    rows = [
        (" ".join(name.split()), label, *_values(block))
        for name in sorted(blocks)
        for label, block in blocks[name].items()
    ]
    columns = [
        Column(by, by.capitalize(), words=True),
        Column("variant", "Variant", words=True),
        Column("arrived_requests", "Requests"),
        Column("finished_requests", "Finished"),
        *(_column(key, part, shown, scale) for key, part, shown, scale in _COLUMNS),
    ]
    kept = [at for at in range(len(columns)) if any(row[at] is not None for row in rows)]
    return Comparison(
        tuple(columns[at] for at in kept),
        tuple(tuple(row[at] for at in kept) for row in rows),
        (),
        leading=2,
    )


def _column(key: str, part: str, shown: str, scale: float) -> Column:
    metric = METRICS[key]
    name = f"{metric.name_in_files}_{part}" if part else metric.name_in_files
    title = {"slo_attainment": "SLO met", "prefix_hit_rate_tokens": "Prefix hits"}
    return Column(name, title.get(key, metric.title), shown, "neither", scale)


def _values(block: Mapping[str, Any]) -> list[Value]:
    values: list[Value] = [block["requests"]["arrived"], block["requests"]["finished"]]
    for key, part, _, _ in _COLUMNS:
        value = block.get(METRICS[key].name_in_files)
        values.append(value[part] if part and value is not None else value)
    return values
