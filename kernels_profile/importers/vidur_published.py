"""Vidur's own files, milliseconds: ``mlp.csv``, ``attention.csv`` and ``all_reduce.csv``.

They lie in ``data/profiling/compute/<device>/<model>/`` and ``data/profiling/network/<node>/``; the
columns are those that `vidur/profiling/` writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import at_least_0, flags, positive, read_table, whole
from kernels_profile.importers.vidur import (
    DEVICES,
    LINEAR,
    NORMS,
    OTHERS,
    add_all_reduce,
    add_layers,
    check_layers,
    data_of,
    place_of,
)
from sim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

FILES = ("mlp.csv", "attention.csv", "all_reduce.csv")


def read_published(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    """Add what is below a folder, or in one file, to the data sets of `found`.

    Raises:
        ConfigError: none of the files; one that does not say its device; a bad table.
    """
    for file in _files(path):
        _READERS[file.name](file, naming, found)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        if path.name not in FILES:
            raise ConfigError(f"{path}: expected one of {', '.join(FILES)}")
        yield path
        return
    files = [file for name in FILES for file in sorted(path.rglob(name))]
    if not files:
        raise ConfigError(
            f"{path}: has no {', '.join(FILES[:-1])} or {FILES[-1]} in it or below, nor the tidy "
            "linear_ops.csv"
        )
    yield from files


def _read_mlp(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    sizes = ["n_head", "n_kv_head", "n_embd", "n_expanded_embd"]
    medians = [f"time_stats.{name}.median" for name in (*LINEAR, "input_layernorm", *OTHERS)]
    tp = "num_tensor_parallel_workers"
    table = read_table(path, [*sizes, "use_gated_mlp", "num_tokens", tp, *medians])
    device = _device_of(path, "compute", naming)
    if device is None:
        return
    whole(table, [*sizes, "num_tokens", tp], path, 1)
    check_layers(table, "time_stats.{}.median", path)
    flags(table, "use_gated_mlp", path)
    names = {"n_embd": "d_model", "n_expanded_embd": "d_ff", "use_gated_mlp": "gated_mlp", tp: "tp"}
    spread = {}
    for name in (*LINEAR, *NORMS, *OTHERS):
        if f"time_stats.{name}.median" in table:
            table[name] = table[f"time_stats.{name}.median"] * 1e3
            spread[name] = _cv(table, name, path)
    add_layers(data_of(found, device, "published"), table.rename(columns=names), spread)


def _read_attention(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    sizes = ["n_embd", "n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size"]
    counts = ["prefill_chunk_size", "kv_cache_size"]
    stats = ["time_stats.attn_prefill.median", "time_stats.attn_decode.median"]
    table = read_table(path, [*sizes, *counts, "is_prefill", *stats])
    device = _device_of(path, "compute", naming)
    if device is None:
        return
    whole(table, sizes, path, 1)
    whole(table, counts, path)
    flags(table, "is_prefill", path)
    data = data_of(found, device, "published")
    table = _one_backend(data, table)
    _add_attention(data, table[table.is_prefill].copy(), path, "attn_prefill")
    _add_attention(data, table[~table.is_prefill].copy(), path, "attn_decode")


def _read_all_reduce(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    columns = ["num_workers", "devices_per_node", "size"]
    table = read_table(path, [*columns, "time_stats.all_reduce.median"])
    place = place_of(_below(path, "network", naming), naming)
    if place is None:
        return
    whole(table, columns, path, 1)
    positive(table, "time_stats.all_reduce.median", path)
    table["time_us"] = table["time_stats.all_reduce.median"] * 1e3
    table["cv"] = _cv(table, "all_reduce", path)
    here = table[table.num_workers == table.devices_per_node]
    data = data_of(found, place[0], "published")
    add_all_reduce(data, place[1], here, "size", {"cv": here.cv})


_READERS = {
    "mlp.csv": _read_mlp,
    "attention.csv": _read_attention,
    "all_reduce.csv": _read_all_reduce,
}


def _device_of(path: Path, above: str, naming: Naming) -> str | None:
    return naming.device(_below(path, above, naming), DEVICES)


def _below(path: Path, above: str, naming: Naming) -> str:
    """The folder below ``compute`` or ``network``, which Vidur names after device or node.

    "" where there is none, but the user says which device it is.
    """
    parts = path.absolute().parts
    if above not in parts[:-2]:
        if naming.of:
            return ""
        raise ConfigError(
            f"{path}: does not say which device it is of: keep Vidur's folders "
            f"({above}/<{'device' if above == 'compute' else 'node'}>/...), or give --device"
        )
    return parts[len(parts) - parts[::-1].index(above)]


def _cv(table: pd.DataFrame, name: str, path: Path) -> pd.Series:
    """Spread over the repeats, std/mean; empty where it is not known."""
    import pandas as pd

    at_least_0(table, [f"time_stats.{name}.{x}" for x in ("mean", "std")], path, blank=True)
    mean, std = table.get(f"time_stats.{name}.mean"), table.get(f"time_stats.{name}.std")
    if std is None or mean is None:
        return pd.Series(float("nan"), index=table.index)
    return (std / mean).where(mean > 0)


def _one_backend(data: Imported, table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the attention backend that was profiled most."""
    if "attention_backend" not in table or table.attention_backend.nunique() < 2:
        return table
    chosen = table.attention_backend.value_counts().index[0]
    others = sorted(set(table.attention_backend) - {chosen})
    data.note(f"attention is of {chosen}; {', '.join(others)} are left out")
    return table[table.attention_backend == chosen]


def _add_attention(data: Imported, rows: pd.DataFrame, path: Path, name: str) -> None:
    """Prefill or decode attention with the write of keys and values, where that was timed."""
    if rows.empty:
        return
    positive(rows, f"time_stats.{name}.median", path)
    at_least_0(rows, ["time_stats.attn_kv_cache_save.median"], path, blank=True)
    saved = rows.get("time_stats.attn_kv_cache_save.median")
    rows = rows.assign(
        time_us=1e3
        * (rows[f"time_stats.{name}.median"] + (0 if saved is None else saved.fillna(0)))
    )
    data.note(
        "attention includes the write of keys and values"
        if saved is not None
        else "attention is without the write of keys and values: this profile has none"
    )
    tp = rows.num_tensor_parallel_workers
    key = {
        "kv_dtype": "fp16",
        "heads": rows.n_q_head // tp,
        "kv_heads": (rows.n_kv_head // tp).clip(lower=1),
        "head_dim": rows.n_embd // rows.n_q_head,
        "batch": rows.batch_size,
    }
    measured = {"time_us": rows.time_us, "cv": _cv(rows, name, path)}
    if name == "attn_prefill":
        size = {"tokens": rows.prefill_chunk_size, "history": rows.kv_cache_size}
        data.add("attention_prefill", {**key, **size, **measured})
    else:
        size = {"context": rows.kv_cache_size + 1, "skew": 0.0}
        data.add("attention_decode", {**key, **size, **measured})
