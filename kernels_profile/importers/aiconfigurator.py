"""aiconfigurator's profiles (ai-dynamo/aiconfigurator): GEMMs, attention, collectives, experts.

Two forms are read. *Published*: ``gemm_perf``, ``context_attention_perf``,
``generation_attention_perf``, ``custom_allreduce_perf``, ``nccl_perf`` and ``moe_perf`` (.txt, .csv
or .parquet, milliseconds), wherever they lie below the given folder. *Tidy*: ``gemm_<system>``,
``attention_context_<system>``, ``attention_generation_<system>`` and ``collectives``, microseconds.
Neither has element-wise kernels, LM head or sampler.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import positive, read_table, whole
from kernels_profile.measured import SYSTEMS
from sim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

LICENCE = "Apache-2.0"
REPOSITORY = "https://github.com/ai-dynamo/aiconfigurator"

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "fp8": "fp8"}
"""Its data types and ours; others (int4, nvfp4, fp8 in blocks) have no table of ours."""

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
}

TIDY_VERSIONS = {"a100_sxm": "0.14.0", "l40s": "0.14.0"}
"""vLLM of a system's tidy tables where it is not 0.19.0."""

TIDY_HEAD_DIM = 128
"""The tidy attention tables keep this head size only."""


def read(path: Path, naming: Naming, engine: str = "vllm") -> list[Imported]:
    """Data sets of all systems found, one each.

    Args:
        path: A folder in either form, or one published table.
        naming: Sheets of systems.
        engine: Whose kernels, of those published: ``vllm``, ``sglang`` or ``trtllm``.

    Raises:
        ConfigError: nothing that can be read; a system without a sheet; a bad table.
    """
    if _is_tidy(path):
        if engine != "vllm":
            raise ConfigError(f"--engine: the tidy tables in {path} are of vllm only")
        return list(_read_tidy(path, naming))
    from kernels_profile.importers.aiconfigurator_published import read_published

    return read_published(path, naming, engine)


def _is_tidy(path: Path) -> bool:
    return path.is_dir() and any(path.glob("gemm_*.parquet")) and not any(path.glob("gemm_perf.*"))


def _read_tidy(path: Path, naming: Naming) -> Iterator[Imported]:
    systems = sorted(file.stem.removeprefix("gemm_") for file in path.glob("gemm_*.parquet"))
    for system in systems:
        device = naming.device(system, SYSTEMS)
        if device is None:
            continue
        version = TIDY_VERSIONS.get(system, "0.19.0")
        if system == "h200_sxm":
            version += " (attention 0.24.0)"
        found = Imported(device, f"aiconfigurator, {system} (tidy tables)", "vllm", version)
        _tidy_gemm(found, path / f"gemm_{system}.parquet")
        _tidy_prefill(found, path / f"attention_context_{system}.parquet")
        _tidy_decode(found, path / f"attention_generation_{system}.parquet")
        _tidy_collectives(found, path / "collectives.csv", system)
        found.note(f"attention has heads of {TIDY_HEAD_DIM} only")
        found.note("prefill attention was measured without history, on sequences of equal length")
        yield found


def _tidy_gemm(found: Imported, path: Path) -> None:
    table = read_table(path, ["dtype", "m", "n", "k", "time_us"])
    whole(table, ["m", "n", "k"], path, 1)
    positive(table, "time_us", path)
    rows = known_dtypes(found, table, "dtype", path)
    found.add(
        "linear",
        {"dtype": rows["dtype"], "n": rows.n, "k": rows.k, "tokens": rows.m,
         "time_us": rows.time_us},
    )  # fmt: skip


def _tidy_prefill(found: Imported, path: Path) -> None:
    table = read_table(
        path, ["kv_dtype", "batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "time_us"]
    )
    whole(table, ["batch", "q_len", "kv_len", "n_heads", "n_kv_heads"], path, 1)
    positive(table, "time_us", path)
    if (table.kv_len < table.q_len).any():
        raise ConfigError(f"{path}: kv_len below q_len: a chunk attends to itself at least")
    rows = known_dtypes(found, table, "kv_dtype", path)
    found.add(
        "attention_prefill",
        {"kv_dtype": rows.kv_dtype, "heads": rows.n_heads, "kv_heads": rows.n_kv_heads,
         "head_dim": TIDY_HEAD_DIM, "batch": rows.batch, "tokens": rows.q_len,
         "history": rows.kv_len - rows.q_len, "time_us": rows.time_us},
    )  # fmt: skip


def _tidy_decode(found: Imported, path: Path) -> None:
    table = read_table(path, ["kv_dtype", "batch", "kv_len", "n_heads", "n_kv_heads", "time_us"])
    whole(table, ["batch", "kv_len", "n_heads", "n_kv_heads"], path, 1)
    positive(table, "time_us", path)
    rows = known_dtypes(found, table, "kv_dtype", path)
    found.add(
        "attention_decode",
        {"kv_dtype": rows.kv_dtype, "heads": rows.n_heads, "kv_heads": rows.n_kv_heads,
         "head_dim": TIDY_HEAD_DIM, "batch": rows.batch, "context": rows.kv_len, "skew": 0.0,
         "time_us": rows.time_us},
    )  # fmt: skip


def _tidy_collectives(found: Imported, path: Path, system: str) -> None:
    table = read_table(path, ["system", "backend", "op", "n_gpus", "bytes", "time_us"])
    whole(table, ["n_gpus", "bytes"], path, 1)
    positive(table, "time_us", path)
    rows = table[(table.system == system) & table.op.isin(OPS)]
    found.add(
        "collective",
        {"op": rows.op.map(OPS), "backend": rows.backend, "gpus": rows.n_gpus,
         "bytes": rows.bytes, "time_us": rows.time_us},
    )  # fmt: skip


def known_dtypes(found: Imported, table: pd.DataFrame, column: str, path: Path) -> pd.DataFrame:
    """The rows whose data type we have, in our names; what is left out is noted."""
    kept = table[table[column].isin(DTYPES)].copy()
    kept[column] = kept[column].astype(str).map(DTYPES)
    others = sorted(set(table[column].astype(str)) - set(DTYPES))
    if others:
        left = len(table) - len(kept)
        found.note(f"{path.stem}: {left} rows of {', '.join(others)} are left out")
    return kept
