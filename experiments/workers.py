"""Variants in processes of their own, several at a time."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from experiments import bundle
from experiments.run import Job, OnChange, State, is_bad_input, one_line, run_job


@dataclass(frozen=True)
class _Told:
    """What a worker says of its variant: how far it is, or how it ended."""

    state: State
    now_ns: int = 0
    ended: int = 0
    total: int = 0
    error: str = ""
    bad_input: bool = False


def run_apart(waiting: Sequence[Job], folder: Path, processes: int, on_change: OnChange) -> None:
    """Run jobs in processes of their own, at most `processes` at a time.

    Args:
        waiting: What to run; each job is told of what becomes of it.
        folder: Where relative paths of their configs start.
        processes: Most at a time.
        on_change: Called with a job whenever it has got on.

    Raises:
        KeyboardInterrupt: Ctrl-C; all processes have ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.workers", "sim.event_loop", "pyarrow.parquet"])
    start_server()
    rest = iter(waiting)
    running: dict[Connection, tuple[BaseProcess, Job]] = {}
    try:
        with remembered_interrupt() as check:
            _start(context, rest, running, processes, folder, on_change)
            while running:
                for connection in wait(list(running), timeout=1.0):
                    assert isinstance(connection, Connection)
                    process, job = running[connection]
                    if not _listen(connection, process, job, on_change):
                        del running[connection]
                        _start(context, rest, running, processes, folder, on_change)
                check()
    finally:
        for process, _ in running.values():
            process.terminate()
        for process, _ in running.values():
            process.join()


@contextmanager
def remembered_interrupt() -> Iterator[Callable[[], None]]:
    """Ctrl-C counts even where Python drops its exception, as it does inside a finalizer.

    Yields a check that raises KeyboardInterrupt if Ctrl-C was pressed before.
    """
    pressed = False

    def press(_: int, __: object) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    usual = signal.default_int_handler
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not usual:
        yield check  # only the main thread gets signals; who handles or ignores them goes on so
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, usual)


def start_server() -> None:
    """Start the process that workers are forked from, without the working folder on its path.

    It runs as ``python -c``, which looks there first: a user's own ``sim`` would be taken for ours.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        with undisturbed():
            forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


@contextmanager
def undisturbed() -> Iterator[None]:
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
        with undisturbed():
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
        shutil.rmtree(bundle.partial_folder(job.folder), ignore_errors=True)
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
        run_job(job, folder, progress)
        connection.send(replace(latest, state="finished"))
    except BrokenPipeError:
        return  # the parent has gone; there is nobody to tell
    except Exception as error:
        told = _Told("failed", error=one_line(error), bad_input=is_bad_input(error))
        connection.send(told)
