"""Profiles of other projects, turned into our tables of measured times.

`IMPORTERS` names the projects; each has a module with `read`. `import_profile` is what the command
calls. What a table holds is said in `kernels_profile/table.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from sim.errors import ConfigError, nearest

IMPORTERS = ("aiconfigurator", "llmservingsim", "llmservingsim-v0", "vidur")
"""Projects whose profiles can be imported."""


def read_profile(
    source: str, path: Path, naming: Naming, engine: str | None = None
) -> list[Imported]:
    """Data sets of a project's profile.

    Args:
        source: One of `IMPORTERS`.
        path: The profile's file or folder.
        naming: Sheets of its devices and models.
        engine: Whose kernels, where a project publishes several (aiconfigurator).

    Raises:
        ConfigError: an unknown project, a path that is not there, a profile that cannot be read.
    """
    if source not in IMPORTERS:
        raise ConfigError(f"--from: {source} is no importer{nearest(source, IMPORTERS)}")
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    if engine is not None and source != "aiconfigurator":
        raise ConfigError(f"--engine: {source} publishes one engine's kernels; leave it out")
    found = _read(source, path, naming, engine)
    if not any(data.tables for data in found):
        skipped = ", ".join(sorted(naming.skipped))
        because = f"; --skip leaves out {skipped}" if skipped else ""
        raise ConfigError(f"{path}: no table of {source} that can be imported{because}")
    naming.check(path)
    for data in found:
        data.finish()
    return found


def import_profile(
    source: str,
    path: Path,
    out: Path,
    *,
    names: Mapping[str, str] | None = None,
    skip: Collection[str] = (),
    device: str | None = None,
    engine: str | None = None,
    revision: str | None = None,
) -> list[tuple[Path, Imported]]:
    """Read a profile and write one folder for each data set: ``out/<device>/``.

    Args:
        source: One of `IMPORTERS`.
        path: The profile's file or folder.
        out: Where the folders go.
        names: Our sheets by the source's names of devices and models.
        skip: Devices and models of the source to leave out.
        device: Sheet of the device that all files are of, where they do not say.
        engine: Whose kernels, where a project publishes several.
        revision: Commit of the source, where its files do not say.

    Returns:
        Folder and data set, in order.

    Raises:
        ConfigError: see `read_profile`; or a folder that holds another data set already.
    """
    from kernels_profile.importers.reading import provenance
    from kernels_profile.importers.writing import write

    found = read_profile(source, path, Naming(names or {}, skip, device), engine)
    module = _module(source)
    stated = provenance(path, revision, module.LICENCE)
    return [(write(data, source, module.REPOSITORY, stated, out), data) for data in found]


def _module(source: str) -> ModuleType:
    return import_module(f"kernels_profile.importers.{source.replace('-', '_')}")


def _read(source: str, path: Path, naming: Naming, engine: str | None) -> list[Imported]:
    read = _module(source).read
    found: list[Imported] = read(path, naming, engine) if engine else read(path, naming)
    return found
