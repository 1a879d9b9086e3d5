"""The README's commands run as written, in its order, in one folder.

A code block after the comment ``<!-- file: NAME -->`` is written to that file first. A ``console``
block after ``<!-- slow -->`` runs with the slow tests only. ``make`` targets are run by CI itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

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


def commands(slow: bool) -> list[str]:
    found = [c for b in blocks() if ("slow" in b.note.split()) is slow for c in b.commands]
    return [command for command in found if not command.startswith("make ")]


@pytest.mark.parametrize("command", commands(slow=False))
def test_a_quick_command_of_the_readme_runs(command: str, folder: Path) -> None:
    run(command, folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands(slow=True))
def test_a_slow_command_of_the_readme_runs(command: str, folder: Path) -> None:
    run(command, folder)


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
