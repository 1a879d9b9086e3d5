"""The generator, its counters, the shrinker and the comparison do what conformance relies on."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from experiments.shrink import shrink
from tests.conformance.cases import differences, observe_reference, read_case, write_case
from tests.conformance.coverage import REQUIRED, Coverage
from tests.conformance.reference import load_reference
from tests.conformance.workloads import POLICIES, Spec, workload


def test_a_workload_is_a_pure_function_of_its_number_and_plain_json() -> None:
    for seed in range(50):
        assert workload(seed) == workload(seed)
        assert json.loads(json.dumps(workload(seed))) == workload(seed)
    assert workload(1) != workload(2)


def _replicas(specs: list[Spec]) -> list[Spec]:
    pools = [s.get("replicas", []) for s in specs]
    layouts = [s["disaggregated"] for s in specs if "disaggregated" in s]
    return [
        r
        for pool in pools + [x[side] for x in layouts for side in x]
        for r in pool
        if "policy" in r
    ]


def test_every_policy_option_and_pair_of_policies_is_drawn() -> None:
    specs = [workload(seed) for seed in range(2000)]
    options = {
        (r["policy"], name) for r in _replicas(specs) for name in r if name not in ("step_time",)
    }
    documented = {
        "static": [
            "batch_size",
            "batch_timeout_s",
            "pad_prompts",
            "keep_finished_slots",
            "return_at",
        ],
        "orca": ["max_batch_size", "reserve"],
        "vllm-v0": ["max_num_seqs", "max_num_batched_tokens"],
        "vllm-v1": [
            "max_num_seqs",
            "max_num_batched_tokens",
            "long_prefill_token_threshold",
            "reserve_full_prompt",
        ],
        "sarathi": ["max_num_seqs", "budget_tokens"],
    }
    common = ["total_blocks", "block_tokens", "max_model_len"]

    assert set(documented) == set(POLICIES)
    assert options >= {(p, name) for p in POLICIES for name in documented[p] + common}
    layouts = [s["disaggregated"] for s in specs if "disaggregated" in s]
    pairs = {(a["policy"], b["policy"]) for x in layouts for a in x["prefill"] for b in x["decode"]}
    assert pairs == {(a, b) for a in POLICIES for b in POLICIES}
    assert {r.get("block_tokens", 16) for r in _replicas(specs)} == set(range(1, 33))


def test_a_run_names_what_was_too_rare() -> None:
    covered = Coverage()
    for i in range(100):
        covered.add(set(REQUIRED[1:]) | ({REQUIRED[0]} if i < 4 else set()))

    assert covered.rare() == [REQUIRED[0]]
    covered.add({REQUIRED[0]})
    covered.add({REQUIRED[0]})
    assert covered.rare() == []  # 6 of 102


def test_shrinking_keeps_the_failure_and_little_else() -> None:
    def fails(spec: Spec) -> bool:
        requests = spec[
            "requests"
        ]  # a request of over 10 prompt tokens that asks for more than it gets
        return any(
            r["prompt_tokens"] > 10 and r.get("max_tokens", 0) > r["output_tokens"]
            for r in requests
        )

    spec = next(s for s in map(workload, range(1000)) if fails(s) and len(s["requests"]) > 20)
    before = copy.deepcopy(spec)

    small = shrink(spec, lambda candidate: _holds(fails, candidate))

    assert small == {"requests": [{"prompt_tokens": 11, "output_tokens": 0, "max_tokens": 1}]}
    assert spec == before


def _holds(fails: object, candidate: Spec) -> bool:
    try:
        return bool(fails(candidate))  # type: ignore[operator]
    except (KeyError, IndexError, TypeError):
        return False


def test_differences_are_found_in_each_part_of_a_result(shared: Path, tmp_path: Path) -> None:
    reference = load_reference(shared)
    seed = next(s for s in range(100) if reference.simulate(**workload(s)).transfers)
    spec = workload(seed)
    expected = observe_reference(spec, reference.simulate(**spec))
    assert differences(expected, copy.deepcopy(expected)) == []

    write_case(tmp_path / "case.json", "why", spec, expected)
    assert read_case(tmp_path / "case.json") == ("why", spec, expected)

    moved = copy.deepcopy(expected)
    moved["transfers"][0][4] += 1
    assert "transfer 0: expected" in differences(expected, moved)[0]
    moved = copy.deepcopy(expected)
    replica = next(iter(moved["log"]))
    moved["log"][replica][1][4] += 1
    assert differences(expected, moved)[0].startswith(f"{replica}: step 1: expected")
    moved = copy.deepcopy(expected)
    moved["requests"][0]["preemptions"] += 1
    assert differences(expected, moved)[0].startswith("request 0: preemptions: expected")


@pytest.mark.parametrize("number", [0, 1, 7, 123456, -3, 0.1, 1e-9, 2.5])
def test_shrinking_a_number_ends(number: float) -> None:
    assert shrink({"x": number}, lambda c: "x" in c) == {"x": type(number)(0)}
