"""Replications as tables for people, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from experiments.capacity.report import interval_json
from experiments.quantity import Quantity
from experiments.statistics.intervals import BATCHES, Interval, Refusal
from experiments.statistics.pairs import Difference
from experiments.tables import Column, Comparison, three_digits
from experiments.uncertainty import Repeated, compared, difference, every_quantity, warnings


def intervals_table(variants: Sequence[Repeated]) -> Comparison:
    """One row a number, one column a variant: the number and its 95 % confidence interval."""
    quantities = compared(variants)
    columns = [Column("metric", "95 % intervals", words=True)]
    columns += [Column(f"v{at}", each.label, words=True) for at, each in enumerate(variants)]
    rows = [
        (heading(quantity), *(said(each.interval(quantity)) for each in variants))
        for quantity in quantities
    ]
    runs = ", ".join(f"{each.label} {len(each.runs)}" for each in variants)
    said_of_runs = means_of_runs(quantities) if any(each.drawn for each in variants) else []
    refused = without_interval(variants, quantities)
    notes = [f"Runs: {runs}.", *said_of_runs, *warnings(variants), *refused]
    return Comparison(tuple(columns), tuple(rows), tuple(notes))


def without_interval(variants: Sequence[Repeated], quantities: Sequence[Quantity]) -> list[str]:
    """Which numbers have no interval, and why."""
    return [
        f"{variant.label}: {quantity.text}: no interval: {interval}."
        for quantity in quantities
        for variant in variants
        if isinstance(interval := variant.interval(quantity), Refusal)
    ]


def differences_table(variants: Sequence[Repeated]) -> Comparison | None:
    """Each variant against the first one; None where there is nothing to compare."""
    first, others = variants[0], variants[1:]
    quantities = compared(variants)
    columns = [Column("metric", "Against", first.label, words=True)]
    columns += [Column(f"v{at}", each.label, words=True) for at, each in enumerate(others)]
    rows = []
    for quantity in quantities:
        cells = [difference_said(first, each, quantity) for each in others]
        if any(cells):
            rows.append((heading(quantity), *(cell or None for cell in cells)))
    if not rows:
        return None
    return Comparison(tuple(columns), tuple(rows), (of_what(first, others),))


def of_what(first: Repeated, others: Sequence[Repeated]) -> str:
    """What differences from the first variant are differences of, and their percentiles."""
    of = "runs with the same seeds"
    percentiles = (
        "percentiles are those of runs of this length, and may differ for certain where too few "
        "requests lie beyond one for an interval of its own"
    )
    if not any(each.drawn for each in (first, *others)):
        of = "the same requests in one run of each"
        percentiles = (
            f"percentiles are means of those of {BATCHES} parts of the run, so that their "
            "difference is not that of the whole run's percentiles"
        )
    elif not all(first.drawn or each.drawn for each in others):
        of = "runs with the same seeds, or of the same requests where nothing is drawn"
    return f"Differences of {of}, with 95 % confidence; {percentiles}."


def difference_said(one: Repeated, other: Repeated, quantity: Quantity) -> str:
    """``faster by 12 % ± 3``; empty where there is no test."""
    found = difference(one, other, quantity)
    if isinstance(found, Refusal):
        return ""
    return found.said(quantity.metric.better, of_time=quantity.of_time)


def heading(quantity: Quantity) -> str:
    """Name of a quantity in a table."""
    statistic = quantity.statistic
    part = statistic if statistic == "mean" else statistic.upper()
    unit = f" ({quantity.metric.unit})" if quantity.metric.unit else ""
    return f"{quantity.metric.title} {part}".strip() + unit


def means_of_runs(quantities: Sequence[Quantity]) -> list[str]:
    """Which rows are means of the runs' own numbers, not of all runs together; none if none are."""
    those = [heading(each).partition(" (")[0] for each in quantities if each.of_whole_runs]
    if not those:
        return []
    verb, number = ("is", "number") if len(those) == 1 else ("are", "numbers")
    return [
        f"{' and '.join(those)} {verb} the mean of the runs' own {number}, with Student's t over "
        "the runs; other rows are of the requests of all runs together."
    ]


def said(interval: Interval | Refusal) -> str:
    """A number and where its true value lies."""
    if math.isnan(interval.estimate):
        return "-"
    number = three_digits(interval.estimate)
    if isinstance(interval, Refusal):
        return number
    return f"{number} ({three_digits(interval.low)} to {three_digits(interval.high)})"


def as_json(variants: Sequence[Repeated]) -> dict[str, Any]:
    """Every number of every variant with its interval, and the differences from the first."""
    first = variants[0]
    told: dict[str, Any] = {}
    for variant in variants:
        found, since_s = variant.warm_up()
        told[variant.label] = {
            "runs": len(variant.runs),
            "drawn": variant.drawn,
            "seeds": [run.config["seed"] for run in variant.runs],
            "warm_up": {"found": found.found, "skip_s": since_s if found.skip else 0.0},
            "metrics": {
                quantity.text: _interval(variant.interval(quantity))
                for quantity in every_quantity(variant)
            },
        }
        if variant is not first:
            told[variant.label]["against"] = {first.label: _differences(first, variant)}
    return told


def _interval(interval: Interval | Refusal) -> dict[str, Any]:
    estimate = interval.estimate if math.isfinite(interval.estimate) else None
    return {"estimate": estimate} | interval_json(interval)


def _differences(one: Repeated, other: Repeated) -> dict[str, Any]:
    found = {each.text: difference(one, other, each) for each in compared([one, other])}
    return {
        text: {"separable": each.separable, "difference": each.interval.estimate}
        | interval_json(each.interval)
        for text, each in found.items()
        if isinstance(each, Difference)
    }
