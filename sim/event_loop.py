"""`simulate`: starts the clock, feeds arrivals to a cluster and returns what happened."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from simpy import Environment
from simpy.core import StopSimulation
from simpy.events import Event

from sim.clock import Clock, Instant, Phase, now_ns
from sim.cluster import Cluster, LiveCluster
from sim.collector import no_cycle_collection
from sim.errors import StuckError, called
from sim.gap_splits import GapSplits
from sim.gaps import largest_gaps
from sim.records import (
    CHANGE_COLUMNS,
    EVENT_COLUMNS,
    FETCH_COLUMNS,
    MIGRATION_COLUMNS,
    NARROW_COLUMNS,
    POOL_COLUMNS,
    PREEMPTION_COLUMNS,
    REQUEST_COLUMNS,
    SERIES_COLUMNS,
    STEP_COLUMNS,
    TRANSFER_COLUMNS,
    UNFINISHED,
    Record,
    Recorder,
    SimulationResult,
    columns,
    in_time,
)
from sim.request import NEVER, Arrival, Ints, Trace

_MOST_SPANS = 4
"""Spans of the series' grid after which its step is doubled."""


class ArrivalSource(Protocol):
    """Where requests come from."""

    def __iter__(self) -> Iterator[Arrival]:
        """Arrivals known beforehand, in order of `arrival_ns`, ties in trace order."""
        ...

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """A request has ended, whatever its state; returns the arrivals that this causes.

        An arrival at `now_ns` joins the arrivals of that very instant (rule 52). A source that also
        has a method ``on_failed`` of the same form is told there, and not here, of a request that
        was rejected or has failed.
        """
        ...


def simulate(
    source: ArrivalSource | Trace | Sequence[Arrival],
    cluster: Cluster,
    *,
    seed: int = 0,
    fast_forward: bool = True,
    check: bool = False,
    until_ns: int | None = None,
    record: Record | None = None,
    cluster_events: Sequence[tuple[int, Callable[[LiveCluster], None]]] = (),
    progress: Callable[[int, int], None] | None = None,
    environment: Environment | None = None,
) -> SimulationResult:
    """Run a workload through a cluster until every request has ended.

    Args:
        source: A trace, a list of arrivals in order, or anything with the `ArrivalSource` methods.
        cluster: What the requests run on. It is not changed, and can be used again.
        seed: Seed of the generators ``router``, ``decode_router`` and ``predictor``.
        fast_forward: Advance runs of equal decisions at once; the results are the same integers.
        check: Verify the invariants after every step (slow).
        until_ns: Stop here; what has not ended is ``unfinished``. None runs to the end.
        record: What to keep beside outcomes.
        cluster_events: (instant in ns, what to do to the cluster then), for sets of replicas that
            change; each is called in the phase of such events, in order.
        progress: Called now and then with (simulated ns, requests ended).
        environment: Keeps the time, from 0 on, for a run against another clock than the simulated
            one (a replay on a real card). None: a new one.

    Raises:
        StuckError: Requests remain and nothing will happen again, or a replica only recomputes.
    """
    env = environment or Clock(initial_time=0)
    recorder = Recorder(record or Record())
    on_end = getattr(source, "on_end", None)
    live = LiveCluster(
        env,
        cluster,
        recorder,
        seed=seed,
        fast_forward=fast_forward,
        check=check,
        on_end=on_end,
        on_failed=getattr(source, "on_failed", on_end),
        progress=progress,
    )
    arrivals = iter(source.arrivals() if isinstance(source, Trace) else source)
    live.changes.expect(len(cluster_events))
    for when_ns, change in cluster_events:
        event = Instant(env, when_ns, Phase.CLUSTER_EVENT)
        event.callbacks.append(partial(_change, live, change))
    env.process(_feed(env, live, arrivals))
    if recorder.record.series_points:
        env.process(_sample(env, live, recorder))
    stop = None
    if until_ns is not None:
        stop = Instant(env, until_ns, Phase.SAMPLE + len(live.replicas))
    with no_cycle_collection():
        _run(env, live, stop)
    return _result(live, recorder, int(env.now))


def _change(live: LiveCluster, change: Callable[[LiveCluster], None], _: Event) -> None:
    live.stir()
    live.changes.to_come -= 1
    change(live)


def _feed(
    env: Environment,
    live: LiveCluster,
    arrivals: Iterator[Arrival],
) -> Generator[Event, Any, None]:
    """Deliver arrivals, each at its instant, in phase (3)."""
    now = -1
    for arrival in arrivals:
        if arrival.arrival_ns != now:
            now = arrival.arrival_ns
            yield Instant(env, now - now_ns(env), Phase.ARRIVAL)
        live.arrive(arrival)
    live.changes.all_arrived = True


def _sample(env: Environment, live: LiveCluster, recorder: Recorder) -> Generator[Event, Any, None]:
    """Note queue, running and KV of each replica on a fixed grid, at the end of an instant.

    Where the run is much longer than the span given (slow transfers, overload), every second point
    is dropped and the grid goes on at twice the step, so that the points stay few.
    """
    record = recorder.record
    step = max(1, record.series_span_ns // record.series_points)
    while True:
        yield Instant(env, step - now_ns(env) % step, Phase.SAMPLE)
        for replica in live.replicas:
            recorder.series.extend((now_ns(env), replica.place, *replica.gauges()))
        for number, pool in enumerate(live.pools):
            recorder.pools.extend((now_ns(env), number, *live.gauges(pool)))
        if env.peek() == float("inf"):
            return
        if now_ns(env) // step >= _MOST_SPANS * record.series_points:
            step *= 2
            recorder.thin_series(step)


def _run(env: Environment, live: LiveCluster, stop: Instant | None) -> None:
    """Until nothing is left to happen, `stop`, or a changing cluster goes nowhere (rule 84)."""
    try:
        if live.changes.expected and isinstance(env, Clock):
            _run_watched(env, live, stop)
        else:
            env.run(until=stop)
    except StuckError:
        if live.changes.closed:  # whoever is left waits for a replica that is not there
            return
        raise
    if stop is None:
        _raise_if_stuck(live)


def _run_watched(env: Clock, live: LiveCluster, stop: Instant | None) -> None:
    if stop is not None:
        stop.callbacks.append(StopSimulation.callback)
    try:
        for _ in env.instants():
            if live.changes.standstill.reached():
                return
    except StopSimulation:
        return


def _raise_if_stuck(live: LiveCluster) -> None:
    if not live.live or live.changes.closed:
        return
    life = next(iter(live.live.values()))
    replica = live.replicas[life.last_place]
    arrival = life.arrival
    raise StuckError(
        f"{len(live.live)} requests can never run, the first one request {arrival.index} (prompt "
        f"{arrival.prompt_tokens}, max {arrival.max_tokens}) on replica {replica.place} with "
        f"{replica.kv.free_blocks} of {replica.kv.total_blocks} blocks free: its policy "
        f"{called(replica.policy)} lets it wait although nothing else will happen"
    )


def _shared(values: array[int]) -> Ints:
    """The same memory as an array: a log can hold a hundred million ticks."""
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


def _result(live: LiveCluster, recorder: Recorder, end_ns: int) -> SimulationResult:
    for replica in live.replicas if live.live else ():
        replica.settle()
    for life in list(live.live.values()):
        if life.account is not None:
            life.account.close(end_ns)
        recorder.outcome(life, UNFINISHED, "", NEVER, life.delivered)
    table = columns(recorder.requests, REQUEST_COLUMNS)
    order = np.argsort(table["index"], kind="stable")
    requests = {name: column[order] for name, column in table.items()}
    spans = np.frombuffer(recorder.spans, np.int64).reshape(-1, 4) if recorder.spans else None
    spans = np.zeros((0, 4), np.int64) if spans is None else spans
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    logs = [_shared(ends_ns) for ends_ns in recorder.logs]
    index = requests["index"]
    position = np.zeros(int(index[-1]) + 1 if len(index) else 1, np.int64)
    position[index] = np.arange(len(index))
    gap_log, lives = None, {}
    if recorder.attributions is not None:
        requests |= recorder.attributions.columns(table["index"])
        gap_log = recorder.attributions.gap_log()
        splits = GapSplits(gap_log, spans, logs, index, requests["prompt_tokens"])
        requests |= splits.columns()
        followed = recorder.attributions.followed.items()
        lives = {index: account.life(splits) for index, account in followed}
    requests["largest_itl_ns"] = largest_gaps(spans, logs, len(index), position)
    narrow = {
        name: column.astype(NARROW_COLUMNS.get(name, np.int64)) for name, column in requests.items()
    }
    kept, handed_over = recorder.record.steps, recorder.record.on_steps is not None
    recorder.hand_over_steps()
    result = SimulationResult(
        requests=narrow,
        reasons=list(recorder.reasons),
        replicas=live.info(),
        end_ns=end_ns,
        steps=columns(recorder.steps, STEP_COLUMNS) if kept and not handed_over else None,
        events=columns(recorder.events, EVENT_COLUMNS) if recorder.record.events else None,
        series=columns(recorder.series, SERIES_COLUMNS),
        pools=columns(recorder.pools, POOL_COLUMNS),
        transfers=columns(recorder.transfers, TRANSFER_COLUMNS),
        changes=columns(recorder.changes, CHANGE_COLUMNS),
        migrations=columns(recorder.migrations, MIGRATION_COLUMNS),
        fetches=columns(recorder.fetches, FETCH_COLUMNS),
        fetches_without_room=0 if live.fetches is None else live.fetches.without_room,
        hold_timeouts=_hold_timeouts(live),
        links=() if live.network is None else live.network.uses(end_ns),
        decisions=recorder.decisions,
        logs=logs,
        spans=spans,
        preemptions=in_time(columns(recorder.preemptions, PREEMPTION_COLUMNS)),
        lives=lives,
        gap_log=gap_log,
    )
    result.migrations["resumed_ns"] = _resumed(result)
    return result


def _hold_timeouts(live: LiveCluster) -> int:
    holds = None if live.between is None else live.between.holds
    return 0 if holds is None else holds.ended


def _resumed(result: SimulationResult) -> Ints:
    """Of each migration, the first token after the request stopped; `NEVER` if there is none."""
    rows = zip(*(result.migrations[x].tolist() for x in ("request", "stop_ns")), strict=True)
    resumed = [_first_after(result, request, stop) for request, stop in rows]
    return np.array(resumed, np.int64)


def _first_after(result: SimulationResult, request: int, instant_ns: int) -> int:
    if instant_ns == NEVER:
        return NEVER
    times = result.token_times_ns(request)
    later = times[np.searchsorted(times, instant_ns, side="right") :]
    return int(later[0]) if len(later) else NEVER
