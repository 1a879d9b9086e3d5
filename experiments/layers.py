"""How the parts of a config come together: shorthand written out, overrides laid over the rest."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from experiments import engines
from experiments.explain import shown
from experiments.names import canonical
from experiments.places import unknown_key
from experiments.schema import POOL_KEYS, Pools
from sim.errors import ConfigError

Layer = dict[str, Any]

ROLES = ("colocated", "prefill", "decode")
_CHOOSES: Mapping[str, str] = MappingProxyType(
    {
        "policy": "name",
        "order": "name",
        "predictor": "name",
        "migrator": "name",
        "router": "name",
        "decode_router": "name",
        "step_time": "model",
        "precision": "weights",
        "preset": "name",
        "arrivals": "process",
        "delay": "distribution",
        "autoscaler": "name",
        "switcher": "name",
        "topology": "sheet",
    }
)
"""Mappings that may be written as a word alone, and the key that the word stands for."""
_MERGES = ("precision",)
"""Those whose other keys keep their meaning when the word changes."""
_PLAIN = ("policy",)
"""Those whose other keys are what they are: the `order` of a policy is an option of its own."""


def unfold(layer: Mapping[str, Any], where: str) -> Layer:
    """Write dotted keys out: ``{"policy.name": "orca"}`` is ``{"policy": {"name": "orca"}}``.

    Raises:
        ConfigError: A key is given in both ways, or below something that is no mapping.
    """
    unfolded: Layer = {}
    for key, value in layer.items():
        inner = unfold(value, f"{where}{key}.") if isinstance(value, Mapping) else value
        first, _, rest = key.partition(".")
        if rest:
            inner = unfold({rest: inner}, f"{where}{first}.")
        present = unfolded.get(first)
        if present is not None and first in _CHOOSES and not isinstance(present, dict):
            present = {_CHOOSES[first]: present}
        if isinstance(present, dict) and isinstance(inner, dict):
            unfolded[first] = lay_over(present, inner)
        elif first in unfolded:
            raise ConfigError(
                f"{where}{key}: {first} is given twice, as {shown(unfolded[first])} too"
            )
        else:
            unfolded[first] = inner
    return unfolded


def write_out(layer: Layer, where: str) -> Layer:
    """Write shorthand out: words as mappings, flags as our keys, engines beneath the rest."""
    full = _words(layer)
    workload = full.get("workload")
    if isinstance(workload, dict):
        full["workload"] = _source(workload)
        if isinstance(mix := workload.get("mix"), list):
            full["workload"]["mix"] = [
                _source(unfold(part, f"{where}workload.mix[{at}]."))
                if isinstance(part, dict)
                else part
                for at, part in enumerate(mix)
            ]
    full = _pool(full, where)
    pools = full.get("pools")
    if isinstance(pools, dict):
        full["pools"] = {
            role: _pool(_words(pool), f"{where}pools.{role}.") if _is_pool(role, pool) else pool
            for role, pool in pools.items()
        }
    return full


def _source(source: Layer) -> Layer:
    written = _words(source)
    if isinstance(source.get("sessions"), dict):
        written["sessions"] = _words(source["sessions"])
    return written


def _is_pool(role: str, pool: object) -> bool:
    return role in ROLES and isinstance(pool, dict)


def _words(layer: Mapping[str, Any]) -> Layer:
    written = dict(layer)
    for key, inner in _CHOOSES.items():
        value = written.get(key)
        if isinstance(value, str):
            value = {inner: value}
        if isinstance(value, dict):
            value = dict(value) if key in _PLAIN else _words(value)
            if isinstance(value.get(inner), str):
                value[inner] = canonical(value[inner])
            written[key] = value
    return written


def _pool(layer: Layer, where: str) -> Layer:
    """Of a pool (or of the top level, which stands for one): flags and the engine."""
    flagged = _flags(layer, where)
    if flagged.get("max_model_len", "") is None:
        flagged["max_model_len"] = "none"  # no limit, and not the default as null is elsewhere
    if isinstance(flagged.get("autoscale"), dict):
        flagged["autoscale"] = _words(flagged["autoscale"])
    if flagged.get("engine") is None:
        return flagged
    engine = flagged.pop("engine")
    below = engines.expand(engine, f"{where}engine")
    return {**lay_over(below, flagged), "engine": canonical(str(engine))}


def _flags(layer: Layer, where: str) -> Layer:
    kept = {key: value for key, value in layer.items() if key not in engines.FLAGS}
    for flag, path in engines.FLAGS.items():
        if flag not in layer:
            continue
        inner: Any = layer[flag]
        for part in reversed(path[1:]):
            inner = {part: inner}
        present = kept.get(path[0])
        if isinstance(inner, dict) and isinstance(present, dict) and path[1] in present:
            raise ConfigError(f"{where}{flag}: {'.'.join(path)} is given too; give one of them")
        kept[path[0]] = lay_over(present, inner) if isinstance(present, dict) else inner
    return kept


def lay_over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Layer:
    """`upper` over `lower`: mappings are merged, all else is replaced.

    A mapping that chooses by name (a policy, a router) is replaced as a whole by one that chooses
    otherwise, an engine's policy replaces the one below, and a trace replaces a preset.
    """
    merged = dict(lower)
    if upper.get("engine") is not None:
        merged.pop("policy", None)
    for key, value in upper.items():
        below = merged.get(key)
        if not (isinstance(value, Mapping) and isinstance(below, Mapping)) or _differ(
            key, below, value
        ):
            merged[key] = value
        elif key == "workload":
            merged[key] = lay_over(_other_source_dropped(below, value), value)
        else:
            merged[key] = lay_over(below, value)
    return merged


def _differ(key: str, below: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
    if key not in _CHOOSES or key in _MERGES:
        return False
    name = value.get(_CHOOSES[key])
    return name is not None and name != below.get(_CHOOSES[key])


_SOURCES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "trace": ("format", "columns"),
        "preset": ("requests",),
        "mix": (),
    }
)
"""Where requests come from, one of these, and the keys that belong to one of them alone."""


def _other_source_dropped(below: Mapping[str, Any], value: Mapping[str, Any]) -> Layer:
    chosen = next((key for key in _SOURCES if value.get(key) is not None), None)
    there = [key for key in _SOURCES if key in below]
    if chosen is None or not there:
        return dict(below)
    others = [key for key in _SOURCES if key != chosen]
    dropped = {*others, *(own for key in others for own in _SOURCES[key])}
    kept = {key: item for key, item in below.items() if key not in dropped}
    # Arrivals without a process are those of the source that is replaced.
    arrivals = kept.get("arrivals")
    same = there == [chosen] and not _differ(
        chosen, _mapping(below, chosen), _mapping(value, chosen)
    )
    if chosen == "preset" and same and isinstance(value["preset"], Mapping):
        return kept  # other options of the same preset
    if isinstance(arrivals, Mapping) and "process" not in arrivals:
        del kept["arrivals"]
    return kept


def _mapping(layer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = layer.get(key)
    return value if isinstance(value, Mapping) else {}


def with_pools(config: Layer, where: str) -> Layer:
    """Move the pool keys of the top level into the pools, where they are defaults.

    `replicas` is not inherited where there are two pools: each says its own.
    """
    pool_keys = (*POOL_KEYS, "engine")
    rest = {key: value for key, value in config.items() if key not in pool_keys}
    common = {key: value for key, value in config.items() if key in pool_keys}
    pools = rest.get("pools")
    if pools is None:
        return {**rest, "pools": {"colocated": common}}
    if not isinstance(pools, dict):
        return rest
    own = () if "colocated" in pools else ("replicas",)
    inherited = {key: value for key, value in common.items() if key not in own}
    full = {
        role: lay_over(inherited, pool) if _is_pool(role, pool) else pool
        for role, pool in pools.items()
        if pool is not None
    }
    _check_layout(full, where)
    return {**rest, "pools": full}


def _check_layout(pools: Mapping[str, Any], where: str) -> None:
    for key in pools:
        if key not in Pools.model_fields:
            raise ConfigError(f"{where}pools.{key}: {unknown_key(('pools', key))}")
    if not pools:
        raise ConfigError(
            f"{where}pools: {{}}: expected colocated, or prefill, decode and transfer"
        )
    if "colocated" in pools:
        others = [key for key in Pools.model_fields if key != "colocated" and key in pools]
        if others:
            raise ConfigError(
                f"{where}pools.{others[0]}: there is a colocated pool; give one or the other"
            )
        return
    for key in ("prefill", "decode", "transfer"):
        if key not in pools:
            raise ConfigError(f"{where}pools.{key}: is required beside {', '.join(pools)}")
    for role in ("prefill", "decode"):
        if isinstance(pools[role], dict) and "replicas" not in pools[role]:
            raise ConfigError(
                f"{where}pools.{role}.replicas: is required: each of two pools says its own"
            )


def without_nulls(value: Any) -> Any:
    """Null means "the default": such keys are left out."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value
