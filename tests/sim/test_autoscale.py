"""Autoscaling: hand-worked runs, and what must hold of any run whose pools grow and shrink."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.scaling import QueueLength, Schedule, SLOHeadroom, Utilisation
from sim.autoscale import Autoscaler, CoolDown, PoolView, ScalingSpec
from sim.changes import Change
from sim.cluster import Cluster
from sim.errors import ConfigError
from sim.pool import PoolSpec
from sim.records import CHANGES, STATES, SimulationResult
from sim.request import Arrival
from tests.sim.test_changes import (
    POLICY_OPTIONS,
    POOLED,
    both_ways,
    colocated,
    run,
    seen_in,
    two_pools,
    workload,
)


@dataclass
class Says(Autoscaler):
    """Wants these numbers, one after the other, then the last one."""

    numbers: tuple[int, ...]

    def __post_init__(self) -> None:
        self.looks = 0

    def wanted(self, pool: PoolView) -> int:
        self.looks += 1
        return self.numbers[min(self.looks, len(self.numbers)) - 1]


def scaling(*numbers: int, **options: Any) -> ScalingSpec:
    plain = {"interval_ns": 20, "cool_down_down_ns": 0, "min_replicas": 0, "start_ns": 15}
    return ScalingSpec(Says(numbers), **plain | options)


def scaled(
    cluster: Cluster, spec: ScalingSpec | None, decode: ScalingSpec | None = None
) -> Cluster:
    pools: dict[str, PoolSpec] = {"entry": replace(cluster.entry, scaling=spec)}
    if decode is not None:
        assert cluster.decode is not None
        pools["decode"] = replace(cluster.decode, scaling=decode)
    return replace(cluster, **pools)  # type: ignore[arg-type]


def happened(result: SimulationResult) -> list[tuple[int, int, str]]:
    """(ns, index among all replicas, change) of each change."""
    table = {name: column.tolist() for name, column in result.changes.items()}
    rows = zip(table["time_ns"], table["replica"], table["change"], strict=True)
    return [(when, place, CHANGES[code]) for when, place, code in rows]


def each(prompt: int, output: int, *arrivals: int) -> list[Arrival]:
    return [Arrival(at, prompt, output, output, i) for i, at in enumerate(arrivals)]


# A step takes 10 ns, and 1 ns for each token of a prompt and for each decode.


def test_a_replica_is_started_and_gets_requests_once_it_is_up() -> None:
    """Two are wanted at 20, so replica 1 is up at 35. Request 2 comes at 34 and goes to replica 0,
    where it waits for the step 26-37 and is prefilled 37-52 beside decodes; request 3, at 35, is
    prefilled on replica 1 from 35 to 49."""
    arrivals = each(4, 3, 0, 1, 34, 35)
    result = both_ways(arrivals, scaled(colocated("orca", 1), scaling(2)), [])
    assert happened(result) == [(20, 1, "added"), (35, 1, "up")]
    assert result.requests["replica"].tolist() == [0, 0, 0, 1]
    assert result.token_times_ns(3).tolist() == [49, 60, 71]


def test_who_has_least_to_do_drains_and_those_that_start_are_called_off_first() -> None:
    """Replicas 0, 1 have a request each, 2 has none; at 20 a fourth is started, up at 60. At 40 two
    are wanted: the fourth is called off, and of the others replica 2, idle, drains and is gone at
    once. At 60 one is wanted: replicas 0 and 1 have one request each, and replica 1 drains; it is
    gone when its request ends: 0-14 and 9 decodes of 11 ns."""
    arrivals = each(4, 10, 0, 0)
    spec = scaling(4, 2, 1, start_ns=40)
    result = both_ways(arrivals, scaled(colocated("orca", 3), spec), [])
    assert happened(result) == [
        (20, 3, "added"),
        (40, 3, "called_off"),
        (40, 3, "gone"),
        (40, 2, "draining"),
        (40, 2, "gone"),
        (60, 1, "draining"),
        (113, 1, "gone"),
    ]
    assert [x.left_ns for x in result.replicas] == [-1, 113, 40, 40]
    assert [x.joined_ns for x in result.replicas] == [0, 0, 0, 20]


def test_a_draining_replica_is_taken_back_before_another_is_started() -> None:
    """Replica 1 drains at 20 with a request until 113; at 40 three are wanted: it is back, and one
    more is started."""
    arrivals = each(4, 10, 0, 0, 41)
    spec = scaling(1, 3, take_back=True)
    result = both_ways(arrivals, scaled(colocated("orca", 2), spec), [])
    assert happened(result) == [
        (20, 1, "draining"),
        (40, 1, "taken_back"),
        (40, 2, "added"),
        (55, 2, "up"),
    ]
    assert result.requests["replica"].tolist() == [0, 1, 0]


def test_from_zero_a_request_asks_at_once_and_waits_for_the_start() -> None:
    """None is wanted: replica 0 drains at 20 and is gone at 25. The request at 50 starts replica 1
    in that instant, which is kept at 60 for those that wait, also for the one of 55, and is up at
    65. Both are prefilled 65-83; at 80 none waits for a replica, and it drains, until their second
    tokens: 83-95."""
    arrivals = each(4, 2, 0, 50, 55)
    result = both_ways(arrivals, scaled(colocated("orca", 1), scaling(0)), [])
    assert happened(result) == [
        (20, 0, "draining"),
        (25, 0, "gone"),
        (50, 1, "added"),
        (65, 1, "up"),
        (80, 1, "draining"),
        (95, 1, "gone"),
    ]
    assert [result.token_times_ns(i).tolist() for i in (1, 2)] == [[83, 95], [83, 95]]


def test_a_cool_down_keeps_what_a_request_has_started() -> None:
    """As above, with a window of 70 ns down: of the looks at 20 and 40 the first counts the number
    at the start, so that replica 0 is kept until 80. A request at 130 starts another; the look at
    140 finds it waiting and wants one, so that it is kept until 220, although no more is wanted."""
    arrivals = each(4, 2, 0, 130, 230)
    spec = scaling(0, cool_down_down_ns=70)
    result = both_ways(arrivals, scaled(colocated("orca", 1), spec), [])
    assert happened(result) == [
        (80, 0, "draining"),
        (80, 0, "gone"),
        (130, 1, "added"),
        (145, 1, "up"),
        (220, 1, "draining"),
        (220, 1, "gone"),
        (230, 2, "added"),
        (245, 2, "up"),
    ]


def test_a_failed_replica_is_replaced_at_the_next_look() -> None:
    """Replica 0 fails at 14 with the only request, which is routed again, waits and asks at once;
    it is prefilled 29-44, with the token it had, and decodes beside the prefill of the next, 44-59.

    With two of them the next look, at 20, starts a third, and when the failed one is back there is
    one too many, of which the last has the least to do."""
    arrivals = each(4, 3, 0, 41)
    changes = [(14, Change("fail", 0))]
    result = both_ways(arrivals, scaled(colocated("orca", 1), scaling(1)), changes)
    assert happened(result) == [(14, 0, "failed"), (14, 1, "added"), (29, 1, "up")]
    assert result.token_times_ns(0).tolist() == [14, 44, 59]

    changes = [(14, Change("fail", 1)), (30, Change("restore", 1))]
    result = both_ways(arrivals, scaled(colocated("orca", 2), scaling(2)), changes)
    assert happened(result)[:4] == [
        (14, 1, "failed"),
        (20, 2, "added"),
        (30, 1, "restored"),
        (35, 2, "up"),
    ]
    assert happened(result)[4:] == [(40, 2, "draining"), (40, 2, "gone")]


def test_the_decode_pool_starts_a_replica_for_whom_it_has_none() -> None:
    """The decode replica is gone at 20. A request at 30 ends its prefill at 44, finds no decode
    replica and starts one, up at 59, to which its KV moves in the 4 ns of its 4 tokens' block."""
    arrivals = each(4, 3, 30)
    cluster = scaled(two_pools("orca", counts=(1, 1)), None, scaling(0))
    result = both_ways(arrivals, cluster, [])
    assert happened(result)[:4] == [
        (20, 1, "draining"),
        (20, 1, "gone"),
        (44, 2, "added"),
        (59, 2, "up"),
    ]
    assert result.token_times_ns(0).tolist() == [44, 74, 85]


def test_pools_scale_while_kv_is_pushed() -> None:
    cluster = two_pools("orca")
    assert cluster.transfer is not None
    pushing = replace(cluster, transfer=replace(cluster.transfer, push=True))
    got = both_ways(workload(), scaled(pushing, scaling(1), scaling(1)), [])
    assert not got.requests["state"].any()  # all have finished


# --- what must hold of any run


AUTOSCALERS: dict[str, Autoscaler] = {
    "queue-length": QueueLength(target=2),
    "queue-waiting": QueueLength(target=1, count="waiting"),
    "utilisation": Utilisation(target=0.6),
    "slo-headroom": SLOHeadroom(ttft_s=40e-9, tpot_s=15e-9),
    "schedule": Schedule([0.0, 50e-9, 90e-9], [0, 3, 1], period_s=130e-9),
}


@pytest.mark.parametrize("autoscaler", list(AUTOSCALERS))
@pytest.mark.parametrize("name", list(POLICY_OPTIONS))
def test_fast_forward_gives_the_same_integers_and_nobody_is_lost(
    name: str, autoscaler: str
) -> None:
    spec = ScalingSpec(
        AUTOSCALERS[autoscaler],
        min_replicas=0,
        max_replicas=3,
        interval_ns=17,
        cool_down_down_ns=30,
        start_ns=23,
    )
    result = both_ways(workload(), scaled(colocated(name), spec), [])
    assert (result.requests["state"] == STATES.index("finished")).all()


@st.composite
def scalings(draw: st.DrawFn) -> ScalingSpec:
    least = draw(st.integers(0, 2))
    return ScalingSpec(
        draw(st.sampled_from([*AUTOSCALERS.values(), Says((0, 3, 1, 2)), Says((2, 0))])),
        min_replicas=least,
        max_replicas=draw(st.integers(max(1, least), 4)),
        interval_ns=draw(st.sampled_from([3, 7, 14, 40])),
        cool_down_up_ns=draw(st.sampled_from([0, 25])),
        cool_down_down_ns=draw(st.sampled_from([0, 25, 90])),
        start_ns=draw(st.sampled_from([0, 11, 60])),
        take_back=draw(st.booleans()),
    )


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_whoever_arrives_ends_in_one_state_while_pools_scale_and_replicas_fail(
    data: st.DataObject,
) -> None:
    arrivals = workload()
    arrivals += [Arrival(200 + 9 * i, 5, 4, 4, 5 + i) for i in range(data.draw(st.integers(0, 4)))]
    name = data.draw(st.sampled_from(POOLED))
    if data.draw(st.booleans()):
        cluster = two_pools(name)
        assert cluster.transfer is not None
        transfer = replace(cluster.transfer, push=data.draw(st.booleans()))
        cluster = replace(cluster, transfer=transfer)
        cluster = scaled(cluster, data.draw(scalings()), data.draw(scalings()))
    else:
        cluster = scaled(colocated(name), data.draw(scalings()))
    changes = []
    if data.draw(st.booleans()):
        fails = data.draw(st.integers(0, 90))
        changes.append((fails, Change("fail", 0)))
        if data.draw(st.booleans()):
            changes.append((fails + 35, Change("restore", 0)))
    result = both_ways(arrivals, cluster, changes)
    assert (result.requests["state"] == STATES.index("finished")).all()
    again = run(arrivals, cluster, changes, fast_forward=True)
    assert seen_in(again) == seen_in(result)


# --- what autoscalers say


class Replica:
    """A view with what autoscalers ask for."""

    def __init__(self, outstanding: int = 0, waiting: int = 0) -> None:
        self.outstanding, self.waiting = outstanding, waiting


def view(*replicas: Replica, busy: tuple[int, ...] = (), **more: Any) -> PoolView:
    return PoolView(1000, 0, "both", replicas, busy, **more)  # type: ignore[arg-type]


def test_queue_length_is_the_requests_by_the_target() -> None:
    three = (Replica(5, 2), Replica(3, 0))
    assert QueueLength(target=4).wanted(view(*three)) == 2
    assert QueueLength(target=4).wanted(view(*three, without_replica=1)) == 3
    assert QueueLength(target=1, count="waiting").wanted(view(*three)) == 2
    assert QueueLength(target=4).wanted(view(Replica())) == 0
    with pytest.raises(ConfigError, match="count: all: expected outstanding or waiting"):
        ScalingSpec(QueueLength(count="all"))


def test_utilisation_follows_the_formula_of_the_hpa() -> None:
    scaler = Utilisation(target=0.5, tolerance=0.1)
    two = (Replica(), Replica())
    assert scaler.wanted(view(*two, busy=(1000, 500))) == 3  # 2 x 0.75 / 0.5
    assert scaler.wanted(view(*two, busy=(550, 550))) == 2  # within the tolerance
    assert scaler.wanted(view(*two, busy=(551, 551))) == 3
    assert scaler.wanted(view(*two, busy=(100, 300))) == 1
    assert scaler.wanted(view(*two, busy=(0, 0))) == 0
    # One that starts counts as idle: 1.5 replicas' worth is not more than 2 x 0.5 x 1.1 carry.
    assert scaler.wanted(view(*two, busy=(1000, 500), starting=1)) == 3
    assert scaler.wanted(view(*two, busy=(1000, 1000), starting=1)) == 4
    assert scaler.wanted(view(starting=2)) == 2
    assert Utilisation(target=0.6, tolerance=0).wanted(view(Replica(), busy=(600,))) == 1


def test_a_schedule_counts_the_last_entry_and_begins_again() -> None:
    scaler = Schedule([200e-9, 700e-9], [4, 0], period_s=800e-9)
    said = [
        scaler.wanted(PoolView(now, 0, "both", (), ())) for now in (0, 199, 200, 700, 800, 1000)
    ]
    assert said == [0, 0, 4, 0, 0, 4]
    assert Schedule([2.0], [4]).wanted(view(Replica())) == 1
    for options, error in (
        (([1.0], [1, 2]), "1 times and 2 numbers"),
        (([2.0, 1.0], [1, 2]), "in rising order"),
        (([1.0, 2.0], [1, -2]), "expected at least 0"),
        (([1.0, 2.0], [1, 2], 2.0), "more than the last"),
    ):
        with pytest.raises(ConfigError, match=error):
            ScalingSpec(Schedule(*options))  # type: ignore[arg-type]


def test_slo_headroom_goes_by_the_worst_pressure() -> None:
    """The replica's runs: TTFT 14 ns, gaps of 11 ns."""
    seen: list[tuple[int, Any]] = []

    @dataclass
    class Spy(SLOHeadroom):
        def wanted(self, pool: PoolView) -> int:
            seen.append((pool.now_ns, self.pressure(pool)))
            return super().wanted(pool)

    spec = ScalingSpec(Spy(ttft_s=28e-9, tpot_s=22e-9), interval_ns=20, max_replicas=4)
    result = run(each(4, 3, 0, 61), scaled(colocated("orca", 1), spec), [], fast_forward=True)
    assert [(when, float(x) if x is not None else None) for when, x in seen] == [
        (20, 0.5),  # the first token at 14
        (40, 0.5),  # 0 ended at 36: its gaps by their target
        (60, None),
        (80, 0.5),  # the first token of 1 at 75
    ]
    assert not len(result.changes["time_ns"])
    scaler = SLOHeadroom(ttft_s=1, high=0.8, low=0.3)
    late = PoolView(2_000_000_000, 0, "both", [Replica(1)], (0,), live=[Waits()])  # type: ignore[list-item]
    assert scaler.pressure(late) == 2
    assert scaler.wanted(late) == 2  # at most twice what there is
    with pytest.raises(ConfigError, match="needs a target"):
        ScalingSpec(SLOHeadroom())
    with pytest.raises(ConfigError, match=r"low: 0.9: expected less than high \(0.8\)"):
        ScalingSpec(SLOHeadroom(ttft_s=1, low=0.9))


class Waits:
    """A request since 0, without a token."""

    first_token_ns = -1
    arrival = Arrival(0, 1, 1, 1, 0)


def test_the_cool_down_is_the_stabilisation_window_of_the_hpa() -> None:
    spec = ScalingSpec(
        Says((1,)), cool_down_up_ns=20, cool_down_down_ns=30, interval_ns=10, min_replicas=1
    )
    cool_down, current, said = CoolDown(spec, 2), 2, []
    for now, wanted in ((10, 4), (20, 4), (30, 5), (40, 3), (50, 1), (60, 1), (70, 1), (80, 9)):
        current = cool_down.number(now, wanted, current)
        said.append(current)
    # Up by the least of the last two, down by the most of the last three.
    assert said == [2, 4, 4, 4, 4, 3, 1, 1]


def test_limits_that_cannot_be_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"max_replicas: 1: expected at least 1, and min_replicas"
    ):
        ScalingSpec(Says((1,)), min_replicas=2, max_replicas=1)
    with pytest.raises(ConfigError, match="interval_s"):
        ScalingSpec(Says((1,)), interval_ns=0)


@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_pool_that_begins_at_zero_starts_its_first_replica_for_the_first_request(
    fast_forward: bool,
) -> None:
    # Asked for at 3, up 15 later: the prefill of 5 tokens takes 15, so the token is there at 33.
    cluster = scaled(colocated("sarathi", replicas=1), scaling(0, from_zero=True))
    result = run([Arrival(3, 5, 1, 1, 0)], cluster, [], fast_forward=fast_forward)

    assert result.token_times_ns(0).tolist() == [33]
    first, second = result.replicas
    assert (first.joined_ns, first.left_ns, first.iterations) == (0, 0, 0)
    assert (second.joined_ns, second.name) == (3, "replica-1")
    assert CHANGES[int(result.changes["change"][0])] == "added"


def test_both_pools_may_begin_at_zero() -> None:
    spec = scaling(0, from_zero=True, interval_ns=10_000)
    cluster = scaled(two_pools("sarathi", counts=(1, 1)), spec, spec)
    fast, slow = (run(workload(), cluster, [], fast_forward=each) for each in (True, False))

    assert seen_in(fast) == seen_in(slow)
    assert set(fast.requests["state"].tolist()) == {STATES.index("finished")}


def test_a_pool_begins_at_zero_only_if_it_may_be_there() -> None:
    with pytest.raises(ConfigError, match="expected 0 to begin at zero"):
        scaling(0, from_zero=True, min_replicas=1)
