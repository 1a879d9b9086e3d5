"""JSON Schema of a config file, for editors that complete and check YAML."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import itertools
import typing
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from experiments import engines, listing, options
from experiments import schema as keys
from experiments.schema import POOL_KEYS, Experiment
from experiments.step_times import LinkOption, NoiseOption, ProfileOptions
from experiments.sweep.axes import MOST_STEPS, SCALES
from experiments.sweep.definition import MOST_POINTS
from experiments.sweep.draws import METHODS
from kernels_profile.distserve import FITS
from kernels_profile.graphs import GRAPHS
from kernels_profile.host import HOSTS, HostOverhead
from policies import AUTOSCALERS, MIGRATORS, ORDERS, POLICIES, PREDICTORS, ROLE_SWITCHERS, ROUTERS
from sim.step_time import LinearStepTime
from traces.generators import GENERATORS

Schema = dict[str, Any]

_REGISTRY: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "policy": POLICIES,
        "order": ORDERS,
        "router": ROUTERS,
        "decode_router": ROUTERS,
        "predictor": PREDICTORS,
        "autoscaler": AUTOSCALERS,
        "migrator": MIGRATORS,
        "switcher": ROLE_SWITCHERS,
    }
)
_PLUGINS_OF_USERS = r"^[\w.]+:\w+$"


def json_schema() -> Schema:
    """The schema of what people write: every key, its bounds, its default and what it means."""
    schema = Experiment.model_json_schema()
    definitions: Schema = schema["$defs"]
    _describe({"Experiment": schema, **definitions})
    pool: Schema = definitions["Pool"]
    pool["properties"].update(_engine_keys())
    del pool["required"]
    within = (definitions[name] for name in ("Autoscale", "Migration", "RoleSwitching"))
    for owner in (pool, schema, *within):
        for key in _REGISTRY:
            if key in owner["properties"]:
                owner["properties"][key] = _choice(key, owner["properties"][key])
    pool["properties"]["step_time"] = _step_time(pool["properties"]["step_time"])
    top = {**schema["properties"], **copy.deepcopy(pool["properties"])}
    definitions["Variant"] = _variant(top)
    top["compare"] = {
        "type": "array",
        "minItems": 1,
        "items": {"$ref": "#/$defs/Variant"},
        "description": "Variants to compare: a label, and the keys that differ from the rest.",
    }
    top["grid"] = {
        "type": "object",
        "additionalProperties": {"type": "array", "minItems": 1},
        "description": "Dotted key to values; every combination is a variant.",
    }
    top["answer"] = _answer(definitions)
    top["sweep"] = _sweep()
    _allow_presets(definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "phasewise config",
        "type": "object",
        "properties": top,
        "required": ["workload", "model"],
        "patternProperties": {r"^\w+(\.\w+)+$": True},
        "additionalProperties": False,
        "$defs": definitions,
    }


def _sweep() -> Schema:
    """As `experiments.sweep.definition` reads it."""
    number = {"type": "number"}
    ends = {"from": number, "to": number}
    shape = {"scale": {"enum": [*SCALES]}, "whole": {"type": "boolean"}}
    listed: Schema = {"type": "array", "minItems": 1}
    steps = {"type": "integer", "minimum": 2, "maximum": MOST_STEPS}
    stepped = {
        "type": "object",
        "properties": {**ends, "steps": steps, **shape},
        "required": ["from", "to", "steps"],
        "additionalProperties": False,
    }
    drawn_from = {
        "type": "object",
        "properties": {**ends, **shape},
        "required": ["from", "to"],
        "additionalProperties": False,
    }
    drawn = {
        "type": "object",
        "properties": {
            "points": {"type": "integer", "minimum": 1, "maximum": MOST_POINTS},
            "seed": {"type": "integer", "minimum": 0, "maximum": MOST_POINTS},
            "over": {"type": "object", "additionalProperties": {"anyOf": [listed, drawn_from]}},
        },
        "required": ["points", "over"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "description": "What `phasewise sweep` runs: every combination of its parts. Keys are "
        "dotted; variants.LABEL.KEY sets one of a single variant.",
        "properties": {
            "grid": {"type": "object", "additionalProperties": {"anyOf": [listed, stepped]}},
            "list": {**listed, "items": {"type": "object"}},
            **dict.fromkeys(METHODS, drawn),
            "slo_scales": {"type": "array", "items": {**number, "minimum": 1e-6, "maximum": 1e6}},
            "quantities": {"type": "array", "items": {"type": "string"}},
        },
        "additionalProperties": False,
    }


def _answer(definitions: Schema) -> Schema:
    definitions["Saying"] = keys.Saying.model_json_schema()
    _describe({"Saying": definitions["Saying"]})
    sentence = {"type": "string"}
    entry = {"anyOf": [sentence, {"$ref": "#/$defs/Saying"}]}
    return {
        "anyOf": [sentence, {"type": "array", "minItems": 1, "items": entry}, {"type": "null"}],
        "description": "What the numbers say, in one sentence, printed below the table. Numbers "
        "stand in braces as variant.metric.statistic with a format: {a.ttft_s.p99:.2f}, "
        "{a.slo_attainment:.0%}, of a class {a.classes.chat.ttft_s.p99}, of a pool "
        "{a.pools.decode.cost_usd:.2f}, also calculated: "
        "{1 - a.ttft_s.mean / b.ttft_s.mean:.0%}, or as words: {'less' if a.ttft_s.mean < "
        "b.ttft_s.mean else 'not less'}. In a list the first entry is said whose when holds.",
    }


def _describe(models: Mapping[str, Schema]) -> None:
    """Add the text below each key in the source. (Pydantic would read it on every start, 0.2 s.)"""
    tree = ast.parse(inspect.getsource(keys))
    below = {each.name: _texts_below(each) for each in tree.body if isinstance(each, ast.ClassDef)}
    for name, model in models.items():
        for owner in reversed(getattr(keys, name).__mro__):
            for key, text in below.get(owner.__name__, {}).items():
                model["properties"][key]["description"] = text


def _texts_below(model: ast.ClassDef) -> dict[str, str]:
    texts = {}
    for key, text in itertools.pairwise(model.body):
        match key, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(said))),
            ):
                texts[name] = inspect.cleandoc(said)
    return texts


def _engine_keys() -> Schema:
    added: Schema = {
        "engine": {
            "enum": [*engines.presets()],
            "description": "Policy and defaults as this version of a serving engine ships them.",
        }
    }
    for flag, path in engines.FLAGS.items():
        if flag not in POOL_KEYS:
            added[flag] = {"description": f"The engines' name of {'.'.join(path)}."}
    return added


def _choice(key: str, described: Mapping[str, Any]) -> Schema:
    """A name alone, or a name with the options that belong to it."""
    registry = _REGISTRY[key]
    names = [*registry]
    own: Schema = {"type": "string", "pattern": _PLUGINS_OF_USERS}
    with_options = [
        {**_of_class(cls, "name", name), "description": listing.first_line(cls)}
        for name, cls in registry.items()
    ]
    users = {"type": "object", "properties": {"name": own}, "required": ["name"]}
    choices = [{"enum": names}, own, *with_options, users, {"type": "null"}]
    return {"anyOf": choices, "description": described.get("description", "")}


def _of_class(cls: Any, key: str | None = None, name: str = "") -> Schema:
    """A mapping of the options of `cls`, with its own `name` under `key`."""
    hints, said = typing.get_type_hints(cls), options.described(cls)
    routers = options.nested(cls)
    fields = options.fields(cls)
    properties = {
        each.name: _inner_router(each, said)
        if each.name in routers
        else _option(each, hints[each.name], said)
        for each in fields
    }
    chosen = {} if key is None else {key: {"const": name}}
    return {"type": "object", "properties": chosen | properties, "additionalProperties": False}


def _inner_router(field: dataclasses.Field[Any], said: Mapping[str, str]) -> Schema:
    """A router within another: a name, or a name with options, which are those of that router."""
    named = {"anyOf": [{"enum": [*ROUTERS]}, {"type": "string", "pattern": _PLUGINS_OF_USERS}]}
    full = {"type": "object", "properties": {"name": named}, "required": ["name"]}
    schema: Schema = {"anyOf": [*named["anyOf"], full], "default": field.metadata.get("name")}
    schema["description"] = said.get(field.name, "")
    return schema


def _option(field: dataclasses.Field[Any], hint: Any, said: Mapping[str, str]) -> Schema:
    """Type, bounds, default and meaning of an option."""
    schema: Schema = TypeAdapter(hint).json_schema()
    for member in schema.get("anyOf", [schema]):
        if member.get("type") in ("integer", "number"):
            whole = member["type"] == "integer"
            member["minimum"], member["maximum"] = options.bounds(field.metadata, whole=whole)
    if field.default is not dataclasses.MISSING:
        is_tuple = isinstance(field.default, tuple)
        schema["default"] = list(field.default) if is_tuple else field.default
    if field.name in said:
        schema["description"] = said[field.name]
    return schema


def _step_time(described: Mapping[str, Any]) -> Schema:
    host = {"anyOf": [{"enum": [*HOSTS]}, _host()]}
    efficiencies = {
        "type": "string",
        "description": "Device whose fitted efficiencies to take, such as one of the same "
        "architecture. Default: the device's own, or the median of all where it has none.",
    }
    roofline = {
        "type": "object",
        "properties": {
            "model": {"const": "roofline"},
            "host": host,
            "efficiencies": efficiencies,
        },
        "additionalProperties": False,
    }
    return {
        "anyOf": [
            {"enum": ["roofline", "profile", "distserve-fit"]},
            _of_class(LinearStepTime, "model", "linear"),
            roofline,
            _profile(host),
            _distserve_fit(),
        ],
        "description": described.get("description", ""),
    }


def _host() -> Schema:
    """As `HostOverhead` checks it: no term is below 0, and one is above."""
    schema = _of_class(HostOverhead)
    terms = ("step_us", "request_us", "eager_layer_us")
    schema["required"] = ["step_us"]
    schema["anyOf"] = [
        {"properties": {term: {"exclusiveMinimum": 0}}, "required": [term]} for term in terms
    ]
    return schema


def _profile(host: Schema) -> Schema:
    profile = _of_class(ProfileOptions, "model", "profile")
    own: Schema = profile["properties"]
    sizes = {"type": "array", "items": {"type": "integer", "minimum": 1}}
    own["cuda_graphs"]["anyOf"] = [{"enum": [*GRAPHS]}, sizes]
    own["noise"]["anyOf"] = [{"enum": ["table", "none"]}, _of_class(NoiseOption)]
    own["collectives"]["anyOf"] = [{"type": "string"}, _of_class(LinkOption), {"type": "null"}]
    own["host"] = host
    return profile


def _distserve_fit() -> Schema:
    engines = sorted({engine for engine, _, _ in FITS})
    engine = {"enum": engines, "default": "distserve", "description": "Whose steps were fitted."}
    return {
        "type": "object",
        "properties": {"model": {"const": "distserve-fit"}, "engine": engine},
        "additionalProperties": False,
    }


def _variant(top: Mapping[str, Any]) -> Schema:
    of_the_file: Iterable[str] = ("name", "about", "schema_version", "sweep")
    properties = {key: value for key, value in top.items() if key not in of_the_file}
    properties["label"] = {"type": "string", "description": "Name in tables and figures."}
    return {
        "type": "object",
        "properties": properties,
        "required": ["label"],
        "patternProperties": {r"^\w+(\.\w+)+$": True},
        "additionalProperties": False,
    }


def _allow_presets(definitions: Schema) -> None:
    """Words that stand for a mapping with one key."""
    chosen = (("Precision", "weights"), ("Arrivals", "process"), ("Delay", "distribution"))
    for name, key in chosen:
        full = definitions[name]
        words = copy.deepcopy(full["properties"][key])
        definitions[name] = {"anyOf": [full, words], "description": full.get("description", "")}
    uneven = definitions["ExpertImbalance"]
    definitions["ExpertImbalance"] = {
        "anyOf": [uneven, {"const": "even"}],
        "description": uneven.get("description", ""),
    }
    presets: list[Schema] = [{"enum": [entry.name for entry in listing.entries("presets")]}]
    for name, made in GENERATORS.items():
        with_options = _of_class(made, "name", name)
        presets.append({**with_options, "description": listing.first_line(made)})
    for owner in ("Workload", "Part"):
        preset = definitions[owner]["properties"]["preset"]
        preset["anyOf"] = [*presets, {"type": "null"}]
    nodes = definitions["Topology"]
    sheets = {"enum": [entry.name for entry in listing.entries("topologies")]}
    definitions["Topology"] = {
        "anyOf": [nodes, sheets],
        "description": nodes.get("description", ""),
    }
    targets = definitions["SLO"]
    definitions["SLO"] = {
        "anyOf": [targets, {"const": "preset"}],
        "description": targets.get("description", ""),
    }
