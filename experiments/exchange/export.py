"""Bundles in the formats of other tools: each table as CSV, the run as a trace for viewers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments import bundle
from experiments.bundle import BundleError
from experiments.exchange.perfetto import FILE, Window
from experiments.exchange.perfetto import write as write_trace
from experiments.names import unknown
from sim.errors import ConfigError

FORMATS = ("csv", "perfetto")


def export(
    folders: Sequence[Path], format: str, out: Path | None = None, window: Window | None = None
) -> list[Path]:
    """Write bundles in another format.

    Args:
        folders: Of the bundles.
        format: One of `FORMATS`.
        out: Folder that takes a folder for each bundle. Default: the bundle itself.
        window: The part of the run that is wanted; for ``perfetto``.

    Returns:
        The files written.

    Raises:
        ConfigError: No such format, two bundles of one name, steps that were not recorded.
        BundleError: It is no bundle, or cannot be read.
    """
    if format not in FORMATS:
        raise ConfigError(f"--format: {unknown('format', format, FORMATS)}")
    if window is not None and format == "csv":
        raise ConfigError("--from, --until: csv has whole tables; leave them out")
    names = [folder.resolve().name for folder in folders]
    for name in names:
        if out is not None and names.count(name) > 1:
            raise ConfigError(f"--out: two bundles are called {name}; export them one at a time")
    written = []
    for folder, name in zip(folders, names, strict=True):
        target = folder if out is None else out / name
        target.mkdir(parents=True, exist_ok=True)
        if format == "perfetto":
            written.append(write_trace(folder, target / FILE, window))
        else:
            written += _tables(folder, target)
    return written


def _tables(folder: Path, target: Path) -> list[Path]:
    bundle.read_head(folder)
    return [_csv(path, target / f"{path.stem}.csv") for path in sorted(folder.glob("*.parquet"))]


def _csv(source: Path, target: Path) -> Path:
    """A table as CSV, a row group at a time; what never came is empty."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        with parquet.ParquetFile(source) as file:
            plain = pa.schema([(each.name, _plain(each.type)) for each in file.schema_arrow])
            with csv.CSVWriter(target, plain) as writer:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group).cast(plain))
    except pa.ArrowInvalid as error:
        raise BundleError(f"{source}: cannot be read: {str(error).splitlines()[0]}") from None
    return target


def _plain(type: object) -> object:
    import pyarrow as pa

    return type.value_type if isinstance(type, pa.DictionaryType) else type
