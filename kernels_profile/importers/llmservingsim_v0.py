"""Profiles of LLMServingSim's first profiler: ``perf_models``, layers timed one by one.

Two forms are read. *Published*: ``perf_models/<device>/<model>/tp<N>/`` with ``layers.csv``
(nanoseconds) and ``attention.csv`` (milliseconds). *Tidy*: ``ops_v0_layers.csv`` and
``ops_v0_attention.parquet`` with columns device, model and tp, microseconds.

That profiler runs queries, keys and values, gate and up as products of their own, so that our fused
ones are their sums. Its prefill attention is not taken: the times grow with chunk x keys as if
nothing were masked, and neither history nor total length explains them. Experts were timed one
matrix at a time, of which a whole block cannot be made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.llmservingsim import LICENCE, REPOSITORY, add_sequences
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import flags, positive, read_table, whole
from kernels_profile.importers.shapes import Shard
from sim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LICENCE", "REPOSITORY", "read"]

DEVICES = {"H100": "h100-sxm"}
"""Its names of devices and our sheets, where the two are unlike."""

LINEAR: Sequence[tuple[tuple[str, ...], Callable[[Shard], tuple[int, int]]]] = (
    (("q_proj", "k_proj", "v_proj"), lambda shard: shard.qkv),
    (("o_proj",), lambda shard: shard.output),
    (("gate_proj", "up_proj"), lambda shard: shard.up),
    (("down_proj",), lambda shard: shard.down),
)
"""Products whose times are added up, and (outputs, inputs) of what they stand for."""

ELEMENTWISE: Mapping[str, tuple[str, Callable[[Shard], int]]] = {
    "embedding": ("embedding", lambda shard: shard.hidden),
    "input_layernorm": ("rms_norm", lambda shard: shard.hidden),
    "post_layernorm": ("rms_norm", lambda shard: shard.hidden),
    "rope": ("rotary", lambda shard: shard.rotary),
    "act_fn": ("silu_mul", lambda shard: shard.intermediate),
}

NOTES = (
    "QKV is the sum of three products, gate and up of two, as this profiler ran them",
    "norms are without the residual, rotary without the write of keys and values",
    "prefill attention and experts are left out: see the importer",
)


def read(path: Path, naming: Naming) -> list[Imported]:
    """Data sets of all devices found, one each.

    Args:
        path: A folder in either form.
        naming: Sheets of devices and models.

    Raises:
        ConfigError: nothing that can be read; a device or model without a sheet; a bad table.
    """
    found: dict[str, Imported] = {}
    if (path / "ops_v0_layers.csv").exists():
        layers = _tidy(path / "ops_v0_layers.csv")
        decodes = _tidy(path / "ops_v0_attention.parquet")
        parts = [(key, layers[key], decodes.get(key)) for key in sorted(layers)]
    else:
        parts = [_published(folder) for folder in _folders(path)]
    for (hardware, name, tp), rows, attention in parts:
        sheets = naming.pair(hardware, name, DEVICES)
        if sheets is None:
            continue
        device, model = sheets
        data = found.setdefault(device, _data(device, hardware))
        shard = Shard.of(model, tp)
        _add_layers(data, rows, shard, path)
        if attention is not None:
            _add_decodes(data, attention, shard)
    return list(found.values())


def _data(device: str, hardware: str) -> Imported:
    origin = f"LLMServingSim's first profiler, {hardware}"
    return Imported(device, origin, "engine not stated", "by the source", notes=list(NOTES))


Key = tuple[str, str, int]


def _tidy(path: Path) -> dict[Key, pd.DataFrame]:
    columns = ["layer", "tokens"] if path.suffix == ".csv" else ["is_prefill", "batch", "kv_len"]
    table = read_table(path, ["device", "model", "tp", *columns, "time_us"])
    whole(table, ["tp", *(x for x in columns if x not in ("layer", "is_prefill"))], path, 1)
    if "is_prefill" in columns:
        flags(table, "is_prefill", path)
    positive(table, "time_us", path)
    groups = table.groupby(["device", "model", "tp"], observed=True)
    return {(str(d), str(m), int(tp)): rows for (d, m, tp), rows in groups}


def _folders(path: Path) -> list[Path]:
    files = sorted(path.rglob("layers.csv")) if path.is_dir() else []
    if not files:
        raise ConfigError(
            f"{path}: has no perf_models/<device>/<model>/tp<N>/layers.csv in it or below, nor the "
            "tidy ops_v0_layers.csv"
        )
    return [file.parent for file in files]


def _published(folder: Path) -> tuple[Key, pd.DataFrame, pd.DataFrame | None]:
    parts = folder.absolute().parts
    if "perf_models" not in parts or not re.fullmatch(r"tp\d+", folder.name):
        raise ConfigError(f"{folder}: expected it at perf_models/<device>/<model>/tp<N>")
    at = parts.index("perf_models")
    key = (parts[at + 1], "/".join(parts[at + 2 : -1]), int(folder.name[2:]))
    path = folder / "layers.csv"
    layers = read_table(path, ["layer_name", "input", "latency(ns)"])
    layers = layers.rename(columns={"layer_name": "layer", "input": "tokens"})
    positive(layers, "latency(ns)", path)
    layers["time_us"] = layers["latency(ns)"] / 1e3
    attention = folder / "attention.csv"
    return key, layers, _vidur_form(attention) if attention.exists() else None


def _vidur_form(path: Path) -> pd.DataFrame:
    """Decodes of a table in Vidur's columns, milliseconds."""
    median = "time_stats.attn_decode.median"
    table = read_table(path, ["batch_size", "kv_cache_size", "is_prefill", median])
    whole(table, ["batch_size"], path, 1)
    whole(table, ["kv_cache_size"], path)
    flags(table, "is_prefill", path)
    table = table[~table.is_prefill].copy()
    positive(table, median, path)
    table = table.rename(columns={"batch_size": "batch", "kv_cache_size": "kv_len"})
    return table.assign(time_us=table[median] * 1e3, is_prefill=False)


def _add_layers(data: Imported, rows: pd.DataFrame, shard: Shard, path: Path) -> None:
    rows = rows.copy()
    whole(rows, ["tokens"], path, 1)
    times = rows.pivot_table(index="tokens", columns="layer", values="time_us", aggfunc="median")
    for names, shape in LINEAR:
        if set(names) <= set(times.columns):
            n, k = shape(shard)
            us = times[list(names)].sum(axis=1, skipna=False).dropna()
            data.add(
                "linear",
                {"dtype": "bf16", "n": n, "k": k, "tokens": us.index, "time_us": us.to_numpy()},
            )
    for name, (op, width) in ELEMENTWISE.items():
        if name in times:
            us = times[name].dropna()
            data.add(
                "elementwise",
                {"op": op, "width": width(shard), "tokens": us.index, "time_us": us.to_numpy()},
            )
    head = rows[rows.layer == "lm_head"].rename(columns={"tokens": "sequences"})
    add_sequences(data, head, shard, path)


def _add_decodes(data: Imported, rows: pd.DataFrame, shard: Shard) -> None:
    """Decodes of equal context: what was cached, and the new token."""
    rows = rows[~rows.is_prefill.astype(bool)]
    data.add(
        "attention_decode",
        {"kv_dtype": "bf16", **shard.attention, "batch": rows.batch, "context": rows.kv_len + 1,
         "skew": 0.0, "time_us": rows.time_us},
    )  # fmt: skip
