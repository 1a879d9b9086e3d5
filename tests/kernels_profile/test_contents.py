"""What data sets hold, and for which models they suffice."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels_profile.contents import AXES, contents, findings, missing, serves
from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.table import OPERATORS, DataSet, write_table
from sim.errors import ProfileError
from tests.kernels_profile.made_up import DEVICE, MODEL, TOKENS, tables, without, written


def test_axes_are_keys_of_their_tables() -> None:
    for operator, axes in AXES.items():
        assert set(axes) <= set(OPERATORS[operator].sizes)


def test_tables_are_said_with_their_shapes_ranges_and_error(tmp_path: Path) -> None:
    made = tables((1,), cv=0.02)
    by_name = {table.operator: table for table in contents(DataSet(written(tmp_path, made)))}
    linear = by_name["linear"]
    assert (linear.points, linear.shapes) == (4 * len(TOKENS), 4)
    assert linear.words == {"dtype": ("bf16",)}
    assert linear.ranges == {"tokens": (1, 1024, len(TOKENS))}
    assert linear.error == pytest.approx(0, abs=1e-9)  # times of the made-up layers are straight
    assert linear.repeats
    prefill = by_name["attention_prefill"]
    assert prefill.error is not None
    assert prefill.error > 0.1  # and those of its attention are not


def test_no_repeats_are_no_noise(tmp_path: Path) -> None:
    assert not any(table.repeats for table in contents(DataSet(written(tmp_path, tables()))))


def test_what_suffices_can_be_simulated_and_what_lacks_cannot(tmp_path: Path) -> None:
    """The same operators as a step-time model asks for, without their grids being built."""
    made = without(tables((1, 2)), "collective", op="all_gather")
    sets = [DataSet(written(tmp_path, made))]
    found = serves(MODEL, DEVICE, sets)
    assert found == {"bf16": {
        1: [],
        2: ["collective all_gather of 2 GPUs"],
        4: missing(MODEL, DEVICE, sets, tensor_parallel=4) or [],
        8: missing(MODEL, DEVICE, sets, tensor_parallel=8) or [],
    }}  # fmt: skip
    ProfiledStepTime(MODEL, DEVICE, sets)
    for gpus in (2, 4, 8):
        with pytest.raises(ProfileError) as error:
            ProfiledStepTime(MODEL, DEVICE, sets, tensor_parallel=gpus)
        assert f"no table has {'; '.join(found['bf16'][gpus])} (looked in" in str(error.value)


def test_gpus_that_cannot_share_a_model_are_left_out(tmp_path: Path) -> None:
    sets = [DataSet(written(tmp_path, tables()))]
    assert missing(MODEL, DEVICE, sets, tensor_parallel=3) is None


def test_the_card_and_whole_steps_are_said(tmp_path: Path) -> None:
    folder = written(tmp_path, tables())
    assert findings(DataSet(folder)) == []
    write_table(folder, "ceilings", [{"what": "copy", "value": 4.1e12, "unit": "bytes/s"}])
    write_table(folder, "overhead", [{"what": "graph_replay", "size": 9, "time_us": 2.5}])
    step = {"model": "small", "kind": "decode", "tp": 1, "prefill_tokens": 0, "history": 0}
    times = [(1, 50.0, 40.0), (2, 60.0, 54.0), (4, 80.0, 80.0)]
    write_table(
        folder,
        "step",
        [
            {**step, "decodes": n, "context": 64, "time_us": us, "operators_us": operators}
            for n, us, operators in times
        ],
    )
    assert findings(DataSet(folder)) == [
        "ceilings: copy 4.1e+12 bytes/s",
        "overhead: graph_replay 2.5 us (9)",
        "small, tp 1: operators add up to 0.900 of 3 whole steps (median)",
    ]
