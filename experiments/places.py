"""Where the keys of a config stand: what owns a key that is not known, and where it belongs."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from experiments import engines, schema
from experiments.names import suggestion

Place = Sequence[str | int]
_MOST_PLACES = 3
"""Places of a name that are told; a name that stands in more of them says little."""
_OF_A_LIST: Mapping[type[BaseModel], str] = MappingProxyType(
    {
        schema.Change: "an event",
        schema.NodeGroup: "a group of nodes",
        schema.Part: "a part of a mix",
    }
)
"""What the entries of lists are called."""


def as_written(place: Place) -> tuple[str | int, ...]:
    """The place of an error of pydantic without the members of unions, which are no keys.

    ``topology, nvlink, Wire, bytes_per_s`` is ``topology, nvlink, bytes_per_s``.

    Args:
        place: The ``loc`` of an error of `Experiment`.
    """
    model: type[BaseModel] = schema.Experiment
    annotation: Any = model
    kept: list[str | int] = []
    for part in place:
        if isinstance(part, int):
            kept.append(part)
            annotation = next(iter(typing.get_args(_plain(annotation))), Any)
        elif (field := model_in(annotation).model_fields.get(part)) is not None:
            kept.append(part)
            annotation = field.annotation
        elif not _is_member(part, annotation):
            kept.append(part)
            annotation = (typing.get_args(_plain(annotation)) or (Any,))[-1]
    return tuple(kept)


def _is_member(part: str, annotation: Any) -> bool:
    """Whether a part of a place says which member of a union refused the value."""
    said = [each for each in members(annotation) if each is not type(None)]
    return len(said) > 1 and any(
        part == getattr(each, "__name__", "") or part.startswith("literal[") for each in said
    )


def members(annotation: Any) -> tuple[Any, ...]:
    """Those of a union, or what is annotated alone."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return members(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return tuple(one for each in typing.get_args(annotation) for one in members(each))
    return (annotation,)


def _plain(annotation: Any) -> Any:
    """A list or mapping without the None beside it."""
    return next((each for each in members(annotation) if each is not type(None)), annotation)


def unknown_key(path: Place) -> str:
    """What to say of a key that there is not, such as ``kv has no such option; try num_blocks``.

    A key of the same name elsewhere is told before one that is spelled like it.

    Args:
        path: Of the key, in `Experiment`.
    """
    owner, known = _owner(path[:-1])
    noun = "key" if len(path) == 1 else "option"
    key = str(path[-1])
    there = "" if any(each.startswith(f"{key}_") for each in known) else _elsewhere(path, key)
    return f"{owner} has no such {noun}; {there or suggestion(key, known)}"


def _owner(path: Place) -> tuple[str, Iterable[str]]:
    """What owns the keys at a path of `Experiment`, and which keys those are."""
    if not path:
        return "a config", schema.FILE_KEYS
    model: type[BaseModel] = schema.Experiment
    for part in path:
        field = model.model_fields.get(str(part))
        if field is not None:
            model = model_in(field.annotation)
    more = ("engine", *engines.FLAGS) if _in_pool(path) else ()
    owner = _OF_A_LIST[model] if isinstance(path[-1], int) else str(path[-1])
    return owner, (*model.model_fields, *more)


def _in_pool(path: Place) -> bool:
    return len(path) == 2 and path[0] == "pools" and path[1] in ("colocated", "prefill", "decode")


def _elsewhere(path: Place, key: str) -> str:
    """Where a key of this name does stand, or an empty text."""
    if path[:-1] == ("pools", "decode") and key == "router":
        return "write decode_router at the top level"
    if tuple(path[:-1]) == ("pools",) and key in (*schema.POOL_KEYS, "engine"):
        return f"write pools.prefill.{key} and pools.decode.{key}"
    if len(path) > 1 and key in schema.Common.model_fields:
        return f"write {key} at the top level: it is of the whole variant"
    if len(path) > 1 and key in ("model", "workload"):
        return f"write {key} at the top level: it is of the whole variant"
    written = ".".join(str(part) for part in path)
    places = [place for place in _places(key) if place != written and not written.startswith(place)]
    if not 0 < len(places) <= _MOST_PLACES:
        return ""
    return f"write {' or '.join(places)}"


def _places(key: str) -> list[str]:
    """Dotted paths of all keys of a name, those of pools at top level."""
    skipped = ("pools.colocated", "pools.prefill", "pools.decode")
    whole = _walk(schema.Experiment, "", lambda path: path not in skipped)
    paths = [*whole, *_walk(schema.Pool, "", lambda _: True)]
    return [path for path in paths if path.rpartition(".")[2] == key and path not in skipped]


def _walk(model: type[BaseModel], above: str, enters: Callable[[str], bool]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{above}{name}"
        yield path
        inner = [each for each in members(field.annotation) if _is_model(each)]
        if inner and enters(path):
            yield from _walk(inner[0], f"{path}.", enters)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def model_in(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [model_in(part) for part in getattr(annotation, "__args__", ())]
    return next((part for part in inner if part is not BaseModel), BaseModel)
