"""What a sweep runs, as its config and the command line say it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.sweep.axes import Listed, Range, read_axis
from experiments.sweep.command import ask
from experiments.sweep.definition import (
    SLO_SCALES,
    Definition,
    read_definition,
    split_settings,
)
from experiments.sweep.draws import draw
from sim.errors import ConfigError


def definition(given: Any, *settings: str) -> Definition:
    return read_definition(given, split_settings(settings)[1], "c.yaml")


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"from": 2, "to": 8, "steps": 4}, (2, 4.0, 6.0, 8)),
        ({"from": 1, "to": 100, "steps": 3, "scale": "log"}, (1, 10.0, 100)),
        ({"from": 1, "to": 4, "steps": 4, "scale": "log"}, (1, 1.5874, 2.51984, 4)),
        ({"from": 1, "to": 4, "steps": 7, "whole": True}, (1, 2, 3, 4)),  # 1.5 is 2: each once
        ({"from": 1, "to": 64, "steps": 4, "scale": "log", "whole": True}, (1, 4, 16, 64)),
        (["sarathi", "orca"], ("sarathi", "orca")),
    ],
)
def test_the_steps_of_an_axis(given: Any, values: tuple[Any, ...]) -> None:
    axis = read_axis(given, "c.yaml: sweep.grid.key", drawn=False)

    assert axis.steps() == values
    if isinstance(given, dict) and given.get("whole"):
        assert all(isinstance(value, int) for value in axis.steps())


def test_whole_numbers_are_drawn_with_equal_probability() -> None:
    axis = Range(3, 6, None, log=False, whole=True)

    drawn = [axis.at((k + 0.5) / 4000) for k in range(4000)]

    assert {value: drawn.count(value) for value in set(drawn)} == {
        3: 1000,
        4: 1000,
        5: 1000,
        6: 1000,
    }
    logarithmic = Range(1, 3, None, log=True, whole=True)
    ones = sum(logarithmic.at((k + 0.5) / 4000) == 1 for k in range(4000))
    assert ones == 2000  # log 2 - log 1 is half of log 4 - log 1


def test_shares_of_a_list_and_of_a_range() -> None:
    assert [Listed(("a", "b", "c")).at(share) for share in (0.0, 0.33, 0.34, 0.999)] == list("aabc")
    assert Range(1, 100, None, log=True, whole=False).at(0.5) == 10.0
    assert Range(0, 1, None, log=False, whole=False).at(1 / 3) == 0.333333


def test_parts_are_combined_and_the_last_changes_fastest() -> None:
    made = definition(
        {
            "list": [{"device": "h100-sxm", "replicas": 1}, {"device": "a100-sxm-80gb"}],
            "grid": {"seed": [1, 2], "replicas_x": [3]},
        }
    )

    assert made.settings() == [
        {"seed": 1, "replicas_x": 3, "device": "h100-sxm", "replicas": 1},
        {"seed": 1, "replicas_x": 3, "device": "a100-sxm-80gb"},
        {"seed": 2, "replicas_x": 3, "device": "h100-sxm", "replicas": 1},
        {"seed": 2, "replicas_x": 3, "device": "a100-sxm-80gb"},
    ]
    assert made.slo_scales == SLO_SCALES


def test_draws_depend_on_their_seed_alone() -> None:
    over = {"max_num_seqs": {"from": 1, "to": 256, "scale": "log", "whole": True}, "seed": [1, 2]}
    for method in ("random", "sobol"):
        first = definition({method: {"points": 8, "over": over}}).settings()
        again = definition({method: {"points": 8, "seed": 0, "over": over}}).settings()
        other = definition({method: {"points": 8, "seed": 1, "over": over}}).settings()
        assert first == again
        assert first != other
        assert all(1 <= each["max_num_seqs"] <= 256 for each in first)


def test_sobol_points_are_balanced_and_random_ones_are_not() -> None:
    even = draw("sobol", 64, 3, seed=5)
    uneven = draw("random", 64, 3, seed=5)

    # Of 2^6 points of a (t, 6, s) net of base 2, each eighth of each axis has exactly 2^3.
    counts = [np.bincount((even[:, k] * 8).astype(int), minlength=8).tolist() for k in range(3)]
    assert counts == [[8] * 8] * 3
    assert np.bincount((uneven[:, 0] * 8).astype(int), minlength=8).tolist() != [8] * 8


def test_a_number_of_sobol_points_that_is_no_power_of_two_is_told() -> None:
    over = {"seed": {"from": 1, "to": 9, "whole": True}}

    assert definition({"sobol": {"points": 8, "over": over}}).notes == ()
    assert definition({"sobol": {"points": 10, "over": over}}).notes == (
        "c.yaml: sweep.sobol.points: 10 is no power of 2, with which the points are spread best.",
    )


def test_set_with_several_values_is_an_axis_and_with_one_an_override() -> None:
    fixed, axes = split_settings(
        [
            "replicas=2",
            "policy.budget_tokens=128,256",
            "workload.arrivals.rate_per_s={from: 1, to: 3, steps: 3}",
            "policy={name: sarathi, budget_tokens: 64},orca",
            "workload.arrivals.window_s=[0, 10]",
        ]
    )

    assert fixed == ["replicas=2", "workload.arrivals.window_s=[0, 10]"]
    assert [(key, axis.steps()) for key, axis in axes] == [
        ("policy.budget_tokens", (128, 256)),
        ("workload.arrivals.rate_per_s", (1, 2.0, 3)),
        ("policy", ({"name": "sarathi", "budget_tokens": 64}, "orca")),
    ]


def test_an_axis_of_the_command_line_replaces_that_of_the_config() -> None:
    made = definition({"grid": {"seed": [1, 2], "replicas": [1]}}, "seed=7,8,9")

    assert [each["seed"] for each in made.settings()] == [7, 8, 9]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "nothing to sweep; give the config a key sweep"),
        ({}, "nothing to sweep"),
        ([1], "sweep: [1]: expected keys of grid, list"),
        ({"gird": {}}, "sweep.gird: sweep has no such key; try grid"),
        ({"grid": {"seed": 3}}, "sweep.grid.seed: 3: expected a list of values, or {from"),
        ({"grid": {"seed": []}}, "sweep.grid.seed: []: expected a list"),
        ({"grid": {"seed": [1, 2, 1]}}, "sweep.grid.seed[2]: 1: is given twice"),
        ({"grid": {"seed": {"from": 1, "to": 2}}}, "sweep.grid.seed.steps: is required"),
        ({"grid": {"seed": {"form": 1}}}, "seed.form: a range has no such key; try from"),
        ({"grid": {"seed": {"from": 2, "to": 1, "steps": 2}}}, "expected a larger number in to"),
        ({"grid": {"seed": {"from": 0, "to": 1, "steps": 2, "scale": "log"}}}, "more than 0"),
        ({"grid": {"seed": {"from": 0, "to": 1, "steps": 2, "scale": "lin"}}}, "try linear"),
        ({"grid": {"seed": {"from": 0.5, "to": 1, "steps": 2, "whole": True}}}, "a whole num"),
        ({"grid": {"seed": {"from": 0, "to": 1, "steps": 1}}}, "seed.steps: 1: expected a whole"),
        ({"grid": {"seed": {"from": "a", "to": 1, "steps": 2}}}, "seed.from: a: expected a number"),
        ({"grid": {"compare": [[]]}}, "sweep.grid.compare: belongs to the whole file"),
        ({"grid": {"a b": [1]}}, "sweep.grid.a b: expected a dotted key"),
        ({"list": [{"seed": 1}], "grid": {"seed": [1]}}, "sweep.list.seed: is in grid too"),
        ({"list": [{}]}, "sweep.list[0]: {}: expected keys with values"),
        ({"random": {"points": 0, "over": {"seed": [1]}}}, "random.points: 0: expected a whole"),
        ({"random": {"points": 4}}, "sweep.random.over: null: expected keys"),
        ({"random": {"point": 4}}, "sweep.random.point: no such key; try points"),
        (
            {"random": {"points": 4, "over": {"seed": {"from": 1, "to": 2, "steps": 3}}}},
            "seed.steps: a range has no such key",
        ),
        ({"grid": {"seed": [1]}, "slo_scales": [0]}, "sweep.slo_scales[0]: 0: expected 1e-6"),
        ({"grid": {"seed": [1]}, "quantities": ["ttft_s.p101"]}, "no statistic 'p101'"),
        ({"grid": {"seed": {"from": 1, "to": 9, "steps": 90000},
                   "replicas": {"from": 1, "to": 9, "steps": 90000}}}, "points; expected at most"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        definition(given)

    assert message in str(caught.value)
    assert str(caught.value).startswith("c.yaml: sweep")
    assert "\n" not in str(caught.value)


def test_one_value_set_for_a_swept_key_is_the_only_one_of_its_axis() -> None:
    config = {
        "workload": {"preset": "azure-conv-2023", "requests": 5, "max_tokens": 1024},
        "model": "llama-3.1-8b",
        "max_model_len": 16384,
        "step_time": {"model": "linear", "base_s": 0.01},
        "policy": "sarathi",
        "sweep": {
            "grid": {"policy.budget_tokens": [128, 512], "replicas": [1, 2]},
            "list": [{"seed": 1}],
        },
    }

    planned = ask(config, ["policy.budget_tokens=64"]).planned

    assert [each["policy.budget_tokens"] for each in planned.settings.values()] == [64, 64]
    with pytest.raises(ConfigError, match=r"--set seed=3: .* sweeps seed under sweep\.list"):
        ask(config, ["seed=3"])


def test_steps_that_fall_on_one_number_are_told() -> None:
    few = {"from": 64, "to": 65, "steps": 5, "whole": True}
    found = definition({"grid": {"kv.num_blocks": few}})
    assert len(found.settings()) == 2
    assert found.notes == (
        "c.yaml: sweep.grid.kv.num_blocks: 5 steps from 64 to 65 are 2 different whole numbers.",
    )
    assert definition({"grid": {"kv.num_blocks": {**few, "steps": 2}}}).notes == ()
