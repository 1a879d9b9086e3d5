"""Vidur's profiles (microsoft/vidur): linear layers, attention and collectives, in fp16.

Two forms are read. *Published*: any of ``mlp.csv``, ``attention.csv`` and ``all_reduce.csv`` below
a folder, as in ``data/profiling/compute/<device>/<model>/`` and ``data/profiling/network/<node>/``,
or one such file; milliseconds. *Tidy*: ``linear_ops.csv`` and ``collectives.csv``, microseconds.
Every file says the sizes of its model itself, so that no sheet is needed for it. Neither form has
LM head or sampler, which Vidur does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import positive, read_table, whole
from kernels_profile.importers.shapes import Shard
from sim.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

LICENCE = "MIT"
REPOSITORY = "https://github.com/microsoft/vidur"
ENGINE = "sarathi-serve"
"""Vidur profiles the layers of a fork of Sarathi-Serve."""

DEVICES = {"a100": "a100-sxm-80gb", "h100": "h100-sxm"}
"""Its names of devices and our sheets."""

NODES = {
    "a100_dgx": ("a100", "nccl"),
    "h100_dgx": ("h100", "nccl"),
    "a100_pairwise_nvlink": ("a100", "nccl-pairwise"),
    "a100_pair_nvlink": ("a100", "nccl-pairwise"),
    "h100_pairwise_nvlink": ("h100", "nccl-pairwise"),
    "h100_pair_nvlink": ("h100", "nccl-pairwise"),
    "a40_pairwise_nvlink": ("a40", "nccl-pairwise"),
}
"""Nodes of its network profiles: the device in them, and our name of the backend."""

LINEAR = {
    "attn_pre_proj": lambda shard: shard.qkv,
    "attn_post_proj": lambda shard: shard.output,
    "mlp_up_proj": lambda shard: shard.up,
    "mlp_down_proj": lambda shard: shard.down,
}
NORMS = ("input_layernorm", "post_attention_layernorm")
OTHERS = ("emb", "attn_rope", "mlp_act", "add")

MLP_NOTES = (
    "rms_norm is Vidur's norm and its separate addition of the residual, added up",
    "rotary is without the write of keys and values, which the attention profiles have",
    "kernels were timed one by one; below about 5 us the resolution of 1 us shows",
)
FILES = ("mlp.csv", "attention.csv", "all_reduce.csv")


def read(path: Path, naming: Naming) -> list[Imported]:
    """Data sets of all devices found, one each.

    Args:
        path: A folder in either form, or one published file.
        naming: Sheets of devices and nodes.

    Raises:
        ConfigError: nothing that can be read; a device without a sheet; a bad table.
    """
    found: dict[str, Imported] = {}
    if path.is_dir() and (path / "linear_ops.csv").exists():
        _read_tidy(path, naming, found)
    else:
        for file in _files(path):
            _PUBLISHED[file.name](file, naming, found)
    return list(found.values())


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


def _data(found: dict[str, Imported], device: str, form: str) -> Imported:
    origin = f"Vidur ({form} profiles)"
    return found.setdefault(device, Imported(device, origin, ENGINE, "of the Vidur revision"))


# --- the tidy form


def _read_tidy(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    file = path / "linear_ops.csv"
    sizes = ["n_head", "n_kv_head", "d_model", "d_ff"]
    names = [f"{name}_us" for name in (*LINEAR, *NORMS, *OTHERS)]
    table = read_table(file, ["device", "tp", "num_tokens", *sizes, "gated_mlp", *names])
    whole(table, ["tp", "num_tokens", *sizes], file, 1)
    for name, rows in table.groupby("device", sort=True):
        device = naming.device(str(name), DEVICES)
        if device is not None:
            renamed = rows.rename(
                columns={f"{name}_us": name for name in (*LINEAR, *NORMS, *OTHERS)}
            )
            _add_layers(_data(found, device, "tidy"), renamed, file, {})
    _tidy_collectives(path / "collectives.csv", naming, found)


def _tidy_collectives(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    columns = ["num_workers", "devices_per_node", "message_bytes"]
    table = read_table(path, ["node", "op", *columns, "time_us"])
    whole(table, columns, path, 1)
    positive(table, "time_us", path)
    for node, rows in table[table.op == "all_reduce"].groupby("node", sort=True):
        place = _node(str(node), naming)
        if place is not None:
            here = rows[rows.num_workers == rows.devices_per_node]
            _add_all_reduce(_data(found, place[0], "tidy"), place[1], here, "message_bytes", {})


def _node(node: str, naming: Naming) -> tuple[str, str] | None:
    """Our device and backend of a node; None where either name is to be skipped."""
    name, backend = NODES.get(node, (node, "nccl"))
    if node in naming.skip:
        naming.skipped.add(node)
        return None
    device = naming.device(name, {**DEVICES, name: naming.given.get(node, DEVICES.get(name, name))})
    return None if device is None else (device, backend)


# --- the published form


def _read_mlp(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    sizes = ["n_head", "n_kv_head", "n_embd", "n_expanded_embd"]
    medians = [f"time_stats.{name}.median" for name in (*LINEAR, "input_layernorm", *OTHERS)]
    tp = "num_tensor_parallel_workers"
    table = read_table(path, [*sizes, "use_gated_mlp", "num_tokens", tp, *medians])
    device = _device_of(path, "compute", naming)
    if device is None:
        return
    whole(table, [*sizes, "num_tokens", tp], path, 1)
    names = {"n_embd": "d_model", "n_expanded_embd": "d_ff", "use_gated_mlp": "gated_mlp", tp: "tp"}
    spread = {}
    for name in (*LINEAR, *NORMS, *OTHERS):
        if f"time_stats.{name}.median" in table:
            table[name] = table[f"time_stats.{name}.median"] * 1e3
            spread[name] = _cv(table, name)
    _add_layers(_data(found, device, "published"), table.rename(columns=names), path, spread)


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
    data = _data(found, device, "published")
    table = _one_backend(data, table)
    prefill = table.is_prefill.astype(str).str.lower() == "true"
    _add_attention(data, table[prefill], path, "attn_prefill")
    _add_attention(data, table[~prefill], path, "attn_decode")


def _read_all_reduce(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    columns = ["num_workers", "devices_per_node", "size"]
    table = read_table(path, [*columns, "time_stats.all_reduce.median"])
    place = _node("" if naming.of else _below(path, "network"), naming)
    if place is None:
        return
    whole(table, columns, path, 1)
    table["time_us"] = table["time_stats.all_reduce.median"] * 1e3
    positive(table, "time_us", path)
    table["cv"] = _cv(table, "all_reduce")
    here = table[table.num_workers == table.devices_per_node]
    data = _data(found, place[0], "published")
    _add_all_reduce(data, place[1], here, "size", {"cv": here.cv})


_PUBLISHED = {
    "mlp.csv": _read_mlp,
    "attention.csv": _read_attention,
    "all_reduce.csv": _read_all_reduce,
}


def _device_of(path: Path, above: str, naming: Naming) -> str | None:
    return naming.device("" if naming.of else _below(path, above), DEVICES)


def _below(path: Path, above: str) -> str:
    """The folder below ``compute`` or ``network``, which Vidur names after device or node."""
    parts = path.absolute().parts
    if above not in parts[:-2]:
        raise ConfigError(
            f"{path}: does not say which device it is of: keep Vidur's folders "
            f"({above}/<{'device' if above == 'compute' else 'node'}>/...), or give --device"
        )
    return parts[len(parts) - parts[::-1].index(above)]


def _cv(table: pd.DataFrame, name: str) -> pd.Series:
    """Spread over the repeats, std/mean; empty where it is not known."""
    import pandas as pd

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


# --- both


def _add_layers(
    data: Imported, table: pd.DataFrame, path: Path, spread: Mapping[str, pd.Series]
) -> None:
    """Layers by tokens; times in columns named after Vidur's operators, microseconds."""
    data.notes.extend(note for note in MLP_NOTES if note not in data.notes)
    for name in LINEAR:
        positive(table, name, path)
    keys = ["n_head", "n_kv_head", "d_model", "d_ff", "tp", "gated_mlp"]
    for (heads, kv_heads, hidden, inner, tp, gated), rows in table.groupby(keys):
        shard = Shard(
            hidden,
            heads // tp,
            max(1, kv_heads // tp),
            hidden // heads,
            inner // tp,
            0,
            bool(gated),
        )
        for name, shape in LINEAR.items():
            n, k = shape(shard)
            more = {"cv": spread[name][rows.index]} if name in spread else {}
            data.add(
                "linear",
                {"dtype": "fp16", "n": n, "k": k, "tokens": rows.num_tokens,
                 "time_us": rows[name], **more},
            )  # fmt: skip
        _add_elementwise(data, rows, shard)


def _add_elementwise(data: Imported, rows: pd.DataFrame, shard: Shard) -> None:
    parts = [("embedding", shard.hidden, rows.emb), ("add", shard.hidden, rows["add"])]
    parts.append(("rotary", shard.rotary, rows.attn_rope))
    parts += [("rms_norm", shard.hidden, rows[x] + rows["add"]) for x in NORMS if x in rows]
    if shard.gated:
        parts.append(("silu_mul", shard.intermediate, rows.mlp_act))
    for op, width, us in parts:
        timed = us > 0
        if (us == 0).any():
            data.note(f"{op}: times of 0, below the resolution, are left out")
        data.add(
            "elementwise",
            {"op": op, "width": width, "tokens": rows.num_tokens[timed], "time_us": us[timed]},
        )


def _add_attention(data: Imported, rows: pd.DataFrame, path: Path, name: str) -> None:
    """Prefill or decode attention with the write of keys and values, where that was timed."""
    if rows.empty:
        return
    saved = rows.get("time_stats.attn_kv_cache_save.median")
    rows = rows.assign(
        time_us=1e3
        * (rows[f"time_stats.{name}.median"] + (0 if saved is None else saved.fillna(0)))
    )
    positive(rows, "time_us", path)
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
    measured = {"time_us": rows.time_us, "cv": _cv(rows, name)}
    if name == "attn_prefill":
        size = {"tokens": rows.prefill_chunk_size, "history": rows.kv_cache_size}
        data.add("attention_prefill", {**key, **size, **measured})
    else:
        size = {"context": rows.kv_cache_size + 1, "skew": 0.0}
        data.add("attention_decode", {**key, **size, **measured})


def _add_all_reduce(
    data: Imported, backend: str, rows: pd.DataFrame, size: str, more: Mapping[str, object]
) -> None:
    data.add(
        "collective",
        {"op": "all_reduce", "backend": backend, "gpus": rows.num_workers, "bytes": rows[size],
         "time_us": rows.time_us, **more},
    )  # fmt: skip
