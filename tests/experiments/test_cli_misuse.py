"""What cannot be read or written ends a command with one line and a code, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from experiments.cli import app
from experiments.config import load, slug

CONFIG: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 5, "max_tokens": 64},
    "model": "llama-3.1-8b",
    "step_time": {"model": "linear", "base_s": 0.005},
    "policy": "sarathi",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(yaml.safe_dump(CONFIG))
    return "c.yaml"


def one_line(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return result.exit_code, lines[0]


@pytest.mark.parametrize("out", ["one.csv", "one.csv/x", "/proc/x", "/etc/passwd/x", "x" * 300])
def test_an_out_that_cannot_be_a_folder(config: str, out: str) -> None:
    Path("one.csv").touch()

    code, line = one_line("run", config, "--out", out)

    assert code in (1, 2)
    assert out in line


@pytest.mark.parametrize("output", ["/nope/x.csv", "one.csv/x.csv", f"{'x' * 300}.csv"])
def test_a_trace_that_cannot_be_written(config: str, output: str) -> None:
    Path("one.csv").touch()

    code, line = one_line("trace", "synth", "azure-conv-2023", "-n", "10", "-o", output)

    assert code in (1, 2)
    assert output in line


@pytest.mark.parametrize("rate", ["0", "-1", "inf", "nan", "1e-300", "1e300"])
def test_a_rate_out_of_bounds(config: str, rate: str) -> None:
    code, line = one_line(
        "trace", "synth", "azure-conv-2023", "-n", "9", "-o", "x.csv", "--rate", rate
    )

    assert code == 2
    assert "expected 1e-6 to 1e6 requests a second" in line
    assert not Path("x.csv").exists()


def test_arrivals_that_would_take_centuries(config: str) -> None:
    code, line = one_line(
        "check",
        config,
        "--set",
        "workload.requests=100000",
        "--set",
        "workload.arrivals.rate_per_s=1e-6",
    )

    assert code == 2
    assert "the last request would arrive after" in line
    assert "give a higher rate_per_s" in line


@pytest.mark.parametrize("content", [b"a: \0", b"\xff\xfe", b"\x80", b"a: [" * 3000])
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_file_that_is_no_config(config: str, command: str, content: bytes) -> None:
    Path("odd.yaml").write_bytes(content)

    code, line = one_line(command, "odd.yaml")

    assert code == 2
    assert "odd.yaml" in line


def test_a_config_of_a_name_too_long_for_a_path() -> None:
    code, line = one_line("check", "x" * 5000)

    assert code == 2
    assert len(line) < 300


def test_a_long_name_still_gives_a_folder() -> None:
    folder = slug("x" * 5000)

    assert len(folder) < 200
    assert folder != slug("x" * 5001)


def test_a_speedup_says_the_rate_that_is_run() -> None:
    from experiments.workload import build_workload

    arrivals = {"process": "recorded", "speedup": 2}
    plan = load(CONFIG, overrides={"workload": {"arrivals": arrivals}})
    notes = build_workload(plan.variants[0], plan.folder, None).notes

    assert any("divided by 2, which gives " in note for note in notes)
