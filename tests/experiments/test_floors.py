"""Floors: worked by hand, and beaten by no request of any roofline run here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phasewise
from experiments.bundle import Bundle
from experiments.cdf import curve_of_values
from experiments.floor_figure import envelope, floor_curves
from experiments.floors import KEYS, floors_of
from kernels_profile.importers import import_profile
from kernels_profile.roofline import RooflineStepTime
from kernels_profile.table import Meta, write_meta, write_table
from policies import POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.metrics import PER_REQUEST
from sim.phases import PhaseArithmetic
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.specs import load_device, load_model
from tests.held_floors import HeldFloors

REPLICA = {
    "model": "llama-3.1-8b",
    "device": "h100-sxm",
    "workload": {"preset": "azure-conv-2023", "requests": 120, "arrivals": {"rate_per_s": 30}},
}
TIGHT = {"kv": {"num_blocks": 1100}, "max_model_len": 16384}
DOCUMENTS = {
    "preset": {"name": "documents", "documents": 12, "document_tokens": 3000},
    "requests": 120,
    "arrivals": {"rate_per_s": 20},
}
CACHED = {"policy": {"name": "vllm-v1", "prefix_cache": True}, "workload": DOCUMENTS}
TWO_POOLS = {
    "prefill": {"replicas": 1, "policy": "vllm-v1"},
    "decode": {"replicas": 1, "policy": "vllm-v1"},
    "transfer": {"bandwidth_bytes_per_s": 50e9},
}
FAILS = {"replicas": 2, "events": [{"at_s": 1, "what": "fail", "replica": 1}]}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"policy": name} for name in ("static", "orca", "vllm-v0", "sarathi")},
    "preempted": {"policy": "vllm-v1", **TIGHT},
    "preempted-v0": {"policy": "vllm-v0", **TIGHT},
    "prefixes": CACHED,
    "prefixes-sglang": {**CACHED, "policy": "sglang"},
    "prefixes-preempted": {**CACHED, **TIGHT},
    "failing": {"policy": "vllm-v1", **FAILS},
    "failing-prefixes": {**CACHED, **FAILS},
    "disaggregated": {"pools": TWO_POOLS},
    "stages": {"policy": "sarathi", "pipeline_parallel": 2},
    "chunked-stages": {"policy": "sarathi", "pipeline_parallel": 2, "chunked_pipeline": True},
    "two-gpus": {"policy": "vllm-v1", "tensor_parallel": 2},
    "experts": {"policy": "vllm-v1", "model": "mixtral-8x7b", "tensor_parallel": 4},
}


def run(**changes: Any) -> Bundle:
    return phasewise.run({**REPLICA, **changes, "label": "one"}).bundles[0]


@pytest.mark.parametrize("case", CASES)
def test_no_request_of_a_roofline_run_beats_its_floor(case: str) -> None:
    bundle = run(**CASES[case])
    found = floors_of(bundle)
    assert found.why == {}
    assert found.beaten == dict.fromkeys(KEYS, 0)
    for key in KEYS:
        defined = ~np.isnan(PER_REQUEST[key](bundle.requests))
        assert defined.sum() > 50
        assert not np.isnan(found.values[key][defined]).any()
        measured = curve_of_values(PER_REQUEST[key](bundle.requests)[defined])
        floor = envelope([curve_of_values(found.values[key][defined])])
        assert below(measured, floor)


def below(measured: Any, floor: Any) -> bool:
    """Whether a distribution is nowhere above that of its floors."""
    at = np.searchsorted(floor.x, measured.x, side="right")
    return bool((measured.share <= np.concatenate(([0.0], floor.share))[at] + 1e-12).all())


def test_cases_do_what_they_are_for() -> None:
    assert run(**CASES["preempted"]).requests["preemptions"].sum() > 0
    assert run(**CASES["failing"]).requests["rerouted"].sum() > 0
    assert run(**CASES["prefixes"]).requests["cached_tokens"].sum() > 10_000
    again = run(**CASES["prefixes-preempted"]).requests
    assert again["preemptions"].sum() > 0
    assert run(**CASES["failing-prefixes"]).requests["rerouted"].sum() > 0


# --- every run of the suite (tests/held_floors.py)


def test_runs_of_configs_and_of_clusters_made_by_hand_are_watched(
    held_floors: HeldFloors, tmp_path: Path
) -> None:
    before = held_floors.runs
    run(policy="vllm-v1")
    assert held_floors.runs == before + 1
    run(policy="vllm-v1", step_time={"model": "linear", "base_s": 0.001})
    assert held_floors.runs == before + 1

    model = RooflineStepTime(load_model("llama-3.1-8b"), load_device("h100-sxm"))
    spec = ReplicaSpec(POLICIES["vllm-v1"](), 100, model)
    arrivals = [Arrival(0, 100, 10, 10, 0), Arrival(5, 200, 20, 20, 1)]
    simulate(arrivals, Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]())))
    assert held_floors.runs == before + 2


def test_variants_run_in_processes_of_their_own_are_watched(
    held_floors: HeldFloors, tmp_path: Path
) -> None:
    from experiments.config import load
    from experiments.run import jobs_of, run_jobs

    plan = load({**REPLICA, "policy": "vllm-v1", "grid": {"seed": [1, 2]}})
    before = held_floors.runs
    run_jobs(jobs_of(plan, tmp_path / "out"), plan, processes=2)
    assert held_floors.runs == before + 2


def test_the_watch_notices_a_request_below_its_floor() -> None:
    bundle = run(policy="vllm-v1")
    soon = bundle.requests["first_token_ns"].copy()
    soon[:3] = bundle.requests["arrival_ns"][:3] + 1
    held = HeldFloors()
    held.look(bundle)
    assert (held.runs, held.breaches) == (1, [])
    held.look(changed(bundle, first_token_ns=soon))
    (line,) = held.breaches
    assert line.startswith("3 of 120 requests beat their floor of ttft in a roofline run: {")


# --- measured tables

H100, LLAMA = load_device("h100-sxm"), load_model("llama-3.1-8b")


def linear_tables(folder: Path, share: float) -> Path:
    """Tables of Llama's matrix products, each `share` times as long as the data sheet allows."""
    shapes = [(6144, 4096), (4096, 4096), (2 * 14336, 4096), (4096, 14336)]
    rows = []
    for n, k in shapes:
        for tokens in (1, 8, 64, 256, 1024, 4096, 16384):
            compute_s = 2 * n * k * tokens / H100.peak_flops("bf16")
            memory_s = 2 * n * k / H100.memory_bytes_per_s
            us = share * max(compute_s, memory_s) * 1e6
            rows.append({"dtype": "bf16", "n": n, "k": k, "tokens": tokens, "time_us": us})
    write_meta(folder, Meta("h100-sxm", "a test"))
    write_table(folder, "linear", rows)
    return folder


def profiled(folder: Path, share: float) -> Bundle:
    data = str(linear_tables(folder, share))
    step_time = {"model": "profile", "data": data, "missing": "roofline"}
    return run(policy="vllm-v1", step_time={**step_time, "host": {"step_us": 1.0}})


def test_no_request_of_a_profile_beats_its_floor_where_no_kernel_beats_the_sheet(
    tmp_path: Path,
) -> None:
    bundle = profiled(tmp_path, 1.0)
    found = floors_of(bundle)
    assert found.beaten == dict.fromkeys(KEYS, 0)
    for key in KEYS:
        measured = curve_of_values(PER_REQUEST[key](bundle.requests))
        assert below(measured, envelope([curve_of_values(found.values[key])]))


def test_a_table_that_beats_the_sheet_is_reported_and_nothing_is_clipped(tmp_path: Path) -> None:
    bundle = profiled(tmp_path, 0.1)
    found = floors_of(bundle)
    for key in KEYS:
        times = PER_REQUEST[key](bundle.requests)
        assert found.beaten[key] == (times < found.values[key] - 1e-9).sum() > 0
        curves, said = floor_curves([bundle])
        assert curves[key].x.tolist() == np.unique(found.values[key]).tolist()  # as by the sheet
        assert (
            f"one: {found.beaten[key]} requests beat the floor of the data sheet, as the measured "
            "step times do." in said[key]
        )
        assert curve_of_values(times).x.min() < found.values[key].min()


def test_imported_kernels_of_an_rtx_4090_beat_no_floor(shared: Path, tmp_path: Path) -> None:
    source = shared / "measured" / "llmservingsim"
    import_profile("llmservingsim", source, tmp_path / "data", skip=["RTXPRO6000"])
    step_time = {"model": "profile", "data": str(tmp_path / "data")}
    bundle = run(policy="vllm-v1", device="rtx-4090", step_time=step_time)
    assert floors_of(bundle).beaten == dict.fromkeys(KEYS, 0)


def test_cached_tokens_need_no_prefill_but_are_read() -> None:
    sums = PhaseArithmetic(load_model("llama-3.1-8b"), load_device("h100-sxm"))
    prompt, cached = np.array([4096, 4096, 4096, 1]), np.array([0, 2048, 4095, 0])
    floors = sums.ttft_floors_s(prompt, cached)
    assert floors.tolist() == pytest.approx(
        [sums.ttft_floor_s(n, c) for n, c in zip(prompt.tolist(), cached.tolist(), strict=True)],
        rel=1e-12,
    )
    assert floors[0] > 1.9 * floors[1] > 1.9 * floors[2] > 1.9 * floors[3]
    # One token: 7.5 G weights but for the embedding, 2 bytes each, over 3.35 TB/s.
    assert floors[3] == pytest.approx(15.0e9 / 3.35e12, rel=0.01)


def test_tpot_floors_are_the_mean_of_the_decode_steps() -> None:
    sums = PhaseArithmetic(load_model("mixtral-8x7b"), load_device("h200"), tp=2)
    prompt, output = np.array([1, 700, 3000, 5]), np.array([2, 100, 1000, 1])
    floors = sums.tpot_floors_s(prompt, output)
    assert floors[:3].tolist() == pytest.approx(
        [sums.tpot_floor_s(n, o) for n, o in [(1, 2), (700, 100), (3000, 1000)]], rel=1e-11
    )
    assert np.isnan(floors[3])


@dataclass
class Served:
    config: dict[str, Any]
    requests: dict[str, Any]
    replicas: list[Any]


def changed(bundle: Bundle, **requests: Any) -> Served:
    return Served(bundle.config, {**bundle.requests, **requests}, bundle.replicas)


def test_linear_step_times_have_no_floor_and_say_so() -> None:
    bundle = run(policy="vllm-v1", step_time={"model": "linear", "base_s": 0.001})
    found = floors_of(bundle)
    assert found.values == {}
    assert found.why["ttft"] == "Step times of linear are of no device: no floor."
    curves, said = floor_curves([bundle])
    assert curves == {}
    assert said["tpot"] == found.why["tpot"]


def test_times_below_the_floor_are_counted_and_not_clipped() -> None:
    bundle = run(policy="vllm-v1")
    soon = bundle.requests["first_token_ns"].copy()
    soon[:3] = bundle.requests["arrival_ns"][:3] + 1
    found = floors_of(changed(bundle, first_token_ns=soon))
    assert found.beaten["ttft"] == 3
    assert floors_of(bundle).beaten["ttft"] == 0


def test_tokens_that_come_all_at_once_have_no_tpot_floor() -> None:
    bundle = run(policy="vllm-v1")
    found = floors_of(changed(bundle, first_token_ns=bundle.requests["last_token_ns"]))
    assert "tpot" not in found.values
    assert found.why["tpot"] == "No floor of TPOT: tokens of a request came all at once."
    assert "ttft" in found.values


def test_a_model_without_a_sheet_has_no_floor_and_its_name_is_told() -> None:
    bundle = run(policy="vllm-v1")
    config = {**bundle.config, "model": "no-such-model"}
    found = floors_of(Served(config, bundle.requests, bundle.replicas))
    assert found.values == {}
    assert "no-such-model" in found.why["ttft"]


def test_re_prefills_where_others_may_have_computed_the_prompt_count_one_token() -> None:
    bundle = run(**CACHED)
    again = bundle.requests["preemptions"].copy()
    again[0] = 1
    found = floors_of(changed(bundle, preemptions=again)).values["ttft"]
    sums = PhaseArithmetic(load_model("llama-3.1-8b"), load_device("h100-sxm"))
    prompt = int(bundle.requests["prompt_tokens"][0])
    assert found[0] == pytest.approx(sums.ttft_floor_s(prompt, prompt - 1), rel=1e-12)
    assert found[1] == pytest.approx(floors_of(bundle).values["ttft"][1])


def test_the_page_of_figures_says_what_the_grey_curve_is(tmp_path: Path) -> None:
    from experiments.figures import plot

    plot([run(policy="vllm-v1")], tmp_path, formats=["html"])
    page = (tmp_path / "figures.html").read_text(encoding="utf-8")
    assert page.count("the hatched area cannot be reached") == len(KEYS)
    assert page.count('"fillpattern":{"') == len(KEYS)
