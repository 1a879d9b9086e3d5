"""Progress of a run: a bar for each variant on a terminal, else a line when it is over."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from experiments.run import Job

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_WORDS = {
    "finished": "done",
    "reused": "unchanged, kept from an earlier run",
    "failed": "failed",
    "stopped": "stopped",
}


class Bars:
    """Shows how far each variant is: simulated time, requests done, requests per second.

    Args:
        console: Where to; only a terminal gets bars.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._tasks: dict[int, TaskID] = {}
        self._started: dict[int, float] = {}
        self._told: set[int] = set()
        self._progress = _bars(console) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, job: Job) -> None:
        """Take in the new state of a variant."""
        if self._progress is None:
            self._say(job)
            return
        now = time.perf_counter()
        # From its first request on: neither its wait for a process nor reading the trace counts.
        started = self._started.setdefault(job.position, now) if job.total else now
        if job.position not in self._tasks:
            self._tasks[job.position] = self._progress.add_task(
                job.experiment.label, total=None, said=""
            )
        self._progress.update(
            self._tasks[job.position],
            total=job.total or None,
            completed=job.ended,
            said=_said(job, now - started),
        )

    def _say(self, job: Job) -> None:
        if job.state in _WORDS and job.position not in self._told:
            self._told.add(job.position)
            said = f"{job.experiment.label}: {_WORDS[job.state]}"
            self._console.print(said, markup=False, emoji=False, highlight=False)


def _said(job: Job, elapsed_s: float) -> str:
    if job.state in ("failed", "stopped", "reused"):
        return _WORDS[job.state]
    if not job.total:
        return job.state
    rate = job.ended / elapsed_s if elapsed_s > 0 else 0.0
    return f"{job.now_ns / 1e9:,.0f} s, {job.ended:,}/{job.total:,} requests, {rate:,.0f}/s"


def _bars(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        TextColumn("{task.fields[said]}", markup=False, table_column=Column(no_wrap=True)),
        console=console,
        refresh_per_second=5,
    )
