"""Sessions in closed loop by hand (rules 52, 71 to 73): think times, failed turns, places."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster, LiveCluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import STATES, Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival, Trace
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec
from traces.sessions import SessionSource
from traces.turns import draw_delays

STEP = LinearStepTime(base_s=10e-9, prefill_token_s=1e-9, decode_s=1e-9)
"""10 ns + 1 ns for each token: every time below can be added up by hand."""

Row = tuple[str | None, int, int, int, int]
"""Session, prompt tokens, output tokens, delay and recorded arrival, ns."""


def trace_of(rows: list[Row]) -> Trace:
    sessions, prompt, output, delay, arrival = zip(*rows, strict=True)
    ints = [np.array(column, dtype=np.int64) for column in (arrival, prompt, output, output)]
    trace = Trace(*ints, row=np.arange(len(rows)) + 2, source="t.csv")
    trace.session = np.array(sessions, dtype=object)
    trace.delay_ns = np.array(delay, dtype=np.int64)
    return trace


def cluster(policy: str = "vllm-v1", *, replicas: int = 1, blocks: int = 100) -> Cluster:
    spec = ReplicaSpec(POLICIES[policy](), num_blocks=blocks, step_time=STEP)
    return Cluster(PoolSpec("replica", [spec] * replicas, ROUTERS["round-robin"]()))


def run(
    rows: list[Row],
    where: Cluster | None = None,
    *,
    fast_forward: bool = True,
    **options: Any,
) -> tuple[SimulationResult, SessionSource]:
    source = SessionSource(trace_of(rows), **options)
    result = simulate(source, where or cluster(), fast_forward=fast_forward, check=True)
    return result, source


def when(result: SimulationResult) -> dict[int, tuple[int, int]]:
    """Arrival and end of each request, ns."""
    requests = result.requests
    columns = (requests[name].tolist() for name in ("index", "arrival_ns", "end_ns"))
    return {index: (arrival, end) for index, arrival, end in zip(*columns, strict=True)}


def states(result: SimulationResult) -> list[str]:
    return [STATES[state] for state in result.requests["state"]]


both = pytest.mark.parametrize("fast_forward", [True, False])


# --- think times

TWO: list[Row] = [
    ("a", 5, 3, 900, 0),
    ("b", 4, 2, 900, 100),
    ("a", 7, 1, 40, 1),
    ("b", 2, 2, 0, 2),
    ("a", 3, 1, 5, 3),
]


@both
def test_a_turn_arrives_its_delay_after_the_last_token_of_the_turn_before(
    fast_forward: bool,
) -> None:
    result, source = run(TWO, fast_forward=fast_forward)

    # a0: 0, prefill 15, two decodes of 11: ends at 37. a1 at 37 + 40 = 77: 17: ends at 94.
    # a2 at 94 + 5 = 99: 13: would end at 112. b0 comes at 100, in that step, and starts at 112:
    # 14 -> 126, decode 11 -> 137. b1 without delay at 137: 12 -> 149, 11 -> 160.
    # First turns arrive as recorded, whatever their delay; later ones ignore their recorded time.
    assert when(result) == {
        0: (0, 37),
        1: (100, 137),
        2: (77, 94),
        3: (137, 160),
        4: (99, 112),
    }
    assert source.counts() == {"sessions": 2, "turns": 5, "skipped": 0, "cut_short": 0}


@both
def test_a_turn_without_delay_joins_the_pass_of_the_very_instant(fast_forward: bool) -> None:
    rows: list[Row] = [("a", 5, 2, 0, 0), (None, 6, 3, 0, 1), ("a", 2, 1, 0, 0)]
    result, _ = run(rows, fast_forward=fast_forward)

    # 0: prefill of 0: 15. 15: decode of 0 and prefill of 1: 10 + 1 + 6 -> 32, the end of 0.
    # 32: decode of 1 with the prefill of 2, which arrived at 32: 10 + 1 + 2 -> 45. 45: 11 -> 56.
    assert when(result) == {0: (0, 32), 1: (1, 56), 2: (32, 45)}


@both
def test_a_caused_arrival_stands_behind_the_traces_own_of_that_instant(fast_forward: bool) -> None:
    rows: list[Row] = [("a", 5, 1, 0, 0), ("a", 2, 1, 0, 0), ("b", 3, 1, 0, 15)]
    result, _ = run(rows, cluster(replicas=2), fast_forward=fast_forward)

    # a0 ends at 15 on replica 0; at 15 b0 is routed first, to replica 1, then a1 to replica 0.
    assert when(result) == {0: (0, 15), 1: (15, 27), 2: (15, 28)}
    assert result.requests["replica"].tolist() == [0, 0, 1]


@both
def test_turns_caused_for_one_instant_stand_in_the_order_of_their_causes(
    fast_forward: bool,
) -> None:
    rows: list[Row] = [
        ("b", 5, 2, 0, 0),
        ("a", 6, 1, 0, 0),
        ("b", 2, 1, 4, 0),
        ("a", 3, 1, 14, 0),
    ]
    result, _ = run(rows, cluster(replicas=2), fast_forward=fast_forward)

    # b0 on replica 0: 15, 26. a0 on replica 1: 16. Both next turns come at 30; a's cause was first.
    assert when(result) == {0: (0, 26), 1: (0, 16), 2: (30, 42), 3: (30, 43)}
    assert result.requests["replica"].tolist() == [0, 1, 1, 0]


@both
def test_a_closed_loop_that_ignores_think_time_is_found_out(
    fast_forward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(self: SessionSource, row: int, now_ns: int) -> Arrival:
        return self._arrival(row, now_ns)

    monkeypatch.setattr(SessionSource, "_caused", at_once)
    with pytest.raises(AssertionError):
        test_a_turn_arrives_its_delay_after_the_last_token_of_the_turn_before(fast_forward)


# --- turns that fail

LONG = 5000  # tokens: more than the pool of 100 blocks of 16


FAILING: list[Row] = [
    ("a", 5, 1, 0, 0),
    ("a", LONG, 1, 20, 0),
    ("b", 6, 1, 0, 50),
    ("a", 4, 1, 30, 0),
    ("a", 3, 1, 0, 0),
    ("b", 2, 1, 7, 0),
]


@both
def test_after_a_rejected_turn_the_rest_of_the_session_is_skipped_and_counted(
    fast_forward: bool,
) -> None:
    result, source = run(FAILING, fast_forward=fast_forward)

    # a0: 0 -> 15. a1 at 35, rejected there. b0: 50 -> 66. b1 at 73 -> 85. Rows 3 and 4 never come.
    assert when(result) == {0: (0, 15), 1: (35, 35), 2: (50, 66), 5: (73, 85)}
    assert states(result) == ["finished", "rejected", "finished", "finished"]
    assert source.counts() == {"sessions": 2, "turns": 6, "skipped": 2, "cut_short": 1}
    assert source.note() == (
        "skipped: 2 turns of 1 session never arrived, as a turn before was rejected or failed"
        " (workload.sessions.on_failed_turn)."
    )


@both
def test_continue_goes_on_after_a_rejected_turn(fast_forward: bool) -> None:
    result, source = run(FAILING, fast_forward=fast_forward, on_failed_turn="continue")

    # a1 is rejected at 35, a2 comes 30 later: 65, in the step of b0 (50 -> 66), runs 66 -> 80 ; a3
    # without delay: 80 -> 93. b1 at 66 + 7 = 73 joins a3: 80: 10 + 3 + 2 -> 95.
    assert when(result) == {
        0: (0, 15),
        1: (35, 35),
        2: (50, 66),
        3: (65, 80),
        4: (80, 95),
        5: (73, 95),
    }
    assert source.note() is None


@both
def test_after_a_failed_turn_the_rest_is_skipped_but_not_after_a_cancelled_one(
    fast_forward: bool,
) -> None:
    rows: list[Row] = [("a", 5, 9, 0, 0), ("a", 4, 1, 3, 0), ("b", 5, 1, 0, 200), ("b", 2, 1, 3, 0)]

    def lose(state: str, live: LiveCluster) -> None:
        (life,) = live.live.values()
        replica = live.replicas[0]
        replica.void()
        live.end(life, STATES.index(state), "lost", 20)

    ends = {}
    for state in ("failed", "cancelled"):
        source = SessionSource(trace_of(rows))
        events = [(20, lambda live, state=state: lose(state, live))]
        result = simulate(
            source, cluster(), fast_forward=fast_forward, check=True, cluster_events=events
        )
        ends[state] = when(result)
        assert states(result)[0] == state
        assert source.skipped == (1 if state == "failed" else 0)

    # Lost at 20; after a cancelled turn the next comes at 23: 14 -> 37.
    rest = {2: (200, 215), 3: (218, 230)}
    assert ends["failed"] == {0: (0, 20), **rest}
    assert ends["cancelled"] == {0: (0, 20), 1: (23, 37), **rest}


def test_a_source_without_on_failed_is_told_of_failures_as_of_other_ends() -> None:
    class Plain:
        def __init__(self) -> None:
            self.told: list[int] = []

        def __iter__(self) -> Any:
            yield Arrival(0, LONG, 1, 1, 0)
            yield Arrival(1, 5, 1, 1, 1)

        def on_end(self, request_index: int, now_ns: int) -> Iterable[Arrival]:
            self.told.append(request_index)
            return ()

    source = Plain()
    simulate(source, cluster())

    assert source.told == [0, 1]


# --- places

PLACES: list[Row] = [
    ("a", 5, 1, 900, 70),  # delay and time of a session that begins the run are not used
    ("b", 4, 1, 900, 60),
    ("c", 6, 1, 25, 50),
    ("a", 2, 1, 100, 0),
    (None, 3, 1, 0, 40),
    ("b", 1, 1, 10, 0),
    ("c", 7, 1, 1, 0),
]


@both
def test_concurrency_counts_sessions_and_a_place_is_held_through_think_times(
    fast_forward: bool,
) -> None:
    result, source = run(PLACES, fast_forward=fast_forward, concurrency=2)

    # 0: a0 and b0 together: 10 + 9 -> 19. b1 at 29 -> 40: b is over. c0 comes its delay, 25, later:
    # 65 -> 81. a1 at 19 + 100 = 119; c1 at 82 -> 99: c is over, the request without session at 99
    # -> 112. a1: 119 -> 131. Nobody took a's place from 19 to 119.
    assert when(result) == {
        0: (0, 19),
        1: (0, 19),
        5: (29, 40),
        2: (65, 81),
        6: (82, 99),
        4: (99, 112),
        3: (119, 131),
    }
    assert len(source) == 7


@both
def test_a_skipped_rest_frees_the_place_at_once(fast_forward: bool) -> None:
    rows: list[Row] = [
        ("a", LONG, 1, 0, 0),
        ("a", 5, 1, 0, 0),
        ("b", LONG, 1, 0, 0),
        ("c", 5, 1, 8, 0),
    ]
    result, source = run(rows, fast_forward=fast_forward, concurrency=1)

    # a0 and b0 are rejected at 0, one causing the other; c0 comes 8 later: 8 -> 23.
    assert when(result) == {0: (0, 0), 2: (0, 0), 3: (8, 23)}
    assert source.skipped == 1


@both
def test_one_place_runs_sessions_one_after_the_other(fast_forward: bool) -> None:
    result, _ = run(TWO, fast_forward=fast_forward, concurrency=1)
    ends = when(result)

    order = sorted(ends, key=lambda row: ends[row])
    assert order == [0, 2, 4, 1, 3]
    assert [ends[row][0] for row in order] == [0, 77, 99, 112 + 900, 1012 + 25]


# --- the same integers


def random_rows(seed: int, n: int = 60) -> list[Row]:
    rng = np.random.default_rng(seed)
    names = [None, *"abcdefghij"]
    return [
        (
            names[rng.integers(len(names))],
            int(rng.integers(1, 60)) if rng.random() < 0.95 else LONG,
            int(rng.integers(1, 30)),
            int(rng.integers(0, 400)) * int(rng.random() < 0.7),
            int(arrival),
        )
        for arrival in np.sort(rng.integers(0, 2000, n))
    ]


def disaggregated() -> Cluster:
    first, then = (cluster(blocks=40).entry for _ in range(2))
    return Cluster(first, then, TransferSpec(1e9))


@pytest.mark.parametrize("concurrency", [None, 3])
@pytest.mark.parametrize("on_failed_turn", ["skip", "continue"])
@pytest.mark.parametrize("layout", [*POLICIES, "disaggregated"])
def test_fast_forward_gives_the_integers_of_single_steps(
    layout: str, on_failed_turn: str, concurrency: int | None
) -> None:
    for seed in range(3):
        where = (
            disaggregated() if layout == "disaggregated" else cluster(layout, replicas=2, blocks=30)
        )
        source = SessionSource(
            trace_of(random_rows(seed)), concurrency=concurrency, on_failed_turn=on_failed_turn
        )
        runs = [
            (
                simulate(
                    source,
                    copy.deepcopy(where),
                    fast_forward=fast_forward,
                    check=True,
                    record=Record(steps=True),
                ).requests,
                source.counts(),
            )
            for fast_forward in (True, False)
        ]
        (fast, fast_counts), (slow, slow_counts) = runs
        assert fast_counts == slow_counts
        assert fast.keys() == slow.keys()
        assert all((fast[name] == slow[name]).all() for name in fast)
        arrived = len(fast["index"])
        assert arrived + fast_counts["skipped"] == 60  # rule 73: arrived, or skipped, once
        assert (source.skipped > 0) <= (on_failed_turn == "skip")
        order_and_delays_hold(source, fast)


def order_and_delays_hold(source: SessionSource, requests: dict[str, Any]) -> None:
    """Each turn that came arrived exactly its delay after the end of the turn before."""
    index = requests["index"].tolist()
    arrival = dict(zip(index, requests["arrival_ns"].tolist(), strict=True))
    end = dict(zip(index, requests["end_ns"].tolist(), strict=True))
    assert source.trace.delay_ns is not None
    turns = zip(source.sessions.before.tolist(), source.sessions.later.tolist(), strict=True)
    for before, later in turns:
        if later in arrival:
            assert arrival[later] == end[before] + source.trace.delay_ns[later]


# --- Little's law


def test_sessions_at_work_and_thinking_add_up_to_the_places() -> None:
    # N places, one turn after the other: N = X (R + Z) for throughput X, mean time R in the system
    # and mean think time Z, while every place is taken: until the last session begins.
    places, turns_each, sessions = 8, 10, 120
    rows: list[Row] = [
        (f"s{session}", 20, 10, 0, 0) for _ in range(turns_each) for session in range(sessions)
    ]
    trace = draw_delays(trace_of(rows), "exponential", 600e-9, seed=3)
    result = simulate(SessionSource(trace, concurrency=places), cluster())

    requests = result.requests
    arrival, end = requests["arrival_ns"], requests["end_ns"]
    until = int(arrival[requests["index"] == sessions - 1][0])
    ended = end <= until
    in_system = float((end - arrival)[ended].mean())
    assert trace.delay_ns is not None
    thought = float(trace.delay_ns.mean())
    assert ended.sum() / until * (in_system + thought) == pytest.approx(places, rel=0.02)
    assert in_system > 130  # alone it takes 30 + 9 x 11 = 129 ns: sessions are in each other's way
