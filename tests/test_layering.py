"""Imports point one way, and what a plain run does not use is not imported by it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = {"sim", "policies", "traces", "kernels_profile", "experiments", "phasewise"}
MAY_IMPORT = {
    "sim": set(),
    "policies": {"sim"},
    "traces": {"sim"},
    "kernels_profile": {"sim"},
    "experiments": OURS - {"phasewise"},
    "phasewise": OURS,
}
"""What of ours each may import beside itself."""
SIM_LIBRARIES = {"simpy", "numpy"}
SIM_LIBRARIES_IN_FUNCTIONS = {"yaml"}
EXTRAS = {"kaleido", "choreographer", "torch", "triton", "ray", "optuna", "IPython", "ipykernel"}
KERNELS = ROOT / "kernels_profile" / "kernels"
"""Its modules are written in Triton, so they import it; only functions may import them."""
HEAVY = {"pandas", "scipy", "plotly", "pyarrow"}
"""Slow to import (0.1 to 0.8 s each), so imported by the functions that need them."""


@dataclass(frozen=True)
class Import:
    """One import statement: the top-level package it names, and where it runs."""

    path: Path
    line: int
    package: str
    on_import: bool

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.package}"


def test_packages_import_only_what_lies_below_them() -> None:
    wrong = [
        found
        for layer, allowed in MAY_IMPORT.items()
        for found in imports_of(layer)
        if found.package in OURS - allowed - {layer}
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_the_core_uses_only_simpy_and_numpy() -> None:
    known = set(sys.stdlib_module_names) | SIM_LIBRARIES | {"sim"}
    wrong = [
        found
        for found in imports_of("sim")
        if found.package not in known
        and (found.on_import or found.package not in SIM_LIBRARIES_IN_FUNCTIONS)
    ]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("layer", sorted(OURS))
def test_optional_and_slow_libraries_are_imported_where_they_are_used(layer: str) -> None:
    wrong = [
        found
        for found in imports_of(layer)
        if found.on_import and found.package in (EXTRAS | HEAVY) - allowed_in(found.path)
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_importing_every_module_loads_no_optional_or_slow_library() -> None:
    paths = [path for layer in OURS for path in files_of(layer)]
    modules = sorted(module_name(path) for path in paths if not allowed_in(path))
    program = (
        f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)\n"
        f"print(*sorted(set(sys.modules) & {EXTRAS | HEAVY}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def allowed_in(path: Path) -> set[str]:
    """Extras that a file may import at its top."""
    kernel = path.parent == KERNELS and path.name != "__init__.py"
    return {"torch", "triton"} if kernel else set()


def files_of(layer: str) -> list[Path]:
    if layer == "phasewise":
        return [ROOT / "phasewise.py"]
    return sorted((ROOT / layer).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(layer: str) -> Iterator[Import]:
    for path in files_of(layer):
        yield from imports_in(path, ast.parse(path.read_text(encoding="utf-8")))


def imports_in(path: Path, tree: ast.AST, on_import: bool = True) -> Iterator[Import]:
    """Import statements below `tree`; those for type checkers only count as not run on import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name.partition(".")[0], on_import)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            package = path.relative_to(ROOT).parts[0] if node.level else name.partition(".")[0]
            yield Import(path, node.lineno, package, on_import)
        else:
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(path, node, on_import and not later and not type_checking(node))


def type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
