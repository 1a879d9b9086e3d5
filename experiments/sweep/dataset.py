"""What a sweep leaves on disk:

    sweep.json         what was asked for, and hashes of all that the results depend on
    results.parquet/   one Parquet data set, one row per point, variant and replication

While a sweep runs, `results.parquet` gets parts of some seconds each; a part appears complete or
not at all, so whatever ends a sweep costs at most the rows of the last seconds. At the end the
parts become one file, sorted by number of the point, variant and replication, every row once, and
columns that no run has left out. Its bytes are the same for the same sweep, however many processes
or machines made it, but for the columns `experiments.sweep.unit.WALL_FIELDS`.

A row that occurs twice (a machine was thought dead and was not, or a sweep was killed between two
renames) is kept once: the one that finished, else the latest.

A sweep can be extended in place by more points: `sweep.json` then says so at once, and rows that
are there get the numbers of their points in the larger sweep when it is next opened. What it ends
with is what the larger sweep alone would have written, byte for byte.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import bundle
from experiments.sweep.columns import KEY, table_of, with_settings
from experiments.sweep.definition import Setting
from experiments.sweep.unit import FINISHED, Identity, Row
from sim.errors import PhasewiseError

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
"""Version of these files; newer ones are refused."""
ABOUT = "sweep.json"
DATA = "results.parquet"
_PART_S = 5.0
"""Rows are written at least so often, seconds."""
_PART_ROWS = 1000
"""And at the latest when so many wait."""
_ORDER = ("number", "variant", "replication")


class SweepError(PhasewiseError):
    """A folder holds another sweep, or none, or cannot be used."""


@dataclass
class DataSet:
    """The rows of one sweep, in a folder.

    Attributes:
        folder: Of the sweep.
        columns: Names and types, see `experiments.sweep.columns`.
        statuses: Of every row that is on disk or waits for it.
    """

    folder: Path
    columns: Mapping[str, str]
    statuses: dict[Identity, str] = field(default_factory=dict)
    _waiting: list[Row] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)

    def add(self, row: Row) -> None:
        """Take in a row, and write those that wait if it is time."""
        self._waiting.append(row)
        self.statuses[identity(row)] = row["status"]
        self.flush_if_due()

    def flush_if_due(self) -> None:
        """Write the rows that wait if they are many, or have waited for long."""
        due = time.monotonic() - self._since >= _PART_S
        if due or len(self._waiting) >= _PART_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that wait as a part of their own."""
        self._since = time.monotonic()
        if not self._waiting:
            return
        parts = [int(path.stem.rpartition("-")[2]) for path in self._data.glob("part-*.parquet")]
        path = self._data / f"part-{max(parts, default=-1) + 1:06d}.parquet"
        _write(table_of(self._waiting, self.columns), path)
        self._waiting.clear()

    def compact(self) -> None:
        """Make one sorted file of all parts."""
        self.flush()
        table = read_table(self.folder)
        empty = [name for name in table.column_names if _is_empty(table, name)]
        kept = [name for name in empty if name in KEY or name in ("error", "status")]
        table = table.drop_columns([name for name in empty if name not in kept])
        new = self.folder / f".{DATA}.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        _write(table, new / "part-000000.parquet")
        _swap(self.folder)

    @property
    def _data(self) -> Path:
        return self.folder / DATA


def _is_empty(table: pa.Table, name: str) -> bool:
    return bool(table.column(name).null_count == table.num_rows)


def number_anew(folder: Path, points: Mapping[str, Setting], columns: Mapping[str, str]) -> None:
    """Let rows of a sweep that was extended have the numbers and columns of the larger one."""
    numbers = {key: at for at, key in enumerate(points)}
    found = read_table(folder, ["point", "number"]).to_pylist()
    if all(numbers.get(row["point"], row["number"]) == row["number"] for row in found):
        return
    rows = [
        with_settings(_plain_row(row, points[row["point"]]), points[row["point"]], columns)
        | {"number": numbers[row["point"]]}
        for row in read_table(folder).to_pylist()
    ]
    new = folder / f".{DATA}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    _write(table_of(rows, columns), new / "part-000000.parquet")
    _swap(folder)


def _plain_row(row: Row, setting: Setting) -> Row:
    """What a row has of its own: no settings, and nothing that is not there."""
    return {key: v for key, v in row.items() if key not in setting and v is not None}


def read_about(folder: Path) -> dict[str, Any]:
    """What a sweep was asked for.

    Raises:
        SweepError: There is no sweep, something else, or one of a newer version.
    """
    if not (folder / ABOUT).is_file():
        raise SweepError(f"{folder}: no sweep there (no {ABOUT})")
    about = bundle.read_values(folder / ABOUT)
    if not isinstance(about.get("prints"), dict):
        raise SweepError(f"{folder / ABOUT}: is not of a sweep; give another folder")
    if about.get("version", VERSION) > VERSION:
        raise SweepError(f"{folder}: was written by a newer phasewise; install that")
    return about


def read_table(folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a sweep so far, each once, in order.

    Args:
        folder: Of the sweep.
        columns: Which; None for all.

    Raises:
        SweepError: A part cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = None if columns is None else list(dict.fromkeys([*_ORDER, *columns]))
    tables = []
    for path in sorted((folder / DATA).glob("part-*.parquet")):
        try:
            tables.append(pq.read_table(path, columns=wanted))
        except (OSError, pa.ArrowException) as error:
            reason = " ".join(str(error).split()).partition(". ")[0]
            raise SweepError(f"{path}: cannot be read: {reason}; delete it, and go on") from None
    if not tables:
        return table_of([], dict.fromkeys(wanted or KEY, "text"))
    return _once(pa.concat_tables(tables, promote_options="default"))


def _once(table: pa.Table) -> pa.Table:
    """Every row once, sorted: of equal ones the one that finished, else the last."""
    import numpy as np

    rows = table.select([*dict.fromkeys([*_ORDER, *KEY, "status"])] if "status" in
                        table.column_names else [*_ORDER]).to_pylist()  # fmt: skip
    chosen: dict[tuple[Any, ...], int] = {}
    for at, row in enumerate(rows):
        name = tuple(row[column] for column in _ORDER)
        other = chosen.get(name)
        if other is None or rows[other].get("status") != FINISHED:
            chosen[name] = at
    order = [chosen[name] for name in sorted(chosen)]
    return table.take(np.asarray(order, dtype=np.int64))


def identity(row: Mapping[str, Any]) -> Identity:
    """What a row is of."""
    return str(row["point"]), str(row["variant"]), int(row["replication"])


# --- files that appear complete or not at all


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    partial = path.with_name(f".{path.name}.tmp")
    pq.write_table(table, partial, compression="zstd")
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)


def _swap(folder: Path) -> None:
    """Put the new data set in the place of the old one; `recover` ends what this began."""
    old = folder / f".{DATA}.old"
    shutil.rmtree(old, ignore_errors=True)
    if (folder / DATA).exists():
        (folder / DATA).rename(old)
    (folder / f".{DATA}.new").rename(folder / DATA)
    shutil.rmtree(old, ignore_errors=True)


def recover(folder: Path) -> None:
    """End a swap that was killed half way."""
    if (folder / DATA).exists():
        shutil.rmtree(folder / f".{DATA}.new", ignore_errors=True)
    elif (folder / f".{DATA}.new").exists():
        _swap(folder)
    elif (folder / f".{DATA}.old").exists():
        (folder / f".{DATA}.old").rename(folder / DATA)
    (folder / DATA).mkdir(exist_ok=True)
