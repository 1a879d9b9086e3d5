"""The prepared command: parts in order, each in a process of its own, and what is said of each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels_profile.profiler import session
from kernels_profile.table import DataSet


def parsed(out: Path, *more: str) -> Any:
    return session._parser().parse_args(["--out", str(out), *more])


def test_parts_come_in_the_order_of_their_worth_and_have_their_time(tmp_path: Path) -> None:
    parts = session.parts(parsed(tmp_path))
    assert [(part.name, part.limit_s) for part in parts] == [
        ("sanity", 20.0), ("profile", 300.0), ("steps", 60.0), ("replay", 120.0),
    ]  # fmt: skip


def fake_run(codes: dict[str, int | None], seen: list[list[str]]) -> Any:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        seen.append(command)
        code = codes.get(command[-1], 0)
        if code is None:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, code)

    return run


def test_a_part_that_fails_or_hangs_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    codes = {"sanity": 1, "profile": None, "steps": session.ABSENT_CODE}
    monkeypatch.setattr(session.subprocess, "run", fake_run(codes, seen))
    given = ["--out", str(tmp_path), "--budget-s", "300"]
    assert session.run_all(parsed(tmp_path, "--budget-s", "300"), given) == 1
    assert [command[-1] for command in seen] == ["sanity", "profile", "steps", "replay"]
    assert all(command[3:7] == [*given] for command in seen)
    log = {
        entry["part"]: entry["result"]
        for entry in json.loads((tmp_path / "session.json").read_text())
    }
    assert log["sanity"] == "failed with exit code 1"
    assert log["profile"].startswith("ended after 345 s")
    assert log["steps"] == session.ABSENT
    assert log["replay"] == "done"


def test_parts_that_cannot_be_done_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: dict[str, int | None] = {"steps": session.ABSENT_CODE, "replay": session.NO_GPU_CODE}
    monkeypatch.setattr(session.subprocess, "run", fake_run(codes, []))
    assert session.run_all(parsed(tmp_path), []) == 0


def test_bad_input_ends_in_one_line_before_any_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "o")]
    assert session.main([*out, "--models", "lama-3", "--device", "cpu"]) == 2
    assert session.main([*out, "--tensor-parallel", "3"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("phasewise: model: lama-3 has no data sheet")
    assert said[1].startswith("phasewise: tensor_parallel: 3 does not divide")
    assert not (tmp_path / "o").exists()


def test_tables_of_a_wrong_kernel_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels_profile.profiler import run as module
    from kernels_profile.profiler.loop import Outcome

    asked: list[Any] = []

    def measure(request: Any) -> Outcome:
        asked.append(request)
        return Outcome(measured=1)

    monkeypatch.setattr(module, "profile", measure)
    (tmp_path / session.SPOILED).write_text("linear\nmoe")
    assert session.profile(parsed(tmp_path)) == 0
    assert "linear" not in asked[0].tables
    assert "attention_decode" in asked[0].tables
    assert asked[0].budget_s == 300.0


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_the_whole_command_on_a_cpu(repository: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kernels_profile.profiler.session", "--out", str(tmp_path)]
    command += ["--device", "cpu", "--models", "tiny", "--sanity-s", "120"]
    command += ["--kernels", "silu_mul", "--tables", "elementwise", "--processes", "1"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    log = json.loads((tmp_path / "session.json").read_text())
    assert [entry["part"] for entry in log] == ["sanity", "profile", "steps", "replay"]
    assert [entry["result"] for entry in log[:2]] == ["done", "done"]
    assert "True" in (tmp_path / "sanity.csv").read_text()
    assert DataSet(tmp_path).files()
