"""Where to look next for the edge at which a goal stops to hold. Nothing here simulates.

The rule, with values put in order from *easy* (few requests a second, many replicas) to *hard*:

1. A value *meets* the goal if the judgement of all its runs so far says so (`judge.py`).
2. The bracket is the easiest value that misses, and the hardest value easier than it that meets.
3. While one end is lacking: a value twice as hard than the hardest that meets, or twice as easy as
   the easiest that misses. From 1 run each.
4. While the bracket is wider than asked for: the value between its ends (geometric mean; of whole
   numbers the middle, rounded down). From 1 run.
5. Then each end gets `_LEAST_RUNS` runs with other seeds, and, while its judgement is not clear,
   `repeats` runs. If that turns an end over, the bracket has changed, and 3 or 4 goes on; one run
   of a value has proved no guide by then, so that from now on each new value gets all the runs of
   this rule before the next one is looked at. (Else the bracket would creep along by its own width,
   one end after the other being turned over.)
6. A value that the config refuses (`allowed`) is no value: a step to one goes to the last allowed
   before it instead, found by halving, and a middle that is one gives way to the nearest allowed.
7. It ends when both ends are settled, or `most_runs` are used up; or when nothing meets the goal,
   and in `_FLAT` steps to the easy side no number of it has changed: easier values are then no
   better.

So a value far from the edge costs one run, noise far from it cannot decide, and both ends of the
answer rest on several. A run (value, replication) is asked for once only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

_LEAST_RUNS = 3
"""Runs of an end, with which intervals begin."""

_FLAT = 3
"""Steps to the easy side without any change after which no step changes anything."""

_DOUBLINGS = 20
"""Most steps from the first value to either side, a factor of a million."""

Run = tuple[float, int]
"""A value and the number of a replication, which stands for its seed."""


@dataclass(frozen=True)
class Judged:
    """What the runs of one value say.

    Attributes:
        meets: Whether the goal holds.
        clear: Whether noise is excluded: more runs would not change it.
        numbers: What they measured, one number a term of the goal.
    """

    meets: bool
    clear: bool
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True)
class Scale:
    """Values in order, and the steps between them.

    Attributes:
        precision: Bracket ends may differ by this share; 0 for whole numbers, which end 1 apart.
        low: Smallest value.
        high: Largest value.
        hard_is_high: Larger values are harder (a rate), or easier (replicas).
    """

    precision: float
    low: float
    high: float
    hard_is_high: bool = True

    @property
    def whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.precision == 0

    def harder(self, value: float) -> float | None:
        """Twice as hard; None at the end of the scale."""
        return self._step(value, up=self.hard_is_high)

    def easier(self, value: float) -> float | None:
        """Twice as easy; None at the end of the scale."""
        return self._step(value, up=not self.hard_is_high)

    def between(self, easy: float, hard: float) -> float | None:
        """A value between them; None if they are as close as asked for."""
        low, high = min(easy, hard), max(easy, hard)
        if self.whole:
            middle = (low + high) // 2
            return middle if low < middle < high else None
        return None if high <= low * (1 + self.precision) else _rounded(math.sqrt(low * high))

    def is_harder(self, value: float, than: float) -> bool:
        """Whether one value is harder than another."""
        return value > than if self.hard_is_high else value < than

    def _step(self, value: float, *, up: bool) -> float | None:
        stepped = value * 2 if up else value / 2
        stepped = float(math.floor(stepped)) if self.whole else _rounded(stepped)
        bounded = min(max(stepped, self.low), self.high)
        return None if bounded == value else bounded


@dataclass
class Search:
    """A search in progress: ask `wanted`, run that, and `tell` what came out.

    Attributes:
        scale: Of the values.
        start: Where to begin.
        repeats: Runs of a bracket end whose judgement is not clear.
        most_runs: All together.
        allowed: Whether a value can be run at all.
        judged: What is known of each value.
        runs: How many runs each value has had.
    """

    scale: Scale
    start: float
    repeats: int = 5
    most_runs: int = 200
    allowed: Callable[[float], bool] = lambda value: True
    judged: dict[float, Judged] = field(default_factory=dict)
    runs: dict[float, int] = field(default_factory=dict)
    _latest: float | None = None
    _turned: bool = False

    def wanted(self) -> list[Run]:
        """The runs to make now, all new and independent of each other; empty at the end."""
        if not self.judged:
            return [(self.start, 0)]
        easy, hard = self.bracket()
        nearest = self._nearest(easy, hard)
        runs = self._more_of(self._latest) if self._turned else []
        if not runs and nearest is not None:
            runs = [(nearest, k) for k in range(self._least if self._turned else 1)]
        runs = runs or [*self._more_of(easy), *self._more_of(hard)]
        left = self.most_runs - self.used
        return runs[:left] if left > 0 else []

    def tell(self, value: float, judged: Judged, runs: int) -> None:
        """Take in the judgement of a value on all its runs.

        Args:
            value: Of the key that is searched.
            judged: What its runs say.
            runs: How many these are.
        """
        before = self.judged.get(value)
        self._turned = self._turned or (before is not None and before.meets != judged.meets)
        self._latest = value
        self.judged[value], self.runs[value] = judged, runs

    def bracket(self) -> tuple[float | None, float | None]:
        """The hardest value that meets the goal, and the easiest that misses it."""
        missing = [value for value, judged in self.judged.items() if not judged.meets]
        hard = missing[0] if missing else None
        for value in missing[1:]:
            assert hard is not None
            hard = hard if self.scale.is_harder(value, hard) else value
        easy: float | None = None
        for value, judged in self.judged.items():
            inside = hard is None or self.scale.is_harder(hard, value)
            if judged.meets and inside and (easy is None or self.scale.is_harder(value, easy)):
                easy = value
        return easy, hard

    @property
    def used(self) -> int:
        """Runs so far."""
        return sum(self.runs.values())

    @property
    def settled(self) -> bool:
        """Whether the bracket is as narrow as asked for and both ends have their runs."""
        easy, hard = self.bracket()
        ends = [value for value in (easy, hard) if value is not None]
        wide = easy is not None and hard is not None and self._between(easy, hard) is not None
        return not wide and all(self._is_settled(value) for value in ends)

    def _nearest(self, easy: float | None, hard: float | None) -> float | None:
        """The new value to look at, if any."""
        if easy is None:
            assert hard is not None
            if self.flat:
                return None
            return self._allowed_step(hard, self._unless_far(self.scale.easier(hard)))
        if hard is None:
            return self._allowed_step(easy, self._unless_far(self.scale.harder(easy)))
        return self._between(easy, hard)

    def _allowed_step(self, value: float, stepped: float | None) -> float | None:
        """The value that was stepped to, or the last allowed one before it, if there is one."""
        if stepped is None or self.allowed(stepped):
            return stepped
        last, refused = value, stepped
        while (middle := self.scale.between(last, refused)) is not None:
            if self.allowed(middle):
                last = middle
            else:
                refused = middle
        return None if last == value else last

    def _between(self, easy: float, hard: float) -> float | None:
        """A value between two, the nearest allowed one to their middle."""
        middle = self.scale.between(easy, hard)
        if middle is None or not self.scale.whole:
            return middle
        low, high = min(easy, hard), max(easy, hard)
        for off in range(int(high - low)):
            for value in (middle - off, middle + off):
                if low < value < high and self.allowed(value):
                    return value
        return None

    @property
    def flat(self) -> bool:
        """Whether the easiest values looked at all miss, by the same numbers."""
        rank = sorted(self.judged, reverse=not self.scale.hard_is_high)[: _FLAT + 1]
        numbers = {self.judged[value].numbers for value in rank}
        misses = not any(judged.meets for judged in self.judged.values())
        known = all(map(math.isfinite, next(iter(numbers), ())))
        return misses and len(rank) > _FLAT and len(numbers) == 1 and () not in numbers and known

    def _unless_far(self, value: float | None) -> float | None:
        if value is None or self.scale.whole:
            return value
        return value if abs(math.log2(value / self.start)) <= _DOUBLINGS + 0.5 else None

    def _more_of(self, value: float | None) -> list[Run]:
        """The next runs of a value that is not settled."""
        if value is None or self._is_settled(value):
            return []
        have = self.runs[value]
        until = self._least if have < self._least else self.repeats
        return [(value, replication) for replication in range(have, until)]

    @property
    def _least(self) -> int:
        return min(self.repeats, _LEAST_RUNS)

    def _is_settled(self, value: float) -> bool:
        have = self.runs[value]
        return have >= self.repeats or (have >= self._least and self.judged[value].clear)


def _rounded(value: float) -> float:
    """To six digits: the same in a config, a label and the name of a folder."""
    return float(f"{value:.6g}")
