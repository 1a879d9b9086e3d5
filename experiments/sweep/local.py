"""Runs in processes of this machine, each of which makes one after the other."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

from experiments.sweep.unit import LOST, Row, Unit, failed_row, run_unit
from experiments.workers import remembered_interrupt, start_server, undisturbed

_PRELOAD = ["experiments.sweep.unit", "sim.event_loop"]


@dataclass
class _Worker:
    """A process, its end of the pipe and what it works on."""

    process: BaseProcess
    connection: Connection
    unit: Unit


@dataclass(frozen=True)
class Processes:
    """See `experiments.sweep.executors.Executor`.

    A process that dies takes one run with it, whose row says so; another takes its place.

    Attributes:
        processes: At most so many.
    """

    processes: int

    def run(self, units: Sequence[Unit]) -> Generator[Row | None, None, None]:
        """See `Executor`."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)
        start_server()
        rest = iter(units)
        workers: list[_Worker] = []
        try:
            with remembered_interrupt() as check:
                _fill(context, workers, self.processes, rest)
                while workers:
                    ready = wait([worker.connection for worker in workers], timeout=1.0)
                    if not ready:
                        yield None
                    for worker in [each for each in workers if each.connection in ready]:
                        yield _received(worker)
                        if not _goes_on(worker, rest):
                            workers.remove(worker)
                    _fill(context, workers, self.processes, rest)
                    check()
        finally:
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.process.join()


def _fill(
    context: ForkServerContext, workers: list[_Worker], most: int, rest: Iterator[Unit]
) -> None:
    """Start processes while there are runs for them."""
    while len(workers) < most and (unit := next(rest, None)) is not None:
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=True)
        with undisturbed():
            process.start()
        there.close()
        workers.append(_Worker(process, here, unit))
        with suppress(BrokenPipeError):
            here.send(unit)


def _received(worker: _Worker) -> Row:
    try:
        row: Row = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        worker.process.join()
        code = worker.process.exitcode
        return failed_row(worker.unit, LOST, f"its process ended with code {code}")
    return row


def _goes_on(worker: _Worker, rest: Iterator[Unit]) -> bool:
    """Give a process its next run; False if it has died, or nothing is left."""
    if worker.process.exitcode is not None:
        worker.connection.close()
        return False
    unit = next(rest, None)
    if unit is None:
        worker.connection.close()
        worker.process.join()
        return False
    worker.unit = unit
    with suppress(BrokenPipeError):  # it died just now: the next wait tells of this run too
        worker.connection.send(unit)
    return True


def _serve(connection: Connection) -> None:
    """Body of a process. Ctrl-C reaches the whole group: the parent decides what ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            unit = connection.recv()
        except EOFError:
            return
        connection.send(run_unit(unit))
