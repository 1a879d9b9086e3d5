"""The new policy that CONTRIBUTING adds end to end passes its own and the contract's tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("sim", "policies", "traces", "kernels_profile", "experiments", "tests")


def block(file: str, start: str) -> str:
    """The Python block of a document that begins with `start`."""
    text = (ROOT / file).read_text(encoding="utf-8")
    [found] = [b for b in re.findall(r"```python\n(.*?)```", text, re.S) if b.startswith(start)]
    return str(found)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the tree with the steps of CONTRIBUTING done."""
    for name in SOURCES:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=skipped)
    for name in ("phasewise.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    policy = block("README.md", '"""Equal share')
    (tmp_path / "policies" / "equal_share.py").write_text(policy, encoding="utf-8")
    with (tmp_path / "policies" / "__init__.py").open("a", encoding="utf-8") as registry:
        registry.write(block(".github/CONTRIBUTING.md", "from policies.equal_share"))
    test = block(".github/CONTRIBUTING.md", '"""Equal share by hand')
    (tmp_path / "tests" / "sim" / "test_timelines_equal_share.py").write_text(test)
    return tmp_path


@pytest.mark.slow
def test_the_new_policy_passes_its_timelines_and_the_contract(checkout: Path) -> None:
    tests = ("tests/sim/test_timelines_equal_share.py", "tests/contract")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "equal", *tests],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "equal" in done.stdout or "passed" in done.stdout
