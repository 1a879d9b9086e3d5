"""A finished profile has every operator that step times from tables ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kernels_profile.links import Collectives
from kernels_profile.profiler.effort import Effort
from kernels_profile.profiler.grids import FULL
from kernels_profile.profiler.plan import make_plan
from kernels_profile.profiler.shapes import Shard
from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.table import DataSet, Meta, write_meta, write_table
from sim.errors import ProfileError
from sim.specs import load_device, load_model
from sim.step_time import StepWork

H200 = load_device("h200")


def profile_by_estimate(folder: Path, name: str, tp: int) -> DataSet:
    """What the profiler would write, with its estimates for times."""
    shard = Shard(load_model(name), tp)
    plan = make_plan([shard], H200, ["bf16", "fp8"], FULL, Effort())
    rows: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for point in plan.points:
        times: Mapping[str, Any] = {"time_us": point.estimate_us}
        if point.table == "ceilings":
            times = {"value": 1.0, "unit": "bytes/s"}
        rows[point.table].append({**point.key, **times})
    for table, points in rows.items():
        write_table(folder, table, points)
    write_meta(folder, Meta("h200", "estimates", "own"))
    return DataSet(folder)


@pytest.mark.parametrize(
    ("model", "tp", "precision"),
    [
        ("llama-3.1-8b", 1, "bf16"),
        ("llama-3.1-8b", 1, "fp8"),
        ("qwen3-32b", 4, "bf16"),
        ("mixtral-8x7b", 2, "bf16"),
    ],
)
def test_no_operator_is_missing(model: str, tp: int, precision: str, tmp_path: Path) -> None:
    step = ProfiledStepTime(
        load_model(model),
        H200,
        [profile_by_estimate(tmp_path, model, tp)],
        precision,
        tensor_parallel=tp,
        missing="error",
        outside="error",
        noise_cv=0.0,
        collectives=Collectives(bandwidth_bytes_per_s=1e30),
    )
    for work in (
        StepWork([(512, 0)], 0, 0),
        StepWork([(2048, 4096)], 0, 0),
        StepWork([], 64, 64 * 1000),
        StepWork([(512, 0)], 32, 32 * 1024),
    ):
        assert step.step_ns(work, 0) > 0


def test_it_would_be_noticed(tmp_path: Path) -> None:
    data = profile_by_estimate(tmp_path, "llama-3.1-8b", 1)
    (tmp_path / "elementwise.csv").unlink()
    with pytest.raises(ProfileError, match="elementwise"):
        ProfiledStepTime(load_model("llama-3.1-8b"), H200, [data], noise_cv=0.0)
