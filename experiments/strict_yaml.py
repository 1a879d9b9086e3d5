"""YAML as people mean it: safe, no duplicate keys, numbers and words as YAML 1.2 reads them.

`yaml.SafeLoader` reads ``no`` as false, ``1e9`` as text, ``1:30`` as 90 and the second of two equal
keys without a word. A config read otherwise than it looks gives a wrong figure, not an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from sim.errors import ConfigError

_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"""^[-+]?(?:
        (?:[0-9][0-9_]*\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?
        |[0-9][0-9_]*[eE][-+]?[0-9]+
        |\.(?:inf|Inf|INF))$
        |^\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)


_MERGE = "tag:yaml.org,2002:merge"
_MOST_NODES = 100_000


class StrictLoader(yaml.SafeLoader):
    """Safe; refuses duplicate and non-text keys, resolves scalars as YAML 1.2 does."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise _RefusedError(line, "a key has to be a word")
            if key_node.tag != "tag:yaml.org,2002:str":
                raise _RefusedError(line, f"key {key_node.value!r} is no word; put it in quotes")
            if key_node.value in seen:
                first = seen[key_node.value]
                raise _RefusedError(
                    line, f"{key_node.value} is given twice (first in line {first})"
                )
            seen[key_node.value] = line
        return super().construct_mapping(node, deep=deep)


class _RefusedError(Exception):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 16) if "0x" in text else int(text)


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = str(loader.construct_scalar(node)).replace("_", "").lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _resolve(tag: str, pattern: str | re.Pattern[str], first: Sequence[str]) -> None:
    StrictLoader.add_implicit_resolver(tag, re.compile(pattern), [*first])


_resolve("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolve("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""])
_resolve(_MERGE, r"^(?:<<)$", "<")
_resolve("tag:yaml.org,2002:int", _INT, "-+0123456789")
_resolve("tag:yaml.org,2002:float", _FLOAT, "-+0123456789.")
StrictLoader.add_constructor("tag:yaml.org,2002:int", _int)
StrictLoader.add_constructor("tag:yaml.org,2002:float", _float)


def parse(text: str, name: str) -> Any:
    """Parse one YAML document.

    Args:
        text: The document.
        name: What to call it in messages, such as a file name.

    Raises:
        ConfigError: One line with the name, the line and what is wrong.
    """
    try:
        loader = StrictLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        odd = f"character U+{error.character:04X}"
        raise ConfigError(f"{name}: line {line}: {odd} is not allowed in YAML") from None
    try:
        return _expanded(loader.get_single_data(), [0])
    except _RefusedError as refused:
        raise ConfigError(f"{name}: line {refused.line}: {refused}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_one_line(error, name)) from None
    except RecursionError:
        raise ConfigError(f"{name}: nested without end") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    finally:
        loader.dispose()


def _expanded(value: Any, count: list[int]) -> Any:
    """A copy without shared parts; aliases that expand without end are refused."""
    count[0] += 1
    if count[0] > _MOST_NODES:
        raise ValueError(f"aliases expand to more than {_MOST_NODES:,} values")
    if isinstance(value, dict):
        return {key: _expanded(item, count) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, count) for item in value]
    return value


def _one_line(error: yaml.MarkedYAMLError, name: str) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = error.problem or error.context or "not YAML"
    if "another document" in problem:
        problem = "a second document begins; a file holds one"
    if "could not determine a constructor for the tag" in problem:
        problem = "tags (!...) are not read: a config holds plain values only"
    return f"{name}: {where}{problem}"


def read(path: Path) -> Any:
    """Parse a file; see `parse`.

    Raises:
        ConfigError: The file is missing, not text, or not YAML.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: a folder; a config is a YAML file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    return parse(text, path.name)
