"""Where a run ends that only repeats itself, by hand (rule 84)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from policies import ORDERS, POLICIES, ROUTERS
from sim import standstill
from sim.changes import Change
from sim.cluster import Cluster, LiveCluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import STATES, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.slow_down import Degrade, Normal
from sim.step_time import LinearStepTime, StepTimeOrigin, StepWork
from sim.transfer import TransferSpec

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)
"""10 ns and 1 ns for each token: a chunk of four takes 14."""

SLOWER = replace(STEP, base_s=17e-9)

DOWN = (1, Change("fail", 0, decode=True))

# Request 0 is prefilled from 0 to 28 and keeps two of the four blocks. Request 1, of three blocks,
# computes two chunks from 30 on, 44 and 58, finds no third block, preempts itself and begins anew
# in the same pass: at 58 all is as it was at 30. Request 2 waits behind it.
STUCK = [Arrival(0, 8, 3, 3, 0), Arrival(30, 12, 3, 3, 1), Arrival(30, 12, 3, 3, 2)]


def replica(step: Any = STEP, **more: Any) -> ReplicaSpec:
    options = {name: more.pop(name) for name in ("prefix_cache",) if name in more}
    policy = POLICIES["vllm-v1"](max_num_batched_tokens=4, **options)
    return ReplicaSpec(policy, 4, step, block_tokens=4, kv_bytes_per_token=1, **more)


def cluster(*prefill: ReplicaSpec, decode: int = 1, **transfer: Any) -> Cluster:
    router = ROUTERS["round-robin"]
    return Cluster(
        PoolSpec("prefill", prefill or [replica()], router()),
        PoolSpec("decode", [replica()] * decode, router()),
        TransferSpec(bandwidth_bytes_per_s=1e9, **transfer),
    )


def run(
    arrivals: Sequence[Arrival],
    pools: Cluster,
    *changes: tuple[int, Callable[[LiveCluster], None]],
    fast_forward: bool,
    until_ns: int | None = None,
    series: int = 0,
) -> SimulationResult:
    return simulate(
        arrivals,
        pools,
        cluster_events=changes,
        fast_forward=fast_forward,
        check=True,
        until_ns=until_ns,
        record=Record(series_points=series, series_span_ns=1000),
    )


def preemptions(result: SimulationResult) -> list[int]:
    return list(result.requests["preemptions"].tolist())


def test_the_run_ends_at_the_first_state_that_returns(fast_forward: bool) -> None:
    got = run(STUCK, cluster(), DOWN, fast_forward=fast_forward)
    assert [STATES[code] for code in got.requests["state"]] == ["unfinished"] * 3
    assert got.end_ns == 58
    assert preemptions(got) == [0, 1, 0]
    assert got.requests["recomputed_tokens"].tolist() == [0, 8, 0]
    assert [x.iterations for x in got.replicas] == [4, 0]


def test_looking_is_no_instant(fast_forward: bool) -> None:
    # Samples of the series fall between those instants; they see states, and end nothing.
    got = run(STUCK, cluster(), DOWN, fast_forward=fast_forward, series=500)
    assert got.end_ns == 58


def test_a_run_may_end_before(fast_forward: bool) -> None:
    got = run(STUCK, cluster(), DOWN, fast_forward=fast_forward, until_ns=50)
    assert (got.end_ns, preemptions(got)) == (50, [0, 0, 0])
    got = run(STUCK, cluster(), DOWN, fast_forward=fast_forward, until_ns=500)
    assert (got.end_ns, preemptions(got)) == (58, [0, 1, 0])


def test_a_change_to_come_may_help(fast_forward: bool) -> None:
    # 200 is in a step from 198 to 212, as no instant is so far into one before or after. The state
    # of 212, a second chunk ahead, returns at 240; the preemptions are at 58, 86, .., 226.
    got = run(STUCK, cluster(), DOWN, (200, Normal()), fast_forward=fast_forward)
    assert (got.end_ns, preemptions(got)) == (240, [0, 7, 0])


def test_a_client_that_may_give_up_is_outside(fast_forward: bool) -> None:
    # 430 is in the step from 422 to 436; the state of 436 returns at 464.
    impatient = [*STUCK[:2], STUCK[2]._replace(cancel_after_ns=400)]
    got = run(impatient, cluster(), DOWN, fast_forward=fast_forward)
    assert (got.end_ns, preemptions(got)) == (464, [0, 15, 0])


def test_replicas_are_where_they_were_at_the_same_instant(fast_forward: bool) -> None:
    # Requests 2 and 3 begin at 100, one in chunks of 14 ns, the other in chunks of 21. Two chunks
    # make a round: the one repeats itself every 28 ns, the other every 42, both every 84.
    pools = cluster(replica(), replica(SLOWER))
    arrivals = [Arrival(0, 8, 3, 3, i) for i in (0, 1)] + [
        Arrival(100, 12, 3, 3, i) for i in (2, 3)
    ]
    got = run(arrivals, pools, DOWN, fast_forward=fast_forward)
    assert (got.end_ns, preemptions(got)) == (184, [0, 0, 3, 2])


def test_a_transfer_that_stands_still_belongs_to_the_state(fast_forward: bool) -> None:
    # Nothing passes the decode replica's NIC from 29 on: request 0 keeps its blocks for ever.
    dead = (29, Degrade(Fraction(0), 0, decode=True))
    got = run(STUCK, cluster(shares_links=True), dead, fast_forward=fast_forward)
    assert (got.end_ns, preemptions(got)) == (58, [0, 1, 0])


def test_a_transfer_under_way_does_not_return(fast_forward: bool) -> None:
    # With a tenth of the bandwidth eight bytes, of which one has passed at 29, take until 99. Then
    # request 1, which began anew at 58 and 86, has its third block at 114: it is prefilled at 128.
    slow = (29, Degrade(Fraction(1, 10), 0, decode=True))
    got = run(STUCK[:2], cluster(shares_links=True), slow, fast_forward=fast_forward)
    assert [STATES[code] for code in got.requests["state"]] == ["finished"] * 2
    assert got.requests["prefill_end_ns"].tolist() == [28, 128]
    assert preemptions(got) == [0, 2]


def test_what_is_found_cached_shortens_the_round(fast_forward: bool) -> None:
    # At 58 request 1 gives up two full blocks, which it finds again at once: it needs the third one
    # at once, and has none. So it is not admitted, and nothing happens any more.
    got = run(STUCK, cluster(replica(prefix_cache=True)), DOWN, fast_forward=fast_forward)
    assert (got.end_ns, preemptions(got)) == (58, [0, 1, 0])
    assert [x.iterations for x in got.replicas] == [4, 0]


class Uneven(LinearStepTime):
    """Times that depend on the number of the iteration."""

    noisy = True

    def step_ns(self, work: StepWork, iteration: int) -> int:
        return super().step_ns(work, iteration) + iteration % 2

    def describe(self) -> StepTimeOrigin:
        return StepTimeOrigin("uneven", "", "")


@pytest.mark.parametrize("prefill", [replica(order=ORDERS["vtc"]()), replica(Uneven(base_s=1e-8))])
def test_what_cannot_be_compared_ends_by_the_count_of_steps(
    prefill: ReplicaSpec, fast_forward: bool
) -> None:
    # After more than 4 x 24 known tokens + 1000 steps without one on the replica.
    got = run(STUCK, cluster(prefill), DOWN, fast_forward=fast_forward)
    assert [STATES[code] for code in got.requests["state"]] == ["unfinished"] * 3
    assert preemptions(got)[0] == 0
    assert sum(preemptions(got)) > 300


def test_after_too_many_states_the_count_of_steps_ends_it(
    monkeypatch: pytest.MonkeyPatch, fast_forward: bool
) -> None:
    monkeypatch.setattr(standstill, "MOST_STATES", 1)
    got = run(STUCK, cluster(), DOWN, fast_forward=fast_forward)
    assert [STATES[code] for code in got.requests["state"]] == ["unfinished"] * 3
    assert preemptions(got)[1] > 300
