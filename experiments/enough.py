"""Whether a run is long enough for what its table says: percentiles, and the start from empty.

A run without replications has no intervals in its table. What can be said of it all the same is
where there could be none: a percentile beyond which too few effectively independent values lie
(`experiments.statistics.intervals.LEAST_BEYOND`), and a mean that the start from an empty system
sways (MSER).
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.bundle import Bundle
from experiments.notes import few
from experiments.quantity import Quantity, read_quantity
from experiments.statistics.intervals import BATCHES, quantile_refused
from experiments.uncertainty import WORTH_SAYING, Repeated

_PERCENTILES = ("ttft_s.p50", "ttft_s.p99", "tpot_s.p50", "tpot_s.p99", "e2e_s.p50", "e2e_s.p99")
"""Of the table of a run, those of single requests."""


def warnings(bundles: Sequence[Bundle]) -> list[str]:
    """One sentence for the percentiles that runs are too short for, and one for their start.

    Args:
        bundles: Runs without replications. Those that are not stable are left out: their numbers
            depend on how long they are, as their verdict says.
    """
    stable = [each for each in bundles if each.summary["verdict"]["name"] == "stable"]
    runs = [Repeated.of(each.label, [each]) for each in stable]
    return [*_too_short(runs), *_start(runs)]


def _too_short(runs: Sequence[Repeated]) -> list[str]:
    told = []
    for text in _PERCENTILES:
        quantity = read_quantity(text, "table")
        needed = {run.label: need for run in runs if (need := _needed(run, quantity)) is not None}
        if needed:
            name = f"{quantity.statistic.upper()} of {quantity.metric.title}"
            told.append(f"{name}: {few([*needed])} (about {_rounded(max(needed.values()))})")
    if not told:
        return []
    return [
        "Too few requests for a sure "
        + "; ".join(told)
        + ": so many are needed, or that many over several `replications`."
    ]


def _needed(run: Repeated, quantity: Quantity) -> int | None:
    """Requests of one run that an interval of the percentile would take; None if it has enough."""
    assert quantity.percentile is not None
    values = [sample.values for sample in run.samples(quantity) if sample.values is not None]
    refused = quantile_refused(values, quantity.percentile)
    if refused is None or refused.needs_requests is None:
        return None
    return refused.needs_requests * BATCHES


def _rounded(requests: int) -> str:
    """Two digits, upwards: more would claim to know it."""
    unit = 10 ** max(len(str(requests)) - 2, 0)
    return f"{-(-requests // unit) * unit:,}"


def _start(runs: Sequence[Repeated]) -> list[str]:
    told = []
    for run in runs:
        found, since_s = run.warm_up()
        if found.found and abs(found.shift) >= WORTH_SAYING:
            skip_s = run.runs[0].summary["window"]["warm_up_s"] + since_s
            told.append(f"{run.label} {found.shift:+.1%} (warm_up_s: {skip_s:.3g} leaves it out)")
    if not told:
        return []
    return [f"The start from empty moves the mean E2E (MSER): {'; '.join(told)}."]
