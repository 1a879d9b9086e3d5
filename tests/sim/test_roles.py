"""Role switching: hand-worked runs, what must hold of any run, and what `pressure` says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.roles import Pressure
from policies.scaling import QueueLength
from sim.autoscale import PoolView, ScalingSpec
from sim.changes import Change
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.policy import ReplicaView
from sim.records import STATES
from sim.request import Arrival
from sim.roles import RoleSpec, RoleSwitcher, Side
from sim.transfer import StagingSpec
from tests.sim.test_autoscale import each, happened
from tests.sim.test_changes import POOLED, both_ways, colocated, run, seen_in, two_pools, workload


@dataclass
class Says(RoleSwitcher):
    """Names these pools, one at a look, then the last one."""

    sides: tuple[Side | None, ...]

    def __post_init__(self) -> None:
        self.looks = 0

    def needs(self, prefill: PoolView, decode: PoolView) -> Side | None:
        assert (prefill.role, decode.role) == ("prefill", "decode")
        self.looks += 1
        return self.sides[min(self.looks, len(self.sides)) - 1]


def switching(cluster: Cluster, *sides: Side | None, **options: Any) -> Cluster:
    return replace(cluster, roles=RoleSpec(Says(sides), **{"interval_ns": 20} | options))


# A step takes 10 ns, and 1 ns for each token of a prompt and for each decode. The KV of a token
# takes 1 ns, in blocks of 4.


def test_an_idle_decode_replica_prefills_from_the_look_on() -> None:
    """At 20 decode replica 1, idle, is a prefill replica. Of the requests of 30 each prefill
    replica has one, 30-44; the decode replica that is left pulls both, 48, and decodes both, 12."""
    cluster = switching(two_pools("orca", counts=(1, 2)), "prefill")
    result = both_ways(each(4, 3, 0, 30, 30), cluster, [])
    assert happened(result) == [(20, 2, "draining"), (20, 2, "gone"), (20, 3, "changed_role")]
    assert [result.token_times_ns(i).tolist() for i in range(3)] == [
        [14, 29, 40],
        [44, 60, 72],
        [44, 60, 72],
    ]
    assert result.requests["replica"].tolist() == [0, 0, 3]
    assert result.requests["decode_replica"].tolist() == [1, 1, 1]


def test_a_cool_down_and_a_minimum_hold_it_back() -> None:
    """One request until 95: 0-14, 18, then 7 decodes of 11 ns. Prefill replica 2 goes at 10; at 20
    and 30 the cool-down of 25 is not over; 1 goes at 40; the last one stays."""
    cluster = two_pools("orca", counts=(3, 1))
    cluster = switching(cluster, "decode", interval_ns=10, cool_down_ns=25)
    result = both_ways(each(4, 8, 0), cluster, [])
    assert result.token_times_ns(0)[-1] == 95
    assert happened(result) == [
        (10, 2, "draining"),
        (10, 2, "gone"),
        (10, 4, "changed_role"),
        (40, 1, "draining"),
        (40, 1, "gone"),
        (40, 5, "changed_role"),
    ]
    fewer = replace(cluster, roles=replace(cast(RoleSpec, cluster.roles), min_prefill=2))
    assert len(happened(both_ways(each(4, 8, 0), fewer, []))) == 3


def test_nothing_follows_while_one_drains_and_the_least_busy_goes() -> None:
    """At 20 decode replica 3 goes, idle like all: ties go to the highest index. Three requests are
    prefilled together until 22 and decoded on one replica each, 26 to 70. At 40 replica 2 drains,
    until 70; at 60 that is not over, though two more are up."""
    cluster = switching(two_pools("orca", counts=(1, 4)), "prefill")
    result = both_ways(each(4, 5, 0, 0, 0), cluster, [])
    assert [result.token_times_ns(i)[-1] for i in range(3)] == [70, 70, 70]
    assert happened(result) == [
        (20, 4, "draining"),
        (20, 4, "gone"),
        (20, 5, "changed_role"),
        (40, 3, "draining"),
        (70, 3, "gone"),
        (70, 6, "changed_role"),
    ]


def test_who_has_least_to_do_drains() -> None:
    """Decode replica 0 has two requests from 22 on, replica 1 one: that one drains at 40."""
    cluster = switching(two_pools("orca", counts=(1, 2)), None, "prefill")
    result = both_ways(each(4, 5, 0, 0, 0), cluster, [])
    assert happened(result)[0] == (40, 2, "draining")


def sides() -> st.SearchStrategy[tuple[Side | None, ...]]:
    side: st.SearchStrategy[Side | None] = st.sampled_from(["prefill", "decode", None])
    return st.lists(side, min_size=1, max_size=8).map(tuple)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whoever_arrives_ends_in_one_state_while_roles_change_and_replicas_fail(
    data: st.DataObject,
) -> None:
    arrivals = workload()
    arrivals += [Arrival(60 + 9 * i, 5, 4, 4, 5 + i) for i in range(data.draw(st.integers(0, 6)))]
    counts = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    cluster = two_pools(data.draw(st.sampled_from(POOLED)), counts=counts)
    assert cluster.transfer is not None
    way = data.draw(st.sampled_from(["pull", "push", "layerwise"]))
    if way != "pull":
        layers = {"overlap": "layerwise", "layers": 2} if way == "layerwise" else {}
        cluster = replace(cluster, transfer=replace(cluster.transfer, push=True, **layers))
    interval = data.draw(st.integers(3, 30))
    cool = data.draw(st.sampled_from([0, 0, 40]))
    cluster = switching(cluster, *data.draw(sides()), interval_ns=interval, cool_down_ns=cool)
    changes = []
    if data.draw(st.booleans()):
        fails = data.draw(st.integers(0, 90))
        changes += [(fails, Change("fail", 0)), (fails + 35, Change("restore", 0))]
    if data.draw(st.booleans()):
        changes.append((data.draw(st.integers(0, 90)), Change("fail", 0, True)))
        changes.append((200, Change("restore", 0, True)))
    changes.sort(key=lambda change: change[0])
    result = both_ways(arrivals, cluster, changes)
    assert (result.requests["state"] == STATES.index("finished")).all()
    again = run(arrivals, cluster, changes, fast_forward=True)
    assert seen_in(again) == seen_in(result)


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (colocated("orca"), "role_switching: there is one pool"),
        (
            replace(
                two_pools("orca"),
                entry=replace(two_pools("orca").entry, scaling=ScalingSpec(QueueLength())),
            ),
            "role_switching: a pool that scales by itself would undo it",
        ),
        (
            replace(
                two_pools("orca"),
                transfer=replace(
                    cast(Any, two_pools("orca").transfer), staging=StagingSpec(100, 1e9)
                ),
            ),
            "transfer.staging: is not modelled where replicas change",
        ),
    ],
)
def test_layouts_without_roles_to_change_are_refused(cluster: Cluster, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        switching(cluster, "prefill")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval_ns": 0}, "interval_s: 0 ns: expected more than 0"),
        ({"cool_down_ns": -1}, "cool_down_s: -1 ns: expected at least 0"),
        ({"min_decode": 0}, "min_prefill 1, min_decode 0: expected at least 1 of each"),
    ],
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RoleSpec(Says((None,)), **options)


# --- what pressure says


@dataclass
class Replica:
    """A prefill of one token takes 1 us; a step of decodes 1 ms for each, whatever its context."""

    prefill_tokens_left: int = 0
    outstanding: int = 0
    outstanding_tokens: int = 0
    needed_blocks: int = 0
    total_blocks: int = 100

    def prefill_ns(self, tokens: int, cached: int) -> int:
        return 1000 * tokens

    def decode_ns(self, requests: int, tokens: int) -> int:
        return 1_000_000 * requests


def said(prefill: list[Replica], decode: list[Replica]) -> Side | None:
    views = [
        PoolView(10, 0, role, cast(list[ReplicaView], replicas), [0] * len(replicas))
        for role, replicas in (("prefill", prefill), ("decode", decode))
    ]
    return Pressure(ttft_s=1, tpot_s=0.1, high=0.8).needs(*views)


LATE, SOON = Replica(prefill_tokens_left=800_001), Replica(prefill_tokens_left=800_000)
FULL, SLOW = Replica(needed_blocks=81), Replica(outstanding=81)
IDLE = Replica()


@pytest.mark.parametrize(
    ("prefill", "decode", "needs"),
    [
        ([LATE], [IDLE, IDLE], "prefill"),
        ([SOON], [IDLE, IDLE], None),  # 0.8 is not above 0.8
        ([LATE, SOON], [IDLE, IDLE], None),  # one would still be soon
        ([LATE], [IDLE], None),  # none to spare
        ([LATE], [IDLE, FULL], None),  # what 0.81 holds does not fit on one below 0.8
        ([LATE], [IDLE, Replica(needed_blocks=79)], "prefill"),
        ([IDLE, IDLE], [SLOW], "decode"),
        ([IDLE, IDLE], [FULL], "decode"),
        ([IDLE, IDLE], [Replica(outstanding=80, needed_blocks=80)], None),
        ([LATE, IDLE], [FULL], None),
        ([LATE, LATE], [FULL], None),  # both are pressed
        ([], [IDLE, IDLE], "prefill"),
        ([IDLE, IDLE], [], "decode"),
    ],
)
def test_the_pressed_pool_needs_what_the_other_can_spare(
    prefill: list[Replica], decode: list[Replica], needs: Side | None
) -> None:
    assert said(prefill, decode) == needs


def test_targets_have_to_be_some() -> None:
    with pytest.raises(ConfigError, match="pressure: expected ttft_s, tpot_s and high above 0"):
        RoleSpec(Pressure(ttft_s=0, tpot_s=0.1))


def test_a_prediction_is_that_of_the_step_times() -> None:
    """Prefill replicas of 10 ns and 1 ns a token are behind after four prompts of 9 tokens at once;
    one of two decode replicas, idle, helps."""
    cluster = two_pools("vllm-v0", counts=(1, 2))
    pressure = Pressure(ttft_s=30e-9, tpot_s=1e-3)
    cluster = replace(cluster, roles=RoleSpec(pressure, interval_ns=5))
    arrivals = each(9, 2, 0, 0, 0, 0)
    result = both_ways(arrivals, cluster, [])
    assert happened(result)[:3] == [(5, 2, "draining"), (5, 2, "gone"), (5, 3, "changed_role")]
    easy = replace(cluster, roles=RoleSpec(Pressure(ttft_s=1, tpot_s=1), interval_ns=5))
    assert happened(both_ways(arrivals, easy, [])) == []
