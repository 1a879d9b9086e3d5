"""The comparison by class and by tenant."""

from __future__ import annotations

import pytest

from experiments import outcome
from experiments.group_table import compare_by, has_groups
from experiments.tables import to_csv, to_markdown, to_rich
from sim.errors import ConfigError
from tests.experiments.test_report_groups import Run


def test_there_is_a_row_for_each_class_of_each_variant():
    runs = [Run("a", classes=["tab", "agent"]), Run("b", cache=True, classes=["tab", "agent"])]
    comparison = compare_by(runs, "class")
    assert [row[:2] for row in comparison.rows] == [
        ("agent", "a"),
        ("agent", "b"),
        ("tab", "a"),
        ("tab", "b"),
    ]
    keys = [column.key for column in comparison.columns]
    tab = dict(zip(keys, comparison.rows[-1], strict=True))
    block = runs[1].summary["classes"]["tab"]
    assert tab["ttft_s_p99"] == block["ttft_s"]["p99"]
    assert tab["slo_attainment"] == block["slo_attainment"]
    assert tab["prefix_hit_rate_tokens"] == 0.1
    assert comparison.rows[0][keys.index("prefix_hit_rate_tokens")] is None
    assert not any(comparison.best())


def test_what_no_row_has_is_no_column():
    keys = [c.key for c in compare_by([Run("a", tenants=["x", "y"])], "tenant").columns]
    assert "prefix_hit_rate_tokens" not in keys
    assert keys[:3] == ["tenant", "variant", "arrived_requests"]


def test_it_is_written_like_the_other_table():
    comparison = compare_by([Run("a", classes=["t|b", "agent"])], "class")
    assert r"| t\|b | a | 200 |" in to_markdown(comparison)
    assert to_csv(comparison).startswith(
        "class,variant,arrived_requests,finished_requests,ttft_s_p50"
    )


def test_both_names_lead_every_part_of_a_table_that_is_cut():
    tables = to_rich(compare_by([Run("a", classes=["tab", "agent"])], "class"), 60)
    assert len(tables) > 1
    heads = [[str(column.header) for column in table.columns[:2]] for table in tables]
    assert heads == [["Class", "Variant"]] * len(tables)


def test_runs_without_classes_have_none():
    assert not has_groups([Run("a")], "class")
    with pytest.raises(ConfigError, match="no variant has more than one tenant"):
        compare_by([Run("a")], "tenant")


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]):
    run = Run("a", classes=["tab", "agent"])
    with pytest.raises(ConfigError, match="--by clas: no kind 'clas'; try class"):
        outcome.table([run], by="clas")
    with pytest.raises(ConfigError, match="--by class --class tab: give one of them"):
        outcome.table([run], request_class="tab", by="class")
    outcome.table([run], "csv", by="class")
    assert capsys.readouterr().out.count("\n") == 3
