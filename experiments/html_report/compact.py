"""Arrays as short lists for a page: few digits, few points, and no extreme lost."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from sim.metrics import Floats, Ints

DIGITS = 6
"""Significant digits of numbers on the page."""


def numbers(values: npt.NDArray, digits: int = DIGITS) -> list[float | int | None]:
    """Values to some significant digits; whole ones as integers, undefined ones as None."""
    out: list[float | int | None] = []
    for value in values.tolist():
        if value != value:
            out.append(None)
            continue
        rounded = float(f"{value:.{digits}g}")
        out.append(int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded)
    return out


def thinned(values: Floats, most: int) -> Ints:
    """Positions to draw of a series: all, or of equal parts the least and the largest value.

    The first and the last position stay, so that the extremes and both ends are exact.

    Args:
        values: Shape (k,), NaN allowed.
        most: Positions, at least 4.

    Returns:
        Ascending, at most `most`.
    """
    if len(values) <= most:
        return np.arange(len(values))
    parts = np.array_split(np.arange(len(values)), (most - 2) // 2)
    low = [part[0] + int(np.argmin(_but(values[part], np.inf))) for part in parts]
    high = [part[0] + int(np.argmax(_but(values[part], -np.inf))) for part in parts]
    return np.unique(np.array([0, *low, *high, len(values) - 1]))


def _but(values: Floats, instead: float) -> Floats:
    return np.where(np.isnan(values), instead, values)


def shares(values: Floats) -> str:
    """Values from 0 to 1 as one byte each (0 to 255), in base 64; more than nothing is at least 1.

    Args:
        values: Of any shape, in row-major order.
    """
    clipped = np.clip(values, 0, 1)
    coded = np.where(clipped > 0, np.maximum(1, np.round(clipped * 255)), 0)
    return base64.b64encode(coded.astype(np.uint8).tobytes()).decode("ascii")
