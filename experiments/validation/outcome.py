"""What a case came to: comparisons, bars, curves and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from experiments.validation.case import BarSpec, Case

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """One metric of one row, measured and simulated.

    Attributes:
        metric: Such as ``tpot_ms``; ends in its unit.
        measured: Value; NaN where only the error is known (a difference of curves).
        simulated: Value.
        row: Which row of the measurement, in words; empty for the whole case.
        group: Rows that are judged together; empty for all.
        distance: Error where it is not simulated / measured - 1.
        listed: Printed with its case even where rows are summed up.
    """

    metric: str
    measured: float
    simulated: float
    row: str = ""
    group: str = ""
    distance: float | None = None
    listed: bool = False

    @property
    def error(self) -> float:
        """Signed relative error."""
        if self.distance is not None:
            return self.distance
        return self.simulated / self.measured - 1 if self.measured else math.nan


@dataclass(frozen=True)
class Bar:
    """A bar with its value.

    Attributes:
        case: Name of the case.
        text: What has to stay below what.
        value: What it is.
        passed: Whether it does.
    """

    case: str
    text: str
    value: float
    passed: bool


@dataclass(frozen=True)
class Overlay:
    """Two distributions, or two curves over time, in one figure.

    Attributes:
        title: What is shown.
        unit: Of the values (of time, where `times_s` is given, s).
        measured: Values, (n,).
        simulated: Values, (m,).
        times_s: Of the values where they are curves over time, (n,); None for distributions.
        labels: Of the two.
    """

    title: str
    unit: str
    measured: Floats
    simulated: Floats
    times_s: Floats | None = None
    labels: tuple[str, str] = ("measured", "simulated")


@dataclass
class Outcome:
    """What one case came to.

    Attributes:
        case: The case.
        comparisons: In the order of the measurement.
        bars: In the order of the case's file.
        overlays: Figures.
        notes: Where step times came from, what lay outside of a grid: one sentence each.
    """

    case: Case
    comparisons: list[Comparison] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    overlays: list[Overlay] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, metric: str, measured: float, simulated: float, **more: object) -> None:
        """Add a comparison."""
        self.comparisons.append(
            Comparison(metric, float(measured), float(simulated), **more)  # type: ignore[arg-type]
        )

    def note(self, text: str) -> None:
        """Add a sentence once."""
        if text not in self.notes:
            self.notes.append(text)

    def judge(self) -> None:
        """Hold the errors against the bars of the case."""
        self.bars = [_judged(self.case.name, spec, self.comparisons) for spec in self.case.bars]


def statistic(errors: Iterable[float], name: str) -> float:
    """A statistic of signed errors, see `case.STATISTICS`; NaN of none."""
    size = np.abs(np.fromiter(errors, float))
    if not len(size):
        return math.nan
    if name == "mean_abs":
        return float(size.mean())
    return float(np.median(size)) if name == "median_abs" else float(size.max())


def _judged(case: str, spec: BarSpec, comparisons: Sequence[Comparison]) -> Bar:
    chosen = [
        each.error
        for each in comparisons
        if each.metric in spec.metrics and (spec.group is None or each.group == spec.group)
    ]
    value = statistic(chosen, spec.statistic)
    what = ", ".join(spec.metrics) + (f" ({spec.group})" if spec.group else "")
    if spec.statistic == "agree":
        return Bar(case, f"{what}: the same", value, value == 0)
    words = {"mean_abs": "mean error", "median_abs": "median error", "max_abs": "error"}
    text = f"{what}: {words[spec.statistic]} under {spec.under:.0%}"
    assert spec.under is not None
    # A bar over no rows is not met: what it is about was not seen.
    return Bar(case, text, value, bool(value < spec.under))
