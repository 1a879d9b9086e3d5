"""aiconfigurator's own files: ``gemm_perf``, ``context_attention_perf`` and so on, milliseconds.

They lie in ``systems/data/<system>/[<family>/]<engine>/<version>/`` as .txt (which are CSV), .csv
or .parquet. Of several versions the newest of each table is taken; give the folder of one version
to have that one. What is no plain layer of ours (MLA, module and router tables) is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_profile.importers.aiconfigurator import OPS, known_dtypes
from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import positive, read_table, whole
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
    files = _choose(_files(path), engine)
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
        origin = f"aiconfigurator, {system} (published tables)"
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


def _choose(files: Iterator[Found], engine: str) -> list[Found]:
    """The newest file of each table and system; NCCL's is of no engine."""
    best: dict[tuple[str, str], Found] = {}
    for file in files:
        if file.engine and file.engine not in (engine, "nccl"):
            continue
        key = (file.system, file.kind)
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
    if naming.of is not None:
        return naming.of
    gpus = sorted(set(table["device"].astype(str))) if "device" in table else []
    if len(gpus) != 1:
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


# --- tables


def _gemm(data: Imported, table: pd.DataFrame, path: Path) -> None:
    whole(table, ["m", "n", "k"], path, 1)
    rows = known_dtypes(data, _one_source(data, table), "gemm_dtype", path)
    data.add(
        "linear",
        {"dtype": rows.gemm_dtype, "n": rows.n, "k": rows.k, "tokens": rows.m,
         "time_us": rows.time_us},
    )  # fmt: skip


def _context(data: Imported, table: pd.DataFrame, path: Path) -> None:
    rows = _attention(data, table, path)
    if (rows.step > 0).any():
        data.note("context_attention_perf: rows with a step are left out: it is not documented")
        rows = rows[rows.step == 0]
    data.note("prefill attention was measured without history, on sequences of equal length")
    data.add(
        "attention_prefill",
        {**_heads(rows), "batch": rows.batch_size, "tokens": rows.isl, "history": 0,
         "time_us": rows.time_us},
    )  # fmt: skip


def _generation(data: Imported, table: pd.DataFrame, path: Path) -> None:
    rows = _attention(data, table, path)
    data.add(
        "attention_decode",
        {**_heads(rows), "batch": rows.batch_size, "context": rows.isl + rows.step, "skew": 0.0,
         "time_us": rows.time_us},
    )  # fmt: skip


def _attention(data: Imported, table: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Rows of full attention that is computed in 16 bits, one kernel source."""
    whole(table, ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"], path, 1)
    whole(table, ["step"], path)
    keep = table.attn_dtype.isin(("bfloat16", "float16"))
    if "window_size" in table:
        keep &= ~(table.window_size > 0)
    if "beam_width" in table:
        keep &= table.beam_width <= 1
    if not keep.all():
        left = int((~keep).sum())
        data.note(f"{path.stem}: {left} rows of windows, beams or 8-bit products are left out")
    return known_dtypes(data, _one_source(data, table[keep]), "kv_cache_dtype", path)


def _heads(rows: pd.DataFrame) -> dict[str, object]:
    return {
        "kv_dtype": rows.kv_cache_dtype,
        "heads": rows.num_heads,
        "kv_heads": rows.num_key_value_heads,
        "head_dim": rows.head_dim,
    }


def _one_source(data: Imported, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the kernels that were measured most, where there are several."""
    if "kernel_source" not in table or table.kernel_source.nunique() < 2:
        return table
    chosen = table.kernel_source.value_counts().index[0]
    others = sorted(set(table.kernel_source.astype(str)) - {str(chosen)})
    op = str(table.op_name.iloc[0]) if "op_name" in table else "a table"
    data.note(f"{op}: kernels of {chosen}; {', '.join(others)} are left out")
    return table[table.kernel_source == chosen]


def _all_reduce(data: Imported, table: pd.DataFrame, path: Path) -> None:
    backend = table["backend"] if "backend" in table else table["kernel_source"].str.lower()
    _collective(data, table, "allreduce_dtype", table.op_name, backend, path)


def _nccl(data: Imported, table: pd.DataFrame, path: Path) -> None:
    _collective(data, table, "nccl_dtype", table.op_name, "nccl", path)


def _collective(
    data: Imported, table: pd.DataFrame, dtype: str, op: object, backend: object, path: Path
) -> None:
    """Messages of 16-bit elements, which the source counts; bytes here."""
    whole(table, ["num_gpus", "message_size"], path, 1)
    table = table.assign(op=op, backend=backend)
    rows = table[table[dtype].isin(("half", "bfloat16", "float16")) & table.op.isin(OPS)]
    data.add(
        "collective",
        {"op": rows.op.map(OPS), "backend": rows.backend, "gpus": rows.num_gpus,
         "bytes": 2 * rows.message_size, "time_us": rows.time_us},
    )  # fmt: skip


def _moe(data: Imported, table: pd.DataFrame, path: Path) -> None:
    """Experts of one GPU, without expert parallelism, on tokens spread evenly over them."""
    sizes = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts"]
    whole(table, [*sizes, "moe_tp_size", "moe_ep_size"], path, 1)
    even = (table.distribution == "balanced") & (table.moe_ep_size == 1)
    if not even.all():
        data.note(
            "moe_perf: rows of expert parallelism and of uneven distributions are left out: how "
            "many experts they touch is not recorded"
        )
    data.note("moe_perf: experts without their router")
    rows = known_dtypes(data, _one_source(data, table[even]), "moe_dtype", path)
    touched = (rows.num_tokens * rows.topk).clip(upper=rows.num_experts)
    data.add(
        "moe",
        {"dtype": rows.moe_dtype, "experts": rows.num_experts, "top_k": rows.topk,
         "hidden": rows.hidden_size, "intermediate": rows.inter_size // rows.moe_tp_size,
         "tokens": rows.num_tokens, "touched": touched, "time_us": rows.time_us},
    )  # fmt: skip


READERS: Mapping[str, Callable[[Imported, pd.DataFrame, Path], None]] = {
    "gemm_perf": _gemm,
    "context_attention_perf": _context,
    "generation_attention_perf": _generation,
    "custom_allreduce_perf": _all_reduce,
    "nccl_perf": _nccl,
    "moe_perf": _moe,
}

_ATTENTION = (
    "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "attn_dtype",
    "kv_cache_dtype", "step", "latency",
)  # fmt: skip
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "gemm_perf": ("gemm_dtype", "m", "n", "k", "latency"),
    "context_attention_perf": _ATTENTION,
    "generation_attention_perf": _ATTENTION,
    "custom_allreduce_perf": (
        "op_name", "kernel_source", "allreduce_dtype", "num_gpus", "message_size", "latency",
    ),
    "nccl_perf": ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency"),
    "moe_perf": (
        "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
        "moe_tp_size", "moe_ep_size", "distribution", "latency",
    ),
}  # fmt: skip
"""Columns that each table must have; versions differ in the others."""
