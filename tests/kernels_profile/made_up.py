"""A data set of a small model made from closed forms, so that tests know what to expect."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels_profile.host import HostOverhead
from kernels_profile.step_time import ProfiledStepTime
from kernels_profile.table import Meta, find_data_sets, write_meta, write_table
from sim.specs import ModelSpec, load_device

MODEL = ModelSpec(
    name="small",
    layers=3,
    hidden=64,
    heads=8,
    kv_heads=4,
    head_dim=16,
    intermediate=96,
    vocab=512,
    max_positions=4096,
)
DEVICE = load_device("h200")
HOST = HostOverhead(10.0, 2.0)
TOKENS = (1, 8, 64, 256, 1024)
CONTEXTS = (1, 64, 512, 2048)
BATCHES = (1, 4, 16, 64)
Rows = list[dict[str, Any]]


def linear_us(n: int, k: int, tokens: int) -> float:
    return 1 + n * k * (20 + tokens) / 1e5


def elementwise_us(width: int, tokens: int) -> float:
    return 0.5 + width * tokens / 1e4


def prefill_us(heads: int, batch: int, tokens: int, history: int) -> float:
    return 3 + batch * heads * tokens * (history + (tokens + 1) / 2) / 1e4


def decode_us(kv_heads: int, batch: int, context: int, skew: float) -> float:
    return 2 + kv_heads * batch * (50 + context) * (1 + skew) / 1e3


def mixed_us(heads: int, tokens: int, history: int, decodes: int, context: int) -> float:
    work = tokens * (history + (tokens + 1) / 2) + 2 * decodes * context
    return 4 + heads * work / 1e4


def collective_us(gpus: int, size: int) -> float:
    return 5 + gpus * size / 1e5


def shapes(tp: int) -> dict[str, tuple[int, int]]:
    """(n, k) of the layers on one GPU."""
    heads, kv_heads, inner = 8 // tp, 4 // tp, 96 // tp
    return {
        "qkv": ((heads + 2 * kv_heads) * 16, 64),
        "output": (64, heads * 16),
        "up": (2 * inner, 64),
        "down": (64, inner),
    }


def tables(
    tps: tuple[int, ...] = (1, 2),
    *,
    skews: tuple[float, ...] = (0.0,),
    histories: tuple[int, ...] = (0, 64, 512),
    mixed: bool = False,
    cv: float | None = None,
) -> dict[str, Rows]:
    """Rows of each table."""
    found: dict[str, Rows] = {
        name: []
        for name in (
            "linear", "elementwise", "per_sequence", "attention_prefill", "attention_decode",
            "attention_mixed", "collective",
        )
    }  # fmt: skip
    for tp in tps:
        _add_shard(found, tp, skews, histories, mixed=mixed)
    if cv is not None:
        for row in itertools.chain(*found.values()):
            row |= {"cv": cv, "repeats": 9}
    return {name: _once(rows) for name, rows in found.items() if rows}


def _add_shard(
    found: dict[str, Rows],
    tp: int,
    skews: tuple[float, ...],
    histories: tuple[int, ...],
    *,
    mixed: bool,
) -> None:
    heads, kv_heads = 8 // tp, 4 // tp
    attention = {"kv_dtype": "bf16", "heads": heads, "kv_heads": kv_heads, "head_dim": 16}
    for (n, k), t in itertools.product(shapes(tp).values(), TOKENS):
        found["linear"].append(
            {"dtype": "bf16", "n": n, "k": k, "tokens": t, "time_us": linear_us(n, k, t)}
        )
    widths = {
        "embedding": 64,
        "rms_norm": 64,
        "rotary": (heads + 2 * kv_heads) * 16,
        "silu_mul": 96 // tp,
    }
    for (op, width), t in itertools.product(widths.items(), TOKENS):
        us = elementwise_us(width, t)
        found["elementwise"].append({"op": op, "width": width, "tokens": t, "time_us": us})
    for op, s in itertools.product(("lm_head", "sampler"), TOKENS):
        found["per_sequence"].append(
            {"op": op, "dtype": "bf16", "vocab": 512 // tp, "hidden": 64, "sequences": s,
             "time_us": elementwise_us(512 // tp, s)}
        )  # fmt: skip
    for b, t, h in itertools.product((1, 4), TOKENS, histories):
        us = prefill_us(heads, b, t, h)
        found["attention_prefill"].append(
            {**attention, "batch": b, "tokens": t, "history": h, "time_us": us}
        )
    for b, c, s in itertools.product(BATCHES, CONTEXTS, skews):
        us = decode_us(kv_heads, b, c, s)
        found["attention_decode"].append(
            {**attention, "batch": b, "context": c, "skew": s, "time_us": us}
        )
    if mixed:
        for t, h, d, c in itertools.product(TOKENS, histories, BATCHES, CONTEXTS):
            us = mixed_us(heads, t, h, d, c)
            found["attention_mixed"].append(
                {**attention, "tokens": t, "history": h, "decodes": d, "context": c, "time_us": us}
            )
    if tp > 1:
        for op, b in itertools.product(("all_reduce", "all_gather"), (128, 1 << 14, 1 << 20)):
            found["collective"].append(
                {"op": op, "backend": "custom", "gpus": tp, "bytes": b,
                 "time_us": collective_us(tp, b)}
            )  # fmt: skip


def _once(rows: Rows) -> Rows:
    """Shards have shapes in common."""
    values = ("time_us", "cv", "repeats")
    return list({tuple(v for k, v in row.items() if k not in values): row for row in rows}.values())


def written(folder: Path, made: dict[str, Rows], device: str = "h200") -> Path:
    """The data set on disk."""
    write_meta(folder, Meta(device, "made up"))
    for name, rows in made.items():
        write_table(folder, name, rows)
    return folder


def model_of(folder: Path, made: dict[str, Rows] | None = None, **options: Any) -> ProfiledStepTime:
    """Step times of the small model from made-up tables."""
    sets = find_data_sets([written(folder, tables() if made is None else made)], "h200")
    spec = options.pop("model", MODEL)
    return ProfiledStepTime(spec, DEVICE, sets, **{"host": HOST} | options)


def layer_sum(tp: int, us: Callable[[int, int], float]) -> float:
    """A sum over the linear layers of one decoder layer."""
    return sum(us(n, k) for n, k in shapes(tp).values())


def without(made: dict[str, Rows], table: str, **equal: object) -> dict[str, Rows]:
    """The tables without some rows of one."""
    kept = [row for row in made[table] if any(row[k] != v for k, v in equal.items())]
    rest = {name: rows for name, rows in made.items() if name != table}
    return {**rest, table: kept} if kept else rest
