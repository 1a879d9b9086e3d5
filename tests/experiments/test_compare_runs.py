"""Two results beside each other, of the same requests or not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from experiments.cli import app

CONFIG: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 3000,
        "max_tokens": 1024,
        "arrivals": {"rate_per_s": 3},
    },
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "record": {"steps": False},
    "compare": [
        {"label": "whole", "policy": "orca"},
        {"label": "chunks", "policy": {"name": "sarathi", "budget_tokens": 128}},
    ],
}


def phasewise(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    (folder / "two.yaml").write_text(yaml.safe_dump(CONFIG))
    for name, settings in {"a": (), "b": ("--set", "seed=9")}.items():
        options = ("--out", str(folder / name), "--jobs", "1", "--figures", "none", *settings)
        done = phasewise("run", str(folder / "two.yaml"), *options)
        assert done.exit_code == 0, done.output
    return folder


def test_one_run_of_each_is_compared_request_by_request(folder: Path) -> None:
    result = phasewise("compare", str(folder / "a" / "whole"), str(folder / "a" / "chunks"))

    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "Config: pools.colocated.policy.name: orca -> sarathi" in text
    assert "Config: pools.colocated.policy.budget_tokens: not given -> 128" in text
    assert "Runs: 1 and 1." in text
    assert "slower by" in text
    assert "whole: one run; intervals are over 10 parts of it." in text
    assert "Differences of the same requests in one run of each, with 95 % confidence" in text
    assert "their difference is not that of the whole run's percentiles" in text


def test_the_same_run_does_not_differ_from_itself(folder: Path) -> None:
    same = str(folder / "a" / "whole")

    told = json.loads(phasewise("compare", same, same, "--json").stdout)
    text = phasewise("compare", same, same).stdout

    assert told["config"] == []
    against = told["variants"]["whole (2)"]["against"]["whole"]
    assert against["ttft_s.mean"] == {
        "separable": False, "difference": 0.0, "low": 0.0, "high": 0.0, "confidence": 0.95,
        "method": "t over 10 groups",
    }  # fmt: skip
    assert "equal" in text
    assert "not separable" not in text


def test_what_counts_targets_is_not_compared_under_other_targets(
    folder: Path, tmp_path: Path
) -> None:
    for name, ttft_s in (("strict", 0.01), ("relaxed", 0.5)):
        options = ("--out", str(tmp_path / name), "--jobs", "1", "--figures", "none")
        slo = ("--set", f"slo.ttft_s={ttft_s}", "--set", "workload.requests=300")
        done = phasewise("run", str(folder / "two.yaml"), *options, *slo)
        assert done.exit_code == 0, done.output

    both = [str(tmp_path / name / "whole") for name in ("strict", "relaxed")]
    told = json.loads(phasewise("compare", *both, "--json").stdout)["variants"]["whole (2)"]
    text = " ".join(phasewise("compare", *both).stdout.split())

    assert "slo_attainment: no test: their slo differs, so that it counts other targets." in text
    assert "slo_attainment" not in told["against"]["whole"]
    assert "ttft_s.p50" in told["against"]["whole"]


def test_other_requests_are_not_compared_one_by_one(folder: Path) -> None:
    result = phasewise("compare", str(folder / "a" / "whole"), str(folder / "b" / "chunks"))

    text = " ".join(result.stdout.split())
    assert "Config: seed: 0 -> 9" in text
    assert "No test: they served other requests." in text


def test_a_folder_of_several_variants_is_refused(folder: Path) -> None:
    result = phasewise("compare", str(folder / "a"), str(folder / "b"))

    assert result.exit_code == 2
    assert "expected one variant; give the folder of one, such as" in result.stderr


def test_of_runs_that_served_nobody_it_says_so(folder: Path, tmp_path: Path) -> None:
    settings = ("--set", "workload.requests=300", "--set", "max_model_len=2")
    options = ("--out", str(tmp_path / "none"), "--jobs", "1", "--figures", "none")
    done = phasewise("run", str(folder / "two.yaml"), *options, *settings)
    assert done.exit_code == 0, done.output

    result = phasewise("compare", str(tmp_path / "none" / "whole"), str(folder / "a" / "whole"))
    same = phasewise("compare", str(tmp_path / "none/whole"), str(tmp_path / "none/chunks"))

    text = " ".join(result.stdout.split())
    assert "No test: they served other requests (300 and 3,000 of them)." in text
    text = " ".join(same.stdout.split())
    assert "whole: no request was served" in text
    assert "too few requests" not in text
    assert "MSER" not in text


def test_a_variant_is_found_by_its_label_too(tmp_path: Path) -> None:
    short = {**CONFIG["workload"], "requests": 30}
    named = [{"label": "A", "policy": "orca"}, {"label": "B", "policy": "sarathi"}]
    config = {**CONFIG, "workload": short, "compare": named}
    (tmp_path / "ab.yaml").write_text(yaml.safe_dump(config))
    options = ("--out", str(tmp_path / "out"), "--jobs", "1", "--figures", "none")

    done = phasewise("run", str(tmp_path / "ab.yaml"), *options)
    result = phasewise("compare", str(tmp_path / "out" / "A"), str(tmp_path / "out" / "B"))

    assert " ".join(done.stdout.split()).endswith("out (A in a, B in b)")
    assert result.exit_code == 0, result.output


def test_a_number_that_one_of_them_lacks_is_left_out_of_it(folder: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "slo": {"ttft_s": 0.5}, "compare": CONFIG["compare"][:1]}
    (tmp_path / "slo.yaml").write_text(yaml.safe_dump(config))
    done = phasewise(
        "run", str(tmp_path / "slo.yaml"), "--out", str(tmp_path / "o"), "--figures", "none"
    )
    assert done.exit_code == 0, done.output

    for order in ((0, 1), (1, 0)):
        both = (str(folder / "a" / "chunks"), str(tmp_path / "o" / "whole"))
        result = phasewise("compare", *(both[at] for at in order))
        assert result.exit_code == 0, result.output
        text = " ".join(result.stdout.split())
        assert "slo_attainment: no test: chunks has no such number." in text
        assert phasewise("compare", *(both[at] for at in order), "--json").exit_code == 0
