"""A simulation in parts, each in a process of its own (`sim.shards` says where that can be).

What goes to a process is the cluster as it was built and its requests as columns; what comes back
are columns.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from experiments.changes import events_of
from experiments.cluster import build
from experiments.requests import depends_on_ends
from experiments.schema import Experiment
from experiments.workers import start_server, undisturbed
from experiments.workload import Workload
from sim.cluster import Cluster
from sim.errors import ConfigError, PhasewiseError
from sim.records import Record, SimulationResult
from sim.request import Arrival, Ints, Trace
from sim.shards import Outcome, Part, merged, places_of, refuse, run_part, split
from traces.workload import arrivals

Progress = Callable[[int, int], None]


def simulate_in_shards(
    experiment: Experiment,
    workload: Workload,
    cluster: Cluster,
    shards: int,
    *,
    record: Record,
    cluster_events: Sequence[object] = (),
    progress: Progress | None = None,
) -> SimulationResult:
    """As `sim.event_loop.simulate`, its replicas shared out over processes; the same result.

    Args:
        experiment: Says the seed and how to run.
        workload: The requests.
        cluster: As built.
        shards: Most processes; a process has at least one replica.
        record: What is kept.
        cluster_events: Of the run, of which there may be none.
        progress: Told now and then of (simulated ns, requests ended).

    Raises:
        ConfigError: Replicas interact: one line with the key by which they do.
        PhasewiseError: As of `simulate`.
    """
    _refuse(experiment, cluster, cluster_events)
    parts = _parts(experiment, workload, cluster, shards, record)
    return merged(_run_apart(parts, progress))


def check_shards(experiment: Experiment, folder: Path) -> None:
    """Refuse before anything runs what `simulate_in_shards` would refuse.

    Args:
        experiment: Resolved.
        folder: Where its relative paths start.

    Raises:
        ConfigError: Replicas interact: one line with the key by which they do.
    """
    _refuse(experiment, build(experiment, folder).cluster, events_of(experiment))


def _refuse(experiment: Experiment, cluster: Cluster, cluster_events: Sequence[object]) -> None:
    if depends_on_ends(experiment.workload):
        raise ConfigError(
            "shards: workload: requests arrive when others end (closed loop, sessions), on any "
            "replica, so that replicas cannot be simulated apart; leave shards out"
        )
    refuse(cluster, cluster_events)
    if experiment.record.decisions:
        raise ConfigError(
            "shards: record.decisions: kept in one process only; leave one of them out"
        )


def _parts(
    experiment: Experiment, workload: Workload, cluster: Cluster, shards: int, record: Record
) -> list[Part]:
    places = places_of(workload.source, cluster, experiment.seed)
    trace = workload.trace
    index = np.fromiter((arrival.index for arrival in workload.source), np.int64, len(places))
    tokens = (trace.prompt_tokens + trace.output_tokens)[index]
    owners = np.zeros(len(cluster.entry.replicas) + 1, np.int64)  # the last: of who goes nowhere
    sets = split(places, tokens, len(cluster.entry.replicas), shards)
    for at, replicas in enumerate(sets):
        owners[replicas] = at
    parts = []
    for at, replicas in enumerate(sets):
        ranks = np.flatnonzero(owners[places] == at)
        rows = index[ranks]
        parts.append(
            Part(
                _Rows(_taken(trace, rows), rows),
                ranks,
                places[ranks],
                replicas,
                cluster,
                record,
                experiment.seed,
                experiment.fast_forward,
                experiment.check,
            )
        )
    return parts


def _taken(trace: Trace, rows: Ints) -> Trace:
    """Rows of a trace, whose prompts are made of what they are in the whole of it."""
    taken = trace.take(rows)
    if trace.content is None and trace.block_ids is None:
        return taken
    content = [trace.content_of(row) for row in rows.tolist()]
    return replace(taken, content=content, block_ids=None)


@dataclass(frozen=True)
class _Rows:
    """Requests of a part as columns.

    Attributes:
        trace: Those rows, in order of arrival.
        index: Of each in the whole trace, (n,).
    """

    trace: Trace
    index: Ints

    def __call__(self) -> Iterator[Arrival]:
        made = arrivals(self.trace, self.trace.arrival_ns)
        for index, arrival in zip(self.index.tolist(), made, strict=True):
            yield arrival._replace(index=index)


# --- processes


def _run_apart(parts: Sequence[Part], progress: Progress | None) -> list[Outcome]:
    """Run each part in a process of its own, all at once."""
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    told = [(0, 0)] * len(parts)
    outcomes: dict[int, Outcome] = {}
    try:
        _start(parts, running)
        while running:
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                at, process = running[connection]
                heard = _heard(connection, process)
                if isinstance(heard, Outcome):
                    outcomes[at] = heard
                    del running[connection]
                    process.join()
                elif progress is not None:
                    told[at] = heard
                    progress(min(now for now, _ in told), sum(ended for _, ended in told))
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.join()
    return [outcomes[at] for at in range(len(parts))]


def _start(parts: Sequence[Part], running: dict[Connection, tuple[int, BaseProcess]]) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["experiments.shards"])
    start_server()
    for at, part in enumerate(parts):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(part, there), daemon=True)
        with undisturbed():
            process.start()
            running[here] = at, process
        there.close()


def _heard(connection: Connection, process: BaseProcess) -> Any:
    """How far a part is, or what came of it; what went wrong there is raised here."""
    try:
        heard = connection.recv()
    except EOFError:
        process.join()
        raise PhasewiseError(
            f"shards: a process ended with code {process.exitcode}; try fewer, for less memory"
        ) from None
    if isinstance(heard, Exception):
        raise heard
    return heard


def _work(part: Part, connection: Connection) -> None:
    """Body of a process. Ctrl-C reaches the whole group: the parent decides what ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send(run_part(part, lambda *told: connection.send(told)))
    except BrokenPipeError:
        return  # the parent has gone; there is nobody to tell
    except Exception as error:
        connection.send(error)
