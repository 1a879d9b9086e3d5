"""Help of every command: an example each, whose options exist; what Tab completes; exit codes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer.main

from experiments import completion
from experiments.capacity.goal import read_goal
from experiments.cli import app
from experiments.quantity import read_quantity

ROOT: Any = typer.main.get_command(app)


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def command_at(path: tuple[str, ...]) -> Any:
    found = ROOT
    for name in path:
        found = found.commands[name]
    return found


def examples(path: tuple[str, ...]) -> list[str]:
    _, _, below = (command_at(path).help or "").partition("Examples:")
    return [line.strip() for line in below.splitlines() if line.strip()]


@pytest.mark.parametrize("path", list(commands()), ids=" ".join)
def test_every_command_has_examples_whose_options_exist(path: tuple[str, ...]) -> None:
    lines = examples(path)

    assert lines, f"phasewise {' '.join(path)} --help shows no example"
    own = 0
    for line in lines:
        words = shlex.split(line.split(" > ")[0])
        assert words[0] == "phasewise", line
        named = next(p for p in commands() if tuple(words[1 : 1 + len(p)]) == p)
        own += named == path
        given = [word for word in words[1 + len(named) :] if word.startswith("-")]
        known = {opt for each in command_at(named).params for opt in each.opts} | {"--help"}
        assert set(given) <= known, f"{line}: {set(given) - known}"
    assert own, f"no example of phasewise {' '.join(path)} is one of it"


def test_the_numbers_that_examples_name_exist() -> None:
    """``table --by class`` alone names no number with such an option."""
    read = []
    for path in commands():
        for line in examples(path):
            for option, value in pairwise(shlex.split(line)):
                if option == "--goal":
                    read_goal(value)
                elif option in ("--objective", "--value") or (
                    option == "--by" and "table" not in line
                ):
                    read_quantity(value, line)
                else:
                    continue
                read.append(option)

    assert {"--goal", "--objective", "--by"} <= set(read)


def test_the_root_tells_exit_codes_and_how_to_install_completion() -> None:
    assert "2 the input is wrong" in ROOT.epilog
    assert "--install-completion" in ROOT.epilog


def test_tab_completes_shipped_configs_and_files(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quick.yaml").touch()
    (tmp_path / "quick.txt").touch()
    (tmp_path / "quicker").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", "import phasewise; phasewise.main()"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(repository),
            "_PHASEWISE_COMPLETE": "complete_bash",
            "COMP_WORDS": "phasewise run qui",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["quickstart", "quick.yaml", "quicker/"], done.stderr
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quicker" / "a.yaml").touch()
    assert completion.configs("quicker/") == ["quicker/a.yaml"]
    assert completion.configs("nowhere/") == []


def test_tab_completes_every_kind_of_name() -> None:
    assert "sarathi" in completion.plugins("sa")
    assert "least-kv" in completion.plugins("least")
    assert completion.presets("azure-conv-2023") == ["azure-conv-2023"]
    assert "h100-sxm" in completion.devices("h1")
    assert "llama-3.1-8b" in completion.models("llama-3.1-8")
    assert "policies" in completion.kinds("po")
