"""Runs of a cluster that changes, for timelines worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

from sim.changes import Change
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.records import Record, SimulationResult
from sim.request import Arrival


def run(
    arrivals: Sequence[Arrival],
    cluster: Cluster,
    changes: Sequence[tuple[int, Change]],
    *,
    fast_forward: bool,
) -> SimulationResult:
    return simulate(
        arrivals,
        cluster,
        cluster_events=changes,
        fast_forward=fast_forward,
        check=True,
        record=Record(decisions=True, events=True, steps=True),
    )


def tokens(result: SimulationResult) -> list[list[int]]:
    return [result.token_times_ns(index).tolist() for index in result.requests["index"].tolist()]
