"""Price sheets: what a provider asks for one GPU and hour, on demand.

The sheets lie in `specs/prices/*.yaml`. Each price has its source and the day on which the provider
asked it; a device without a price that we can show is not in the sheet. Prices change: a config can
give its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sim.errors import ConfigError, nearest
from sim.specs import find_sheet, sheet_key, sheet_names


@dataclass(frozen=True)
class Price:
    """One GPU for one hour.

    Attributes:
        usd_per_gpu_hour: US dollars, without tax.
        source: Publication, and how the price of one GPU follows from it; or who gave it.
        as_of: Day on which the provider asked it, as in 2026-11-09; empty if a user gave it.
    """

    usd_per_gpu_hour: float
    source: str
    as_of: str = ""


@dataclass(frozen=True)
class PriceSheet:
    """What one provider asks.

    Attributes:
        name: Name in a config.
        title: Provider, plan and region in one line.
        provider: Who sells.
        region: Where the prices hold.
        prices: Device name to its price.
    """

    name: str
    title: str
    provider: str
    region: str
    prices: Mapping[str, Price]


def price_sheet_names() -> list[str]:
    """Names of the price sheets, sorted."""
    return sheet_names("prices")


def load_prices(name: str) -> PriceSheet:
    """A price sheet by name; case and underscores do not matter.

    Raises:
        ConfigError: No such sheet.
    """
    wanted = sheet_key(name)
    sheet = find_sheet("prices", wanted)
    if sheet is None:
        raise ConfigError(f"{name} is no price sheet{nearest(wanted, price_sheet_names())}")
    prices = {
        device: Price(float(each["usd_per_gpu_hour"]), sheet["sources"][device], str(each["as_of"]))
        for device, each in sheet["prices"].items()
    }
    return PriceSheet(
        name=sheet["name"],
        title=sheet["title"],
        provider=sheet["provider"],
        region=sheet["region"],
        prices=MappingProxyType(prices),
    )
