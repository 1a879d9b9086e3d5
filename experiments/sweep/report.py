"""How far a sweep is, and what came of it, for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.sweep.command import Asked, Progress, Standing, Swept
from experiments.sweep.dataset import read_table
from experiments.sweep.definition import Setting
from experiments.sweep.folder import said_of
from experiments.sweep.unit import Row

_EVERY_S = 10.0
"""Where there is no terminal, a line so often."""


class Teller:
    """Shows progress on stderr: one line that changes on a terminal, else one line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._last = 0.0
        self._said = -1

    def __call__(self, progress: Progress) -> None:
        """Take in how far a sweep is."""
        now, ended = time.monotonic(), progress.done == progress.total
        every = 0.2 if self._terminal else _EVERY_S
        if progress.done == self._said or (now - self._last < every and not ended):
            return
        self._last, self._said = now, progress.done
        text = said(progress)
        if self._terminal:
            sys.stderr.write(f"\r\x1b[2K{text}" + ("\n" if ended else ""))
            sys.stderr.flush()
        else:
            print(text, file=sys.stderr)


def said(progress: Progress) -> str:
    """``12 of 40 runs, 1 failed, 3.1 a second, 9 s left``."""
    parts = [f"{progress.done:,} of {progress.total:,} runs"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if progress.left_s is not None:
        parts.append(f"{progress.rate_per_s:.3g} a second")
        if progress.done < progress.total:
            parts.append(f"{_time(progress.left_s)} left")
    return ", ".join(parts)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def summed_up(swept: Swept) -> str:
    """What came of a sweep, in one line."""
    text = f"{swept.points:,} points, {swept.runs:,} runs: {swept.finished:,} finished"
    if swept.failed:
        text += f", {swept.failed:,} failed (column error says why)"
    if swept.lost:
        text += f", {swept.lost:,} lost with their workers (the same command runs them again)"
    if swept.kept:
        text += f"; {swept.kept:,} were there already"
    if swept.unserved:
        text += (
            f". No request was served in {swept.unserved:,} of the finished runs "
            f"(all those of {swept.unserved_points:,} points): see the columns requests.*"
        )
    return f"{text}."


def print_asked(asked: Asked, there: Standing | None = None, *, as_json: bool) -> None:
    """Print what would run, and what its folder holds already."""
    planned = asked.planned
    variants = list(dict.fromkeys(unit.variant for unit in planned.units))
    several = len({*variants, *(row["variant"] for row in planned.failed)}) > 1
    told: dict[str, Any] = {
        "points": len(planned.settings),
        "variants": variants,
        "runs": len(planned.units),
        "cannot_run": [
            _cannot(row, planned.settings[row["point"]], several) for row in planned.failed
        ],
        "keys": asked.definition.keys,
    }
    if as_json:
        held = None if there is None else asdict(there) | {"folder": str(there.folder)}
        print(json.dumps({**told, "there": held, "settings": planned.settings}, indent=1))
        return
    print(
        f"{asked.source}: {told['points']:,} points over {', '.join(asked.definition.keys)}; "
        f"{len(variants)} variant{'s' * (len(variants) != 1)}; {told['runs']:,} runs"
    )
    for line in told["cannot_run"]:
        print(f"- cannot run: {line}")
    if there is not None:
        print(f"- {_held(there, told['runs'] + len(planned.failed))}")


def _cannot(row: Row, setting: Setting, several: bool) -> str:
    """The point that cannot run, its variant where there are several, and why."""
    variant = f" (variant {row['variant']})" if several and row["variant"] else ""
    return f"{said_of(setting)}{variant}: {row['error']}"


def _held(there: Standing, total: int) -> str:
    text = f"{there.folder}: has {there.rows:,} rows"
    if there.stance is None:
        return f"{text} of another sweep"
    if there.stance == "fresh":
        return f"{text}, which --fresh drops with their figures; all {total:,} runs are left"
    text += f" of {total:,}: {there.finished:,} finished, {there.failed:,} failed"
    if there.stance == "larger":
        text += "; --extend keeps them"
    text += f"; {there.left:,} runs are left"
    return f"{text} (and the failed ones with --retry)" if there.kept > there.finished else text


def print_swept(swept: Swept, formats: Sequence[str], *, as_json: bool) -> None:
    """Print what came of a sweep, and draw its figures."""
    errors = errors_of(swept.folder)
    if as_json:
        counts = {key: value for key, value in asdict(swept).items() if key != "folder"}
        print(json.dumps({"folder": str(swept.folder), **counts, "errors": errors}, indent=1))
    else:
        print(summed_up(swept))
        for error, count in errors.items():
            print(f"- failed ({count} runs): {error}")
        print(f"results: {swept.folder}")
    if formats and swept.finished:
        from experiments.outcome import print_plotted
        from experiments.sweep.plots import plot_sweep

        print_plotted(plot_sweep(swept.folder, formats=formats), formats)


def errors_of(folder: Path) -> dict[str, int]:
    """Every error of a sweep, and how many runs have it, the most frequent first."""
    from collections import Counter

    errors = read_table(folder, ["error"]).column("error").to_pylist()
    return dict(Counter(error for error in errors if error).most_common())
