"""The JSON Schema knows what the loader knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from experiments import engines, listing, strict_yaml
from experiments.config import load, shipped
from experiments.json_schema import json_schema
from experiments.options import described, names
from experiments.schema import FILE_KEYS, Pool
from policies import ORDERS, POLICIES, PREDICTORS, ROUTERS
from sim.errors import ConfigError


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": type(None),
}
KEYWORDS = {
    *("$schema", "$defs", "$ref", "title", "description", "default", "type", "enum", "const"),
    *("anyOf", "oneOf", "properties", "required", "additionalProperties", "patternProperties"),
    *("items", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum"),
    *("exclusiveMaximum", "pattern"),
}
"""Those of draft 2020-12 that the schema uses; any other would be ignored by editors."""


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all inside it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key in ("$defs", "properties", "patternProperties"):
        for each in schema.get(key, {}).values():
            yield from subschemas(each)
    for key in ("anyOf", "oneOf"):
        for each in schema.get(key, []):
            yield from subschemas(each)
    for key in ("items", "additionalProperties"):
        yield from subschemas(schema.get(key))


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """A small part of JSON Schema: enough to tell known keys and names from unknown ones."""
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in schema and not any(accepts(each, value, root) for each in schema["anyOf"]):
        return False
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if "pattern" in schema:
        return isinstance(value, str) and re.search(schema["pattern"], value) is not None
    if "type" in schema and not isinstance(value, KINDS[schema["type"]]):
        return False
    if isinstance(value, bool) and schema.get("type") in ("integer", "number"):
        return False
    if isinstance(value, int | float):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            return False
        if value <= schema.get("exclusiveMinimum", value - 1):
            return False
    if isinstance(value, dict) and not value.keys() >= set(schema.get("required", ())):
        return False
    if isinstance(value, dict) and "properties" in schema:
        patterns = schema.get("patternProperties", {})
        for key, item in value.items():
            if key in schema["properties"]:
                if not accepts(schema["properties"][key], item, root):
                    return False
            elif schema.get("additionalProperties") is False and not any(
                re.search(pattern, key) for pattern in patterns
            ):
                return False
    if isinstance(value, list) and "items" in schema:
        return all(accepts(schema["items"], item, root) for item in value)
    return True


def test_it_is_json_and_its_references_resolve(schema: dict[str, Any]) -> None:
    assert json.loads(json.dumps(schema)) == schema
    for reference in references(schema):
        assert reference.removeprefix("#/$defs/") in schema["$defs"], reference


def test_it_has_every_key_of_a_file_and_a_description_of_each(schema: dict[str, Any]) -> None:
    properties = schema["properties"]

    assert set(FILE_KEYS) | set(engines.FLAGS) == set(properties)
    undescribed = [
        key
        for key, value in properties.items()
        if "description" not in value and "$ref" not in value and key not in ("label", "precision",
                                                                              "policy")
    ]  # fmt: skip
    assert all(properties[key].get("$ref") or "default" in properties[key] for key in undescribed)


def test_it_uses_keywords_of_json_schema_only(schema: dict[str, Any]) -> None:
    assert {key for each in subschemas(schema) for key in each} <= KEYWORDS


def test_options_have_their_types_bounds_and_meaning(schema: dict[str, Any]) -> None:
    policy = schema["$defs"]["Pool"]["properties"]["policy"]
    of_static = next(
        each["properties"]
        for each in policy["anyOf"]
        if each.get("properties", {}).get("name") == {"const": "static"}
    )

    assert of_static["batch_size"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 10**9,
        "default": 8,
        "description": "Most requests of a batch.",
    }
    assert of_static["return_at"]["enum"] == ["token", "batch_end"]
    registries = (POLICIES, ROUTERS, ORDERS, PREDICTORS)
    for cls in (cls for registry in registries for cls in registry.values()):
        assert described(cls).keys() >= set(names(cls)), cls


@pytest.mark.parametrize(
    "wrong",
    [
        {"workload": {"preset": "azure-conv-2023", "arrivals": {"rate_per_s": 0}}},
        {"policy": {"name": "sarathi", "budget_tokens": 0}},
        {"policy": {"name": "sarathi", "budget_tokens": "many"}},
        {"step_time": {"model": "linear", "base_s": -1}},
        {"step_time": {"model": "roofline", "host": "vllm-99"}},
        {"step_time": {"model": "roofline", "host": {"step_us": 0}}},
        {"step_time": {"model": "roofline", "host": {"step_us": 0, "request_us": 0}}},
        {"step_time": {"model": "roofline", "host": {"request_us": 3}}},
        {"slo": {"ttft_s": 0}},
        {"kv": {"gpu_memory_utilization": 1.2}},
        {"replicas": -1},
        {"seed": -1},
        {"workload": {"trace": "t.csv", "sessions": {"delay": "gama"}}},
    ],
)
def test_it_refuses_what_the_loader_refuses(schema: dict[str, Any], wrong: dict[str, Any]) -> None:
    config = strict_yaml.read(shipped()["quickstart"])

    assert accepts(schema, config, schema)
    assert not accepts(schema, {**config, **wrong}, schema)


@pytest.mark.parametrize(
    "host",
    [
        {"step_us": 0},
        {"step_us": 1},
        {"step_us": 0, "request_us": 3},
        {"step_us": 0, "eager_layer_us": 3},
        {"step_us": 0, "request_us": 0, "eager_layer_us": 0},
        {"request_us": 3},
        {"step_us": 3, "request_us": -1},
    ],
)
def test_it_takes_the_hosts_that_the_loader_takes(
    schema: dict[str, Any], host: dict[str, Any]
) -> None:
    said = {"step_time": {"model": "roofline", "host": host}, "policy": "vllm-v1"}
    config = {
        **said,
        "workload": {"preset": "azure-conv-2023", "requests": 3},
        "model": "llama-3.1-8b",
        "device": "h100-sxm",
    }
    try:
        load(config)
        loads = True
    except ConfigError:
        loads = False

    assert accepts(schema, config, schema) == loads


@pytest.mark.parametrize("delay", ["recorded", {"distribution": "gamma", "mean_s": 3, "cv": 2}])
def test_it_accepts_a_delay_as_a_word_or_written_out(schema: dict[str, Any], delay: Any) -> None:
    config = strict_yaml.read(shipped()["quickstart"])
    workload = {"trace": "t.csv", "sessions": {"delay": delay, "on_failed_turn": "continue"}}

    assert accepts(schema, {**config, "workload": workload}, schema)


def test_it_has_every_name_and_option(schema: dict[str, Any]) -> None:
    policy = schema["$defs"]["Pool"]["properties"]["policy"]
    written = {"name": "sarathi", "budget_tokens": 256}

    assert set(schema["$defs"]["Pool"]["properties"]) >= set(Pool.model_fields)
    assert all(accepts(policy, entry.name, schema) for entry in listing.entries("policies"))
    assert accepts(policy, written, schema)
    assert accepts(policy, "my_module:MyPolicy", schema)
    assert not accepts(policy, "saratih", schema)
    assert not accepts(policy, {"name": "sarathi", "budget_token": 256}, schema)


@pytest.mark.parametrize("name", sorted(shipped()))
def test_it_accepts_every_shipped_config(schema: dict[str, Any], name: str) -> None:
    assert accepts(schema, strict_yaml.read(shipped()[name]), schema)


def test_it_refuses_an_unknown_key(schema: dict[str, Any]) -> None:
    config = strict_yaml.read(shipped()["quickstart"])

    assert not accepts(schema, {**config, "devise": "h100-sxm"}, schema)
    assert not accepts(schema, {**config, "compare": [{"label": "a", "polcy": "orca"}]}, schema)
    assert accepts(schema, {**config, "policy.budget_tokens": 3}, schema)


def test_the_default_of_every_option_lies_within_its_bounds() -> None:
    from experiments import options
    from experiments.json_schema import _REGISTRY

    outside = []
    for registry in _REGISTRY.values():
        for name, cls in registry.items():
            for each in options.fields(cls):
                default = each.default
                if isinstance(default, bool) or not isinstance(default, int | float):
                    continue
                low, high = options.bounds(each.metadata, whole=isinstance(default, int))
                if not low <= default <= high:
                    outside.append((name, each.name, default))
    assert outside == []
