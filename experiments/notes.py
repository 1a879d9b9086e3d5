"""Notes of several variants: each said once, with the variants that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

MOST_LINES = 12
"""Lines of notes on a terminal; a sweep has dozens, and nobody reads them all there."""
_FEW = 3


def lines_of(notes: Sequence[tuple[str, Sequence[str]]], where: str) -> list[str]:
    """What to print of the notes, those of all variants first.

    Args:
        notes: Label and notes of each variant.
        where: Where the notes that are left out stand, for the last line.

    Returns:
        At most `MOST_LINES` lines.
    """
    owners: dict[str, dict[str, None]] = {}
    for label, of_variant in notes:
        for note in of_variant:
            owners.setdefault(note, {})[label] = None
    common = [note for note, labels in owners.items() if len(labels) == len(notes)]
    own = [
        f"{few([*labels])}: {note}" for note, labels in owners.items() if len(labels) < len(notes)
    ]
    lines = [*common, *own]
    if len(lines) > MOST_LINES:
        left_out = len(lines) - MOST_LINES + 1
        lines = [*lines[: MOST_LINES - 1], f"{left_out} more notes: see {where}"]
    return lines


def with_warnings_first(
    notes: Sequence[tuple[str, Sequence[str]]],
    warnings: Mapping[str, tuple[float, str]],
    details: Mapping[str, Sequence[str]],
    where: str,
) -> list[str]:
    """Warnings, one short line a variant and the worst first; then the notes as of `lines_of`.

    Args:
        notes: Label and notes of each variant.
        warnings: By label how bad it is, and the line; no line where there is nothing to warn of.
        details: By label the notes that say at length what its warning says in short: they come
            first where there is one variant, and are left out where there are several.
        where: Where notes that are left out stand.
    """
    warned = sorted(
        ((how_bad, label, line) for label, (how_bad, line) in warnings.items() if line),
        key=lambda each: -each[0],
    )
    if len(notes) == 1 and warned:
        ((label, own),) = notes
        first = [note for note in own if note in details[label]]
        return lines_of([(label, [*first, *(note for note in own if note not in first)])], where)
    lines = [f"{label}: {line}; see {where}" for _, label, line in warned[:MOST_LINES]]
    if len(warned) > MOST_LINES:
        lines.append(f"{len(warned) - MOST_LINES} more variants with such a warning: see {where}")
    long = {label: details[label] for _, label, _ in warned}
    rest = [
        (label, [note for note in own if note not in long.get(label, ())]) for label, own in notes
    ]
    return [*lines, *lines_of(rest, where)]


def few(labels: Sequence[str]) -> str:
    """The first labels, and how many there are besides; in quotes where commas would mislead."""
    shown = [f'"{label}"' if "," in label and len(labels) > 1 else label for label in labels[:_FEW]]
    more = len(labels) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def thrashing(recomputed_tokens: int, prompt_tokens: int) -> list[str]:
    """One sentence where preemptions made more work than the prompts themselves.

    Args:
        recomputed_tokens: Computed again after preemptions, of all requests.
        prompt_tokens: Of those that finished.
    """
    if recomputed_tokens <= prompt_tokens or not prompt_tokens:
        return []
    return [
        f"thrashing: {recomputed_tokens / prompt_tokens:.1f} times as many tokens were recomputed "
        f"after preemptions as prompt tokens were served ({recomputed_tokens:,} against "
        f"{prompt_tokens:,}): most work was done again; try more KV blocks, fewer sequences at "
        "once, or an order that preempts less."
    ]


def done_again(
    lost_tokens: int, mixed_tokens: int, prompt_tokens: int, causes: Sequence[str]
) -> list[str]:
    """One sentence where KV that was lost otherwise is more work than the prompts themselves.

    Args:
        lost_tokens: Computed and lost, of requests that were never preempted.
        mixed_tokens: Of those that were preempted and lost KV otherwise as well.
        prompt_tokens: Of those that finished.
        causes: Why KV was lost, but for preemptions.
    """
    lost = lost_tokens + mixed_tokens
    if lost <= prompt_tokens or not prompt_tokens:
        return []
    also = f", {mixed_tokens:,} of them of requests that were preempted too" if mixed_tokens else ""
    return [
        f"lost work: KV of {lost / prompt_tokens:.1f} times as many tokens as prompt tokens were "
        f"served ({lost:,} against {prompt_tokens:,}) was lost to {' and '.join(causes)}, and "
        f"computed in vain{also}."
    ]


def identical(summaries: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """One sentence for variants whose results are the same to the last digit.

    Args:
        summaries: Label and summary of each variant.
    """
    alike: dict[str, list[str]] = {}
    for label, summary in summaries:
        alike.setdefault(json.dumps(summary, sort_keys=True, default=str), []).append(label)
    return [
        f"{few(labels)}: identical results; what these variants differ in has no effect here."
        for labels in alike.values()
        if len(labels) > 1
    ]
