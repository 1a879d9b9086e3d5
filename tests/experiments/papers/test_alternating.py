"""Chunks and decodes by turns: a timeline by hand, and the contract of policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.check_policy import check_policy
from experiments.config import load
from experiments.results import run_plan

NAME = "experiments.papers.alternating:Alternating"


def config(trace: Path) -> dict[str, Any]:
    return {
        "workload": {"trace": str(trace)},
        "model": "llama-3.1-8b",
        "kv": {"num_blocks": 50},
        "policy": {"name": NAME, "budget_tokens": 8},
        "step_time": {"model": "linear", "base_s": 0.01},
        "compare": [{"label": "a"}],
    }


def test_a_decode_comes_between_two_chunks(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,3\n0,10,2\n", encoding="utf-8")
    got = run_plan(load(config(trace))).requests("a")

    # 0: 8 of request 0. 10 ms: nothing decodes, so 2 of request 0 and 6 of request 1.
    # 20: request 0 decodes. 30: the last 4 of request 1. 40: both decode, and end at 50.
    assert got["ttft_s"].tolist() == pytest.approx([0.02, 0.04])
    assert got["e2e_s"].tolist() == pytest.approx([0.05, 0.05])


@pytest.mark.parametrize("options", [{}, {"budget_tokens": 5, "max_num_seqs": 3}])
def test_it_keeps_the_contract(options: dict[str, Any], tmp_path: Path) -> None:
    report = check_policy(NAME, workloads=5, seed=0, options=options, folder=tmp_path)

    assert report.failure is None, str(report)
