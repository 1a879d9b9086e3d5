"""Host memory and clients that give up in a config: defaults, notes, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import cluster
from experiments.bundle import Bundle
from experiments.config import load
from experiments.variant import run_variant
from experiments.workload import build_workload
from sim.errors import ConfigError
from sim.records import CANCELLED, STATES

SWAP = {"name": "vllm-v0", "preemption": "swap", "host_blocks": 400}
BASE: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 60, "max_tokens": 1024},
    "model": "llama-3.1-8b",
    "device": "a100-sxm-80gb",
    "step_time": {"model": "linear", "base_s": 0.01, "prefill_token_s": 3e-5},
    "policy": SWAP,
    "max_model_len": 8192,
    "kv": {"num_blocks": 600},
}


def build(*settings: str, **changes: Any) -> cluster.Built:
    plan = load({**BASE, **changes}, settings)
    return cluster.build(plan.variants[0], plan.folder)


def run(*settings: str, **changes: Any) -> Bundle:
    plan = load({**BASE, **changes}, settings)
    return run_variant(plan.variants[0], plan.folder)


def test_the_host_link_is_that_of_the_data_sheet_and_of_all_gpus() -> None:
    built = build(tensor_parallel=2)

    assert built.cluster.entry.replicas[0].host_bandwidth_bytes_per_s == 2 * 3.2e10
    assert (
        "host memory: 400 blocks for requests that are swapped out; host link: 64 GB/s, from the "
        "data sheet of a100-sxm-80gb, all GPUs." in built.notes
    )


def test_the_host_link_can_be_given() -> None:
    built = build("kv.host_bandwidth_bytes_per_s=2e10", "kv.host_overlap=true")
    (spec,) = built.cluster.entry.replicas

    assert (spec.host_bandwidth_bytes_per_s, spec.host_overlap) == (2e10, True)
    assert any("host link: 20 GB/s, from the config." in note for note in built.notes)


def test_the_flag_of_vllm_is_understood() -> None:
    built = build(policy={"name": "vllm-v0", "host_blocks": 8}, preemption_mode="swap")

    assert built.cluster.entry.replicas[0].policy.host_memory_blocks == 8


def test_a_link_over_which_nothing_moves_is_noted() -> None:
    built = build("kv.host_bandwidth_bytes_per_s=2e10", policy="sarathi")

    assert built.cluster.entry.replicas[0].host_bandwidth_bytes_per_s is None
    assert any(note.startswith("kv.host_*: not used: policy sarathi") for note in built.notes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"policy": {"name": "vllm-v0", "preemption": "swap"}},
            "policy.host_blocks: is required by preemption swap",
        ),
        (
            {"policy": {"name": "vllm-v0", "host_blocks": 9}},
            "policy.host_blocks: 9 belongs to preemption swap, not to recompute",
        ),
        (
            {"policy": {**SWAP, "preemption": "swop"}},
            "policy.preemption: swop",
        ),
        ({"pipeline_parallel": 2}, "policy.preemption: swap: not modelled with pipeline_parallel"),
    ],
)
def test_misuse_of_swapping_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(**changes)

    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_that_swaps_recomputes_nothing_and_says_what_moved() -> None:
    done = run("workload.arrivals.process=burst", "workload.arrivals.burst_requests=60")

    swaps, blocks = done.requests["swap_outs"].sum(), done.requests["swapped_blocks"].sum()
    assert swaps > 0
    assert done.requests["recomputed_tokens"].sum() == 0
    assert done.requests["preemptions"].sum() == swaps
    block_bytes = 16 * 131_072  # 2 x 32 layers x 8 heads x 128 x 2 bytes for each of 16 tokens
    assert done.replicas[0].host_bytes == 2 * blocks * block_bytes


# --- clients that give up

CANCEL = {"share": 0.5, "after": {"distribution": "exponential", "mean_s": 1.5}}


def test_a_share_of_the_clients_gives_up_after_a_drawn_time() -> None:
    workload = {**BASE["workload"], "cancel": CANCEL}
    plan = load({**BASE, "workload": workload})
    made = build_workload(plan.variants[0], plan.folder, None)
    after = made.trace.cancel_after_ns
    assert after is not None
    assert 20 <= (after >= 0).sum() <= 40
    assert any(
        note.startswith(f"Cancellations: {(after >= 0).sum()} of 60 clients give up")
        for note in made.notes
    )

    more = {**workload, "cancel": {**CANCEL, "share": 1}}
    plan = load({**BASE, "workload": more})
    all_of_them = build_workload(plan.variants[0], plan.folder, None).trace.cancel_after_ns
    assert all_of_them is not None
    assert (all_of_them >= 0).all()
    assert all_of_them[after >= 0].tolist() == after[after >= 0].tolist()


def test_who_gives_up_is_counted_and_frees_memory_for_the_others() -> None:
    patient, impatient = (
        run(policy="vllm-v0", workload={**BASE["workload"], "cancel": cancel})
        for cancel in (None, CANCEL)
    )

    gone = impatient.requests["state"] == CANCELLED
    assert impatient.summary["requests"]["cancelled"] == gone.sum() > 10
    assert impatient.summary["requests"]["finished"] == (~gone).sum()
    assert patient.summary["requests"]["cancelled"] == 0
    waited = impatient.requests["end_ns"] - impatient.requests["arrival_ns"]
    stayed = patient.requests["end_ns"] - patient.requests["arrival_ns"]
    assert (waited[gone] < stayed[gone]).all()
    assert waited[~gone].mean() < stayed[~gone].mean()
    assert {STATES[state] for state in impatient.requests["state"]} == {"finished", "cancelled"}


def test_what_a_trace_says_itself_is_kept(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "arrival_s,prompt_tokens,output_tokens,cancel_after_s\n0,10,5,2.5\n1,10,5,\n"
    )
    workload = {"trace": str(tmp_path / "t.csv"), "max_tokens": 8, "cancel": {**CANCEL, "share": 1}}
    plan = load({**BASE, "workload": workload})
    made = build_workload(plan.variants[0], plan.folder, None)

    assert made.trace.cancel_after_ns is not None
    assert made.trace.cancel_after_ns[0] == 2_500_000_000
    assert made.trace.cancel_after_ns[1] > 0
    assert any("1 of 2 clients give up" in note for note in made.notes)
    assert any("1 others by the trace" in note for note in made.notes)


@pytest.mark.parametrize(
    ("cancel", "message"),
    [
        ({"share": 0.5}, "workload.cancel.after"),
        ({"share": 1.5, "after": CANCEL["after"]}, "workload.cancel.share: 1.5"),
        (
            {"share": 0.5, "after": {"distribution": "gamma", "mean_s": 3}},
            "workload.cancel.after.cv: is required by distribution gamma",
        ),
        (
            {"share": 0.5, "after": {"distribution": "constant", "mean_s": 3, "cv": 1}},
            "workload.cancel.after.cv: belongs to distribution gamma or lognormal, not to constant",
        ),
        (
            {"share": 0.5, "after": {"distribution": "exponental", "mean_s": 3}},
            "try exponential",
        ),
    ],
)
def test_misuse_of_cancellations_is_one_line(cancel: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load({**BASE, "workload": {**BASE["workload"], "cancel": cancel}})

    assert message in str(error.value)
    assert "\n" not in str(error.value)
