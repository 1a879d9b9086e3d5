"""What a sweep runs, as its config says it under ``sweep``:

    sweep:
      grid:                                   # every combination of these
        policy.budget_tokens: [128, 256, 512]
        workload.arrivals.rate_per_s: {from: 2, to: 16, steps: 8}
        variants.sarathi.policy.max_num_seqs: [64, 128]   # of one variant
      list:                                   # these, as they stand
        - {device: h100-sxm, tensor_parallel: 1}
        - {device: a100-sxm-80gb, tensor_parallel: 2}
      random: {points: 100, seed: 0, over: {max_num_seqs: {from: 8, to: 512, scale: log, whole: true}}}
      sobol: {points: 64, seed: 0, over: {...}}
      slo_scales: [0.5, 1, 2]                 # targets times these; attainment at each is kept
      quantities: [classes.chat.ttft_s.p99.9] # more numbers to keep, as after --goal

Each part is optional. A point takes one setting of each part that is there: every combination of
grid, list, random and sobol, in this order, the last changing fastest. A point that is drawn twice
is run once.
"""  # noqa: E501

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments import strict_yaml
from experiments.explain import shown
from experiments.names import suggestion
from experiments.quantity import Quantity, read_quantity
from experiments.sweep.axes import Axis, Listed, Range, read_axis
from experiments.sweep.draws import METHODS, draw, is_even
from sim.errors import ConfigError

Setting = dict[str, Any]
"""Dotted keys and their values."""

SLO_SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Factors of all targets, where a sweep does not say which."""
MOST_POINTS = 1_000_000
_PARTS = ("grid", "list", *METHODS, "slo_scales", "quantities")
_OF_THE_FILE = (
    "about", "answer", "compare", "grid", "label", "name", "replications", "schema_version", "sweep"
)  # fmt: skip
_KEY = re.compile(r"[\w:-]+(\.[\w:-]+)*|variants\..+")


@dataclass(frozen=True)
class Part:
    """One part of a sweep.

    Attributes:
        name: ``grid``, ``list``, ``random`` or ``sobol``.
        settings: One after the other.
    """

    name: str
    settings: tuple[Setting, ...]

    @property
    def keys(self) -> list[str]:
        """Keys in the order in which they occur."""
        return list(dict.fromkeys(key for setting in self.settings for key in setting))


@dataclass(frozen=True)
class Definition:
    """What a sweep runs.

    Attributes:
        parts: At least one.
        slo_scales: Factors of the targets at which attainment is kept, ascending.
        quantities: More numbers of each run.
        notes: What a reader should know, one sentence each.
    """

    parts: tuple[Part, ...]
    slo_scales: tuple[float, ...] = SLO_SCALES
    quantities: tuple[Quantity, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        """Every swept key."""
        return [key for part in self.parts for key in part.keys]

    def is_drawn(self, key: str) -> bool:
        """Whether its values are drawn, so that no point shares one with another."""
        return any(key in part.keys for part in self.parts if part.name in METHODS)

    def settings(self) -> list[Setting]:
        """The setting of every point."""
        every = itertools.product(*(part.settings for part in self.parts))
        return [{key: each[key] for each in chosen for key in each} for chosen in every]


def read_definition(given: object, axes: Sequence[tuple[str, Axis]], source: str) -> Definition:
    """Read what stands under ``sweep``, with axes of the command line, which replace those of it.

    Args:
        given: As written; None where the config has none.
        axes: Keys and values of ``--set``, which become axes of the grid.
        source: File, for messages.

    Raises:
        ConfigError: One line; also where there is nothing to sweep.
    """
    where = f"{source}: sweep"
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {shown(given)}: expected {_listed(_PARTS)}")
    for key in given:
        if key not in _PARTS:
            raise ConfigError(f"{where}.{key}: sweep has no such key; {suggestion(key, _PARTS)}")
    notes: list[str] = []
    grid = _grid(given.get("grid"), axes, f"{where}.grid", notes)
    parts = [grid] if grid is not None else []
    if given.get("list") is not None:
        parts.append(Part("list", _list(given["list"], f"{where}.list")))
    parts += [
        _drawn(method, given[method], f"{where}.{method}", notes)
        for method in METHODS
        if given.get(method) is not None
    ]
    if not parts:
        raise ConfigError(
            f"{where}: nothing to sweep; give the config a key sweep with a grid, list, random or "
            "sobol, or --set key=value,value"
        )
    _check_parts(parts, where)
    return Definition(
        tuple(parts),
        _scales(given.get("slo_scales"), f"{where}.slo_scales"),
        _quantities(given.get("quantities"), f"{where}.quantities"),
        tuple(notes),
    )


def split_settings(settings: Sequence[str]) -> tuple[list[str], list[tuple[str, Axis]]]:
    """``--set`` texts that set one value, and those that sweep several: ``key=128,256,512``.

    The right side is read as the inside of a YAML list: values separated by commas, or one range
    such as ``{from: 1, to: 8, steps: 4}``.

    Raises:
        ConfigError: It cannot be read.
    """
    fixed, axes = [], []
    for setting in settings:
        key, equals, text = setting.partition("=")
        where = f"--set {setting}"
        values = strict_yaml.parse(f"[{text}]", where) if equals else []
        ranged = len(values) == 1 and isinstance(values[0], dict) and "from" in values[0]
        if ranged:
            axes.append((key.strip(), read_axis(values[0], where, drawn=False)))
        elif len(values) > 1:
            axes.append((key.strip(), read_axis(values, where, drawn=False)))
        elif key.startswith("variants.") and values:
            axes.append((key.strip(), Listed(tuple(values))))
        else:
            fixed.append(setting)
    return fixed, axes


def split_over(texts: Sequence[str]) -> dict[str, Axis]:
    """``--over`` texts: a key and its values with commas, or a range to choose from.

    Raises:
        ConfigError: One cannot be read, or has one value only.
    """
    axes: dict[str, Axis] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        where = f"--over {text}"
        if not equals:
            raise ConfigError(f"{where}: expected KEY=VALUES, such as replicas=1,2,4")
        read = strict_yaml.parse(f"[{values}]", where)
        ranged = len(read) == 1 and isinstance(read[0], dict)
        axis = read_axis(read[0] if ranged else read, where, drawn=True)
        if isinstance(axis, Listed) and len(axis.values) < 2:
            raise ConfigError(f"{where}: one value does not vary; give it with --set")
        if key.strip() in axes:
            raise ConfigError(f"{where}: {key.strip()} is given twice")
        axes[key.strip()] = axis
    return axes


def _grid(
    given: object, more: Sequence[tuple[str, Axis]], where: str, notes: list[str]
) -> Part | None:
    axes: dict[str, Axis] = {}
    if given is not None:
        if not isinstance(given, Mapping):
            raise ConfigError(f"{where}: {shown(given)}: expected keys with lists or ranges")
        for key, values in given.items():
            axes[key] = read_axis(values, f"{where}.{key}", drawn=False)
    axes |= dict(more)
    for key in axes:
        check_key(key, where)
    if not axes:
        return None
    count = math.prod(len(axis.steps()) for axis in axes.values())
    _check_count(count, where)
    notes += [
        f"{where}.{key}: {axis.count} steps from {axis.low:g} to {axis.high:g} are "
        f"{len(axis.steps())} different {'whole numbers' if axis.whole else 'numbers'}."
        for key, axis in axes.items()
        if isinstance(axis, Range) and len(axis.steps()) != axis.count
    ]
    every = itertools.product(*(axis.steps() for axis in axes.values()))
    return Part("grid", tuple(dict(zip(axes, values, strict=True)) for values in every))


def _list(given: object, where: str) -> tuple[Setting, ...]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where}: {shown(given)}: expected a list of keys with values")
    for position, entry in enumerate(given):
        if not isinstance(entry, Mapping) or not entry:
            raise ConfigError(f"{where}[{position}]: {shown(entry)}: expected keys with values")
        for key in entry:
            check_key(key, f"{where}[{position}]")
    return tuple(dict(entry) for entry in given)


def _drawn(method: str, given: object, where: str, notes: list[str]) -> Part:
    known = ("points", "seed", "over")
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {shown(given)}: expected {_listed(known)}")
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}.{key}: no such key; {suggestion(key, known)}")
    points = _count(given.get("points"), f"{where}.points", least=1)
    seed = _count(given.get("seed", 0), f"{where}.seed", least=0)
    over = given.get("over")
    if not isinstance(over, Mapping) or not over:
        raise ConfigError(f"{where}.over: {shown(over)}: expected keys with lists or ranges")
    axes = {key: read_axis(each, f"{where}.over.{key}", drawn=True) for key, each in over.items()}
    for key in axes:
        check_key(key, f"{where}.over")
    if method == "sobol" and not is_even(points):
        notes.append(
            f"{where}.points: {points} is no power of 2, with which the points are spread best."
        )
    cube = draw(method, points, len(axes), seed)
    drawn = [
        {key: axis.at(float(share)) for (key, axis), share in zip(axes.items(), row, strict=True)}
        for row in cube
    ]
    return Part(method, tuple(drawn))


def _check_parts(parts: Sequence[Part], where: str) -> None:
    _check_count(math.prod(len(part.settings) for part in parts), where)
    owner: dict[str, str] = {}
    for part in parts:
        for key in part.keys:
            if owner.setdefault(key, part.name) != part.name:
                raise ConfigError(f"{where}.{part.name}.{key}: is in {owner[key]} too; give one")


def _check_count(count: int, where: str) -> None:
    if count > MOST_POINTS:
        raise ConfigError(f"{where}: {count:,} points; expected at most {MOST_POINTS:,}")


def check_key(key: str, where: str) -> None:
    """Refuse what is no dotted key, or a key of the whole file.

    Raises:
        ConfigError: One line.
    """
    if key.partition(".")[0] in _OF_THE_FILE:
        raise ConfigError(f"{where}.{key}: belongs to the whole file; it cannot be swept")
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{where}.{key}: expected a dotted key, such as policy.budget_tokens")


def _scales(given: object, where: str) -> tuple[float, ...]:
    if given is None:
        return SLO_SCALES
    if not isinstance(given, list):
        raise ConfigError(f"{where}: {shown(given)}: expected a list of factors")
    for position, value in enumerate(given):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 1e-6 <= value <= 1e6:
            raise ConfigError(f"{where}[{position}]: {shown(value)}: expected 1e-6 to 1e6")
    return tuple(sorted({float(f"{value:.6g}") for value in given}))


def _quantities(given: object, where: str) -> tuple[Quantity, ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ConfigError(f"{where}: {shown(given)}: expected a list such as [ttft_s.p99.9]")
    return tuple(read_quantity(text, where) for text in dict.fromkeys(given))


def _count(value: object, where: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_POINTS:
        raise ConfigError(
            f"{where}: {shown(value)}: expected a whole number from {least} to {MOST_POINTS:,}"
        )
    return value


def _listed(words: Sequence[str]) -> str:
    return f"keys of {', '.join(words)}"
