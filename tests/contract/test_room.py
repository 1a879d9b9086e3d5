"""The core has room for what is not built yet: small fakes of each, made of its hooks alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from policies import POLICIES, ROUTERS
from sim.clock import Instant, Phase
from sim.cluster import Cluster, LiveCluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import CAUSES, EVENTS, FAILED, FINISHED, STATES, Record
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)
"""10 ns + 1 ns for each token: every time below can be added up by hand."""


def cluster(policy: str = "vllm-v1", *, replicas: int = 1) -> Cluster:
    spec = ReplicaSpec(POLICIES[policy](), num_blocks=100, step_time=STEP)
    return Cluster(PoolSpec("replica", [spec] * replicas, ROUTERS["round-robin"]()))


# --- arrivals that are caused by ends


class Chain:
    """Each request arrives `delay_ns` after the last token of the one before it."""

    def __init__(self, length: int, delay_ns: int) -> None:
        self.left, self.delay_ns = length - 1, delay_ns

    def __iter__(self) -> Iterator[Arrival]:
        yield Arrival(0, 5, 3, 3, 0)

    def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
        if not self.left:
            return ()
        self.left -= 1
        return (Arrival(now_ns + self.delay_ns, 5, 3, 3, request_index + 1),)


@pytest.mark.parametrize("delay_ns", [0, 7])
def test_a_source_can_feed_on_completions(delay_ns: int) -> None:
    result = simulate(Chain(4, delay_ns), cluster(), check=True)
    # Prefill of 5: 15 ns; two decode steps: 11 ns each.
    arrivals = [k * (15 + 2 * 11 + delay_ns) for k in range(4)]
    assert result.requests["arrival_ns"].tolist() == arrivals
    assert (result.requests["end_ns"] - result.requests["arrival_ns"]).tolist() == [37] * 4


def test_a_rejected_request_causes_the_next_one_in_the_same_instant() -> None:
    class AfterRejection(Chain):
        def __iter__(self) -> Iterator[Arrival]:
            yield Arrival(0, 5000, 3, 3, 0)

    result = simulate(AfterRejection(2, 0), cluster(), check=True)
    assert [STATES[s] for s in result.requests["state"]] == ["rejected", "finished"]
    assert result.requests["arrival_ns"].tolist() == [0, 0]


# --- a step that is lost


def lose_the_step(live: LiveCluster) -> None:
    live.replicas[0].void()


@pytest.mark.parametrize("fast_forward", [True, False])
@pytest.mark.parametrize(
    ("lost_at", "expected"),
    [
        # Prefill of 5 ends at 15; decodes at 26, 37, 48 and 59.
        (8, [23, 34, 45, 56, 67]),  # the prefill starts again at 8
        (30, [15, 26, 41, 52, 63]),  # the decode from 26 starts again at 30
        (26, [15, 26, 37, 48, 59]),  # a step that ends at that instant is over, and stands
        (200, [15, 26, 37, 48, 59]),  # idle: nothing to lose
    ],
)
def test_a_step_in_flight_can_be_voided(
    lost_at: int, expected: list[int], fast_forward: bool
) -> None:
    events = [(lost_at, lose_the_step)]
    result = simulate(
        [Arrival(0, 5, 5, 5, 0)],
        cluster(),
        cluster_events=events,
        fast_forward=fast_forward,
        check=True,
    )
    assert result.token_times_ns(0).tolist() == expected


# --- a set of replicas that changes


def remove_the_first_replica(live: LiveCluster) -> None:
    """A failure without mercy: its requests fail, and it takes no more."""
    replica = live.entry.replicas.pop(0)
    replica.void()
    for life in list(replica.lives.values()):
        live.end(life, FAILED, "replica removed", int(live.env.now))


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_replica_can_be_removed_in_mid_run(policy: str, fast_forward: bool) -> None:
    arrivals = [Arrival(20 * i, 30, 20, 20, i) for i in range(40)]
    result = simulate(
        arrivals,
        cluster(policy, replicas=2),
        cluster_events=[(305, remove_the_first_replica)],
        fast_forward=fast_forward,
        check=True,
        record=Record(steps=True),
    )
    states, replica = result.requests["state"], result.requests["replica"]
    failed = states == FAILED
    assert failed.any()
    assert set(np.unique(states)) <= {FINISHED, FAILED}
    assert (replica[failed] == 0).all()
    assert (result.requests["end_ns"][failed] == 305).all()
    assert (replica[result.requests["arrival_ns"] > 305] == 1).all()
    assert {result.reasons[code] for code in result.requests["reason"][failed]} == {
        "replica removed"
    }


def test_removing_a_replica_gives_the_same_integers_with_and_without_fast_forward() -> None:
    arrivals = [Arrival(17 * i, 30, 25, 25, i) for i in range(30)]
    runs = [
        simulate(
            arrivals,
            cluster("sarathi", replicas=2),
            cluster_events=[(311, remove_the_first_replica)],
            fast_forward=fast_forward,
        )
        for fast_forward in (True, False)
    ]
    for name, column in runs[0].requests.items():
        assert column.tolist() == runs[1].requests[name].tolist(), name


# --- transfers that change under way


def two_pools() -> Cluster:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 100, STEP, kv_bytes_per_token=1)
    router = ROUTERS["round-robin"]
    pools = PoolSpec("prefill", [spec], router()), PoolSpec("decode", [spec], router())
    return Cluster(*pools, TransferSpec(bandwidth_bytes_per_s=1e9))


def test_the_end_of_a_transfer_can_move() -> None:
    def slow_link(live: LiveCluster) -> None:
        (transfer,) = live.between.transfers.values()
        transfer.move_end(100)

    # Prefill of 5 to 15; one block of 16 bytes at 1 byte/ns would end at 31; at 20 it moves to 120.
    result = simulate(
        [Arrival(0, 5, 2, 2, 0)], two_pools(), cluster_events=[(20, slow_link)], check=True
    )
    assert result.transfers["end_ns"].tolist() == [120]
    assert result.token_times_ns(0).tolist() == [15, 131]


def test_a_transfer_can_be_called_off_and_sent_again() -> None:
    def lose(live: LiveCluster) -> None:
        (transfer,) = live.between.transfers.values()
        transfer.call_off()
        again = Instant(live.env, 50, Phase.TRANSFER_END)
        again.callbacks.append(lambda _: live.between.transferred(transfer))

    result = simulate(
        [Arrival(0, 5, 2, 2, 0)], two_pools(), cluster_events=[(20, lose)], check=True
    )
    assert result.transfers["end_ns"].tolist() == [70]
    assert result.token_times_ns(0).tolist() == [15, 81]


# --- changes of state, with their causes


def test_every_change_of_state_is_recorded_and_refers_to_the_step_log() -> None:
    spec = ReplicaSpec(POLICIES["sarathi"](max_num_seqs=1), 100, STEP)
    arrivals = [Arrival(0, 5, 2, 2, 0), Arrival(1, 5, 2, 2, 1)]
    pool = PoolSpec("replica", [spec], ROUTERS["round-robin"]())
    result = simulate(arrivals, Cluster(pool), record=Record(steps=True, events=True))
    assert result.events is not None
    assert result.steps is not None
    rows = [row for row in zip(*result.events.values(), strict=True) if row[0] == 1]
    names = [EVENTS[code] for _, code, _, _, _ in rows]
    assert names == ["queued", "admitted", "prefilled", "ended"]
    assert [int(time) for _, _, time, _, _ in rows] == [1, 26, 41, 52]
    # It waited while the decode step from 15 to 26 ran, for want of a seat.
    waited = result.steps["cause"][rows[1][4]]
    assert CAUSES[waited] == "no_seat"
