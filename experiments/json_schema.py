"""JSON Schema of a config file, for editors that complete and check YAML."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import itertools
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from experiments import engines, listing
from experiments import schema as keys
from experiments.schema import POOL_KEYS, Experiment
from sim.step_time import LinearStepTime

Schema = dict[str, Any]

_REGISTRY = {
    "policy": "policies",
    "order": "orders",
    "router": "routers",
    "decode_router": "routers",
    "predictor": "predictors",
}
_PLUGINS_OF_USERS = r"^[\w.]+:\w+$"


def json_schema() -> Schema:
    """The schema of what people write: every key, its bounds, its default and what it means."""
    schema = Experiment.model_json_schema()
    definitions: Schema = schema["$defs"]
    _describe({"Experiment": schema, **definitions})
    pool: Schema = definitions["Pool"]
    pool["properties"].update(_engine_keys())
    del pool["required"]
    for owner in (pool, schema):
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
    entries = listing.entries(_REGISTRY[key])
    names = [entry.name for entry in entries]
    own: Schema = {"type": "string", "pattern": _PLUGINS_OF_USERS}
    with_options = [
        {
            "type": "object",
            "properties": {"name": {"const": entry.name}, **_options(entry.options)},
            "additionalProperties": False,
            "description": entry.about,
        }
        for entry in entries
    ]
    users = {"type": "object", "properties": {"name": own}, "required": ["name"]}
    choices = [{"enum": names}, own, *with_options, users, {"type": "null"}]
    return {"anyOf": choices, "description": described.get("description", "")}


def _options(options: Mapping[str, Any]) -> Schema:
    return {name: {"default": _plain(value)} for name, value in options.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _step_time(described: Mapping[str, Any]) -> Schema:
    hints = typing.get_type_hints(LinearStepTime)
    terms = [field.name for field in dataclasses.fields(LinearStepTime) if field.name in hints]
    linear: Schema = {"model": {"const": "linear"}, **{term: {"type": "number"} for term in terms}}
    roofline: Schema = {"model": {"const": "roofline"}, "host": {}}
    return {
        "anyOf": [
            {"enum": ["roofline"]},
            *(
                {"type": "object", "properties": properties, "additionalProperties": False}
                for properties in (linear, roofline)
            ),
        ],
        "description": described.get("description", ""),
    }


def _variant(top: Mapping[str, Any]) -> Schema:
    of_the_file: Iterable[str] = ("name", "about", "schema_version")
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
    for name, key in (("Precision", "weights"), ("Arrivals", "process")):
        full = definitions[name]
        words = copy.deepcopy(full["properties"][key])
        definitions[name] = {"anyOf": [full, words], "description": full.get("description", "")}
    presets = [entry.name for entry in listing.entries("presets")]
    preset = definitions["Workload"]["properties"]["preset"]
    preset["anyOf"] = [{"enum": presets}, {"type": "null"}]
