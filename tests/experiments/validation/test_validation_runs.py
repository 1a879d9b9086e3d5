"""Kinds of cases on small synthetic measurements: what is simulated is what is compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.validation import case as cases
from experiments.validation import data, replay, sweep
from experiments.validation.case import Case
from experiments.validation.outcome import Outcome
from experiments.validation.run import run_case
from experiments.validation.serve import Server
from sim.errors import ConfigError
from sim.request import Trace
from traces.workload import TraceSource

LINEAR = {"model": "linear", "base_s": 0.01}
CONFIG: dict[str, Any] = {
    "model": "llama-2-7b",
    "device": "h100-sxm",
    "policy": {"name": "vllm-v1", "max_num_batched_tokens": 64, "max_num_seqs": 8},
    "kv": {"num_blocks": 64},
    "step_time": LINEAR,
}


def case(kind: str, said: dict[str, Any], **more: Any) -> Case:
    return Case("small", "1", "t", kind, "s", {**CONFIG, **more}, said)


def ran(made: Case, measured: Path) -> Outcome:
    return run_case(made, measured, measured / "cache")


def found(outcome: Outcome, metric: str) -> list[tuple[float, float]]:
    return [
        (each.measured, each.simulated) for each in outcome.comparisons if each.metric == metric
    ]


def test_a_sweep_simulates_each_row_with_what_it_sets(tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_text(
        "isl,osl,places,ttft,tpot\n16,4,1,10,10\n16,4,2,10,10\n16,4,4,25,10\n", encoding="utf-8"
    )
    said = {
        "table": "sweep.csv", "label": ["isl", "places"], "concurrency": "places",
        "prompt_tokens": "isl", "output_tokens": "osl", "prompts_per_place": 2,
        "lengths": {"from": 1.0, "to": 1.0}, "turnaround_s": 0.001,
        "set": {"policy.max_num_seqs": "places"},
        "measured": {"ttft_ms": "ttft", "tpot_ms": "tpot"},
    }  # fmt: skip
    outcome = ran(case("sweep", said), tmp_path)
    assert found(outcome, "tpot_ms") == [(10, pytest.approx(10))] * 3
    # Alone, each prompt takes one step of 10 ms; two together miss the step under way.
    assert found(outcome, "ttft_ms")[0] == (10, pytest.approx(10))
    # 2.5 times the TTFT of half the load: KV-bound as measured, which the simulation denies.
    assert [each.error for each in outcome.comparisons if each.metric == "kv_bound"] == [1.0]
    assert {each.group for each in outcome.comparisons} == {sweep.FREE, sweep.KV_BOUND}


def test_requests_that_wait_for_blocks_make_a_row_kv_bound(tmp_path: Path) -> None:
    (tmp_path / "sweep.csv").write_text("isl,osl,n,ttft,tpot\n60,60,8,10,10\n", encoding="utf-8")
    said = {
        "table": "sweep.csv", "label": ["isl"], "concurrency": "n", "prompt_tokens": "isl",
        "output_tokens": "osl", "prompts_per_place": 2, "lengths": {"from": 1.0, "to": 1.0},
        "turnaround_s": 0.001, "measured": {"ttft_ms": "ttft", "tpot_ms": "tpot"},
    }  # fmt: skip
    outcome = ran(case("sweep", said, kv={"num_blocks": 20}), tmp_path)
    assert {each.group for each in outcome.comparisons} == {sweep.KV_BOUND}
    assert "short of blocks" in outcome.notes[-1]


def test_a_batch_takes_its_prefill_and_its_decodes_under_either_policy(tmp_path: Path) -> None:
    (tmp_path / "batch.csv").write_text("length,batch,latency\n8,4,0.08\n", encoding="utf-8")
    said = {
        "table": "batch.csv", "label": ["batch"], "requests": "batch", "prompt_tokens": "length",
        "output_tokens": "length", "measured": {"latency_s": "latency"},
        "also": {
            "policy": {"name": "static", "pad_prompts": False, "keep_finished_slots": False},
            "set": {"policy.batch_size": "batch"},
        },
    }  # fmt: skip
    outcome = ran(case("offline", said), tmp_path)
    assert found(outcome, "latency_s") == [(0.08, pytest.approx(0.08))]
    assert [each.error for each in outcome.comparisons] == [0, 0]


def test_a_replay_compares_each_request_and_the_curves(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text(
        "at,p,o,last,ttft,tpot,e2e\n0,16,3,0.03,10,10,30\n1,16,3,1.06,20,20,60\n", encoding="utf-8"
    )
    (tmp_path / "series.csv").write_text(
        "t,running,waiting\n0.005,1,1\n0.5,0,1\n", encoding="utf-8"
    )
    said = {
        "requests": "requests.csv", "timeseries": "series.csv",
        "columns": {"arrival_s": "at", "prompt_tokens": "p", "output_tokens": "o",
                    "last_token_s": "last"},
        "measured": {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2e"},
    }  # fmt: skip
    outcome = ran(case("replay", said), tmp_path)
    assert found(outcome, "ttft_ms mean") == [(15, pytest.approx(10))]
    assert found(outcome, "makespan_s") == [(1.06, pytest.approx(1.03))]
    errors = {each.metric: each.error for each in outcome.comparisons}
    assert errors["e2e_ms each request, median error"] == pytest.approx(0.25)
    assert errors["running curve"] == 0
    assert errors["waiting curve"] == 1


def test_steps_are_compared_without_a_simulation_around_them(tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("tokens,batch,ms\n100,0,20\n0,4,10\n", encoding="utf-8")
    said = {"parts": [
        {"metric": "prompt_ms", "table": "steps.csv", "where": {"batch": 0}, "label": ["tokens"],
         "measured": "ms", "step": {"kind": "prefill", "tokens": "tokens"}},
        {"metric": "token_ms", "grid": {"batch": [1, 4]}, "label": ["batch"],
         "against": {"step_time": {"model": "linear", "base_s": 0.02}},
         "step": {"kind": "decode", "batch": "batch", "context": 8, "steps": 2}},
    ]}  # fmt: skip
    outcome = ran(case("steps", said), tmp_path)
    assert found(outcome, "prompt_ms") == [(20, pytest.approx(10))]
    assert found(outcome, "token_ms") == [(pytest.approx(20), pytest.approx(10))] * 2


def test_what_was_served_is_read_off_the_run() -> None:
    two = np.array([2, 2])
    trace = Trace(
        arrival_ns=np.array([0, 5_000_000]), prompt_tokens=two * 8, output_tokens=two,
        max_tokens=two, row=np.arange(2),
    )  # fmt: skip
    served = Server(CONFIG).run(TraceSource(trace))
    assert served.ttft_s.tolist() == [0.01, 0.015]
    assert served.tpot_s.tolist() == [0.01, 0.01]
    assert served.end_s == 0.03
    assert served.running_at(np.array([0.001, 0.012, 0.025])).tolist() == [1, 2, 1]
    assert served.waiting_at(np.array([0.001, 0.007])).tolist() == [0, 1]
    assert served.blocked == 0
    made = served.tokens_between(np.array([0.0, 0.015]), np.array([0.015, 1.0]), prompts=True)
    assert made.tolist() == [17, 19]


def test_another_policy_can_be_named_for_one_run() -> None:
    server = Server(CONFIG)
    one = np.array([1])
    trace = Trace(one * 0, one * 8, one * 2, one * 2, one * 0)
    options = {"name": "static", "batch_size": 1, "pad_prompts": False}
    assert server.run(TraceSource(trace), options).end_s == 0.02


def test_imported_tables_are_kept_until_their_source_changes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected some of aiconfigurator"):
        data.profiles(["aiconfig"], tmp_path, tmp_path)


def test_without_measured_data_one_line_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(data.SHARED, "/nowhere")
    result = CliRunner().invoke(app, ["validate", "kv-transfer-h800"])
    assert result.exit_code == 2
    assert "PHASEWISE_SHARED" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_an_installed_package_looks_for_no_data_beside_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(data.SHARED, raising=False)
    monkeypatch.setattr(data, "_REPOSITORY", tmp_path / "lib" / "site-packages")
    with pytest.raises(ConfigError, match="set PHASEWISE_SHARED to the folder that holds `meas"):
        data.measured_folder()
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(data, "_REPOSITORY", checkout)
    with pytest.raises(ConfigError) as caught:
        data.measured_folder()
    assert f"{tmp_path / 'shared' / 'measured'}: no such folder" in str(caught.value)
    assert "PHASEWISE_SHARED" in str(caught.value)


def test_a_case_and_a_config_do_not_go_together() -> None:
    result = CliRunner().invoke(app, ["validate", "kv-transfer-h800", "--config", "quickstart"])
    assert result.exit_code == 2
    assert "brings its own config" in result.stderr


def test_transfers_meet_their_bar_and_the_committed_table(shared: Path, tmp_path: Path) -> None:
    """One whole case through the command, on the real measurement."""
    result = CliRunner().invoke(app, ["validate", "kv-transfer-h800", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "1 of 1 bars are met" in result.stdout
    assert (tmp_path / "rows.csv").is_file()
    assert "plotly" in (tmp_path / "overlays.html").read_text(encoding="utf-8")


def test_a_missed_bar_fails_the_command_and_a_flag_forgives_it(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = cases.load("kv-transfer-h800")
    bars = [replace(bar, under=0.01) for bar in strict.bars]
    monkeypatch.setattr(cases, "load", lambda name: replace(strict, bars=bars))
    command = ["validate", "kv-transfer-h800", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "MISS" in result.stdout
    assert CliRunner().invoke(app, [*command, "--only-changes"]).exit_code == 0


def test_means_are_weighted_as_servers_count_them() -> None:
    one = np.array([1, 1])
    outputs = np.array([1, 3])
    trace = Trace(one * 0, one * 8, outputs, outputs, np.arange(2))
    served = Server(CONFIG).run(TraceSource(trace))
    assert replay.MEANS["tpot_mean_ms"](served) == pytest.approx(10)
    assert replay.MEANS["latency_sum_s"](served) == pytest.approx(0.04)
