"""What a trace offers a prefix cache, in the summary of a run."""

import json

import numpy as np
import pytest

from experiments.config import load
from experiments.reuse import MOST_REQUESTS, reuse_of
from experiments.variant import run_variant
from sim.request import Trace


def trace(block_ids, block_tokens=4):
    n = len(block_ids)
    prompts = np.array([block_tokens * len(ids) + 1 for ids in block_ids])
    ones = np.ones(n, np.int64)
    ids = [np.array(each, np.int64) for each in block_ids]
    return Trace(
        np.arange(n),
        prompts,
        ones,
        ones,
        np.arange(n),
        block_ids=ids,
        block_ids_tokens=block_tokens,
    )


def test_distances_by_hand():
    # Used again: 1 after 1, 2 and 3 others: 2 is behind 1 of its own request, then 3 and 4 came.
    told = reuse_of(trace([[1, 2], [3, 4], [1, 2], [1]]))
    distance = told["distance_tokens"]
    # The third finds 1 with 3 and 4 used since, and 2 with 1, 3 and 4; the fourth finds 1 at once.
    assert (distance["n"], distance["min"], distance["max"]) == (3, 0, 12)
    assert distance["mean"] == pytest.approx(4 * (2 + 3 + 0) / 3)
    assert distance["p50"] == 8
    rates = dict(zip(told["capacity_tokens"], told["hit_rate"], strict=True))
    prompts = 3 * 9 + 5
    assert rates == {4: 4 / prompts, 8: 4 / prompts, 12: 8 / prompts, 16: 12 / prompts}


def test_a_trace_in_which_nothing_recurs_has_no_distances():
    assert reuse_of(trace([[1], [2]]))["distance_tokens"]["n"] == 0


def test_it_is_not_known_without_ids_or_of_too_many_requests():
    assert reuse_of(trace([])) is None
    plain = trace([[1]])
    plain.block_ids = None
    assert reuse_of(plain) is None
    many = trace([[1]]).take(np.zeros(MOST_REQUESTS + 1, np.intp))
    assert reuse_of(many) is None


def test_a_run_with_a_cache_says_it(tmp_path):
    path = tmp_path / "t.jsonl"
    row = {"prompt_tokens": 96, "output_tokens": 4, "block_ids_tokens": 32}
    rows = [row | {"arrival_s": i, "block_ids": [1, 2, 10 + i]} for i in range(5)]
    path.write_text("\n".join(map(json.dumps, rows)))
    config = {
        "workload": {"trace": str(path), "max_tokens": 8},
        "model": "llama-3.1-8b",
        "step_time": {"model": "linear", "base_s": 0.005, "prefill_token_s": 3e-5},
        "compare": [
            {"label": "cache", "policy": {"name": "vllm-v1", "prefix_cache": True}},
            {"label": "none", "policy": "vllm-v1"},
        ],
    }
    cache, none = (run_variant(each, tmp_path).summary for each in load(config).variants)
    assert cache["overall"]["reuse_distance_tokens"]["n"] == 8
    assert cache["reuse"]["hit_rate"][-1] == 4 * 64 / 480
    assert cache["overall"]["prefix_hit_rate_tokens"] == 4 * 64 / 480
    assert cache["overall"]["saved_prefill_s"] == pytest.approx(4 * 64 * 3e-5)
    assert "reuse" not in none
    assert "reuse_distance_tokens" not in none["overall"]


def test_turns_count_in_the_order_in_which_they_arrived(tmp_path):
    """Two sessions side by side: each comes back after the other, not after itself."""
    path = tmp_path / "t.csv"
    rows = [f"{name},{turn},64,16,1" for name in "ab" for turn in range(2)]
    path.write_text("session,turn,prompt_tokens,output_tokens,delay_s\n" + "\n".join(rows))
    config = {
        "workload": {
            "trace": str(path),
            "arrivals": {"process": "closed-loop", "concurrency": 2},
            "sessions": {"prompts": "whole"},
        },
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
        "policy": {"name": "vllm-v1", "prefix_cache": True},
    }

    made = run_variant(load(config).variants[0], tmp_path)

    # 4 blocks of a, 4 of b, then 3 of a again (at most 63 tokens), with 4 of b and 0 to 2 of a used
    # since, and the same of b. In the order of rows a would come back at once.
    distance = made.summary["overall"]["reuse_distance_tokens"]
    assert (distance["n"], distance["min"], distance["max"]) == (6, 64, 96)
