"""Requests that move between replicas, by hand (`sim.migration`). A step: 10 ns, and 1 a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from policies import POLICIES, ROUTERS
from sim.changes import Change
from sim.cluster import Cluster
from sim.content import Content
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.migration import MigrationSpec
from sim.migrator import Migrator, Order, ReplicaLoad
from sim.pool import PoolSpec
from sim.records import EVENTS, OUTCOMES, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec
from tests.sim.movers import Once

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)

ALONE = Arrival(0, 38, 40, 40, 0)
"""Prefilled at 48, decoded every 11 ns: 59, 70, 81, 92, 103, 114, 125, 136, 147, 158, ..."""


def cluster(
    *moves: tuple[int, int],
    blocks: Sequence[int] = (100, 100),
    policy: str = "vllm-v1",
    link: TransferSpec | None = None,
    cached: bool = False,
    **options: Any,
) -> Cluster:
    """Replicas with blocks of 4 tokens of a byte each; a byte takes 1 ns."""
    more = {"prefix_cache": True} if cached else {}
    specs = [
        ReplicaSpec(POLICIES[policy](**more), n, STEP, block_tokens=4, kv_bytes_per_token=1)
        for n in blocks
    ]
    options = {"interval_ns": 50, "last_stage_blocks": 1, "max_stages": 9, **options}
    moving = MigrationSpec(Once(moves), link=link or TransferSpec(1e9), **options)
    return Cluster(PoolSpec("replica", specs, ROUTERS["round-robin"]()), migration=moving)


def run(
    arrivals: Sequence[Arrival],
    made: Cluster,
    fast_forward: bool,
    changes: Sequence[tuple[int, Change]] = (),
) -> SimulationResult:
    return simulate(
        arrivals,
        made,
        cluster_events=changes,
        fast_forward=fast_forward,
        check=True,
        record=Record(decisions=True, events=True, steps=True),
    )


def moves(result: SimulationResult) -> list[tuple[Any, ...]]:
    """(request, start, stop, end, stages, bytes, outcome, resumed) of each migration."""
    names = ("request", "start_ns", "stop_ns", "end_ns", "stages", "bytes", "outcome", "resumed_ns")
    rows = zip(*(result.migrations[name].tolist() for name in names), strict=True)
    return [(*row[:6], OUTCOMES[row[6]], row[7]) for row in rows]


def test_two_stages_and_the_last_one(fast_forward: bool) -> None:
    """Ordered at 100: 42 tokens are stored (38 and those of 59, 70, 81, 92), in 11 blocks.

    10 full blocks: 40 ns, up to 140. Then 46 are stored, 12 blocks, of which 2 are left: the full
    one takes 4 ns, up to 144. One is left: the step under way ends at 147, with 47 tokens stored,
    and the request stops. Its last block takes 4 ns, up to 151; the target decodes from there on.
    """
    result = run([ALONE], cluster((60, 0)), fast_forward)
    assert moves(result) == [(0, 100, 147, 151, 3, 48, "moved", 162)]
    ends = result.token_times_ns(0).tolist()
    assert ends[:10] == [48, 59, 70, 81, 92, 103, 114, 125, 136, 147]
    assert ends[10:] == [162 + 11 * i for i in range(30)]
    assert result.requests["replica"].tolist() == [1]
    assert result.requests["migrations"].tolist() == [1]
    assert result.requests["preemptions"].tolist() == [0]
    free = {x: [d.free_after for d in result.decisions if d.replica == x] for x in (0, 1)}
    assert free[0][:4] == [100 - blocks for blocks in (10, 10, 10, 11)]
    assert free[1][:2] == [100 - 12, 100 - 13]  # 48 tokens in the first step, then 49


def test_events_of_a_move(fast_forward: bool) -> None:
    result = run([ALONE], cluster((60, 0)), fast_forward)
    assert result.events is not None
    columns = [result.events[name].tolist() for name in ("event", "time_ns", "replica")]
    told = [(EVENTS[code], ns, replica) for code, ns, replica in zip(*columns, strict=True)]
    assert told == [
        ("queued", 0, 0),
        ("admitted", 0, 0),
        ("prefilled", 48, 0),
        ("migrating", 100, 0),
        ("stopped", 147, 0),
        ("loaded", 151, 1),
        ("admitted", 151, 1),
        ("ended", 481, 1),
    ]


def test_stop_and_copy_stands_still_for_all_of_it(fast_forward: bool) -> None:
    """It stops at 103, when the step under way ends: 43 tokens, 11 blocks, 44 ns."""
    result = run([ALONE], cluster((60, 0), mode="stop"), fast_forward)
    assert moves(result) == [(0, 100, 103, 147, 1, 44, "moved", 158)]


def test_a_second_prefill_takes_what_it_takes(fast_forward: bool) -> None:
    """It stops at 103 with 6 tokens emitted: 44 are prefilled, 54 ns."""
    result = run([ALONE], cluster((60, 0), mode="recompute"), fast_forward)
    assert moves(result) == [(0, 100, 103, 103, 0, 0, "moved", 157)]
    assert result.requests["recomputed_tokens"].tolist() == [43]


def test_live_stops_for_less_than_a_copy_of_all(fast_forward: bool) -> None:
    runs = [run([ALONE], cluster((60, 0), mode=mode), fast_forward) for mode in ("live", "stop")]
    live, stop = ((x.migrations["end_ns"] - x.migrations["stop_ns"]).item() for x in runs)
    assert (live, stop) == (4, 44)


def test_a_stage_that_ends_with_a_step_sees_its_token(fast_forward: bool) -> None:
    """10 blocks and 7 ns of latency: the first stage ends at 147, as does a step.

    47 tokens are stored then: 11 full blocks, one of them new, 4 + 7 ns up to 158, when a step
    ends too. 48 are stored, 12 blocks, one is left: it stops there and then; 4 + 7 ns more.
    """
    made = cluster((60, 0), link=TransferSpec(1e9, 7e-9))
    result = run([ALONE], made, fast_forward)
    assert moves(result) == [(0, 100, 158, 169, 3, 48, "moved", 180)]


def test_copies_share_nics(fast_forward: bool) -> None:
    """Two requests of the same replica move at once: each has half of its NIC.

    Both decode in steps of 12 ns, from 96 on (a prefill of 86 tokens at 96). At 150 each has 43 + 4
    tokens stored (108, 120, 132, 144), 12 blocks, 11 of them full: 88 bytes, up to 238.
    """
    arrivals = [Arrival(0, 43, 40, 40, 0), Arrival(0, 4, 1, 1, 1), Arrival(0, 43, 40, 40, 2)]
    link = TransferSpec(1e9, shares_links=True)
    made = cluster((120, 0), (120, 2), link=link, last_stage_blocks=3)
    result = run(arrivals, made, fast_forward)
    first, second = moves(result)
    assert first[:2] == (0, 150)
    assert second[:2] == (2, 150)
    # 54 are stored at 238 (to 228), 14 blocks, 3 left. They stop at 240 with 55: 12 bytes each.
    assert first[2:4] == second[2:4] == (240, 264)


def test_what_the_target_has_cached_is_not_copied(fast_forward: bool) -> None:
    """Both prompts are the same 38 tokens: 9 full blocks are found, and one is copied at once.

    At 100 request 0 has 42 stored (as alone): 10 full blocks, 9 of them found, 4 ns up to 104. By
    then a token came at 103: 43 in 11 blocks, of which one is left; it stops at 114.
    """
    said = Content([(0, 38)])
    arrivals = [ALONE._replace(content=said), Arrival(0, 38, 2, 2, 1, content=said)]
    result = run(arrivals, cluster((60, 0), cached=True), fast_forward)
    assert moves(result) == [(0, 100, 114, 118, 2, 8, "moved", 129)]


def test_without_room_at_the_target_a_request_stays_and_never_stops(fast_forward: bool) -> None:
    """The other one holds 8 of 20 blocks: 10 more fit, and an 11th, but no 12th or 13th."""
    arrivals = [Arrival(0, 38, 20, 20, 0), Arrival(0, 29, 40, 40, 1)]
    made = cluster((60, 0), blocks=(100, 20))
    result = run(arrivals, made, fast_forward)
    ((request, start, stop, _, _, _, outcome, resumed),) = moves(result)
    assert (request, start, stop, outcome, resumed) == (0, 100, -1, "no_room", -1)
    assert result.token_times_ns(0).tolist() == [48 + 11 * i for i in range(20)]


def test_too_many_stages(fast_forward: bool) -> None:
    """Of two stages the second has to be the last, and two blocks are left at 140."""
    result = run([ALONE], cluster((60, 0), max_stages=2), fast_forward)
    assert moves(result) == [(0, 100, -1, 140, 1, 40, "too_many_stages", -1)]
    assert result.token_times_ns(0).tolist() == [48 + 11 * i for i in range(40)]


def test_a_request_that_ends_meanwhile_frees_the_target_when_the_stage_ends(
    fast_forward: bool,
) -> None:
    """It ends at 103; its copy goes on up to 140."""
    result = run([ALONE._replace(output_tokens=6)], cluster((60, 0)), fast_forward)
    assert moves(result) == [(0, 100, -1, 140, 1, 40, "ended", -1)]
    assert result.end_ns == 140


def test_the_target_fails_in_the_last_stage_and_the_request_goes_on_where_it_was(
    fast_forward: bool,
) -> None:
    """It stopped at 147; at 149 it is loaded at its source again: tokens from 160 on."""
    result = run([ALONE], cluster((60, 0)), fast_forward, [(149, Change("fail", 1))])
    assert moves(result) == [(0, 100, 147, 149, 3, 48, "target_failed", 160)]
    assert result.token_times_ns(0).tolist()[9:12] == [147, 160, 171]
    assert result.requests["rerouted"].tolist() == [0]
    assert result.requests["replica"].tolist() == [0]


def test_the_source_fails_in_the_last_stage_and_the_request_is_lost(fast_forward: bool) -> None:
    """At 149, with 10 tokens: the target prefills 48 of them again, up to 207."""
    result = run([ALONE], cluster((60, 0)), fast_forward, [(149, Change("fail", 0))])
    assert moves(result) == [(0, 100, 147, 149, 3, 48, "source_failed", 207)]
    assert result.requests["rerouted"].tolist() == [1]
    assert result.requests["recomputed_tokens"].tolist() == [47]


def test_a_client_that_gives_up_in_the_last_stage(fast_forward: bool) -> None:
    """At 149: it is cancelled then; the copy ends at 151, and nothing is left."""
    result = run([ALONE._replace(cancel_after_ns=149)], cluster((60, 0)), fast_forward)
    assert moves(result) == [(0, 100, 147, 151, 3, 48, "ended", -1)]
    assert result.requests["end_ns"].tolist() == [149]
    assert result.requests["emitted_tokens"].tolist() == [10]


class Wrong(Migrator):
    """Orders what cannot be."""

    def __init__(self, target: int, index: int) -> None:
        self.target, self.index = target, index

    def decide(self, replicas: Sequence[ReplicaLoad], now_ns: int) -> list[Order]:
        request = next((r for r in replicas[0].running if r.index == self.index), None)
        return [] if request is None else [Order(request, replicas[0], replicas[self.target])]


@pytest.mark.parametrize(
    ("target", "at_ns", "problem"),
    [(0, 50, "it is there already"), (1, 20, "it is not one of movable")],
)
def test_an_order_that_cannot_be_is_told(target: int, at_ns: int, problem: str) -> None:
    made = cluster()
    assert made.migration is not None
    moving = MigrationSpec(Wrong(target, 0), at_ns, link=TransferSpec(1e9))
    with pytest.raises(ConfigError, match=f"migrator Wrong ordered .*: {problem}"):
        run([ALONE], Cluster(made.entry, migration=moving), True)


@pytest.mark.parametrize("policy", ["static", "sglang"])
def test_policies_whose_requests_cannot_move(policy: str) -> None:
    with pytest.raises(ConfigError, match="migration: not modelled with policy"):
        cluster(policy=policy)
