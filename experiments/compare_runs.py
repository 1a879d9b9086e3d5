"""Two results beside each other: how their configs differ, and whether their numbers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import bundle
from experiments.bundle import Bundle, BundleError
from experiments.config import slug
from experiments.explain import shown
from experiments.quantity import Quantity
from experiments.statistics.intervals import Refusal
from experiments.tables import Column, Comparison
from experiments.uncertainty import Repeated, compared, difference, warnings
from experiments.uncertainty_table import (
    as_json,
    heading,
    means_of_runs,
    of_what,
    said,
    without_interval,
)

_NO_DIFFERENCE = ("label", "name", "about", "notes", "record", "replications")
"""Keys of a config that change none of its numbers."""


def read_variant(folder: Path, tell: Callable[[str], None] = lambda text: None) -> Repeated:
    """The variant in a folder of ``phasewise run``, with its replications if there are any.

    Args:
        folder: Of the variant, or of a run of one variant.
        tell: Given one line where further runs are there and their list is not.

    Raises:
        BundleError: There is none, or there are several.
    """
    found = [path for path in bundle.find(_by_label(folder)) if bundle.is_finished(path)]
    if len(found) != 1:
        names = ", ".join(path.name for path in found)
        raise BundleError(
            f"{folder}: expected one variant; give the folder of one"
            + (f", such as {found[0]} (there are {names})" if found else "")
        )
    at = found[0]
    if told := bundle.lone_run(at):
        tell(told)
    label = bundle.read_head(at).label
    _, folders = bundle.runs_of(at) or (label, [at])
    return Repeated.of(label, [bundle.read(each, with_steps=False) for each in folders])


def _by_label(folder: Path) -> Path:
    """The folder of a variant named by its label, such as ``results/x/A`` for ``results/x/a``."""
    named = folder.parent / slug(folder.name)
    if folder.exists() or not bundle.is_finished(named):
        return folder
    return named if bundle.read_head(named).label == folder.name else folder


def config_differences(one: Bundle, other: Bundle) -> list[str]:
    """``policy.budget_tokens: 256 -> 512`` of each key that differs and matters."""
    first, second = (dict(_flat(each.config)) for each in (one, other))
    return [
        f"{key}: {_word(first, key)} -> {_word(second, key)}"
        for key in dict.fromkeys([*first, *second])
        if key.partition(".")[0] not in _NO_DIFFERENCE and first.get(key) != second.get(key)
    ]


def _flat(config: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _word(values: Mapping[str, Any], key: str) -> str:
    return shown(values[key]) if key in values else "not given"


def comparison(one: Repeated, other: Repeated) -> Comparison:
    """One row a number: of one, of the other, and the difference if there is a test for it."""
    first, second = one.label, other.label
    columns = (
        Column("metric", "95 % intervals", words=True),
        Column("first", first, words=True),
        Column("second", f"{second} (2)" if first == second else second, words=True),
        Column("difference", "Second against first", words=True),
    )
    rows, why, tested = [], {}, []
    for quantity in compared([one, other]):
        found = difference(one, other, quantity)
        cell = None
        if isinstance(found, Refusal):
            why[f"{quantity.text}: no test: {found}."] = found.reason
        else:
            cell = found.said(quantity.metric.better, of_time=quantity.of_time)
            tested.append(quantity)
        rows.append((heading(quantity), _said(one, quantity), _said(other, quantity), cell))
    pair = [one, replace(other, label=columns[2].group)]
    # Where there is no test, the reason for that is told already.
    notes = [*_notes(one, other), *_reasons(why), *without_interval(pair, tested)]
    if tested:
        notes.append(of_what(one, [other]))
    return Comparison(columns, tuple(rows), tuple(notes))


def _said(variant: Repeated, quantity: Quantity) -> str:
    return said(variant.interval(quantity))


def _reasons(why: Mapping[str, str]) -> list[str]:
    """Why there are no tests, once where it is the same for all."""
    reasons = set(why.values())
    return [f"No test: {reasons.pop()}."] if len(reasons) == 1 and len(why) > 1 else list(why)


def _notes(one: Repeated, other: Repeated) -> list[str]:
    changed = config_differences(one.runs[0], other.runs[0])
    told = [f"Config: {line}" for line in changed] or ["Config: no key that matters differs."]
    runs = " and ".join(f"{len(each.runs)}" for each in (one, other))
    verdicts = [
        f"{each.label}: {run.summary['verdict']['name']}: {run.summary['verdict']['reason']}."
        for each in (one, other)
        for run in each.runs[:1]
        if run.summary["verdict"]["name"] != "stable"
    ]
    labelled = [one, other] if one.label != other.label else [one]
    drawn = one.drawn or other.drawn
    means = means_of_runs(compared([one, other])) if drawn else []
    return [*told, f"Runs: {runs}.", *means, *verdicts, *warnings(labelled)]


def values(one: Repeated, other: Repeated) -> dict[str, Any]:
    """The comparison for programs."""
    named = replace(other, label=f"{other.label} (2)") if other.label == one.label else other
    told = as_json([one, named])
    return {"config": config_differences(one.runs[0], other.runs[0]), "variants": told}
