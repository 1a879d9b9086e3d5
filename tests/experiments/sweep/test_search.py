"""`phasewise search`: the front is that of a full sweep, and the same however it is found."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments.cli import app
from experiments.quantity import read_quantity
from experiments.sweep.axes import Listed
from experiments.sweep.dataset import read_table
from experiments.sweep.executors import Here
from experiments.sweep.search import BATCH, Asked, Trial, ask, front_of, search
from experiments.sweep.unit import WALL_FIELDS
from sim.errors import ConfigError
from tests.conftest import go_without

CONFIG: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 60,
        "max_tokens": 1024,
        "arrivals": {"rate_per_s": 4},
    },
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "policy": "sarathi",
}
BUDGETS = [32, 64, 128, 256, 512, 1024]
OBJECTIVES = ("ttft_s.p99", "itl_s.p99")
OPTIONS = (
    *("--over", f"policy.budget_tokens={','.join(map(str, BUDGETS))}", "--trials", "40"),
    *(word for each in OBJECTIVES for word in ("--objective", each)),
)


def phasewise(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        go_without("cluster", "optuna is not installed (`make cluster` installs it)")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def asked_for(**better: str) -> Asked:
    objectives = tuple(read_quantity(text, "test") for text in better)
    axes = {"policy.budget_tokens": Listed((1, 2))}
    made = ask(CONFIG, axes, objectives)
    assert [each.metric.better for each in made.objectives] == list(better.values())
    return made


def trial(number: int, *values: float, overloaded: bool = False) -> Trial:
    return Trial(number, "", {}, values, overloaded)


def test_the_front_is_what_no_other_trial_beats() -> None:
    asked = asked_for(**{"ttft_s.p99": "lower", "throughput_out_tokens_per_s": "higher"})
    trials = [
        trial(0, 3.0, 10.0),
        trial(1, 2.0, 9.0),
        trial(2, 2.5, 9.0),  # beaten by 1
        trial(3, 2.0, 9.0),  # equal to 1
        trial(4, 0.1, 99.0, overloaded=True),
        trial(5, math.nan, 50.0),
        trial(6, 1.0, 1.0),
    ]

    assert [each.number for each in front_of(trials, asked)] == [6, 1, 0]


@pytest.mark.cluster
def test_a_search_finds_the_front_of_the_full_sweep(
    optuna: None, config: Path, tmp_path: Path
) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        yaml.safe_dump({**CONFIG, "sweep": {"grid": {"policy.budget_tokens": BUDGETS}}})
    )
    assert phasewise("sweep", grid, "--out", tmp_path / "g", "--jobs", 1).exit_code == 0
    rows = read_table(tmp_path / "g").to_pylist()
    every = [trial(row["number"], *(row[each] for each in OBJECTIVES)) for row in rows]
    assert "overloaded" not in {row["verdict"] for row in rows}
    asked = asked_for(**dict.fromkeys(OBJECTIVES, "lower"))
    best = {BUDGETS[each.number] for each in front_of(every, asked)}

    result = phasewise("search", config, *OPTIONS, "--out", tmp_path / "s", "--jobs", 1, "--json")

    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {each["setting"]["policy.budget_tokens"] for each in found["front"]} == best
    assert found["points"] == len(BUDGETS)  # none was run twice
    assert read_table(tmp_path / "s").num_rows == len(BUDGETS)
    assert found["trials"] == 40
    assert json.loads((tmp_path / "s" / "front.json").read_text())["front"] == found["front"]


@pytest.mark.cluster
def test_a_search_is_the_same_with_more_processes_and_after_a_stop(
    optuna: None, config: Path, tmp_path: Path
) -> None:
    options = [
        *("--over", "policy.budget_tokens={from: 32, to: 2048, scale: log, whole: true}"),
        *("--objective", "ttft_s.p99", "--objective", "itl_s.p99", "--trials", 2 * BATCH),
    ]
    for name, jobs in (("one", 1), ("two", 2)):
        done = phasewise("search", config, *options, "--out", tmp_path / name, "--jobs", jobs)
        assert done.exit_code == 0, done.output

    class Stopping(Here):
        def run(self, units: Any) -> Any:
            for at, row in enumerate(super().run(units)):
                if at == 3:
                    raise KeyboardInterrupt
                yield row

    from experiments.run import InterruptedRunError
    from experiments.sweep.definition import split_over

    objectives = [read_quantity(text, "test") for text in OBJECTIVES]
    asked = ask(config, split_over([str(options[1])]), objectives, trials=2 * BATCH)
    with pytest.raises(InterruptedRunError, match="the same command goes on"):
        search(asked, tmp_path / "stopped", Stopping())
    assert read_table(tmp_path / "stopped").num_rows == 3
    search(asked, tmp_path / "stopped", Here())

    def rows(name: str) -> Any:
        table = read_table(tmp_path / name)
        return table.drop_columns([each for each in WALL_FIELDS if each in table.column_names])

    assert rows("one").equals(rows("two"))
    assert rows("one").equals(rows("stopped"))
    again = phasewise("search", config, *options, "--out", tmp_path / "one", "--seed", 1)
    assert again.exit_code == 2
    assert "holds another search: its config, --over, --objective or --seed" in again.stderr


@pytest.mark.cluster
def test_a_point_that_cannot_run_is_a_row_with_its_error(
    optuna: None, config: Path, tmp_path: Path
) -> None:
    # The larger model does not fit on one GPU.
    result = phasewise(
        *("search", config, "--over", "model=llama-3.1-8b,llama-3.1-70b", "--set"),
        *("device=h100-sxm", "--objective", "e2e_s.p99", "--trials", BATCH),
        *("--out", tmp_path / "s", "--jobs", 1, "--json"),
    )

    assert result.exit_code == 0, result.output
    rows = {row["model"]: row for row in read_table(tmp_path / "s").to_pylist()}
    assert rows["llama-3.1-8b"]["status"] == "finished"
    assert rows["llama-3.1-70b"]["status"] == "failed"
    assert "llama-3.1-70b" in rows["llama-3.1-70b"]["error"]
    found = json.loads(result.stdout)
    assert found["failed"] == 1
    assert [each["setting"]["model"] for each in found["front"]] == ["llama-3.1-8b"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--over", "replicas=1,2", "--objective", "kv"), "no metric 'kv'"),
        (("--over", "replicas=1,2", "--objective", "arrival_rate_requests_per_s"), "neither less"),
        (("--over", "replicas", "--objective", "ttft_s.p99"), "expected KEY=VALUES"),
        (("--over", "replicas=1", "--objective", "ttft_s.p99"), "one value does not vary"),
        (("--over", "name=a,b", "--objective", "ttft_s.p99"), "belongs to the whole file"),
        (
            ("--over", "replicas={from: 1, to: 4, steps: 2}", "--objective", "ttft_s.p99"),
            "values are drawn from it",
        ),
    ],
)
def test_what_cannot_be_searched_is_one_line(
    options: tuple[str, ...], said: str, config: Path, tmp_path: Path
) -> None:
    result = phasewise("search", config, *options, "--out", tmp_path / "s")

    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.cluster
def test_a_key_that_no_point_can_have_is_named(optuna: None, config: Path, tmp_path: Path) -> None:
    result = phasewise(
        *("search", config, "--over", "policy.bugdet=1,2", "--objective", "ttft_s.p99"),
        *("--out", tmp_path / "s"),
    )

    assert result.exit_code == 2
    assert "try budget_tokens" in result.stderr


def test_one_objective_twice_is_refused() -> None:
    quantity = read_quantity("ttft_s.p99", "test")
    with pytest.raises(ConfigError, match="is given twice"):
        ask(CONFIG, {"replicas": Listed((1, 2))}, [quantity, quantity])


def test_what_a_run_cannot_have_is_refused_before_any_run() -> None:
    with pytest.raises(ConfigError, match=r"--objective: cost_usd: .* has no prices; give the"):
        ask(CONFIG, {"replicas": Listed((1, 2))}, [read_quantity("cost_usd", "test")])
    swept = {**CONFIG, "sweep": {"grid": {"replicas": [1, 2]}}}
    with pytest.raises(ConfigError, match="sweep: is read by phasewise sweep; search has --over"):
        ask(swept, {"replicas": Listed((1, 2))}, [read_quantity("ttft_s.p99", "test")])


@pytest.mark.cluster
def test_a_search_goes_on_with_more_trials(optuna: None, config: Path, tmp_path: Path) -> None:
    options = ("--over", "policy.budget_tokens={from: 32, to: 2048, scale: log, whole: true}")
    options += ("--objective", "ttft_s.p99", "--out", str(tmp_path / "s"), "--jobs", "1")
    for trials, rows in ((2, 2), (BATCH, BATCH), (BATCH + 4, BATCH + 4)):
        done = phasewise("search", config, *options, "--trials", trials)
        assert done.exit_code == 0, done.output
        assert read_table(tmp_path / "s").num_rows == rows
