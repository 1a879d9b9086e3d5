"""aiconfigurator's own files: ``gemm_perf``, ``context_attention_perf`` and so on, milliseconds.

They lie in ``systems/data/<system>/[<family>/]<engine>/<version>/`` as .txt (which are CSV), .csv
or .parquet. Of several versions the newest of each table is taken; give the folder of one version
to have that one. What is no plain layer of ours (MLA, module and router tables) is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_profile.importers.aiconfigurator_tables import COLUMNS, READERS
from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import positive, read_table
from kernels_profile.measured import SYSTEMS
from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

ENGINES = ("vllm", "sglang", "trtllm")
SUFFIXES = (".parquet", ".csv", ".txt")
"""Of a table, best first."""

GPUS = {
    "NVIDIA A100-SXM4-80GB": "a100_sxm",
    "NVIDIA H100 80GB HBM3": "h100_sxm",
    "NVIDIA H200": "h200_sxm",
    "NVIDIA B200": "b200_sxm",
    "NVIDIA L40S": "l40s",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000_server",
}
"""Systems by what the column ``device`` says, where no folder does."""


@dataclass(frozen=True)
class Found:
    """One table file.

    Attributes:
        path: The file.
        kind: Its name without the ending, such as ``gemm_perf``.
        system: Folder below ``data``, "" where the path does not say.
        engine: ``vllm``, ``nccl``, ...; "" where the path does not say.
        version: Of the engine, likewise.
    """

    path: Path
    kind: str
    system: str
    engine: str
    version: str


def read_published(path: Path, naming: Naming, engine: str) -> list[Imported]:
    """Data sets of all systems below a folder, one each, or of one file.

    Raises:
        ConfigError: no table of that engine; a system without a sheet; a bad table.
    """
    if engine not in ENGINES:
        raise ConfigError(f"--engine: {engine} is not known{nearest(engine, ENGINES)}")
    there = list(_files(path))
    naming.seen.update(file.system for file in there if file.system)
    files = _choose(there, engine)
    if not files:
        names = ", ".join(f"{kind}{suffix}" for kind in READERS for suffix in SUFFIXES[-1:])
        raise ConfigError(
            f"{path}: has no table of {engine} in it or below; expected some of {names} (or "
            ".parquet), or the tidy gemm_<system>.parquet"
        )
    found: dict[str, Imported] = {}
    versions: dict[str, dict[str, str]] = {}
    for file in files:
        table = _read(file)
        system = file.system or _system_of(table, file.path, naming)
        device = naming.device(system, SYSTEMS)
        if device is None:
            continue
        origin = f"aiconfigurator, {system or device} (published tables)"
        data = found.setdefault(device, Imported(device, origin, engine, ""))
        versions.setdefault(device, {})[file.kind] = _version_of(table, file)
        READERS[file.kind](data, table, file.path)
    for device, data in found.items():
        _say_versions(data, versions[device])
    return list(found.values())


def _files(path: Path) -> Iterator[Found]:
    paths = [path] if path.is_file() else sorted(path.rglob("*_perf.*"))
    for file in paths:
        if file.stem in READERS and file.suffix in SUFFIXES:
            parts = file.absolute().parts
            engine, version = parts[-3:-1]
            known = engine in (*ENGINES, "nccl")
            system = next((part for part in reversed(parts) if part in SYSTEMS), "")
            system = system or _below_data(parts)
            yield Found(file, file.stem, system, engine if known else "", version if known else "")
        elif path.is_file():
            raise ConfigError(
                f"{path}: is no table that is known; expected one of {', '.join(READERS)}"
            )


def _below_data(parts: tuple[str, ...]) -> str:
    """Name of a system that has no sheet, from ``systems/data/<system>``."""
    for above, below, name in zip(parts, parts[1:], parts[2:], strict=False):
        if (above, below) == ("systems", "data"):
            return name
    return ""


def _choose(files: Iterable[Found], engine: str) -> list[Found]:
    """The newest file of each table and system; NCCL's is of no engine."""
    best: dict[tuple[str, str], Found] = {}
    for file in files:
        if file.engine and file.engine not in (engine, "nccl"):
            continue
        key = (file.system, file.kind)
        if not file.system and key in best and _rank(file) == _rank(best[key]):
            raise ConfigError(
                f"{file.path}: and {best[key].path} do not say which systems they are of; "
                "import one at a time"
            )
        if key not in best or _rank(file) > _rank(best[key]):
            best[key] = file
    return list(best.values())


def _rank(file: Found) -> tuple[Any, ...]:
    numbers = tuple(int(digits) for digits in re.findall(r"\d+", file.version))
    return (*numbers, 0), -SUFFIXES.index(file.path.suffix)


def _read(file: Found) -> pd.DataFrame:
    table = read_table(file.path, COLUMNS[file.kind])
    positive(table, "latency", file.path)
    table["time_us"] = table["latency"] * 1e3
    return table


def _system_of(table: pd.DataFrame, path: Path, naming: Naming) -> str:
    """The system that a file's column ``device`` names."""
    gpus = sorted(set(table["device"].astype(str))) if "device" in table else []
    if len(gpus) > 1:
        raise ConfigError(
            f"{path}: has rows of several devices ({', '.join(gpus)}); keep those of one only"
        )
    if not gpus and naming.of is not None:
        return ""
    if not gpus:
        raise ConfigError(f"{path}: does not say which system it is of; give --device")
    return GPUS.get(gpus[0], gpus[0])


def _version_of(table: pd.DataFrame, file: Found) -> str:
    if file.version or "version" not in table:
        return file.version or "unknown"
    return ", ".join(sorted(set(table["version"].astype(str))))


def _say_versions(data: Imported, versions: Mapping[str, str]) -> None:
    own = {kind: version for kind, version in versions.items() if kind != "nccl_perf"}
    data.version = ", ".join(sorted(set(own.values()))) or "unknown"
    if len(set(own.values())) > 1:
        data.note("; ".join(f"{kind} is of {data.engine} {own[kind]}" for kind in sorted(own)))
    if "nccl_perf" in versions:
        data.note(f"backend nccl is NCCL {versions['nccl_perf']}")
