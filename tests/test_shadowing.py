"""Our folders have common names; a package that stands before one is found out and named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def python(program: str, folder: Path, *before: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, with `before` and then our checkout on the module path."""
    path = os.pathsep.join(map(str, (*before, ROOT)))
    return subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder with an experiments package and a sim folder that are not ours."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise SystemExit('not ours')\n")
    (tmp_path / "sim").mkdir()
    return tmp_path


def test_nothing_shadows_our_own_checkout(tmp_path: Path) -> None:
    done = python("import phasewise; phasewise.check_shadowing()", tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_current_folder_does_not_matter_to_the_command(strange: Path) -> None:
    done = python("import phasewise; phasewise.check_shadowing()", strange)
    assert done.returncode == 0, done.stderr


def test_a_shadowing_package_is_named_in_one_line(strange: Path) -> None:
    done = python("import phasewise; phasewise.main()", strange, strange)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("phasewise: package experiments is shadowed: ")
    assert str(strange / "experiments") in line


def test_a_shadowing_module_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "traces.py").write_text("")
    done = python("import phasewise; phasewise.check_shadowing()", tmp_path, tmp_path)
    assert str(tmp_path / "traces.py") in done.stderr.splitlines()[-1]


def test_a_package_imported_before_ours_is_named(strange: Path) -> None:
    program = "import sys, sim; sys.path.pop(0); import phasewise; phasewise.check_shadowing()"
    (strange / "sim" / "__init__.py").write_text("")
    (strange / "experiments" / "__init__.py").unlink()
    (strange / "experiments").rmdir()
    done = python(program, strange, strange)
    assert "package sim is shadowed" in done.stderr.splitlines()[-1]
