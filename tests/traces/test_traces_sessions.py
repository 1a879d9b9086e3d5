"""Which rows are turns of a session, when sessions begin, delays, whole prompts, what is shared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import traces
from sim.content import Content
from sim.errors import TraceError
from sim.request import NEVER, Trace
from traces.build import columns
from traces.sessions import SessionSource, begin_sessions, sessions_of
from traces.turns import draw_delays, whole_prompts, with_content
from traces.workload import resolve


def trace_of(
    session: list[str | None],
    turn: list[int] | None = None,
    prompt: list[int] | None = None,
    output: list[int] | None = None,
    arrival: list[int] | None = None,
) -> Trace:
    n = len(session)
    trace = columns(
        np.array(arrival or range(n), dtype=np.int64) * 10**9,
        np.array(prompt or [5] * n, dtype=np.int64),
        np.array(output or [2] * n, dtype=np.int64),
        np.arange(n, dtype=np.int64) + 2,
    )
    trace.source = "t.csv"
    trace.session = np.array(session, dtype=object)
    trace.turn = None if turn is None else np.array(turn, dtype=np.int64)
    return trace


def settled(*args: Any, **more: Any) -> Trace:
    return resolve(trace_of(*args, **more))[0]


# --- which rows


def test_sessions_are_numbered_by_first_appearance_and_a_row_without_one_is_alone() -> None:
    sessions = sessions_of(trace_of(["b", None, "a", "b", None, "b"]))

    assert sessions.of_row.tolist() == [0, 1, 2, 0, 3, 0]
    assert sessions.first.tolist() == [0, 1, 2, 4]
    assert sessions.following.tolist() == [3, -1, -1, 5, -1, -1]
    assert sessions.left.tolist() == [2, 0, 0, 1, 0, 0]
    assert list(zip(sessions.before.tolist(), sessions.later.tolist(), strict=True)) == [
        (0, 3),
        (3, 5),
    ]


def test_turns_follow_the_column_turn_whatever_the_order_of_the_file() -> None:
    sessions = sessions_of(trace_of(["a", "b", "a", "a"], [2, NEVER, 0, 1]))

    assert sessions.first.tolist() == [2, 1]
    assert sessions.following.tolist() == [-1, -1, 3, 0]


@pytest.mark.parametrize(
    ("session", "turn", "says"),
    [
        ([None, None], None, "no row has a session; expected a column session"),
        (["a", "b", "a"], [1, 1, 1], r"t\.csv:4: session a: two rows are turn 1"),
        (["a", "a"], [NEVER, 3], r"t\.csv:3: session a: a row has no turn beside turn 3"),
    ],
)
def test_sessions_that_are_not_clear_are_refused(
    session: list[str | None], turn: list[int] | None, says: str
) -> None:
    with pytest.raises(TraceError, match=says):
        sessions_of(trace_of(session, turn))


def test_a_source_can_be_run_again_and_refuses_what_makes_no_sense() -> None:
    source = SessionSource(settled(["a", "b", "a"]), concurrency=1)

    def run() -> list[int]:
        came = [arrival.index for arrival in source]
        for index in came:
            came += [arrival.index for arrival in source.on_end(index, 10)]
        return came

    assert run() == run() == [0, 2, 1]
    with pytest.raises(ValueError, match="concurrency: 0"):
        SessionSource(settled(["a"]), concurrency=0)
    with pytest.raises(ValueError, match="'skipp'; did you mean skip"):
        SessionSource(settled(["a"]), on_failed_turn="skipp")
    with pytest.raises(ValueError, match="call resolve first"):
        SessionSource(trace_of(["a"]))
    with pytest.raises(ValueError, match="no arrival times; give a concurrency"):
        SessionSource(settled(["a", "b"], arrival=[-1, -1]))


# --- when they begin


def test_arrivals_count_sessions_and_later_turns_come_with_theirs() -> None:
    trace = trace_of(["a", "a", "b", None, "b", "c", "a"], arrival=[0, 1, 2, 4, 5, 8, 9])

    first_two = begin_sessions(trace, limit=2)
    window = begin_sessions(trace, window_s=(1, 5))
    drawn = begin_sessions(trace, "constant", rate_per_s=10.0)

    assert first_two.row.tolist() == [2, 3, 4, 6, 8]
    assert first_two.notes[-1] == "Sessions: Limited to the first 2 sessions."
    # Those that begin in it: b at 2 s and the one without a session at 4 s, b's later turn too.
    assert (window.row.tolist(), window.arrival_ns.tolist()) == (
        [4, 5, 6],
        [0, 2 * 10**9, 0],
    )
    tenths = (drawn.arrival_ns // 10**8).tolist()
    assert tenths == [0, 0, 1, 2, 1, 3, 0]
    assert drawn.notes[-1] == "Sessions begin: constant, 10 a second."
    assert trace.notes == []


def test_without_times_sessions_begin_only_by_a_process_that_makes_them() -> None:
    trace = trace_of(["a", "a", "b"])
    trace.arrival_ns[:] = NEVER

    assert (begin_sessions(trace, "closed-loop").arrival_ns == 0).all()
    with pytest.raises(TraceError, match="no arrival times"):
        begin_sessions(trace)


# --- delays


@pytest.mark.parametrize(
    ("distribution", "cv", "has"),
    [("constant", None, 0), ("exponential", None, 1), ("gamma", 2, 2), ("lognormal", 0.5, 0.5)],
)
def test_drawn_delays_have_the_mean_and_variation_asked_for(
    distribution: str, cv: float | None, has: float
) -> None:
    trace = trace_of(["a"] * 40_000)

    delayed = draw_delays(trace, distribution, 3, cv, seed=5)
    again = draw_delays(trace, distribution, 6, cv, seed=5)

    assert delayed.delay_ns is not None
    assert again.delay_ns is not None
    assert delayed.delay_ns.mean() == pytest.approx(3e9, rel=0.03)
    assert delayed.delay_ns.std() / 3e9 == pytest.approx(has, rel=0.05)
    assert np.abs(again.delay_ns - 2 * delayed.delay_ns).max() <= 1  # the same pattern, scaled
    assert trace.delay_ns is None
    assert f"{distribution}, mean 3 s" in delayed.notes[-1]


@pytest.mark.parametrize(
    ("distribution", "mean_s", "cv", "says"),
    [
        ("gama", 1, 1, "'gama'; did you mean gamma"),
        ("exponential", 0, None, "mean_s 0; expected above 0"),
        ("constant", -1, None, "mean_s -1"),
        ("gamma", 1, None, "cv None; expected above 0 for gamma"),
    ],
)
def test_delays_out_of_bounds_are_refused(
    distribution: str, mean_s: float, cv: float | None, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        draw_delays(trace_of(["a"]), distribution, mean_s, cv)


def test_a_delay_beyond_belief_is_refused() -> None:
    with pytest.raises(TraceError, match="expected at most 1e\\+07 s: give a lower mean_s or cv"):
        draw_delays(trace_of(["a"] * 1000), "lognormal", 1e6, 9)


# --- whole prompts


def test_incremental_prompts_are_added_up_with_the_outputs_between() -> None:
    trace = trace_of(["a", "b", "a", "a"], prompt=[10, 7, 3, 4], output=[2, 1, 5, 9])

    whole = whole_prompts(trace, sessions_of(trace), "incremental")

    # a: 10; 10 + 2 + 3; 15 + 5 + 4.
    assert whole.prompt_tokens.tolist() == [10, 7, 15, 24]
    assert whole.notes[-1].startswith("Sessions: prompts are incremental; to 2 of 4")
    assert trace.prompt_tokens.tolist() == [10, 7, 3, 4]


def test_whole_prompts_are_told_from_incremental_ones_or_asked_for() -> None:
    holds = trace_of(["a", "a", "a"], prompt=[10, 12, 20], output=[2, 5, 1])
    short = trace_of(["a", "a", "a"], prompt=[10, 12, 16], output=[2, 5, 1])

    told = whole_prompts(holds, sessions_of(holds))

    assert told.prompt_tokens.tolist() == [10, 12, 20]
    assert "taken as whole prompts" in told.notes[-1]
    with pytest.raises(TraceError, match=r"t\.csv:4: sessions: 1 of 2 later turns .* whole or inc"):
        whole_prompts(short, sessions_of(short))
    # A history that was cut is whole too, if it is said.
    assert whole_prompts(short, sessions_of(short), "whole").prompt_tokens.tolist() == [10, 12, 16]


def test_block_ids_stand_for_whole_prompts() -> None:
    trace = trace_of(["a", "a"], prompt=[10, 3])
    trace.block_ids, trace.block_ids_tokens = [np.array([1, 2]), np.array([1])], 4

    assert whole_prompts(trace, sessions_of(trace)) is trace
    with pytest.raises(TraceError, match="incremental, but they are whole: block ids"):
        whole_prompts(trace, sessions_of(trace), "incremental")


def test_prompts_that_grow_beyond_any_window_are_refused() -> None:
    trace = trace_of(["a"] * 5, prompt=[400_000_000] * 5)

    with pytest.raises(TraceError, match="are they whole prompts"):
        whole_prompts(trace, sessions_of(trace), "incremental")


# --- identity


def texts(trace: Trace) -> list[list[int]]:
    """Prompt and output of each turn, token by token, as rule 40 says: the brute force."""
    sessions, fresh = sessions_of(trace), iter(range(10**9))
    said: dict[int, list[int]] = {}
    earlier = dict(zip(sessions.later.tolist(), sessions.before.tolist(), strict=True))
    for row in sessions.order.tolist():
        p, o = int(trace.prompt_tokens[row]), int(trace.output_tokens[row])
        text = said[earlier[row]][:p] if row in earlier else []
        text = text + [next(fresh) for _ in range(p - len(text))]
        said[row] = text + [next(fresh) for _ in range(o)]
    return [said[row] for row in range(len(trace))]


def common(first: Any, second: Any) -> int:
    unequal = (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(unequal, min(len(first), len(second)))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, "a", "b", "c"]),
            st.integers(1, 40),
            st.integers(1, 12),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=14,
    ),
)
def test_two_turns_have_the_tokens_in_common_that_their_texts_share(
    rows: list[tuple[str | None, int, int, int]],
) -> None:
    session, prompt, output, more = map(list, zip(*rows, strict=True))
    trace = trace_of(["z", *session], prompt=[9, *prompt], output=[3, *output])
    trace.max_tokens = trace.output_tokens + np.array([0, *more])
    said = texts(trace)

    derived = with_content(trace, sessions_of(trace))

    possible = (trace.prompt_tokens + trace.max_tokens).tolist()
    content = [named(derived, row) for row in range(len(said))]
    assert [each.tokens for each in content] == possible
    assert trace.content is None
    for i in range(len(said)):
        for j in range(i):
            # What a turn might have said beyond what it did is never looked for.
            mine, others = content[i].cut(len(said[i])), content[j].cut(len(said[j]))
            assert mine.shared(others) == common(said[i], said[j])


def named(trace: Trace, row: int) -> Content:
    content = trace.content_of(row)
    assert content is not None
    return content


def test_turns_that_only_add_are_one_run_of_tokens() -> None:
    turns = 50
    prompts = [1000 * (k + 1) for k in range(turns)]
    trace = settled(["a"] * turns, prompt=prompts, output=[100] * turns)

    derived = with_content(trace, sessions_of(trace))

    assert all(len(named(derived, row).firsts) == 1 for row in range(turns))


# --- formats


ROWS = """\
{"session_id": "a", "timestamp": 100, "input_length": 600, "output_length": 20, "hash_ids": [1, 2]}
{"session_id": "a", "delay": 1500.5, "input_length": 30, "output_length": 10, "hash_ids": [3]}
{"session_id": "b", "timestamp": 40, "input_length": 50, "output_length": 5, "hash_ids": [4]}
{"session_id": "a", "delay": 0, "input_length": 8, "output_length": 7, "hash_ids": [5]}
"""


def load(folder: Path, text: str, name: str = "t.jsonl") -> Trace:
    (folder / name).write_text(text)
    return traces.load(folder / name)


def test_aiperf_rows_are_sessions_of_whole_prompts(tmp_path: Path) -> None:
    trace = load(tmp_path, ROWS)

    assert trace.session is not None
    assert trace.session.tolist() == ["b", "a", "a", "a"]
    assert (trace.arrival_ns // 10**6).tolist() == [40, 100, 100, 100]
    # 600; 600 + 20 + 30; 650 + 10 + 8.
    assert trace.prompt_tokens.tolist() == [50, 600, 650, 668]
    assert trace.output_tokens.tolist() == trace.max_tokens.tolist() == [5, 20, 10, 7]
    assert trace.delay_ns is not None
    assert trace.delay_ns.tolist() == [0, 0, 1_500_500_000, 0]
    assert trace.block_ids is None
    assert trace.content is not None
    assert [told.tokens for told in trace.content if told] == [55, 620, 660, 675]
    with pytest.raises(TraceError, match="added on reading; leave prompts out"):
        whole_prompts(trace, sessions_of(trace), "incremental")


def test_aiperf_sessions_share_what_their_ids_say_and_turns_what_was_said(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "input_length": 1024, "output_length": 20, "hash_ids": [1, 2]},
        {"session_id": "b", "input_length": 1100, "output_length": 20, "hash_ids": [1, 2, 3]},
        {"session_id": "a", "delay": 5, "input_length": 512, "output_length": 9, "hash_ids": [3]},
        {"session_id": "c", "input_length": 600, "output_length": 20},
    ]
    trace = load(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    a, b, later, c = (trace.content_of(row) for row in range(4))

    assert a is not None
    assert b is not None
    assert later is not None
    assert c is not None
    assert a.shared(b) == 1024  # the partial third block of b is its own
    assert a.shared(later) == 1044  # prompt and answer
    assert (later.tokens, trace.prompt_tokens[2]) == (1565, 1556)
    assert b.shared(later) == 1024
    assert c.shared(a) == 0


def test_aiperf_ids_stand_for_512_tokens(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="2 ids for 400 tokens'; expected 1, one for each 512"):
        load(tmp_path, ROWS.replace("600", "400"))


def test_aiperf_first_turns_have_times_or_none_has(tmp_path: Path) -> None:
    without = ROWS.replace('"timestamp": 100, ', "").replace('"timestamp": 40, ', "")

    assert (load(tmp_path, without).arrival_ns == NEVER).all()
    with pytest.raises(TraceError, match=r"t\.jsonl:1: timestamp: None.*as other first turns have"):
        load(tmp_path, ROWS.replace('"timestamp": 100, ', ""))


def test_a_csv_with_the_same_names_is_a_plain_table(tmp_path: Path) -> None:
    text = "session_id,input_length,output_length,delay,delay_ms\na,5,6,7,8\n"

    trace = load(tmp_path, text, "t.csv")

    assert trace.delay_ns is not None
    assert trace.delay_ns.tolist() == [8_000_000]


def test_weka_conversations_run_as_sessions(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "weka_claudecode_open.jsonl.gz")
    sessions = sessions_of(trace)

    assert (len(trace), len(sessions)) == (600, 26)  # 20 conversations and 6 sub-agents
    assert whole_prompts(trace, sessions) is trace
    # Ids of the trace say what consecutive turns share: nearly all of the longer prompt.
    assert trace.block_ids is not None
    shared_blocks = total = 0
    for before, later in zip(sessions.before.tolist(), sessions.later.tolist(), strict=True):
        shared_blocks += common(trace.block_ids[before].tolist(), trace.block_ids[later].tolist())
        total += len(trace.block_ids[later])
    assert shared_blocks / total > 0.9
