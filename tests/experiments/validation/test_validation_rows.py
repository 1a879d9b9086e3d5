"""Measured rows: which are chosen, and what they set."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.validation import rows
from sim.errors import ConfigError

CSV = """name,size,load,empty
a,1,8,
a,2,16,x
b,3,32,
"""


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    (tmp_path / "table.csv").write_text(CSV, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("where", "sizes"),
    [
        ({"name": "a"}, [1, 2]),
        ({"name": ["a", "b"], "size": {"from": 2, "to": 3}}, [2, 3]),
        ({"empty": None}, [1, 3]),
        ({}, [1, 2, 3]),
    ],
)
def test_rows_are_chosen_by_their_columns(measured: Path, where: dict, sizes: list[int]) -> None:
    table = rows.chosen({"table": "table.csv", "where": where}, measured)
    assert table["size"].tolist() == sizes


def test_words_become_values(measured: Path) -> None:
    said = {"table": "table.csv", "derive": {"gpus": {"name": {"a": 8, "b": 4}}}}
    assert rows.chosen(said, measured)["gpus"].tolist() == [8, 8, 4]


@pytest.mark.parametrize(
    ("where", "message"), [({"nam": "a"}, "did you mean name"), ({"name": "c"}, "no row is left")]
)
def test_a_choice_that_finds_nothing_is_refused(measured: Path, where: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        rows.chosen({"table": "table.csv", "where": where}, measured)


def test_a_row_sets_the_server_and_options_of_its_policy() -> None:
    said = {"set": {"tensor_parallel": "gpus", "policy.max_num_batched_tokens": ["isl", 1500],
                    "model": {"is": "opt-13b"}}}  # fmt: skip
    server, policy = rows.settings(said, {"gpus": 2.0, "isl": 1024})
    assert server == {"tensor_parallel": 2, "model": "opt-13b"}
    assert policy == {"max_num_batched_tokens": 2524}
    with pytest.raises(ConfigError, match="no column gpu"):
        rows.settings({"set": {"tensor_parallel": "gpu"}}, {"gpus": 2})
