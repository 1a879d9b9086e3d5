"""What was measured so far: tables that grow by a row a point, and survive being cut off."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kernels_profile.profiler.points import Point, Value
from kernels_profile.table import META, OPERATORS, append_rows, read_meta, read_table
from sim.errors import ConfigError


class Store:
    """A data set that is being measured.

    Args:
        folder: Where `meta.yaml` and the tables are, or will be.
        device: Name of the device whose times go there.

    Attributes:
        notes: What was mended on opening it.

    Raises:
        ConfigError: the folder has tables of another device, imported ones, or tables without
            `meta.yaml`.
        ProfileError: one of its tables cannot be read.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self._refuse_others(device)
        self._done: dict[str, set[tuple[Value, ...]]] = {}
        for path in self._tables():
            self._done[path.stem] = self._read(path)

    def has(self, point: Point) -> bool:
        """Whether the point was measured."""
        return _values(point.table, point.key) in self._done.get(point.table, ())

    def add(self, point: Point, measured: Mapping[str, Any]) -> None:
        """Append one row; it is on disk when this returns."""
        append_rows(self.folder, point.table, [{**point.key, **measured}])
        self._done.setdefault(point.table, set()).add(_values(point.table, point.key))

    def counts(self) -> dict[str, int]:
        """Points of each table."""
        return {table: len(points) for table, points in self._done.items()}

    def _tables(self) -> list[Path]:
        paths = (self.folder / f"{table}.csv" for table in OPERATORS)
        return [path for path in paths if path.is_file()]

    def _refuse_others(self, device: str) -> None:
        if not (self.folder / META).is_file():
            if tables := self._tables():
                raise ConfigError(
                    f"{self.folder}: has {tables[0].name} but no {META}: whose times they are is "
                    "not known; choose another folder with --out"
                )
            return
        meta = read_meta(self.folder)
        if meta.device != device:
            raise ConfigError(
                f"{self.folder}: holds tables of {meta.device}, and this is {device}; "
                "choose another folder with --out"
            )
        if meta.measured != "own":
            raise ConfigError(
                f"{self.folder}: holds imported tables ({meta.source}); measured ones are not "
                "mixed with them: choose another folder with --out"
            )

    def _read(self, path: Path) -> set[tuple[Value, ...]]:
        if not self._mended(path):
            return set()
        table = read_table(path, path.stem)
        columns = [table[name].tolist() for name in OPERATORS[path.stem].keys]
        return set(zip(*columns, strict=True))

    def _mended(self, path: Path) -> bool:
        """Drop a last line that was cut off while it was written; False if no row is left."""
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        if lines and not _whole(lines):
            cut = lines.pop()
            self.notes.append(f"{path.name}: dropped a last line that was cut off: {cut.strip()!r}")
            path.write_text("".join(lines), encoding="utf-8")
        if len(lines) < 2:
            path.unlink()
            return False
        return True


def _whole(lines: list[str]) -> bool:
    cells = [len(row) for row in csv.reader([lines[0], lines[-1]])]
    return lines[-1].endswith("\n") and len(set(cells)) == 1


def _values(table: str, key: Mapping[str, Value]) -> tuple[Value, ...]:
    known = OPERATORS[table]
    return tuple(str(key[c]) if c in known.texts else float(key[c]) for c in known.keys)


def missing(points: Iterable[Point], store: Store) -> list[Point]:
    """Of some points those that were not measured, in their order."""
    return [point for point in points if not store.has(point)]
