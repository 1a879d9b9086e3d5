"""Where a simulation has forgotten that it began empty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.metrics import Floats

BATCH = 5
"""Values averaged into one (MSER-5)."""

LEAST_VALUES = 100
"""With fewer values nothing is said."""


@dataclass(frozen=True)
class WarmUp:
    """What MSER says of a series.

    Attributes:
        skip: Leading values to leave out; 0 for none.
        found: False where the rule would cut half of the series or more: then the run is too short,
            or does not settle at all.
        shift: By how much the mean of all values differs from that of those kept, as a share of the
            latter.
    """

    skip: int
    found: bool
    shift: float


def mser(values: Floats) -> WarmUp:
    """The truncation that makes the standard error of the rest smallest (MSER-5).

    Of batch means y_1 .. y_k of 5 values, leave out the first d, 0 <= d <= k / 2, for which
    sum over i > d of (y_i - mean of the rest)^2 / (k - d)^2 is smallest; of equal ones the smallest
    d. If that is d = k / 2, no steady state is in sight.

    Source: White, Simulation 69, 1997; White, Cobb and Spratt, Winter Simulation Conference 2000.

    Args:
        values: In the order of time, shape (n,), such as latencies in order of arrival.
    """
    count = len(values) // BATCH
    if len(values) < LEAST_VALUES:
        return WarmUp(0, True, 0.0)
    means = values[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    means = means - means.mean()  # so that the squares below lose no digits
    rest = np.arange(count, 0, -1)
    total, squares = (np.cumsum(x[::-1])[::-1] for x in (means, means * means))
    spread = (squares - total * total / rest) / (rest * rest)
    half = count // 2
    cut = int(np.argmin(spread[: half + 1]))
    kept = float(values[cut * BATCH :].mean())
    shift = (float(values.mean()) - kept) / abs(kept) if kept else 0.0
    return WarmUp(cut * BATCH, cut < half, shift)
