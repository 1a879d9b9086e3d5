"""Ready-made names: what `phasewise list` prints."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from experiments.names import brief
from sim.errors import ConfigError, closest


@dataclass(frozen=True)
class Entry:
    """One name.

    Attributes:
        name: As written in a config.
        about: One line.
        options: Its options with their defaults.
        sources: Where these come from, of a preset.
    """

    name: str
    about: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)


def entries(kind: str) -> list[Entry]:
    """All names of a kind, such as ``policies``.

    Raises:
        ConfigError: No such kind.
    """
    if kind not in KINDS:
        close = closest(kind, KINDS)
        hint = "" if close is None else f" (did you mean {close}?)"
        raise ConfigError(f"list: no kind {brief(kind)}{hint}; choose one of {', '.join(KINDS)}")
    return KINDS[kind]()


def _of_classes(registry: Mapping[str, Any]) -> list[Entry]:
    return [Entry(name, first_line(cls), _options(cls)) for name, cls in registry.items()]


def first_line(thing: Any) -> str:
    """What the docstring of a class or a function says first."""
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _options(cls: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(cls):
        return {}
    given = [field for field in dataclasses.fields(cls) if field.init]
    return {field.name: _default(field) for field in given}


def _default(field: dataclasses.Field[Any]) -> Any:
    """None where it has to be said; the name of a router within a router."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.metadata.get("name")


def _policies() -> list[Entry]:
    from policies import POLICIES

    return _of_classes(POLICIES)


def _routers() -> list[Entry]:
    from policies import ROUTERS

    return _of_classes(ROUTERS)


def _orders() -> list[Entry]:
    from policies import ORDERS

    return _of_classes(ORDERS)


def _predictors() -> list[Entry]:
    from policies import PREDICTORS

    return _of_classes(PREDICTORS)


def _autoscalers() -> list[Entry]:
    from policies import AUTOSCALERS

    return _of_classes(AUTOSCALERS)


def _role_switchers() -> list[Entry]:
    from policies import ROLE_SWITCHERS

    return _of_classes(ROLE_SWITCHERS)


def _migrators() -> list[Entry]:
    from policies import MIGRATORS

    return _of_classes(MIGRATORS)


def _devices() -> list[Entry]:
    from sim import specs

    sheets = [specs.load_device(name) for name in specs.device_names()]
    return [
        Entry(
            sheet.name,
            f"{sheet.title}: {sheet.memory_bytes / 2**30:.0f} GiB, "
            f"{sheet.memory_bytes_per_s / 1e12:.2f} TB/s, {sheet.bf16_flops / 1e12:.0f} TFLOP/s",
        )
        for sheet in sheets
    ]


def _prices() -> list[Entry]:
    from sim import prices

    sheets = [prices.load_prices(name) for name in prices.price_sheet_names()]
    return [
        Entry(
            sheet.name,
            f"{sheet.title}, US dollars per GPU and hour",
            {device: price.usd_per_gpu_hour for device, price in sheet.prices.items()},
            {device: f"{each.source} ({each.as_of})" for device, each in sheet.prices.items()},
        )
        for sheet in sheets
    ]


def _topologies() -> list[Entry]:
    from sim import topology_sheets

    sheets = [topology_sheets.load_topology(name) for name in topology_sheets.topology_names()]
    return [
        Entry(
            sheet.name,
            sheet.title,
            {
                "gpus_per_node": sheet.gpus_per_node,
                "nics_per_node": sheet.nics_per_node,
                **{f"nic.{key}": value for key, value in sheet.nic.items()},
            },
            dict(sheet.sources),
        )
        for sheet in sheets
    ]


def _models() -> list[Entry]:
    from sim import specs

    sheets = [specs.load_model(name) for name in specs.model_names()]
    return [
        Entry(
            sheet.name,
            f"{sheet.parameters / 1e9:.1f} B parameters, {sheet.layers} layers, "
            f"{specs.kv_bytes_per_token(sheet) / 1024:.0f} KiB of KV per token",
        )
        for sheet in sheets
    ]


def _presets() -> list[Entry]:
    from traces.generators import GENERATORS
    from traces.presets import PRESETS

    return [
        *(Entry(name, f"synthetic: {about}") for name, about in PRESETS.items()),
        *(
            dataclasses.replace(entry, sources=_sources(GENERATORS[entry.name]))
            for entry in _of_classes(GENERATORS)
        ),
    ]


def _sources(made: Any) -> dict[str, str]:
    from traces.generators import sources_of

    return {**sources_of(made), **({"slo": made.slo_source} if made.slo else {})}


def _formats() -> list[Entry]:
    from traces import LOADERS

    return [Entry(name, loader.about) for name, loader in LOADERS.items()]


def _public_traces() -> list[Entry]:
    from traces.fetch import TRACES

    return [Entry(name, f"{trace.about} ({trace.licence})") for name, trace in TRACES.items()]


def _engines() -> list[Entry]:
    from experiments.engines import presets

    return [
        Entry(name, entry["source"], entry["pool"]["policy"]) for name, entry in presets().items()
    ]


def _configs() -> list[Entry]:
    from experiments import strict_yaml
    from experiments.config import shipped

    found = {name: strict_yaml.read(path) for name, path in shipped().items()}
    return [
        Entry(name, " ".join(str(config.get("about", "")).split()))
        for name, config in found.items()
    ]


KINDS: Mapping[str, Callable[[], list[Entry]]] = MappingProxyType(
    {
        "policies": _policies,
        "routers": _routers,
        "orders": _orders,
        "predictors": _predictors,
        "autoscalers": _autoscalers,
        "migrators": _migrators,
        "role-switchers": _role_switchers,
        "devices": _devices,
        "prices": _prices,
        "topologies": _topologies,
        "models": _models,
        "presets": _presets,
        "engines": _engines,
        "configs": _configs,
        "formats": _formats,
        "traces": _public_traces,
    }
)
"""Kinds of names that can be listed."""
