"""KV that nobody fetches in time: rules H1 to H5 of `sim.holds`, by hand and at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import ORDERS, POLICIES, ROUTERS
from sim.changes import Change
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.pool import PoolSpec
from sim.records import EVENTS, FAILED, FINISHED, STATES, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from sim.transfer import OnHoldTimeout, StagingSpec, TransferSpec
from tests.sim.changing import run, tokens
from tests.sim.test_changes import POOLED, arrivals_of_all_kinds, both_ways, histories, two_pools

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)
"""10 ns and 1 ns for each token, prefilled or decoded."""

# One step prefills both, from 0 to 34. The decode replica has five blocks of 4 tokens: request 0
# takes two for its 8 bytes, which come at 42; its tokens 2 to 10 take 11 ns each, up to 141.
# Request 1 needs four blocks: its pull is at 141, it is loaded at 157, and token 2 is at 168.
TWO = [Arrival(0, 8, 10, 10, 0), Arrival(0, 16, 3, 3, 1)]
FIRST = [34, *range(53, 142, 11)]


def cluster(
    hold_ns: int | None,
    then: OnHoldTimeout = "reroute",
    *,
    decode: int = 1,
    bytes_per_s: float = 1e9,
    **options: Any,
) -> Cluster:
    policy = POLICIES["vllm-v1"](**options)
    large = ReplicaSpec(policy, 100, STEP, block_tokens=4, kv_bytes_per_token=1)
    router = ROUTERS["round-robin"]
    hold_s = None if hold_ns is None else hold_ns * 1e-9
    return Cluster(
        PoolSpec("prefill", [large], router()),
        PoolSpec("decode", [replace(large, num_blocks=5)] * decode, router()),
        TransferSpec(bytes_per_s, hold_timeout_s=hold_s, on_hold_timeout=then),
    )


def states(result: SimulationResult) -> list[str]:
    return [STATES[code] for code in result.requests["state"]]


def ends_of_holds(result: SimulationResult) -> list[tuple[int, int]]:
    """(instant, request) of each."""
    assert result.events is not None
    mine = result.events["event"] == EVENTS.index("hold_ended")
    rows = zip(result.events["time_ns"][mine], result.events["request"][mine], strict=True)
    return [(int(when), int(index)) for when, index in rows]


@pytest.mark.parametrize("hold_ns", [None, 108, 10**9])
def test_a_pull_in_time_makes_no_difference(hold_ns: int | None, fast_forward: bool) -> None:
    got = run(TWO, cluster(hold_ns), [], fast_forward=fast_forward)
    assert tokens(got) == [FIRST, [34, 168, 179]]
    assert got.hold_timeouts == 0


def test_at_that_very_instant_it_is_too_late(fast_forward: bool) -> None:
    # 34 + 107 = 141: request 1 goes back as a prompt of 17: 27 -> 168, its token 2. Five blocks are
    # free for its pull: 20 bytes -> 188, and token 3 at 199.
    got = run(TWO, cluster(107), [], fast_forward=fast_forward)
    assert tokens(got) == [FIRST, [34, 168, 199]]
    assert ends_of_holds(got) == [(141, 1)]
    assert got.hold_timeouts == 1
    assert got.requests["rerouted"].tolist() == [0, 1]
    assert got.requests["recomputed_tokens"].tolist() == [0, 16]


def test_it_is_prefilled_while_the_decode_side_is_full(fast_forward: bool) -> None:
    # At 84 it goes back: 27 -> 111. That is held until 161, and fetched at 141: 161, then 172.
    got = run(TWO, cluster(50), [], fast_forward=fast_forward)
    assert tokens(got) == [FIRST, [34, 111, 172]]
    assert ends_of_holds(got) == [(84, 1)]


def test_what_it_had_computed_may_be_found_again(fast_forward: bool) -> None:
    # Four full blocks of its 17 tokens are still there: one token, 11 -> 95.
    got = run(TWO, cluster(50, prefix_cache=True), [], fast_forward=fast_forward)
    assert tokens(got)[1] == [34, 95, 172]
    assert got.requests["recomputed_tokens"].tolist() == [0, 0]


def test_it_may_fail(fast_forward: bool) -> None:
    got = run(TWO, cluster(50, "fail"), [], fast_forward=fast_forward)
    assert states(got) == ["finished", "failed"]
    assert tokens(got) == [FIRST, [34]]
    assert got.requests["end_ns"].tolist() == [141, 84]
    assert got.reasons[got.requests["reason"][1]] == "hold_timeout"
    assert got.hold_timeouts == 1


def test_a_client_that_gives_up_then_has_given_up(fast_forward: bool) -> None:
    impatient = [TWO[0], TWO[1]._replace(cancel_after_ns=84)]
    got = run(impatient, cluster(50), [], fast_forward=fast_forward)
    assert states(got) == ["finished", "cancelled"]
    assert got.hold_timeouts == 0


def test_a_source_that_fails_then_has_nothing_to_lose(fast_forward: bool) -> None:
    # Request 1 waits at the router until 90: 27 -> 117.
    changes = [(84, Change("fail", 0)), (90, Change("restore", 0))]
    got = run(TWO, cluster(50), changes, fast_forward=fast_forward)
    assert tokens(got)[1][:2] == [34, 117]
    assert got.hold_timeouts == 1
    assert got.requests["rerouted"].tolist() == [0, 1]
    assert got.changes["lost"].tolist() == [0, 0]


def test_a_source_that_failed_before_holds_nothing(fast_forward: bool) -> None:
    changes = [(60, Change("fail", 0)), (90, Change("restore", 0))]
    got = run(TWO, cluster(50), changes, fast_forward=fast_forward)
    assert got.hold_timeouts == 0
    assert got.requests["rerouted"].tolist() == [0, 1]
    assert got.changes["lost"].tolist() == [1, 0]


def test_a_draining_source_is_gone_when_its_last_hold_is_over(fast_forward: bool) -> None:
    # No decode replica comes up: at 84 all is released, and routed to nobody.
    changes = [(1, Change("fail", 0, decode=True)), (2, Change("drain", 0))]
    got = run(TWO, cluster(50), changes, fast_forward=fast_forward)
    assert states(got) == ["unfinished"] * 2
    assert got.changes["time_ns"].tolist() == [1, 2, 84]
    assert got.end_ns == 84


def test_without_a_decode_replica_all_come_from_the_prefill_pool(fast_forward: bool) -> None:
    # At 40 request 0 loses its target: its hold ends at 84 as that of request 1 does, in order of
    # their prefills. 9 + 17 tokens: 36 -> 120; held until 170, 10 + 18: 38 -> 208, the last token
    # of request 1. Then 50 ns and a longer prompt for each token: 11 tokens, 21 ns -> 279, ...
    changes = [(40, Change("fail", 0, decode=True))]
    got = run(TWO, cluster(50), changes, fast_forward=fast_forward)
    assert tokens(got) == [[34, 120, 208, 279, 351, 424, 498, 573, 649, 726], [34, 120, 208]]
    assert ends_of_holds(got)[:4] == [(84, 0), (84, 1), (170, 0), (170, 1)]
    assert got.hold_timeouts == 9 + 2


def test_a_run_in_which_prefills_only_repeat_themselves_ends(fast_forward: bool) -> None:
    # The decode side would emit token 1, and is down. Both prompts take 34 ns, and are held for 50:
    # from 84 to 118 and so on. The state of 1, in the step to 34, is never back; that of 34 is at
    # 118, with both held.
    dead = (1, Change("fail", 0, decode=True))
    got = run(TWO, again(cluster(50)), [dead], fast_forward=fast_forward)
    assert states(got) == ["unfinished"] * 2
    assert (got.end_ns, got.hold_timeouts) == (118, 2)
    # Request 1 comes at 60 and is prefilled at 86, while request 0 is back since 68: 86 -> 104.
    # From 136 on request 1 again, and from 162 on request 0: all as it was at 86.
    later = [TWO[0], TWO[1]._replace(arrival_ns=60)]
    got = run(later, again(cluster(50)), [dead], fast_forward=fast_forward)
    assert tokens(got) == [[], []]
    assert (got.end_ns, got.hold_timeouts) == (162, 3)


def again(pools: Cluster) -> Cluster:
    assert pools.transfer is not None
    return replace(pools, transfer=replace(pools.transfer, recompute_last_token=True))


def test_without_a_way_to_compare_states_it_ends_as_well(fast_forward: bool) -> None:
    pools = again(cluster(50))
    uneven = replace(pools.entry.replicas[0], order=ORDERS["vtc"]())
    pools = replace(pools, entry=replace(pools.entry, replicas=[uneven]))
    dead = (1, Change("fail", 0, decode=True))
    got = run(TWO[:1], pools, [dead], fast_forward=fast_forward)
    assert states(got) == ["unfinished"]
    assert got.hold_timeouts == 1002


ONE = [Arrival(0, 8, 3, 3, 0)]  # prefilled at 18; 8 bytes of 10 ns each: on its way until 98


def test_a_transfer_under_way_ends_as_planned(fast_forward: bool) -> None:
    got = run(ONE, cluster(50, bytes_per_s=1e8), [], fast_forward=fast_forward)
    assert tokens(got) == [[18, 109, 120]]
    assert got.hold_timeouts == 0


def test_called_off_in_time_it_is_held_on(fast_forward: bool) -> None:
    # Decode replica 0 fails at 60: replica 1 fetches at once, 60 -> 140.
    failed = (60, Change("fail", 0, decode=True))
    got = run(ONE, cluster(50, decode=2, bytes_per_s=1e8), [failed], fast_forward=fast_forward)
    assert tokens(got) == [[18, 151, 162]]
    # The only one fails at 60 and is back at 75; at 68 the hold is over. 9 tokens: 19 -> 87; 12
    # bytes -> 207; token 3 at 218.
    back = (75, Change("restore", 0, decode=True))
    got = run(ONE, cluster(50, bytes_per_s=1e8), [failed, back], fast_forward=fast_forward)
    assert tokens(got) == [[18, 87, 218]]
    assert ends_of_holds(got) == [(68, 0)]


@pytest.mark.parametrize("when", [68, 80])
def test_called_off_too_late_it_is_over(when: int, fast_forward: bool) -> None:
    # 9 tokens: 19 ns; 12 bytes to replica 1: 120 ns; token 3 11 ns later.
    failed = (when, Change("fail", 0, decode=True))
    got = run(ONE, cluster(50, decode=2, bytes_per_s=1e8), [failed], fast_forward=fast_forward)
    assert tokens(got) == [[18, when + 19, when + 150]]
    assert ends_of_holds(got) == [(when, 0)]
    assert got.requests["rerouted"].tolist() == [1]


@pytest.mark.parametrize("name", ["vllm-v1-cached", "static", "vllm-v0-swap"])
@pytest.mark.parametrize("again", [False, True])
def test_holds_of_every_length(name: str, again: bool) -> None:
    sizes = [(0, 14, 8), (0, 9, 6), (3, 12, 5), (20, 10, 1), (21, 6, 6), (30, 9, 3)]
    arrivals = [Arrival(at, p, o, o, i) for i, (at, p, o) in enumerate(sizes)]
    pools = two_pools(name, again=again, counts=(2, 1))
    ended = []
    for hold_ns in (1, 2, *range(10, 120, 7)):
        got = both_ways(arrivals, holding(pools, hold_ns), [])
        assert (got.requests["state"] == FINISHED).all()
        assert got.requests["rerouted"].sum() == got.hold_timeouts
        ended.append(got.hold_timeouts)
    assert ended[0] > 0
    assert ended[0] >= ended[-1]


def holding(pools: Cluster, hold_ns: int, then: OnHoldTimeout = "reroute") -> Cluster:
    assert pools.transfer is not None
    transfer = replace(pools.transfer, hold_timeout_s=hold_ns * 1e-9, on_hold_timeout=then)
    return replace(pools, transfer=transfer)


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(POOLED),
    arrivals_of_all_kinds(),
    histories(2),
    st.integers(1, 80),
    st.sampled_from(["reroute", "fail"]),
    st.booleans(),
)
def test_whatever_happens_each_request_ends_once(
    name: str,
    arrivals: list[Arrival],
    changes: Sequence[tuple[int, Change]],
    hold_ns: int,
    then: OnHoldTimeout,
    again: bool,
) -> None:
    got = both_ways(arrivals, holding(two_pools(name, again=again), hold_ns, then), changes)
    timed_out = got.requests["state"] == FAILED
    if then == "fail":
        assert np.count_nonzero(timed_out) == got.hold_timeouts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hold_timeout_s": 0.0}, "transfer.hold_timeout_s: 0: expected more than 0"),
        (
            {"hold_timeout_s": 480.0, "push": True},
            "transfer.hold_timeout_s: 480: with start: push KV is sent when its prefill has ended, "
            "and none is held; try start: pull, or leave it out",
        ),
        (
            {"hold_timeout_s": 480.0, "staging": StagingSpec(10, 1e9)},
            "transfer.hold_timeout_s: 480: not modelled with staging, whose memory holds KV for as "
            "long as it takes; leave one of them out",
        ),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TransferSpec(1e9, **options)
    assert str(error.value) == message
