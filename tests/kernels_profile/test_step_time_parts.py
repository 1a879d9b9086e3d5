"""Steps that never take place, which attribution asks for: not refused, without noise or host."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies import POLICIES, ROUTERS
from sim.attribution import Alone
from sim.cluster import Cluster
from sim.errors import ProfileError
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import Record, SimulationResult
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.step_time import StepWork, bound, varies
from tests.attributed import assert_adds_up, assert_alike
from tests.kernels_profile.made_up import model_of


def test_tables_that_refuse_what_they_lack_are_asked_about_steps_alone(tmp_path: Path) -> None:
    strict = model_of(tmp_path, outside="error", noise_cv=0.0)
    far = StepWork((), 1, 100_000)
    with pytest.raises(ProfileError):
        strict.step_ns(far, 0)
    alone = Alone(strict)
    assert alone.quiet.step_ns(far, 0) > 0
    work = StepWork((), 1, 65)
    gpu, host = alone.sums(64, 1)
    assert gpu + host == strict.step_ns(work, 0)
    assert host == pytest.approx(12_000, abs=1)  # 10 us a step and 2 a request


@pytest.mark.parametrize("cv", [0.0, 0.2])
def test_noise_is_told_apart_with_and_without_fast_forward(tmp_path: Path, cv: float) -> None:
    model = model_of(tmp_path, noise_cv=cv)
    assert varies(bound(model, 0, 0), model) == (cv > 0)
    runs = [_run(model, fast_forward=fast_forward) for fast_forward in (True, False)]
    for got in runs:
        assert_adds_up(got)
        assert bool(got.requests["e2e_noise_ns"].any()) == (cv > 0)
        assert got.requests["e2e_decode_host_ns"].all()
    assert_alike(*runs)


def _run(model: object, *, fast_forward: bool) -> SimulationResult:
    spec = ReplicaSpec(POLICIES["sarathi"](budget_tokens=64), 500, model)  # type: ignore[arg-type]
    cluster = Cluster(PoolSpec("replica", [spec], ROUTERS["round-robin"]()))
    arrivals = [Arrival(200_000 * i, 30 + 17 * i, 5 + i, 5 + i, i) for i in range(12)]
    record = Record(attribution=True)
    return simulate(arrivals, cluster, fast_forward=fast_forward, check=True, record=record)
