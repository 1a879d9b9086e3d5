"""What ``phasewise papers`` does, for Python too."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import figures
from experiments.capacity.evaluate import Tell
from experiments.looks import STYLES
from experiments.papers import page
from experiments.papers.block import Redone, read, shipped
from experiments.papers.evaluate import evaluate
from experiments.papers.figure import drawings
from experiments.papers.page import Told

_EVERY_S = 20.0
"""While no figure ends, how far it is is told so often."""


@dataclass(frozen=True)
class Built:
    """What a build left.

    Attributes:
        told: One per figure.
        files: Page, Markdown, JSON, points and images.
        notes: What was left out.
        undrawn: Of these, why no image could be written; empty if some was.
        wall_s: Seconds that it took.
    """

    told: tuple[Told, ...]
    files: tuple[Path, ...]
    notes: tuple[str, ...]
    undrawn: str
    wall_s: float


def build(
    names: Sequence[str | Path],
    out: Path,
    *,
    processes: int = 1,
    formats: Sequence[str] = ("svg",),
    tell: Tell = lambda text: None,
) -> Built:
    """Redo figures of papers, and write the page on them.

    Args:
        names: Of shipped files, or paths; none for all.
        out: Folder of the page; runs are kept below it and reused.
        processes: Runs at a time.
        formats: Of the images: svg, pdf, png.
        tell: Given one line now and then.

    Raises:
        PhasewiseError: One line: a bad file, or a run that failed.
    """
    started = time.perf_counter()
    chosen: list[Redone] = [read(name) for name in (names or shipped())]
    out.mkdir(parents=True, exist_ok=True)  # or a file in its place is refused
    if min(processes, len(chosen)) > 1:
        told = _apart(chosen, out, processes, tell)
    else:
        told = _in_turn(chosen, out, processes, tell)
    files, plotted = _write(told, out, formats)
    return Built(tuple(told), files, plotted.notes, plotted.undrawn, time.perf_counter() - started)


def _in_turn(chosen: Sequence[Redone], out: Path, processes: int, tell: Tell) -> list[Told]:
    began = time.perf_counter()
    told: list[Told] = []
    for redone in chosen:
        tell(progress(len(told), len(chosen), time.perf_counter() - began))
        told.append(_one(redone, out, processes, tell))
    tell(progress(len(told), len(chosen), time.perf_counter() - began))
    return told


def progress(done: int, total: int, elapsed_s: float) -> str:
    """``3 of 16 figures after 40 s, 4.5 a minute, 173 s left`` (figures take unequal times)."""
    text = f"{done} of {total} figures"
    if done:
        left_s = (total - done) * elapsed_s / done
        text += f" after {elapsed_s:.0f} s, {60 * done / max(elapsed_s, 1e-9):.2g} a minute"
        text += f", about {left_s:.0f} s left" if done < total else ""
    elif elapsed_s >= 1:
        text += f" after {elapsed_s:.0f} s"
    return text


def _one(redone: Redone, out: Path, processes: int, tell: Tell) -> Told:
    began = time.perf_counter()
    told = page.tell(evaluate(redone, out / "runs" / redone.name, processes, tell))
    tell(f"{redone.name}: {page.counts([told])} {time.perf_counter() - began:.0f} s")
    return told


def _apart(chosen: Sequence[Redone], out: Path, processes: int, tell: Tell) -> list[Told]:
    """Whole figures in processes of their own: a process for each short run would take longer."""
    began, ended = time.perf_counter(), 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=end_with_parent) as pool:
        futures = [pool.submit(_quietly, redone, out) for redone in chosen]
        pending = set(futures)
        try:
            while pending:
                tell(progress(ended, len(chosen), time.perf_counter() - began))
                done, pending = wait(pending, _EVERY_S, FIRST_COMPLETED)
                for one in (each.result() for each in done):
                    tell(f"{one.evaluated.redone.name}: {page.counts([one])}")
                ended += len(done)
            tell(progress(ended, len(chosen), time.perf_counter() - began))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


def end_with_parent() -> None:
    """In a worker: end when the command is killed, so that nobody goes on writing to its folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _quietly(redone: Redone, out: Path) -> Told:
    return _one(redone, out, 1, lambda text: None)


def _write(
    told: Sequence[Told], out: Path, formats: Sequence[str]
) -> tuple[tuple[Path, ...], figures.Plotted]:
    written = [page.write_page(told, out / "papers.html")]
    text = out / "papers.md"
    text.write_text(page.markdown(told), encoding="utf-8")
    values = out / "papers.json"
    values.write_text(json.dumps(as_json(told), indent=1) + "\n", encoding="utf-8")
    drawn = [each for one in told for each in drawings(one.evaluated)]
    plotted = figures.write({}, out, STYLES["paper"], "linear", formats, drawn)
    return (*written, text, values, *plotted.files), plotted


def as_json(told: Sequence[Told]) -> dict[str, Any]:
    """Every number and claim with its outcome, for programs."""
    return {
        one.evaluated.redone.name: {
            "paper": one.paper.of,
            "figure": one.paper.figure,
            "claims": [
                {
                    "says": each.claim.says,
                    "where": each.claim.where,
                    "outcome": each.outcome,
                    "ours": each.ours,
                    "reason": each.reason,
                }
                for each in one.claims
            ],
            "numbers": [
                {
                    "says": each.number.says,
                    "where": each.number.where,
                    "paper": each.number.paper,
                    "unit": each.number.unit,
                    "ours": each.ours,
                }
                for each in one.numbers
            ],
            "requests": one.evaluated.requests,
            "simulate_s": one.evaluated.simulate_s,
        }
        for one in told
    }
