"""The README's table of validation is the committed one, misses included."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.validation import case, table
from experiments.validation.case import BarSpec


def test_the_readme_shows_what_is_committed(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    assert table.put(text, table.markdown()) == text, (
        "the README's table is older than expected.csv: "
        "python -m experiments.validation.table README.md"
    )


def test_every_case_and_bar_is_in_it() -> None:
    shown = table.markdown()
    for name in case.names():
        loaded = case.load(name)
        assert f"({loaded.number}) {loaded.title}" in shown
    bars = sum(len(case.load(name).bars) for name in case.names())
    assert shown.count("| pass |") + shown.count("| **miss** |") == bars


@pytest.mark.parametrize(
    ("under", "statistic", "error", "said"),
    [
        (0.06, "max_abs", "worst 5.8% of 9", "| under 6% | pass |"),
        (0.04, "mean_abs", "mean 4.1% of 9", "| under 4% | **miss** |"),
        (None, "agree", "worst 5.8% of 9", "| agree | **miss** |"),
    ],
)
def test_bars_are_judged_by_the_committed_errors(
    tmp_path: Path, under: float | None, statistic: str, error: str, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    path = tmp_path / "expected.csv"
    path.write_text(
        "case,metric,group,rows,simulated,error,mean_abs,median_abs,worst\n"
        "a-case,transfer_ms,,9,2.4484,-0.0110,0.0409,0.0468,0.0577\n"
    )
    given = case.Case(
        "a-case", "1", "a title", "transfer", "", {}, {},
        bars=(BarSpec(("transfer_ms",), statistic, under),),
    )  # fmt: skip
    monkeypatch.setattr(table.cases, "names", lambda: ["a-case"])
    monkeypatch.setattr(table.cases, "load", lambda name: given)
    shown = table.markdown(path)
    assert f"(1) a title | transfer_ms: {error} {said}" in shown


def test_single_rows_are_shown_by_their_errors(tmp_path: Path) -> None:
    path = tmp_path / "expected.csv"
    text = "".join(
        f"kv-transfer-h800,{metric},,1,{simulated},{error},0.1,0.1,0.1\n"
        for metric, simulated, error in (("a_ms p50", 900, -0.02), ("a_ms p99", 1200, 0.031))
    )
    path.write_text("case,metric,group,rows,simulated,error,mean_abs,median_abs,worst\n" + text)
    shown = list(table._shown(case.load("kv-transfer-h800"), table.read(path)))
    assert shown == [("a_ms: -2.0% to +3.1%", "", "")]


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="validation: begin"):
        table.put("no marks here", "")
