"""From a config's `cost` to what turns a run into money and energy (`sim.cost.Rates`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from experiments.cluster import POOL_NAMES, Where, plain_where, pools_of
from experiments.explain import placed
from experiments.schema import Cost, Experiment, Pool, PowerLevels
from sim.cost import PoolRates, Power, Rates, TokenPrices
from sim.errors import ConfigError
from sim.prices import Price, PriceSheet, load_prices
from sim.specs import load_device

_Each = TypeVar("_Each")


def rates_of(experiment: Experiment, where: Where = plain_where) -> Rates | None:
    """Prices and power of all pools; None where a config has no `cost`.

    Args:
        experiment: Resolved.
        where: Says file and key of a path.

    Raises:
        ConfigError: One line: a device without a price where money is asked for, or without power
            where energy is; an unknown sheet or device; half of what belongs together.
    """
    cost = experiment.cost
    if cost is None:
        return None
    tokens = _tokens(cost, where)
    priced = cost.sheet is not None or bool(cost.price_per_gpu_hour) or tokens is not None
    if not priced and not cost.power:
        raise ConfigError(
            f"{where('cost')}: asks for nothing; give a sheet (phasewise list prices), "
            "price_per_gpu_hour or power"
        )
    prices = _prices(cost, where) if priced else {}
    power = _by_device(cost.power, where, "power")
    pools = {}
    for role, pool in pools_of(experiment).items():
        device = load_device(pool.device).name
        price = _price(device, prices, cost, where) if priced else None
        levels = _power(device, role, pool, power, where) if power else None
        pools[POOL_NAMES[role]] = PoolRates(device, price, levels)
    return Rates(pools, tokens)


def sources_of(experiment: Experiment) -> list[str]:
    """Where the prices and levels of a run come from, one sentence each; empty without `cost`."""
    cost, rates = experiment.cost, rates_of(experiment)
    if cost is None or rates is None:
        return []
    devices = sorted({pool.device for pool in rates.pools.values()})
    said = []
    if any(pool.usd_per_gpu_hour is not None for pool in rates.pools.values()):
        prices = _prices(cost, plain_where)
        said = [_said(device, prices[device]) for device in devices]
    if any(pool.power is not None for pool in rates.pools.values()):
        said.append(f"power of {', '.join(devices)}: as the config gives it.")
    return said


def _said(device: str, price: Price) -> str:
    day = f", {price.as_of}" if price.as_of else ""
    return (
        f"price of {device}: {price.usd_per_gpu_hour:g} USD per GPU and hour ({price.source}{day})."
    )


def _tokens(cost: Cost, where: Where) -> TokenPrices | None:
    given = cost.input_price_per_million, cost.output_price_per_million
    if given == (None, None):
        return None
    into, out = given
    if into is None or out is None:
        missing, there = ("input", "output") if into is None else ("output", "input")
        raise ConfigError(
            f"{where('cost', f'{there}_price_per_million')}: there is no "
            f"{missing}_price_per_million; give both (0 if such tokens are free)"
        )
    return TokenPrices(into, out)


def _prices(cost: Cost, where: Where) -> Mapping[str, Price]:
    """By the name of the device; those of the config before those of its sheet."""
    own = _by_device(cost.price_per_gpu_hour, where, "price_per_gpu_hour")
    given = {device: Price(usd, "as the config gives it") for device, usd in own.items()}
    return {**({} if cost.sheet is None else _sheet(cost.sheet, where).prices), **given}


def _sheet(name: str, where: Where) -> PriceSheet:
    try:
        return load_prices(name)
    except ConfigError as error:
        raise ConfigError(placed(where("cost", "sheet"), error)) from None


def _by_device(values: Mapping[str, _Each], where: Where, key: str) -> Mapping[str, _Each]:
    """Under the names of data sheets, of which there may be aliases."""
    named: dict[str, _Each] = {}
    for device, value in values.items():
        try:
            name = load_device(device).name
        except ConfigError as error:
            reason = str(error).removeprefix("device: ")
            raise ConfigError(f"{where('cost', key, device)}: {reason}") from None
        if name in named:
            raise ConfigError(f"{where('cost', key, device)}: {name} is there twice")
        named[name] = value
    return named


def _price(device: str, prices: Mapping[str, Price], cost: Cost, where: Where) -> float:
    if device in prices:
        return prices[device].usd_per_gpu_hour
    if cost.sheet is None:
        raise ConfigError(
            f"{where('cost', 'price_per_gpu_hour')}: has no price of {device}; give "
            f"{{{device}: ...}} in US dollars, or a sheet (phasewise list prices)"
        )
    raise ConfigError(
        f"{where('cost', 'sheet')}: {cost.sheet}: has no price of {device}, only of "
        f"{_listed(prices)}; give price_per_gpu_hour: {{{device}: ...}}"
    )


def _power(
    device: str, role: str, pool: Pool, power: Mapping[str, PowerLevels], where: Where
) -> Power:
    if device not in power:
        raise ConfigError(
            f"{where('cost', 'power')}: has no levels of {device}, only of {_listed(power)}; give "
            f"{{{device}: {{idle_w: ..., prefill_w: ..., decode_w: ...}}}} in watts"
        )
    if pool.pipeline_parallel > 1:
        raise ConfigError(
            f"{where('pools', role, 'pipeline_parallel')}: {pool.pipeline_parallel}: the energy of "
            "a pipeline is not modelled; try 1, or leave cost.power out"
        )
    levels, limit_w = power[device], load_device(device).power_w
    for key, watts in levels.model_dump().items():
        if watts > limit_w:
            raise ConfigError(
                f"{where('cost', 'power', device, key)}: {watts:g}: is over the power limit of the "
                f"board, {limit_w:g} W"
            )
    return Power(**levels.model_dump())


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
