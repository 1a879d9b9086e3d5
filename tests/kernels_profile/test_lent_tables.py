"""Tables of another device, scaled by what the two data sheets say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.table import DataSet, Meta, write_meta, write_table
from sim.specs import DeviceSpec, load_device, load_model
from sim.step_time import StepWork

MODEL, LENDER = load_model("llama-2-7b"), load_device("h100-sxm")
DECODE, PREFILL = StepWork((), 4, 4 * 2000), StepWork([(4096, 0)])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Some matrix products and decode attention of an H100, the latter slow."""
    folder: Path = tmp_path_factory.mktemp("h100")
    write_meta(folder, Meta("h100-sxm", "a test"))
    linear = [
        {"dtype": "bf16", "n": n, "k": k, "tokens": tokens, "time_us": us}
        for n, k in ((3 * 4096, 4096), (4096, 4096), (2 * 11008, 4096), (4096, 11008))
        for tokens, us in ((1, 50.0), (8, 50.0), (4096, 900.0))
    ]
    decode = [
        {"kv_dtype": "bf16", "heads": 32, "kv_heads": 32, "head_dim": 128, "batch": batch,
         "context": context, "skew": 0.0, "time_us": 10 + batch * context / 10}
        for batch in (1, 8) for context in (1, 4096)
    ]  # fmt: skip
    write_table(folder, "linear", linear)
    write_table(folder, "attention_decode", decode)
    return DataSet(folder)


def model(data: DataSet, device: DeviceSpec) -> ProfiledStepTime:
    return ProfiledStepTime(MODEL, device, [data], missing="roofline", lender=LENDER)


def test_a_device_lends_itself_its_own_tables_as_they_are(data: DataSet) -> None:
    own = ProfiledStepTime(MODEL, LENDER, [data], missing="roofline")
    for work in (DECODE, PREFILL):
        assert model(data, LENDER).step_ns(work, 0) == own.step_ns(work, 0)


def test_more_bandwidth_shortens_what_memory_bounds_and_not_what_computes(data: DataSet) -> None:
    wide = replace(LENDER, name="h200", memory_bytes_per_s=2 * LENDER.memory_bytes_per_s)
    base, wider = model(data, LENDER), model(data, wide)
    decode = wider.step_ns(DECODE, 0) / base.step_ns(DECODE, 0)
    prefill = wider.step_ns(PREFILL, 0) / base.step_ns(PREFILL, 0)
    assert 0.5 < decode < 0.7
    assert 0.9 < prefill < 1


def test_a_run_of_steps_is_its_single_steps(data: DataSet) -> None:
    lent = model(data, load_device("h200"))
    singly = [lent.step_ns(StepWork((), 4, 8000 + 4 * i), i) for i in range(40)]
    assert list(lent.steps_ns(DECODE, 40, 0)) == singly


def test_the_summary_says_whose_tables_they_are(data: DataSet) -> None:
    origin = model(data, load_device("h200")).describe().origin
    assert "measured tables of h100-sxm, scaled by data sheet to h200: a test" in origin
