"""Replicas that change role, by hand (rules 54, 61, 82)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.changes import Change
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.request import Arrival
from tests.sim.changing import run, tokens
from tests.sim.test_timelines_changes import colocated, made, states, two_pools

TO_DECODE = Change("role", 1)
TO_PREFILL = Change("role", 0, True)


def test_an_idle_prefill_replica_is_a_decode_replica_at_once(fast_forward: bool) -> None:
    changes = [(0, Change("fail", 0, True)), (20, TO_DECODE)]
    got = run([Arrival(0, 5, 3, 3)], two_pools(2, 1), changes, fast_forward=fast_forward)
    # Prefill to 15 on replica 0; no decode replica is up. At 20 one is: (2d) hands over, 8 ns for
    # its KV, two decodes of 11.
    assert tokens(got) == [[15, 39, 50]]
    assert made(got)[1:] == [
        (20, 1, "draining", 0),
        (20, 1, "gone", 0),
        (20, 3, "changed_role", 0),
    ]
    assert got.requests["decode_replica"].tolist() == [3]
    assert [x.name for x in got.replicas] == ["prefill-0", "prefill-1", "decode-0", "decode-1"]
    assert (got.replicas[1].left_ns, got.replicas[3].joined_ns) == (20, 20)


def test_a_prefill_replica_leaves_when_what_it_held_is_gone(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 3, 3, 0), Arrival(0, 7, 3, 3, 1), Arrival(5, 4, 2, 2, 2)]
    got = run(arrivals, two_pools(2, 1), [(1, TO_DECODE)], fast_forward=fast_forward)
    # Replica 1 prefills request 1 to 17, and holds its two blocks until the transfer ends at 25, in
    # (2); in (2c) of 25 it is gone, and stands in the decode pool. Request 2 went to replica 0,
    # 15 -> 29, and in (2d) to the new replica, its turn: one block, 33, and a decode to 44.
    assert tokens(got)[2] == [29, 44]
    assert made(got) == [
        (1, 1, "draining", 0),
        (25, 1, "gone", 0),
        (25, 3, "changed_role", 0),
    ]
    assert got.requests["decode_replica"].tolist() == [2, 2, 3]


def test_it_takes_part_from_the_hand_overs_of_that_instant(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 2, 2, 0), Arrival(6, 5, 2, 2, 1)]
    got = run(arrivals, two_pools(2, 1), [(21, TO_DECODE)], fast_forward=fast_forward)
    # Request 1: 6 -> 21 on replica 1, which drains from (2c) of 21 on and holds blocks: it is gone
    # at 29. In (2d) of 21 there is one decode replica, which takes both.
    assert got.requests["decode_replica"].tolist() == [2, 2]
    assert made(got)[-1] == (29, 3, "changed_role", 0)
    got = run([Arrival(0, 5, 2, 2)], two_pools(2, 1), [(15, TO_DECODE)], fast_forward=fast_forward)
    # Idle at 15, it is there for the hand-over of 15: the turn of the first is first.
    assert got.requests["decode_replica"].tolist() == [2]
    changes = [(15, Change("drain", 0, True)), (15, TO_DECODE)]
    got = run([Arrival(0, 5, 2, 2)], two_pools(2, 1), changes, fast_forward=fast_forward)
    assert got.requests["decode_replica"].tolist() == [3]


def test_a_decode_replica_prefills_from_the_arrivals_of_that_instant(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 3, 3, 0), Arrival(40, 6, 2, 2, 1)]
    changes = [(16, TO_PREFILL), (30, Change("fail", 0))]
    got = run(arrivals, two_pools(1, 2), changes, fast_forward=fast_forward)
    # Request 0: 15, 23, decodes to 34 and 45 on decode replica 0, which drains from 16 on and is
    # gone at 45. Request 1 finds no prefill replica at 40 and waits for it: 45 -> 61, 69, 80.
    assert tokens(got) == [[15, 34, 45], [61, 80]]
    assert made(got)[-2:] == [(45, 1, "gone", 0), (45, 3, "changed_role", 0)]
    assert got.requests["replica"].tolist() == [0, 3]


def test_it_is_made_as_the_first_replica_of_its_new_pool(fast_forward: bool) -> None:
    cluster = two_pools(1, 2, blocks=9)
    got = run([Arrival(0, 5, 2, 2)], cluster, [(0, TO_PREFILL)], fast_forward=fast_forward)
    assert [x.total_blocks for x in got.replicas] == [100, 9, 9, 100]
    kept = replace(TO_PREFILL, keeps_spec=True)
    got = run([Arrival(0, 5, 2, 2)], cluster, [(0, kept)], fast_forward=fast_forward)
    assert [x.total_blocks for x in got.replicas] == [100, 9, 9, 9]


def test_prefill_replicas_stand_before_decode_replicas(fast_forward: bool) -> None:
    changes = [(3, TO_PREFILL), (3, Change("role", 0)), (3, Change("add", 0))]
    got = run([Arrival(9, 5, 2, 2)], two_pools(2, 2), changes, fast_forward=fast_forward)
    # Events of the list first, in its order; then who is gone joins, the prefill pool first.
    assert made(got) == [
        (3, 2, "draining", 0),
        (3, 0, "draining", 0),
        (3, 4, "added", 0),
        (3, 2, "gone", 0),
        (3, 0, "gone", 0),
        (3, 5, "changed_role", 0),
        (3, 6, "changed_role", 0),
    ]
    assert [x.name for x in got.replicas[4:]] == ["prefill-2", "decode-2", "prefill-3"]


def test_one_that_fails_while_it_drains_joins_nothing(fast_forward: bool) -> None:
    changes = [(1, Change("role", 0)), (10, Change("fail", 0))]
    got = run([Arrival(0, 5, 2, 2)], two_pools(2, 1), changes, fast_forward=fast_forward)
    # Lost at 10, it is prefilled on replica 1: 25, 33, 44.
    assert tokens(got) == [[25, 44]]
    assert made(got) == [(1, 0, "draining", 0), (10, 0, "failed", 1), (10, 0, "gone", 0)]
    assert len(got.replicas) == 3


def test_an_idle_one_that_fails_at_the_instant_of_its_drain_joins_nothing(
    fast_forward: bool,
) -> None:
    changes = [(3, TO_PREFILL), (3, Change("fail", 0, True))]
    arrivals = [Arrival(4, 5, 2, 2, 0), Arrival(4, 6, 2, 2, 1)]
    got = run(arrivals, two_pools(1, 2), changes, fast_forward=fast_forward)
    # Nothing was left on it at 3, but it is gone after the events of 3 only, and failed among them.
    assert made(got) == [(3, 1, "draining", 0), (3, 1, "failed", 0), (3, 1, "gone", 0)]
    assert got.requests["replica"].tolist() == [0, 0]
    assert got.requests["decode_replica"].tolist() == [2, 2]


def test_without_a_prefill_replica_requests_stay_at_the_router(fast_forward: bool) -> None:
    arrivals = [Arrival(0, 5, 2, 2, 0), Arrival(30, 5, 2, 2, 1)]
    got = run(arrivals, two_pools(1, 1), [(20, Change("role", 0))], fast_forward=fast_forward)
    assert tokens(got) == [[15, 34], []]
    assert states(got) == ["finished", "unfinished"]


def pool_of_one_gpu_and_two(decode_gpus: int) -> Cluster:
    cluster = two_pools(1, 1)
    assert cluster.decode is not None
    large = replace(cluster.decode.replicas[0], gpus=decode_gpus)
    return replace(cluster, decode=replace(cluster.decode, replicas=[large]))


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (colocated(2), "role of replica 0 of pool replica: there is one pool"),
        (
            pool_of_one_gpu_and_two(2),
            "role of replica 0 of pool prefill: it has 1 GPUs, and those of the other pool 2",
        ),
    ],
)
def test_a_role_that_is_not_there_is_refused(cluster: Cluster, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run([Arrival(0, 5, 2, 2)], cluster, [(0, Change("role", 0))], fast_forward=True)


def test_one_that_drains_cannot_change_role(fast_forward: bool) -> None:
    changes = [(1, Change("drain", 0)), (2, Change("role", 0))]
    with pytest.raises(ConfigError, match="it is draining; what can happen to it then: fail"):
        run([Arrival(0, 5, 2, 2)], two_pools(2, 1), changes, fast_forward=fast_forward)
