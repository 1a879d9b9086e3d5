"""Failures and stragglers that are drawn, and nodes that fail whole."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.changes import Change
from sim.cluster import Cluster
from sim.errors import ConfigError, StuckError
from sim.event_loop import simulate
from sim.hazards import Failures, Stragglers
from sim.records import CHANGES, FINISHED, UNFINISHED, SimulationResult
from sim.request import Arrival
from sim.slow_down import Degrade, Mend, NodeChange, Slow, for_a_while
from sim.transfer import TransferSpec
from tests.sim.test_changes import (
    POLICY_OPTIONS,
    POOLED,
    arrivals_of_all_kinds,
    both_ways,
    colocated,
    run,
    seen_in,
    two_pools,
)

BUSY = [Arrival(40 * i, 8, 6, 6, i) for i in range(60)]


def happened(result: SimulationResult) -> list[tuple[int, int, str]]:
    rows = zip(*(result.changes[name].tolist() for name in result.changes), strict=True)
    return [(when, place, CHANGES[code]) for when, place, code, *_ in rows]


def drawn(cluster: Cluster, what: Any, arrivals: list[Arrival] = BUSY) -> SimulationResult:
    return both_ways(arrivals, cluster, [(0, what)])


def test_replicas_fail_and_come_back_in_turn_and_everybody_ends() -> None:
    got = drawn(colocated("vllm-v1", 3), Failures(400, 100))
    assert (got.requests["state"] == FINISHED).all()
    for place in range(3):
        its = [(when, what) for when, at, what in happened(got) if at == place]
        assert len(its) > 4
        assert [what for _, what in its][:4] == ["failed", "restored"] * 2
        assert all(a < b for (a, _), (b, _) in pairwise(its))


def test_other_variants_see_the_same_failures() -> None:
    few, many = (drawn(colocated(*x), Failures(400, 100)) for x in (("orca", 2), ("vllm-v1", 3)))
    end_ns = min(few.end_ns, many.end_ns)
    seen = [[x for x in happened(y) if x[0] < end_ns and x[1] < 2] for y in (few, many)]
    assert seen[0] == seen[1] != []
    other = drawn(colocated("orca", 2), Failures(400, 100, seed=1))
    assert happened(other) != happened(few)


def test_failures_end_with_the_requests() -> None:
    """The last spell that matters is one during the run: nothing happens afterwards."""
    got = drawn(colocated("vllm-v1", 2), Failures(1e9, 1e9))
    assert happened(got) == []
    assert got.end_ns == run(BUSY, colocated("vllm-v1", 2), [], fast_forward=True).end_ns


def test_whoever_waits_for_a_repair_is_served_then() -> None:
    arrivals = [Arrival(0, 8, 6, 6)]
    (seed,) = [x for x in range(50) if _first_failure(x) < 40][:1]
    got = both_ways(arrivals, colocated("vllm-v1", 1), [(0, Failures(100, 5000, seed))])
    assert (got.requests["state"] == FINISHED).all()
    assert "restored" in [what for *_, what in happened(got)]


def _first_failure(seed: int) -> int:
    got = run([Arrival(0, 8, 6, 6)], colocated("vllm-v1", 1), [(0, Failures(100, 5000, seed))],
              fast_forward=True)  # fmt: skip
    return next((when for when, _, what in happened(got) if what == "failed"), 10**9)


def test_no_spell_begins_after_the_given_instant() -> None:
    got = drawn(colocated("vllm-v1", 3), Failures(400, 100, until_ns=700))
    failed = [when for when, _, what in happened(got) if what == "failed"]
    assert failed
    assert max(failed) <= 700
    counts = [what for *_, what in happened(got)]
    assert counts.count("failed") == counts.count("restored")


@pytest.mark.parametrize("shape", [0.7, 1.0, 3.0])
def test_up_times_have_the_mean(shape: float) -> None:
    failures = Failures(1e6, 1, shape=shape)
    rng = np.random.default_rng(3)
    mean = np.mean([failures._up_ns(rng) for _ in range(20_000)])
    assert mean == pytest.approx(1e6, rel=0.03)


def test_only_pools_that_are_named_have_failures() -> None:
    got = drawn(two_pools("vllm-v1"), Failures(300, 100, pools=["decode"]))
    assert {place for _, place, _ in happened(got)} == {2, 3}


def test_an_added_replica_has_failures_of_its_own() -> None:
    changes = [(0, Failures(300, 100)), (50, Change("add"))]
    got = both_ways(BUSY, colocated("vllm-v1", 1), changes)  # type: ignore[arg-type]
    assert (1, "failed") in [(place, what) for _, place, what in happened(got)]


def test_replicas_of_a_node_fail_in_one_instant_in_order_of_place() -> None:
    node = [(True, 0), (False, 1), (True, 1)]
    changes = [(150, NodeChange("fail", node)), (400, NodeChange("restore", node))]
    got = both_ways(BUSY, two_pools("vllm-v1"), changes)  # type: ignore[arg-type]
    assert happened(got) == [
        *[(150, place, "failed") for place in (1, 2, 3)],
        *[(400, place, "restored") for place in (1, 2, 3)],
    ]
    assert (got.requests["state"] == FINISHED).all()


def test_a_node_is_one_unit() -> None:
    nodes = [[(False, 0), (False, 1)], [(False, 2)]]
    got = drawn(colocated("vllm-v1", 3), Failures(400, 100, nodes=nodes))
    at = {place: [x[::2] for x in happened(got) if x[1] == place] for place in range(3)}
    assert at[0] == at[1] != at[2]


def test_requests_that_need_longer_than_replicas_hold_out_stop_the_run() -> None:
    with pytest.raises(StuckError, match="in a row"):
        simulate(
            [Arrival(0, 30, 1, 1)],
            colocated("orca", 1),
            cluster_events=[(0, Failures(1.0, 1.0))],
        )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(POLICY_OPTIONS)),
    arrivals_of_all_kinds(),
    st.integers(0, 1000),
    st.booleans(),
)
def test_whatever_fails_everybody_ends_in_one_state(
    name: str, arrivals: list[Arrival], seed: int, nodes: bool
) -> None:
    pairs = [[(False, 0), (False, 1)]] if nodes else None
    failures = Failures(150, 60, seed, nodes=pairs, until_ns=2000)
    slow = Stragglers(100, 50, Fraction(5, 2), seed, until_ns=2000)
    changes = [(0, failures), (0, slow)]
    got = both_ways(arrivals, colocated(name), changes)  # type: ignore[arg-type]
    assert UNFINISHED not in got.requests["state"]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(POOLED), arrivals_of_all_kinds(), st.integers(0, 1000), st.booleans())
def test_whatever_fails_of_two_pools_everybody_ends_in_one_state(
    name: str, arrivals: list[Arrival], seed: int, push: bool
) -> None:
    cluster = two_pools(name)
    cluster = replace(cluster, transfer=TransferSpec(1e9, shares_links=True, push=push))
    changes = [(0, Failures(150, 60, seed, until_ns=2000))]
    got = both_ways(arrivals, cluster, changes)  # type: ignore[arg-type]
    assert UNFINISHED not in got.requests["state"]


# --- stragglers and slow links


def test_stragglers_come_and_go() -> None:
    got = drawn(colocated("vllm-v1", 2), Stragglers(300, 100, Fraction("1.5")))
    plain = run(BUSY, colocated("vllm-v1", 2), [], fast_forward=True)
    assert {what for *_, what in happened(got)} == {"slowed", "normal"}
    assert set(got.changes["factor_millionths"].tolist()) == {-1, 1_500_000}
    waits = [(x.requests["end_ns"] - x.requests["arrival_ns"]).sum() for x in (got, plain)]
    assert waits[0] > waits[1]


@pytest.mark.parametrize("factor", ["1.5", "0.5"])
def test_an_iteration_in_flight_keeps_its_length(factor: str) -> None:
    slow = Slow(Fraction(factor))
    changes = for_a_while(20, 41, slow)
    got = both_ways([Arrival(0, 4, 4, 4)], colocated("vllm-v1", 1), changes)  # type: ignore[arg-type]
    # 10 + 4 to 14; 14 to 25 as it began; then 11 x 1.5 = 16.5, half to even 16 (or 5.5, so 6).
    slower = {"1.5": [41, 52], "0.5": [31, 37]}[factor]
    assert got.token_times_ns(0).tolist() == [14, 25, *slower]


def test_a_new_slow_down_takes_the_place_of_the_old_one() -> None:
    changes = [
        *for_a_while(0, 30, Slow(Fraction(2))),
        *for_a_while(20, 100, Slow(Fraction(3))),
    ]
    changes.sort(key=lambda entry: entry[0])
    got = both_ways([Arrival(0, 4, 4, 4)], colocated("vllm-v1", 1), changes)  # type: ignore[arg-type]
    # 14 x 2 to 28, then 11 x 3 each: the end at 30 ends nothing.
    assert got.token_times_ns(0).tolist() == [28, 61, 94, 127]
    assert [what for *_, what in happened(got)] == ["slowed", "slowed", "normal"]


def shared(bandwidth: float = 1e9) -> Cluster:
    return replace(two_pools("vllm-v1", counts=(1, 1)), transfer=TransferSpec(bandwidth, shares_links=True))  # noqa: E501  # fmt: skip


def test_a_degraded_nic_carries_less_from_its_instant_on() -> None:
    # Prefill of 4 to 14, one block of 4 bytes at 1 byte per ns: 14 to 18. From 16 on a quarter: the
    # 2 bytes left take 8 ns, to 24; token 2 at 24 + 11.
    changes = for_a_while(16, 100, Degrade(Fraction("0.25")))
    got = both_ways([Arrival(0, 4, 2, 2)], shared(), changes)  # type: ignore[arg-type]
    assert got.token_times_ns(0).tolist() == [14, 35]
    assert happened(got) == [(16, 0, "degraded"), (100, 0, "mended")]


def test_a_dead_link_carries_on_when_it_is_mended() -> None:
    changes = [(15, Degrade(Fraction(0), 0, True)), (50, Mend(None, 0, True))]
    got = both_ways([Arrival(0, 4, 2, 2)], shared(), changes)  # type: ignore[arg-type]
    assert got.token_times_ns(0).tolist() == [14, 64]  # 1 byte before 15, 3 after 50: 53 + 11


def test_over_a_link_that_stays_dead_nobody_finishes() -> None:
    got = both_ways([Arrival(0, 4, 2, 2)], shared(), [(15, Degrade(Fraction(0)))])  # type: ignore[list-item]
    assert got.requests["state"].tolist() == [UNFINISHED]


def test_without_shared_links_nothing_can_be_degraded() -> None:
    with pytest.raises(ConfigError, match=r"set transfer\.sharing: max-min"):
        run(BUSY, two_pools("vllm-v1"), [(5, Degrade(Fraction(1)))], fast_forward=True)  # type: ignore[list-item]


def test_the_same_seed_gives_the_same_run() -> None:
    first, again = (
        seen_in(drawn(two_pools("vllm-v1-cached"), Failures(300, 80, 7))) for _ in range(2)
    )
    assert first == again
