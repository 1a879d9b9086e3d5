"""Where measured data lie, and their operator tables as data sets, imported on the fly."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from experiments import hashes
from kernels_profile.importers.reading import read_parquet
from sim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

SHARED = "PHASEWISE_SHARED"
"""Names the folder of shared data."""

_REPOSITORY = Path(__file__).resolve().parents[2]

PROFILES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "aiconfigurator": {"skip": ("b200_sxm", "l40s")},
        "llmservingsim": {
            "names": {"Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b"},
        },
        "vidur": {"skip": ("a40", "a40_pairwise_nvlink")},
    }
)
"""What is imported from each project: all devices that a case uses."""


def measured_folder() -> Path:
    """The folder ``measured`` of the shared data.

    Raises:
        ConfigError: There is none where it is looked for.
    """
    named = os.environ.get(SHARED)
    if not named and not (_REPOSITORY / "pyproject.toml").is_file():
        raise ConfigError(
            f"validate: cases need measured data, which an installed package does not have: set "
            f"{SHARED} to the folder that holds `measured`"
        )
    folder = (Path(named) if named else _REPOSITORY.parent / "shared") / "measured"
    if not folder.is_dir():
        raise ConfigError(
            f"validate: cases need measured data: {folder}: no such folder; "
            + (
                f"{SHARED} is {named}; expected the folder that holds `measured`"
                if named
                else f"set {SHARED} to the folder that holds `measured`, or put it there"
            )
        )
    return folder


def read(folder: Path, name: str) -> pd.DataFrame:
    """A measured table, CSV or Parquet, by its path below the folder.

    Raises:
        ConfigError: It is not there.
    """
    import pandas as pd

    path = folder / name
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    return read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def profiles(names: Iterable[str], measured: Path, cache: Path) -> list[Path]:
    """Folders of data sets, one for each project, imported where the cache has them not.

    Args:
        names: Projects, in the order in which operators are looked up.
        measured: The folder of measured data.
        cache: Where imported data sets are kept.
    """
    return [_imported(name, measured / name, cache / name) for name in names]


def _imported(name: str, source: Path, out: Path) -> Path:
    from kernels_profile.importers import import_profile

    if name not in PROFILES:
        raise ConfigError(f"profiles: {name}: expected some of {', '.join(PROFILES)}")
    stamp = out / "imported.txt"
    content = _content(source, PROFILES[name])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == content:
        return out
    shutil.rmtree(out, ignore_errors=True)
    import_profile(name, source, out, **PROFILES[name])  # type: ignore[arg-type]
    stamp.write_text(content, encoding="utf-8")
    return out


def _content(source: Path, options: Mapping[str, object]) -> str:
    """Changes when the source does, or the code that reads it."""
    files = sorted(path for path in source.iterdir() if path.is_file())
    parts = {path.name: hashes.of_file(path) for path in files}
    importers = _REPOSITORY / "kernels_profile"
    code = sorted([*importers.joinpath("importers").glob("*.py"), importers / "table.py"])
    return hashes.of_values(
        {**parts, "options": repr(options), **{path.name: hashes.of_file(path) for path in code}}
    )
