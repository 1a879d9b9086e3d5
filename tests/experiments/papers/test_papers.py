"""Figures of papers: every file is whole, orderings are judged rightly, and a page comes out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments import strict_yaml
from experiments.cli import app
from experiments.papers import command, page
from experiments.papers.block import Measure, Paper, read, shipped
from experiments.papers.claims import judge, sign_of
from experiments.papers.evaluate import Bracket, Evaluated, Point, goal_of
from experiments.papers.values import Value, value_of
from sim.errors import ConfigError

TINY = """
paper:
  of: A paper
  cite: Somebody, Somewhere.
  figure: figure 1
  sources: made up for this test.
  settings: [{what: model, paper: a line, ours: the same line}]
  vary: {key: workload.arrivals.rate_per_s, values: [0.5, 16], title: Requests per second}
  measures:
    rate: {title: Rate, bounds: {e2e_s.p90: 1.0}}
    late: {title: P90 at 16, quantity: e2e_s.p90, at: 16}
    hits: {title: Hits, quantity: prefix_hit_rate_tokens, at: 16, of: [slow]}
  draw: [e2e_s.p90, rate]
  numbers:
    - {says: ratio, where: s, paper: "2", read: text, unit: x, measure: rate, of: fast, over: slow}
    - {says: hits, where: section 1, paper: "0", read: none, measure: hits, of: slow}
  claims:
    - {says: fast is faster, where: section 1, measure: rate, order: [fast, slow]}
    - {says: slow is faster, where: section 1, measure: late, order: [slow, fast], if_not: no.}
    - {says: it flies, where: section 2, missing: wings}
  differs: [it is a test]
workload:
  preset: {name: lengths, prompt_tokens: 50, prompt_cv: 0.5, output_tokens: 10, output_cv: 0.5}
  requests: 200
  arrivals: {rate_per_s: 1}
model: llama-3.1-8b
replications: 3
kv: {num_blocks: 4000}
policy: vllm-v1
compare:
  - label: slow
    policy: {name: vllm-v1, prefix_cache: true}
    step_time: {model: linear, base_s: 0.1}
  - {label: fast, step_time: {model: linear, base_s: 0.01}}
"""


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_file_is_whole(name: str) -> None:
    redone = read(name)

    assert redone.plan.name == name
    for claim in redone.paper.claims:
        assert claim.missing or claim.measure in redone.paper.measures
    used = {each.measure for each in (*redone.paper.numbers, *redone.paper.claims)}
    assert used >= set(redone.paper.measures)


def test_the_committed_tables_are_of_these_files() -> None:
    text = (Path(page.__file__).parent / "README.md").read_text(encoding="utf-8")

    for name in shipped():
        paper = read(name).paper
        assert f"## {paper.of}: {paper.figure}" in text
        for claim in paper.claims:
            assert claim.says.replace("|", "\\|") in text


def test_a_misses_nothing_that_came_out_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY, encoding="utf-8")
    out = tmp_path / "out"
    said = CliRunner().invoke(
        app, ["papers", str(file), "--out", str(out), "--figures", "none", "--jobs", "1"]
    )

    assert said.exit_code == 0, said.output
    told = json.loads((out / "papers.json").read_text(encoding="utf-8"))["tiny"]
    outcomes = [claim["outcome"] for claim in told["claims"]]
    assert outcomes == ["reproduced", "not reproduced", "missing"]
    assert [claim["reason"] for claim in told["claims"]] == ["", "no.", "wings"]
    assert told["numbers"][0]["ours"].startswith("> ")
    assert told["numbers"][1]["ours"] == "0"
    text = (out / "papers.md").read_text(encoding="utf-8")
    assert "Of 2 orderings 1 are reproduced, 0 not separable and 1 not reproduced; 1 more" in text
    html = (out / "papers.html").read_text(encoding="utf-8")
    assert "it is a test" in html
    assert "<script src" not in html
    points = (out / "tiny_curves.csv").read_text(encoding="utf-8").splitlines()
    assert len(points) == 1 + 2 * 2


def changed(tmp_path: Path, old: str, new: str) -> Path:
    assert old in TINY
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY.replace(old, new), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("order: [fast, slow]", "order: [fast, slo]", "paper.claims[0].order: no variant 'slo'"),
        ("measure: late", "measure: lat", "paper.claims[1].measure: no measure 'lat'; try late"),
        (
            "p90, at: 16}",
            "p90, at: 15}",
            "paper.measures.late.at: 15: expected one of paper.vary.values",
        ),
        ("e2e_s.p90: 1.0", "e2e.p90: 3.0", "paper.measures.rate: e2e.p90: no metric 'e2e'"),
        ("figure: figure 1", "figur: figure 1", "paper.figur"),
        ("replications: 3", "replications: 3.5", "tiny.yaml: replications: 3.5"),
        ("over: slow", "over: slower", "paper.numbers[0]: no variant 'slower'; try slow"),
        (", measure: rate, order: [fast, slow]", "", "expected a measure and an order"),
        ("bounds: {e2e_s.p90: 1.0}", "per_gpu: true", "expected one of quantity, bounds"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(changed(tmp_path, old, new))

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="papers: no paper 'vllm_shargpt'; try vllm_sharegpt"):
        read("vllm_shargpt")


def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    result = CliRunner().invoke(app, ["papers", "vllm_sharegpt", "--out", str(tmp_path / "out")])

    assert result.exit_code == 2
    assert result.stderr == f"phasewise: {tmp_path / 'out'}: is a file, not a folder\n"


# --- values


def evaluated(
    tmp_path: Path, rows: dict[str, dict[float, list[float]]], **measure: Any
) -> Evaluated:
    """Made up: of each variant and x the P90 E2E of each replication; nothing is behind."""
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY, encoding="utf-8")
    redone = read(file)
    raw = strict_yaml.read(file)["paper"]
    raw["measures"]["rate"] = {"title": "Rate", **measure}
    paper = Paper.model_validate(raw)
    points = {
        label: {
            x: Point({"e2e_s.p90": tuple(values)}, (False,) * len(values))
            for x, values in of.items()
        }
        for label, of in rows.items()
    }
    object.__setattr__(redone, "paper", paper)
    return Evaluated(redone, points, {}, {"slow": 4, "fast": 1}, 0, 0.0)


def test_between_two_points_a_time_grows_exponentially(tmp_path: Path) -> None:
    got = evaluated(tmp_path, {"fast": {1: [1.0], 2: [4.0]}}, bounds={"e2e_s.p90": 2.0})

    assert value_of(got, "rate", "fast").runs == pytest.approx((1.5,))


def test_bounds_that_hold_or_fail_everywhere_leave_an_open_end(tmp_path: Path) -> None:
    rows = {"fast": {1.0: [1.0], 2.0: [1.1]}, "slow": {1.0: [9.0], 2.0: [10.0]}}
    got = evaluated(tmp_path, rows, bounds={"e2e_s.p90": 2.0})

    assert value_of(got, "rate", "fast").said() == "> 2.00"
    assert value_of(got, "rate", "slow").said() == "< 1.00"


def test_a_point_that_fails_ends_it_even_if_a_later_one_holds(tmp_path: Path) -> None:
    rows = {"fast": {1.0: [1.0], 2.0: [4.0], 3.0: [1.0]}}
    got = evaluated(tmp_path, rows, bounds={"e2e_s.p90": 2.0})

    assert value_of(got, "rate", "fast").estimate == pytest.approx(1.5)


def test_relative_bounds_go_by_the_first_point_of_the_variant_named(tmp_path: Path) -> None:
    rows = {"fast": {1.0: [1.0], 2.0: [4.0]}, "slow": {1.0: [2.0], 2.0: [4.0]}}
    slowdown = {"of": "fast", "times": {"e2e_s.p90": 4.0}}
    got = evaluated(tmp_path, rows, slowdown=slowdown, per_gpu=True)

    assert value_of(got, "rate", "slow").estimate == 2.0 / 4


def test_falling_bounds_hold_for_large_x(tmp_path: Path) -> None:
    rows = {"fast": {1.0: [4.0], 2.0: [1.0], 3.0: [0.5]}}
    got = evaluated(tmp_path, rows, bounds={"e2e_s.p90": 2.0}, falling=True)

    assert value_of(got, "rate", "fast").estimate == pytest.approx(1.5)


def test_the_bracket_of_a_search(tmp_path: Path) -> None:
    got = evaluated(tmp_path, {}, goal="e2e_s.p90 <= 2")
    edges = {"fast": Bracket(4.0, 4.5), "slow": Bracket(None, 1.0)}
    got = Evaluated(got.redone, {}, {"rate": edges}, got.gpus, 0, 0.0)
    fast, slow = (value_of(got, "rate", label) for label in ("fast", "slow"))

    assert (fast.low, fast.high) == (4.0, 4.5)
    assert slow.said() == "< 1.00"
    assert sign_of(fast, slow) == 1
    assert judge(got, got.redone.paper.claims[0]).outcome == "reproduced"


def runs(*values: float) -> Value:
    return Value(values, min(values), max(values))


def test_what_hardly_differs_differs_by_a_tenth_at_most(tmp_path: Path) -> None:
    rows = {"fast": {1.0: [1.0], 2.0: [4.0]}, "slow": {1.0: [1.0], 2.0: [3.7]}}
    got = evaluated(tmp_path, rows, bounds={"e2e_s.p90": 2.0})
    claim = got.redone.paper.claims[0].model_copy(update={"tie": True})

    assert judge(got, claim).outcome == "reproduced"
    rows["slow"][2.0] = [40.0]
    got = evaluated(tmp_path, rows, bounds={"e2e_s.p90": 2.0})
    assert judge(got, claim).outcome == "not reproduced"


def test_a_measure_of_some_variants_is_none_of_the_others(tmp_path: Path) -> None:
    file = changed(tmp_path, "p90, at: 16}", "p90, at: 16, of: [fast]}")

    with pytest.raises(ConfigError, match="no variant 'slow'; choose one of fast"):
        read(file)


def test_a_search_of_relative_bounds_has_them_as_numbers() -> None:
    raw = {"title": "Rate", "search": True, "bounds": {"slo_attainment": 0.9}}
    slowdown = {"of": "fast", "times": {"e2e_s.p90": 5}}
    measure = Measure.model_validate({**raw, "slowdown": slowdown})
    alone = Point({"e2e_s.p90": (1.0, 3.0)}, (False, False))

    goal = goal_of(measure, {"fast": {0.5: alone, 2.0: Point({}, ())}})

    assert str(goal) == "slo_attainment >= 0.9 and e2e_s.p90 <= 10"


def test_an_order_needs_more_than_noise() -> None:
    assert sign_of(runs(1.0, 1.1, 1.2), runs(0.5, 0.6, 0.7)) == 1
    assert sign_of(runs(0.5, 0.6, 0.7), runs(1.0, 1.1, 1.2)) == -1
    assert sign_of(runs(1.0, 2.0, 3.0), runs(1.5, 1.4, 3.2)) == 0
    assert sign_of(Value((4.0,), 3.9, 4.1), Value((4.05,), 4.0, 4.2)) == 0
    assert sign_of(runs(float("inf")), runs(2.0)) == 1


def test_bounds_relative_to_a_variant_without_the_measure_run_it_too(tmp_path: Path) -> None:
    slowdown = "bounds: {e2e_s.p90: 1.0}, slowdown: {of: slow, times: {ttft_s.p90: 2}}, of: [fast]"
    text = TINY.replace("bounds: {e2e_s.p90: 1.0}", slowdown)
    text = text.replace("of: fast, over: slow}", "of: fast}").replace(
        "measure: rate, order: [fast, slow]", "measure: late, order: [fast, slow]"
    )
    file = tmp_path / "tiny.yaml"
    file.write_text(text, encoding="utf-8")

    got = command.build([file], tmp_path / "out", formats=()).told[0].evaluated

    assert "ttft_s.p90" in got.points["slow"][0.5].values
    assert value_of(got, "rate", "fast").estimate > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vllm_sharegpt", "sarathi_ablation", "sglang_mmlu"])
def test_headline_orderings_come_out(tmp_path: Path, name: str) -> None:
    built = command.build([name], tmp_path, formats=())

    first = built.told[0].claims[0]
    assert first.outcome == "reproduced", first.ours


def test_progress_says_how_far_how_fast_and_how_long() -> None:
    assert command.progress(0, 16, 0.1) == "0 of 16 figures"
    assert command.progress(0, 16, 20.2) == "0 of 16 figures after 20 s"
    assert command.progress(4, 16, 40) == (
        "4 of 16 figures after 40 s, 6 a minute, about 120 s left"
    )
    assert command.progress(16, 16, 90) == "16 of 16 figures after 90 s, 11 a minute"


KILLED = """
import multiprocessing, os, signal
from concurrent.futures import ProcessPoolExecutor
from experiments.papers.command import end_with_parent

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, initializer=end_with_parent)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(__import__("time").sleep, 300)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_command_leaves_no_worker_behind(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    # Its standard output ends when the worker, which has it too, is gone.
    done = subprocess.run(
        [sys.executable, str(tmp_path / "killed.py")],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=90,
    )  # fmt: skip

    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0
