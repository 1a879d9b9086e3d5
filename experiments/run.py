"""Run the variants of a plan, in parallel processes, and keep what is finished whatever happens."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from experiments import bundle, hashes
from experiments.config import Plan, slug
from experiments.schema import Experiment
from experiments.variant import Progress, fingerprint, run_variant
from sim.errors import ConfigError, PhasewiseError, TraceError

State = Literal["waiting", "running", "finished", "reused", "failed", "stopped"]


@dataclass
class Job:
    """One variant on its way.

    Attributes:
        experiment: What to run.
        position: Its place in the plan.
        folder: Where its results go.
        content: Hash of all that its results depend on.
        state: How far it is.
        now_ns: Simulated time.
        ended: Requests that have ended.
        total: Requests in all, 0 while unknown.
        error: One line if it failed.
        bad_input: It failed for what it was given, not for how it ran.
    """

    experiment: Experiment
    position: int
    folder: Path
    content: str
    state: State = "waiting"
    now_ns: int = 0
    ended: int = 0
    total: int = 0
    error: str = ""
    bad_input: bool = False


class InterruptedRunError(PhasewiseError):
    """The user stopped the run; finished variants are usable."""


class FailedRunError(PhasewiseError):
    """A variant failed; the others are usable."""


OnChange = Callable[[Job], None]


def jobs_of(plan: Plan, out: Path) -> list[Job]:
    """One job for each variant; those whose results are there and still valid are `reused`."""
    code = hashes.of_code()
    jobs = []
    for position, experiment in enumerate(plan.variants):
        content = fingerprint(experiment, plan.folder, code).content
        job = Job(experiment, position, out / slug(experiment.label), content)
        if _valid(job):
            job.state = "reused"
        jobs.append(job)
    return jobs


def _valid(job: Job) -> bool:
    try:
        return bundle.is_finished(job.folder) and bundle.content_hash(job.folder) == job.content
    except bundle.BundleError:
        return False


def run_jobs(
    jobs: Sequence[Job], plan: Plan, processes: int, on_change: OnChange = lambda job: None
) -> None:
    """Run what is waiting, at most `processes` at a time; with 1, in this process.

    A variant that fails does not stop the others: its job says why.

    Raises:
        InterruptedRunError: Ctrl-C; one line that says what is usable.
    """
    waiting = [job for job in jobs if job.state == "waiting"]
    try:
        if min(processes, len(waiting)) <= 1:
            for job in waiting:
                _run_here(job, plan.folder, on_change)
        else:
            _run_apart(waiting, plan.folder, processes, on_change)
    except KeyboardInterrupt:
        raise InterruptedRunError(_left_over(jobs)) from None


def _left_over(jobs: Sequence[Job]) -> str:
    for job in jobs:
        if job.state == "running" and _valid(job):
            job.state = "finished"  # it was written, and could not tell any more
        shutil.rmtree(bundle.partial_folder(job.folder), ignore_errors=True)
        if job.state in ("waiting", "running"):
            job.state = "stopped"
    done = [job for job in jobs if job.state in ("finished", "reused")]
    kept = f"{len(done)} of {len(jobs)} variants are finished and usable"
    where = f" in {done[0].folder.parent}" if done else ""
    return f"interrupted: {kept}{where}; the same command runs the rest"


def _run_here(job: Job, folder: Path, on_change: OnChange) -> None:
    def progress(now_ns: int, ended: int, total: int) -> None:
        job.now_ns, job.ended, job.total = now_ns, ended, total
        on_change(job)

    job.state = "running"
    on_change(job)
    try:
        _write(job, folder, progress)
        job.state, job.ended = "finished", job.total
    except Exception as error:
        job.state, job.error, job.bad_input = "failed", _one_line(error), _is_bad_input(error)
    on_change(job)


def _one_line(error: Exception) -> str:
    """What failed; a bug, ours or of a user's policy, is shown in full as well."""
    if isinstance(error, PhasewiseError):
        return str(error)
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"


def _is_bad_input(error: Exception) -> bool:
    return isinstance(error, ConfigError | TraceError)


def _write(job: Job, folder: Path, progress: Progress) -> None:
    made = run_variant(job.experiment, folder, progress=progress)
    bundle.write(made, job.folder)


# --- in other processes


@dataclass(frozen=True)
class _Told:
    """What a worker says of its variant: how far it is, or how it ended."""

    state: State
    now_ns: int = 0
    ended: int = 0
    total: int = 0
    error: str = ""
    bad_input: bool = False


def _run_apart(waiting: Sequence[Job], folder: Path, processes: int, on_change: OnChange) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.run", "sim.event_loop", "pyarrow.parquet"])
    _start_server()
    rest = iter(waiting)
    running: dict[Connection, tuple[BaseProcess, Job]] = {}
    try:
        _start(context, rest, running, processes, folder, on_change)
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                process, job = running[connection]
                if not _listen(connection, process, job, on_change):
                    del running[connection]
                    _start(context, rest, running, processes, folder, on_change)
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


def _start_server() -> None:
    """Start the process that workers are forked from, without the working folder on its path.

    It runs as ``python -c``, which looks there first: a user's own ``sim`` would be taken for ours.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with _undisturbed():
            forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back while a process is started: one that nobody knows of could not be ended.

    Processes started here inherit that, so that it never reaches a worker before its own handler.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    context: ForkServerContext,
    rest: Iterator[Job],
    running: dict[Connection, tuple[BaseProcess, Job]],
    processes: int,
    folder: Path,
    on_change: OnChange,
) -> None:
    while len(running) < processes and (job := next(rest, None)) is not None:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(job, folder, there), daemon=True)
        with _undisturbed():
            process.start()
            running[here] = process, job
        there.close()
        job.state = "running"
        on_change(job)


def _listen(connection: Connection, process: BaseProcess, job: Job, on_change: OnChange) -> bool:
    """Take in one message; False when the variant has ended, in whatever way."""
    try:
        told: _Told = connection.recv()
    except EOFError:
        process.join()
        told = _Told("failed", error=f"its process ended with code {process.exitcode}")
    job.state, job.error, job.bad_input = told.state, told.error, told.bad_input
    if told.total:
        job.now_ns, job.ended, job.total = told.now_ns, told.ended, told.total
    on_change(job)
    if told.state == "running":
        return True
    connection.close()
    process.join()
    return False


def _work(job: Job, folder: Path, connection: Connection) -> None:
    """Body of a worker process. Ctrl-C reaches the whole group: the parent decides what ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    latest = _Told("running")

    def progress(now_ns: int, ended: int, total: int) -> None:
        nonlocal latest
        latest = _Told("running", now_ns, ended, total)
        connection.send(latest)

    try:
        _write(job, folder, progress)
        connection.send(_Told("finished", latest.now_ns, latest.total, latest.total))
    except BrokenPipeError:
        return  # the parent has gone; there is nobody to tell
    except Exception as error:
        told = _Told("failed", error=_one_line(error), bad_input=_is_bad_input(error))
        connection.send(told)
