"""What is wrong with a workload is said with file, key and what would do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.config import load
from sim.errors import ConfigError

TAB = {"preset": {"name": "tab-completion", "turns": 5}, "requests": 40}
AGENT = {"preset": {"name": "agent", "turns": 4}, "requests": 12}
TIMED = {"arrivals": {"process": "constant", "rate_per_s": 1}}


def config(workload: dict[str, Any]) -> dict[str, Any]:
    step_time = {"model": "linear", "base_s": 0.01}
    return {
        "workload": workload,
        "model": "llama-3.1-8b",
        "policy": "vllm-v1",
        "step_time": step_time,
    }


SLIPS: list[tuple[dict[str, Any], str]] = [
    (
        {"mix": [{"presett": "few-shot"}]},
        "workload.mix[0].presett: a part of a mix has no such option; try preset",
    ),
    ({"mix": [{**TAB, "mix": []}]}, "workload.mix[0].mix: a part of a mix has no such option"),
    ({"mix": [{**TAB, "max_token": 3}]}, "workload.mix[0].max_token: a part of a mix has no such"),
    ({"mix": []}, "workload.mix: []: expected at least one part"),
    ({"mix": [{**TAB, "request_class": ""}]}, "mix[0].request_class: '': expected a name"),
    ({"mix": [{**TAB, "request_class": " "}]}, "mix[0].request_class:  : expected a name"),
    (
        {"preset": {"nme": "system-prompts"}, "requests": 3},
        "workload.preset: its name is missing, as in {name: system-prompts}, not nme: try name",
    ),
    ({"preset": {"groups": 3}, "requests": 3}, "workload.preset: its name is missing"),
]


@pytest.mark.parametrize(("workload", "says"), SLIPS, ids=[slip[1] for slip in SLIPS])
def test_a_slip_is_named_with_what_would_do(workload: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(config(workload))

    assert says in str(error.value)
    assert "None" not in str(error.value)


UNMADE: list[tuple[dict[str, Any], str]] = [
    (
        {"preset": "azure-conv-2023", "requests": 5, "prompt_order": "variable-first"},
        "workload.prompt_order: variable-first: preset azure-conv-2023: nothing is said of",
    ),
    (
        {**AGENT, **TIMED, "sessions": {"prompts": "incremental"}},
        "workload.sessions.prompts: incremental: those of preset agent are whole: ",
    ),
    (
        {"mix": [{**TAB, **TIMED}, {"trace": "plain.csv", "sessions": {}}]},
        "workload.mix[1].sessions.delay: recorded: plain.csv has no column delay_s",
    ),
]


@pytest.mark.parametrize(("workload", "says"), UNMADE, ids=[each[1] for each in UNMADE])
def test_what_shows_only_in_making_requests_is_said_of_file_and_key(
    workload: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens,session,turn\n0,9,1,a,0\n1,19,1,a,1\n"
    )
    (tmp_path / "o3.yaml").write_text(json.dumps(config(workload)))

    run, check = (CliRunner().invoke(app, [word, "o3.yaml"]) for word in ("run", "check"))

    assert f"phasewise: o3.yaml: {says}" in run.stderr
    assert f"phasewise: o3.yaml: {says}" in check.stderr
    assert run.exit_code == check.exit_code == 2
