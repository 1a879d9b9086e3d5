"""What bound the steps of a run: sums worked by hand, and what sentences say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phasewise
from experiments import attribution
from experiments.advice import Setting, resource_of, setting_of, why
from experiments.bounds import BANDWIDTH, COMPUTE, STEPS, Bound, Tally, as_values, from_values
from experiments.config import load
from experiments.remedies import help_for
from experiments.variant import run_variant
from sim.attribution import PHASES
from sim.phases import PhaseArithmetic
from sim.specs import load_device, load_model

LLAMA = PhaseArithmetic(load_model("llama-3.1-8b"), load_device("h100-sxm"))
BASE: dict[str, Any] = {"model": "llama-3.1-8b", "device": "h100-sxm", "label": "one"}


def trace_of(folder: Path, rows: list[tuple[float, int, int]]) -> dict[str, Any]:
    """A workload of (arrival in s, prompt tokens, output tokens)."""
    trace = folder / "trace.csv"
    lines = [f"{a},{p},{o}" for a, p, o in rows]
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *lines]) + "\n")
    return {"trace": str(trace)}


def made(tmp_path: Path, rows: list[tuple[float, int, int]], **more: Any) -> Any:
    config = {**BASE, "workload": trace_of(tmp_path, rows), "policy": "vllm-v1", **more}
    return phasewise.run(config).bundles[0]


def bounds(run: Any) -> dict[str, Bound]:
    return from_values(run.summary["arithmetic"])


def test_one_request_alone_is_its_own_arithmetic(tmp_path: Path) -> None:
    found = bounds(made(tmp_path, [(0, 1000, 5)]))

    prefill = LLAMA.prefill(1000)
    decodes = [LLAMA.decode(1, context) for context in (1001, 1002, 1003, 1004)]
    for kind in ("prefill", "prefill_alone"):
        assert found[kind].flops == pytest.approx(prefill.flops, rel=1e-12)
        assert found[kind].num_bytes == pytest.approx(prefill.num_bytes, rel=1e-12)
    for kind in ("decode", "decode_alone"):
        assert found[kind].flops == pytest.approx(sum(each.flops for each in decodes), rel=1e-3)
        assert found[kind].num_bytes == pytest.approx(
            sum(each.num_bytes for each in decodes), rel=1e-3
        )
    assert found["prefill"].resource == COMPUTE
    assert found["decode"].resource == BANDWIDTH
    assert found["prefill"].ridge == pytest.approx(LLAMA.ridge, rel=1e-12)
    whole = found["prefill"] + found["decode"]
    assert found["any"] == whole


def test_short_prompts_are_bound_by_memory_and_the_sentence_says_so(tmp_path: Path) -> None:
    run = made(tmp_path, [(at, 16, 2) for at in range(40)])
    found = bounds(run)
    setting = setting_of(run.config, (), run.summary["arithmetic"])

    assert found["prefill_alone"].resource == BANDWIDTH
    assert resource_of("prefill", setting) == BANDWIDTH
    assert resource_of("prefill", Setting()) == COMPUTE
    assert help_for("prefill", setting).startswith("several prompts in a step")
    intensity = LLAMA.prefill(16).intensity
    assert why("prefill", setting) == (
        f" (its prefill alone did {intensity:.3g} FLOP per byte, below the ridge of 295)"
    )
    said = run.summary["attribution"]["overall"]["ttft"]["p99"]
    assert said["resource"] == BANDWIDTH
    assert f"100% of it hangs on memory bandwidth{why('prefill', setting)}." in said["sentence"]


def test_large_batches_of_decodes_are_bound_by_compute(tmp_path: Path) -> None:
    policy = {"name": "vllm-v1", "max_num_seqs": 1024, "max_num_batched_tokens": 16384}
    run = made(tmp_path, [(0, 8, 60)] * 900, policy=policy)
    setting = setting_of(run.config, (), run.summary["arithmetic"])

    assert bounds(run)["decode"].resource == COMPUTE
    assert resource_of("decode_others", setting) == COMPUTE
    assert resource_of("decode_gpu", setting) == BANDWIDTH
    assert "replicas or GPUs" in help_for("decode_others", setting)
    assert why("decode_others", setting).startswith(" (decode steps did ")
    assert ", above the ridge of 295)" in why("decode_others", setting)


@pytest.mark.parametrize("more", [{}, {"prefix_cache": True}])
def test_sums_do_not_depend_on_how_steps_are_kept(tmp_path: Path, more: dict[str, Any]) -> None:
    config = {
        **BASE,
        "workload": {"preset": "azure-conv-2023", "requests": 60, "arrivals": {"rate_per_s": 20}},
        "policy": {"name": "vllm-v1", **more},
    }
    told = []
    for fast_forward, folder in ((True, None), (False, None), (True, tmp_path)):
        plan = load({**config, "fast_forward": fast_forward})
        run = run_variant(plan.variants[0], plan.folder, steps_folder=folder)
        told.append(run.summary["arithmetic"])
    assert told[0] == told[1] == told[2]
    assert set(told[0]) == set(STEPS)


def test_two_pools_have_the_kinds_that_they_run(tmp_path: Path) -> None:
    pools = {
        "prefill": {"replicas": 1, "policy": "vllm-v1", "device": "h100-sxm"},
        "decode": {"replicas": 1, "policy": "vllm-v1", "device": "h200"},
        "transfer": {"bandwidth_bytes_per_s": 50e9},
    }
    rows = [(0.2 * at, 900, 30) for at in range(30)]
    config = {"model": BASE["model"], "label": "one", "workload": trace_of(tmp_path, rows)}
    found = bounds(phasewise.run({**config, "pools": pools}).bundles[0])

    assert found["prefill"].ridge == pytest.approx(LLAMA.ridge)
    h200 = PhaseArithmetic(load_model("llama-3.1-8b"), load_device("h200"))
    assert found["decode"].ridge == pytest.approx(h200.ridge)


def test_what_knows_no_flops_or_has_no_steps_says_that_it_goes_by_the_phase(
    tmp_path: Path,
) -> None:
    rows = [(0.0, 500, 5)]
    linear = made(tmp_path, rows, step_time={"model": "linear", "base_s": 0.01})
    unrecorded = made(tmp_path, rows, record={"steps": False})

    for run, reason in (
        (linear, "linear step times know no FLOPs"),
        (unrecorded, "what its steps computed was not recorded"),
    ):
        assert "arithmetic" not in run.summary
        sentence = run.summary["attribution"]["overall"]["e2e"]["p99"]["sentence"]
        assert f"(by the phase: {reason})." in sentence


def test_a_resource_that_is_no_matter_of_steps_has_no_reason_in_brackets() -> None:
    known = Setting(bounds={kind: Bound(1.0, 1.0, 1.0, 2.0) for kind in STEPS})
    for phase in ("queue_memory", "transfer", "decode_host", "batch_end", "lost"):
        assert why(phase, known) == ""
        assert resource_of(phase, known) == resource_of(phase, Setting())
    bound = {phase for phase in PHASES if why(phase, known)}
    assert {resource_of(phase, Setting()) for phase in bound} == {COMPUTE, BANDWIDTH}
    split = attribution.Split(1, "e2e", {"stall": 600, "prefill": 300, "transfer": 100})
    assert split.resources(known) == {BANDWIDTH: 900, "network": 100}
    assert "90% of it hangs on memory bandwidth (steps with" in attribution.sentence(split, known)


def test_iterations_are_added_up_by_replica_kind_and_rows() -> None:
    steps = {
        "replica": [0, 1, 0, 1],
        "iterations": [1, 3, 2, 1],
        "prefill_tokens": [100, 0, 0, 7],
        "decodes": [5, 4, 4, 0],
        "first_context_tokens": [50, 1000, 40, 0],
    }
    parts = [
        {key: np.array(column[a:b]) for key, column in steps.items()} for a, b in ((0, 3), (3, 4))
    ]
    tally = Tally()
    for part in parts:
        tally.add(part)

    work, rows = tally.work([0, 1], prefill=False)
    assert (work.decode_rows, work.prefill_tokens, rows) == (20, 0, {4: 5})
    assert work.context_tokens == (1000 + 1004 + 1008) + (40 + 44)
    work, rows = tally.work([0], prefill=True)
    assert (work.prefill_tokens, work.decode_rows, work.context_tokens) == (100, 5, 50)
    assert rows == {105: 1}
    assert tally.work([1], prefill=True)[1] == {7: 1}
    assert tally.work([2], prefill=True)[1] == {}


def test_bounds_come_back_from_a_summary() -> None:
    bound = {"decode": Bound(10.0, 5.0, 1.0, 4.0)}
    values = as_values(bound)
    assert values["decode"]["flops_per_byte"] == 2.0
    assert values["decode"]["ridge_flops_per_byte"] == 8.0
    assert from_values(values) == bound
