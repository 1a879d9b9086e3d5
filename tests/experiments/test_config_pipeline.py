"""Keys of pipelines: GPUs, KV, step times and links of stages, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import cluster
from experiments.bundle import dump_config
from experiments.cluster import Built
from experiments.config import load
from experiments.variant import run_variant
from sim.errors import ConfigError
from sim.model_work import model_work
from sim.pipeline import PipelineReplica
from sim.replica_spec import ReplicaSpec
from sim.specs import load_model
from sim.stages import PipelineStepTime
from sim.step_time import StepWork

BASE: dict[str, Any] = {
    "workload": {"preset": "azure-conv-2023", "requests": 30, "max_tokens": 1024},
    "model": "llama-3.1-70b",
    "tensor_parallel": 4,
    "policy": "vllm-v1",
    "seed": 3,
}
PIPELINE = {**BASE, "pipeline_parallel": 2}


def built(config: dict[str, Any]) -> Built:
    plan = load(config)
    return cluster.build(plan.variants[0], plan.folder)


def spec_of(config: dict[str, Any]) -> tuple[ReplicaSpec, PipelineStepTime]:
    (spec,) = built(config).cluster.entry.replicas
    assert isinstance(spec.step_time, PipelineStepTime)
    return spec, spec.step_time


def test_a_pipeline_has_the_gpus_of_all_its_stages() -> None:
    made = built({**PIPELINE, "replicas": 3})
    assert made.gpus == 24
    assert [replica.gpus for replica in made.cluster.entry.replicas] == [8, 8, 8]
    assert all(replica.kind is PipelineReplica for replica in made.cluster.entry.replicas)


def test_one_stage_is_a_plain_replica() -> None:
    (spec,) = built({**BASE, "pipeline_parallel": 1}).cluster.entry.replicas
    assert spec.kind is None
    assert not isinstance(spec.step_time, PipelineStepTime)


def test_peaks_are_those_of_all_gpus_and_the_work_is_that_of_the_model() -> None:
    def hardware(config: dict[str, Any]) -> Any:
        plan = load(config)
        return cluster._hardware(plan.variants[0], ["replica"])

    model = load_model("llama-3.1-70b")
    one, two = (model_work(model, hardware(config)) for config in (BASE, PIPELINE))
    assert two.peak_flops_per_s == 2 * one.peak_flops_per_s
    assert two.peak_bytes_per_s == 2 * one.peak_bytes_per_s
    assert two.flops_per_token == one.flops_per_token
    assert two.weight_bytes == one.weight_bytes


def test_the_fullest_stage_decides_how_many_blocks_there_are() -> None:
    even, _ = spec_of(PIPELINE)
    lopsided, _ = spec_of({**PIPELINE, "stage_layers": [30, 50]})
    assert lopsided.num_blocks < even.num_blocks
    notes = " ".join(built({**PIPELINE, "stage_layers": [30, 50]}).notes)
    assert "50 of 80 layers" in notes
    assert "stage 2 of 2 has room for the fewest" in notes
    # What a transfer to another pool moves is the KV of all layers.
    assert even.kv_bytes_per_token == 80 * 2 * 8 * 128 * 2


def test_linear_gives_each_stage_its_layers_share_of_every_coefficient() -> None:
    linear = {"model": "linear", "base_s": 0.08, "decode_s": 8e-4}
    _, time = spec_of({**PIPELINE, "step_time": linear, "stage_layers": [20, 60]})
    work = StepWork([], 10, 1000)
    first, second = (model.step_ns(work, 0) for model in time.models)
    assert (first, second) == (22_000_000, 66_000_000)


def test_the_link_is_the_devices_or_the_users_own() -> None:
    _, default = spec_of(PIPELINE)
    assert default.link.bytes_per_token == 2 * 2 * 8192
    assert default.link.bandwidth_bytes_per_s == 450e9
    link = {"bandwidth_bytes_per_s": 5e10, "latency_s": 1e-5, "bytes_per_token": 100}
    _, own = spec_of({**PIPELINE, "stage_link": link})
    assert own.link.transfer_ns(StepWork([(400, 0)], 100, 100)) == 10_000 + 1_000
    assert any(
        "50 GB/s (as configured) after 10 us" in note
        for note in built({**PIPELINE, "stage_link": link}).notes
    )


def test_the_flag_of_vllm_is_understood() -> None:
    assert built({**BASE, "pipeline_parallel_size": 4}).gpus == 16


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pipeline_parallel": 81}, "pipeline_parallel: 81: llama-3.1-70b has 80 layers"),
        ({"pipeline_parallel": 0}, "pipeline_parallel: 0"),
        ({"pipeline_parallel": 2, "stage_layers": [40, 41]}, "stage_layers: [40, 41]: expected 2"),
        ({"stage_layers": [80]}, "stage_layers: there is one stage; set pipeline_parallel"),
        ({"stage_link": {"latency_s": 1e-5}}, "stage_link: there is one stage"),
        ({"pipeline_parallel": 2, "stage_link": {"latency": 1}}, "latency_s"),
        ({"chunked_pipeline": True}, "chunked_pipeline: there is one stage"),
        (
            {"pipeline_parallel": 2, "chunked_pipeline": True, "policy": "orca"},
            "chunked_pipeline: true: policy orca computes prompts whole; try vllm-v1",
        ),
    ],
)
def test_what_makes_no_pipeline_is_one_error_that_names_the_key(
    keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        built({**BASE, **keys})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipeline_runs_from_a_config_and_its_resolved_form_runs_again(tmp_path: Path) -> None:
    plan = load({**PIPELINE, "stage_layers": [30, 50]})
    first = run_variant(plan.variants[0], plan.folder)
    assert first.steps is not None
    assert set(first.steps["stage"].tolist()) == {1, 2}
    busy = [int(first.steps["busy_ns"][first.steps["stage"] == s].sum()) for s in (1, 2)]
    assert busy[0] < busy[1] <= first.end_ns
    assert first.summary["gpus"] == 8
    assert list(first.replicas[0].stage_busy_ns) == busy
    (said,) = [note for note in first.notes if "did nothing for" in note]
    assert said.startswith("pipeline stages of pool replica, first to last, did nothing for ")
    path = tmp_path / "again.yaml"
    path.write_text(dump_config(first.config))
    again = load(path)
    second = run_variant(again.variants[0], again.folder)
    for name, column in first.requests.items():
        if column.dtype != object:
            assert column.tolist() == second.requests[name].tolist(), name


def test_two_pools_may_both_be_pipelines(tmp_path: Path) -> None:
    pools = {
        "prefill": {"replicas": 1, "pipeline_parallel": 2},
        "decode": {"replicas": 1, "pipeline_parallel": 4, "tensor_parallel": 2},
        "transfer": {"bandwidth_bytes_per_s": 5e10},
    }
    plan = load({**BASE, "pools": pools, "check": True})
    result = run_variant(plan.variants[0], plan.folder)
    assert result.summary["gpus"] == 16
    assert result.summary["requests"]["finished"] == 30


def test_chunks_of_a_prompt_under_way_at_once_are_done_sooner() -> None:
    long = {"workload": {"preset": {"name": "prefix-repetition", "prefix_tokens": 32000}}}
    long["workload"] |= {"requests": 2, "arrivals": {"process": "constant", "rate_per_s": 0.01}}
    keys = {**PIPELINE, **long, "pipeline_parallel": 4, "tensor_parallel": 1, "device": "h200"}
    ttft = []
    for chunked in (False, True):
        plan = load({**keys, "chunked_pipeline": chunked})
        got = run_variant(plan.variants[0], plan.folder)
        ttft.append(int(got.requests["first_token_ns"][0] - got.requests["arrival_ns"][0]))
    # 16 chunks of 2048 on 4 stages: 19 / 64 of the time, but for a first stage that does more.
    assert 19 / 64 <= ttft[1] / ttft[0] < 22 / 64


def test_kv_is_not_sent_chunk_by_chunk_from_a_chunked_pipeline() -> None:
    pools = {
        "prefill": {"replicas": 1, "pipeline_parallel": 2, "chunked_pipeline": True},
        "decode": {"replicas": 1},
        "transfer": {"bandwidth_bytes_per_s": 1e9, "start": "push", "overlap": "chunked"},
    }
    with pytest.raises(ConfigError, match="overlap: chunked: not modelled with chunked_pipeline"):
        built({**BASE, "pools": pools})
