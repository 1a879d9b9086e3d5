"""Whether one variant differs from another, or that is noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.statistics.intervals import CONFIDENCE, Interval, Refusal, over_runs


@dataclass(frozen=True)
class Difference:
    """One variant against another, over the same replications.

    Attributes:
        first: Mean over the runs of the variant that is compared with.
        second: Mean over the runs of the other.
        interval: Of second - first.
    """

    first: float
    second: float
    interval: Interval

    @property
    def separable(self) -> bool:
        """Whether the interval leaves 0 out: the test at level 1 - confidence says they differ."""
        return not self.interval.contains(0.0)

    @property
    def relative(self) -> float:
        """(second - first) / first; NaN where first is 0."""
        return self.interval.estimate / self.first if self.first else math.nan

    @property
    def relative_half_width(self) -> float:
        """The interval's half-width / first; NaN where first is 0."""
        return abs(self.interval.half_width / self.first) if self.first else math.nan

    def said(self, better: Literal["lower", "higher", "neither"], *, of_time: bool) -> str:
        """Such as ``faster by 12 % ± 3``, ``not separable (+0.8 % ± 1.3)`` or ``equal``.

        Args:
            better: Which way is good (`sim.metric_definitions.Metric.better`).
            of_time: The number is a time, so that less is faster.
        """
        if not self.interval.estimate and not self.interval.half_width:
            return "equal"
        if not self.separable:
            return f"not separable ({self._percent(signed=True)})"
        less = self.interval.estimate < 0
        words = ("faster", "slower") if of_time and better == "lower" else ("lower", "higher")
        return f"{words[0] if less else words[1]} by {self._percent(signed=False)}"

    def _percent(self, *, signed: bool) -> str:
        if math.isnan(self.relative):
            return f"{self.interval.estimate:+.3g} ± {self.interval.half_width:.2g}"
        percent = 100 * (self.relative if signed else abs(self.relative))
        half = 100 * self.relative_half_width
        whole = 9.5 if signed else 0.95  # where it is narrow, whether it holds 0 is to be seen
        digits = 0 if half >= whole else min(3, 1 - math.floor(math.log10(half))) if half else 1
        return f"{percent:{'+' if signed else ''}.{digits}f} % ± {half:.{digits}f}"


def paired_difference(
    first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE
) -> Difference | Refusal:
    """Compare two variants by the differences of their runs with the same seeds.

    With common random numbers, run i of both variants serves the same requests at the same times:
    what the workload does to both cancels out of the difference, which is then far less noisy than
    either (Law, Simulation Modeling and Analysis, 5th ed., section 11.2). The differences of
    independent pairs are independent, and have an interval by Student's t.

    Args:
        first: The number of each run of one variant, such as its P99.
        second: The same of the other variant, runs in the same order of seeds.
        confidence: Two-sided.

    Raises:
        ValueError: They are not of the same length.
    """
    one, other = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != other.shape:
        raise ValueError(f"{len(one)} and {len(other)} runs cannot be paired")
    interval = over_runs((other - one).tolist(), confidence)
    if isinstance(interval, Refusal):
        return interval
    return Difference(float(one.mean()), float(other.mean()), interval)
