"""Arrival processes over the same requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import traces
from sim.errors import TraceError
from sim.request import Trace
from traces.arrivals import arrive, make_source
from traces.build import columns
from traces.workload import ClosedLoopSource, TraceSource, resolve


def even(n: int, step_ns: int = 10**9) -> Trace:
    numbers = np.arange(n, dtype=np.int64)
    return columns(numbers * step_ns, numbers + 1, numbers + 1, numbers + 2)


def gaps_s(trace: Trace) -> np.ndarray:
    return np.diff(trace.arrival_ns) / 1e9


def test_recorded_times_stay_as_they_are() -> None:
    trace = even(5)

    assert arrive(trace).arrival_ns.tolist() == trace.arrival_ns.tolist()


def test_speedup_divides_exactly_and_rounds_half_to_even() -> None:
    trace = columns(np.array([1, 3, 5, 10**17]), *(np.ones(4, dtype=np.int64),) * 3)

    fast = arrive(trace, speedup=2.0)
    third = arrive(trace, speedup=0.1)

    assert fast.arrival_ns.tolist() == [0, 2, 2, 5 * 10**16]
    assert third.arrival_ns[:3].tolist() == [10, 30, 50]


def test_window_keeps_its_rows_and_starts_at_the_first() -> None:
    part = arrive(even(10), window_s=(2.5, 5.0))

    assert part.arrival_ns.tolist() == [0, 10**9]
    assert part.row.tolist() == [5, 6]
    assert "2 of 10 requests are in the window." in part.notes


def test_window_from_the_start_moves_nothing() -> None:
    trace = even(3)
    trace.arrival_ns = trace.arrival_ns + 5

    assert arrive(trace, window_s=(0, 1.5)).arrival_ns.tolist() == [5, 10**9 + 5]


def test_empty_window_is_refused_with_what_there_is() -> None:
    with pytest.raises(TraceError, match=r"no request from 50 to 60 s; expected a part of 0 to 9"):
        arrive(even(10), window_s=(50, 60))


def test_limit_keeps_the_first_and_says_so() -> None:
    few = arrive(even(10), "poisson", limit=4, rate_per_s=1.0)

    assert few.row.tolist() == [2, 3, 4, 5]
    assert "Limited to the first 4 requests." in few.notes


def test_spread_ticks_fills_mooncakes_ticks_in_order(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "mooncake_conversation_head.jsonl.gz")

    spread = arrive(trace, spread_ticks=True, seed=1)

    moved = spread.arrival_ns - trace.arrival_ns
    assert (gaps_s(spread) >= 0).all()
    assert moved.min() >= -1_000_000
    assert moved.max() < 3_001_000_000
    # Ten requests or so a tick, uniform in it: nearly Poisson.
    assert gaps_s(spread).std() / gaps_s(spread).mean() == pytest.approx(1.0, abs=0.05)


def test_spread_ticks_refuses_a_fine_clock(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "azure_2023_code.csv")

    with pytest.raises(TraceError, match="spread_ticks"):
        arrive(trace, spread_ticks=True)


@pytest.mark.parametrize(("process", "cv"), [("poisson", 1.0), ("gamma", 2.5), ("gamma", 0.5)])
def test_drawn_arrivals_have_the_rate_and_the_cv(process: str, cv: float) -> None:
    drawn = arrive(
        even(40_000), process, rate_per_s=4.0, cv=cv if process == "gamma" else None, seed=5
    )

    gaps = gaps_s(drawn)
    assert gaps.mean() == pytest.approx(0.25, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    assert (gaps >= 0).all()


def test_another_rate_scales_the_same_pattern() -> None:
    slow, fast = (arrive(even(50), "poisson", rate_per_s=r, seed=2) for r in (1.0, 2.0))

    assert np.abs(slow.arrival_ns - 2 * fast.arrival_ns).max() <= 1


def test_same_seed_same_arrivals_and_lengths_untouched() -> None:
    one, other, different = (arrive(even(50), "gamma", cv=2.0, seed=s) for s in (3, 3, 4))

    assert (one.arrival_ns == other.arrival_ns).all()
    assert (one.arrival_ns != different.arrival_ns).any()
    assert one.prompt_tokens.tolist() == even(50).prompt_tokens.tolist()


def test_constant_arrivals_are_exact() -> None:
    assert arrive(even(4), "constant", rate_per_s=3.0).arrival_ns.tolist() == [
        0, 333_333_333, 666_666_667, 1_000_000_000,
    ]  # fmt: skip


def test_rate_defaults_to_the_recorded_one() -> None:
    assert arrive(even(5), "constant").arrival_ns.tolist() == even(5).arrival_ns.tolist()


def test_bursts_arrive_together_at_equal_distances() -> None:
    together = arrive(even(5), "burst", rate_per_s=2.0, burst_requests=2)

    assert together.arrival_ns.tolist() == [0, 0, 10**9, 10**9, 2 * 10**9]
    assert arrive(even(5), "burst").arrival_ns.tolist() == [0] * 5


def test_lengths_without_arrivals_need_a_process_and_a_rate() -> None:
    bare = even(3)
    bare.arrival_ns = np.full(3, -1, dtype=np.int64)

    with pytest.raises(TraceError, match="no arrival times"):
        arrive(bare)
    with pytest.raises(TraceError, match="rate_per_s"):
        arrive(bare, "poisson")
    assert len(arrive(bare, "poisson", rate_per_s=1.0)) == 3
    assert arrive(bare, "closed-loop").arrival_ns.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("process", "options"),
    [
        ("poison", {}),
        ("recorded", {"speedup": 0.0}),
        ("recorded", {"limit": 0}),
        ("recorded", {"window_s": (3, 2)}),
        ("poisson", {"rate_per_s": -1.0}),
        ("gamma", {"rate_per_s": 1.0}),
        ("burst", {"rate_per_s": 1.0, "burst_requests": 0}),
    ],
)
def test_arguments_out_of_bounds_are_refused(process: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|did you mean"):
        arrive(even(3), process, **options)  # type: ignore[arg-type]


def test_source_is_open_or_closed_by_concurrency() -> None:
    settled, _ = resolve(even(3), 5)

    assert isinstance(make_source(settled), TraceSource)
    closed = make_source(settled, 2)
    assert isinstance(closed, ClosedLoopSource)
    assert closed.concurrency == 2
