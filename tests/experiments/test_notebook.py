"""The example notebook: each cell runs, in order, and shows what its text says."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest


def cells(repository: Path) -> list[str]:
    notebook = json.loads(
        (repository / "experiments" / "notebooks" / "first_steps.ipynb").read_text("utf-8")
    )
    assert notebook["nbformat"] == 4
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "outputs are not committed"
    return ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]


def run(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last expression, as a notebook shows it."""
    *body, last = ast.parse(source).body
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    if isinstance(last, ast.Expr):
        return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    exec(compile(ast.Module([last], []), "cell", "exec"), names)
    return None


@pytest.mark.slow
def test_the_notebook_shows_what_it_says(repository: Path) -> None:
    names: dict[str, Any] = {}

    shown = [run(source, names) for source in cells(repository)]

    labels, table, figure, slowest, budgets, same = shown
    assert "sarathi" in labels
    assert table["itl_s.p99"].notna().all()
    assert figure.data, "a figure has curves"
    assert slowest["ttft_s"].is_monotonic_decreasing
    assert budgets["itl_s.p99"].is_monotonic_increasing  # larger budgets: longer gaps
    assert budgets["ttft_s.p99"].iloc[-1] < budgets["ttft_s.p99"].iloc[0]
    assert same is True
