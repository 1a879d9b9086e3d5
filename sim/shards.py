"""One run in parts: replicas that do not interact, some of them in each part.

Where it holds. In one pool of replicas that prefill and decode, a request meets only those of its
own replica. If its replica follows from the requests before it and the seed alone
(`Router.is_static`), it is known before anything is simulated; then each replica, with its
requests, does what it does beside the others, to the nanosecond, and a run is the union of runs of
some of its replicas. It is not so where anything looks at, or takes from, several replicas: two
pools, admission, an autoscaler, migrations, fetched prefixes, links that transfers share, events
of the cluster, routers by load or by content, arrivals that ends cause. `refuse` names what is in
the way.

How. Arrivals are routed beforehand, in order, by the router and with the generator of the run. Each
part is the whole cluster, so that places, names and seeds are those of the run, with a router that
knows where its requests go; the replicas of other parts stay idle.

Merging. Outcomes are in order of the trace. Rejected requests are all in the first part, so that
reasons have the codes of the run. Rows of the step log are in the order in which one run makes
them: of the instant, its phase and the place in that, and the arrivals that there have been.
Samples of a part that ended early go on to the end of the longest, as nothing changes any more, and
are thinned as those are.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sim.attribution import GapLog
from sim.clock import Clock, now_ns
from sim.cluster import Cluster, LiveCluster
from sim.errors import ConfigError, called
from sim.event_loop import simulate
from sim.policy import ReplicaView, Router
from sim.records import Lifetime, Record, Recorder, SimulationResult, in_time
from sim.request import Arrival, Ints, Request

NOWHERE = -1
"""Instead of a replica: the request is rejected, or given up as it arrives."""


def refuse(cluster: Cluster, cluster_events: Sequence[object] = ()) -> None:
    """Raise unless the replicas of a cluster are independent of each other.

    Raises:
        ConfigError: One line that names the key by which they interact.
    """
    router, predictor = cluster.entry.router, cluster.predictor
    reasons = {
        "pools.decode: requests move from prefill to decode replicas": cluster.decode,
        "admission: it looks at all replicas": cluster.admission,
        "autoscale: it looks at all replicas": cluster.entry.scaling,
        "migration: requests move between replicas": cluster.migration,
        "prefix_fetch: replicas read each other's caches": cluster.prefix_fetch,
        "topology: replicas share its links": cluster.topology,
        "events, failures, stragglers: what a change does elsewhere is not known": cluster_events,
        f"router: {called(router)} chooses by what replicas are doing": (not router.is_static),
        f"predictor: {called(predictor)} does not say that it guesses request by request": (
            predictor is not None and not getattr(predictor, "is_static", False)
        ),
    }
    for why, there in reasons.items():
        if there:
            raise ConfigError(
                f"shards: {why}, so that replicas cannot be simulated apart; leave shards out"
            )


def places_of(arrivals: Iterable[Arrival], cluster: Cluster, seed: int) -> Ints:
    """Replica of each arrival, in order of arrival, (n,); `NOWHERE` if it joins none."""
    live = LiveCluster(Clock(initial_time=0), cluster, Recorder(Record()), seed=seed)
    return np.fromiter((_place(live, arrival) for arrival in arrivals), np.int64)


def _place(live: LiveCluster, arrival: Arrival) -> int:
    patience_ns = arrival.cancel_after_ns
    if patience_ns is not None and patience_ns <= 0:
        return NOWHERE
    if arrival.prompt_tokens < 1 or arrival.output_tokens < 1:
        return NOWHERE
    life = Lifetime(arrival, 0)
    request = live.request_of(life, at_entry=True)
    if live.refusal(life, request) is not None:
        return NOWHERE
    replica = live.entry.route(request)
    assert replica is not None
    return replica.index


def split(places: Ints, weights: Ints, replicas: int, shards: int) -> list[list[int]]:
    """Replicas of each part: the heaviest goes where there is least so far, ties to the first.

    Args:
        places: Of the requests, (n,).
        weights: How much work each is, (n,), such as its tokens.
        replicas: In all.
        shards: Most parts; no part is without replicas.
    """
    sums = np.zeros(replicas, np.int64)
    np.add.at(sums, places[places >= 0], weights[places >= 0])
    parts: list[list[int]] = [[] for _ in range(min(shards, replicas))]
    loads = [(0, 0)] * len(parts)
    for index in np.argsort(-sums, kind="stable").tolist():
        at = loads.index(min(loads))
        parts[at].append(index)
        loads[at] = (loads[at][0] + int(sums[index]), loads[at][1] + 1)
    return parts


@dataclass(frozen=True)
class Part:
    """One part of a run, as plain as can be: it is sent to another process.

    Attributes:
        arrivals: Makes its requests, in order of arrival, with the indices of the whole run.
        ranks: How many arrivals of the whole run come before each, (n,).
        places: Replica of each, (n,).
        replicas: Those that are simulated here.
        cluster: Of the whole run.
        record: What is kept.
        seed: As for `simulate`, like the following.
    """

    arrivals: Callable[[], Iterable[Arrival]]
    ranks: Ints
    places: Ints
    replicas: Sequence[int]
    cluster: Cluster
    record: Record
    seed: int = 0
    fast_forward: bool = True
    check: bool = False


@dataclass
class Outcome:
    """What came of a part.

    Attributes:
        result: Of a run with its requests alone.
        replicas: Those that it simulated.
        turns: With a log of steps: when each row was made, in which phase and at which place in
            that, and arrivals before, (k, 3).
    """

    result: SimulationResult
    replicas: Sequence[int]
    turns: Ints


def run_part(part: Part, progress: Callable[[int, int], None] | None = None) -> Outcome:
    """Simulate one part, in this process."""
    clock, source = TurnClock(initial_time=0), _Ranked(part.arrivals, part.ranks)
    turns = array("q")
    record = part.record
    if record.steps:
        record = replace(
            record, on_step=lambda: turns.extend((now_ns(clock), clock.turn, source.rank))
        )
    known = _Known(part.places[part.places >= 0])
    entry = replace(part.cluster.entry, router=known)
    result = simulate(
        source,
        replace(part.cluster, entry=entry),
        seed=part.seed,
        fast_forward=part.fast_forward,
        check=part.check,
        record=record,
        progress=progress,
        environment=clock,
    )
    return Outcome(result, part.replicas, np.array(turns).reshape(-1, 3))


class TurnClock(Clock):
    """A clock that remembers the phase of the event at work, and its place in it."""

    turn = 0

    def step(self) -> None:
        """As any clock."""
        self.peek()  # wake-ups that were called off are gone then
        if self._queue:
            self.turn = self._queue[0][1]
        super().step()


class _Ranked:
    """Arrivals of a part; `rank` is that of the last one."""

    def __init__(self, arrivals: Callable[[], Iterable[Arrival]], ranks: Ints) -> None:
        self._arrivals, self._ranks = arrivals, ranks
        self.rank = -1

    def __iter__(self) -> Iterator[Arrival]:
        for rank, arrival in zip(self._ranks.tolist(), self._arrivals(), strict=True):
            self.rank = rank
            yield arrival

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        """Ends cause nothing."""
        return ()


@dataclass
class _Known(Router):
    """Sends the requests, in order, where they are known to go."""

    sees_state = False

    places: Ints
    _rest: Iterator[int] = field(default_factory=lambda: iter(()), init=False, repr=False)

    def start(self, rng: np.random.Generator) -> None:
        self._rest = iter(self.places.tolist())

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The replica itself."""
        index = next(self._rest)
        if index < len(replicas) and replicas[index].index == index:
            return replicas[index]
        return next(view for view in replicas if view.index == index)


# --- merging


def merged(outcomes: Sequence[Outcome]) -> SimulationResult:
    """The result of the whole run, as one process would have made it."""
    results = [each.result for each in outcomes]
    longest = max(results, key=lambda result: result.end_ns)
    owner = {place: each.result for each in outcomes for place in each.replicas}
    logs: list[Ints] = []
    begin: list[int] = []
    for result in results:
        begin.append(len(logs))
        logs += result.logs
    return replace(
        longest,
        requests=_in_order_of_index([result.requests for result in results]),
        reasons=results[0].reasons,
        replicas=[owner[place].replicas[place] for place in range(len(longest.replicas))],
        steps=_steps(outcomes),
        series=_series(outcomes, longest),
        logs=logs,
        spans=_spans(results, begin),
        preemptions=_preemptions(results),
        lives={index: life for result in results for index, life in result.lives.items()},
        gap_log=_gap_log(results),
    )


def _preemptions(results: Sequence[SimulationResult]) -> dict[str, Ints]:
    tables = [result.preemptions for result in results]
    return in_time({name: np.concatenate([table[name] for table in tables]) for name in tables[0]})


def _gap_log(results: Sequence[SimulationResult]) -> GapLog | None:
    parts = [result.gap_log for result in results if result.gap_log is not None]
    return GapLog.joined(parts) if parts else None


def _in_order_of_index(
    tables: Sequence[dict[str, npt.NDArray[np.integer]]],
) -> dict[str, npt.NDArray[np.integer]]:
    joined = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    order = np.argsort(joined["index"], kind="stable")
    return {name: column[order] for name, column in joined.items()}


def _spans(results: Sequence[SimulationResult], begin: Sequence[int]) -> Ints:
    """Stretches of all parts, whose logs stand one after the other."""
    parts = []
    for first, result in zip(begin, results, strict=True):
        spans = result.spans.copy()
        spans[spans[:, 1] >= 0, 1] += first
        parts.append(spans)
    spans = np.concatenate(parts)
    return spans[np.argsort(spans[:, 0], kind="stable")]


def _steps(outcomes: Sequence[Outcome]) -> dict[str, Ints] | None:
    """The log of steps, in the order in which one run makes its rows."""
    logs = [each.result.steps for each in outcomes]
    kept = [log for log in logs if log is not None]
    if len(kept) < len(logs):
        return None
    joined = {name: np.concatenate([log[name] for log in kept]) for name in kept[0]}
    turns = np.concatenate([each.turns for each in outcomes])
    order = np.lexsort((turns[:, 2], turns[:, 1], turns[:, 0]))
    return {name: column[order] for name, column in joined.items()}


def _series(outcomes: Sequence[Outcome], longest: SimulationResult) -> dict[str, Ints]:
    """Samples of all replicas on the grid of the longest part."""
    grid = np.unique(longest.series["time_ns"])
    parts = []
    for each in outcomes:
        series = each.result.series
        for place in each.replicas if len(grid) else ():
            rows = np.flatnonzero(series["replica"] == place)
            # The last sample before each instant: a part that has ended stays as it is.
            at = np.searchsorted(series["time_ns"][rows], grid, side="right") - 1
            parts.append({name: column[rows[at]] for name, column in series.items()})
            parts[-1]["time_ns"] = grid
    if not parts:
        return longest.series
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((joined["replica"], joined["time_ns"]))
    return {name: column[order] for name, column in joined.items()}
