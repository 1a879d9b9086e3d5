"""Llumnix and evacuation: who is ordered to move, on hand-built views and in small runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from policies import MIGRATORS, POLICIES, ROUTERS
from policies.llumnix import Evacuation, Llumnix
from sim.changes import Change
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.migration import MigrationSpec
from sim.migrator import Migrator, ReplicaLoad
from sim.pool import PoolSpec
from sim.records import CHANGES, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival, Request
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec


def request(index: int, tokens: int, priority: int = 0) -> Request:
    made = Request(index, tokens, 100, priority=priority)
    made.computed_then, made.emitted_then = tokens, 1
    return made


@dataclass(eq=False)
class View:
    """What a migrator asks of a `ReplicaLoad`, with blocks of 4 tokens."""

    index: int
    free_blocks: int
    running: Sequence[Request] = ()
    head_blocks: int = 0
    waiting: int = 0
    waiting_blocks: int = 0
    takes_requests: bool = True
    draining: bool = False
    leaving: int = 0
    movable: Sequence[Request] = field(default=())

    def __post_init__(self) -> None:
        self.movable = self.running

    def blocks_of(self, request: Request) -> int:
        return -(-request.computed_tokens // 4)

    def could_run(self, request: Request) -> bool:
        return request.index != 99


def ordered(migrator: Migrator, *views: View) -> list[tuple[int, int, int]]:
    """(request, source, target) of the orders of one round."""
    orders = migrator.decide(cast(Sequence[ReplicaLoad], views), 0)
    return [(o.request.index, o.source.index, o.target.index) for o in orders]


def freeness(view: View, **options: Any) -> float:
    return Llumnix(**options).freeness(cast(ReplicaLoad, view))


def test_freeness_is_what_is_left_for_each_request() -> None:
    two = [request(0, 8), request(1, 8)]
    assert freeness(View(0, 10, two)) == 5
    assert freeness(View(0, 10)) == float("inf")
    assert freeness(View(0, 10, two, draining=True)) == -float("inf")


def test_the_first_that_waits_is_virtual_usage_and_one_of_the_batch() -> None:
    view = View(0, 10, [request(0, 8), request(1, 8)], head_blocks=16, waiting=3, waiting_blocks=20)
    assert freeness(view) == (10 - 16) / 3
    assert freeness(view, defragment=False) == (10 - 20) / 5


def test_high_priority_leaves_headroom() -> None:
    urgent = View(0, 10, [request(0, 8, priority=-1), request(1, 8)])
    assert freeness(urgent, headroom_blocks=6) == 2
    assert freeness(View(0, 10, [request(1, 8)]), headroom_blocks=6) == 10


def test_the_least_free_is_paired_with_the_most_free_and_its_shortest_moves() -> None:
    full = View(0, 1, [request(0, 40), request(1, 12), request(2, 20)])
    fuller = View(1, 0, [request(3, 40), request(4, 12)])
    some, most = View(2, 20, [request(5, 9)]), View(3, 30, [request(6, 9)])
    assert ordered(Llumnix(), full, fuller, some, most) == [(4, 1, 3), (1, 0, 2)]


def test_low_priority_moves_before_short_ones() -> None:
    full = View(0, 1, [request(0, 40, priority=1), request(1, 12), request(2, 20, priority=1)])
    assert ordered(Llumnix(), full, View(1, 30)) == [(2, 0, 1)]


def test_nobody_moves_without_room_or_while_one_is_on_the_move() -> None:
    full = View(0, 1, [request(0, 40)])
    assert ordered(Llumnix(), full, View(1, 9)) == []
    assert ordered(Llumnix(), full, View(1, 10)) == [(0, 0, 1)]
    assert ordered(Llumnix(), View(0, 1, [request(0, 40)], leaving=1), View(1, 10)) == []
    assert ordered(Llumnix(), full, View(1, 10, takes_requests=False)) == []
    assert ordered(Llumnix(), View(0, 1, [request(99, 40)]), View(1, 10)) == []


def test_a_draining_replica_is_a_source_however_free_it_is() -> None:
    leaves = View(0, 50, [request(0, 8)], draining=True, takes_requests=False)
    assert ordered(Llumnix(), leaves, View(1, 10)) == [(0, 0, 1)]
    assert ordered(Evacuation(), leaves, View(1, 10), View(2, 12)) == [(0, 0, 2)]
    assert ordered(Evacuation(), View(0, 0, [request(0, 8)]), View(1, 10)) == []


def test_narrow_only_moves_what_does_not_turn_the_tables() -> None:
    """The target keeps 10 - 3 blocks for 1: 7. It would be less than the source's 1 + 10 for 1."""
    full = View(0, 1, [request(0, 40), request(1, 12)])
    assert ordered(Llumnix(narrow_only=True), full, View(1, 10)) == [(1, 0, 1)]
    one = View(0, 1, [request(0, 12)])  # it would have no one, and infinite freeness
    assert ordered(Llumnix(narrow_only=True), one, View(1, 10)) == []


# --- in runs

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)


def run(
    arrivals: Sequence[Arrival],
    migrator: Migrator | None,
    *,
    blocks: int,
    changes: Sequence[tuple[int, Change]] = (),
) -> SimulationResult:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), blocks, STEP, block_tokens=4, kv_bytes_per_token=1)
    moving = None
    if migrator is not None:
        moving = MigrationSpec(migrator, 50, link=TransferSpec(1e9), last_stage_blocks=1)
    pool = PoolSpec("replica", [spec] * 2, ROUTERS["round-robin"]())
    return simulate(arrivals, Cluster(pool, migration=moving), cluster_events=changes, check=True)


def test_a_drained_replica_is_gone_sooner_when_its_requests_move() -> None:
    arrivals = [Arrival(0, 20, 60, 60, i) for i in range(4)]
    gone = {}
    for name in (None, "evacuation", "llumnix"):
        migrator = None if name is None else MIGRATORS[name]()
        result = run(arrivals, migrator, blocks=100, changes=[(120, Change("drain", 0))])
        what = result.changes["change"].tolist()
        gone[name] = result.changes["time_ns"][what.index(CHANGES.index("gone"))].item()
    assert gone["evacuation"] < gone[None] / 2
    assert gone["llumnix"] < gone[None] / 2


def test_room_is_made_for_a_request_that_fits_nowhere() -> None:
    """Replica 0 has 22 blocks, of which two long requests hold 7 each when one comes that needs 11.

    On replica 1 there is room for one of the two. Moved there it lets the third start; else that
    waits until both have ended or one is preempted.
    """
    arrivals = [
        *(Arrival(0, 20, 60, 60, i) for i in range(3)),
        Arrival(0, 8, 3, 3, 3),
        Arrival(100, 44, 4, 4, 4),
    ]
    waits = {
        moving: (result.requests["first_token_ns"] - result.requests["arrival_ns"])[4]
        for moving in (False, True)
        for result in [run(arrivals, Llumnix() if moving else None, blocks=22)]
    }
    assert waits[True] < waits[False] / 2


@pytest.mark.parametrize("name", list(MIGRATORS))
def test_migrators_decide_the_same_again_and_keep_nothing(name: str) -> None:
    arrivals = [Arrival(17 * i, 5 + i % 9, 4 + i % 13, 17, i) for i in range(60)]
    migrator = MIGRATORS[name]()
    changes = [(260, Change("drain", 1))]
    runs = [run(arrivals, migrator, blocks=60, changes=changes) for _ in range(2)]
    first, second = ({k: v.tolist() for k, v in r.migrations.items()} for r in runs)
    assert first == second
    assert first["request"]
