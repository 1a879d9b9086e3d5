"""The table of variants, with verdicts and best values, and the definitions behind its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.bundle import Head
from experiments.looks import DASHES, Look, looks
from experiments.report import unique_labels, verdict_mark
from experiments.tables import Column, compare
from experiments.verdict import DEFINITION
from sim.metric_definitions import METRICS

_LEAST_CONTRAST = 3.2
"""Of a line against the dark scheme's background (WCAG 2.2 asks 3 of graphics)."""
_DARK = "#12161c"


def variants(heads: Sequence[Head]) -> list[dict[str, Any]]:
    """Name, verdict and look of each variant."""
    chosen = looks([head.policy for head in heads])
    return [
        {
            "label": label,
            "mark": verdict_mark(head),
            "policy": head.policy,
            **_drawn(look),
        }
        for head, label, look in zip(heads, unique_labels(heads), chosen, strict=True)
    ]


def _drawn(look: Look) -> dict[str, Any]:
    return {
        "color": look.color,
        "dark": on_dark(look.color),
        "dash": list(DASHES[look.dash]),
        "symbol": look.symbol,
        "pattern": look.pattern,
    }


def on_dark(color: str) -> str:
    """The colour, mixed with white until it stands out from the dark background."""
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    for tenths in range(11):
        mixed = [round(part + tenths / 10 * (255 - part)) for part in parts]
        made = "#" + "".join(f"{part:02x}" for part in mixed)
        if contrast(made, _DARK) >= _LEAST_CONTRAST:
            break
    return made


def contrast(one: str, other: str) -> float:
    """Contrast of two colours as WCAG 2.2 defines it, 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def table(heads: Sequence[Head]) -> dict[str, Any]:
    """The comparison as text, with what each column means."""
    found = compare(heads)
    best = found.best()
    return {
        "columns": [
            {
                "group": column.group,
                "part": column.part,
                "about": _about(column),
                "words": column.words,
                "better": column.better,
            }
            for column in found.columns
        ],
        "rows": found.shown(),
        "best": [sorted(rows) for rows in best],
        "notes": [note.replace("(*, or bold)", "with a star") for note in found.notes],
        "verdicts": [str(head.summary["verdict"]["reason"]) for head in heads],
    }


def _about(column: Column) -> str:
    if column.key == "verdict":
        return DEFINITION
    for metric in METRICS.values():
        if column.key.startswith(metric.name_in_files):
            return metric.definition
    return _COLUMNS.get(column.key, "")


_COLUMNS: Mapping[str, str] = {
    "variant": "Name of the variant in the config.",
    "gpus": "GPUs of all replicas, most at one time.",
    "finished_requests": "Requests that emitted all their tokens.",
    "rejected_requests": "Requests that were turned away, on arrival or as they fit nowhere.",
    "unfinished_requests": "Requests that were still there when the run ended.",
    "cancelled_requests": "Requests that their client gave up.",
    "failed_requests": "Requests that were lost with a replica.",
}


def definitions() -> list[dict[str, str]]:
    """Every metric in the words of the dictionary."""
    told = [
        {"key": metric.key, "title": metric.heading, "text": metric.definition}
        for metric in METRICS.values()
    ]
    return [*told, {"key": "verdict", "title": "Verdict", "text": DEFINITION}]
