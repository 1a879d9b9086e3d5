"""``tables_of`` and ``efficiencies`` in a config: another device's measurements for this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments import cluster
from experiments.config import load
from kernels_profile.table import Meta, write_meta, write_table
from sim.errors import ConfigError
from sim.step_time import StepWork

BASE: dict[str, Any] = {
    "workload": {"preset": "sharegpt-like", "requests": 1},
    "model": "llama-2-7b",
    "device": "h200",
    "policy": "vllm-v1",
}


@pytest.fixture
def tables(tmp_path: Path) -> str:
    """A data set of an H100 with one table."""
    write_meta(tmp_path / "h100", Meta("h100-sxm", "a test"))
    point = {"op": "sampler", "dtype": "bf16", "vocab": 32000, "hidden": 4096}
    rows = [{**point, "sequences": n, "time_us": 20.0} for n in (1, 256)]
    write_table(tmp_path / "h100", "per_sequence", rows)
    return str(tmp_path)


def built(step_time: dict[str, Any]) -> cluster.Built:
    plan = load({**BASE, "step_time": step_time})
    return cluster.build(plan.variants[0], plan.folder)


def test_tables_of_another_device_are_scaled_where_a_config_says_so(tables: str) -> None:
    profile = {"model": "profile", "data": tables, "missing": "roofline", "tables_of": "h100-sxm"}
    (_, note, *_) = built(profile).notes
    assert "measured tables of h100-sxm, scaled by data sheet to h200: a test" in note


def test_without_it_the_message_says_that_there_is_such_an_option(tables: str) -> None:
    with pytest.raises(
        ConfigError, match=r"no data set of h200.*scale another device's: tables_of"
    ):
        built({"model": "profile", "data": tables})


def test_a_lender_that_is_no_device_is_refused(tables: str) -> None:
    profile = {"model": "profile", "data": tables, "missing": "roofline", "tables_of": "h10"}
    with pytest.raises(ConfigError, match=r"step_time.tables_of: device: h10 has no data sheet"):
        built(profile)


def test_the_roofline_takes_another_devices_efficiencies() -> None:
    own, other = (
        built({"model": "roofline", **more}).cluster.entry.replicas[0].step_time
        for more in ({}, {"efficiencies": "b200"})
    )
    work = StepWork((), 8, 8000)
    assert own.step_ns(work, 0) != other.step_ns(work, 0)
    assert "data sheet only: h200 with the efficiencies of b200" in other.describe().origin
