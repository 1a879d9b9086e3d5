"""Write imported tables as data sets, with where they come from in ``meta.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.reading import Provenance
from kernels_profile.table import META, Meta, read_meta, write_meta, write_table
from sim.errors import ConfigError


def write(data: Imported, source: str, repository: str, stated: Provenance, out: Path) -> Path:
    """Write one data set to ``out/<folder>/``; the same import may be written again.

    Args:
        data: The tables.
        source: Name of the importer.
        repository: Of the project.
        stated: Revision and licence.
        out: Folder of data sets.

    Returns:
        The data set's folder.

    Raises:
        ConfigError: the folder holds another data set.
    """
    folder = out / data.folder
    meta = Meta(data.device, data.origin, "imported", _more(data, source, repository, stated))
    _refuse_other(folder, meta)
    for name, rows in sorted(data.tables.items()):
        write_table(folder, name, rows.to_dict("records"))
    write_meta(folder, meta)
    return folder


def _more(data: Imported, source: str, repository: str, stated: Provenance) -> dict[str, Any]:
    more: dict[str, Any] = {
        "engine": data.engine,
        "version": data.version,
        "repository": repository,
        "revision": stated.revision,
        "licence": stated.licence,
        "command": f"phasewise profile import --from {source}",
    }
    if data.gpu:
        more["gpu"] = data.gpu
    return {**more, "notes": data.notes}


def _refuse_other(folder: Path, meta: Meta) -> None:
    """Tables of two origins must not lie in one folder under one `meta.yaml`."""
    if not (folder / META).is_file():
        return
    there = read_meta(folder)
    if there.origin != meta.origin or there.measured != meta.measured:
        raise ConfigError(
            f"{folder}: holds another data set already ({there.source}); choose another --out"
        )
