"""Replications of a variant: which runs there are, and the intervals that they leave.

Distributions, those of classes too, are of all runs together, with the bands of
`experiments.statistics.bands`; intervals are those that the run wrote beside its variants
(``replications.json``). Curves over time, timelines and worst requests are of one run, which can be
chosen among the first `MOST_SHOWN`; the table and where the time went are of the first.
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
from experiments.uncertainty_table import heading, means_of_runs

MOST_SHOWN = 5
"""Runs of a variant that can be looked at one by one: a page has room for so much."""


def count_shown(folder: Path) -> int:
    """How many runs of a variant can be looked at, at most."""
    known = bundle.runs_of(folder)
    return 1 if known is None else min(MOST_SHOWN, len(known[1]))


def runs_of(first: Bundle, folder: Path) -> list[tuple[Bundle, Path]]:
    """All runs of a variant that differ and their folders; one alone where it has no others.

    Raises:
        BundleError: One cannot be read.
    """
    known = bundle.runs_of(folder)
    if known is None:
        return [(first, folder)]
    label, folders = known
    read = [bundle.read(each, with_steps=False, attributed=False) for each in folders[1:]]
    return list(zip(Repeated.of(label, [first, *read]).runs, folders, strict=False))


def one_run(
    heads: Sequence[Head], shown: Sequence[Sequence[Mapping[str, Any]]], folders: Sequence[Path]
) -> dict[str, Any] | None:
    """Which runs can be chosen, and what is said beside views of one run; None without any.

    Args:
        heads: Of the variants.
        shown: Of each variant, the runs that can be looked at.
        folders: Of the variants.
    """
    most = max(map(len, shown))
    if most < 2:
        return None
    names = [
        _named(at, [runs[at]["seed"] for runs in shown if at < len(runs)]) for at in range(most)
    ]
    known = [found for found in map(bundle.runs_of, folders) if found is not None]
    total = max(len(runs) for _, runs in known)
    single = [
        name for name, runs in zip(unique_labels(heads), shown, strict=True) if len(runs) < most
    ]
    said = [f"of {total}" + (f", of which the first {most} can be chosen" if total > most else "")]
    if single:
        said.append(f"of {', '.join(single)} the first where there is no such run")
    return {"names": names, "note": "; ".join(said), "first": "Of the first run of each variant."}


def _named(at: int, seeds: Sequence[int]) -> str:
    seed = f" (seed {seeds[0]})" if len(set(seeds)) == 1 else ""
    return f"Run {at + 1}{seed}"


def intervals(heads: Sequence[Head], folders: Sequence[Path]) -> dict[str, Any] | None:
    """Which part of the page is of how many runs, and a table of intervals; None without any."""
    told: dict[str, Mapping[str, Any]] = {}
    for name, folder in zip(unique_labels(heads), folders, strict=True):
        if (known := bundle.runs_of(folder)) is not None:
            told[name] = bundle.read_values(folder.parent / REPEATED)["variants"][known[0]]
    if not told:
        return None
    quantities = [
        each
        for each in (read_quantity(text, "report") for text in COMPARED)
        if any(each.text in its["metrics"] for its in told.values())
    ]
    rows = [
        [heading(each), *(_said(its["metrics"].get(each.text)) for its in told.values())]
        for each in quantities
    ]
    means = means_of_runs(quantities) if any(its["drawn"] for its in told.values()) else []
    return {"notes": [*_notes(told), *means], "columns": ["95 % intervals", *told], "rows": rows}


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
            f"Runs with other seeds: {', '.join(several)}. The table above and where the time went "
            "are of the first run of each; the latency distributions and their percentiles, by "
            "class too, are of all runs together (floors of the first), and so are the intervals "
            "here but where it is said below; over time, replicas and worst requests show one run, "
            "which can be chosen there. A number without "
            f"an interval has too few values for one: {REPEATED} says why, and has the "
            "differences between variants."
        )
    if alike:
        notes.append(f"Nothing is drawn in {', '.join(alike)}: every replication is the same run.")
    return notes
