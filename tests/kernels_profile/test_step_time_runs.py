"""Whole runs on tables: fast-forward gives the integers of stepping, and so do the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels_profile.host import HostOverhead
from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.usage import Usage, add_up
from policies import POLICIES
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.model_part import split_layers
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.records import SimulationResult
from sim.replica import Replica
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.specs import load_device
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import StepTimeModel, StepWork
from tests.kernels_profile.made_up import HOST, MODEL, model_of, tables, without


def arrivals(n: int = 60) -> list[Arrival]:
    rng = np.random.default_rng(5)
    at = np.cumsum(rng.exponential(2e6, n)).astype(int)
    prompts, outputs = rng.integers(1, 900, n), rng.integers(1, 200, n)
    return [
        Arrival(int(a), int(p), int(o), int(o), i)
        for i, (a, p, o) in enumerate(zip(at, prompts, outputs, strict=True))
    ]


def run(
    step_time: StepTimeModel, policy: str, *, fast_forward: bool, kind: type[Replica] | None = None
) -> SimulationResult:
    from policies.routing import RoundRobin

    spec = ReplicaSpec(POLICIES[policy](), 700, step_time, max_model_len=2048, kind=kind)
    pool = PoolSpec("replica", [spec, spec], RoundRobin())
    return simulate(arrivals(), Cluster(pool), seed=3, fast_forward=fast_forward, check=True)


def same(one: SimulationResult, other: SimulationResult) -> None:
    for name, column in one.requests.items():
        assert (column == other.requests[name]).all(), name
    for a, b in zip(one.replicas, other.replicas, strict=True):
        assert a.busy_ns == b.busy_ns
        assert_counts(a.step_time_usage, b.step_time_usage)


def assert_counts(one: Any, other: Any) -> None:
    """Whole numbers are equal; sums of doubles were added in another order."""
    for key in ("steps", "ns", "outside_steps", "outside_ns"):
        assert one[key] == other[key], key
    assert one["filled_ns"] == pytest.approx(other["filled_ns"])
    causes = [{(c["operator"], c["axis"]): c for c in each["causes"]} for each in (one, other)]
    assert causes[0].keys() == causes[1].keys()
    for key, cause in causes[0].items():
        assert (cause["steps"], cause["ratio"]) == (
            causes[1][key]["steps"],
            causes[1][key]["ratio"],
        )


OPTIONS: list[dict[str, Any]] = [
    {"noise_cv": 0.2},
    {"host": HostOverhead(300.0, 5.0, form="max"), "outside": "clamp"},
]


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v0", "sarathi", "static", "orca"])
@pytest.mark.parametrize("options", OPTIONS, ids=["noise", "max"])
def test_fast_forward_is_stepping(tmp_path: Path, policy: str, options: dict[str, Any]) -> None:
    made = without(tables(skews=(0.0, 0.3)), "attention_decode", context=2048)
    model = model_of(tmp_path, made, **options)
    fast, slow = (run(model, policy, fast_forward=each) for each in (True, False))
    same(fast, slow)
    assert fast.replicas[0].step_time_usage is not None
    assert fast.replicas[0].step_time_usage["steps"] == fast.replicas[0].iterations
    assert fast.replicas[0].step_time_usage["outside_steps"] > 0


def test_replicas_have_noise_of_their_own(tmp_path: Path) -> None:
    model = model_of(tmp_path, noise_cv=0.2)
    result = run(model, "vllm-v1", fast_forward=True)
    again = run(model, "vllm-v1", fast_forward=True)
    same(result, again)


def test_contexts_reach_the_model_as_unequal_as_they_are(tmp_path: Path) -> None:
    model = model_of(tmp_path)
    seen: list[StepWork] = []

    class Watched(ProfiledStepTime):
        def __init__(self) -> None:
            self.__dict__.update(model.__dict__)

        def for_replica(self, seed: int, replication: int, place: int) -> Any:
            replica = super().for_replica(seed, replication, place)
            note = replica.note
            replica.note = lambda work, *rest: (seen.append(work), note(work, *rest))[1]
            return replica

    run(Watched(), "vllm-v1", fast_forward=True)
    spreads = [work.context_spread for work in seen if work.attending_rows > 1]
    assert sum(spread > 0 for spread in spreads) > len(spreads) / 2
    # rows^2 times a variance is rows * sum of squares - square of sum, of whole numbers.
    for work in seen:
        assert work.context_spread >= 0
        if work.attending_rows < 2:
            assert work.context_spread == 0
        else:
            assert work.context_spread % 1 == 0


def test_a_pipeline_counts_the_steps_of_each_stage(tmp_path: Path) -> None:
    sets = model_of(tmp_path).data
    device = model_of(tmp_path / "again").device
    stages = [
        ProfiledStepTime(MODEL, device, sets, host=HOST, part=part, noise_cv=0.1)
        for part in split_layers(MODEL, 3)
    ]
    pipeline = PipelineStepTime(stages, StageLink(128, 1e9))
    fast, slow = (
        run(pipeline, "vllm-v1", fast_forward=each, kind=PipelineReplica) for each in (True, False)
    )
    for name, column in fast.requests.items():
        assert (column == slow.requests[name]).all(), name
    usage = fast.replicas[0].step_time_usage
    assert usage is not None
    assert [stage["steps"] for stage in usage["stages"]] == [fast.replicas[0].iterations] * 3
    assert usage["steps"] == fast.replicas[0].iterations
    assert usage["ns"] == sum(fast.replicas[0].stage_busy_ns)
    counted = slow.replicas[0].step_time_usage
    assert counted is not None
    for key in ("steps", "ns", "outside_steps", "outside_ns"):
        assert usage[key] == counted[key], key


def staged(folder: Path, made: dict[str, Any], stages: int, **options: Any) -> Usage:
    """What a run on so many stages counted."""
    sets, device = model_of(folder, made, missing="roofline").data, load_device("h200")
    models = [
        ProfiledStepTime(MODEL, device, sets, host=HOST, part=part, missing="roofline", **options)
        for part in split_layers(MODEL, stages)
    ]
    pipeline = PipelineStepTime(models, StageLink(128, 1e15))
    result = run(pipeline, "vllm-v1", fast_forward=True, kind=PipelineReplica)
    return add_up([replica.step_time_usage or {} for replica in result.replicas])


def test_a_step_is_beyond_the_grid_if_any_stage_of_it_is(tmp_path: Path) -> None:
    """The sampler, of the last stage alone, was measured from two sequences on."""
    made = tables()
    for row in made["per_sequence"]:
        row["sequences"] += 999
    usage = staged(tmp_path, made, 3)
    sampling = usage.causes["per_sequence sampler of 512", "sequences"]
    assert sampling.steps > 0
    assert usage.outside_steps >= sampling.steps
    assert usage.outside_steps > 0.9 * usage.steps


def test_what_is_filled_is_the_same_share_on_any_number_of_stages(tmp_path: Path) -> None:
    made = {"linear": tables()["linear"]}
    shares = []
    for stages in (1, 3):
        usage = staged(tmp_path / str(stages), made, stages)
        shares.append(usage.filled_ns / usage.ns)
        assert usage.filled_ns < usage.ns
    # Steps are not the same ones: batches share the stages. A third would be far off.
    assert shares[1] == pytest.approx(shares[0], rel=0.25)


def test_what_one_stage_lacks_is_told_of_the_whole(tmp_path: Path) -> None:
    made = {name: rows for name, rows in tables().items() if name != "per_sequence"}
    sets = model_of(tmp_path, made, missing="roofline").data
    stages = [
        ProfiledStepTime(MODEL, load_device("h200"), sets, part=part, missing="roofline")
        for part in split_layers(MODEL, 2)
    ]
    origin = PipelineStepTime(stages, StageLink(128, 1e9)).describe().origin
    assert origin.count("filled from roofline: linear 512 x 64 (bf16), per_sequence sampler") == 1
    assert origin.endswith("; sum of 2 pipeline stages")
