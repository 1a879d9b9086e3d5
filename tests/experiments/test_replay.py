"""Replay: a trace served by the engine under the interpreter, held against its own simulation."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from experiments import replay, replay_run
from kernels_profile.engine.realtime import StepLog
from kernels_profile.profiler.device import INTERPRETER
from kernels_profile.profiler.request import TINY_MODEL
from kernels_profile.profiler.run import use_interpreter
from policies import POLICIES
from sim.cluster import Cluster
from sim.errors import ProfileError
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import Record
from sim.request import Trace
from sim.step_time import LinearStepTime


def trace(rows: list[tuple[int, int, int]]) -> Trace:
    made = replay.make_trace("sharegpt-like", 1.0, len(rows), 4096, 0)
    from dataclasses import replace

    arrival, prompt, output = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return replace(
        made,
        arrival_ns=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output + 4,
    )


def plan(policy: str = "vllm-v1", duration_s: float = 60.0) -> replay_run.Plan:
    rows = [(0, 9, 3), (1000, 5, 4), (2000, 12, 2)]
    made = POLICIES[policy](max_num_batched_tokens=8, max_num_seqs=2)
    return replay_run.Plan(
        TINY_MODEL, INTERPRETER, made, trace(rows), num_blocks=12, block_tokens=4,
        duration_s=duration_s,
    )  # fmt: skip


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_a_replay_is_compared_with_its_own_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_interpreter()
    given = plan()
    measured, log, layer_us = replay_run.serve(given, "cpu")
    assert layer_us == 0
    assert measured.requests["emitted_tokens"].tolist() == [3, 4, 2]
    host = replay_run.host_of(log)
    gpu_s = float(np.mean([step.gpu_ns for step in log])) / 1e9
    simulation = replay_run.simulated(given, LinearStepTime(base_s=gpu_s + host.step_us / 1e6))
    compared = replay_run.compare(measured, simulation)
    assert {row.metric for row in compared} == {"ttft", "tpot", "e2e", "itl"}
    replay.write_steps(tmp_path, log)
    replay.write(tmp_path, given, (measured, simulation), compared, ["about"])
    with (tmp_path / "requests.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["prompt_tokens"] for row in rows] == ["9", "5", "12"]
    assert float(rows[0]["e2e_measured_s"]) > float(rows[0]["ttft_measured_s"]) > 0
    assert "median error of a request" in replay.table(compared)


@pytest.mark.kernels
@pytest.mark.usefixtures("kernels")
def test_the_command_serves_and_writes(tmp_path: Path) -> None:
    said = ["--device", "cpu", "--model", "tiny", "--preset", "sharegpt-like", "--rate", "1"]
    said += [
        "--requests",
        "2",
        "--duration-s",
        "500",
        "--max-model-len",
        "40",
        "--out",
        str(tmp_path),
        "--seed",
        "3",
    ]
    assert replay.main(said) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "about.txt", "comparison.csv", "requests.csv", "steps.csv",
    }  # fmt: skip
    assert "roofline" in (tmp_path / "about.txt").read_text(encoding="utf-8")


def simulated(base_s: float, tokens: list[tuple[int, int, int]]):  # type: ignore[no-untyped-def]
    made = plan()
    spec = replay_run._replica(made, LinearStepTime(base_s=base_s))
    from policies.routing import RoundRobin

    return simulate(
        trace(tokens), Cluster(PoolSpec("r", [spec], RoundRobin())), record=Record(steps=False)
    )


def test_errors_are_those_of_the_simulation() -> None:
    rows = [(0, 8, 3), (10**10, 8, 5)]
    compared = replay_run.compare(simulated(0.010, rows), simulated(0.012, rows))
    assert all(row.error == pytest.approx(0.2) for row in compared)
    paired = [row.request_error for row in compared if row.metric != "itl"]
    assert paired == pytest.approx([0.2] * len(paired))


def test_only_requests_that_finished_in_both_are_compared() -> None:
    few, many = [(0, 8, 3)], [(0, 8, 3), (10**10, 8, 5)]
    both = replay_run.finished_in_both(simulated(0.01, many), simulated(0.01, few))
    assert both.tolist() == [0]
    none = simulated(0.01, [(0, 8, 3)])
    none.requests["state"][:] = -1
    with pytest.raises(ProfileError, match="no request finished in both"):
        replay_run.compare(none, simulated(0.01, few))


@pytest.mark.parametrize(
    ("fixed", "each"), [(300.0, 5.0), (0.0, 7.0), (250.0, 0.0)], ids=["both", "each", "fixed"]
)
def test_the_host_is_found_in_the_log(fixed: float, each: float) -> None:
    log = [
        StepLog(0, 1_000_000, 1_000_000 + round(1e3 * (fixed + each * n)), 0, n, n)
        for n in (1, 4, 9, 30, 64)
    ]
    host = replay_run.host_of(log)
    assert (host.step_us, host.request_us) == pytest.approx((fixed, each), abs=0.01)


def test_host_terms_are_never_negative() -> None:
    falling = [StepLog(0, 0, 10_000 - 100 * n, 0, n, n) for n in (1, 10, 50)]
    rising = [StepLog(0, 0, 100 * n * n, 0, n, n) for n in (1, 10, 50)]
    for log in (falling, rising):
        host = replay_run.host_of(log)
        assert host.step_us >= 0
        assert host.request_us >= 0


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (["--policy", "vllm-v2"], "vllm-v2 is not known"),
        (["--model", "llama-3.1-8b"], "too large for the interpreter"),
        (["--max-model-len", "2"], "no request of azure-conv-2023 fits in 2 tokens"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    said: list[str], wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--device", "cpu", "--model", "tiny", "--out", str(tmp_path)]
    assert replay.main([*given, *said]) == 2
    error = capsys.readouterr().err
    assert wrong in error
    assert error.count("\n") == 1
