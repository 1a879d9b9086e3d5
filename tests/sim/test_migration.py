"""Requests that move between replicas: what must hold whatever they are ordered to do.

The same integers with and without fast-forward; every token once, in order; no memory left behind;
nobody lost, whoever gives up, fails or is drained, and whenever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import ROUTERS
from sim.changes import Change
from sim.cluster import Cluster
from sim.migration import MigrationSpec, Mode
from sim.migrator import Migrator
from sim.pool import PoolSpec
from sim.records import CANCELLED, FINISHED, OUTCOMES, SimulationResult
from sim.request import Arrival
from sim.transfer import TransferSpec
from tests.cancellations import assert_given_up, giving_up
from tests.cancellations import observed as seen_without_events
from tests.sim.movers import Never, Once, Restless
from tests.sim.test_changes import (
    arrivals_of_all_kinds,
    assert_conserved,
    histories,
    run,
    spec,
    workload,
)

MOVING = ("orca", "vllm-v0", "vllm-v0-swap", "sarathi", "vllm-v1", "vllm-v1-cached")
MODES: tuple[Mode, ...] = ("live", "stop", "recompute")


def cluster(
    name: str,
    migrator: Migrator | None,
    *,
    two_pools: bool = False,
    mode: Mode = "live",
    bytes_per_s: float = 1e9,
    shares_links: bool = False,
    again: bool = False,
    interval_ns: int = 7,
    last_stage_blocks: int = 1,
    replicas: int = 2,
    order: str = "fcfs",
    blocks: int = 9,
    **options: Any,
) -> Cluster:
    """Blocks of 4 tokens of a byte each."""
    made = spec(name, blocks, order)
    pool = PoolSpec("replica", [made] * replicas, ROUTERS["round-robin"]())
    link = TransferSpec(bytes_per_s, 1e-9, again, shares_links)
    moving = None
    if migrator is not None:
        own = None if two_pools else link
        moving = MigrationSpec(migrator, interval_ns, mode, own, last_stage_blocks, 4)
    if not two_pools:
        return Cluster(pool, migration=moving, **options)
    return Cluster(
        replace(pool, name="prefill"), replace(pool, name="decode"), link, migration=moving
    )


def observed(result: SimulationResult) -> dict[str, Any]:
    tables = {"migrations": result.migrations, "changes": result.changes}
    rest = {key: {k: v.tolist() for k, v in table.items()} for key, table in tables.items()}
    assert result.events is not None
    events = [result.events[x].tolist() for x in ("request", "event", "time_ns", "replica")]
    return {**seen_without_events(result), **rest, "events": sorted(zip(*events, strict=True))}


def both_ways(
    arrivals: Sequence[Arrival], made: Cluster, changes: Sequence[tuple[int, Change]] = ()
) -> SimulationResult:
    fast, stepped = (run(arrivals, made, changes, fast_forward=x) for x in (True, False))
    assert observed(fast) == observed(stepped)
    assert_conserved(fast, arrivals)
    return fast


def outcomes(result: SimulationResult) -> list[str]:
    return [OUTCOMES[code] for code in result.migrations["outcome"]]


def instants_of_moves(result: SimulationResult) -> list[int]:
    """Those of `tests.cancellations`, and at which migrations began, stopped and ended."""
    times = {ns for x in result.decisions for ns in (x.start_ns, x.end_ns)}
    moves = [result.migrations[name].tolist() for name in ("start_ns", "stop_ns", "end_ns")]
    times |= {ns for column in moves for ns in column if ns >= 0}
    return sorted({ns + by for ns in times for by in (-1, 0, 1) if ns + by >= 0})


# --- one move, and something else at every instant of it

MOVE = Once(((14, 0), (40, 3)))


def longer_workload() -> list[Arrival]:
    """As `workload`, but who moves has more to say."""
    output = {0: 12, 3: 14}
    return [
        row._replace(output_tokens=output[row.index], max_tokens=output[row.index])
        if row.index in output
        else row
        for row in workload()
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MOVING)
def test_moves_keep_every_token(name: str, mode: Mode) -> None:
    got = both_ways(workload(), cluster(name, Restless(), mode=mode, bytes_per_s=5e8, blocks=30))
    assert (got.requests["state"] == FINISHED).all()
    assert "moved" in outcomes(got)
    assert got.requests["migrations"].sum() == outcomes(got).count("moved")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["vllm-v0-swap", "vllm-v1-cached"])
def test_a_client_gives_up_at_every_instant_of_a_move(name: str, mode: Mode) -> None:
    made = cluster(name, MOVE, mode=mode, bytes_per_s=4e8, blocks=30)
    arrivals = longer_workload()
    base = both_ways(arrivals, made)
    assert outcomes(base).count("moved") == 2
    given = 0
    for arrival, now, rows in giving_up(arrivals, instants_of_moves(base)[::3]):
        if arrival.index not in (0, 3):
            continue
        got = both_ways(rows, made)
        given += int((got.requests["state"] == CANCELLED).sum())
        assert_given_up(got, base, arrival, now)
    assert given > 20


@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["orca", "vllm-v1-cached"])
def test_a_replica_fails_at_many_instants_of_a_move(name: str, mode: Mode, failing: int) -> None:
    check_failures(name, mode, failing, two=(name == "orca"), every=3)


@pytest.mark.slow
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("failing", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MOVING)
def test_a_replica_fails_at_every_instant_of_a_move(
    name: str, mode: Mode, failing: int, two: bool
) -> None:
    check_failures(name, mode, failing, two=two, every=1)


def check_failures(name: str, mode: Mode, failing: int, *, two: bool, every: int) -> None:
    made = cluster(name, MOVE, mode=mode, bytes_per_s=4e8, two_pools=two, blocks=30)
    arrivals = longer_workload()
    base = both_ways(arrivals, made)
    seen: set[str] = set()
    for now in instants_of_moves(base)[::every]:
        changes = [
            (now, Change("fail", failing, two)),
            (now + 40, Change("restore", failing, two)),
        ]
        got = both_ways(arrivals, made, changes)
        assert (got.requests["state"] == FINISHED).all(), now
        seen |= set(outcomes(got))
        for index in base.requests["index"].tolist():
            times, before = (x.token_times_ns(index) for x in (got, base))
            assert times[times < now].tolist() == before[before < now].tolist()
    assert "moved" in seen
    assert mode == "recompute" or {"source_failed", "target_failed"} <= seen


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("drained", [0, 1])
def test_a_replica_is_drained_at_every_instant_of_a_move(drained: int, two: bool) -> None:
    made = cluster("vllm-v1", MOVE, bytes_per_s=4e8, two_pools=two, blocks=30)
    base = both_ways(longer_workload(), made)
    assert "moved" in outcomes(base)
    for now in instants_of_moves(base)[::3]:
        got = both_ways(longer_workload(), made, [(now, Change("drain", drained, two))])
        assert (got.requests["state"] == FINISHED).all()
        assert got.changes["change"].tolist() == [2, 3]  # draining, gone


# --- whatever happens

OPTIONS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(MODES),
        "bytes_per_s": st.sampled_from([1e8, 5e8, 3e9]),
        "shares_links": st.booleans(),
        "interval_ns": st.sampled_from([1, 7, 30]),
        "last_stage_blocks": st.sampled_from([1, 1, 2]),
        "replicas": st.sampled_from([2, 3]),
        "blocks": st.sampled_from([7, 9, 20]),
        "order": st.sampled_from(["fcfs", "priority", "mlfq"]),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MOVING),
    arrivals_of_all_kinds(),
    histories(1),
    OPTIONS,
    st.integers(0, 99),
    st.sampled_from(["reroute", "fail"]),
)
def test_whatever_happens_while_requests_move_in_a_pool(
    name: str,
    arrivals: list[Arrival],
    changes: list[tuple[int, Change]],
    options: dict[str, Any],
    seed: int,
    on_failure: str,
) -> None:
    both_ways(arrivals, cluster(name, Restless(seed), on_failure=on_failure, **options), changes)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MOVING),
    arrivals_of_all_kinds(),
    histories(2),
    OPTIONS,
    st.integers(0, 99),
    st.booleans(),
)
def test_whatever_happens_while_requests_move_in_a_decode_pool(
    name: str,
    arrivals: list[Arrival],
    changes: list[tuple[int, Change]],
    options: dict[str, Any],
    seed: int,
    again: bool,
) -> None:
    made = cluster(name, Restless(seed), two_pools=True, again=again, **options)
    both_ways(arrivals, made, changes)


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("name", MOVING)
def test_a_migrator_that_moves_nobody_changes_nothing(
    name: str, two: bool, fast_forward: bool
) -> None:
    rng = np.random.default_rng(3)
    sizes = zip(*(rng.integers(1, top, 40).tolist() for top in (14, 14)), strict=True)
    arrivals = [Arrival(9 * i, p, o, o, i, cancel_after_ns=None) for i, (p, o) in enumerate(sizes)]
    with_one = run(arrivals, cluster(name, Never(), two_pools=two), [], fast_forward=fast_forward)
    without = run(arrivals, cluster(name, None, two_pools=two), [], fast_forward=fast_forward)
    assert observed(with_one) == observed(without)
    assert with_one.steps is not None
    assert without.steps is not None
    for column, values in with_one.steps.items():
        assert values.tolist() == without.steps[column].tolist()
    assert [vars(r) for r in with_one.replicas] == [vars(r) for r in without.replicas]
