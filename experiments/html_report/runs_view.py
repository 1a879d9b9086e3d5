"""Replications of a variant: which runs there are, and the intervals that they leave.

All of the page is of the first run of a variant but for what says otherwise: its distributions are
of all runs together, with the bands of `experiments.statistics.bands`, and its intervals are those
that the run wrote beside its variants (``replications.json``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import bundle
from experiments.bundle import REPEATED, Bundle, Head
from experiments.quantity import read_quantity
from experiments.report import unique_labels
from experiments.tables import three_digits
from experiments.uncertainty import COMPARED, Repeated
from experiments.uncertainty_table import heading


def runs_of(first: Bundle, folder: Path) -> tuple[Bundle, ...]:
    """All runs of a variant that differ, the given one first; that alone where it has no others.

    Raises:
        BundleError: One cannot be read.
    """
    known = bundle.runs_of(folder)
    if known is None:
        return (first,)
    label, runs = known
    read = [bundle.read(each, with_steps=False, attributed=False) for each in runs[1:]]
    return Repeated.of(label, [first, *read]).runs


def intervals(heads: Sequence[Head], folders: Sequence[Path]) -> dict[str, Any] | None:
    """Which part of the page is of how many runs, and a table of intervals; None without any."""
    told: dict[str, Mapping[str, Any]] = {}
    for name, folder in zip(unique_labels(heads), folders, strict=True):
        if (known := bundle.runs_of(folder)) is not None:
            told[name] = bundle.read_values(folder.parent / REPEATED)["variants"][known[0]]
    if not told:
        return None
    quantities = [read_quantity(text, "report") for text in COMPARED]
    rows = [
        [heading(each), *(_said(its["metrics"].get(each.text)) for its in told.values())]
        for each in quantities
        if any(each.text in its["metrics"] for its in told.values())
    ]
    return {"notes": _notes(told), "columns": ["95 % intervals", *told], "rows": rows}


def _said(interval: Mapping[str, Any] | None) -> str:
    if interval is None or interval["estimate"] is None:
        return "-"
    number = three_digits(interval["estimate"])
    if interval.get("low") is None:
        return number
    return f"{number} ({three_digits(interval['low'])} to {three_digits(interval['high'])})"


def _notes(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    several = [f"{name} {len(its['seeds'])}" for name, its in told.items() if its["drawn"]]
    alike = [name for name, its in told.items() if not its["drawn"]]
    notes = []
    if several:
        notes.append(
            f"Runs with other seeds: {', '.join(several)}. The table above shows the first run of "
            "each, and so does all of this page but the latency distributions, which are of all "
            "runs together (their floors of the first), and the intervals here. A number without "
            f"an interval has too few values for one: {REPEATED} says why, and has the "
            "differences between variants."
        )
    if alike:
        notes.append(f"Nothing is drawn in {', '.join(alike)}: every replication is the same run.")
    return notes
