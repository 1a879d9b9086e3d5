"""Cases as files: each can be read, says what it must, and a slip is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.validation import case as cases
from experiments.validation.run import KINDS
from sim.errors import ConfigError


@pytest.mark.parametrize("name", cases.names())
def test_every_case_says_where_it_comes_from_and_what_was_assumed(name: str) -> None:
    case = cases.load(name)
    assert case.kind in KINDS
    assert case.source
    assert case.given
    assert all(each.why for each in case.left_out)


def test_cases_come_in_the_order_of_their_numbers() -> None:
    numbers = [cases.load(name).number for name in cases.names()]
    assert numbers == [
        "1", "2", "2b", "3", "4", "5", "6", "7", "8", "8b", "9", "10", "11", "12", "13"
    ]  # fmt: skip


def test_no_constant_belongs_to_one_case() -> None:
    """Hosts are presets by name; a clock, where one is said, is the same everywhere."""
    clocks = set()
    for name in cases.names():
        step_time = cases.load(name).config.get("step_time")
        if isinstance(step_time, dict):
            assert isinstance(step_time.get("host", ""), str)
            clocks.add(step_time.get("sustained_clock"))
    assert len(clocks - {None}) == 1


def test_an_unknown_case_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="try qwen3-32b-h100"):
        cases.load("qwen3-32b-h10")


MINIMAL = """
number: 1
title: t
kind: steps
source: s
config: {}
data: {}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "notes: 1", "notes: no such key"),
        (MINIMAL.replace("kind: steps\n", ""), "kind: is required"),
        (MINIMAL + "bars: [{metrics: [a], statistic: mean, under: 0.1}]", "did you mean mean_abs"),
        (MINIMAL + "bars: [{metrics: [a], statistic: mean_abs}]", "a limit, or none for agree"),
    ],
)
def test_a_slip_in_a_case_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "slip.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        cases.load("slip", tmp_path)
