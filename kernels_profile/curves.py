"""Looks up the fitted curves of a device, or the median of the others' where it has none."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from importlib.resources import files

from kernels_profile.operators import CURVES, Curve, median_curve
from sim.errors import ProfileError, nearest


@dataclass(frozen=True)
class FoundCurve:
    """A curve and what is known about it.

    Attributes:
        curve: Its coefficients.
        measured: It was fitted to this device; else it is the median of the devices that were.
        error: Median relative error: of the fit, or of taking such a median for a fitted device.
    """

    curve: Curve
    measured: bool
    error: float


class CurveBook:
    """All rows of `efficiency/*.csv`, read once."""

    def __init__(self) -> None:
        folder = files("kernels_profile").joinpath("efficiency")
        self._rows: dict[str, list[dict[str, str]]] = {}
        for operator in CURVES:
            text = folder.joinpath(f"{operator}.csv").read_text(encoding="utf-8")
            self._rows[operator] = list(csv.DictReader(text.splitlines()))

    def find(self, operator: str, device: str, key: str) -> FoundCurve:
        """The curve of an operator on a device, for a data type or a number of GPUs.

        Raises:
            ProfileError: no device has one for that key.
        """
        rows = [row for row in self._rows[operator] if row["key"] == key]
        if not rows:
            known = {row["key"] for row in self._rows[operator]}
            raise ProfileError(f"roofline: {operator} was fitted for no {key}{nearest(key, known)}")
        for row in rows:
            if row["device"] == device:
                return FoundCurve(_curve(operator, row), True, float(row["median_error"]))
        alone = sorted(float(row["others_error"]) for row in rows)
        curve = median_curve([_curve(operator, row) for row in rows])
        return FoundCurve(curve, False, alone[len(alone) // 2])

    def measured(self, operator: str, device: str) -> bool:
        """Whether the device has a row of its own for an operator."""
        return any(row["device"] == device for row in self._rows[operator])


def _curve(operator: str, row: dict[str, str]) -> Curve:
    cls = CURVES[operator]
    return cls(*(float(row[field.name]) for field in fields(cls)))
