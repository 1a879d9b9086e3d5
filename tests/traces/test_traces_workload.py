"""Settling max_tokens, and the sources that feed arrivals to a simulation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sim.content import Content
from sim.errors import TraceError
from sim.request import Arrival, Trace
from traces.build import columns
from traces.workload import ClosedLoopSource, TraceSource, resolve


def trace_of(
    prompt: list[int], output: list[int], asked: list[int] | None = None, step_ns: int = 10
) -> Trace:
    n = len(prompt)
    trace = columns(
        np.arange(n, dtype=np.int64) * step_ns,
        np.array(prompt, dtype=np.int64),
        np.array(output, dtype=np.int64),
        np.arange(n, dtype=np.int64) + 2,
        None if asked is None else np.array(asked, dtype=np.int64),
    )
    trace.source = "t.csv"
    return trace


# resolve


def test_the_traces_own_max_tokens_come_before_the_workloads() -> None:
    settled, notes = resolve(trace_of([1, 1], [2, 2], [5, 0]), max_tokens=9)

    assert settled.max_tokens.tolist() == [5, 9]
    assert notes == []


def test_without_max_tokens_reservations_are_clairvoyant_and_said_so() -> None:
    settled, notes = resolve(trace_of([1, 1, 1], [2, 7, 0]))

    assert settled.max_tokens.tolist() == [2, 7, 1]
    assert notes[0].startswith("clairvoyant: 3 of 3")


def test_outputs_above_max_tokens_are_cut_and_counted() -> None:
    trace = trace_of([1, 1, 1], [2, 7, 9])

    settled, notes = resolve(trace, max_tokens=5)

    assert settled.output_tokens.tolist() == [2, 5, 5]
    assert notes == ["cut_by_max_tokens: 2 of 3 outputs were longer than asked for and end there."]
    assert trace.output_tokens.tolist() == [2, 7, 9]


def test_reject_leaves_rows_over_the_model_length_to_the_simulation() -> None:
    settled, notes = resolve(trace_of([90, 1], [20, 2]), 50, "reject", 100)

    assert settled.max_tokens.tolist() == [50, 50]
    assert notes == []


def test_clip_lowers_max_tokens_then_the_output() -> None:
    # Rule 49: m = min(m, L - p), then o = min(o, m); p >= L stays and is rejected.
    settled, notes = resolve(trace_of([90, 60, 100, 120], [20, 20, 20, 20]), 50, "clip", 100)

    assert settled.max_tokens.tolist() == [10, 40, 50, 50]
    assert settled.output_tokens.tolist() == [10, 20, 20, 20]
    assert [note.split(":")[0] for note in notes] == ["clipped", "cut_by_max_model_len"]


def test_error_names_the_first_row_over_the_model_length() -> None:
    with pytest.raises(TraceError, match=r"t\.csv:3: 90 prompt tokens .* 100 together.*1 such"):
        resolve(trace_of([1, 90], [2, 2]), 50, "error", 100)


def test_empty_rows_stay_and_can_be_fed() -> None:
    settled, _ = resolve(trace_of([0, 5], [3, 0]), None, "error", 4)

    assert settled.prompt_tokens.tolist() == [0, 5]
    assert settled.output_tokens.tolist() == [3, 0]
    assert settled.max_tokens.min() >= 1


def test_max_tokens_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens: 0"):
        resolve(trace_of([1], [1]), 0)


# TraceSource


def test_trace_source_yields_rows_in_order_with_all_columns() -> None:
    trace = trace_of([5, 6], [1, 2], [3, 4])
    trace.session = np.array(["s", None], dtype=object)
    trace.turn = np.array([0, -1])
    trace.priority = np.array([-1, 2])
    trace.deadline_ns = np.array([7, -1])
    trace.delay_ns = np.array([0, 8])
    trace.cancel_after_ns = np.array([-1, 9])
    trace.block_ids = [np.array([0, 1]), np.array([0])]
    trace.block_ids_tokens = 4

    first, second = TraceSource(trace)

    assert first[:5] == (0, 5, 1, 3, 0)
    assert second[:5] == (10, 6, 2, 4, 1)
    assert (first.session, first.turn, second.session, second.turn) == ("s", 0, None, None)
    assert (first.priority, second.priority) == (-1, 2)
    assert (first.deadline_ns, second.deadline_ns) == (7, None)
    assert (first.delay_ns, second.delay_ns) == (0, 8)
    assert (first.cancel_after_ns, second.cancel_after_ns) == (None, 9)
    # Of 5 prompt tokens one block of 4 is full.
    assert (first.content, second.content) == (Content([(0, 4)]), Content([(0, 4)]))


def test_trace_source_is_what_the_trace_itself_lists() -> None:
    trace = trace_of([5, 6, 7], [1, 2, 3], [3, 4, 5])

    assert list(TraceSource(trace)) == list(trace.arrivals())


def test_trace_source_can_be_run_again_and_ignores_ends() -> None:
    source = TraceSource(trace_of([1] * 3, [1] * 3, [1] * 3))

    assert len(source) == 3
    assert list(source) == list(source)
    assert list(source.on_end(0, 5)) == []


def test_trace_source_is_lazy() -> None:
    n = 1_000_000
    ones = np.ones(n, dtype=np.int64)
    source = TraceSource(columns(np.arange(n), ones, ones, ones, ones))

    first = list(itertools.islice(source, 3))

    assert [arrival.arrival_ns for arrival in first] == [0, 1, 2]
    assert all(type(arrival) is Arrival for arrival in first)


def test_sources_refuse_what_is_not_settled_or_not_in_order() -> None:
    with pytest.raises(ValueError, match="resolve"):
        TraceSource(trace_of([1], [1]))
    with pytest.raises(ValueError, match="resolve"):
        ClosedLoopSource(trace_of([1], [1]), 1)
    with pytest.raises(ValueError, match="out of order"):
        TraceSource(trace_of([1, 1], [1, 1], [1, 1], step_ns=-5))


# ClosedLoopSource


def test_closed_loop_starts_n_and_adds_one_for_each_end() -> None:
    trace = trace_of([1, 2, 3, 4], [1] * 4, [1] * 4)
    trace.delay_ns = np.array([9, 9, 0, 7])
    source = ClosedLoopSource(trace, 2)

    started = list(source)
    third = list(source.on_end(1, 100))
    fourth = list(source.on_end(0, 150))

    assert [(a.arrival_ns, a.index) for a in started] == [(0, 0), (0, 1)]
    assert [(a.arrival_ns, a.index, a.prompt_tokens) for a in third] == [(100, 2, 3)]
    assert [(a.arrival_ns, a.index) for a in fourth] == [(157, 3)]
    assert list(source.on_end(2, 200)) == []
    assert len(source) == 4


def test_closed_loop_can_be_run_again() -> None:
    source = ClosedLoopSource(trace_of([1, 2, 3], [1] * 3, [1] * 3), 1)

    def run() -> list[int]:
        ended = [a.index for a in source]
        for index in ended:
            ended += [a.index for a in source.on_end(index, 10)]
        return ended

    assert run() == run() == [0, 1, 2]


def test_more_places_than_requests_start_them_all() -> None:
    source = ClosedLoopSource(trace_of([1, 2], [1] * 2, [1] * 2), 5)

    assert len(list(source)) == 2
    assert list(source.on_end(0, 1)) == []


def test_concurrency_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="concurrency: 0"):
        ClosedLoopSource(trace_of([1], [1], [1]), 0)
