"""What pydantic found, said as the people who wrote the config would say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from experiments.names import LONGEST_VALUE, brief, suggestion

_Context = Mapping[str, Any]
_EXPECTED: Mapping[str, Callable[[_Context], str]] = MappingProxyType(
    {
        "int_type": lambda _: "a whole number",
        "int_from_float": lambda _: "a whole number",
        "int_parsing": lambda _: "a whole number",
        "float_type": lambda _: "a number",
        "float_parsing": lambda _: "a number",
        "bool_type": lambda _: "true or false",
        "string_type": lambda _: "text",
        "list_type": lambda _: "a list",
        "dict_type": lambda _: "a mapping (key: value)",
        "model_type": lambda _: "a mapping (key: value)",
        "model_attributes_type": lambda _: "a mapping (key: value)",
        "none_required": lambda _: "null",
        "finite_number": lambda _: "a finite number",
        "greater_than": lambda context: f"more than {context['gt']:g}",
        "greater_than_equal": lambda context: f"at least {context['ge']:g}",
        "less_than": lambda context: f"less than {context['lt']:g}",
        "less_than_equal": lambda context: f"at most {context['le']:g}",
        "literal_error": lambda context: _one_of(_choices(context)),
        "string_pattern_mismatch": lambda _: "a name",
        "too_short": lambda context: _at_least(context["min_length"], context["key"]),
        "too_long": lambda context: f"{context['max_length']} values",
    }
)


def explain(errors: Sequence[Any]) -> str:
    """One clause for errors of one value (several where a union refused each of its members)."""
    first = errors[0]
    if first["type"] == "missing":
        return "is required"
    if first["type"] not in _EXPECTED:
        return str(first["msg"]).removeprefix("Value error, ")
    known = [error for error in errors if error["type"] in _EXPECTED]
    key = {"key": first["loc"][-1] if first["loc"] else None}
    parts = dict.fromkeys(_EXPECTED[each["type"]]({**each.get("ctx", {}), **key}) for each in known)
    expected = " or ".join(parts)
    if len(errors) == 1 and first["type"] == "literal_error" and len(_choices(first["ctx"])) == 1:
        expected += ": nothing else is modelled"
    more = _nearest(known) or _as_text(first["input"], known)
    return f"{shown(first['input'])}: expected {expected}{more}"


def _as_text(value: object, errors: Sequence[Any]) -> str:
    """Why what looks like a number is text."""
    wants_number = any(e["type"] in ("int_type", "float_type") for e in errors)
    if not isinstance(value, str) or not wants_number:
        return ""
    if re.fullmatch(r"[-+]?0[0-9_]+", value):
        plain = value.lstrip("-+0_") or "0"
        return f"; a leading 0 makes it text, as some read it as octal: write {plain}"
    if re.fullmatch(r"[-+]?[0-9][0-9_]*(\.[0-9]+)?([eE][-+]?[0-9]+)?", value):
        return "; it is text: leave out the quotes"
    return ""


def placed(where: str, error: Exception) -> str:
    """An error from below as one about a key; it may name that key itself already."""
    key = where.rpartition(".")[2].rpartition(" ")[2]
    message = str(error)
    if message.startswith(f"{key}."):
        return where + message.removeprefix(key)
    return f"{where}: {message.removeprefix(f'{key}: ')}"


def in_file(source: str, error: Exception) -> str:
    """An error about a key of a workload, which is found when it is made, with the file's name."""
    message = str(error)
    return f"{source}: {message}" if message.startswith(("workload.", "workload:")) else message


def shown(value: object) -> str:
    """A value as it stands in YAML, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, str) or not value:
        return brief(value)
    text = "".join(c if c.isprintable() else " " for c in value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _nearest(errors: Sequence[Any]) -> str:
    for error in errors:
        if error["type"] == "literal_error" and isinstance(error["input"], str):
            hint = suggestion(error["input"], _choices(error["ctx"]))
            return f"; {hint}" if hint.startswith("try") else ""
    return ""


def _one_of(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"


def _at_least(values: int, key: object) -> str:
    one = "at least one part" if key == "mix" else "at least one value"
    return one if values == 1 else f"{values} values"


def _choices(context: _Context) -> list[str]:
    return str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
