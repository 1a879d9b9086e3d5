"""The life of one request as text: a timeline in the order of time, and what happened when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from experiments.advice import ADVICE
from experiments.attribution import seconds
from experiments.story import LETTERS, WIDTH
from sim.attribution import GROUPS
from sim.life_log import Stretch

_OF_STEPS = {"prefill": "prefill", "decode": "decode"}
_GROUP_OF: Mapping[str, str] = {name: group for group, names in GROUPS.items() for name in names}


def runs_of(life: Sequence[Stretch]) -> list[list[Stretch]]:
    """Stretches of one kind that follow each other, such as the decode steps between two stalls."""
    return [list(run) for _, run in groupby(life, key=lambda stretch: stretch.what)]


def values_of(life: Sequence[Stretch]) -> list[dict[str, Any]]:
    """All stretches as plain values for JSON, times in ns."""
    return [stretch._asdict() for stretch in life]


def render(life: Sequence[Stretch], label: str, request: int) -> str:
    """A bar in the order of time, and a line for each run of stretches of one kind."""
    if not life:
        return f"request {request} of {label}: it took no time"
    arrival_ns, end_ns = life[0].begin_ns, life[-1].end_ns
    lines = [
        f"request {request} of {label}: {seconds(end_ns - arrival_ns)}, in the order of time",
        "",
        f"  |{_bar(life)}|",
        "",
        f"  {'after':>9} {'for':>9}",
    ]
    for run in runs_of(life):
        begin, length = run[0].begin_ns - arrival_ns, run[-1].end_ns - run[0].begin_ns
        lines.append(f"  {seconds(begin):>9} {seconds(length):>9}  {_said(run)}")
    return "\n".join(lines)


def _said(run: Sequence[Stretch]) -> str:
    """What a run of stretches was, and of steps what their time went into."""
    what = run[0].what
    if what not in _OF_STEPS:
        return f"{LETTERS[_GROUP_OF[what]]} {what}: {ADVICE[what].words}"
    sums: dict[str, int] = {}
    for stretch in run:
        for name, ns in stretch.ns.items():
            sums[name] = sums.get(name, 0) + ns
    parts = sorted(sums.items(), key=lambda item: -item[1])
    told = ", ".join(f"{name} {seconds(ns)}" for name, ns in parts if ns)
    steps = f"{len(run):,} {what} step{'s' if len(run) > 1 else ''}"
    return f"{LETTERS[what]} {steps}: {told}"


def _bar(life: Sequence[Stretch]) -> str:
    """In each place the letter of what took most of its time, of equal ones the first."""
    begin, end = life[0].begin_ns, life[-1].end_ns
    length, letters, at = max(1, end - begin), "", 0
    for place in range(WIDTH):
        # Times are counted in WIDTHs of a nanosecond, so that edges of places are whole.
        low, high = begin * WIDTH + place * length, begin * WIDTH + (place + 1) * length
        while life[at].end_ns * WIDTH <= low and at + 1 < len(life):
            at += 1
        times: dict[str, int] = {}
        for stretch in life[at:]:
            if stretch.begin_ns * WIDTH >= high:
                break
            there = min(high, stretch.end_ns * WIDTH) - max(low, stretch.begin_ns * WIDTH)
            group = _OF_STEPS.get(stretch.what) or _GROUP_OF[stretch.what]
            times[group] = times.get(group, 0) + there
        letters += LETTERS[max(times, key=lambda group: times[group])]
    return letters
