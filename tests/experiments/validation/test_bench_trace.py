"""A trace of a benchmark: arrival times are known, follow from the run, or are said to be drawn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.validation.bench_trace import closed_loop, trace_of
from experiments.validation.measured import read_measurement
from sim.request import NEVER, Trace
from tests.experiments.validation.test_measured import VLLM, saved, without
from traces import load


def bench_trace(folder: Path, **more: object) -> Trace:
    said = {**without(VLLM, "start_times"), **more}
    return trace_of(read_measurement(saved(folder, said)))


def test_arrival_times_of_the_file_are_kept_in_order(tmp_path: Path) -> None:
    said = {**VLLM, "start_times": [1001.0, 1000.5, 1001.5]}
    trace = trace_of(read_measurement(saved(tmp_path, said)))

    assert trace.arrival_ns.tolist() == [0, 500_000_000]
    assert trace.prompt_tokens.tolist() == [200, 100]
    assert trace.output_tokens.tolist() == [1, 3]
    assert trace.notes == [
        "1 failed requests are left out.",
        "Arrival times: as the file has them.",
    ]


def test_an_infinite_rate_means_all_at_once(tmp_path: Path) -> None:
    trace = bench_trace(tmp_path, request_rate="inf")
    assert trace.arrival_ns.tolist() == [0, 0]
    assert "all at once" in trace.notes[-1]


def test_a_limit_on_concurrency_gives_the_starts(tmp_path: Path) -> None:
    trace = bench_trace(tmp_path, request_rate="inf", max_concurrency=1)
    assert trace.arrival_ns.tolist() == [0, 220_000_000]
    assert "closed-loop, concurrency: 1" in trace.notes[-1]


def test_places_of_a_closed_loop_are_taken_as_they_come_free() -> None:
    starts = closed_loop(np.array([3.0, 1.0, 1.0, 5.0]), 2)
    assert starts.tolist() == [0, 0, 1, 2]


def test_a_finite_rate_is_drawn_and_said_to_be(tmp_path: Path) -> None:
    lengths = {"input_lens": [8] * 400, "output_lens": [2] * 400, "ttfts": [0.1] * 400,
               "itls": [[0.1]] * 400, "errors": [""] * 400}  # fmt: skip
    poisson = bench_trace(tmp_path, **lengths)
    bursty = bench_trace(tmp_path, **lengths, burstiness=0.1)

    assert "drawn anew at its rate of 4 a second and burstiness 1" in poisson.notes[-1]
    assert (len(poisson) - 1) / (poisson.arrival_ns[-1] / 1e9) == pytest.approx(4, rel=0.2)
    spread = [
        np.std(np.diff(t.arrival_ns)) / np.mean(np.diff(t.arrival_ns)) for t in (poisson, bursty)
    ]
    assert spread[0] == pytest.approx(1, rel=0.2)
    assert spread[1] == pytest.approx(10**0.5, rel=0.3)


def test_without_times_and_rate_the_trace_has_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("prompt_tokens,output_tokens,e2e_s\n10,5,1\n")
    trace = trace_of(read_measurement(path))
    assert trace.arrival_ns.tolist() == [NEVER]
    assert "choose `arrivals`" in trace.notes[-1]


def test_the_command_writes_a_trace_that_loads_again(tmp_path: Path) -> None:
    path, out = saved(tmp_path, VLLM), tmp_path / "trace.csv"
    done = CliRunner().invoke(app, ["trace", "from-bench", str(path), "--out", str(out)])

    assert done.exit_code == 0, done.output
    assert "2 requests of" in done.stdout
    assert "Arrival times: as the file has them." in done.stdout
    assert load(out).arrival_ns.tolist() == [0, 500_000_000]


def test_the_command_says_what_was_odd(tmp_path: Path) -> None:
    path, out = saved(tmp_path, {**VLLM, "num_prompts": 7}), tmp_path / "trace.csv"
    done = CliRunner().invoke(app, ["trace", "from-bench", str(path), "--out", str(out)])
    assert "The file says num_prompts: 7, but holds 3 requests." in done.stdout


def test_the_command_says_which_flag_was_missing(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"date": "x", "model_id": "m", "mean_ttft_ms": 3}))
    out = str(tmp_path / "t.csv")
    done = CliRunner().invoke(app, ["trace", "from-bench", str(path), "--out", out])

    assert done.exit_code == 2
    assert "--save-detailed" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
