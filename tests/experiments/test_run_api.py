"""`import phasewise`: results without files, as data frames and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import phasewise
from experiments.results import Results
from sim.errors import ConfigError

CONFIG: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 40, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "max_model_len": 4400,
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "compare": [
        {"label": "whole", "policy": "orca"},
        {"label": "chunks", "policy": "sarathi"},
    ],
}


@pytest.fixture(scope="module")
def results() -> Results:
    return phasewise.run(CONFIG, seed=3)


def test_overrides_are_keys_of_the_config() -> None:
    plan = phasewise.load("quickstart", **{"workload.requests": 7}, seed=4)

    assert {variant.workload.requests for variant in plan.variants} == {7}
    assert {variant.seed for variant in plan.variants} == {4}


def test_a_wrong_override_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^overrides: sede: a config has no such key; try seed$"):
        phasewise.load("quickstart", sede=4)


def test_running_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    phasewise.run(CONFIG, **{"workload.requests": 5})

    assert list(tmp_path.iterdir()) == []


def test_a_plan_can_be_run(results: Results) -> None:
    again = phasewise.run(phasewise.load(CONFIG, seed=3))

    assert again.labels == results.labels == ["whole", "chunks"]
    pd.testing.assert_frame_equal(again.requests("whole"), results.requests("whole"))
    with pytest.raises(TypeError, match="overrides belong to load"):
        phasewise.run(phasewise.load(CONFIG), seed=3)


def test_metrics_are_one_row_per_variant(results: Results) -> None:
    frame = phasewise.metrics(results)

    assert list(frame.index) == ["whole", "chunks"]
    assert frame.loc["whole", "arrived"] == 40
    assert frame.loc["chunks", "largest_itl_s.max"] < frame.loc["whole", "largest_itl_s.max"]


def test_requests_have_text_for_codes_and_na_for_never(results: Results) -> None:
    frame = results.requests("whole")
    rejected = frame[frame.state == "rejected"]

    assert len(frame) == 40
    assert len(rejected) > 0
    assert set(rejected.reason) == {"over_model_len"}
    assert rejected.first_token_ns.isna().all()
    assert rejected.replica.isna().all()
    finished = frame[frame.state == "finished"]
    measured = (finished.first_token_ns - finished.arrival_ns) / 1e9
    assert finished.ttft_s.to_numpy() == pytest.approx(measured.astype(float).to_numpy())


def test_all_requests_have_a_column_for_the_variant(results: Results) -> None:
    frame = results.requests()

    assert frame.variant.value_counts().to_dict() == {"whole": 40, "chunks": 40}


def test_series_and_steps_name_their_replicas(results: Results) -> None:
    assert set(results.series("whole").replica) == {"replica-0"}
    assert set(results.steps("whole").replica) == {"replica-0"}
    off = phasewise.run(CONFIG, **{"record.steps": False, "workload.requests": 3})
    with pytest.raises(ConfigError, match="steps were not recorded"):
        off.steps("whole")


def test_figures_are_one_per_metric_and_then_where_the_time_went(results: Results) -> None:
    drawn = phasewise.figures(results, x_scale="linear")

    metrics = ["ttft", "tpot", "itl", "e2e", "normalised_latency"]
    assert list(drawn) == [*metrics, *(f"attribution_{whole}" for whole in ("e2e", "ttft", "itl"))]
    with pytest.raises(ConfigError, match="no style 'papr'; try paper"):
        phasewise.figures(results, style="papr")


def test_saved_results_are_read_back(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path)

    back = phasewise.read(tmp_path)

    pd.testing.assert_frame_equal(back.metrics(), results.metrics(), check_dtype=False)
    assert back.table() == results.table()


def test_variants_of_one_folder_are_not_saved_over_each_other(
    results: Results, tmp_path: Path
) -> None:
    twice = Results([*results, results.bundles[0]])

    with pytest.raises(ConfigError, match="both have the label"):
        twice.save(tmp_path / "twice")
    assert not (tmp_path / "twice").exists()


def test_variants_of_one_label_are_refused_in_python_too() -> None:
    compare = [{"label": "a", "seed": 1}, {"label": "a", "seed": 2}]

    with pytest.raises(ConfigError, match=r"^config: compare\[0\] and compare\[1\]: both have"):
        phasewise.load({**CONFIG, "compare": compare})


def test_an_unknown_variant_names_the_nearest(results: Results) -> None:
    with pytest.raises(KeyError, match="no variant 'chunk'; try chunks"):
        results["chunk"]


def test_the_quickstart_shows_what_it_says() -> None:
    frame = phasewise.metrics(phasewise.run("quickstart", **{"record.steps": False}))
    itl, ttft = frame["itl_s.p99"], frame["ttft_s.mean"]

    assert frame["gpus"].tolist() == [2] * 6
    assert frame["verdict"].to_dict() == {
        "static": "overloaded",
        **dict.fromkeys(["orca", "vllm-v0", "vllm-v1", "sarathi", "disaggregated"], "stable"),
    }
    assert itl["vllm-v0"] > itl["orca"] > itl["vllm-v1"] > itl["sarathi"] > itl["disaggregated"]
    assert ttft["vllm-v0"] < ttft["orca"] < ttft["vllm-v1"] < ttft["sarathi"]
    assert ttft.idxmax() == "static"
