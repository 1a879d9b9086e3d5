"""Errors, bars and the committed table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.validation import expected, report
from experiments.validation.case import BarSpec, Case
from experiments.validation.outcome import Comparison, Outcome
from experiments.validation.overlays import distribution

BARS = (
    BarSpec(("tpot_ms",), "mean_abs", 0.08, "free"),
    BarSpec(("tpot_ms",), "max_abs", 0.20, "free"),
    BarSpec(("same",), "agree"),
)
CASE = Case("a-case", "1", "title", "sweep", "source", {}, {}, bars=BARS)


def outcome(*errors: float, same: float = 0.0) -> Outcome:
    found = Outcome(CASE)
    for i, error in enumerate(errors):
        found.add("tpot_ms", 10.0, 10.0 * (1 + error), row=f"row {i}", group="free")
    found.add("tpot_ms", 10.0, 20.0, row="short", group="kv-bound")
    found.add("same", 1.0, 1.0, distance=same)
    found.judge()
    return found


def test_an_error_is_signed_and_relative() -> None:
    assert Comparison("m", 10.0, 9.0).error == pytest.approx(-0.1)
    assert Comparison("curve", 10.0, 9.0, distance=0.3).error == 0.3


def test_bars_look_at_their_own_metric_and_group() -> None:
    mean, most, same = outcome(0.05, -0.1).bars
    assert (mean.value, most.value) == (pytest.approx(0.075), pytest.approx(0.1))
    assert mean.passed
    assert most.passed
    assert same.passed


def test_a_bar_is_missed_by_the_worst_row_or_by_any_difference() -> None:
    mean, most, same = outcome(0.0, 0.0, 0.21, same=1e-9).bars
    assert mean.passed
    assert not most.passed
    assert not same.passed


def test_a_bar_over_no_rows_is_not_met() -> None:
    empty = Outcome(CASE)
    empty.judge()
    assert not any(bar.passed for bar in empty.bars)


def test_the_report_prints_every_bar_and_every_metric() -> None:
    text = report.render(outcome(0.05, 0.3), with_rows=True)
    assert "MISS  tpot_ms (free): mean error under 8%: 17.5%" in text
    assert "pass  same: the same: 0.0%" in text
    assert "tpot_ms [kv-bound]" in text
    assert "row 1" in text


def test_the_committed_table_holds_no_measured_value_and_tells_changes(tmp_path: Path) -> None:
    path = tmp_path / "expected.csv"
    expected.write([outcome(0.05, -0.1)], path)
    assert "measured" not in path.read_text(encoding="utf-8")
    assert not expected.changes([outcome(0.05, -0.1)], path)
    assert not expected.changes([outcome(0.0505, -0.1)], path)
    (changed, *_) = expected.changes([outcome(0.08, -0.1)], path)
    assert changed.startswith("a-case: tpot_ms [free]: error was -0.0250, is -0.0100")


def test_a_metric_that_comes_or_goes_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "expected.csv"
    expected.write([outcome(0.05)], path)
    more = outcome(0.05)
    more.add("ttft_ms", 1.0, 1.0, group="free")
    assert expected.changes([more], path) == ["a-case: ttft_ms [free]: is new"]
    expected.write([more], path)
    assert expected.changes([outcome(0.05)], path) == ["a-case: ttft_ms [free]: is gone"]


def test_writing_one_case_keeps_the_rows_of_others(tmp_path: Path) -> None:
    path = tmp_path / "expected.csv"
    other = Outcome(Case("another", "2", "t", "sweep", "s", {}, {}))
    other.add("x", 1.0, 1.0)
    expected.write([other], path)
    expected.write([outcome(0.05)], path)
    assert not expected.changes([other, outcome(0.05)], path)


def test_a_distribution_starts_at_0_and_ends_at_1() -> None:
    x, share = distribution(np.array([3.0, np.nan, 1.0]))
    assert x.tolist() == [1.0, 1.0, 3.0]
    assert share.tolist() == [0.0, 0.5, 1.0]
