"""The prepared command: parts in order, each in a process of its own, and what is said of each."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernels_profile.profiler import session
from kernels_profile.table import DataSet


def parsed(out: Path, *more: str) -> Any:
    return session._parser().parse_args(["--out", str(out), *more])


def test_parts_come_in_the_order_of_their_worth_and_have_their_time(tmp_path: Path) -> None:
    given = ["--out", str(tmp_path), "--models", "llama-3-8b", "--tensor-parallel", "2"]
    parts = session.parts(session._parser().parse_args(given), given)
    assert [(part.name, part.limit_s) for part in parts] == [
        ("sanity", 20.0), ("profile", 300.0), ("steps", 60.0), ("replay", 120.0),
    ]  # fmt: skip
    assert all(list(p.arguments) == [*given, "--part", p.name] for p in parts[:3])
    assert all(session.is_there(part.module) for part in parts)


def test_the_replay_understands_what_it_is_told(tmp_path: Path) -> None:
    from experiments.replay import _parser

    replay = session.parts(parsed(tmp_path, "--replay-s", "90"), [])[-1]
    told = _parser().parse_args(list(replay.arguments))
    assert (told.out, told.tables) == (tmp_path / "replay", tmp_path)
    assert (told.model, told.duration_s, told.device) == ("llama-3.1-8b", 90.0, "auto")


def part(program: str, limit_s: float = 60.0) -> session.Part:
    class Program(session.Part):
        @property
        def command(self) -> list[str]:
            return [sys.executable, "-c", program]

    return Program("p", limit_s, session.OURS, ())


def test_how_a_part_ended_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.run_part(part("")) == "done"
    assert session.run_part(part("import sys; sys.exit(3)")) == "failed with exit code 3"
    absent = session.Part("p", 1.0, "kernels_profile.engine.no_such", ())
    assert session.run_part(absent) == session.ABSENT


def test_a_part_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GRACE_S", 0.0)
    pid = tmp_path / "pid"
    child = "import subprocess, sys, pathlib, time\n"
    child += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    child += f"pathlib.Path({str(pid)!r}).write_text(str(p.pid))\ntime.sleep(600)"
    assert session.run_part(part(child, limit_s=5.0)).startswith("ended after 5 s")
    for _ in range(100):  # until whoever inherits it has seen its end
        state = Path(f"/proc/{pid.read_text()}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the part started is still running")


def test_a_part_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"sanity": "failed with exit code 1", "steps": session.ABSENT}
    seen: list[str] = []

    def run(part: session.Part) -> str:
        seen.append(part.name)
        return said.get(part.name, "done")

    monkeypatch.setattr(session, "run_part", run)
    assert session.run_all(parsed(tmp_path), []) == 1
    assert seen == ["sanity", "profile", "steps", "replay"]
    written = json.loads((tmp_path / "session.json").read_text())
    assert {entry["part"]: entry["result"] for entry in written} == {
        "profile": "done", "replay": "done", **said,
    }  # fmt: skip
    said["sanity"] = "done"
    assert session.run_all(parsed(tmp_path), []) == 0


def test_bad_input_ends_in_one_line_before_any_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "o")]
    assert session.main([*out, "--models", "lama-3", "--device", "cpu"]) == 2
    assert session.main([*out, "--tensor-parallel", "3"]) == 2
    assert session.main([*out, "--tables", "liner", "--device", "cpu", "--models", "tiny"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith("phasewise: model: lama-3 has no data sheet")
    assert said[1].startswith("phasewise: tensor_parallel: 3 does not divide")
    assert said[2] == "phasewise: tables: liner is not known; did you mean linear?"
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
    assert [entry["result"] for entry in log] == ["done", "done", session.NO_GPU, session.NO_GPU]
    assert "True" in (tmp_path / "sanity.csv").read_text()
    assert DataSet(tmp_path).files()
