"""Modules of a user's own, found beside the config whatever was imported before."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.options import find

OWN = """
from dataclasses import dataclass
from policies.orca import Orca

@dataclass
class Own(Orca):
    pass
"""


def test_a_module_is_found_after_the_working_folder_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("own_in_one", "own_in_another"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path(f"{name}.py").write_text(OWN)
        found = find("policy", f"{name}:Own", {}, "c.yaml: policy.name", Path())
        assert found.__module__ == name


def test_a_module_that_is_written_after_the_folder_was_looked_into_is_found(
    tmp_path: Path,
) -> None:
    for name in ("own_first", "own_second"):
        (tmp_path / f"{name}.py").write_text(OWN)
        assert find("policy", f"{name}:Own", {}, "c.yaml: policy.name", tmp_path).__name__ == "Own"
