"""The fingerprint of our code: of what is in the files now, whatever was asked before."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import hashes


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with two files that count, and others that do not."""
    for name in ("sim/a.py", "sim/specs/b.yaml", "sim/c.txt", "experiments/configs/d.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    monkeypatch.setattr(hashes, "__file__", str(tmp_path / "experiments" / "hashes.py"))
    return tmp_path


@pytest.mark.parametrize("name", ["sim/a.py", "sim/specs/b.yaml", "policies/new.py"])
def test_what_changes_our_code_changes_the_hash(tree: Path, name: str) -> None:
    before = hashes.of_code()
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("22")

    changed = hashes.of_code()
    (tree / name).write_text("33")

    assert len({before, changed, hashes.of_code()}) == 3


@pytest.mark.parametrize(
    "name", ["sim/c.txt", "experiments/configs/d.yaml", "sim/__pycache__/a.py", "tests/a.py"]
)
def test_other_files_do_not_matter(tree: Path, name: str) -> None:
    before = hashes.of_code()
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("22")

    assert hashes.of_code() == before
