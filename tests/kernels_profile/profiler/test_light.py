"""The prepared command runs where there is only torch, triton, numpy and PyYAML."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class Blocks:
    names = {"typer", "rich", "pydantic", "pandas", "pyarrow", "scipy", "plotly", "simpy", "click"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Blocks())
"""
NO_TORCH = BLOCKED.replace('"typer"', '"typer", "torch", "triton"')


def run(repository: Path, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=False
    )


def test_the_blocks_block(repository: Path) -> None:
    for name in ("rich", "torch", "simpy"):
        assert "blocked" in run(repository, f"{NO_TORCH}\nimport {name}").stderr


def test_a_plan_needs_none_of_the_libraries_around_an_experiment(repository: Path) -> None:
    program = """
from pathlib import Path
import kernels_profile.profiler.session, kernels_profile.profiler.run
from kernels_profile.profiler.device import find
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.plan import plan_text
from kernels_profile.profiler.progress import Lines, default_progress
from kernels_profile.profiler.request import Request, lay_out
found = find("h200", plan_only=True)
request = Request(["llama-3.1-8b"], Path("x"), device="h200")
print(plan_text(lay_out(request, found, Effort()), "h200", Effort()))
assert isinstance(default_progress(), Lines)
"""
    done = run(repository, NO_TORCH + program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("plan for h200")


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_measuring_needs_no_more_than_torch_and_triton(repository: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = f"""
import sys
from kernels_profile.profiler.session import main
given = ["--out", {str(out)!r}, "--device", "cpu", "--models", "tiny"]
sys.exit(main([*given, "--tables", "elementwise", "--part", "profile"]))
"""
    done = run(repository, BLOCKED + program)
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stderr
    assert (out / "meta.yaml").is_file()
