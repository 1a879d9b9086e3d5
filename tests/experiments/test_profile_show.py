"""``phasewise profile show`` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from kernels_profile.table import Meta, write_meta
from tests.kernels_profile.made_up import tables, written


def show(*arguments: str) -> tuple[int, list[str], str]:
    result = CliRunner().invoke(app, ["profile", "show", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout.splitlines(), result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Data sets of two devices, the second with more about itself."""
    written(tmp_path / "a100", tables(), "a100-sxm-80gb")
    written(tmp_path / "h200", tables(cv=0.01))
    more = {"gpu": {"name": "a card", "driver": "1.2"}, "engine": "triton", "notes": ["one word"]}
    write_meta(tmp_path / "h200", Meta("h200", "a test", "own", more))
    return tmp_path


def test_all_data_sets_of_a_folder_are_said_device_by_device(folder: Path) -> None:
    code, said, _ = show(str(folder))
    assert code == 0
    assert said[0] == f"{folder / 'a100'}: a100-sxm-80gb, imported: made up"
    assert "  no repeats: noise is off with these tables" in said
    second = said[said.index("") + 1 :]
    assert second[:4] == [
        f"{folder / 'h200'}: h200, own: a test",
        "  engine: triton",
        "  gpu: name a card, driver 1.2",
        "  note: one word",
    ]
    assert (
        "  linear: 40 points, 8 shapes, dtype bf16, tokens 1 to 1024 (5), interpolation 0.0%"
        in (second)
    )
    assert "  no repeats: noise is off with these tables" not in second
    assert "lack operators (--model NAME says which)" in second[-1]


def test_what_a_model_lacks_is_said_for_each_number_of_gpus(folder: Path) -> None:
    code, said, _ = show(str(folder / "h200"), "--model", "llama-3.1-8b")
    assert code == 0
    lacking = [line for line in said if line.startswith("llama-3.1-8b, bf16, tp ")]
    assert [line.partition(": lacks ")[0][-1] for line in lacking] == ["1", "2", "4", "8"]
    assert "linear 6144 x 4096 (bf16)" in lacking[0]
    assert "collective all_reduce of 8 GPUs" in lacking[3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "nowhere: no such folder"),
        ((".",), "has no meta.yaml"),
    ],
)
def test_what_is_no_data_set_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said, error = show(*arguments)
    assert code == 2
    assert not said
    assert message in error
    assert len(error.splitlines()) == 1


def test_an_unknown_model_is_one_line(folder: Path) -> None:
    code, _, error = show(str(folder), "--model", "lama-3-8b")
    assert code == 2
    assert "llama-3-8b" in error


def test_a_device_without_a_data_sheet_is_named_with_its_file(folder: Path) -> None:
    meta = folder / "h200" / "meta.yaml"
    meta.write_text(meta.read_text().replace("device: h200", "device: h201"))
    code, _, error = show(str(folder))
    assert code == 2
    assert error.startswith(f"phasewise: {meta}: device: h201 has no data sheet")
