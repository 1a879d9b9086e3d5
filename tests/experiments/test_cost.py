"""`cost` in a config: what is computed, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments.check_answer import check_answer
from experiments.config import load
from experiments.json_schema import json_schema
from experiments.results import run_plan
from experiments.tables import compare
from experiments.variant import run_variant
from sim.errors import ConfigError

LEVELS = {"idle_w": 100, "prefill_w": 600, "decode_w": 300}
BASE: dict[str, Any] = {
    "workload": {
        "preset": "azure-conv-2023",
        "requests": 60,
        "max_tokens": 1024,
        "arrivals": {"process": "poisson", "rate_per_s": 6},
    },
    "model": "llama-3.1-8b",
    "policy": "sarathi",
    "step_time": {"model": "roofline"},
}
POOLS = {
    "prefill": {"replicas": 1, "device": "a100"},
    "decode": {"replicas": 2, "device": "h200"},
    "transfer": {"bandwidth_bytes_per_s": 5e10},
}


def run(**changes: Any) -> Any:
    plan = load({**BASE, **changes})
    return run_variant(plan.variants[0], plan.folder)


def refused(**changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load({**BASE, **changes})
    return str(caught.value)


def test_without_cost_there_is_none() -> None:
    summary = run().summary

    assert "pools" not in summary
    assert not any("usd" in name or "energy" in name for name in summary["overall"])


def test_pools_of_different_devices_have_their_own_prices() -> None:
    power = {"a100": {**LEVELS, "prefill_w": 390}, "h200": LEVELS}
    made = run(pools=POOLS, cost={"sheet": "runpod", "power": power})
    prefill, decode = made.summary["pools"]["prefill"], made.summary["pools"]["decode"]
    overall = made.summary["overall"]
    span_hours = (
        int(made.requests["end_ns"].max()) - int(made.requests["arrival_ns"].min())
    ) / 3.6e12

    assert (prefill["device"], decode["device"]) == ("a100-sxm-80gb", "h200")
    assert prefill["cost_usd"] == pytest.approx(1.79 * span_hours)
    assert decode["cost_usd"] == pytest.approx(4.59 * 2 * span_hours)
    assert overall["cost_usd"] == pytest.approx(prefill["cost_usd"] + decode["cost_usd"])
    assert overall["energy_kWh"] == pytest.approx(prefill["energy_kWh"] + decode["energy_kWh"])
    assert any("price of h200: 4.59 USD" in note and "2026-10-07" in note for note in made.notes)


def test_energy_follows_from_the_log_of_steps_with_fast_forward_on_and_off() -> None:
    cost = {"power": {"h100": LEVELS}}
    made = [run(cost=cost, fast_forward=fast, check=True) for fast in (True, False)]
    for each in made:
        steps = each.steps
        span = int(each.requests["end_ns"].max()) - int(each.requests["arrival_ns"].min())
        length = steps["end_ns"] - steps["start_ns"]
        prefill = int(length[np.asarray(steps["prefill_tokens"] > 0)].sum())
        decode = int(length.sum()) - prefill
        joules = (600 * prefill + 300 * decode + 100 * (span - prefill - decode)) / 1e9
        assert 0 < prefill < decode
        assert each.replicas[0].prefill_busy_ns == prefill
        assert each.summary["overall"]["energy_kWh"] == pytest.approx(joules / 3.6e6)
    assert made[0].replicas[0].prefill_busy_ns == made[1].replicas[0].prefill_busy_ns
    assert made[0].summary["overall"] == made[1].summary["overall"]


def test_a_pipeline_counts_time_with_prompts_once() -> None:
    replica = run(pipeline_parallel=2, cost={"sheet": "aws"}).replicas[0]

    assert 0 < replica.prefill_busy_ns <= replica.busy_ns


def test_prices_of_the_config_come_before_those_of_the_sheet_and_aliases_are_one() -> None:
    cost = {"sheet": "runpod", "price_per_gpu_hour": {"h100-80gb": 2.5}}
    made = run(cost=cost)

    assert made.summary["pools"]["replica"]["usd_per_gpu_hour"] == 2.5
    assert "price of h100-sxm: 2.5 USD per GPU and hour (as the config gives it)." in made.notes


def test_the_table_has_columns_of_money_and_energy_where_they_were_asked_for() -> None:
    tokens = {"input_price_per_million": 0.01, "output_price_per_million": 0.02}
    made = run(cost={"sheet": "aws", **tokens, "power": {"h100": LEVELS}})
    keys = [column.key for column in compare([made]).columns]
    plain = [column.key for column in compare([run()]).columns]

    money = ["cost_usd", "cost_per_million_output_tokens_usd", "margin_usd"]
    assert made.summary["overall"]["margin_usd"] < 0
    assert [key for key in keys if key not in plain] == [*money, "energy_per_output_token_J"]


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({}, "config: cost: asks for nothing; give a sheet"),
        ({"sheet": "runpot"}, "config: cost.sheet: runpot is no price sheet; did you mean runpod?"),
        ({"price_per_gpu_hour": {"h200": 3}}, "config: cost.price_per_gpu_hour: has no price of "),
        (
            {"price_per_gpu_hour": {"h1000": 3}},
            "config: cost.price_per_gpu_hour.h1000: h1000 has no data sheet",
        ),
        (
            {"price_per_gpu_hour": {"h100": 3, "h100-sxm": 2}},
            "config: cost.price_per_gpu_hour.h100-sxm: h100-sxm is there twice",
        ),
        (
            {"sheet": "aws", "input_price_per_million": 1},
            "config: cost.input_price_per_million: there is no output_price_per_million; give both",
        ),
        (
            {"input_price_per_million": 1, "output_price_per_million": 1},
            "config: cost.price_per_gpu_hour: has no price of h100-sxm",
        ),
        (
            {"power": {"h200": LEVELS}},
            "config: cost.power: has no levels of h100-sxm, only of h200",
        ),
        (
            {"power": {"h100": {**LEVELS, "prefill_w": 701}}},
            "config: cost.power.h100-sxm.prefill_w: 701: is over the power limit of the board, 700",
        ),
        ({"power": {"h100": {"idle_w": 100}}}, "config: cost.power.h100.prefill_w: is required"),
        ({"sheet": "aws", "currency": "EUR"}, "config: cost.currency: cost has no such option"),
    ],
)
def test_what_is_missing_or_makes_no_sense_is_one_line(cost: Any, message: str) -> None:
    assert refused(cost=cost).startswith(message)


def test_a_device_without_a_price_on_the_sheet_is_refused() -> None:
    assert refused(device="l4", cost={"sheet": "runpod"}) == (
        "config: cost.sheet: runpod: has no price of l4, only of a100-sxm-80gb, b200, h100-pcie, "
        "h100-sxm, h200; give price_per_gpu_hour: {l4: ...}"
    )


def test_energy_of_a_pipeline_is_refused() -> None:
    told = refused(pipeline_parallel=2, cost={"power": {"h100": LEVELS}})

    assert told.startswith("config: pipeline_parallel: 2: the energy of a pipeline is not modelled")


def test_editors_know_the_keys() -> None:
    cost = json_schema()["$defs"]["Cost"]["properties"]

    assert set(cost) >= {"sheet", "price_per_gpu_hour", "power"}
    assert all(key["description"] for key in cost.values())


def test_an_answer_may_name_the_parts_of_pools() -> None:
    cost = {"cost": {"price_per_gpu_hour": {"a100": 1, "h200": 2}}, "pools": POOLS, "label": "a"}
    share = "{a.pools.decode.cost_usd / a.cost_usd:.0%} of the cost is for decodes."
    results = run_plan(load({**BASE, **cost, "answer": share}))

    assert results.answer == "80% of the cost is for decodes."


@pytest.mark.parametrize(
    ("answer", "changes", "message"),
    [
        ("{a.pools.decode.margin_usd}", {}, "pools have no 'margin_usd'"),
        ("{a.pools.decode.ttft_s.mean}", {}, "pools have no 'ttft_s'"),
        ("{a.pools.decoder.cost_usd}", {}, "no pool 'decoder'; did you mean decode?"),
        ("{a.pools.decode.cost_usd}", {"cost": None}, "no pool 'decode'; they have numbers where"),
    ],
)
def test_an_answer_on_a_pool_or_number_that_is_not_there_is_refused(
    answer: str, changes: Any, message: str
) -> None:
    cost = {"price_per_gpu_hour": {"a100": 1, "h200": 2}}
    config = {**BASE, "cost": cost, "pools": POOLS, "label": "a", "answer": answer, **changes}
    with pytest.raises(ConfigError) as caught:
        check_answer(load(config))

    assert message in str(caught.value)
