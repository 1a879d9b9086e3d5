"""Properties of reading and writing that hold for any trace."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces
from sim.errors import TraceError
from sim.request import Trace
from traces import values
from traces.arrivals import divide_half_even
from traces.write import seconds_text, write

COUNTS = st.integers(0, 10**9)
TIMES = st.integers(0, 10**14)
TEXTS = st.none() | st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r", exclude_categories=["Cs"]), min_size=1
).filter(lambda text: bool(text.strip()))


@st.composite
def any_trace(draw: st.DrawFn) -> Trace:
    """A trace with any of the optional columns, in order of arrival."""
    n = draw(st.integers(1, 8))

    def ints(values: st.SearchStrategy[int]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype=np.int64)

    def texts() -> np.ndarray:
        column = np.empty(n, dtype=object)
        column[:] = draw(st.lists(TEXTS, min_size=n, max_size=n))
        return column

    trace = Trace(np.sort(ints(TIMES)), ints(COUNTS), ints(COUNTS), ints(COUNTS), np.arange(n) + 2)
    spans = st.just(-1) | TIMES
    if draw(st.booleans()):
        trace.session, trace.turn = texts(), ints(st.integers(-1, 99))
        trace.delay_ns = ints(TIMES)
    if draw(st.booleans()):
        trace.request_class, trace.tenant = texts(), texts()
        trace.priority = ints(st.integers(-9, 9))
        trace.deadline_ns, trace.cancel_after_ns = ints(spans), ints(spans)
    if draw(st.booleans()):
        ids = st.lists(st.integers(0, 2**62), max_size=4)
        trace.block_ids = [np.array(draw(ids), dtype=np.int64) for _ in range(n)]
        trace.block_ids_tokens = 16
    return trace


def same(first: Trace, second: Trace) -> bool:
    names = [name for name in vars(first) if name not in ("row", "source", "notes", "block_ids")]
    for name in names:
        one, other = getattr(first, name), getattr(second, name)
        if isinstance(one, np.ndarray):
            if other is None or one.tolist() != other.tolist():
                return False
        elif one != other:
            return False
    if first.block_ids is None or second.block_ids is None:
        return first.block_ids is second.block_ids
    return [ids.tolist() for ids in first.block_ids] == [ids.tolist() for ids in second.block_ids]


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".csv.gz", ".jsonl.gz"])
@settings(max_examples=40, deadline=None)
@given(trace=any_trace())
def test_what_is_written_is_read_back(ending: str, trace: Trace) -> None:
    with TemporaryDirectory() as folder:
        path = write(trace, Path(folder) / f"t{ending}")

        again = traces.load(path)

    assert same(trace, again)


@given(
    text=st.decimals(0, 10**9, allow_nan=False, places=None).map(str), unit=st.sampled_from("smun")
)
def test_times_are_the_decimal_text_rounded_half_to_even(text: str, unit: str) -> None:
    name = {"s": "s", "m": "ms", "u": "us", "n": "ns"}[unit]

    exact = Fraction(Decimal(text)) * 10 ** values.UNITS[name]
    floor, rest = divmod(exact.numerator, exact.denominator)
    twice = Fraction(2 * rest, exact.denominator)
    expected = floor + (twice > 1 or (twice == 1 and floor % 2 == 1))

    assert values.span_ns(text, name) == expected


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(
        st.from_regex(r"[0-9]{1,9}(\.[0-9]{1,24})?", fullmatch=True), min_size=1, max_size=9
    )
)
def test_reading_at_once_and_one_by_one_agree(texts: list[str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        rows = "".join(f"{text},1,1\n" for text in texts)
        path.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)

        trace = traces.load(path)

    assert trace.arrival_ns.tolist() == sorted(values.span_ns(text, "s") for text in texts)


@given(ns=st.integers(0, 2**62))
def test_seconds_text_is_exact(ns: int) -> None:
    assert values.span_ns(seconds_text(ns), "s") == ns


@given(
    times=st.lists(st.integers(0, 10**15), min_size=1, max_size=9),
    divisor=st.fractions(Fraction(1, 10**6), 10**6, max_denominator=10**6),
)
def test_division_rounds_half_to_even(times: list[int], divisor: Fraction) -> None:
    expected = [round(Fraction(time) / divisor) for time in times]

    if max(expected) > values.MAX_TIME_NS:
        with pytest.raises(TraceError, match="expected at most"):
            divide_half_even(np.array(times, dtype=np.int64), divisor)
    else:
        assert divide_half_even(np.array(times, dtype=np.int64), divisor).tolist() == expected


@given(text=st.text(max_size=12))
def test_any_text_is_a_count_or_a_bad_value(text: str) -> None:
    try:
        number = values.count(text)
    except values.BadValueError:
        return
    assert 0 <= number <= values.MAX_COUNT


@given(data=st.binary(max_size=200))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused_in_one_line(data: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(data)

        with pytest.raises(TraceError) as caught:
            traces.load(path)

    assert str(caught.value).startswith(str(path))


@given(cut=st.integers(0, 150))
@settings(deadline=None)
def test_a_cut_file_is_never_read_with_fewer_columns(cut: int) -> None:
    whole = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n" + "".join(
        f"2023-11-16 18:17:0{i}.9799600,{100 + i},{20 + i}\r\n" for i in range(3)
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_text(whole[:cut], newline="")

        try:
            trace = traces.load(path)
        except TraceError:
            return

    # A row is kept only if its last field began; what is there agrees with the whole file.
    for i, prompt in enumerate(trace.prompt_tokens.tolist()):
        assert prompt == 100 + i
