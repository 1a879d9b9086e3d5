"""A mixed pool: hand-worked runs, and what must hold of any run in which replicas do both."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import ROUTERS
from sim.changes import Change
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.local_prefill import LocalPrefill
from sim.mixed_pool import MixedPool
from sim.records import STATES
from sim.request import Arrival
from sim.roles import RoleSpec
from tests.sim.test_autoscale import each
from tests.sim.test_changes import POOLED, both_ways, colocated, run, seen_in, two_pools, workload
from tests.sim.test_roles import Says

MIXED = [name for name in POOLED if not name.startswith("static")]


def mixed(cluster: Cluster, tokens: int, share: Fraction = Fraction(1)) -> Cluster:
    return replace(cluster, mixed_pool=MixedPool(tokens, share))


# A step takes 10 ns, and 1 ns for each token of a prompt and for each decode. The KV of a token
# takes 1 ns, in blocks of 4; a replica has 9 blocks.


def test_a_prompt_behind_a_queue_is_prefilled_where_it_decodes() -> None:
    """Request 0 is prefilled 0-14, 1 waits. At 1 request 2 would wait behind 8 tokens: 12 are over
    8, so decode replica 0 runs it whole, 1-15, 26. It pulls request 0 after its pass at 15, to 19,
    decodes both 26-38, and pulls request 1, handed over at 28, to 42: it joins at 49."""
    result = both_ways(each(4, 3, 0, 1, 1), mixed(two_pools("orca", counts=(1, 1)), 8), [])
    assert [result.token_times_ns(i).tolist() for i in range(3)] == [
        [14, 38, 49],
        [28, 60, 71],
        [15, 26, 38],
    ]
    assert result.requests["replica"].tolist() == [0, 0, 1]
    assert result.requests["decode_replica"].tolist() == [1, 1, 1]
    assert result.transfers["request"].tolist() == [0, 1]


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    plain = two_pools("orca", counts=(1, 1))
    arrivals = each(4, 3, 0, 1, 1)
    assert seen_in(both_ways(arrivals, mixed(plain, 12), [])) == seen_in(
        both_ways(arrivals, plain, [])
    )


def test_without_room_to_decode_a_prefill_replica_does_both_and_goes_back() -> None:
    """A third of a replica's blocks may be needed, 3. Requests 0 and 1 hold 4 of the decode replica
    from 14 on, when they are handed over and pulled, until 42: 18, 30, 42.

    - 2 comes at 20 and finds the decode replica full: prefill replica 0 runs it whole, 20-34, 56.
    - 3 at 40: replica 0, mixed, has room for it: 2 blocks and 1. It has its prompt in the step
      45-60 beside a decode of request 2, which ends there: 10 + 4 + 1.
    - 4 at 50: the decode replica is empty and prefill replica 1 not mixed: it goes its way.
    - 5 at 90: requests 2 and 3 have ended, and replica 0 is a prefill replica again."""
    cluster = mixed(two_pools("orca", counts=(2, 1)), 100, Fraction(1, 3))
    result = both_ways(each(4, 3, 0, 0, 20, 40, 50, 90), cluster, [])
    assert [result.token_times_ns(i).tolist() for i in range(6)] == [
        [14, 30, 42],
        [14, 30, 42],
        [34, 45, 60],
        [60, 71, 82],
        [64, 79, 90],
        [104, 119, 130],
    ]
    assert result.requests["replica"].tolist() == [0, 1, 0, 0, 1, 0]
    assert result.requests["decode_replica"].tolist() == [2, 2, 0, 0, 2, 2]


def test_mixed_replicas_come_before_others_are_mixed() -> None:
    """Prefill replica 0 holds a queue of 8 tokens from 1 on. Request 2 is run whole by decode
    replica 0; so is request 3, at 2, where only 4 tokens are left and nobody waits; request 4 finds
    request 3 waiting there, 8 and 4 being over 8, and goes to decode replica 1."""
    cluster = mixed(two_pools("orca", counts=(1, 2)), 8)
    result = both_ways(each(4, 3, 0, 1, 1, 2, 3), cluster, [])
    assert result.requests["replica"].tolist() == [0, 0, 1, 1, 2]


def test_a_mixed_replica_is_handed_over_nobody_while_another_is_there() -> None:
    """Decode replica 0 runs request 2 whole, and is mixed until 37; requests 0 and 1, handed over
    at 14 and 28, go to decode replica 1; request 3, at 45 + 14, to replica 0 again."""
    cluster = mixed(two_pools("orca", counts=(1, 2)), 8)
    result = both_ways(each(4, 3, 0, 1, 1, 60), cluster, [])
    assert result.requests["decode_replica"].tolist() == [2, 2, 1, 1]


def test_a_whole_request_that_is_lost_chooses_anew() -> None:
    """Decode replica 0, running request 2 whole, fails at 20; that has a token, and at 20 prefill
    replica 0 has request 1 in its step, and nobody waits: it goes its way."""
    cluster = mixed(two_pools("orca", counts=(1, 2)), 8)
    result = both_ways(each(4, 3, 0, 1, 1), cluster, [(20, Change("fail", 0, True))])
    assert result.requests["rerouted"].tolist() == [0, 0, 1]
    assert result.requests["replica"].tolist() == [0, 0, 0]
    assert result.requests["decode_replica"].tolist() == [2, 2, 2]
    # 28: prefill of 4 + 1, 15 ns, to 43, token 2.
    assert result.token_times_ns(2).tolist()[:2] == [15, 43]


@pytest.mark.parametrize("decode", [False, True])
def test_one_pool_does_it_all_while_the_other_is_gone(decode: bool) -> None:
    """A replica needs more than a ninth of its blocks for any request here, and is full."""
    cluster = mixed(two_pools("orca", counts=(1, 1)), 8, Fraction(1, 9))
    changes = [(0, Change("drain", 0, decode))]
    result = both_ways(each(5, 3, 0, 1), cluster, changes)
    there = 0 if decode else 1
    assert result.requests["replica"].tolist() == [there, there]
    # 0-15; 1 is prefilled beside a decode, 15-31; 12; 11.
    assert [result.token_times_ns(i).tolist() for i in range(2)] == [[15, 31, 43], [31, 43, 54]]


@settings(deadline=None, max_examples=80)
@given(data=st.data())
def test_whoever_arrives_ends_in_one_state_while_replicas_do_both(data: st.DataObject) -> None:
    arrivals = workload()
    count = data.draw(st.integers(0, 9))
    arrivals += [Arrival(3 * i + 31, 5, 4, 4, 5 + i) for i in range(count)]
    impatient = data.draw(st.sets(st.integers(0, len(arrivals) - 1), max_size=3))
    arrivals = [
        replace_patience(x, data.draw(st.integers(1, 90))) if x.index in impatient else x
        for x in arrivals
    ]
    counts = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    cluster = two_pools(data.draw(st.sampled_from(MIXED)), counts=counts)
    assert cluster.transfer is not None
    ways: dict[str, dict[str, Any]] = {
        "pull": {},
        "first": {"decode_first": True},
        "push": {"push": True},
        "layerwise": {"push": True, "overlap": "layerwise", "layers": 2},
        "chunked": {"push": True, "overlap": "chunked"},
    }
    way = ways[data.draw(st.sampled_from(list(ways)))]
    cluster = replace(cluster, transfer=replace(cluster.transfer, **way))
    router = ROUTERS[data.draw(st.sampled_from(["round-robin", "least-tokens"]))]
    cluster = replace(cluster, entry=replace(cluster.entry, router=router()))
    tokens = data.draw(st.sampled_from([1, 8, 15, 30]))
    share = data.draw(st.sampled_from([Fraction(1, 3), Fraction(2, 3), Fraction(1)]))
    changes = []
    for decode in (False, True):
        if data.draw(st.booleans()):
            fails = data.draw(st.integers(0, 90))
            changes.append((fails, Change("fail", 0, decode)))
            changes.append((fails + 35, Change("restore", 0, decode)))
    changes.sort(key=lambda change: change[0])
    result = both_ways(arrivals, mixed(cluster, tokens, share), changes)
    known = {STATES.index("finished"), STATES.index("cancelled")}
    assert set(result.requests["state"].tolist()) <= known
    again = run(arrivals, mixed(cluster, tokens, share), changes, fast_forward=True)
    assert seen_in(again) == seen_in(result)


def replace_patience(arrival: Arrival, patience_ns: int) -> Arrival:
    return arrival._replace(cancel_after_ns=patience_ns)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (colocated("orca"), "mixed_pool: there is one pool"),
        (two_pools("static"), "mixed_pool: policy static of pool prefill forms batches"),
        (two_pools("orca", again=True), "mixed_pool: with recompute_last_token"),
        (
            replace(two_pools("orca"), local_prefill=LocalPrefill()),
            "mixed_pool and local_prefill: leave out one of them",
        ),
        (
            replace(two_pools("orca"), roles=RoleSpec(Says((None,)))),
            "mixed_pool and role_switching: leave out one of them",
        ),
    ],
)
def test_layouts_that_cannot_mix_are_refused(cluster: Cluster, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        mixed(cluster, 8)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, Fraction(1)), "max_prompt_tokens: 0: expected at least 1"),
        ((8, Fraction(3, 2)), "max_kv_share: 1.5: expected over 0 and at most 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers: tuple[int, Fraction], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixedPool(*numbers)
