"""Columns read at once hold what reading each value alone gives, or say that it is not plain."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import arrow, plain, values

DIGITS = st.text("0123456789", min_size=1, max_size=21)
NUMBERS = st.one_of(
    DIGITS,
    st.builds("{}.{}".format, DIGITS, DIGITS),
    st.builds("{}.{}{}".format, DIGITS, DIGITS, st.sampled_from(["5", "50", "500000000", "49999"])),
    st.text("0123456789.-+e ", max_size=6),
)
TWO = st.integers(0, 99).map("{:02}".format)
STAMPS = st.builds(
    "{}-{}-{}{}{}:{}:{}{}{}".format,
    st.integers(1960, 2110),
    st.integers(0, 13).map("{:02}".format),
    st.integers(0, 32).map("{:02}".format),
    st.sampled_from(" T_"),
    st.integers(0, 25).map("{:02}".format),
    st.integers(0, 61).map("{:02}".format),
    st.integers(0, 61).map("{:02}".format),
    st.sampled_from(["", ".", ".1", ".1234567", ".123456789", ".1234567891"]),
    st.one_of(
        st.sampled_from(["", "", "Z", "z", "+", "+1", " Z"]),
        st.builds("{}{}".format, st.sampled_from("+-"), TWO),
        st.builds("{}{}:{}".format, st.sampled_from("+-"), TWO, TWO),
        st.builds("{}{}{}".format, st.sampled_from("+-"), TWO, TWO),
    ),
)


def agree(texts: list[str], numbers: np.ndarray, odd: np.ndarray, one: Callable) -> None:
    """What was read is what each value is; nothing that is none was."""
    for position in sorted(set(range(len(texts))) - set(odd.tolist())):
        assert numbers[position] == one(texts[position]), texts[position]


@given(st.lists(NUMBERS, min_size=1, max_size=12))
def test_counts_are_those_read_one_by_one(texts: list[str]) -> None:
    numbers, odd = plain.counts(arrow.from_strings(texts))

    agree(texts, numbers, odd, values.count)
    told = [i for i, text in enumerate(texts) if not (text.isdigit() and len(text) <= 9)]
    assert odd.tolist() == told


@given(st.lists(NUMBERS, min_size=1, max_size=12), st.sampled_from(sorted(values.UNITS)))
def test_decimals_are_those_read_one_by_one(texts: list[str], unit: str) -> None:
    numbers, odd = plain.decimals(arrow.from_strings(texts), values.UNITS[unit])

    agree(texts, numbers, odd, lambda text: values.span_ns(text, unit))


@given(st.lists(STAMPS, min_size=1, max_size=12))
def test_timestamps_are_those_read_one_by_one(texts: list[str]) -> None:
    numbers, odd, _ = plain.stamps_ns(arrow.from_strings(texts))

    agree(texts, numbers, odd, values.stamp_ns)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [("0.5", 0), ("1.5", 2), ("2.5", 2), ("2.500000000000000001", 3), ("2.499999999999999999", 2)],
)
def test_halves_go_to_the_even_neighbour(text: str, nanoseconds: int) -> None:
    numbers, odd = plain.decimals(arrow.from_strings([text]), 0)

    assert (numbers.tolist(), odd.tolist()) == ([nanoseconds], [])


def test_plain_values_are_read_at_once() -> None:
    stamps = ["2023-11-16 18:17:03.9799600", "2024-05-10T00:00:00.009930+00:00", "2024-02-29 00:00"]
    numbers, odd, zoned = plain.stamps_ns(arrow.from_strings(stamps))

    assert numbers[:2].tolist() == [1700158623_979960000, 1715299200_009930000]
    assert (odd.tolist(), zoned) == ([2], 1)
    spans, odd = plain.decimals(arrow.from_strings(["9223372036", "1.5", "4611686018.5"]), 9)
    assert (spans[1], odd.tolist()) == (1_500_000_000, [0, 2])


def test_a_part_of_a_column_is_read_from_where_it_begins() -> None:
    numbers, odd = plain.counts(arrow.from_strings(["77", "1", "", "23"]).slice(1))

    assert (numbers[[0, 2]].tolist(), odd.tolist()) == ([1, 23], [1])


def test_a_trace_is_read_without_what_is_slow_to_import(tmp_path: Path, repository: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n"
    path = tmp_path / "azure.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    code = (
        "import sys, traces\n"
        f"trace = traces.load({str(path)!r})\n"
        "print(trace.arrival_ns.tolist(), {'pyarrow.compute', 'pandas'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[0, 52000000] set()\n"
