"""Attention of a step from tables: curves over the mean context of decodes, and prefill chunks."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from kernels_profile.grid import Grid, Outside
from kernels_profile.lookup import Operator

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
FAR_TOKENS = float(2**24)
"""A context longer than any; the last piece of a curve ends there, and goes on as it is."""


@dataclass(frozen=True)
class Mark:
    """A time beyond what was measured that a step rests on.

    Attributes:
        name: The operator.
        outside: What was beyond, and how far.
        us: Time of that operator in the step.
    """

    name: str
    outside: Outside
    us: float


@dataclass(frozen=True)
class Beyond:
    """Steps of a run whose decode attention is beyond the grid in one way.

    Attributes:
        farthest: The farthest of them.
        steps: Which they are, (n,).
        ns: Time of decode attention in them, all together.
    """

    farthest: Outside
    steps: Bools
    ns: float


class DecodeCurve:
    """Decode attention of one batch size: pieces of straight lines over the mean context.

    Unequal contexts: the curve of equal ones times measured ratios, between the skews that both
    neighbouring batches were measured at; beyond the contexts of these, the ratio at the nearest.
    For fewer or more decodes than these, and where nothing unequal was measured: the mean of the
    curve at two contexts that have the mean and the variance of the real ones (exact to second
    order, and more than the curve at the mean where it bends upwards, as between launch-bound and
    memory-bound batches), but never less than the curve at the mean.

    Args:
        operator: Over (batch, skew, context).
        batch: Decodes.
        kink: A context at which the analytic model bends.
        factor: Nanoseconds in all layers for a microsecond in one.
    """

    def __init__(self, operator: Operator, batch: int, kink: float, factor: float) -> None:
        grid, fixed = operator.grid, operator.fixed
        self.skews, self.skew_low, self.skew_high = [0.0], 0.0, math.inf
        ratios = _ratios(operator, batch)
        measured = grid if ratios is None else ratios
        if measured is not None:
            self.skew_low, self.skew_high = measured.range(*fixed, batch)
            skews = measured.values(*fixed, batch)
            self.skews = [s for s in skews if self.skew_low <= s <= self.skew_high] or skews
        self.equal_only = self.skews == [0.0]
        contexts: set[float] = {0.0, kink, FAR_TOKENS}
        self.low, self.high = 0.0, FAR_TOKENS
        for skew in self.skews:
            if grid is not None and (ratios is None or not skew):
                contexts |= set(grid.values(*fixed, batch, skew))
                low, high = grid.range(*fixed, batch, skew)
                self.low, self.high = max(self.low, low), min(self.high, high)
            elif ratios is not None:
                contexts |= set(ratios.values(*fixed, batch, skew))
        self.knots = sorted(contexts)
        base = self.skews if ratios is None else [0.0]
        found = [[operator.at(batch, s, x) for x in self.knots] for s in base]
        self.times = [[us * factor for us, _ in row] for row in found]
        if ratios is not None:
            equal, knots = self.times[0], self.knots
            self.times += [
                [us * ratios.at(*fixed, batch, s, x)[0] for us, x in zip(equal, knots, strict=True)]
                for s in self.skews[1:]
            ]
        self.slopes = [
            [
                (b - a) / (y - x)
                for (x, y), (a, b) in zip(pairwise(self.knots), pairwise(row), strict=True)
            ]
            for row in self.times
        ]
        self._arrays = np.array(self.knots), np.array(self.times), np.array(self.slopes)
        inside = [each for row in found for _, each in row]
        self.batch_outside = next(
            (o for outside in inside for o in outside if o.axis in ("batch", "heads")), None
        )

    def at(self, context: float, deviation: float) -> float:
        """Time, ns.

        Args:
            context: Mean of the contexts, tokens.
            deviation: Their standard deviation, tokens.
        """
        if not deviation:
            return self._piece(0, context)
        if not self.equal_only:
            return self._skewed(context, deviation / context)
        step = min(deviation, context - 1)
        if step <= 0:
            return self._piece(0, context)
        square, variance = step * step, deviation * deviation
        share = square / (variance + square)
        low = self._piece(0, context - step)
        two = low + (self._piece(0, context + variance / step) - low) * share
        return max(two, self._piece(0, context))

    def many(self, contexts: Floats, deviation: float) -> Floats:
        """`at` of many contexts, ascending, (n,): the same operations on the same doubles."""
        if not deviation:
            return self._pieces(0, contexts)
        if not self.equal_only:
            return self._skewed_many(contexts, deviation / contexts)
        if contexts[0] <= 1:
            return np.array([self.at(x, deviation) for x in contexts.tolist()])
        step = np.minimum(deviation, contexts - 1)
        square, variance = step * step, deviation * deviation
        share = square / (variance + square)
        low = self._pieces(0, contexts - step)
        ascending = step[0] == deviation
        pieces = self._pieces if ascending else self._scattered_pieces
        two = low + (pieces(0, contexts + variance / step) - low) * share
        return np.maximum(two, self._pieces(0, contexts))

    def is_inside(self, first: float, last: float, deviation: float) -> bool:
        """Whether all mean contexts from `first` to `last` are looked up inside the grid."""
        if first < self.low or last > self.high:
            return False
        if not self.equal_only:
            return self.skew_low <= deviation / last and deviation / first <= self.skew_high
        if not deviation:
            return True
        # The larger of two contexts that stand for unequal ones is a convex function of the mean.
        return max(self._larger(first, deviation), self._larger(last, deviation)) <= self.high

    def _larger(self, context: float, deviation: float) -> float:
        step = min(deviation, context - 1)
        return context + deviation * deviation / step if step > 0 else context

    def beyond(self, contexts: Floats, deviation: float) -> list[Beyond]:
        """In which ways some of these mean contexts, (n,), are looked up beyond the grid."""
        farthest = contexts
        if deviation and self.equal_only:
            farthest = np.array([self._larger(x, deviation) for x in contexts.tolist()])
        found = []
        if contexts[0] < self.low:
            short = Outside("context", float(contexts[0]), self.low)
            found.append(self._beyond(short, contexts < self.low, contexts, deviation))
        if farthest.max() > self.high:
            long = Outside("context", float(farthest.max()), self.high)
            found.append(self._beyond(long, farthest > self.high, contexts, deviation))
        return found if self.equal_only else found + self._beyond_skews(contexts, deviation)

    def _beyond_skews(self, contexts: Floats, deviation: float) -> list[Beyond]:
        skews, found = deviation / contexts, []
        if skews[0] > self.skew_high:
            more = Outside("skew", float(skews[0]), self.skew_high)
            found.append(self._beyond(more, skews > self.skew_high, contexts, deviation))
        if skews[-1] < self.skew_low:
            less = Outside("skew", float(skews[-1]), self.skew_low)
            found.append(self._beyond(less, skews < self.skew_low, contexts, deviation))
        return found

    def _beyond(
        self, farthest: Outside, steps: Bools, contexts: Floats, deviation: float
    ) -> Beyond:
        return Beyond(farthest, steps, float(self.many(contexts[steps], deviation).sum()))

    def _piece(self, row: int, x: float) -> float:
        i = bisect_right(self.knots, x) - 1
        i = i if i < len(self.knots) - 1 else i - 1
        return self.times[row][i] + self.slopes[row][i] * (x - self.knots[i])

    def _pieces(self, row: int, x: Floats) -> Floats:
        """`_piece` of ascending values."""
        last = len(self.knots) - 2
        first_piece = min(bisect_right(self.knots, float(x[0])) - 1, last)
        if first_piece == min(bisect_right(self.knots, float(x[-1])) - 1, last):
            i = first_piece
            pieces: Floats = self.times[row][i] + self.slopes[row][i] * (x - self.knots[i])
            return pieces
        return self._scattered_pieces(row, x)

    def _scattered_pieces(self, row: int, x: Floats) -> Floats:
        knots, times, slopes = self._arrays
        i = np.minimum(np.searchsorted(knots, x, side="right") - 1, len(knots) - 2)
        found: Floats = times[row][i] + slopes[row][i] * (x - knots[i])
        return found

    def _skewed(self, x: float, skew: float) -> float:
        total = below = self._piece(0, x)
        for row in range(1, len(self.skews)):
            low, high = self.skews[row - 1], self.skews[row]
            share = min(max((skew - low) / (high - low), 0.0), 1.0)
            here = self._piece(row, x)
            total = total + (here - below) * share
            below = here
        return total

    def _skewed_many(self, x: Floats, skew: Floats) -> Floats:
        total = below = self._pieces(0, x)
        for row in range(1, len(self.skews)):
            low, high = self.skews[row - 1], self.skews[row]
            share = np.minimum(np.maximum((skew - low) / (high - low), 0.0), 1.0)
            here = self._pieces(row, x)
            total = total + (here - below) * share
            below = here
        return total


def _ratios(operator: Operator, batch: int) -> Grid | None:
    """Times of unequal contexts over those of equal ones, where they surround a batch."""
    ratios = operator.unequal
    if ratios is None:
        return None
    fewest, most = ratios.range(*operator.fixed)
    return ratios if fewest <= batch <= most else None


class PrefillAttention:
    """Attention of the prefill chunks of a step, alone or in one launch with its decodes.

    Chunks of different sizes are looked up as as many equal ones with the same tokens and the same
    pairs of query and key (exact for one chunk, and for equal ones).

    - Where a table has no history, a chunk behind one is the whole prompt that has as many pairs,
      scaled by the ratio of the analytic model.
    - Where a table has launches of one chunk only, each further chunk adds its time less that of
      the shortest launch.

    Args:
        prefill: Over (batch, history, tokens).
        analytic: Time of (batch, history, tokens).
        mixed: Over (decodes, context, history, tokens), or None where decodes launch apart.
    """

    def __init__(
        self, prefill: Operator, analytic: Callable[..., float], mixed: Operator | None = None
    ) -> None:
        self.prefill = prefill
        self.mixed = mixed
        self._analytic = analytic
        grid, fixed = prefill.grid, prefill.fixed
        batches = [1.0, math.inf] if grid is None else grid.values(*fixed)
        self.batched = batches[-1] > 1
        self.histories = grid is None or any(grid.values(*fixed, b)[-1] > 0 for b in batches)
        self.launch_us = 0.0 if grid is None else grid.least()

    def alone(
        self, chunks: int, tokens: int, pairs_x2: int, history: int
    ) -> tuple[float, list[Mark]]:
        """Time of the chunks' launch, microseconds, of one layer.

        Args:
            chunks: Their number.
            tokens: Of all together.
            pairs_x2: Twice the pairs of query and key.
            history: Tokens before them, all together.
        """
        each, before = _equal(chunks, tokens, pairs_x2)
        if self.batched:
            us, found = self._chunk(chunks, each, before, history / chunks)
        else:
            one, found = self._chunk(1, each, before, history / chunks)
            us = one + (chunks - 1) * max(0.0, one - self.launch_us)
        return us, [Mark(self.prefill.name, outside, us) for outside in found]

    def with_decodes(
        self, chunks: int, tokens: int, pairs_x2: int, history: int, decodes: int, context: float
    ) -> tuple[float, list[Mark]]:
        """Time of one launch with decodes of a mean context; only where `mixed` is there."""
        assert self.mixed is not None
        each, before = _equal(chunks, tokens, pairs_x2)
        us, found = self.mixed.at(decodes, context, before, each)
        marks = [Mark(self.mixed.name, outside, us) for outside in found]
        if chunks > 1:
            one, beyond = self._chunk(1, each, before, history / chunks)
            more = (chunks - 1) * max(0.0, one - self.launch_us)
            us += more
            marks += [Mark(self.prefill.name, outside, more) for outside in beyond]
        return us, marks

    def _chunk(
        self, batch: int, tokens: float, before: float, history: float
    ) -> tuple[float, list[Outside]]:
        """Equal chunks; `history` is what really stood before them, for the record."""
        if self.histories or not before:
            return self.prefill.at(batch, before, tokens)
        pairs = tokens * (before + (tokens + 1) / 2)
        whole = (math.sqrt(8 * pairs + 1) - 1) / 2
        us, found = self.prefill.at(batch, 0, whole)
        us *= self._analytic(batch, before, tokens) / self._analytic(batch, 0, whole)
        return us, [*found, Outside("history", history, 0)] if history else found


def _equal(chunks: int, tokens: int, pairs_x2: int) -> tuple[float, float]:
    """Tokens and history of equal chunks with as many tokens and pairs in all."""
    each = tokens / chunks
    return each, max(0.0, pairs_x2 / (2 * tokens) - (each + 1) / 2)
