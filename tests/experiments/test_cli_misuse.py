"""What cannot be read or written ends a command with one line and a code, never a traceback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from experiments.cli import app
from experiments.config import load, slug
from tests.experiments.test_help import commands

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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("run q --jobs x", "phasewise run: --jobs: x: expected a whole number"),
        ("run q --jobs 0", "phasewise run: --jobs: 0: expected at least 1"),
        ("plot x --width-mm wide", "phasewise plot: --width-mm: wide: expected a number"),
        ("run q --jbos 2", "phasewise run: --jbos: no such option; try --jobs"),
        ("rnu q", "phasewise: rnu: no such command; try run"),
        ("trace inof x", "phasewise trace: inof: no such command; try info"),
        ("run", "phasewise run: CONFIG: is missing: a YAML file, or the name of a shipped config"),
        ("phases --model m", "phasewise phases: --device: is missing: name of a data sheet"),
        ("run a b", "phasewise run: b: unexpected; it takes CONFIG"),
        ("metrics a b", "phasewise metrics: a b: unexpected; it takes no arguments"),
        ("run q --out", "phasewise run: --out: requires an argument"),
        ("run q --json=3", "phasewise run: --json: does not take a value"),
        ("explain x --worst ttft", "phasewise explain: --worst: requires 2 arguments"),
        ("explain x --worst ttft y", "phasewise explain: --worst: y: expected a whole number"),
    ],
)
def test_what_the_command_line_cannot_take_is_one_line(given: str, said: str) -> None:
    assert one_line(*given.split()) == (2, said)


def test_an_unknown_option_like_no_other_lists_those_there_are() -> None:
    code, line = one_line("schema", "--zzz")

    assert (code, line) == (2, "phasewise schema: --zzz: no such option; choose one of --help")


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_refuses_an_unknown_option_in_one_line(path: tuple[str, ...]) -> None:
    needed = ("--out", "x") if path == ("profile", "replay") else ()  # has a parser of its own

    code, line = one_line(*path, *needed, "--no-such-option-at-all")

    assert code == 2
    asked = "phasewise: replay" if needed else f"phasewise {' '.join(path)}"
    assert line.startswith(f"{asked}: --no-such-option-at-all: no such option; ")


def test_help_and_no_command_at_all_still_print_the_help() -> None:
    asked, nothing = (CliRunner().invoke(app, words) for words in (["run", "--help"], []))

    assert (asked.exit_code, nothing.exit_code) == (0, 2)
    assert asked.stdout.startswith("Usage: ")
    assert "Commands:" in nothing.output


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("@dataclass\nclass Mine(Policy):\n    pass\n", "choose one of Mine"),
        ("class Helper:\n    pass\n", "it defines no policy or router"),
    ],
)
def test_of_a_file_only_its_own_policies_are_offered(config: str, text: str, offered: str) -> None:
    name = f"own_policies_{len(text)}"
    head = "from dataclasses import dataclass\nfrom sim.policy import Policy, ReplicaState\n\n\n"
    Path(f"{name}.py").write_text(head + text)

    code, line = one_line("check-policy", f"{name}:Zzz")

    assert (code, line) == (2, f"phasewise: check-policy: {name} has no 'Zzz'; {offered}")
