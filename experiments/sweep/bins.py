"""Ranges of a key whose values are drawn: by them the points of a figure are told apart.

Points of which no two share a value cannot be a curve each. They are put into a few ranges of one
more key, with about as many points in each, and a range has a look of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from experiments.sweep.frame import Frame, Place, is_number

MOST_RANGES = 4
"""Ranges of a key in one figure."""


@dataclass(frozen=True)
class Ranges:
    """What tells the points of one variant apart.

    Attributes:
        key: The key.
        names: Of each range, or of each value where there are few.
        firsts: The smallest number of each range, ascending; none where each value is by itself.
        values: The values, where each is by itself.
    """

    key: str
    names: tuple[str, ...]
    firsts: tuple[float, ...] = ()
    values: tuple[Any, ...] = ()

    def of(self, place: Place) -> int | None:
        """Position of a place's range; None where the point leaves the key out."""
        value = place.settings.get(self.key)
        if value is None:
            return None
        if self.values:
            return self.values.index(value)
        return sum(first <= value for first in self.firsts) - 1


def ranges_of(frame: Frame, keys: Sequence[str], most: int = MOST_RANGES) -> Ranges | None:
    """The ranges of the first of some keys that has any.

    Args:
        frame: Of the sweep.
        keys: In which points differ, beside what is on the axes.
        most: Ranges, or values, at most.

    Returns:
        None where no key can be told apart: too many values that are no numbers, or `most` below 2.
    """
    if most < 2:
        return None
    for key in keys:
        steps = frame.steps(key)
        word = key.rpartition(".")[2]
        if 2 <= len(steps) <= most:
            return Ranges(key, tuple(f"{word} {_said(v)}" for v in steps), values=tuple(steps))
        if len(steps) > most and all(map(is_number, steps)):
            return _cut(key, word, steps, most)
    return None


def _cut(key: str, word: str, steps: Sequence[float], most: int) -> Ranges:
    """As many values in each range, but for one."""
    begin = [round(at * len(steps) / most) for at in range(most + 1)]
    parts = [steps[a:b] for a, b in pairwise(begin)]
    names = tuple(
        f"{word} {_said(part[0])}" + (f" to {_said(part[-1])}" if len(part) > 1 else "")
        for part in parts
    )
    return Ranges(key, names, firsts=tuple(float(part[0]) for part in parts))


def _said(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
