"""Vidur's profiles (microsoft/vidur): linear layers, attention and collectives, in fp16.

Two forms are read. *Published*: any of ``mlp.csv``, ``attention.csv`` and ``all_reduce.csv`` below
a folder, as in ``data/profiling/compute/<device>/<model>/`` and ``data/profiling/network/<node>/``,
or one such file; milliseconds. *Tidy*: ``linear_ops.csv`` and ``collectives.csv``, microseconds.
Every file says the sizes of its model itself, so that no sheet is needed for it. Neither form has
LM head or sampler, which Vidur does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import at_least_0, flags, positive, read_table, whole
from kernels_profile.importers.shapes import Shard

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
        from kernels_profile.importers.vidur_published import read_published

        read_published(path, naming, found)
    return list(found.values())


def data_of(found: dict[str, Imported], device: str, form: str) -> Imported:
    """The data set of a device, begun where there is none."""
    origin = f"Vidur ({form} profiles)"
    return found.setdefault(device, Imported(device, origin, ENGINE, "of the Vidur revision"))


# --- the tidy form


def _read_tidy(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    file = path / "linear_ops.csv"
    sizes = ["n_head", "n_kv_head", "d_model", "d_ff"]
    names = [f"{name}_us" for name in (*LINEAR, *NORMS, *OTHERS)]
    table = read_table(file, ["device", "tp", "num_tokens", *sizes, "gated_mlp", *names])
    whole(table, ["tp", "num_tokens", *sizes], file, 1)
    check_layers(table, "{}_us", file)
    flags(table, "gated_mlp", file)
    for name, rows in table.groupby("device", sort=True):
        device = naming.device(str(name), DEVICES)
        if device is not None:
            renamed = rows.rename(
                columns={f"{name}_us": name for name in (*LINEAR, *NORMS, *OTHERS)}
            )
            add_layers(data_of(found, device, "tidy"), renamed, {})
    _tidy_collectives(path / "collectives.csv", naming, found)


def _tidy_collectives(path: Path, naming: Naming, found: dict[str, Imported]) -> None:
    columns = ["num_workers", "devices_per_node", "message_bytes"]
    table = read_table(path, ["node", "op", *columns, "time_us"])
    whole(table, columns, path, 1)
    positive(table, "time_us", path)
    naming.seen.update(map(str, table.node.unique()))  # some have other collectives only
    for node, rows in table[table.op == "all_reduce"].groupby("node", sort=True):
        place = place_of(str(node), naming)
        if place is not None:
            here = rows[rows.num_workers == rows.devices_per_node]
            add_all_reduce(data_of(found, place[0], "tidy"), place[1], here, "message_bytes", {})


def place_of(node: str, naming: Naming) -> tuple[str, str] | None:
    """Our device and backend of a node; None where either name is to be skipped."""
    name, backend = NODES.get(node, (node, "nccl"))
    if naming.skips(node):
        return None
    said = "" if node in naming.given and naming.of else name
    device = naming.device(said, {**DEVICES, name: naming.given.get(node, DEVICES.get(name, name))})
    return None if device is None else (device, backend)


# --- both


def check_layers(table: pd.DataFrame, column: str, path: Path) -> None:
    """Check the times of all layers, in columns such as ``{}_us``.

    Models whose attention and MLP run side by side have no second norm.

    Raises:
        ConfigError: one that is no time; only element-wise kernels may take 0, see `MLP_NOTES`.
    """
    for name in LINEAR:
        positive(table, column.format(name), path)
    first, second = (column.format(name) for name in NORMS)
    at_least_0(table, [first, *map(column.format, OTHERS)], path)
    at_least_0(table, [second], path, blank=True)


def add_layers(data: Imported, table: pd.DataFrame, spread: Mapping[str, pd.Series]) -> None:
    """Layers by tokens; times in columns named after Vidur's operators, microseconds."""
    data.notes.extend(note for note in MLP_NOTES if note not in data.notes)
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


def add_all_reduce(
    data: Imported, backend: str, rows: pd.DataFrame, size: str, more: Mapping[str, object]
) -> None:
    """Add all-reduces; bytes are in column `size`."""
    data.add(
        "collective",
        {"op": "all_reduce", "backend": backend, "gpus": rows.num_workers, "bytes": rows[size],
         "time_us": rows.time_us, **more},
    )  # fmt: skip
