"""Money and energy of a run, worked by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from sim import prices
from sim.cost import PoolRates, Power, Rates, TokenPrices, cost_of_run
from sim.errors import ConfigError
from sim.records import FAILED, FINISHED, REJECTED
from sim.specs import device_names

HOUR = 3_600_000_000_000
SPAN = (HOUR, 3 * HOUR)  # two hours


@dataclass
class Replica:
    pool: str
    gpus: int
    busy_ns: int
    prefill_busy_ns: int
    name: str = "x"
    total_blocks: int = 1
    block_tokens: int = 16
    iterations: int = 1
    iterations_by_rows: tuple[tuple[int, int], ...] = ()
    lost_blocks: int | None = None
    joined_ns: int = 0
    left_ns: int = -1


REPLICAS = [
    Replica("prefill", 1, HOUR, HOUR),
    Replica("prefill", 1, HOUR // 2, HOUR // 2),
    Replica("decode", 2, HOUR, 0),
]
REQUESTS = {
    "state": np.array([FINISHED, FINISHED, REJECTED, FAILED]),
    "prompt_tokens": np.array([1000, 3000, 9999, 500]),
    "emitted_tokens": np.array([100, 300, 0, 50]),
}
RATES = Rates(
    {
        "prefill": PoolRates("a", 3.0, Power(100, 700, 300)),
        "decode": PoolRates("b", 1.5, Power(50, 400, 250)),
    },
    TokenPrices(1000.0, 10_000.0),
)


def test_money_of_the_hand_worked_run() -> None:
    whole, pools = cost_of_run(REQUESTS, REPLICAS, RATES, SPAN)

    assert (pools["prefill"]["gpu_hours"], pools["decode"]["gpu_hours"]) == (4, 4)
    assert (pools["prefill"]["cost"], pools["decode"]["cost"], whole["cost"]) == (12, 6, 18)
    assert (pools["prefill"]["busy_cost"], pools["decode"]["busy_cost"]) == (1.5 * 3, 2 * 1.5)
    assert whole["cost_per_request"] == 18 / 2
    assert whole["cost_per_million_input_tokens"] == pytest.approx(18e6 / 4500)
    assert whole["cost_per_million_output_tokens"] == pytest.approx(18e6 / 450)
    assert whole["cost_per_million_tokens"] == pytest.approx(18e6 / 4950)
    assert whole["revenue"] == pytest.approx(4500 / 1e6 * 1000 + 450 / 1e6 * 10_000)
    assert whole["margin"] == pytest.approx(4.5 + 4.5 - 18)


def test_energy_of_the_hand_worked_run() -> None:
    whole, pools = cost_of_run(REQUESTS, REPLICAS, RATES, SPAN)

    prefill_wh = (700 * 1 + 100 * 1) + (700 * 0.5 + 100 * 1.5)
    decode_wh = 2 * (250 * 1 + 50 * 1)
    assert pools["prefill"]["energy"] == pytest.approx(prefill_wh / 1000)
    assert pools["decode"]["energy"] == pytest.approx(decode_wh / 1000)
    assert whole["energy_per_output_token"] == pytest.approx((prefill_wh + decode_wh) * 3600 / 450)


def test_pools_add_up_to_the_whole() -> None:
    whole, pools = cost_of_run(REQUESTS, REPLICAS, RATES, SPAN)

    for key in pools["decode"]:
        assert whole[key] == pytest.approx(pools["prefill"][key] + pools["decode"][key])


def test_a_last_step_that_ends_after_the_span_draws_no_negative_idle_power() -> None:
    assert Power(100, 700, 300).joules(2_000_000_000, 0, 1_000_000_000) == 2 * 300


def test_without_tokens_or_requests_shares_are_undefined() -> None:
    none = {name: column[2:3] for name, column in REQUESTS.items()}  # the rejected one
    whole, _ = cost_of_run(none, REPLICAS, RATES, SPAN)

    assert whole["cost"] == 18
    assert whole["revenue"] == 0
    assert all(
        math.isnan(whole[key])
        for key in ("cost_per_request", "cost_per_million_tokens", "energy_per_output_token")
    )


def test_what_was_not_asked_for_is_absent() -> None:
    only_power = Rates({"prefill": PoolRates("a", None, Power(1, 1, 1))})
    whole, _ = cost_of_run(REQUESTS, REPLICAS[:2], only_power, SPAN)

    assert set(whole) == {"gpu_hours", "energy", "energy_per_output_token"}


@pytest.mark.parametrize("name", prices.price_sheet_names())
def test_every_price_is_of_a_known_device_and_says_where_it_is_from(name: str) -> None:
    sheet = prices.load_prices(name)

    assert set(sheet.prices) <= set(device_names())
    assert sheet.prices
    for price in sheet.prices.values():
        assert 0 < price.usd_per_gpu_hour < 100
        assert price.source
        assert price.as_of.startswith("20")


def test_an_unknown_price_sheet_is_refused_with_the_nearest() -> None:
    assert prices.load_prices("RunPod_Community").name == "runpod-community"
    with pytest.raises(ConfigError, match="runpot is no price sheet; did you mean runpod"):
        prices.load_prices("runpot")
