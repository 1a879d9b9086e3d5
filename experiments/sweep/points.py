"""From the settings of a sweep to its runs: every point resolved in every variant.

What is wrong with a key or with a value itself is refused before anything runs: no point with it
can be resolved in some variant, and the error names the key. So is a variant of which no point can
be. Other points that cannot be resolved (their model does not fit the memory, or one option
contradicts another) are part of what a sweep finds out: their rows say why they failed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments import config, hashes, layers
from experiments.config import Chosen, Opened
from experiments.names import unknown
from experiments.schema import Experiment
from experiments.sweep.definition import Definition, Setting
from experiments.sweep.unit import FAILED, Row, Unit
from experiments.variant import Fingerprint, fingerprints
from sim.errors import ConfigError

_VARIANTS = "variants."
_KEY_DIGITS = 16


@dataclass(frozen=True)
class Planned:
    """All that a sweep runs.

    Attributes:
        units: Runs to be made, in the order of points, variants and replications.
        failed: Rows of the points that cannot be resolved.
        settings: Of each point by its key, in order.
        experiment: One of those that resolved.
        prints: Hash of everything that the results depend on, by kind: ``config``, ``trace``,
            ``code``.
        traces: Hash of the traces of each point, by its key.
        dropped: Points that occurred before.
    """

    units: tuple[Unit, ...]
    failed: tuple[Row, ...]
    settings: Mapping[str, Setting]
    experiment: Experiment
    prints: Mapping[str, str]
    traces: Mapping[str, str]
    dropped: int


def plan_points(opened: Opened, definition: Definition) -> Planned:
    """Resolve every point in every variant.

    Raises:
        ConfigError: A key or value cannot be used in any point; one line.
    """
    variants = config.variants_of(opened)
    settings = definition.settings()
    shared, own = _split(definition.keys, variants, f"{opened.source}: sweep")
    rows = [
        [
            _resolved(opened, variant, setting, shared, own[at])
            for at, variant in enumerate(variants)
        ]
        for setting in settings
    ]
    for at, variant in enumerate(variants):
        names = {**shared, **own[at]}
        column = [row[at] for row in rows]
        _refuse_unusable(definition, settings, column, names, variant, f"{opened.source}: sweep")
    return _planned(opened, definition, variants, settings, rows)


Resolved = Experiment | ConfigError


def _split(
    keys: Sequence[str], variants: Sequence[Chosen], where: str
) -> tuple[dict[str, str], list[dict[str, str]]]:
    """Swept keys of all variants, and of each alone, with what they are called within one."""
    labels = [variant.label for variant in variants if variant.label is not None]
    shared: dict[str, str] = {}
    own: list[dict[str, str]] = [{} for _ in variants]
    for key in keys:
        if not key.startswith(_VARIANTS):
            shared[key] = key
            continue
        rest = key.removeprefix(_VARIANTS)
        found = [label for label in labels if rest.startswith(f"{label}.")]
        if not labels:
            raise ConfigError(f"{where}: {key}: there is one variant only; try {_last(rest)}")
        if not found:
            raise ConfigError(f"{where}: {key}: {unknown('variant', rest.split('.')[0], labels)}")
        label = max(found, key=len)
        at = next(at for at, variant in enumerate(variants) if variant.label == label)
        own[at][key] = rest.removeprefix(f"{label}.")
    return shared, own


def _last(rest: str) -> str:
    return rest.partition(".")[2] or rest


def _resolved(
    opened: Opened,
    variant: Chosen,
    setting: Setting,
    shared: Mapping[str, str],
    own: Mapping[str, str],
) -> Resolved:
    where = f"{opened.source}: sweep"
    try:
        stack = [
            (layers.unfold(_named(setting, names), f"{where}: "), where)
            for names in (shared, own)
            if names
        ]
        return config.resolve_variant(opened, variant, stack)
    except ConfigError as error:
        return error


def _named(setting: Setting, names: Mapping[str, str]) -> Setting:
    return {names[key]: value for key, value in setting.items() if key in names}


def _refuse_unusable(
    definition: Definition,
    settings: Sequence[Setting],
    resolved: Sequence[Resolved],
    names: Mapping[str, str],
    variant: Chosen,
    where: str,
) -> None:
    """Refuse a variant without a point, and keys and values that no point of it can have."""
    said = "" if variant.label is None else f" (variant {variant.label})"
    if (error := _only_error(resolved)) is not None:
        raise ConfigError(f"{error}{said}")
    for key, name in names.items():
        groups: dict[str, list[Resolved]] = {}
        for setting, made in zip(settings, resolved, strict=True):
            if key in setting:
                value = "" if definition.is_drawn(key) else canonical(setting[key])
                groups.setdefault(value, []).append(made)
        for group in groups.values():
            error = _only_error(group)
            if error is not None and _is_at(str(error), f"{where}: {name}"):
                raise ConfigError(f"{error}{said}")


def _only_error(resolved: Sequence[Resolved]) -> ConfigError | None:
    """The first error, if there is nothing else."""
    errors = [each for each in resolved if isinstance(each, ConfigError)]
    return errors[0] if errors and len(errors) == len(resolved) else None


def _is_at(error: str, place: str) -> bool:
    """Whether a message is on a place, or on something below it."""
    return error.startswith(tuple(f"{place}{mark}" for mark in ":.["))


def _planned(
    opened: Opened,
    definition: Definition,
    variants: Sequence[Chosen],
    settings: Sequence[Setting],
    rows: Sequence[Sequence[Resolved]],
) -> Planned:
    experiments = [each for row in rows for each in row if isinstance(each, Experiment)]
    prints = dict(zip(map(id, experiments), fingerprints(experiments, opened.folder), strict=True))
    units: list[Unit] = []
    failed: list[Row] = []
    known: dict[str, Setting] = {}
    traces: dict[str, str] = {}
    for setting, row in zip(settings, rows, strict=True):
        key = _key(setting, [prints[id(e)].config if id(e) in prints else str(e) for e in row])
        if key in known:
            continue
        number = len(known)
        known[key] = setting
        read = [prints[id(each)].trace for each in row if id(each) in prints]
        traces[key] = hashes.of_values({"traces": read})
        for variant, made in zip(variants, row, strict=True):
            if isinstance(made, ConfigError):
                failed.append(failed_point(number, key, variant.label or "", str(made)))
            else:
                its = prints[id(made)]
                units += _units(number, key, variant, made, its, opened, definition)
    kinds = {
        kind: hashes.of_values({"all": sorted({getattr(each, kind) for each in prints.values()})})
        for kind in ("trace", "code")
    }
    kinds["config"] = hashes.of_values(
        {
            "points": list(known),
            "variants": [variant.label for variant in variants],
            "runs": len(units) + len(failed),
            "slo_scales": definition.slo_scales,
            "quantities": [each.text for each in definition.quantities],
        }
    )
    dropped = len(settings) - len(known)
    return Planned(tuple(units), tuple(failed), known, experiments[0], kinds, traces, dropped)


def _units(
    number: int,
    key: str,
    variant: Chosen,
    experiment: Experiment,
    prints: Fingerprint,
    opened: Opened,
    definition: Definition,
) -> list[Unit]:
    label = variant.label or experiment.label
    return [
        Unit(
            number,
            key,
            label,
            replication,
            experiment,
            prints,
            opened.folder,
            definition.slo_scales,
            definition.quantities,
        )
        for replication in range(experiment.replications)
    ]


def failed_point(number: int, key: str, label: str, error: str) -> Row:
    """The row of a point that cannot be resolved in the variant of this label."""
    return {
        "number": number,
        "point": key,
        "variant": label,
        "replication": 0,
        "status": FAILED,
        "error": error,
    }


def _key(setting: Setting, resolved: Sequence[str]) -> str:
    """Of a point: a hash of what was set and of what came of it in each variant."""
    text = {"setting": canonical(setting), "resolved": list(resolved)}
    return hashes.of_values(text)[:_KEY_DIGITS]


def canonical(value: Any) -> str:
    """One text for one value: 1 and 1.0 are the same."""
    return json.dumps(_plain(value), sort_keys=True, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
