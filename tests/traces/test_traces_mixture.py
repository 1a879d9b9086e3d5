"""Mixed workloads: nothing is shared between parts, and each end is told to its own."""

from __future__ import annotations

import numpy as np

from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.request import Trace
from sim.step_time import LinearStepTime
from traces.generators.parts import PrefixRepetition
from traces.generators.surfaces import EditorChat
from traces.mixture import MixedSource, joined, seed_of_part, set_apart
from traces.sessions import SessionSource
from traces.workload import ClosedLoopSource, TraceSource, resolve

STEP = LinearStepTime(base_s=100e-9)


def plain(times: list[int], outputs: list[int], session: list[str] | None = None) -> Trace:
    n = len(times)
    prompts = np.full(n, 5, dtype=np.int64)
    asked = np.array(outputs, dtype=np.int64)
    trace = Trace(np.array(times, dtype=np.int64), prompts, asked, asked, np.arange(n))
    if session is not None:
        trace.session = np.array(session, dtype=object)
        trace.delay_ns = np.full(n, 50, dtype=np.int64)
    return trace


def run(source: MixedSource, fast_forward: bool = True) -> dict[int, tuple[int, int]]:
    spec = ReplicaSpec(POLICIES["vllm-v1"](), num_blocks=100, step_time=STEP)
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))
    rows = simulate(source, cluster, fast_forward=fast_forward, check=True).requests
    columns = (rows[name].tolist() for name in ("index", "arrival_ns", "end_ns"))
    return {index: (begin, end) for index, begin, end in zip(*columns, strict=True)}


def test_open_closed_and_session_parts_run_side_by_side() -> None:
    parts = [
        plain([0, 450], [1, 1]),
        plain([0, 0, 0], [2, 1, 1]),
        plain([100, 100], [1, 1], ["s", "s"]),
    ]
    for fast_forward in (True, False):
        mixed = MixedSource(
            [TraceSource(parts[0]), ClosedLoopSource(parts[1], 1), SessionSource(parts[2])]
        )
        times = run(mixed, fast_forward)

        # 0 and 2 at 0: 100 and 200; 5 at 100 runs beside 2's second token, ends at 200.
        # 3 follows 2 at 200, 4 follows 3 at 300; 6 comes 50 after 5, at 250, and waits to 300.
        assert times == {
            0: (0, 100),
            2: (0, 200),
            5: (100, 200),
            3: (200, 300),
            4: (300, 400),
            6: (250, 400),
            1: (450, 550),
        }
        assert mixed.counts() == {"sessions": 1, "turns": 2, "skipped": 0, "cut_short": 0}
        assert mixed.note() is None
        assert len(mixed) == 7


def test_parts_share_no_token_and_no_name() -> None:
    made = [resolve(PrefixRepetition(num_prefixes=2).make(6, 1))[0] for _ in range(2)]
    chats = [resolve(EditorChat().make(6, 1))[0] for _ in range(2)]
    apart = set_apart([*made, *chats], ["a", "b", "c", "d"])
    trace = joined(apart)

    assert trace.content is not None
    tokens = [
        {
            first + at
            for row in range(begin, begin + 6)
            for first, many in trace.content[row].runs(0, 10**6)
            for at in range(many)
        }
        for begin in (0, 6)
    ]
    assert not tokens[0] & tokens[1]
    assert trace.session is not None
    assert len(set(trace.session[12:18]) & set(trace.session[18:])) == 0
    assert trace.session[:12].tolist() == [None] * 12
    assert trace.request_class is not None
    assert trace.request_class[12:].tolist() == ["editor-chat"] * 12
    assert (trace.delay_ns[:12] == 0).all()


def test_a_part_draws_by_its_name_alone() -> None:
    assert seed_of_part(7, "agent") == seed_of_part(7, "agent")
    assert len({seed_of_part(seed, name) for seed in (7, 8) for name in ("agent", "chat")}) == 4
