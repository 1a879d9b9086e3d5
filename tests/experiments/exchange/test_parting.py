"""Logs of decisions: written, read, and where two of them part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.exchange import decisions, parting
from sim.errors import ConfigError
from sim.records import Decision


def entry(start: int, tokens: dict[str, int], replica: str = "r", **more: Any) -> dict[str, Any]:
    end = start + 10
    return {"replica": replica, "start_ns": start, "end_ns": end, "tokens": tokens, **more}


def write(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path


def phasewise(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = [
        Decision(1, 5, 9, {3: 2}, [4], 7),
        Decision(0, 5, 8, {0: 1}, [], 6, cached={0: 16}, lost_blocks=2, lost=True),
    ]

    decisions.write(path, log, ["a", "b"])

    assert list(decisions.read(path)) == [
        {
            "replica": "a",
            "start_ns": 5,
            "end_ns": 8,
            "tokens": {"0": 1},
            "preempted": [],
            "free_after": 6,
            "cached": {"0": 16},
            "lost_blocks": 2,
            "lost": True,
        },
        {
            "replica": "b",
            "start_ns": 5,
            "end_ns": 9,
            "tokens": {"3": 2},
            "preempted": ["4"],
            "free_after": 7,
        },
    ]


def test_the_earliest_parting_of_all_replicas_is_told() -> None:
    one = [
        entry(0, {"0": 4}),
        entry(10, {"0": 1}),
        entry(0, {"1": 4}, "s"),
        entry(5, {"1": 1}, "s"),
    ]
    other = [
        entry(0, {"0": 4}),
        entry(10, {"0": 2}),
        entry(0, {"1": 4}, "s"),
        entry(5, {"1": 2}, "s"),
    ]

    found = parting.compare(one, other)

    assert found.parting is not None
    assert (found.parting.replica, found.parting.iteration) == ("s", 1)
    assert found.parting.fields == ("tokens",)
    assert found.same == 2
    assert list(found.parting.before) == [one[2]]


def test_a_log_that_ends_early_parts_there() -> None:
    found = parting.compare([entry(0, {"0": 4})], [entry(0, {"0": 4}), entry(10, {"0": 1})])

    assert found.parting is not None
    assert found.parting.first is None
    assert "first   has ended" in parting.render(found, "a", "b")


def test_a_field_that_one_log_lacks_is_not_compared_and_this_is_said() -> None:
    engine = [{"replica": "", "tokens": {"0": 4}}, {"replica": "", "tokens": {"0": 1}}]

    found = parting.compare([entry(0, {"0": 4}), entry(10, {"0": 1})], engine)

    assert found.parting is None
    assert found.fields == ("tokens",)
    assert found.left_out["start_ns"] == "only the first log has it"
    assert "Not compared: end_ns (only the first log has it)." in parting.render(found, "a", "b")


def test_what_a_line_leaves_out_is_empty() -> None:
    one = [entry(0, {"0": 4}, preempted=[]), entry(9, {"0": 1}, preempted=["1"])]
    other = [entry(0, {"0": 4}), entry(9, {"0": 1}, preempted=["1"])]

    assert parting.compare(one, other).parting is None


def test_ignored_fields_are_not_compared() -> None:
    one, other = [entry(0, {"0": 4})], [entry(3, {"0": 4})]

    assert parting.compare(one, other).parting is not None
    assert parting.compare(one, other, ["start_ns", "end_ns"]).parting is None
    with pytest.raises(ConfigError, match="--ignore start: no such field; try start_ns"):
        parting.compare(one, other, ["start"])


def test_diff_ends_with_0_for_the_same_and_1_for_a_parting(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", entry(0, {"0": 4}))
    b = write(tmp_path / "b.jsonl", entry(0, {"0": 3, "1": 1}))

    assert phasewise("diff", a, a).exit_code == 0
    told = phasewise("diff", a, b)
    assert told.exit_code == 1
    assert "They part at iteration 1 of r, decided at 0.000000000 s" in told.stdout
    assert "tokens: request 0: 4 against 3" in told.stdout
    assert "tokens: request 1: none against 1" in told.stdout
    as_json = json.loads(phasewise("diff", a, b, "--json").stdout)
    assert as_json["parting"]["fields"] == ["tokens"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "is no JSON: '{'"),
        ("[1]", "[1]: expected an object with the key tokens"),
        ('{"start_ns": 1}', "lacks the key tokens"),
        ('{"tokens": {"0": 1}, "preemted": []}', "unknown key 'preemted'; try preempted"),
        ('{"tokens": {"0": 1.5}}', "tokens: {'0': 1.5}: expected request to whole tokens"),
        ('{"tokens": {}, "start_ns": "0"}', "start_ns: '0': expected whole nanoseconds"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str, said: str) -> None:
    good = write(tmp_path / "a.jsonl", entry(0, {"0": 4}))
    bad = tmp_path / "b.jsonl"
    bad.write_text(f"\n{line}\n")

    result = phasewise("diff", good, bad)

    assert result.exit_code == 2
    assert f"b.jsonl:2: {said}" in result.stderr


@pytest.mark.parametrize("text", ['{\n "tokens": {}\n}\n', '\n[\n{"tokens": {}}\n]'])
def test_one_json_value_is_no_log(tmp_path: Path, text: str) -> None:
    good = write(tmp_path / "a.jsonl", entry(0, {"0": 4}))
    (tmp_path / "summary.json").write_text(text)

    result = phasewise("diff", good, tmp_path / "summary.json")

    assert result.exit_code == 2
    assert "summary.json: is one JSON value over several lines; expected JSON l" in result.stderr


def test_results_without_a_log_say_how_to_get_one(tmp_path: Path) -> None:
    result = phasewise("diff", tmp_path, tmp_path)

    assert result.exit_code == 2
    assert "phasewise run CONFIG --decisions" in result.stderr
    assert phasewise("diff", tmp_path / "none", tmp_path).exit_code == 2


def test_a_log_without_an_iteration_is_an_error(tmp_path: Path) -> None:
    there = write(tmp_path / "a.jsonl", entry(0, {"0": 1}))
    empty = write(tmp_path / "b.jsonl")
    for logs in ((there, empty), (empty, there), (empty, empty)):
        done = phasewise("diff", *logs)
        assert done.exit_code == 2
        assert f"{empty}: has no iteration" in done.stderr
        assert len(done.stderr.splitlines()) == 1
