"""Tables of measured operator times: their columns, how they are read, checked and written.

A *data set* is a folder with `meta.yaml` and one CSV per operator, one row a measured point. Times
are microseconds of one launch (of one expert block for ``moe``) on one GPU; sizes are those of one
GPU's shard, after tensor parallelism.
"""

from __future__ import annotations

import csv
import functools
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.collector import no_cycle_collection
from sim.errors import ProfileError, closest, nearest

Floats = npt.NDArray[np.float64]
Row = Mapping[str, object]

SCHEMA_VERSION = 1
"""Of the data sets; an older one is read, a newer one refused."""

MOST_US = 1e10
"""The longest time that is believed, microseconds: hours for one launch."""

MOST_SIZE = 10**15
"""The largest size that is believed, of whichever unit."""

META = "meta.yaml"
META_WORDS = (
    "engine", "version", "repository", "revision", "licence", "command", "date", "commit",
)  # fmt: skip
"""Further keys of `meta.yaml` that hold a word or a sentence."""

META_KINDS: Mapping[str, type] = MappingProxyType(
    {"gpu": dict, "versions": dict, "notes": list, "runs": list}
)
"""Further keys of `meta.yaml` that hold keys and values, or a list."""

SPREAD = ("p10_us", "p90_us", "cv", "repeats")
"""Optional columns beside ``time_us``: quantiles, std/mean over the repeats, and their number."""


@dataclass(frozen=True)
class Columns:
    """Columns of one operator's table.

    Attributes:
        texts: Key columns that hold a word.
        sizes: Key columns that hold a number, at least 0.
        values: Measured columns, in their units.
        optional: Further measured columns that may be absent.
        what: One line for messages and for people.
    """

    texts: tuple[str, ...]
    sizes: tuple[str, ...]
    what: str
    values: tuple[str, ...] = ("time_us",)
    optional: tuple[str, ...] = SPREAD

    @property
    def keys(self) -> tuple[str, ...]:
        """What tells one point from another."""
        return (*self.texts, *self.sizes)

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that every file has."""
        return (*self.keys, *self.values)


_HEADS = ("heads", "kv_heads", "head_dim")
_MLA = ("heads", "kv_lora_rank", "rope_dim")

OPERATORS: Mapping[str, Columns] = MappingProxyType(
    {
        "linear": Columns(
            ("dtype",), ("n", "k", "tokens"), "a matrix product, n outputs, k inputs"
        ),
        "attention_prefill": Columns(
            ("kv_dtype",),
            (*_HEADS, "batch", "tokens", "history"),
            "causal attention of `batch` chunks of `tokens` tokens, each after `history` tokens",
        ),
        "attention_decode": Columns(
            ("kv_dtype",),
            (*_HEADS, "batch", "context", "skew"),
            "attention of `batch` decodes; context is the mean, skew its coefficient of variation",
        ),
        "attention_mixed": Columns(
            ("kv_dtype",),
            (*_HEADS, "tokens", "history", "decodes", "context"),
            "one launch with a chunk of `tokens` after `history` and decodes of `context` each",
        ),
        "mla_prefill": Columns(
            ("kv_dtype",),
            (*_MLA, "nope_dim", "v_dim", "batch", "tokens", "history"),
            "latent attention of chunks",
        ),
        "mla_decode": Columns(
            ("kv_dtype",), (*_MLA, "batch", "context", "skew"), "latent attention of decodes"
        ),
        "elementwise": Columns(("op",), ("width", "tokens"), "norms, rotary embedding, activation"),
        "per_sequence": Columns(
            ("op", "dtype"), ("vocab", "hidden", "sequences"), "LM head and sampler"
        ),
        "collective": Columns(
            ("op", "backend"), ("gpus", "bytes"), "a collective over the GPUs of one node"
        ),
        "moe": Columns(
            ("dtype",),
            ("experts", "top_k", "hidden", "intermediate", "tokens", "touched"),
            "a whole expert block; touched counts the distinct experts that tokens go to",
        ),
        "overhead": Columns(("what",), ("size",), "what launching costs"),
        "ceilings": Columns(("what",), (), "the card's own rates", ("value",), ("unit", *SPREAD)),
        "step": Columns(
            ("model", "kind"),
            ("tp", "prefill_tokens", "history", "decodes", "context"),
            "whole steps, and the sum of their operators",
            ("time_us", "operators_us"),
        ),
    }
)
"""Tables of a data set by name; the file is ``NAME.csv``."""

FROM_0 = frozenset(("history", "context", "skew", "size", "prefill_tokens", "decodes", "touched"))
"""Sizes that may be 0; all others are at least 1."""

FRACTIONS = frozenset(("context", "skew", "touched", "size"))
"""Sizes that may be means or shares; all others are whole numbers."""

MOST = MappingProxyType({"value": 1e18, "cv": 1e3, "skew": 1e6})
"""Largest values of columns that are neither times (`MOST_US`) nor sizes (`MOST_SIZE`)."""

WORDS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType(
    {
        ("linear", "dtype"): ("bf16", "fp16", "fp8", "int8", "int4"),
        ("moe", "dtype"): ("bf16", "fp16", "fp8", "int8", "int4"),
        ("per_sequence", "dtype"): ("bf16", "fp16", "fp32", "fp8"),
        ("per_sequence", "op"): ("lm_head", "sampler", "lm_head_greedy"),
        ("collective", "op"): ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
        ("elementwise", "op"): (
            "embedding",
            "rms_norm",
            "rotary",
            "qk_norm",
            "silu_mul",
            "add",
        ),
        ("step", "kind"): ("prefill", "decode", "mixed"),
        **{
            (name, "kv_dtype"): ("bf16", "fp16", "fp8")
            for name, columns in OPERATORS.items()
            if "kv_dtype" in columns.texts
        },
    }
)
"""Words that a column may hold, where they are a closed set."""


@dataclass(frozen=True)
class Meta:
    """Where a data set comes from (`meta.yaml`).

    Attributes:
        device: Name of its data sheet.
        origin: Free text: who measured what.
        measured: ``own``, by our profiler, or ``imported``.
        more: All other keys: engine, version, licence, gpu, versions, command, date, notes, ...
    """

    device: str
    origin: str
    measured: str = "imported"
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.measured not in ("own", "imported"):
            raise ProfileError(f"measured: {self.measured!r}: expected own or imported")

    @property
    def source(self) -> str:
        """A few words for a summary: origin, and engine and version where they are known."""
        engine = " ".join(str(self.more[key]) for key in ("engine", "version") if key in self.more)
        return f"{self.origin} ({engine})" if engine else self.origin


class Table:
    """Points of one operator in one data set.

    Attributes:
        operator: Name in `OPERATORS`.
        path: File that they were read from.
        columns: By name, each (n,): text as objects, numbers as float64.
    """

    def __init__(self, operator: str, path: Path, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self.operator = operator
        self.path = path
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> npt.NDArray[Any]:
        return self.columns[column]

    @property
    def time_us(self) -> Floats:
        """Median times, (n,), microseconds."""
        return self.columns["time_us"]

    def where(self, **equal: object) -> Table:
        """The points whose columns have these values; maybe none."""
        keep = np.ones(len(self), bool)
        for column, value in equal.items():
            keep &= self.columns[column] == value
        kept = {name: values[keep] for name, values in self.columns.items()}
        return Table(self.operator, self.path, kept)

    def distinct(self, *columns: str) -> list[tuple[Any, ...]]:
        """Combinations of values that occur in some columns, sorted."""
        return sorted(set(zip(*(self.columns[name].tolist() for name in columns), strict=True)))


class DataSet:
    """A folder of tables; each is read when it is first asked for.

    Args:
        folder: With `meta.yaml` and at least one table.

    Raises:
        ProfileError: no such folder, no `meta.yaml`, one that is wrong, no table at all, or a file
            whose name is almost a table's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta = read_meta(folder)
        self._tables: dict[str, Table | None] = {}
        self._chosen: dict[tuple[str, str, str], Table] = {}
        if not self.files():
            names = ", ".join(f"{name}.csv" for name in OPERATORS)
            raise ProfileError(f"{folder}: holds no table; expected some of {names}")
        self._refuse_misspelt()

    def files(self) -> list[Path]:
        """`meta.yaml` aside, the tables that there are."""
        paths = (self.folder / f"{name}.csv" for name in OPERATORS)
        return [path for path in paths if path.is_file()]

    def _refuse_misspelt(self) -> None:
        for path in sorted(self.folder.glob("*.csv")):
            meant = closest(path.stem, OPERATORS)
            if path.stem not in OPERATORS and meant is not None:
                raise ProfileError(f"{path}: is the name of no table; did you mean {meant}.csv?")

    def table(self, operator: str) -> Table | None:
        """The table of an operator, or None if the set has none."""
        if operator not in self._tables:
            path = self.folder / f"{operator}.csv"
            self._tables[operator] = read_table(path, operator) if path.is_file() else None
        return self._tables[operator]

    def rows(self, operator: str, column: str, word: str) -> Table | None:
        """The points of a table with a word in one of its columns, or None if there are none.

        They are kept: many operators of a model are looked up among the same ones.
        """
        key = (operator, column, word)
        if key not in self._chosen:
            table = self.table(operator)
            if table is None:
                return None
            self._chosen[key] = table.where(**{column: word})
        return self._chosen[key] if len(self._chosen[key]) else None


def is_data_set(folder: Path) -> bool:
    """Whether the folder itself is a data set (else it may hold some)."""
    return (folder / META).is_file()


def folders_of(path: Path) -> list[Path]:
    """The data sets in a folder, or the folder itself if it is one.

    Raises:
        ProfileError: there is none.
    """
    if not path.is_dir():
        raise ProfileError(f"{path}: no such folder; expected a data set, a folder with {META}")
    if is_data_set(path):
        return [path]
    inner = [folder for folder in sorted(path.iterdir()) if is_data_set(folder)]
    if not inner:
        raise ProfileError(f"{path}: has no {META}, nor has a folder in it: not a data set")
    return inner


def find_data_sets(paths: Sequence[Path], device: str) -> list[DataSet]:
    """The data sets of a device, in the order in which they are looked up.

    Args:
        paths: Each a data set, or a folder whose subfolders are; of the latter, those of other
            devices are passed over.
        device: Name of the sheet.

    Raises:
        ProfileError: a path that is neither, a data set of another device, one that is given twice,
            or none for the device.
    """
    found: list[DataSet] = []
    devices: set[str] = set()
    for path in paths:
        inner = folders_of(path)
        if inner == [path]:
            given = DataSet(path)
            if given.meta.device != device:
                raise ProfileError(f"{path}: was measured on {given.meta.device}, not on {device}")
            found.append(given)
            continue
        for folder in inner:
            meta = read_meta(folder)
            devices.add(meta.device)
            if meta.device == device:
                found.append(DataSet(folder))
    _refuse_given_twice([data.folder for data in found])
    if not found:
        places = ", ".join(map(str, paths))
        raise ProfileError(f"{places}: no data set of {device}{nearest(device, devices)}")
    return found


def _refuse_given_twice(folders: Sequence[Path]) -> None:
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise ProfileError(f"{folder}: is given twice; each data set is looked up once")
        seen.add(folder.resolve())


# --- reading


def read_meta(folder: Path) -> Meta:
    """What `meta.yaml` says.

    Raises:
        ProfileError: it is absent, no YAML, lacks a key, or is of a newer schema.
    """
    import yaml

    path = folder / META
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}: a data set has a {META}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(said, dict):
        raise ProfileError(f"{path}: expected keys with values")
    for key in ("schema", "device", "origin"):
        if key not in said:
            raise ProfileError(f"{path}: {key}: is required")
    version = said.pop("schema")
    if not isinstance(version, int) or not 1 <= version <= SCHEMA_VERSION:
        raise ProfileError(
            f"{path}: schema: {version!r}: this phasewise reads up to {SCHEMA_VERSION}"
        )
    _check_meta(path, said)
    device, origin = str(said.pop("device")), str(said.pop("origin"))
    try:
        return Meta(device, origin, str(said.pop("measured", "imported")), said)
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


def _check_meta(path: Path, said: Mapping[str, Any]) -> None:
    words = ("device", "origin", "measured", *META_WORDS)
    for key, value in said.items():
        if key not in (*words, *META_KINDS):
            raise ProfileError(
                f"{path}: {key}: is no key{nearest(str(key), (*words, *META_KINDS))}"
            )
        if key in words and isinstance(value, list | dict | NoneType):
            raise ProfileError(f"{path}: {key}: {value}: expected a word or a sentence")
        kind = META_KINDS.get(key, object)
        if not isinstance(value, kind):
            wanted = "a list" if kind is list else "keys and values"
            raise ProfileError(f"{path}: {key}: {value}: expected {wanted}")


def read_table(path: Path, operator: str) -> Table:
    """Read and check one table; once for all stages, pools and variants while the file is the same.

    Raises:
        ProfileError: names file and line: a column missing or unknown, a cell that is no number or
            not one that can be (a time of 0), a word that is not known, a point given twice.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from None
    return _read(path, operator, found.st_mtime_ns, found.st_size, found.st_ino)


@functools.lru_cache(maxsize=32)
def _read(path: Path, operator: str, *_file_as_it_is: int) -> Table:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: cannot be read: {error}") from None
    if text.startswith("version https://git-lfs"):
        raise ProfileError(f"{path}: is a Git LFS pointer, not the table; fetch it by git lfs pull")
    _refuse_format(path, text)
    with no_cycle_collection():
        rows = list(csv.reader(io.StringIO(text)))
        if len(rows) < 2:
            raise ProfileError(f"{path}: has no rows")
        table = _checked(path, operator, rows[0], rows[1:])
    for column in table.columns.values():
        column.setflags(write=False)  # it is shared
    return table


def _refuse_format(path: Path, text: str) -> None:
    """What spreadsheets write by default, and a CSV is not."""
    if text.startswith("\ufeff"):
        raise ProfileError(
            f"{path}: line 1: starts with a byte order mark; save it as UTF-8 without one (BOM)"
        )
    head = text.partition("\n")[0]
    for mark, name in ((";", "';'"), ("\t", "tabs")):
        if mark in head and "," not in head:
            raise ProfileError(f"{path}: line 1: columns are separated by {name}; use commas")


def _checked(path: Path, operator: str, head: list[str], rows: list[list[str]]) -> Table:
    known = OPERATORS[operator]
    _check_head(path, operator, head)
    for line, row in enumerate(rows, start=2):
        if len(row) != len(head):
            raise ProfileError(f"{path}: line {line}: {len(row)} cells, not {len(head)}")
    cells = dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, values in cells.items():
        if name in known.texts or name == "unit":
            columns[name] = _words(path, operator, name, values)
        else:
            columns[name] = _numbers(path, name, values, known)
    _refuse_twice(path, [columns[name] for name in known.keys])
    return Table(operator, path, columns)


def _check_head(path: Path, operator: str, head: list[str]) -> None:
    known = OPERATORS[operator]
    every = (*known.required, *known.optional)
    for name in known.required:
        if name not in head:
            raise ProfileError(f"{path}: line 1: column {name} is missing; {operator} needs it")
    for name in head:
        if name not in every:
            raise ProfileError(
                f"{path}: line 1: column {name!r} is not known{nearest(name, every)}"
            )
    if len(set(head)) < len(head):
        raise ProfileError(f"{path}: line 1: a column stands there twice")


def _words(path: Path, operator: str, name: str, values: list[str]) -> npt.NDArray[Any]:
    choices = WORDS.get((operator, name))
    if choices is not None and not set(values) <= set(choices):
        line, value = next((i, v) for i, v in enumerate(values, start=2) if v not in choices)
        raise ProfileError(f"{path}: line {line}: {name}: {value!r}{nearest(value, choices)}")
    return np.array(values, dtype=object)


def _numbers(path: Path, name: str, values: list[str], known: Columns) -> Floats:
    optional = name in SPREAD
    try:
        given = (v or "nan" for v in values) if optional else values
        numbers = np.fromiter(map(float, given), np.float64, len(values))
    except ValueError:
        line, value = next((i, v) for i, v in enumerate(values, start=2) if not _is_number(v))
        raise ProfileError(f"{path}: line {line}: {name}: {value!r} is no number") from None
    wanted, good = _allowed(name, numbers, known)
    bad = ~good
    if optional:
        bad &= ~np.isnan(numbers)
    if bad.any():
        at = int(np.argmax(bad))
        raise ProfileError(f"{path}: line {at + 2}: {name}: {values[at]}: expected {wanted}")
    return numbers


def _allowed(name: str, x: Floats, known: Columns) -> tuple[str, npt.NDArray[np.bool_]]:
    """What a column may hold, in words, and which numbers are such."""
    if name not in known.sizes:
        most = MOST.get(name, MOST_US if name.endswith("_us") else float(MOST_SIZE))
        if name in known.values:
            return f"a number above 0, {most:g} at most", (x > 0) & (x <= most)
        return f"a number from 0 to {most:g}", (x >= 0) & (x <= most)
    least, most = 0 if name in FROM_0 else 1, MOST.get(name, float(MOST_SIZE))
    good = (x >= least) & (x <= most)
    if name in FRACTIONS:
        return f"a number from {least} to {most:g}", good
    with np.errstate(invalid="ignore"):
        return f"a whole number from {least} to {most:g}", good & (x % 1 == 0)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_twice(path: Path, keys: list[npt.NDArray[Any]]) -> None:
    codes = [_coded(column) if column.dtype == object else column for column in keys]
    order = np.lexsort(codes)  # stable: equal points stay in order of lines
    same = np.ones(len(order) - 1, bool)
    for column in codes:
        same &= column[order[1:]] == column[order[:-1]]
    if same.any():
        first, again = min((int(order[i + 1]), int(order[i])) for i in np.flatnonzero(same))[::-1]
        raise ProfileError(f"{path}: line {again + 2}: the point of line {first + 2} again")


def _coded(words: npt.NDArray[Any]) -> npt.NDArray[Any]:
    codes = {word: i for i, word in enumerate(dict.fromkeys(words.tolist()))}
    return np.fromiter(map(codes.__getitem__, words.tolist()), np.int64, len(words))


# --- writing


def write_meta(folder: Path, meta: Meta) -> Path:
    """Write `meta.yaml`, its folder made where it is missing."""
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    said = {
        "schema": SCHEMA_VERSION,
        "device": meta.device,
        "origin": meta.origin,
        "measured": meta.measured,
        **meta.more,
    }
    path = folder / META
    path.write_text(yaml.safe_dump(said, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path


def write_table(folder: Path, operator: str, rows: Iterable[Row]) -> Path:
    """Write a table, sorted by its key columns, and check it as it will be read.

    Args:
        folder: The data set.
        operator: Name in `OPERATORS`.
        rows: One mapping a point: all required columns, optional ones where they are known.

    Raises:
        ProfileError: as of `read_table`; nothing is written then.
    """
    path = folder / f"{operator}.csv"
    known, points = OPERATORS[operator], list(rows)
    if not points:
        raise ProfileError(f"{path}: there are no rows to write")
    points.sort(key=lambda row: _sort_key(path, known, row))
    named = set().union(*points)
    head = [name for name in (*known.required, *known.optional) if name in named]
    head += sorted(named - set(head))  # unknown ones, for the check to name
    lines = [[_cell(row.get(name, "")) for name in head] for row in points]
    _checked(path, operator, head, lines)
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *lines])
    return path


def append_rows(folder: Path, operator: str, rows: Iterable[Row]) -> Path:
    """Add points to a table as they are measured, all optional columns included; flushed at once.

    A table so grown is in order of measurement; `write_table` of its rows sorts it. One that was
    written without optional columns goes on without them.

    Raises:
        ProfileError: a point lacks a column, has a bad value, or one that the table has no column
            for.
    """
    path = folder / f"{operator}.csv"
    known = OPERATORS[operator]
    head = _head_of(path) or [*known.required, *known.optional]
    lines = []
    for row in rows:
        _sort_key(path, known, row)
        if not set(row) <= set(head):
            extra = ", ".join(sorted(set(row) - set(head)))
            raise ProfileError(f"{path}: line 1: has no column {extra}")
        lines.append([_cell(row.get(name, "")) for name in head])
        _checked(path, operator, head, lines[-1:])
    folder.mkdir(parents=True, exist_ok=True)
    new = not path.is_file() or path.stat().st_size == 0
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *lines] if new else lines)
        file.flush()
    return path


def _head_of(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def rows_of(table: Table) -> Iterator[dict[str, Any]]:
    """The points of a table as mappings, unknown optional values left out."""
    names = list(table.columns)
    for values in zip(*(table.columns[name].tolist() for name in names), strict=True):
        yield {
            name: value
            for name, value in zip(names, values, strict=True)
            if not (isinstance(value, float) and math.isnan(value))
        }


def _sort_key(path: Path, known: Columns, row: Row) -> tuple[Any, ...]:
    try:
        texts = tuple(str(row[name]) for name in known.texts)
        return (*texts, *(float(row[name]) for name in known.sizes))  # type: ignore[arg-type]
    except KeyError as error:
        raise ProfileError(f"{path}: a row has no {error.args[0]}: {dict(row)}") from None
    except (TypeError, ValueError) as error:
        raise ProfileError(f"{path}: a key is no number: {dict(row)}: {error}") from None


def _cell(value: object) -> str:
    """Whole numbers without a point; others with the digits that their kind has."""
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, np.floating) and value.dtype == np.float32:
        return "" if np.isnan(value) else f"{value:.7g}"
    if isinstance(value, float | np.floating):
        number = float(value)
        if math.isnan(number):
            return ""
        return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)
    return str(value)
