"""Runs in which clients give up: one at each instant at which anything can differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sim.cluster import Cluster, LiveCluster
from sim.event_loop import simulate
from sim.records import CANCELLED, FINISHED, REJECTED, Record, SimulationResult
from sim.request import Arrival


def run(
    arrivals: Sequence[Arrival], cluster: Cluster, *, fast_forward: bool, check: bool = True
) -> SimulationResult:
    """The run; that nothing is left behind is asserted at its end."""
    seen: list[LiveCluster] = []
    result = simulate(
        arrivals,
        cluster,
        fast_forward=fast_forward,
        check=check,
        record=Record(decisions=True, events=True, steps=True),
        cluster_events=[(0, seen.append)],
    )
    assert_nothing_left(seen[0])
    return result


def assert_nothing_left(live: LiveCluster) -> None:
    """All memory is free, all queues and counters are empty."""
    assert not live.live
    assert live.between is None or not live.between.transfers
    assert live.impatient == 0
    for replica in live.replicas:
        state = replica.state
        assert replica.kv.free_blocks == replica.kv.total_blocks
        assert replica.outstanding == replica.outstanding_tokens == replica.held_for_transfer == 0
        left = (replica.lives, replica.in_flight, state.running, state.waiting, state.loaded)
        assert not any((*left, state.prefilling, state.paused, state.away))
        assert state.group.size == 0
        assert not state.swapped
        assert state.host is None or state.host.free_blocks == state.host.total_blocks
        replica.verify()


def observed(result: SimulationResult) -> dict[str, Any]:
    """All that two runs of the same workload must have in common."""
    table = {name: column.tolist() for name, column in result.requests.items()}
    return {
        "requests": table,
        "tokens": [result.token_times_ns(index).tolist() for index in table["index"]],
        "decisions": sorted(result.decisions, key=lambda x: (x.replica, x.start_ns)),
        "transfers": {name: column.tolist() for name, column in result.transfers.items()},
        "end_ns": result.end_ns,
    }


def instants(result: SimulationResult) -> list[int]:
    """Every instant at which anything happened, and those just before and after it, ns."""
    times = {0, *result.requests["arrival_ns"].tolist()}
    times |= {ns for x in result.decisions for ns in (x.start_ns, x.end_ns)}
    times |= {ns for name in ("start_ns", "end_ns") for ns in result.transfers[name].tolist()}
    return sorted({ns + by for ns in times for by in (-1, 0, 1)})


def giving_up(
    arrivals: Sequence[Arrival], times_ns: Sequence[int]
) -> Iterator[tuple[Arrival, int, list[Arrival]]]:
    """(who, when, the workload) of each request giving up at each instant from its arrival on."""
    for at, arrival in enumerate(arrivals):
        for now in times_ns:
            if now < arrival.arrival_ns:
                continue
            rows = list(arrivals)
            rows[at] = arrival._replace(cancel_after_ns=now - arrival.arrival_ns)
            yield arrival, now, rows


def assert_given_up(
    result: SimulationResult, base: SimulationResult, arrival: Arrival, now: int
) -> None:
    """The request ended at that instant with the tokens that it had, unless it had ended.

    Args:
        result: Of the run in which it gave up.
        base: Of the run in which nobody did.
        arrival: The request.
        now: When it gave up.
    """
    table = {name: column.tolist() for name, column in result.requests.items()}
    for at, index in enumerate(table["index"]):
        times, before = (run.token_times_ns(index).tolist() for run in (result, base))
        assert [t for t in times if t < now] == [t for t in before if t < now]
        assert table["emitted_tokens"][at] == len(times)
        state, end = table["state"][at], table["end_ns"][at]
        if index != arrival.index or state != CANCELLED:
            assert state in (FINISHED, REJECTED)
            assert index != arrival.index or end <= now
            continue
        assert end == now
        assert all(t <= now for t in times)
        assert len(times) < arrival.output_tokens
