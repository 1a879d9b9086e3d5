"""A validation case: what was measured, how it is simulated, and what would be good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from experiments import strict_yaml
from experiments.names import canonical, unknown
from sim.errors import ConfigError, nearest

CASES = Path(__file__).with_name("cases")
"""Folder of the shipped cases, one file each."""

STATISTICS = ("mean_abs", "median_abs", "max_abs", "agree")
"""Of signed errors: mean, median and largest absolute one; ``agree``: all errors are 0."""


@dataclass(frozen=True)
class BarSpec:
    """A bar that errors have to stay below.

    Attributes:
        metrics: Names of metrics.
        statistic: One of `STATISTICS`.
        under: Limit of it; None for ``agree``.
        group: Only of the comparisons of this group; None for all.
    """

    metrics: tuple[str, ...]
    statistic: str
    under: float | None = None
    group: str | None = None


@dataclass(frozen=True)
class LeftOut:
    """Measured rows that are not compared.

    Attributes:
        what: Which.
        rows: How many.
        why: The reason, which was chosen before looking at errors.
    """

    what: str
    rows: int
    why: str


@dataclass(frozen=True)
class Case:
    """One case, as its file says.

    Attributes:
        name: Of the file.
        number: In reports.
        title: One line: model, hardware, engine, load.
        kind: Which module runs it, a key of `kinds.KINDS`.
        source: Project, revision and file of the measurement.
        given: Settings that the source states.
        assumed: Settings that it does not state, each with its reason.
        fitted: Constants that were fitted, each with where.
        left_out: Rows that are not compared.
        profiles: Projects whose operator tables are used, a key of `data.PROFILES` each.
        config: Of the runs, as a user would write it.
        data: What the kind of case needs: tables, columns, lengths.
        bars: What errors have to stay below; none for a case that is only shown.
        explained: What is known of errors that remain.
    """

    name: str
    number: str
    title: str
    kind: str
    source: str
    config: Mapping[str, Any]
    data: Mapping[str, Any]
    given: Mapping[str, str] = field(default_factory=dict)
    assumed: Mapping[str, str] = field(default_factory=dict)
    fitted: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[LeftOut] = ()
    profiles: Sequence[str] = ()
    bars: Sequence[BarSpec] = ()
    explained: str = ""


def names() -> list[str]:
    """Shipped cases in the order of their numbers."""
    cases = [load(path.stem) for path in CASES.glob("*.yaml")]
    return [case.name for case in sorted(cases, key=lambda case: (_order(case.number), case.name))]


def load(name: str, folder: Path = CASES) -> Case:
    """A case by the name of its file.

    Raises:
        ConfigError: No such case, or a key of its file that is absent, unknown or wrong.
    """
    wanted = canonical(name)
    known = [path.stem for path in folder.glob("*.yaml")]
    if wanted not in known:
        raise ConfigError(f"validate: {unknown('case', name, known)}")
    path = folder / f"{wanted}.yaml"
    said = strict_yaml.read(path)
    where = path.name
    known_keys = [each.name for each in fields(Case) if each.name != "name"]
    for key in said:
        if key not in known_keys:
            raise ConfigError(f"{where}: {key}: no such key{nearest(key, known_keys)}")
    for key in ("number", "title", "kind", "source", "config", "data"):
        if key not in said:
            raise ConfigError(f"{where}: {key}: is required")
    said["number"] = str(said["number"])
    said["bars"] = tuple(_bar(entry, f"{where}: bars") for entry in said.get("bars", ()))
    said["left_out"] = tuple(LeftOut(**entry) for entry in said.get("left_out", ()))
    return Case(name=wanted, **said)


def _bar(entry: Mapping[str, Any], where: str) -> BarSpec:
    statistic, under = entry.get("statistic"), entry.get("under")
    if statistic not in STATISTICS:
        raise ConfigError(f"{where}: statistic {statistic!r}{nearest(str(statistic), STATISTICS)}")
    if (under is None) != (statistic == "agree"):
        raise ConfigError(f"{where}: {statistic}: under: {under}; a limit, or none for agree")
    return BarSpec(tuple(entry["metrics"]), statistic, under, entry.get("group"))


def _order(number: str) -> tuple[int, str]:
    digits = "".join(letter for letter in number if letter.isdigit())
    return int(digits or 99), number
