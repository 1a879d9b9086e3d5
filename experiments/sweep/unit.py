"""One run of a sweep, and the row that it becomes. Nothing of this module needs the other ones.

A row is a mapping of columns to plain values, the same wherever it was made, except in the columns
of `WALL_FIELDS`.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.bundle import Bundle
from experiments.quantity import Quantity
from experiments.replications import replicate
from experiments.report import measured
from experiments.run import one_line
from experiments.schema import Experiment
from experiments.variant import Fingerprint, run_variant, slo_of
from sim.metrics import Floats, Requests, e2e_s, finished, largest_itl_s, tpot_s, ttft_s
from sim.slo import SLO, class_groups, select, slo_attainment

Row = dict[str, Any]
Identity = tuple[str, str, int]
"""Key of a point, label of a variant and number of a replication: what a row is of."""

WALL_FIELDS = ("wall_s", "worker")
"""Columns that differ from one run of the same sweep to the next."""

FINISHED, FAILED, LOST = "finished", "failed", "lost"
"""A run ended; it could not be made, and another try would end alike; its worker died."""


@dataclass(frozen=True)
class Unit:
    """One run.

    Attributes:
        number: Of the point in the sweep, from 0 up.
        point: Key of the point.
        variant: Label of the variant.
        replication: Number, which stands for a seed.
        experiment: Resolved, with the seed of the config.
        prints: Hashes of all that its results depend on.
        folder: Where relative paths of its config start.
        slo_scales: Factors of the targets at which attainment is wanted.
        quantities: More numbers that are wanted.
    """

    number: int
    point: str
    variant: str
    replication: int
    experiment: Experiment
    prints: Fingerprint
    folder: Path
    slo_scales: tuple[float, ...]
    quantities: tuple[Quantity, ...]

    @property
    def identity(self) -> Identity:
        """What its row is of."""
        return self.point, self.variant, self.replication


def run_unit(unit: Unit) -> Row:
    """Simulate, and sum up as a row; whatever fails is a row too, with its error."""
    began = time.perf_counter()
    try:
        experiment = replicate(unit.experiment, unit.replication)
        lean = experiment.record.model_copy(update={"steps": False})
        experiment = experiment.model_copy(update={"record": lean})
        made = run_variant(experiment, unit.folder, prints=unit.prints)
        row = {**_head(unit, FINISHED), "policy": made.policy, **_numbers(unit, made)}
    except Exception as error:
        row = failed_row(unit, FAILED, one_line(error))
    return row | {
        "wall_s": time.perf_counter() - began,
        "worker": f"{platform.node()}:{os.getpid()}",
    }


def failed_row(unit: Unit, status: str, error: str) -> Row:
    """The row of a run without numbers."""
    return {**_head(unit, status), "error": error}


def _head(unit: Unit, status: str) -> Row:
    return {
        "number": unit.number,
        "point": unit.point,
        "variant": unit.variant,
        "replication": unit.replication,
        "run_seed": replicate(unit.experiment, unit.replication).seed,
        "status": status,
    }


def _numbers(unit: Unit, made: Bundle) -> Row:
    summary = made.summary
    return {
        "verdict": summary["verdict"]["name"],
        "gpus": summary["gpus"],
        **{f"requests.{state}": count for state, count in summary["requests"].items()},
        **dict(_flat(summary["overall"])),
        **_against_slo(unit, made),
        **{each.text: _of(each, made) for each in unit.quantities},
    }


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            for statistic, number in value.items():
                yield f"{name}.{statistic}", number
        else:
            yield name, value


def _of(quantity: Quantity, made: Bundle) -> float | None:
    value = quantity.value([quantity.sample(made, lost_are_late=False)])
    return value if math.isfinite(value) else None


# --- targets times a factor


def _against_slo(unit: Unit, made: Bundle) -> Row:
    slo = slo_of(unit.experiment)
    if not slo.has_targets:
        return {}
    requests = measured(made)
    row: Row = {}
    for scale in unit.slo_scales:
        share = slo_attainment(requests, scaled(slo, scale))
        row[scale_column(scale)] = share if math.isfinite(share) else None
    needed = needed_scale(requests, slo)
    for p in (50, 90, 99):
        value = float(np.quantile(needed, p / 100, method="inverted_cdf")) if len(needed) else 0.0
        row[f"slo_scale.p{p}"] = value if len(needed) and math.isfinite(value) else None
    return row


def scale_column(scale: float) -> str:
    """Column of the attainment at targets times `scale`."""
    return f"slo_attainment.x{scale:g}"


def scaled(slo: SLO, scale: float) -> SLO:
    """The same targets, all of them times `scale`."""
    own = {
        name: None if target is None else scale * target
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")
        for target in [getattr(slo, name)]
    }
    return SLO(**own, classes={name: scaled(each, scale) for name, each in slo.classes.items()})


def needed_scale(requests: Requests, slo: SLO) -> Floats:
    """Smallest factor of the targets that each request meets, shape (n,).

    The largest quotient of what it took and its target. Infinite where it did not finish; 0 where
    it has none of the quantities that have a target.
    """
    needed = np.zeros(len(requests["arrival_ns"]))
    group, names = class_groups(requests, np.ones(len(needed), dtype=bool))
    for number, name in enumerate(names):
        rows = group == number
        needed[rows] = _needed(select(requests, rows), slo.for_class(name))
    return needed


def _needed(requests: Requests, slo: SLO) -> Floats:
    pairs = (
        (slo.ttft_s, ttft_s),
        (slo.tpot_s, tpot_s),
        (slo.itl_s, largest_itl_s),
        (slo.e2e_s, e2e_s),
    )
    needed = np.zeros(len(requests["arrival_ns"]))
    for target, metric in pairs:
        if target is not None:
            needed = np.fmax(needed, metric(requests) / target)
    return np.where(finished(requests), needed, np.inf)
