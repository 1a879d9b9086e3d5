"""``phasewise report``: reads bundles one after the other and writes the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import bundle, notes
from experiments.bundle import BundleError, Head
from experiments.html_report import (
    attribution_view,
    cdf_view,
    class_view,
    page,
    runs_view,
    summary_view,
    time_view,
    timeline_view,
    worst_view,
)
from experiments.report import unique_labels

MOST_BYTES = 15_000_000
"""Of a page; more would open slowly, and could not be sent by mail."""
MOST_VARIANTS = 60
"""Variants of one page: beyond that neither eyes nor browsers tell curves apart."""

_CURVE_POINTS = 150_000
_SERIES_POINTS = 120_000
_SLICES = 48_000
_CELLS = 500_000
_TOKENS = 200_000


@dataclass(frozen=True)
class _Room:
    """How many points each variant may have, so that a page of all of them stays small.

    Attributes:
        curve: Of each distribution.
        series: Of each curve over time.
        timeline: Of its timeline.
        tokens: Of each of its worst requests.
    """

    curve: int
    series: int
    timeline: timeline_view.Budget
    tokens: int

    @classmethod
    def of(cls, variants: int, classes: int, runs: int) -> _Room:
        """Shares of what a page has room for.

        Args:
            variants: On the page.
            classes: With panels of their own.
            runs: That can be looked at one by one, of all variants together.
        """
        return cls(
            curve=max(60, min(1000, _CURVE_POINTS // variants // (10 + 3 * classes))),
            series=max(100, min(2000, _SERIES_POINTS // runs // 5)),
            timeline=timeline_view.Budget(_SLICES // runs, _CELLS // runs),
            tokens=max(60, min(2000, _TOKENS // runs // 30)),
        )


def report(folders: Sequence[Path], out: Path) -> None:
    """Write the report of finished variants.

    Args:
        folders: Their bundles.
        out: The page.

    Raises:
        BundleError: A bundle is damaged, or the page cannot be written.
    """
    heads = [bundle.read_head(folder) for folder in folders]
    title, values = collect(heads, folders)
    text = page.page(title, values)
    if len(text) > MOST_BYTES:
        raise BundleError(
            f"{out}: the report would have {len(text):,} bytes, more than {MOST_BYTES:,}; "
            "give it fewer variants"
        )
    bundle.write_page(out, text)


def collect(heads: Sequence[Head], folders: Sequence[Path]) -> tuple[str, dict[str, Any]]:
    """Title and values of the page, from one bundle after the other.

    Raises:
        BundleError: A bundle is damaged, or there are too many.
    """
    if len(heads) > MOST_VARIANTS:
        raise BundleError(
            f"{len(heads)} variants: a report compares at most {MOST_VARIANTS}; give it the "
            "folders of some"
        )
    classes = class_view.shown_classes(heads)
    runs = sum(runs_view.count_shown(folder) for folder in folders)
    room = _Room.of(len(heads), len(classes), runs)
    each = [_of_one(folder, classes, room) for folder in folders]
    names = list(dict.fromkeys(str(head.config.get("name", "")) for head in heads))
    title = ", ".join(filter(None, names)) or "results"
    values = {
        "title": title,
        "about": list(
            dict.fromkeys(" ".join(str(h.config.get("about", "")).split()) for h in heads)
        ),
        "answers": _answers(folders),
        "variants": summary_view.variants(heads),
        "table": _table(heads, folders),
        "runs": runs_view.intervals(heads, folders),
        "notes": notes.lines_of([(h.label, h.notes) for h in heads], "summary.json of each"),
        "percentiles": [f"{100 * q:.6g}" for q in cdf_view.PERCENTILES],
        "cdfs": cdf_view.charts([one["cdf"] for one in each]),
        "attribution": attribution_view.bars([one["attribution"] for one in each], classes),
        "classes": class_view.panels(heads, classes, [one["classes"] for one in each]),
        "views": [_views(each, at) for at in range(max(len(one["runs"]) for one in each))],
        "one_run": runs_view.one_run(heads, [one["runs"] for one in each], folders),
        "provenance": page.provenance(
            unique_labels(heads),
            [bundle.dump_config(head.config) for head in heads],
            [head.environment for head in heads],
        ),
        "definitions": summary_view.definitions(),
    }
    return title, values


def _table(heads: Sequence[Head], folders: Sequence[Path]) -> dict[str, Any]:
    """The table of variants, with a word on those of which it is not known that they have runs."""
    made = summary_view.table(heads)
    return made | {"notes": [*filter(None, map(bundle.lone_run, folders)), *made["notes"]]}


def _of_one(folder: Path, classes: Sequence[str], room: _Room) -> dict[str, Any]:
    """What the page shows of one variant; its tables are let go of at the end."""
    read = bundle.read(folder, with_steps=False, attributed=False)
    runs = runs_view.runs_of(read, folder)
    return {
        "cdf": cdf_view.curves([run for run, _ in runs], room.curve),
        "attribution": attribution_view.parts(read, folder, classes),
        "classes": class_view.curves([run for run, _ in runs], classes, room.curve),
        "runs": [_of_one_run(run, at, room) for run, at in runs[: runs_view.MOST_SHOWN]],
    }


def _of_one_run(read: bundle.Bundle, folder: Path, room: _Room) -> dict[str, Any]:
    """What is of one run of a variant alone."""
    rows = worst_view.rows_of(read)
    return {
        "seed": read.config["seed"],
        "series": time_view.series(read, room.series),
        "timeline": timeline_view.timeline(read, folder, worst_view.in_turn(rows), room.timeline),
        "worst": worst_view.worst(read, folder, rows, room.tokens),
    }


def _views(each: Sequence[Mapping[str, Any]], at: int) -> dict[str, Any]:
    """What the page shows of the run at a place; of variants with fewer runs, the first."""
    runs = [one["runs"][at if at < len(one["runs"]) else 0] for one in each]
    return {
        "series": time_view.panels([run["series"] for run in runs]),
        "timelines": [run["timeline"] for run in runs],
        "worst": [run["worst"] for run in runs],
    }


def _answers(folders: Sequence[Path]) -> list[str]:
    """What the runs that these variants are of had to say."""
    runs = dict.fromkeys(folder.parent for folder in folders)
    return [answer for run in runs if (answer := bundle.answer_of(run))]
