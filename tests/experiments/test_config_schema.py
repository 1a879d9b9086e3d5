"""The JSON Schema knows what the loader knows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from experiments import engines, listing, strict_yaml
from experiments.config import shipped
from experiments.json_schema import json_schema
from experiments.schema import FILE_KEYS, Pool


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


def accepts(schema: dict[str, Any], value: Any, root: dict[str, Any]) -> bool:
    """A small part of JSON Schema: enough to tell known keys and names from unknown ones."""
    if "$ref" in schema:
        return accepts(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in schema:
        return any(accepts(each, value, root) for each in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return value in schema.get("enum", [schema.get("const")])
    if "pattern" in schema:
        return isinstance(value, str) and re.search(schema["pattern"], value) is not None
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}
    kind = kinds.get(schema.get("type", ""))
    if kind is not None and not isinstance(value, kind):
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
