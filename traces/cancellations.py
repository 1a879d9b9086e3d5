"""Clients that give up, drawn for traces that do not say when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.request import NEVER, Trace
from traces.chance import generator
from traces.durations import draw_ns, said


def draw_cancellations(
    trace: Trace,
    share: float,
    distribution: str,
    mean_s: float,
    cv: float | None = None,
    *,
    seed: int = 0,
) -> Trace:
    """The trace with a drawn `cancel_after_ns` for a share of the requests that have none.

    Draws come from the experiment's generator ``cancellations``, in trace order: first a number in
    [0, 1) for each request, which gives up if that is below `share`, then a patience for each. So a
    larger share takes the same clients and more, and another mean scales the same patience.

    Args:
        trace: It is not changed. What it says itself is kept.
        share: Probability that the client of a request gives up, 0 to 1.
        distribution: Of how long it waits from the arrival on; see `traces.durations.draw_ns`.
        mean_s: Mean, seconds.
        cv: Coefficient of variation, of ``gamma`` and ``lognormal``.
        seed: Of the experiment.

    Raises:
        ValueError: An argument out of bounds, or no such distribution.
        TraceError: A drawn patience is beyond belief.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"cancel: share {share}; expected 0 to 1")
    n, rng = len(trace), generator(seed, "cancellations")
    impatient = rng.random(n) < share
    key, what = "cancel.after", "cancel: a patience"
    after = draw_ns(n, distribution, mean_s, cv, rng, key=key, what=what)
    told = trace.cancel_after_ns
    if told is None:
        told = np.full(n, NEVER, dtype=np.int64)
    drawn = impatient & (told == NEVER)
    own = f"; {own:,} others by the trace" if (own := int((told != NEVER).sum())) else ""
    note = (
        f"Cancellations: {int(drawn.sum()):,} of {n:,} clients give up if their request has not "
        f"finished within a time that is drawn, {said(distribution, mean_s, cv)}{own}."
    )
    return replace(trace, cancel_after_ns=np.where(drawn, after, told), notes=[*trace.notes, note])
