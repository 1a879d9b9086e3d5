"""Where the time of single requests went, as text: a small timeline, and a table of phases."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.advice import ADVICE, Setting
from experiments.attribution import decode_of, largest_gap, seconds, sentence, split_of
from sim.attribution import GROUPS
from sim.metrics import Requests
from sim.records import STATES

LETTERS: Mapping[str, str] = {
    "queued": "q",
    "prefill": "P",
    "decode": "D",
    "stalled": "s",
    "step extra": "x",
    "memory": "m",
    "transfer": "t",
    "lost": "!",
    "other": "?",
}
"""Of each group of phases, what stands for it in a timeline."""
_INSTANTS: Mapping[str, str] = {
    "first_scheduled_ns": "first scheduled",
    "first_token_ns": "first token",
    "last_token_ns": "last token",
    "end_ns": "ended",
}
WIDTH = 60
"""Characters of a timeline."""


def values_of(requests: Requests, row: int, setting: Setting) -> dict[str, Any]:
    """A request and where its time went, as plain values for JSON, times in ns."""
    e2e, ttft = split_of(requests, row, "e2e"), split_of(requests, row, "ttft")
    came = int(requests["first_token_ns"][row]) >= 0
    facts = {
        name: int(requests[name][row])
        for name in ("index", "arrival_ns", "prompt_tokens", "output_tokens", "emitted_tokens")
    }
    instants = {
        name: None if (at := int(requests[name][row])) < 0 else at
        for name in (*_INSTANTS, "largest_itl_ns")
    }
    counts = {
        name: int(requests[name][row])
        for name in ("preemptions", "cached_tokens", "rerouted", "migrations")
    }
    after, gap = decode_of(requests, row), largest_gap(requests, row)
    given = requests.get("request_class")
    said = {} if given is None or given[row] is None else {"request_class": str(given[row])}
    return {
        **facts,
        **said,
        "state": STATES[int(requests["state"][row])],
        **instants,
        **counts,
        "e2e": e2e.values(setting) | {"sentence": sentence(e2e, setting)},
        "ttft": ttft.values(setting) | {"sentence": sentence(ttft, setting)} if came else None,
        "decode": after.values(setting) | {"sentence": sentence(after, setting)} if came else None,
        "decode_ns": dict(after.ns) if came else None,
        "largest_gap": None
        if gap is None
        else gap.values(setting) | {"end_ns": gap.end_ns, "sentence": sentence(gap, setting)},
    }


def render(requests: Requests, row: int, label: str, setting: Setting, what: str = "e2e") -> str:
    """A request as text for a terminal.

    Args:
        requests: The table.
        row: Of the request.
        label: Of the variant.
        setting: Of the variant.
        what: The sentence at the end is of this: ``e2e``, ``ttft``, or ``itl``, the time after its
            first token.
    """
    told = values_of(requests, row, setting)
    kind = f", class {told['request_class']}" if "request_class" in told else ""
    lines = [
        f"request {told['index']} of {label}{kind}: {told['state']}, prompt "
        f"{told['prompt_tokens']:,} tokens, {told['emitted_tokens']:,} of "
        f"{told['output_tokens']:,} output tokens",
        textwrap.indent(textwrap.fill(_instants(told), 96), "  "),
        "",
    ]
    whole = told["e2e"]["phases_ns"]
    first = told["ttft"]["phases_ns"] if told["ttft"] else whole
    after = told["decode_ns"] or {}
    lines += _timeline("to the first token" if told["ttft"] else "to its end", first)
    lines += _timeline("after it", after) if after else []
    parts = {"to 1st token": first, "after it": after} if told["ttft"] else {"to its end": whole}
    if told["largest_gap"]:
        parts["largest gap"] = told["largest_gap"]["phases_ns"]
    lines += ["", *_table(whole, parts), ""]
    return "\n".join([*lines, _said(told, what)])


def _said(told: Mapping[str, Any], what: str) -> str:
    """The sentence on what is asked for."""
    if what != "itl" or told["decode"] is None or told["largest_itl_ns"] is None:
        return str((told["ttft"] if what == "ttft" and told["ttft"] else told["e2e"])["sentence"])
    if told["largest_gap"] is not None:
        return str(told["largest_gap"]["sentence"])
    return (
        f"{told['decode']['sentence']} (Its largest gap between tokens was "
        f"{seconds(told['largest_itl_ns'])}; these results are of an older version, which does not "
        "split single gaps: the split is of all of them.)"
    )


def _instants(told: Mapping[str, Any]) -> str:
    arrival = told["arrival_ns"]
    parts = [f"arrived at {seconds(arrival)}"]
    for name, word in _INSTANTS.items():
        if told[name] is not None:
            parts.append(f"{word} after {seconds(told[name] - arrival)}")
    if told["largest_itl_ns"] is not None:
        before = f" before token {gap['token']:,}" if (gap := told["largest_gap"]) else ""
        parts.append(f"largest gap between tokens {seconds(told['largest_itl_ns'])}{before}")
    counts = ("preemptions", "rerouted", "migrations", "cached_tokens")
    parts += [f"{name.replace('_', ' ')} {told[name]:,}" for name in counts if told[name]]
    return "; ".join(parts)


def _timeline(name: str, ns: Mapping[str, int]) -> list[str]:
    """A bar of letters: each group of phases in proportion, in the order of the table."""
    total = sum(ns.values())
    if total <= 0:
        return []
    by_group = {
        group: max(0, sum(ns.get(phase, 0) for phase in names)) for group, names in GROUPS.items()
    }
    whole, bar, done = sum(by_group.values()), "", 0
    for group, time in by_group.items():
        done += time
        bar += LETTERS[group] * (round(done / whole * WIDTH) - len(bar))
    return [f"  {name:18} {seconds(total):>8} |{bar}|"]


def _table(whole: Mapping[str, int], columns: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A row for each phase: its share of the whole, and its time in each column."""
    total, parts, rows = sum(whole.values()), list(columns.values()), []
    for group, names in GROUPS.items():
        for phase in (name for name in names if any(name in part for part in (whole, *parts))):
            both = whole.get(phase, 0)
            times = [seconds(of[phase]) if phase in of else "" for of in parts]
            share = f"{both / total:.1%}" if total else ""
            rows.append((f"{LETTERS[group]} {phase}: {ADVICE[phase].words}", share, *times))
    rows.append(("together", seconds(total), *(seconds(sum(of.values())) for of in parts)))
    width = max(len(row[0]) for row in rows)
    rows.insert(0, ("phase", "share", *columns))
    return [
        f"  {name:{width}} {share:>7} {''.join(f'{time:>13}' for time in times)}".rstrip()
        for name, share, *times in rows
    ]


def render_summary(blocks: Mapping[str, Any], label: str) -> str:
    """The sentences of a variant: the median and the P99 request, of all and of each class."""
    lines = [f"{label}: where the time went"]
    for name, block in blocks.items():
        if len(blocks) > 1:
            lines.append(f"  {'all requests' if name == 'overall' else f'class {name}'}")
        for whole in block.values():
            for split in whole.values():
                lines.append(f"  {split['sentence']}")
                lines.append(f"    {_phases(split['phases_ns'])}")
    return "\n".join(lines)


def _phases(ns: Mapping[str, int], most: int = 5) -> str:
    """The longest phases on one line."""
    longest: Sequence[str] = sorted(ns, key=lambda name: -ns[name])[:most]
    return ", ".join(f"{name} {seconds(ns[name])}" for name in longest)
