"""Identity of tokens as runs of integers, against lists of single tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.content import Content, own_tokens, token_runs

RUNS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=6)


def written_out(runs: list[tuple[int, int]]) -> list[int]:
    return [first + i for first, tokens in runs for i in range(tokens)]


@given(RUNS, st.integers(0, 30), st.integers(0, 30))
def test_runs_are_the_tokens_between_two_positions(
    runs: list[tuple[int, int]], start: int, stop: int
) -> None:
    content, tokens = Content(runs), written_out(runs)

    assert content.tokens == len(tokens)
    assert written_out(list(content.runs(start, stop))) == tokens[start:stop]
    assert written_out(list(content.cut(stop).runs(0, 99))) == tokens[:stop]
    own = [own_tokens(3, position) for position in range(len(tokens), 30)]
    assert written_out(list(token_runs(3, content, start, stop))) == (tokens + own)[start:stop]


@given(RUNS, RUNS)
def test_shared_counts_equal_tokens_from_the_start(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    first, second = written_out(one), written_out(two)
    shared = 0
    while shared < min(len(first), len(second)) and first[shared] == second[shared]:
        shared += 1

    assert Content(one).shared(Content(two)) == shared
    assert (Content(one) == Content(two)) == (first == second)


@given(st.lists(st.integers(0, 5), max_size=8), st.integers(1, 4), st.integers(0, 40))
def test_ids_of_blocks_tell_full_blocks_only(ids: list[int], size: int, prompt: int) -> None:
    content = Content.of_blocks(np.array(ids, dtype=np.int64), size, prompt)

    full = ids[: prompt // size]
    assert content == Content((each * size, size) for each in full)


def test_requests_have_no_own_token_in_common() -> None:
    assert own_tokens(0, 2**31) < 0
    assert own_tokens(1, 2**31) < own_tokens(0)
    assert list(token_runs(7, None, 2, 5)) == [(own_tokens(7, 2), 3)]
