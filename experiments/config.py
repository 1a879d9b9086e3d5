"""From YAML to `Plan`: what would run, checked, with one line for each thing that is wrong.

Read top down: `load` finds and reads a config, lays the overrides of each variant over it, and
resolves each into an `Experiment` (see `schema.py` for the keys).
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from experiments import cluster, engines, idle_keys, layers, places, strict_yaml, topology
from experiments.check_config import check
from experiments.explain import explain, placed, shown
from experiments.names import suggestion
from experiments.parts import NEED_PREDICTOR
from experiments.schema import LONGEST_LABEL, SCHEMA_VERSION, Experiment, Pool
from experiments.suggested import suggested_slo
from policies import POLICIES
from sim.errors import ConfigError

if TYPE_CHECKING:
    from experiments.answer import Answer

CONFIGS = Path(__file__).with_name("configs")
"""Folder of the shipped configs."""

_OF_THE_FILE = (
    "name", "about", "answer", "compare", "grid", "replications", "schema_version", "sweep"
)  # fmt: skip
"""Keys that belong to the file as a whole, not to a variant."""
_CHOOSING = ("answer", "compare", "grid", "sweep")
"""Those that say which variants there are and what is told of them."""
_LONGEST_PATH = 4000
_LONGEST_SLUG = 120
"""Characters of a folder's name: file systems take 255 bytes, and partial results add some."""


@dataclass(frozen=True)
class Renamed:
    """A key that still works under its old name for one minor version.

    Attributes:
        old: Dotted path as people wrote it.
        new: Dotted path to write instead.
        until: The version that no longer reads it.
    """

    old: str
    new: str
    until: str


DEPRECATED: tuple[Renamed, ...] = ()
"""Keys that were renamed; none so far."""


@dataclass(frozen=True)
class Plan:
    """What a config says to run.

    Attributes:
        name: Folder of its results.
        about: What it shows.
        source: Where it was read from, for messages.
        folder: Where relative paths in it start.
        variants: One resolved experiment each, labels unique.
        notes: What a reader should know, such as deprecated keys, one sentence each.
        answer: What to say in one sentence of the results; None if the config asks for nothing.
    """

    name: str
    about: str
    source: str
    folder: Path
    variants: tuple[Experiment, ...]
    notes: tuple[str, ...] = ()
    answer: Answer | None = None


def shipped() -> dict[str, Path]:
    """Configs that come with phasewise, by name."""
    return {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}


def load(
    config: str | Path | Mapping[str, Any],
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    deprecated: Sequence[Renamed] = DEPRECATED,
    *,
    strict: bool = False,
) -> Plan:
    """Read a config and resolve its variants.

    Args:
        config: A path, the name of a shipped config, or the content as a mapping.
        settings: ``key=value`` texts, values in YAML; they have the last word in every variant.
        overrides: The same as a mapping, for Python.
        deprecated: Keys still read under their old names.
        strict: Refuse step times beyond what tables have measured, in every variant.

    Raises:
        ConfigError: One line naming file, key, value and what would do.
    """
    return _plan(open_config(config, settings, overrides, deprecated), strict=strict)


@dataclass(frozen=True)
class Opened:
    """A config as it was read, before its variants are resolved.

    Attributes:
        raw: Its keys, those of the whole file overridden already.
        last: What has the last word in every variant, and where that stands.
        source: Where it was read from, for messages.
        folder: Where relative paths in it start.
        notes: On deprecated keys.
    """

    raw: Mapping[str, Any]
    last: Sequence[tuple[Mapping[str, Any], str]]
    source: str
    folder: Path
    notes: tuple[str, ...]


def open_config(
    config: str | Path | Mapping[str, Any],
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    deprecated: Sequence[Renamed] = DEPRECATED,
) -> Opened:
    """Read a config without resolving it. Arguments and errors as of `load`."""
    source, folder, raw = _read(config)
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{source}: holds {shown(raw)}; expected keys with values")
    notes: list[str] = []
    raw = _renamed(raw, deprecated, source, notes)
    if isinstance(raw.get("compare"), list):
        raw["compare"] = [
            _renamed(entry, deprecated, f"{source}: compare[{position}]", notes)
            if isinstance(entry, Mapping)
            else entry
            for position, entry in enumerate(raw["compare"])
        ]
    last = [
        (_renamed(layer, deprecated, where, notes), where)
        for layer, where in (
            (layers.unfold(overrides or {}, "overrides: "), "overrides"),
            (parse_settings(settings), "--set"),
        )
    ]
    of_file = {key: layer.pop(key) for layer, _ in last for key in _OF_THE_FILE if key in layer}
    return Opened({**raw, **of_file}, last, source, folder, tuple(notes))


def _read(config: str | Path | Mapping[str, Any]) -> tuple[str, Path, Any]:
    if isinstance(config, Mapping):
        return "config", Path.cwd(), dict(config)
    path = Path(config)
    if len(str(config)) > _LONGEST_PATH:
        raise ConfigError(f"{shown(str(config))}: no such file: too long for a path")
    by_name = {name.replace("_", "-"): file for name, file in shipped().items()}
    if not path.exists() and (found := by_name.get(str(config).replace("_", "-"))):
        path = found
    elif not path.exists() and path.suffix not in (".yaml", ".yml"):
        hint = suggestion(str(config), shipped())
        raise ConfigError(f"{config}: no such file, and no shipped config of this name; {hint}")
    return path.name, path.parent, strict_yaml.read(path)


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts, keys dotted, values in YAML, as one nested mapping.

    Raises:
        ConfigError: A text without ``=`` or without a value, or a value that is not YAML.
    """
    pairs: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not re.fullmatch(r"[\w:-]+(\.[\w:-]+)*", key.strip()):
            raise ConfigError(
                f"--set {setting}: expected key=value, such as policy.budget_tokens=256"
            )
        if not value.strip():
            raise ConfigError(
                f"--set {setting}: lacks a value; write {key.strip()}=null for the default"
            )
        pairs[key.strip()] = strict_yaml.parse(value, f"--set {setting}")
    return layers.unfold(pairs, "--set ")


def _renamed(
    raw: Mapping[str, Any], deprecated: Iterable[Renamed], source: str, notes: list[str]
) -> dict[str, Any]:
    moved = dict(raw)
    for rename in deprecated:
        value = _take(moved, rename.old.split("."))
        if value is _ABSENT:
            continue
        notes.append(
            f"{source}: {rename.old}: is deprecated and not read from {rename.until} on; "
            f"write {rename.new}"
        )
        moved = layers.lay_over(layers.unfold({rename.new: value}, ""), moved)
    return moved


_ABSENT = object()


def _take(mapping: dict[str, Any], path: list[str]) -> Any:
    dotted = ".".join(path)
    if dotted in mapping:
        return mapping.pop(dotted)
    if len(path) == 1:
        return _ABSENT
    inner = mapping.get(path[0])
    if not isinstance(inner, Mapping):
        return _ABSENT
    mapping[path[0]] = dict(inner)
    return _take(mapping[path[0]], path[1:])


# --- variants


def _plan(opened: Opened, *, strict: bool) -> Plan:
    raw, source, notes = opened.raw, opened.source, list(opened.notes)
    experiments = [
        resolve_variant(opened, variant, strict=strict) for variant in variants_of(opened)
    ]
    if raw.get("sweep") is not None:
        notes.append(f"{source}: sweep: is read by `phasewise sweep` only")
    notes = [*notes, *_unused_predictor(experiments, source)]
    notes += idle_keys.routers(experiments, source)
    if strict and not any(_is_strict(pool) for each in experiments for pool in _pools(each)):
        notes.append("--strict: changes nothing: no variant has step times from tables")
    first = experiments[0]
    labels = [each.label for each in experiments]
    answer = None
    if (told := raw.get("answer")) is not None:
        from experiments.answer import read_answer  # few configs have one

        answer = read_answer(told, labels, f"{source}: answer")
    return Plan(
        first.name, first.about, source, opened.folder, tuple(experiments), tuple(notes), answer
    )


def variants_of(opened: Opened) -> list[Chosen]:
    """What each variant overrides, in order, not resolved.

    Raises:
        ConfigError: `compare` or `grid` cannot be read, or two labels give the same folder.
    """
    _check_version(opened.raw, opened.source)
    chosen = _combinations(opened.raw, opened.source)
    _check_labels([(each.label or "", each.place) for each in chosen], f"{opened.source}: ")
    return chosen


def resolve_variant(
    opened: Opened,
    variant: Chosen,
    above: Sequence[tuple[Mapping[str, Any], str]] = (),
    *,
    strict: bool = False,
) -> Experiment:
    """One variant of a config, resolved and checked.

    Args:
        opened: The config.
        variant: One of `variants_of`.
        above: More keys, nested, that have the last word, and where they stand.
        strict: As of `load`.

    Raises:
        ConfigError: One line.
    """
    source = opened.source
    base = {key: value for key, value in opened.raw.items() if key not in _CHOOSING}
    base.setdefault("name", Path(source).stem)
    where = source if variant.label is None else f"{source}: variant {variant.label}"
    last = [*opened.last, *above]
    if variant.label is not None:
        _refuse_label_of_all([(base, source), *last])
    stack = [(base, source), (variant.overrides, where), *last]
    return _resolve(variant.label, stack, opened.folder, strict=strict)


def _unused_predictor(experiments: Sequence[Experiment], source: str) -> list[str]:
    """A note if there is a predictor, and nothing that asks for its guesses."""
    guessing = [each for each in experiments if each.predictor is not None]
    named = [
        str(part["name"])
        for each in guessing
        for pool in cluster.pools_of(each).values()
        for part in (pool.order, pool.policy, each.router, each.decode_router or each.router)
    ]
    if not guessing or any(name in NEED_PREDICTOR or ":" in name for name in named):
        return []
    orders = " and ".join(NEED_PREDICTOR)
    return [f"{source}: predictor: is not used: no variant has an order that asks it ({orders})"]


def _check_version(raw: Mapping[str, Any], source: str) -> None:
    version = raw.get("schema_version", SCHEMA_VERSION)
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ConfigError(
            f"{source}: schema_version: {shown(version)} is newer than this phasewise, which reads "
            f"up to {SCHEMA_VERSION}; install a newer one"
        )


def _check_label(label: object, where: str) -> None:
    """Refuse a label that is none, or that fits no table.

    Raises:
        ConfigError: It is no text, empty, too long, or holds line breaks or control characters.
    """
    if label is None or (isinstance(label, str) and not label.strip()):
        raise ConfigError(f"{where}: is required: the name of the variant in tables")
    if not isinstance(label, str):
        hint = "" if isinstance(label, dict | list) else "; put it in quotes"
        raise ConfigError(f"{where}: {shown(label)}: expected text{hint}")
    if not label.isprintable():
        raise ConfigError(f"{where}: {shown(label)}: expected letters, digits and signs only")
    if len(label) > LONGEST_LABEL:
        raise ConfigError(
            f"{where}: {shown(label)}: expected at most {LONGEST_LABEL} characters, "
            f"not {len(label)}"
        )


class Chosen(NamedTuple):
    """What one variant overrides, its label (None: made of the rest) and where that stands."""

    label: str | None
    overrides: dict[str, Any]
    place: str


def _combinations(raw: Mapping[str, Any], source: str) -> list[Chosen]:
    """Each variant: every entry of `compare` with every point of `grid`."""
    combined = []
    for entry, point in itertools.product(
        _compared(raw.get("compare"), source), _grid(raw.get("grid"), source)
    ):
        label, place = (
            ", ".join(text for text in texts if text)
            for texts in ((entry.label, point.label), (entry.place, point.place))
        )
        overrides = layers.lay_over(entry.overrides, point.overrides)
        combined.append(Chosen(label or None, overrides, place))
    return combined


def _compared(compare: object, source: str) -> list[Chosen]:
    if compare is None:
        return [Chosen(None, {}, "")]
    if not isinstance(compare, list) or not compare:
        raise ConfigError(f"{source}: compare: {shown(compare)}: expected a list of variants")
    variants = []
    for position, entry in enumerate(compare):
        where = f"{source}: compare[{position}]"
        if not isinstance(entry, Mapping):
            raise ConfigError(f"{where}: {shown(entry)}: expected a label and the keys that differ")
        _check_label(entry.get("label"), f"{where}.label")
        overrides = {key: value for key, value in entry.items() if key != "label"}
        for key in _OF_THE_FILE:
            if key in overrides:
                raise ConfigError(f"{where}.{key}: belongs to the whole file, not to a variant")
        unfolded = layers.unfold(overrides, f"{where}.")
        variants.append(Chosen(entry["label"].strip(), unfolded, f"compare[{position}]"))
    return variants


def _grid(grid: object, source: str) -> list[Chosen]:
    if grid is None:
        return [Chosen(None, {}, "")]
    if not isinstance(grid, Mapping) or not grid:
        raise ConfigError(f"{source}: grid: {shown(grid)}: expected keys with lists of values")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{source}: grid.{key}: {shown(values)}: expected a list of values")
    points = []
    for numbered in itertools.product(*(enumerate(values) for values in grid.values())):
        point = {key: value for key, (_, value) in zip(grid, numbered, strict=True)}
        label = ", ".join(
            f"{key.rpartition('.')[2]}={_word(value)}" for key, value in point.items()
        )
        place = ", ".join(f"grid.{key}[{at}]" for key, (at, _) in zip(grid, numbered, strict=True))
        points.append(Chosen(label, layers.unfold(point, f"{source}: grid."), place))
    return points


def _word(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name", shown(dict(value))))
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _check_labels(labels: Iterable[tuple[str, str]], where: str) -> None:
    """Refuse two variants of one folder, which would overwrite each other.

    Args:
        labels: Label and place of each variant.
        where: File and key that they stand below.
    """
    folders: dict[str, tuple[str, str]] = {}
    for label, place in labels:
        other, there = folders.setdefault(slug(label), (label, place))
        if there == place:
            continue
        if other == label:
            raise ConfigError(
                f"{where}{there} and {place}: both have the label {label}; labels have to differ"
            )
        raise ConfigError(
            f"{where}{there} and {place}: the labels {other} and {label} give the same folder, "
            f"{slug(label)}; labels have to differ in letters or digits, not only in case or signs"
        )


def folders_of(labels: Sequence[str]) -> list[str]:
    """Folder name of each variant.

    Raises:
        ConfigError: Two would have the same.
    """
    _check_labels([(label, f"variant {at}") for at, label in enumerate(labels)], "")
    return [slug(label) for label in labels]


def _refuse_label_of_all(stack: Iterable[tuple[Mapping[str, Any], str]]) -> None:
    for layer, where in stack:
        if layer.get("label") is not None:
            raise ConfigError(
                f"{where}: label: {shown(layer['label'])}: the variants of compare and grid have "
                "labels of their own; leave it out"
            )


def slug(label: str) -> str:
    """Folder name of a variant: letters, digits and ``-_.=``, in lower case; shortened if long."""
    name = re.sub(r"[^a-z0-9_.=]+", "-", label.lower()).strip("-.") or "variant"
    if len(name) <= _LONGEST_SLUG:
        return name
    return f"{name[:_LONGEST_SLUG]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# --- one variant


def _resolve(
    label: str | None,
    stack: Sequence[tuple[Mapping[str, Any], str]],
    folder: Path,
    *,
    strict: bool,
) -> Experiment:
    merged: dict[str, Any] = {}
    written, plain = [], []
    for layer, where in stack:
        plain.append(layers.unfold(layer, f"{where}: "))
        full = layers.write_out(plain[-1], f"{where}: ")
        written.append((full, where))
        merged = layers.lay_over(merged, full)
    _refuse_idle_replicas(written)
    said = _Said(written, plain)
    for key in ("router", "decode_router"):
        _refuse_no_router(merged.get(key), said, key)
    resolved = layers.with_pools(layers.without_nulls(merged), f"{said.source}: ")
    if resolved.get("slo") == "preset":
        resolved["slo"] = suggested_slo(resolved.get("workload"), said.where("slo"))
    resolved = topology.with_sharing(resolved)
    resolved, notes = _settled(resolved, said)
    if strict:
        resolved = _refusing(resolved)
    if notes:
        own = resolved.get("notes", [])
        resolved["notes"] = [*own, *(note for note in dict.fromkeys(notes) if note not in own)]
    if label is None and "label" in resolved:
        _check_label(resolved["label"], said.where("label"))
    resolved["label"] = label or resolved.get("label") or _default_label(resolved)
    try:
        experiment = Experiment.model_validate(resolved)
    except ValidationError as error:
        raise ConfigError(_line(error.errors(), said)) from None
    experiment = cluster.with_model_limits(experiment, folder, said.where)
    experiment = cluster.with_step_times(experiment, folder, said.where)
    check(experiment, said.where, folder)
    return experiment


def _refuse_idle_replicas(written: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Replicas said beside or above two pools, which say their own; those below are overridden."""
    split = False
    for layer, where in written:
        if "pools" in layer:
            pools = layer["pools"]
            if not isinstance(pools, Mapping) or pools.get("colocated") is not None:
                split = False
            elif "prefill" in pools or "decode" in pools:
                split = True
        if split and layer.get("replicas") is not None:
            raise ConfigError(
                f"{where}: replicas: {shown(layer['replicas'])}: there are two pools, and each "
                "says its own; give pools.prefill.replicas and pools.decode.replicas"
            )


def _default_label(resolved: Mapping[str, Any]) -> str:
    pools = resolved.get("pools")
    alone = pools.get("colocated") if isinstance(pools, Mapping) else None
    policy = alone.get("policy") if isinstance(alone, Mapping) else None
    if isinstance(policy, Mapping):
        return str(policy.get("name", "experiment"))
    return "disaggregated"


def _refuse_no_router(router: Any, said: _Said, *path: str) -> None:
    """A router within another cannot be none at all, as null there would seem to say."""
    if not isinstance(router, Mapping):
        return
    for key in ("fallback", "within"):
        if key in router and router[key] is None:
            raise ConfigError(
                f"{said.where(*path, key)}: null: expected a router; leave it out for the default"
            )
        _refuse_no_router(router.get(key), said, *path, key)


class _Said:
    """Who said what: finds the layer and the path, as written there, of a resolved key."""

    def __init__(
        self,
        written: Sequence[tuple[Mapping[str, Any], str]],
        plain: Sequence[Mapping[str, Any]],
    ) -> None:
        self._written = written
        self._plain = plain  # the same with flags of engines as they were written
        self.source = written[0][1]
        self._variant = written[1][1]  # where nobody said it: the variant that is short of it

    def where(self, *path: str | int) -> str:
        """``file.yaml: policy.name`` of a path such as ``pools, colocated, policy, name``."""
        candidates = [path]
        if path[:1] == ("pools",) and len(path) > 2:
            candidates = [path, path[2:]]
            if path[1] == "colocated":
                candidates.reverse()
        for (layer, where), plain in zip(
            reversed(self._written), reversed(self._plain), strict=True
        ):
            for candidate in candidates:
                if _holds(layer, candidate):
                    return f"{where}: {_dotted(_as_flag(plain, candidate))}"
        return f"{self._variant}: {_dotted(candidates[0])}"


def _as_flag(layer: Any, path: Sequence[str | int]) -> Sequence[str | int]:
    """The path as it was written, where that was an engine's flag."""
    pool = path[:2] if path[0] == "pools" else ()
    for flag, ours in engines.FLAGS.items():
        if tuple(path[len(pool) :]) == ours and _holds(layer, (*pool, flag)):
            return (*pool, flag)
    return path


def _holds(layer: Any, path: Sequence[str | int]) -> bool:
    for part in path:
        in_list = isinstance(layer, list) and isinstance(part, int) and part < len(layer)
        if not in_list and not (isinstance(layer, Mapping) and part in layer):
            return False
        layer = layer[part]
    return True


def _dotted(path: Sequence[str | int]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _settled(resolved: dict[str, Any], said: _Said) -> tuple[dict[str, Any], list[str]]:
    """Engine values that depend on the device, and the notes of the engines used."""
    pools = resolved.get("pools")
    if not isinstance(pools, dict):
        return resolved, []
    settled, notes = {}, []
    for role, pool in pools.items():
        if role in layers.ROLES and isinstance(pool, dict):
            pool, note = _without_engine(pool, said, role)
            notes.extend(note)
        settled[role] = pool
    return {**resolved, "pools": settled}, notes


def _refusing(resolved: dict[str, Any]) -> dict[str, Any]:
    """Every pool whose step times come from tables is strict."""
    pools = resolved.get("pools")
    if not isinstance(pools, dict):
        return resolved
    return {**resolved, "pools": {role: _strict(pool) for role, pool in pools.items()}}


def _strict(pool: Any) -> Any:
    timed = pool.get("step_time") if isinstance(pool, dict) else None
    if not isinstance(timed, dict) or timed.get("model") != "profile":
        return pool
    return {**pool, "step_time": {**timed, "strict": True}}


def _is_strict(pool: Pool) -> bool:
    return bool(pool.step_time.get("strict"))


def _pools(experiment: Experiment) -> Iterable[Pool]:
    return cluster.pools_of(experiment).values()


def _without_engine(
    pool: dict[str, Any], said: _Said, role: str
) -> tuple[dict[str, Any], list[str]]:
    from sim.specs import load_device

    engine = pool.get("engine")
    rest = {key: value for key, value in pool.items() if key != "engine"}
    if engine is None:
        return rest, []
    device = rest.get("device", "h100-sxm")
    try:
        sheet = load_device(str(device))
    except ConfigError as error:
        raise ConfigError(placed(said.where("pools", role, "device"), error)) from None
    note = engines.presets()[engine].get("note")
    notes = [f"engine {engine}: {note}"] if note else []
    settled = engines.settle(rest, engine, sheet.memory_bytes, sheet.name)
    return engines.with_step_time(settled, engine), notes


def _line(errors: Sequence[Any], said: _Said) -> str:
    """One line for the first error; the members of a union share a place and are told together."""
    # A slip in a key that is required gives two errors; the unknown key says more.
    unknown = [error for error in errors if error["type"] == "extra_forbidden"]
    first = (unknown or errors)[0]
    place = places.as_written(first["loc"])
    where = said.where(*place)
    if first["type"] == "extra_forbidden":
        return f"{where}: {places.unknown_key(place)}"
    hint = _WHAT_IS_NEEDED.get(str(place[-1]), "") if first["type"] == "missing" else ""
    same = [each for each in errors if places.as_written(each["loc"]) == place]
    return f"{where}: {explain(same)}{hint}"


_WHAT_IS_NEEDED: Mapping[str, str] = MappingProxyType(
    {
        "policy": f": one of {', '.join(sorted(POLICIES))}, or give an engine "
        "(phasewise list engines)",
        "model": ": the name of a model (phasewise list models) or the path of its config.json",
        "workload": ": a trace, such as {trace: file.csv}, or {preset: ..., requests: ...} "
        "(phasewise list presets)",
    }
)
"""Said of a required key that is missing."""
