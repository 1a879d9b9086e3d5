"""The wheel holds what a run needs and works away from the checkout, beside foreign packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"sim", "policies", "traces", "kernels_profile", "experiments"}
NOT_SHIPPED = {".md", ".out", ".pyc"}
SMALL_RUN = ("run", "quickstart", "--set", "workload.requests=40", "--out", "results")

pytestmark = pytest.mark.slow


def run(*command: str | Path, folder: Path) -> str:
    """Run a command without any of this test run's settings; its output, or a failed test."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    constraints = str(ROOT / "constraints.txt")
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**kept, "PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that no stale build folder gets into it."""
    source = tmp_path_factory.mktemp("build") / "source"
    foreign = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "results")
    shutil.copytree(ROOT, source, ignore=foreign)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", source / "dist", folder=source)
    [built] = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The console command, installed from the wheel into an environment of its own."""
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "venv", folder / "venv", folder=folder)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, folder=folder)
    return python.with_name("phasewise")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's folder that has an experiments package and a sim package of its own."""
    for name in ("experiments", "sim"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('not phasewise')\n")
    return tmp_path


def test_the_wheel_holds_every_package_with_its_data_and_no_tests(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in inside}
    assert {top for top in tops if not top.endswith(".dist-info")} == {*PACKAGES, "phasewise.py"}
    shipped = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in NOT_SHIPPED
    }
    assert shipped - inside == set()
    assert "experiments/configs/quickstart.yaml" in inside


def test_the_installed_command_knows_its_version_and_lists(command: Path, elsewhere: Path) -> None:
    from experiments.version import __version__

    assert __version__ in run(command, "--version", folder=elsewhere)
    policies = run(command, "list", "policies", folder=elsewhere)
    assert "vllm-v1" in policies
    assert "sarathi" in policies


def test_the_installed_command_runs_a_shipped_config(command: Path, elsewhere: Path) -> None:
    run(command, *SMALL_RUN, folder=elsewhere)
    assert list((elsewhere / "results").rglob("requests.parquet"))
    assert list((elsewhere / "results").rglob("*.html"))


def test_the_installed_package_is_a_python_library(command: Path, elsewhere: Path) -> None:
    program = "import phasewise, sys; print(phasewise.__version__, 'pandas' in sys.modules)"
    from experiments.version import __version__

    said = run(command.with_name("python"), "-P", "-c", program, folder=elsewhere)
    assert said.split() == [__version__, "False"]
