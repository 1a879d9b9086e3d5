"""The values of one swept key: a list, or a range with linear or logarithmic steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.explain import shown
from experiments.names import suggestion, unknown
from sim.errors import ConfigError

SCALES = ("linear", "log")
_KEYS = ("from", "to", "steps", "scale", "whole")
_DIGITS = 6
"""Of a value that is not whole: the same in a config, a table and the name of a folder."""
MOST_STEPS = 100_000


@dataclass(frozen=True)
class Listed:
    """Values one by one, of any kind.

    Attributes:
        values: At least one, all different.
    """

    values: tuple[Any, ...]

    def steps(self) -> tuple[Any, ...]:
        """The values in order."""
        return self.values

    def at(self, share: float) -> Any:
        """The value at a share of the list, from 0 up to less than 1."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]


@dataclass(frozen=True)
class Range:
    """Numbers from one to another, both included.

    Attributes:
        low: The first.
        high: The last.
        count: How many steps a grid takes; None where values are drawn.
        log: Equal ratios between steps instead of equal distances.
        whole: Whole numbers.
    """

    low: float
    high: float
    count: int | None
    log: bool
    whole: bool

    def steps(self) -> tuple[Any, ...]:
        """`count` values with both ends, rounded to six digits or to whole numbers, each once."""
        assert self.count is not None
        shares = [step / (self.count - 1) for step in range(self.count)]
        values = [self._between(self.low, self.high, share) for share in shares]
        if self.whole:
            values = [math.floor(value + 0.5) for value in values]
        else:
            values = [self.low, *map(_rounded, values[1:-1]), self.high]
        return tuple(dict.fromkeys(values))

    def at(self, share: float) -> Any:
        """The value at a share of the range, from 0 up to less than 1.

        Whole numbers are equally probable on a linear scale; on a logarithmic one a number n is as
        probable as the distance of log n and log (n + 1).
        """
        if self.whole:
            value = math.floor(self._between(self.low, self.high + 1, share))
            return min(max(value, int(self.low)), int(self.high))
        return _rounded(self._between(self.low, self.high, share))

    def rounded(self, value: float) -> float:
        """A number of the range with as many digits as its steps have, inside of its ends."""
        return min(max(_rounded(value), self.low), self.high)

    def _between(self, low: float, high: float, share: float) -> float:
        return low * (high / low) ** share if self.log else low + (high - low) * share


Axis = Listed | Range


def read_axis(given: object, where: str, *, drawn: bool) -> Axis:
    """Read a list of values, or a range such as ``{from: 1, to: 64, steps: 7, scale: log}``.

    Args:
        given: As written.
        where: File and key, for messages.
        drawn: Values are drawn from it, so that a range has no steps.

    Raises:
        ConfigError: One line.
    """
    if isinstance(given, Mapping):
        return _range(given, where, drawn=drawn)
    if not isinstance(given, list) or not given:
        raise ConfigError(
            f"{where}: {shown(given)}: expected a list of values, or {_example(drawn=drawn)}"
        )
    return Listed(tuple(_distinct(given, where)))


def _distinct(values: list[Any], where: str) -> list[Any]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise ConfigError(f"{where}[{position}]: {shown(value)}: is given twice")
    return values


def _example(*, drawn: bool) -> str:
    return "{from: 1, to: 64, scale: log}" if drawn else "{from: 1, to: 64, steps: 7, scale: log}"


def _range(given: Mapping[str, Any], where: str, *, drawn: bool) -> Range:
    known = [key for key in _KEYS if key != "steps" or not drawn]
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{where}.{key}: a range has no such key; {suggestion(key, known)}"
                + ("; values are drawn from it" if key == "steps" else "")
            )
    for key in ("from", "to") if drawn else ("from", "to", "steps"):
        if key not in given:
            raise ConfigError(f"{where}.{key}: is required: such as {_example(drawn=drawn)}")
    scale, whole = given.get("scale", "linear"), given.get("whole", False)
    if scale not in SCALES:
        raise ConfigError(f"{where}.scale: {unknown('scale', scale, SCALES)}")
    if not isinstance(whole, bool):
        raise ConfigError(f"{where}.whole: {shown(whole)}: expected true or false")
    low, high = (_number(given[key], f"{where}.{key}", whole=whole) for key in ("from", "to"))
    if not low < high:
        raise ConfigError(f"{where}: from {low:g} to {high:g}: expected a larger number in to")
    if scale == "log" and low <= 0:
        raise ConfigError(f"{where}.from: {low:g}: expected more than 0 on a logarithmic scale")
    count = None if drawn else _steps(given["steps"], f"{where}.steps")
    return Range(low, high, count, scale == "log", whole)


def _number(value: object, where: str, *, whole: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{where}: {shown(value)}: expected a number")
    if whole and value != int(value):
        raise ConfigError(f"{where}: {shown(value)}: expected a whole number where whole is true")
    return int(value) if whole else value


def _steps(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= MOST_STEPS:
        raise ConfigError(f"{where}: {shown(value)}: expected a whole number from 2 to 100,000")
    return value


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
