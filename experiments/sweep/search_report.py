"""What came of a search, for people and for programs."""

from __future__ import annotations

import json
from typing import Any

from experiments import bundle
from experiments.sweep.points import canonical
from experiments.sweep.search import Found, Trial
from experiments.tables import Column, Comparison, three_digits

FRONT = "front.json"
"""Its name in the folder of a search."""


def print_found(found: Found, *, as_json: bool) -> None:
    """Print the front, and keep it beside the data set."""
    from rich.console import Console

    from experiments.tables import show

    values = as_values(found)
    bundle.write_values(found.folder / FRONT, values)
    if as_json:
        print(json.dumps(values, indent=1))
        return
    show(table_of(found), Console(markup=False, emoji=False, highlight=False))
    print(f"results: {found.folder}")


def as_values(found: Found) -> dict[str, Any]:
    """The front and the counts as plain values."""
    texts = [each.text for each in found.asked.objectives]
    return {
        "trials": len(found.trials) + found.repeated,
        "points": len(found.trials),
        "overloaded": sum(trial.overloaded for trial in found.trials),
        "failed": _failed(found),
        "objectives": texts,
        "front": [
            {
                "trial": trial.number,
                "variant": trial.variant,
                "setting": trial.setting,
                **dict(zip(texts, trial.values, strict=True)),
            }
            for trial in found.front
        ],
    }


def _failed(found: Found) -> int:
    return sum(not trial.overloaded and not trial.counts for trial in found.trials)


def table_of(found: Found) -> Comparison:
    """One row a point of the front, by the first objective."""
    several = len(found.asked.variants) > 1
    columns = [Column("variant", "Variant", words=True)] if several else []
    columns += [Column(key, key, words=True) for key in found.asked.axes]
    columns += [
        Column(each.text, each.metric.title, f"{each.statistic.upper()} {each.metric.unit}".strip())
        for each in found.asked.objectives
    ]
    rows = [_row(trial, found, several=several) for trial in found.front]
    counts = f"{len(found.front)} of {len(found.trials)} points are beaten by no other one"
    overloaded = sum(trial.overloaded for trial in found.trials)
    are = "is" if overloaded == 1 else "are"
    notes = [
        f"{counts}; {overloaded} {are} overloaded, and {_failed(found)} cannot be run or lack a "
        f"number. {found.repeated} of {found.asked.trials} trials asked for a point again."
    ]
    return Comparison(tuple(columns), tuple(rows), tuple(notes))


def _row(trial: Trial, found: Found, *, several: bool) -> tuple[str, ...]:
    settings = [
        value if isinstance(value, str) else canonical(value) for value in trial.setting.values()
    ]
    numbers = [three_digits(value) for value in trial.values]
    return (*([trial.variant] if several else []), *settings, *numbers)
