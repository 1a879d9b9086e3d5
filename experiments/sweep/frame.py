"""The rows of a data set as figures need them: one per point and variant, over all replications."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.names import unknown
from experiments.sweep.dataset import read_about, read_table
from experiments.sweep.unit import FINISHED
from sim.errors import ConfigError

_GROWING = ("overloaded", "backlogged")
_RATES = ("rate_per_s", "speedup", "concurrency")
MEASURED_RATE = "arrival_rate_requests_per_s"


@dataclass(frozen=True)
class Place:
    """A point of a sweep in one variant.

    Attributes:
        variant: Label.
        policy: Name of the policy.
        settings: Swept keys and values; None where the point leaves one out.
        values: Columns of numbers, the mean over replications; those that a run lacks left out.
        spread: Smallest and largest value over replications, of the same columns.
        behind: More than half of its runs were overloaded or backlogged.
    """

    variant: str
    policy: str
    settings: Mapping[str, Any]
    values: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]]
    behind: bool


@dataclass(frozen=True)
class Frame:
    """All that figures are drawn from.

    Attributes:
        name: Of the sweep.
        keys: Swept keys that take several values, in order.
        places: In the order of points and variants.
        failed: Runs without numbers.
        slo_scales: Factors of the targets at which attainment is known.
    """

    name: str
    keys: tuple[str, ...]
    places: tuple[Place, ...]
    failed: int
    slo_scales: tuple[float, ...]

    @property
    def variants(self) -> list[str]:
        """Labels in order."""
        return list(dict.fromkeys(place.variant for place in self.places))

    def steps(self, key: str) -> list[Any]:
        """Values of a key in ascending order, or in that of the sweep where they are no numbers."""
        found = [place.settings.get(key) for place in self.places]
        distinct = list(dict.fromkeys(value for value in found if value is not None))
        numbers = all(is_number(value) for value in distinct)
        return sorted(distinct) if numbers else distinct

    @property
    def rate_key(self) -> str | None:
        """The swept key that says how many requests come, if there is one."""
        for word in _RATES:
            for key in self.keys:
                if key.rpartition(".")[2] == word:
                    return key
        return None

    def at(self, fixed: Mapping[str, Any]) -> Frame:
        """The places at which keys have these values."""
        places = tuple(
            place
            for place in self.places
            if all(place.settings.get(key) == value for key, value in fixed.items())
        )
        keys = tuple(key for key in self.keys if key not in fixed)
        return Frame(self.name, keys, places, self.failed, self.slo_scales)

    def has(self, column: str) -> bool:
        """Whether any place has a number in a column."""
        return any(column in place.values for place in self.places)


def is_number(value: Any) -> bool:
    """Whether a value has a place on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_frame(folder: Path, at: Sequence[str] = ()) -> Frame:
    """Read a sweep, from its data set alone.

    Args:
        folder: Of the sweep; it may still be running.
        at: ``key=value`` texts: only the points with these values.

    Raises:
        SweepError: There is none.
        ConfigError: A key or value is none of the sweep's, or no run is left; one line.
    """
    about = read_about(folder)
    rows = read_table(folder).to_pylist()
    done = [row for row in rows if row["status"] == FINISHED]
    if not done:
        raise ConfigError(f"{folder}: no run of this sweep has finished; there is nothing to draw")
    names = [name for name, kind in about["columns"].items() if kind in ("number", "int")]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in done:
        groups.setdefault((row["point"], row["variant"]), []).append(row)
    places = tuple(_place(group, about["keys"], names) for group in groups.values())
    frame = Frame(
        about["name"],
        tuple(about["keys"]),
        places,
        len(rows) - len(done),
        tuple(about["slo_scales"]),
    )
    frame = frame.at(dict(_fixed(frame, text) for text in at))
    if not frame.places:
        raise ConfigError(f"--at {' '.join(at)}: no finished run has these values together")
    several = tuple(key for key in frame.keys if len(frame.steps(key)) > 1)
    return Frame(frame.name, several, frame.places, frame.failed, frame.slo_scales)


def _place(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], names: Sequence[str]) -> Place:
    first = rows[0]
    values, spread = {}, {}
    for name in names:
        found = [row[name] for row in rows if row.get(name) is not None]
        if len(found) == len(rows):
            values[name] = math.fsum(found) / len(found)
            spread[name] = (float(min(found)), float(max(found)))
    behind = sum(row["verdict"] in _GROWING for row in rows)
    return Place(
        first["variant"],
        first.get("policy") or "",
        {key: first.get(key) for key in keys},
        values,
        spread,
        2 * behind > len(rows),
    )


def _fixed(frame: Frame, text: str) -> tuple[str, Any]:
    key, equals, said = text.partition("=")
    if not equals:
        raise ConfigError(f"--at {text}: expected key=value")
    if key not in frame.keys:
        raise ConfigError(f"--at {text}: {unknown('swept key', key, frame.keys)}")
    steps = frame.steps(key)
    for value in steps:
        if said == str(value) or (is_number(value) and _as_number(said) == value):
            return key, value
    raise ConfigError(f"--at {text}: {unknown('value', said, map(str, steps))}")


def _as_number(text: str) -> float | None:
    try:
        return float(json.loads(text))
    except (ValueError, TypeError):
        return None
