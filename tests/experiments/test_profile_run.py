"""``phasewise profile run`` as a user types it: plans, one line where it cannot run, and a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.profile_run import listed
from kernels_profile.profiler import device
from kernels_profile.table import DataSet


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["profile", "run", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def plan(out: Path, *arguments: str) -> tuple[int, str, str]:
    return run("--out", str(out), "--plan", *arguments)


def test_a_plan_needs_no_gpu_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "o"
    code, said, _ = plan(out, "--models", "llama-3.1-8b", "--device", "h200")
    assert code == 0
    assert said.startswith("plan for h200: estimates from the roofline, not measured")
    assert "attention_decode" in said
    assert not out.exists()


def test_a_plan_says_what_a_budget_covers(tmp_path: Path) -> None:
    arguments = ("--models", "llama-3.1-8b", "--device", "h200")
    _, whole, _ = plan(tmp_path, *arguments)
    said = [plan(tmp_path, *arguments, "--budget-s", f"{s}")[1] for s in (5, 20, 9999)]
    covers = [re.search(r"--budget-s \S+ covers (\d+) to (\d+) of (\d+) points", x) for x in said]
    numbers = [[int(number) for number in found.groups()] for found in covers if found]
    assert "covers" not in whole
    assert numbers[0][0] < numbers[0][1] < numbers[1][1]
    assert len(set(numbers[2])) == 1
    coarse = re.search(r"linear: (\d+) of (\d+) coarse", said[2])
    assert coarse is not None
    assert coarse[1] == coarse[2]


@pytest.mark.parametrize("command", [pytest.param("run", marks=pytest.mark.kernels), "import"])
def test_an_out_that_can_be_no_folder_is_bad_input(tmp_path: Path, command: str) -> None:
    out = tmp_path / "file" / "o"
    out.parent.write_text("")
    source = tmp_path / "gemm_perf.csv"
    source.write_text("gemm_dtype,m,n,k,latency\nbfloat16,1,8,8,1\n")
    arguments = {
        "run": ["--device", "cpu", "--models", "tiny"],
        "import": ["--from", "aiconfigurator", str(source), "--device", "h200"],
    }[command]
    result = CliRunner().invoke(app, ["profile", command, *arguments, "--out", str(out)])
    assert result.exit_code == 2
    assert result.stderr.startswith("phasewise: --out: ")
    assert "cannot be written" in result.stderr


def test_lists_take_commas_and_repetition(tmp_path: Path) -> None:
    assert listed(["a,b", " c "]) == ["a", "b", "c"]
    assert listed(None) is None
    one = plan(tmp_path, "--models", "llama-3-8b,mixtral-8x7b", "--device", "h200",
               "--tensor-parallel", "1,2")  # fmt: skip
    two = plan(tmp_path, "--models", "llama-3-8b", "--models", "mixtral-8x7b", "--device", "h200",
               "--tensor-parallel", "1", "--tensor-parallel", "2")  # fmt: skip
    assert one[0] == 0
    assert one == two
    assert "moe" in one[1]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--models", "lama-3"], 2, "model: lama-3 has no data sheet"),
        (["--models", ","], 2, "models: none named"),
        (["--device", "h20"], 2, "device: h20 has no data sheet"),
        (["--tensor-parallel", "3"], 2, "tensor_parallel: 3 does not divide"),
        (["--tensor-parallel", "two"], 2, "tensor_parallel: two is not a number of GPUs"),
        (["--tensor-parallel", "0"], 2, "tensor_parallel: 0 is not a number of GPUs"),
        (["--dtype", "fp4"], 2, "dtype: fp4 is not profiled; did you mean fp8?"),
        (["--dtype", "fp8", "--device", "a100-sxm-80gb"], 2, "dtype: a100-sxm-80gb has no fp8"),
        (["--tables", "liner"], 2, "tables: liner is not known; did you mean linear?"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    arguments: list[str], code: int, line: str, tmp_path: Path
) -> None:
    defaults = {"--models": "llama-3.1-8b", "--device": "h200"}
    for name, value in defaults.items():
        if name not in arguments:
            arguments = [*arguments, name, value]
    found, _, said = plan(tmp_path / "o", *arguments)
    assert found == code
    assert said.startswith(f"phasewise: {line}")
    assert len(said.strip().splitlines()) == 1


def test_without_a_gpu_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: None)
    code, _, said = run("--out", str(tmp_path / "o"), "--models", "llama-3.1-8b")
    assert code == 1
    assert said.startswith("phasewise: profiling needs torch, which is not installed")
    assert not (tmp_path / "o").exists()


def command(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments", "profile", "run", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_auto_without_a_gpu_names_three_ways_on(repository: Path, tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    out = tmp_path / "o"
    done = command("--out", str(out), "--models", "llama-3.1-8b", cwd=repository)
    assert done.returncode == 1
    assert done.stderr.startswith("phasewise: device: no GPU here that torch")
    assert all(way in done.stderr for way in ("--plan --device h200", "--device cpu"))
    assert not out.exists()


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_a_run_on_a_cpu_goes_on_where_it_stopped(repository: Path, tmp_path: Path) -> None:
    given = ["--out", str(tmp_path), "--models", "tiny", "--device", "cpu"]
    first = command(*given, "--tables", "overhead", cwd=repository)
    assert first.returncode == 0, first.stderr
    second = command(*given, "--tables", "overhead,ceilings", cwd=repository)
    assert second.returncode == 0, second.stderr
    assert "2 points measured" in second.stdout
    assert "2 were there before" in second.stdout
    data = DataSet(tmp_path)
    assert {path.stem for path in data.files()} == {"overhead", "ceilings"}
    assert [run["points"] for run in data.meta.more["runs"]] == [2, 2]
