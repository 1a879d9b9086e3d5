"""Requests that wait for several others, by hand (`traces.joins.Joins`; rules 52, 71 to 73)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.errors import TraceError
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import STATES, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival, Trace
from sim.step_time import LinearStepTime
from traces.sessions import SessionSource, begin_sessions, sessions_of

STEP = LinearStepTime(base_s=100e-9)
"""Every step takes 100 ns, whatever it does."""

Row = tuple[str, str, int, int, str]
"""Name, session, output tokens, delay ns, names of those it comes after."""

TREE: list[Row] = [
    ("p0", "p", 2, 0, ""),
    ("x0", "x", 1, 30, "p0"),
    ("x1", "x", 3, 10, ""),
    ("y0", "y", 1, 0, "p0"),
    ("p1", "p", 1, 50, "x1 y0"),
]
"""p0 lets x and y begin; p1 waits for both."""


def trace_of(rows: list[Row], prompt: dict[str, int] | None = None) -> Trace:
    names, sessions, output, delay, after = zip(*rows, strict=True)
    n = len(rows)
    outputs = np.array(output, dtype=np.int64)
    prompts = np.array([(prompt or {}).get(name, 5) for name in names], dtype=np.int64)
    trace = Trace(np.zeros(n, np.int64), prompts, outputs, outputs, np.arange(n) + 2)
    trace.source = "t.csv"
    trace.session = np.array(sessions, dtype=object)
    trace.request_id = np.array(names, dtype=object)
    trace.delay_ns = np.array(delay, dtype=np.int64)
    trace.after = [tuple(text.split()) for text in after]
    return trace


def run(
    trace: Trace, fast_forward: bool = True, **options: Any
) -> tuple[dict[str, tuple[int, int]], SessionSource, SimulationResult]:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), num_blocks=100, step_time=STEP, max_model_len=900)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))
    source = SessionSource(trace, **options)
    result = simulate(source, cluster, fast_forward=fast_forward, check=True)
    rows = result.requests
    assert trace.request_id is not None
    times = zip(rows["index"].tolist(), rows["arrival_ns"].tolist(), rows["end_ns"].tolist())  # noqa: B905
    return {trace.request_id[at]: (begin, end) for at, begin, end in times}, source, result


both = pytest.mark.parametrize("fast_forward", [True, False])


@both
def test_an_end_lets_two_begin_and_a_turn_waits_for_the_last_of_three(fast_forward: bool) -> None:
    times, source, _ = run(trace_of(TREE), fast_forward)

    # p0: 0 -> 200. y0 at 200 -> 300; x0 at 230, seen at 300 -> 400; x1 at 410 -> 710.
    # p1 waits for p0 (200), y0 (300) and x1 (710): 50 ns after the last.
    assert times == {
        "p0": (0, 200),
        "y0": (200, 300),
        "x0": (230, 400),
        "x1": (410, 710),
        "p1": (760, 860),
    }
    assert source.counts() == {"sessions": 3, "turns": 5, "skipped": 0, "cut_short": 0}


@both
def test_a_place_belongs_to_the_whole_tree(fast_forward: bool) -> None:
    alone: list[Row] = [("q0", "q", 1, 7, "")]
    times, _, _ = run(trace_of([*TREE, *alone]), fast_forward, concurrency=1)

    assert times["p1"] == (760, 860)
    assert times["q0"] == (867, 967)


@both
def test_a_parent_goes_on_when_a_sub_agent_is_rejected(fast_forward: bool) -> None:
    times, source, result = run(trace_of(TREE, {"x0": 1000}), fast_forward)

    # x0 is rejected at 230, x1 is skipped there; y0 ends at 300: p1 at 350.
    assert times == {"p0": (0, 200), "y0": (200, 300), "x0": (230, 230), "p1": (350, 450)}
    assert [STATES[s] for s in result.requests["state"]].count("rejected") == 1
    assert (source.skipped, source.cut_short) == (1, 1)


@both
def test_what_a_rejected_parent_would_have_begun_is_skipped(fast_forward: bool) -> None:
    rows: list[Row] = [*TREE, ("q0", "q", 1, 7, "")]
    times, source, _ = run(trace_of(rows, {"p0": 1000}), fast_forward, concurrency=1)

    assert times == {"p0": (0, 0), "q0": (7, 107)}
    assert (source.skipped, source.cut_short) == (4, 3)

    times, source, _ = run(
        trace_of(rows, {"p0": 1000}), fast_forward, concurrency=1, on_failed_turn="continue"
    )
    assert times["y0"] == (0, 100)
    assert source.skipped == 0


def test_the_same_source_can_be_run_again() -> None:
    trace = trace_of(TREE, {"x0": 1000})
    source = SessionSource(trace)
    spec = ReplicaSpec(POLICIES["vllm-v1"](), num_blocks=100, step_time=STEP, max_model_len=900)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))
    first, second = (simulate(source, cluster).requests["end_ns"].tolist() for _ in range(2))

    assert first == second
    assert source.skipped == 1


def test_processes_count_trees() -> None:
    rows: list[Row] = [*TREE, ("q0", "q", 1, 7, "")]
    begun = begin_sessions(trace_of(rows), "constant", rate_per_s=1, limit=2)

    assert begun.arrival_ns.tolist() == [0, 0, 0, 0, 0, 10**9]
    assert len(begin_sessions(trace_of(rows), "constant", rate_per_s=1, limit=1)) == 5
    assert sessions_of(begun).tree.tolist() == [0, 0, 0, 3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("x0", "x", 1, 0, "p9"), "after: no request 'p9'; did you mean p"),
        (("y0", "y", 1, 0, "p1"), "waits for others that wait for it"),
        (("y0", "y", 1, 0, ""), "two sessions wait for each other that both begin"),
        (("p0", "y", 1, 0, "x0"), "request_id: p0 is that of line 2 too"),
    ],
)
def test_what_cannot_be_waited_for_is_one_line(change: Row, says: str) -> None:
    place = {"x0": 1, "y0": 3, "p0": 3}[change[0]]
    rows = [*TREE[:place], change, *TREE[place + 1 :]]

    with pytest.raises(TraceError, match=says) as error:
        SessionSource(trace_of(rows))
    assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), concurrency=st.sampled_from([None, 1, 2]))
def test_any_tree_of_sessions_keeps_to_its_causes(
    data: st.DataObject, concurrency: int | None
) -> None:
    rows: list[Row] = []
    for tree in range(data.draw(st.integers(1, 3))):
        mine = [f"{tree}.0"]
        rows.append((mine[0], f"s{tree}", 1, data.draw(st.integers(0, 300)), ""))
        for k in range(1, data.draw(st.integers(1, 7))):
            name = f"{tree}.{k}"
            new = data.draw(st.booleans())
            after = data.draw(st.lists(st.sampled_from(mine), min_size=int(new), unique=True))
            session = f"s{name}" if new else rows[-1][1]
            rows.append((name, session, data.draw(st.integers(1, 3)), k, " ".join(after)))
            mine.append(name)
    both_ways = [run(trace_of(rows), on, concurrency=concurrency)[0] for on in (True, False)]

    times = both_ways[0]
    assert times == both_ways[1]
    assert len(times) == len(rows)
    before: dict[str, str] = {}
    starts = 0
    for name, session, _, delay, after in rows:
        causes = [times[each][1] for each in after.split()]
        if session in before:
            causes.append(times[before[session]][1])
        before[session] = name
        if causes:
            assert times[name][0] == max(causes) + delay
            continue
        starts += 1
        if concurrency is None or starts <= concurrency:
            assert times[name][0] == 0


def test_a_loop_that_ignores_think_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: SessionSource, row: int, now_ns: int) -> Arrival:
        return self._arrival(row, now_ns)

    monkeypatch.setattr(SessionSource, "_caused", at_once)
    with pytest.raises(AssertionError):
        test_an_end_lets_two_begin_and_a_turn_waits_for_the_last_of_three(True)


def test_a_turn_that_does_not_wait_for_sub_agents_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_first(self: SessionSource, row: int, now_ns: int, *, stops: bool) -> Iterable[Arrival]:
        later = self._following[row]
        return (self._caused(later, now_ns),) if later >= 0 else ()

    monkeypatch.setattr(
        "traces.sessions.SessionSource._joined",
        lambda s, j, r, n, stops: at_first(s, r, n, stops=stops),
    )
    with pytest.raises(AssertionError):
        test_an_end_lets_two_begin_and_a_turn_waits_for_the_last_of_three(True)
