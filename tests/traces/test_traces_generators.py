"""Generators: what their prompts share, in which order, how sessions go on, and where from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import traces
from sim.content import Content
from sim.errors import TraceError
from sim.request import NEVER, Trace
from traces.generators import GENERATORS, Generator, sources_of
from traces.generators.lengths import Lengths, UniformLengths
from traces.generators.parts import Documents, FewShot, PrefixRepetition, SystemPrompts, popular
from traces.generators.surfaces import Agent, EditorChat, TabCompletion
from traces.mixture import typed
from traces.reuse import prefix_reuse
from traces.sessions import begin_sessions, sessions_of
from traces.turns import with_content
from traces.workload import resolve

BY_NAME = pytest.mark.parametrize("name", GENERATORS)
SHARES_NOTHING = ("lengths", "uniform-lengths")
SHARING = pytest.mark.parametrize("name", [n for n in GENERATORS if n not in SHARES_NOTHING])
ORDERS = ("stable-first", "variable-first")


def content_of(trace: Trace, row: int) -> Content:
    content = trace.content_of(row)
    assert content is not None
    return content


def told(made: Generator, n: int, order: str = "stable-first") -> Trace:
    """Requests of a generator as a run would have them, contents included."""
    trace = resolve(made.make(n, 1, order))[0]
    if trace.content is not None:
        return trace
    return with_content(trace, sessions_of(trace), getattr(made, "system_tokens", 0), order)


@BY_NAME
def test_every_default_says_where_it_comes_from(name: str) -> None:
    sources = sources_of(GENERATORS[name])

    assert sources
    assert all(sources.values()), sources
    assert not GENERATORS[name].slo or GENERATORS[name].slo_source


@BY_NAME
def test_the_first_requests_are_the_same_however_many_are_made(name: str) -> None:
    made = GENERATORS[name]()
    few, many = made.make(130, 5), made.make(400, 5)

    for column in ("prompt_tokens", "output_tokens"):
        assert (getattr(few, column) == getattr(many, column)[:130]).all()
    if few.content is not None:
        assert many.content is not None
        assert few.content[:129] == many.content[:129]
    other = made.make(400, 6)
    drawn = ("prompt_tokens", "output_tokens", "delay_ns")
    same = all(
        (getattr(many, column) == getattr(other, column)).all()
        for column in drawn
        if getattr(many, column) is not None
    )
    assert not same or many.content != other.content


@SHARING
def test_the_order_of_parts_changes_what_is_found_and_nothing_else(name: str) -> None:
    stable, variable = (told(GENERATORS[name](), 300, order) for order in ORDERS)

    assert (stable.prompt_tokens == variable.prompt_tokens).all()
    assert (stable.output_tokens == variable.output_tokens).all()
    first, second = (prefix_reuse(each, 16).hit_blocks() for each in (stable, variable))
    assert first > 300
    assert second == 0
    for row in range(0, 300, 7):
        mine, theirs = content_of(stable, row), content_of(variable, row)
        assert mine.tokens == theirs.tokens
        assert sorted(tokens_of(mine)) == sorted(tokens_of(theirs))


def tokens_of(content: Content) -> list[int]:
    return [f + at for f, many in content.runs(0, content.tokens) for at in range(many)]


def test_each_prefix_is_in_front_of_as_many_suffixes() -> None:
    made = PrefixRepetition(prefix_tokens=256, suffix_tokens=100, num_prefixes=10)
    trace = made.make(95, 3)
    firsts = [content_of(trace, row).firsts[0] for row in range(95)]

    counts = sorted(firsts.count(each) for each in set(firsts))
    assert counts == [9] * 5 + [10] * 5
    assert set(trace.prompt_tokens.tolist()) == {356}
    pairs = [(0, row) for row in range(1, 95)]
    shared = {content_of(trace, a).shared(content_of(trace, b)) for a, b in pairs}
    assert shared == {0, 256}
    # All but the first of each prefix find its 16 blocks.
    assert prefix_reuse(trace, 16).hit_blocks() == (95 - 10) * 16
    assert firsts != sorted(firsts)


def test_popular_documents_are_asked_about_more_often() -> None:
    drawn = popular(50, 1.0, 20_000, 4, "documents")
    counts = np.bincount(drawn, minlength=50)

    harmonic = float(np.sum(1 / np.arange(1, 51)))
    assert counts[0] / 20_000 == pytest.approx(1 / harmonic, rel=0.05)
    assert counts[1] / 20_000 == pytest.approx(0.5 / harmonic, rel=0.08)
    even = np.bincount(popular(50, 0.0, 20_000, 4, "documents"), minlength=50)
    assert even.min() > 300


def test_parts_stand_behind_each_other() -> None:
    made = Documents(
        system_tokens=32, documents=3, document_tokens=64, question_tokens=10, question_cv=0.0
    )
    trace = made.make(40, 2)

    assert set(trace.prompt_tokens.tolist()) == {106}
    shared = {content_of(trace, 0).shared(content_of(trace, row)) for row in range(1, 40)}
    assert shared == {32, 96}


def test_tasks_share_their_examples_and_all_the_instruction() -> None:
    made = FewShot(instruction_tokens=20, examples=3, example_tokens=30, tasks=4)
    trace = made.make(60, 2)

    shared = {content_of(trace, 0).shared(content_of(trace, row)) for row in range(1, 60)}
    assert shared == {20, 110}


def test_applications_have_system_prompts_of_their_own() -> None:
    trace = SystemPrompts(system_tokens=500, system_cv=0.5, applications=3).make(60, 2)

    ends = {content_of(trace, row).firsts[0]: content_of(trace, row).ends[0] for row in range(60)}
    assert len(ends) == 3
    assert len(set(ends.values())) == 3


def test_an_agent_is_what_it_is_specified_to_be() -> None:
    trace = Agent().make(45 * 60, 1)
    later = np.flatnonzero(trace.turn > 0)

    assert trace.prompt_tokens.mean() == pytest.approx(100_000, rel=0.05)
    share = trace.prompt_tokens[later - 1].sum() / trace.prompt_tokens[later].sum()
    assert share == pytest.approx(0.97, abs=0.005)
    assert len(sessions_of(trace)) == 60
    assert sessions_of(trace).left[0] == 44
    assert trace.delay_ns is not None
    assert trace.delay_ns[0] == 0
    assert set(trace.request_class.tolist()) == {"agent"}


def test_agents_share_their_system_prompt_and_turns_what_was_said() -> None:
    trace = told(Agent(turns=3), 9)
    prompt, output = trace.prompt_tokens, trace.output_tokens

    assert content_of(trace, 1).shared(content_of(trace, 0)) >= prompt[0] + output[0]
    assert content_of(trace, 2).shared(content_of(trace, 1)) >= prompt[1] + output[1]
    assert content_of(trace, 3).shared(content_of(trace, 0)) == 15_145
    # However long, a few runs of tokens each.
    assert max(len(content_of(trace, row).firsts) for row in range(9)) == 2


def test_an_agent_resembles_the_recorded_ones(shared: Path) -> None:
    trace = traces.load(shared / "traces" / "weka_claudecode_open.jsonl.gz")
    assert trace.session is not None
    parents = np.array(["/" not in name for name in trace.session])
    alone = trace.take(parents)
    alone.after = None  # whom they waited for is not there
    sessions = sessions_of(alone)
    found = prompts = 0
    for before, later in zip(sessions.before.tolist(), sessions.later.tolist(), strict=True):
        mine, theirs = alone.content_of(later), alone.content_of(before)
        assert mine is not None
        assert theirs is not None
        found += mine.shared(theirs)
        prompts += int(alone.prompt_tokens[later])

    assert len(sessions.later) == 524
    assert found / prompts == pytest.approx(0.973, abs=0.0005)
    assert alone.output_tokens.mean() == pytest.approx(Agent().output_tokens, abs=0.5)
    assert alone.prompt_tokens.mean() == pytest.approx(114_040, abs=1)
    assert len(alone) / len(sessions) == pytest.approx(27.2)


def test_a_keystroke_holds_what_was_typed_before_and_the_next_makes_it_stale() -> None:
    made = TabCompletion(turns=4, delay_s=0.2)
    trace = made.make(10, 1)
    assert trace.delay_ns is not None
    assert trace.cancel_after_ns is not None

    assert trace.turn.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    last = np.array([False, False, False, True, False, False, False, True, False, True])
    assert (trace.cancel_after_ns[~last] == trace.delay_ns[1:][~last[:-1]]).all()
    assert (trace.cancel_after_ns[last] == NEVER).all()
    assert (np.diff(trace.prompt_tokens)[:3] == 1).all()
    assert content_of(trace, 3).shared(content_of(trace, 2)) == trace.prompt_tokens[2]
    assert content_of(trace, 4).shared(content_of(trace, 3)) == 0
    assert 1000 <= trace.prompt_tokens[0] <= 2000


def test_keystrokes_come_when_they_are_typed() -> None:
    trace = TabCompletion(turns=3, delay_s=0.2).make(6, 1)
    assert trace.delay_ns is not None
    delays = trace.delay_ns.tolist()
    begun = begin_sessions(trace, "constant", rate_per_s=10)
    timed = typed(begun, sessions_of(begun).order)

    starts = [0, 100_000_000]
    assert timed.delay_ns is None
    wanted = sorted(
        start + sum(delays[3 * k : 3 * k + turn + 1])
        for k, start in enumerate(starts)
        for turn in range(3)
    )
    assert timed.arrival_ns.tolist() == wanted


def test_typing_is_as_fast_as_measured() -> None:
    trace = TabCompletion().make(20_000, 1)
    assert trace.delay_ns is not None
    gaps = trace.delay_ns[trace.turn > 0] / 1e9

    assert gaps.mean() == pytest.approx(0.2387, rel=0.01)
    assert gaps.std() == pytest.approx(0.1116, rel=0.03)


def test_chats_have_as_many_turns_as_recorded_ones() -> None:
    trace = EditorChat().make(4000, 1)

    assert len(trace) / len(sessions_of(trace)) == pytest.approx(2, rel=0.1)
    assert trace.prompts_are_whole


def test_many_turns_take_little_memory() -> None:
    trace = told(Agent(turns=1000, new_cv=0.0, output_cv=0.0), 20_000)

    runs = sum(len(content_of(trace, row).firsts) for row in range(len(trace)))
    assert runs <= 2 * len(trace)


def test_lengths_have_their_means_and_no_request_is_over_the_longest() -> None:
    made = Lengths(
        prompt_tokens=400, prompt_cv=0.5, output_tokens=100, output_cv=0.5, longest_total=4096
    )
    trace = made.make(20_000, 0)

    assert trace.content is None
    assert float(trace.prompt_tokens.mean()) == pytest.approx(400, rel=0.02)
    assert float(trace.output_tokens.mean()) == pytest.approx(100, rel=0.02)
    short = Lengths(prompt_tokens=400, output_tokens=100, longest_total=300).make(5000, 0)
    assert int((short.prompt_tokens + short.output_tokens).max()) <= 300
    again = Lengths(prompt_tokens=400, output_tokens=100, longest_total=300).make(50, 0)
    assert again.prompt_tokens.tolist() == short.prompt_tokens[:50].tolist()


def test_lengths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TraceError, match="longest_total 100: almost no prompt of about 400"):
        Lengths(prompt_tokens=400, prompt_cv=0, longest_total=100).make(10, 0)


def test_uniform_lengths_reach_both_bounds() -> None:
    trace = UniformLengths(
        shortest_prompt=3, longest_prompt=5, shortest_output=1, longest_output=2
    ).make(500, 0)

    assert set(trace.prompt_tokens.tolist()) == {3, 4, 5}
    assert set(trace.output_tokens.tolist()) == {1, 2}
    with pytest.raises(ValueError, match="shortest_prompt 9 is above longest_prompt 8"):
        UniformLengths(shortest_prompt=9, longest_prompt=8)
