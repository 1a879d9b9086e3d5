"""Our folders have common names; a package that stands before one is found out and named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
POLICY = """
from dataclasses import dataclass
from sim.policy import Policy, ReplicaState
from policies import Sarathi

@dataclass
class Mine(Sarathi):
    pass
"""


def command(
    folder: Path, *arguments: str, before: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder as its installed script does, `before` first on PYTHONPATH."""
    script = folder.parent / "bin" / "phasewise"
    script.parent.mkdir(exist_ok=True)
    script.write_text("import phasewise\nif __name__ == '__main__':\n    phasewise.main()\n")
    path = os.pathsep.join(str(place) for place in (before, ROOT) if place)
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder of a user's with packages named as ours."""
    folder = tmp_path / "strange"
    for name in ("experiments", "sim", "traces", "policies"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    return folder


def test_the_current_folder_does_not_matter_to_the_command(strange: Path) -> None:
    done = command(strange, "--version")
    assert done.returncode == 0, done.stderr


def test_nor_to_its_workers(strange: Path) -> None:
    small = ("--set", "workload.requests=20", "--jobs", "2", "--figures", "none")
    done = command(strange, "run", "quickstart", *small)
    assert done.returncode == 0, done.stderr


def test_nor_to_a_policy_that_lies_there(strange: Path) -> None:
    (strange / "mine.py").write_text(POLICY)
    config = "workload: {preset: azure-conv-2023, requests: 20}\nmodel: llama-3.1-8b\n"
    (strange / "own.yaml").write_text(config + 'policy: "mine:Mine"\n')
    done = command(strange, "run", "own.yaml", "--figures", "none")
    assert done.returncode == 0, done.stderr


def test_a_shadowing_package_is_named_in_one_line(strange: Path) -> None:
    done = command(strange, "--version", before=strange)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("phasewise: package sim is shadowed: ")
    assert str(strange / "sim") in line


def test_a_shadowing_module_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "strange"
    folder.mkdir()
    (folder / "traces.py").write_text("")
    done = command(folder, "--version", before=folder)
    assert str(folder / "traces.py") in done.stderr


def test_a_shadowing_folder_without_code_is_no_matter(tmp_path: Path) -> None:
    """A regular package is preferred to such a folder, whichever comes first."""
    (tmp_path / "strange" / "sim").mkdir(parents=True)
    done = command(tmp_path / "strange", "--version", before=tmp_path / "strange")
    assert done.returncode == 0, done.stderr


def test_a_package_imported_before_ours_is_named(tmp_path: Path) -> None:
    (tmp_path / "sim").mkdir()
    (tmp_path / "sim" / "__init__.py").write_text("")
    program = "import sys, sim; sys.path.pop(0); import phasewise; phasewise.load('quickstart')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "package sim is shadowed" in done.stderr.splitlines()[-1]
