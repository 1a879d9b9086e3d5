"""The prepared command: parts in order, each in a process of its own, and what is said of each."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kernels_profile.profiler import processes, session
from kernels_profile.profiler.loop import DeviceLostError
from kernels_profile.profiler.processes import DONE, LOST, Part
from kernels_profile.table import DataSet
from sim.errors import ProfileError


def parsed(out: Path, *more: str) -> Any:
    return session._parser().parse_args(["--out", str(out), *more])


def test_parts_come_in_the_order_of_their_worth_and_have_their_time(tmp_path: Path) -> None:
    given = ["--out", str(tmp_path), "--models", "llama-3-8b", "--tensor-parallel", "2"]
    parts = session.parts(session._parser().parse_args(given), given)
    assert [(part.name, part.limit_s) for part in parts] == [
        ("sanity", 20.0), ("profile", 300.0), ("steps", 60.0), ("replay", 120.0),
    ]  # fmt: skip
    assert all(list(p.arguments) == [*given, "--part", p.name] for p in parts[:3])
    for part, option in zip(parts[:3], ("sanity_s", "budget_s", "steps_s"), strict=True):
        told = session._parser().parse_args(part.within(17 + part.grace_s).command[3:])
        assert getattr(told, option) == 17.0
    assert all(processes.is_there(part.module) for part in parts)


def test_the_whole_session_ends_in_time_whatever_the_parts_do(tmp_path: Path) -> None:
    parts = session.parts(parsed(tmp_path), [])
    asked_s = sum(part.limit_s for part in parts)
    left_s = session.TOTAL_S - 20  # torch is loaded once before
    granted = []
    for part in parts:  # each takes all that it may
        granted.append(part.within(left_s))
        left_s -= granted[-1].limit_s + granted[-1].grace_s
    assert left_s >= 0
    assert asked_s + 2 * 20 < session.TOTAL_S < 570
    assert [part.limit_s for part in granted[:3]] == [part.limit_s for part in parts[:3]]
    assert granted[3].limit_s >= session.LEAST_S


def test_the_replay_understands_what_it_is_told(tmp_path: Path) -> None:
    from experiments.replay import _parser

    replay = session.parts(parsed(tmp_path, "--replay-s", "90"), [])[-1]
    told = _parser().parse_args(replay.command[3:])
    assert (told.out, told.tables) == (tmp_path / "replay", tmp_path)
    assert (told.model, told.duration_s, told.device) == ("llama-3.1-8b", 90.0, "auto")


def part(program: str, limit_s: float = 60.0) -> Part:
    class Program(Part):
        @property
        def command(self) -> list[str]:
            return [sys.executable, "-c", program]

    return Program("p", limit_s, session.OURS, grace_s=0.0)


def test_how_a_part_ended_is_said() -> None:
    assert part("").run() == "done"
    assert part("import sys; sys.exit(4)").run() == "failed with exit code 4"
    assert part("import sys; sys.exit(3)").run() == LOST
    absent = Part("p", 1.0, "kernels_profile.engine.no_such")
    assert absent.run() == processes.ABSENT


def test_a_part_finds_our_packages_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    program = "import kernels_profile, sys; sys.exit('/elsewhere' not in sys.path)"
    assert part(program).run() == "done"


def test_whoever_waits_is_told_that_a_part_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TICK_S", 0.02)
    ticks: list[int] = []
    assert part("import time; time.sleep(0.5)").run(lambda: ticks.append(1)) == "done"
    assert len(ticks) > 1


def test_a_part_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = "import subprocess, sys, pathlib, time\n"
    child += "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    child += f"pathlib.Path({str(pid)!r}).write_text(str(p.pid))\ntime.sleep(600)"
    assert part(child, limit_s=5.0).run().startswith("ended after 5 s")
    for _ in range(100):  # until whoever inherits it has seen its end
        state = Path(f"/proc/{pid.read_text()}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("what the part started is still running")


class Parts:
    """Stands for the processes: says how each part ended, and keeps what was started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: dict[str, list[str]]) -> None:
        self.said = said
        self.seen: list[Part] = []
        monkeypatch.setattr(Part, "run", lambda part, tick: self._run(part, tick))

    def _run(self, part: Part, tick: Any) -> str:
        self.seen.append(part)
        tick()
        answers = self.said.get(part.name, [DONE])
        return answers.pop(0) if len(answers) > 1 else answers[0]


def run_all(out: Path, *more: str) -> int:
    return session.run_all(parsed(out, *more), [], time.monotonic())


def logged(out: Path) -> list[tuple[str, str]]:
    entries = json.loads((out / "session.json").read_text())
    return [(entry["part"], entry["result"]) for entry in entries]


def test_a_part_that_fails_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = "failed with exit code 1"
    parts = Parts(monkeypatch, {"sanity": [failed], "steps": [processes.ABSENT]})
    assert run_all(tmp_path) == 1
    assert logged(tmp_path) == [
        ("sanity", failed), ("profile", DONE), ("steps", processes.ABSENT), ("replay", DONE),
    ]  # fmt: skip
    parts.said.clear()
    assert run_all(tmp_path) == 0


def test_parts_that_were_not_asked_for_or_have_no_time_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(monkeypatch, {})
    assert run_all(tmp_path, "--steps-s", "0", "--total-s", "62") == 1
    assert [(part.name, part.limit_s < 300) for part in parts.seen] == [
        ("sanity", True), ("profile", True),
    ]  # fmt: skip
    assert dict(logged(tmp_path)) | {"sanity": "", "profile": ""} == {
        "sanity": "", "profile": "", "steps": session.NOT_ASKED, "replay": session.NO_TIME,
    }  # fmt: skip


def test_a_profile_whose_device_was_lost_goes_on_once_in_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = Parts(monkeypatch, {"profile": [LOST, DONE]})
    assert run_all(tmp_path) == 1
    assert [part.name for part in parts.seen] == ["sanity", "profile", "profile", "steps", "replay"]
    parts = Parts(monkeypatch, {"profile": [LOST]})
    assert run_all(tmp_path) == 1
    assert sum(part.name == "profile" for part in parts.seen) == 2


def test_the_table_that_broke_a_device_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernels_profile.profiler import run as module

    def breaks(request: Any) -> Any:
        raise DeviceLostError("8 points in a row failed", "attention_mixed")

    monkeypatch.setattr(module, "profile", breaks)
    (tmp_path / session.SPOILED).write_text("moe")
    assert session.main(["--out", str(tmp_path), "--part", "profile"]) == processes.DEVICE_LOST
    assert (tmp_path / session.SPOILED).read_text().split() == ["attention_mixed", "moe"]


def test_all_files_come_in_one_archive_after_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tarfile

    Parts(monkeypatch, {})
    out, archive = tmp_path / "tables", tmp_path / "back" / "tables.tar.gz"
    (out / "replay").mkdir(parents=True)
    (out / "replay" / "steps.csv").write_text("a\n")
    (out / "linear.csv").write_text("b\n")
    assert run_all(out, "--archive", str(archive)) == 0
    with tarfile.open(archive) as file:
        names = ["tables/linear.csv", "tables/replay/steps.csv", "tables/session.json"]
        assert file.getnames() == names
        assert file.extractfile("tables/linear.csv").read() == b"b\n"  # type: ignore[union-attr]
    assert [path.name for path in archive.parent.iterdir()] == ["tables.tar.gz"]


def test_an_archive_is_not_packed_into_itself(tmp_path: Path) -> None:
    import tarfile

    from kernels_profile.profiler.archive import pack

    (tmp_path / "a.csv").write_text("a")
    for _ in range(2):
        pack(tmp_path, tmp_path / "all.tar.gz")
    with tarfile.open(tmp_path / "all.tar.gz") as file:
        assert file.getnames() == [f"{tmp_path.name}/a.csv"]


def test_a_missing_package_is_named_before_time_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "simpy" or None)
    assert session.main(["--out", str(tmp_path / "o")]) == 2
    said = capsys.readouterr().err
    assert "not installed here: simpy" in said
    assert "pip install --target site simpy" in said
    assert "--replay-s 0" in said
    session.need_packages(parsed(tmp_path, "--replay-s", "0"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProfileError, match=r"torch, triton\. "):
        session.need_packages(parsed(tmp_path, "--replay-s", "0"))


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
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
