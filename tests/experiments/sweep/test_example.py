"""The shipped sweep: what it says is what its numbers show; the command and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments.cli import app
from tests.experiments.sweep.examples import config, rows

RATE = "workload.arrivals.rate_per_s"


def phasewise(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_small_part_of_it(tmp_path: Path) -> None:
    few = ["--set", "policy.budget_tokens=128,1024", "--set", f"{RATE}=6,18"]

    result = phasewise(
        "sweep", "sweep_token_budget", *few, "--set", "workload.requests=20",
        "--jobs", "1", "--out", str(tmp_path / "out"),
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert "4 points, 4 runs: 4 finished." in result.output
    assert (tmp_path / "out" / "figures" / "figures.html").is_file()
    assert [row["policy.budget_tokens"] for row in rows(tmp_path / "out")] == [128, 128, 1024, 1024]


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    result = phasewise("sweep", "sweep_token_budget", "--dry-run", "--out", str(tmp_path / "out"))

    assert result.exit_code == 0
    assert "42 points over policy.budget_tokens, workload.arrivals.rate_per_s" in result.output
    assert not (tmp_path / "out").exists()


def test_failed_runs_give_exit_code_1_and_the_rest_is_there(tmp_path: Path) -> None:
    sweep = {"list": [{"gpu_memory_utilization": 0.9}, {"gpu_memory_utilization": 0.15}]}
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump(config(compare=None, policy="sarathi", sweep=sweep))
    )

    result = phasewise(
        "sweep", str(tmp_path / "c.yaml"), "--json", "--jobs", "1", "--figures", "none",
        "--out", str(tmp_path / "out"),
    )  # fmt: skip

    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["finished"], told["failed"]) == (1, 1)
    assert [count for error, count in told["errors"].items() if "no room" in error] == [1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--executor", "rya"], "no executor 'rya'; try ray"),
        (["--address", "auto"], "the executor local has none; try --executor ray"),
        (["--set", "policy.budget_token=1,2"], "sarathi has no such option; try budget_tokens"),
        (["--figures", "gif"], "no format 'gif'"),
    ],
)
def test_wrong_options_give_exit_code_2(options: list[str], message: str) -> None:
    result = phasewise("sweep", "sweep_token_budget", *options)

    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.slow
def test_what_it_says_is_what_its_numbers_show(tmp_path: Path) -> None:
    some = ["--set", "policy.budget_tokens=128,512,1024,2048", "--set", f"{RATE}=6,14,18"]

    phasewise("sweep", "sweep_token_budget", *some, "--figures", "none", "--out", str(tmp_path))

    found = {(row["policy.budget_tokens"], row[RATE]): row for row in rows(tmp_path)}
    gaps = [found[budget, 6]["itl_s.p99"] for budget in (128, 512, 1024, 2048)]
    assert gaps == sorted(gaps)
    assert found[128, 14]["verdict"] == "overloaded"
    assert found[512, 14]["verdict"] == found[1024, 18]["verdict"] == "stable"
    for rate in (14, 18):
        met = {budget: found[budget, rate]["slo_attainment"] for budget in (128, 512, 1024, 2048)}
        assert max(met, key=lambda budget: met[budget]) == 1024
