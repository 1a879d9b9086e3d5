"""What a run without replications is too short for, and what its start does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phasewise
from experiments.bundle import Bundle
from experiments.enough import warnings

CONFIG: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 600,
        "max_tokens": 1024,
        "arrivals": {"rate_per_s": 2},
    },
    "model": "llama-3.1-8b",
    "max_model_len": 16384,
    "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
    "record": {"steps": False},
    "policy": "sarathi",
}


@pytest.fixture(scope="module")
def run() -> Bundle:
    return phasewise.run(CONFIG)["sarathi"]


def test_a_short_run_says_what_its_p99_takes_and_nothing_of_its_median(run: Bundle) -> None:
    [line] = [each for each in warnings([run]) if "Too few" in each]

    assert "P99 of TTFT: sarathi (about " in line
    assert "P50 of E2E" not in line


def test_many_requests_that_do_not_depend_on_each_other_are_enough(run: Bundle) -> None:
    requests = run.requests
    many = 20_000
    longer = {name: np.resize(column, many) for name, column in requests.items()}
    longer["arrival_ns"] = np.arange(many) * 10**9
    rng = np.random.default_rng(3)
    for name in ("first_token_ns", "last_token_ns", "end_ns"):
        longer[name] = longer["arrival_ns"] + (rng.exponential(size=many) * 1e9).astype(np.int64)
    longer["last_token_ns"] = longer["end_ns"] = (
        longer["first_token_ns"] + longer["end_ns"] // 10**6
    )
    shown = Bundle(**{**vars(run), "requests": longer})

    assert not any("TTFT" in each for each in warnings([shown]))


def test_an_overloaded_run_is_left_to_its_verdict(run: Bundle) -> None:
    overloaded = {**run.summary, "verdict": {"name": "overloaded", "reason": ""}}

    assert warnings([Bundle(**{**vars(run), "summary": overloaded})]) == []


def test_a_start_that_sways_the_mean_is_said_with_what_leaves_it_out(run: Bundle) -> None:
    slow = {name: column.copy() for name, column in run.requests.items()}
    order = np.argsort(slow["arrival_ns"])
    slow["end_ns"][order[:60]] += 100 * 10**9  # the first tenth waits for a cold cache, say
    slow["last_token_ns"] = slow["end_ns"]
    shown = Bundle(**{**vars(run), "requests": slow})

    [line] = [each for each in warnings([shown]) if "start from empty" in each]

    assert "sarathi +" in line
    assert "leaves it out" in line
