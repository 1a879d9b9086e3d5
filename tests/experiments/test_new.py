"""`phasewise new`: the files that it writes work as they are."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.config import load
from experiments.contract import Subject, arrivals_of, cluster_of, random_workload
from policies.routing import RoundRobin
from sim.event_loop import simulate
from sim.records import Record


def phasewise(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.mark.parametrize(
    ("kind", "cls"),
    [
        ("policy", "EarlyPolicy"),
        pytest.param("router", "EarlyRouter", marks=pytest.mark.slow),
    ],
)
def test_what_is_written_passes_its_tests_and_its_config_resolves(
    kind: str, cls: str, tmp_path: Path, repository: Path
) -> None:
    result = phasewise("new", kind, f"early-{kind}", "--out", tmp_path / "mine")

    assert result.exit_code == 0, result.output
    assert f"phasewise check-policy early_{kind}:{cls}" in result.stdout
    assert result.stderr.startswith(f"early-{kind}: is early_{kind} here, as modules")
    plan = load(tmp_path / "mine" / f"early_{kind}.yaml")
    assert next(each.label for each in plan.variants) == f"early_{kind}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "."],
        cwd=tmp_path / "mine",
        env={"PYTHONPATH": str(repository), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "passed" in done.stdout


def test_the_policy_that_is_written_says_why_requests_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phasewise("new", "policy", "told_policy", "--out", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    policy = importlib.import_module("told_policy").ToldPolicy
    subject = Subject("told", policy, RoundRobin, {"budget_tokens": 8, "max_num_seqs": 3})

    waited = 0
    for seed in range(8):
        workload = random_workload(seed)
        cluster = cluster_of(subject, workload)
        requests = simulate(
            arrivals_of(workload), cluster, seed=seed, record=Record(attribution=True)
        ).requests
        assert not requests["e2e_queue_other_ns"].any()
        waited += sum(requests[f"e2e_queue_{why}_ns"].any() for why in ("seat", "budget", "memory"))
    assert waited


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("json", "would hide the module of this name; try json_policy"),
        ("3x", "expected small letters, digits and underscores"),
        ("class", "'class': class is a keyword of Python; try class_policy"),
        ("true", "'true': True is a keyword of Python; try true_policy"),
        ("a.b", "expected small letters, digits and underscores"),
    ],
)
def test_a_name_that_cannot_be_a_module_is_refused(name: str, said: str, tmp_path: Path) -> None:
    result = phasewise("new", "policy", name, "--out", tmp_path)

    assert result.exit_code == 2
    assert said in result.stderr
    assert not list(tmp_path.iterdir())


def test_files_that_are_there_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "test_already_there.py").write_text("kept")

    result = phasewise("new", "policy", "already_there", "--out", tmp_path)

    assert result.exit_code == 2
    assert "test_already_there.py: is there already" in result.stderr
    assert (tmp_path / "test_already_there.py").read_text() == "kept"
    assert not (tmp_path / "already_there.py").exists()
