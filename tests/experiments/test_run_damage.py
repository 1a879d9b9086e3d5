"""Results that are damaged are made again, those of variants that failed left out; both is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments import bundle, hashes
from experiments.cli import app

CONFIG: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 20, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "compare": [{"label": "a", "policy": "sarathi"}, {"label": "b", "policy": "orca"}],
}


@pytest.fixture(autouse=True)
def _in_a_folder_and_same_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "of_code", lambda: "0" * 64)
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(yaml.safe_dump(CONFIG))


def phasewise(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run(*more: str) -> Result:
    return phasewise("run", "c.yaml", "--out", "o", "--jobs", "1", "--figures", "html", *more)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b"garbage"),
        ("summary.json", b"[1]"),
        ("summary.json", b'{"bundle_version": 1}'),
        ("summary.json", None),
        ("itl.parquet", None),
        ("requests.parquet", b"PAR1"),
        ("steps.parquet", b"PAR1"),
        ("config.yaml", b"{"),
        ("config.yaml", None),
        ("environment.json", None),
        ("environment.json", b"\xff"),
    ],
)
def test_results_that_cannot_be_read_are_made_again(name: str, content: bytes | None) -> None:
    run()
    file = Path("o/a") / name
    before = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)

    again = run()

    assert again.exit_code == 0, again.output
    (told,) = [line for line in again.stderr.splitlines() if line.endswith("; simulated again")]
    assert told.startswith("a: o/a")
    assert "b: unchanged, kept from an earlier run" in again.stderr
    assert file.read_bytes() == before
    assert "simulated again" not in run().stderr


def test_a_folder_that_is_not_ours_is_left_alone() -> None:
    Path("o/a").mkdir(parents=True)
    Path("o/a/config.yaml").write_text("mine")

    result = run()

    assert result.exit_code == 1
    assert "o/a: exists and is no bundle of results" in result.stderr
    assert Path("o/a/config.yaml").read_text() == "mine"


def test_a_table_names_the_variants_that_failed_and_shows_no_older_results_of_them() -> None:
    run()
    Path("damage_failing.py").write_text(
        "from dataclasses import dataclass\nfrom policies.orca import Orca\n"
        "@dataclass\nclass Failing(Orca):\n"
        "    def schedule(self, state):\n        raise RuntimeError('no idea')\n"
    )
    Path("c.yaml").write_text(
        yaml.safe_dump(CONFIG).replace("policy: orca", "policy: damage_failing:Failing")
    )
    failed = run()
    assert failed.exit_code == 1, failed.output

    result = phasewise("table", "o", "--format", "csv")

    assert result.exit_code == 0
    assert result.stderr == "o/b: failed: RuntimeError: no idea; left out\n"
    assert [line.split(",")[0] for line in result.stdout.splitlines()] == ["variant", "a"]
    assert bundle.find(Path("o")) == [Path("o/a")]


def test_a_table_names_variants_whose_results_are_gone() -> None:
    run()
    for file in Path("o/b").iterdir():
        file.unlink()

    assert "o/b: no results; left out" in phasewise("table", "o").stderr


def test_a_list_of_variants_that_is_damaged_is_one_line() -> None:
    run()
    Path("o/variants.json").write_text(json.dumps({"bundle_version": 1}))

    result = phasewise("table", "o")

    assert result.exit_code == 2
    assert result.stderr == "phasewise: o/variants.json: lists no variants; run it again\n"
