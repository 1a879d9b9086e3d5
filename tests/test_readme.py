"""The README's commands run as written, in one folder; each after those that make what it reads.

A code block after the comment ``<!-- file: NAME -->`` is written to that file first. A ``console``
block after ``<!-- slow -->`` runs with the slow tests only. ``make`` targets are run by CI itself.
Slow commands and the first ones are given to a shell, the others to the command in this process:
starting Python and importing what they need would take longer than they do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from policies import POLICIES
from sim.metric_definitions import METRICS

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the comment above it, and its text."""

    kind: str
    note: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Lines after a ``$``, continued lines joined."""
        if self.kind != "console":
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line[2:].partition("  #")[0].strip() for line in lines if line.startswith("$ ")]


def blocks() -> list[Block]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [Block(m["kind"], m["note"] or "", m["text"]) for m in BLOCK.finditer(text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the files that the README shows, and the command on its path."""
    folder = tmp_path_factory.mktemp("readme")
    for block in blocks():
        if block.note.startswith("file: "):
            (folder / block.note.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
    (folder / "bin").mkdir()
    install(folder / "bin" / "python", f'PYTHONPATH={ROOT} exec {sys.executable} "$@"')
    call = "import phasewise; phasewise.main()"
    install(folder / "bin" / "phasewise", f'exec {folder}/bin/python -P -c "{call}" "$@"')
    return folder


def install(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def run(command: str, folder: Path) -> None:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


SLOW = ("phasewise capacity",)
"""Commands that take a minute, in blocks with quicker ones."""


def commands(slow: bool | None = None) -> list[str]:
    every = [(b, c) for b in blocks() for c in b.commands if not c.startswith("make ")]
    return [c for b, c in every if slow is None or is_slow(b, c) is slow]


def is_slow(block: Block, command: str) -> bool:
    return "slow" in block.note.split() or command.startswith(SLOW)


@cache
def shown() -> dict[str, str]:
    """Text of the files that the README shows."""
    return {b.note.removeprefix("file: "): b.text for b in blocks() if b.note.startswith("file: ")}


def made_by(command: str) -> str | None:
    """The file or folder that a command leaves for later ones."""
    if named := re.search(r" (?:-o|--out) (\S+)", command):
        return named[1]
    ran = re.match(r"phasewise run (\w+)(?:\.yaml)?", command)
    return f"results/{ran[1]}" if ran else None


def read_by(command: str) -> str:
    """Where everything that a command reads is named: in it, and in shown files that it names."""
    text = re.sub(r" (?:-o|--out) \S+", "", command)
    return "\n".join([text, *(file for name, file in shown().items() if name in text)])


def needed(command: str) -> Iterator[str]:
    """The earlier commands that make what this one reads, the first of each."""
    everything, text = commands(), read_by(command)
    seen = set()
    for earlier in everything[: everything.index(command)]:
        made = made_by(earlier)
        if made and made not in seen and re.search(rf"(?<![\w./-]){re.escape(made)}\b", text):
            seen.add(made)
            yield earlier


def run_here(command: str, folder: Path) -> None:
    """As `run`, in this process, which has imported what each command needs."""
    words = shlex.split(command)
    if words[0] == "phasewise" and "||" not in words:
        with contextlib.chdir(folder):
            result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, f"$ {command}\n{result.output[-4000:]}"
    else:
        run(command, folder)


def run_with_needs(
    command: str, folder: Path, done: set[str], how: Callable[[str, Path], None] = run
) -> None:
    if command in done:
        return
    for earlier in needed(command):
        run_with_needs(earlier, folder, done, run_here)
    how(command, folder)
    done.add(command)


@pytest.fixture(scope="module")
def done() -> set[str]:
    """Commands that ran in the folder."""
    return set()


@pytest.mark.parametrize("command", commands(slow=False))
def test_a_quick_command_of_the_readme_runs(command: str, folder: Path, done: set[str]) -> None:
    run_with_needs(command, folder, done, run_here)


def test_the_first_commands_run_as_they_stand_there(folder: Path) -> None:
    (folder / "trace.csv").unlink(missing_ok=True)  # what is there is not overwritten
    for command in commands()[:3]:
        run(command, folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands(slow=True))
def test_a_slow_command_of_the_readme_runs(command: str, folder: Path, done: set[str]) -> None:
    run_with_needs(command, folder, done)


def test_what_a_command_reads_is_made_first() -> None:
    plot = next(command for command in commands() if command.startswith("phasewise plot"))
    [few] = [command for command in commands(slow=True) if "results/few" in command]

    assert [made_by(command) for command in needed(plot)] == ["results/compare", "results/faster"]
    assert [made_by(command) for command in needed(few)] == ["trace.csv"]


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.M))
    said = {c.split()[1] for b in blocks() for c in b.commands if c.startswith("make ")}
    assert {"demo", "test"} <= said <= targets


def test_files_that_the_readme_links_to_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"(?:\]\(|src=\")(?!https?:|#)([^)#\"]+)", text)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_metric_dictionary_is_that_of_the_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [
        m.key
        for m in METRICS.values()
        if f"| {m.title} | {m.unit or '-'} | {m.definition} |" not in text
    ]
    assert missing == []


def test_every_policy_is_in_the_table() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in POLICIES if f"\n| `{name}` | " not in text] == []
