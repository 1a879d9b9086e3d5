"""Tables of aiconfigurator's own files: which columns they have, and what these mean for us."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.importers.aiconfigurator import OPS, known_dtypes
from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.reading import at_least_0, whole

if TYPE_CHECKING:
    import pandas as pd


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
    at_least_0(table, ["window_size", "beam_width"], path, blank=True)
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
