"""Options of things that have a name: the dataclass fields of a policy, a router, an order."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.explain import explain, placed, shown
from experiments.names import canonical, suggestion, unknown
from experiments.schema import MOST
from sim.errors import ConfigError, PhasewiseError
from sim.policy import Policy, Router


def find(kind: str, name: object, registry: Mapping[str, Any], where: str, folder: Path) -> Any:
    """The class of a name, which is in `registry` or a user's own, ``module:Class``.

    Args:
        kind: ``policy``, ``router``, ... for messages.
        name: As written in the config.
        registry: Shipped names.
        where: File and key, for messages.
        folder: Where a user's module is looked for first; then in the working folder.

    Raises:
        ConfigError: No such name, module or class.
    """
    if not isinstance(name, str):
        raise ConfigError(f"{where}: {unknown(kind, name, registry)}")
    if ":" in name:
        return _imported(kind, name, where, folder)
    if canonical(name) not in registry:
        raise ConfigError(f"{where}: {unknown(kind, name, registry)}")
    return registry[canonical(name)]


_OURS = ("kernels_profile", "policies", "sim", "traces")


def _imported(kind: str, name: str, where: str, folder: Path) -> Any:
    module_name, _, class_name = name.partition(":")
    # Absolute: Python remembers what a relative folder meant when it was first looked into.
    given, folder = folder, _folder_of(module_name, folder).resolve()
    if str(folder) not in sys.path:
        for ours in _OURS:  # before a folder that may hold packages of the same names comes first
            importlib.import_module(ours)
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()  # the file may be new, as in a notebook
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"{where}: {name}: module {module_name} cannot be imported: {error} "
            f"(looked in {_looked_in(given)} first)"
        ) from None
    except Exception as error:
        raise ConfigError(
            f"{where}: {name}: {module_name} fails when imported: {type(error).__name__}: {error}"
        ) from None
    _refuse_another(module, folder / f"{module_name.replace('.', '/')}.py", f"{where}: {name}")
    found = getattr(module, class_name, None)
    if found is None:
        classes = _offered(module, kind)
        more = suggestion(class_name, classes) if classes else f"it defines no {kind}"
        raise ConfigError(f"{where}: {module_name} has no {class_name!r}; {more}")
    if not dataclasses.is_dataclass(found):
        raise ConfigError(
            f"{where}: {name} is no dataclass; the fields of a {kind} are its options"
        )
    return found


def _folder_of(module_name: str, folder: Path) -> Path:
    """Where a user's module is: in a folder, or else in the working folder, as files are found."""
    top = module_name.partition(".")[0]
    places = (folder, Path.cwd())
    has = (each for each in places if (each / f"{top}.py").is_file() or (each / top).is_dir())
    return next(has, folder)


def _looked_in(folder: Path) -> str:
    there, here = folder.resolve(), Path.cwd()
    return str(there) if there == here else f"{there} and {here}"


_BASES = {"policy": (Policy,), "router": (Router,), "policy or router": (Policy, Router)}


def _offered(module: ModuleType, kind: str) -> list[str]:
    """Classes of a kind that a module, or one below it, defines; not what it imports from us."""
    own = (module.__name__, f"{module.__name__}.")
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and not name.startswith("_")
        and (value.__module__ == own[0] or value.__module__.startswith(own[1]))
        and issubclass(value, _BASES.get(kind, (object,)))
    ]


def _refuse_another(module: ModuleType, expected: Path, where: str) -> None:
    """Python keeps the first module of a name; another one than the config means is no help."""
    place = getattr(module, "__file__", None)
    if expected.is_file() and (place is None or not expected.samefile(place)):
        raise ConfigError(
            f"{where}: Python has imported {module.__name__} from {place or 'itself'}, not "
            f"{expected}; give the file another name"
        )


def names(cls: Any) -> list[str]:
    """Names of the options of a class."""
    return [field.name for field in fields(cls)]


def fields(cls: Any) -> list[dataclasses.Field[Any]]:
    """The options of a class: its dataclass fields, none if it is no dataclass."""
    return [f for f in dataclasses.fields(cls) if f.init] if dataclasses.is_dataclass(cls) else []


def build(cls: Any, options: Mapping[str, Any], name: str, where: str) -> Any:
    """An instance of `cls` with checked options.

    Whole numbers are at least 1 and other numbers at least 0, unless the field says otherwise:
    ``field(default=0, metadata={"minimum": 0})``. All are at most `MOST`, or a field's own maximum.

    Args:
        cls: A dataclass.
        options: Values as they stand in the config.
        name: What it is called there, for messages.
        where: File and key of the mapping that holds the options.

    Raises:
        ConfigError: An unknown option, a value of another type, or one that the class refuses.
    """
    known = names(cls)
    for key in options:
        if key not in known:
            raise ConfigError(f"{where}.{key}: {name} has no such option; {suggestion(key, known)}")
    hints = typing.get_type_hints(cls)
    limits = {field.name: field.metadata for field in fields(cls)}
    checked = {
        key: _bounded(
            _value(hints[key], value, f"{where}.{key}", limits[key].get("entries")),
            value,
            limits[key],
            where,
            key,
        )
        for key, value in options.items()
    }
    _refuse_missing(cls, checked, name, where)
    _refuse_idle(cls, checked, where)
    try:
        return cls(**checked)
    except PhasewiseError as error:
        raise ConfigError(placed(where, error)) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {name} refuses its options: {error}") from None


def _refuse_missing(cls: Any, given: Mapping[str, Any], name: str, where: str) -> None:
    for field in fields(cls):
        absent = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if absent and field.name not in given:
            raise ConfigError(f"{where}.{field.name}: is required by {name}")


def _refuse_idle(cls: Any, given: Mapping[str, Any], where: str) -> None:
    """An option that is given needs another one on: metadata ``needs``, values in `but` aside."""
    for field in fields(cls):
        needed, value = field.metadata.get("needs"), given.get(field.name)
        if needed is None or field.name not in given or value in field.metadata.get("but", ()):
            continue
        if not given.get(needed, getattr(cls, needed)):
            raise ConfigError(f"{where}.{field.name}: {shown(value)}: needs {needed}: true")


def nested(cls: Any) -> list[str]:
    """Options that are routers themselves, so that they have a name and options of their own."""
    return [field.name for field in fields(cls) if field.metadata.get("plugin") == "router"]


def bounds(limits: Mapping[str, Any], *, whole: bool) -> tuple[float, float]:
    """Smallest and largest value of an option.

    Args:
        limits: Metadata of its field.
        whole: It is a whole number.
    """
    return limits.get("minimum", 1 if whole else 0), limits.get("maximum", MOST)


def described(cls: Any) -> dict[str, str]:
    """What each option means, as the docstring of the class says below ``Args`` or Attributes."""
    doc = inspect.getdoc(cls) or ""
    below = re.split(r"^(?:Args|Attributes):\n", doc, maxsplit=1, flags=re.MULTILINE)[1:]
    block = re.split(r"^\S", below[0], maxsplit=1, flags=re.MULTILINE)[0] if below else ""
    found = re.findall(r"^    (\w+): (.*\n?(?:^     .*\n?)*)", block, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _bounded(value: Any, given: Any, limits: Mapping[str, Any], where: str, key: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    least, most = bounds(limits, whole=isinstance(value, int))
    if not value >= least:
        raise ConfigError(f"{where}.{key}: {shown(given)}: expected at least {least:g}")
    if value > most:
        raise ConfigError(f"{where}.{key}: {shown(given)}: expected at most {most:g}")
    return value


def _value(hint: Any, value: Any, where: str, entries: str | None = None) -> Any:
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    checks = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    if isinstance(value, float) and value.is_integer() and _takes_whole(hint):
        value = int(value)
    try:
        adapter = TypeAdapter(hint, config=checks)
        return adapter.validate_python(value, strict=not isinstance(value, list))
    except ValidationError as error:
        errors = error.errors()
        loc = errors[0]["loc"]
        if typing.get_origin(hint) is dict and loc:  # of a mapping the entry that is wrong
            entry, where = value.get(loc[0]), f"{where}.{loc[0]}"
            if entries and not isinstance(entry, list):
                raise ConfigError(f"{where}: {shown(entry)}: expected {entries}") from None
            errors = [each for each in errors if each["loc"] == loc]
        raise ConfigError(f"{where}: {explain(errors)}") from None


def _takes_whole(hint: Any) -> bool:
    members = typing.get_args(hint) or (hint,)
    return int in members and float not in members
