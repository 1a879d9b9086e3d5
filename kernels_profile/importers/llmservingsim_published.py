"""LLMServingSim's own folders: ``profiler/perf/<hardware>/<model>/<variant>/tp<N>/``.

Each ``tp<N>`` holds ``dense.csv``, ``per_sequence.csv``, ``attention.csv`` and maybe ``moe.csv``
and ``skew.csv``; ``meta.yaml`` beside them says hardware, model and versions; ``hardware.yaml``
above the models has the collectives. The form is described in its docs, `profiler/output-bundle`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.llmservingsim import (
    HARDWARE,
    MODELS,
    add_attention,
    add_dense,
    add_experts,
    add_sequences,
)
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import at_least_0, positive, read_table, whole
from kernels_profile.importers.shapes import Shard
from kernels_profile.table import MOST_US
from sim.errors import ConfigError
from sim.specs import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}

NOTES = (
    "the write of keys and values is in attention, as vLLM has it, and not in rotary",
    "norms at tp above 1 are the source's copy of those at tp 1",
)


@dataclass(frozen=True)
class Bundle:
    """One ``tp<N>`` folder and what its ``meta.yaml`` says.

    Attributes:
        folder: It.
        tp: N.
        meta: Keys of ``meta.yaml``.
    """

    folder: Path
    tp: int
    meta: Mapping[str, Any]


def read_published(path: Path, naming: Naming) -> list[Imported]:
    """Data sets of all hardware below a folder, one each.

    Raises:
        ConfigError: no ``tp<N>`` folder, or one that is partial; a name without a sheet.
    """
    found: dict[str, Imported] = {}
    for bundle in _bundles(path):
        hardware, name = str(bundle.meta["hardware"]), str(bundle.meta["model"])
        sheets = naming.pair(hardware, name, HARDWARE, MODELS)
        if sheets is None:
            continue
        device, model = sheets
        version = str(bundle.meta["vllm_version"])
        origin = f"LLMServingSim, {hardware}"
        data = found.setdefault(device, Imported(device, origin, "vllm", version))
        _add_version(data, name, version)
        data.gpu = {"name": str(bundle.meta.get("gpu", hardware))}
        _add_bundle(data, bundle, model)
        _add_collectives(data, bundle.folder)
    return list(found.values())


def _bundles(path: Path) -> list[Bundle]:
    if not path.is_dir():
        raise ConfigError(f"{path}: expected a folder of profiler/perf, not one file of it")
    inner = [path] if re.fullmatch(r"tp\d+", path.name) else sorted(path.rglob("tp*"))
    folders = [each for each in inner if each.is_dir() and re.fullmatch(r"tp\d+", each.name)]
    if not folders:
        raise ConfigError(
            f"{path}: has no tp<N> folder in it or below, as profiler/perf/<hardware>/<model>/"
            "<variant>/tp<N> has, nor the tidy ops_dense.csv"
        )
    return [Bundle(folder, int(folder.name[2:]), _meta(folder.parent)) for folder in folders]


def _meta(folder: Path) -> Mapping[str, Any]:
    path = folder / "meta.yaml"
    said = _yaml(path)
    missing = [key for key in ("hardware", "model", "variant", "vllm_version") if key not in said]
    if missing:
        raise ConfigError(f"{path}: lacks {', '.join(missing)}")
    return said


def _yaml(path: Path) -> Mapping[str, Any]:
    import yaml

    if not path.is_file():
        raise ConfigError(f"{path}: no such file; a profile has it beside its tp<N> folders")
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(said, dict):
        raise ConfigError(f"{path}: expected keys and values")
    return said


def _add_version(data: Imported, model: str, version: str) -> None:
    if version != data.version:
        data.note(f"{model} was profiled with vLLM {version}")
    for note in NOTES:
        data.note(note)


def _dtypes(variant: str, path: Path) -> tuple[str, str]:
    """Of weights and KV cache, from a name such as ``fp8-kvfp8``."""
    weights, _, kv = variant.partition("-kv")
    kv = kv or ("fp16" if weights == "fp16" else "bf16")
    if weights not in DTYPES or kv not in DTYPES:
        raise ConfigError(f"{path}: variant {variant} is not known; expected bf16, fp8-kvfp8, ...")
    return weights, kv


def _add_bundle(data: Imported, bundle: Bundle, model: ModelSpec) -> None:
    folder, shard = bundle.folder, Shard.of(model, bundle.tp)
    weights, kv = _dtypes(str(bundle.meta["variant"]), folder.parent / "meta.yaml")
    dense = _table(folder / "dense.csv", ["layer"], ["tokens"])
    add_dense(data, dense, shard, folder / "dense.csv", weights)
    sequences = _table(folder / "per_sequence.csv", ["layer"], ["sequences"])
    add_sequences(data, sequences, shard, folder / "per_sequence.csv")
    attention = _attention(data, folder / "attention.csv")
    add_attention(data, attention, shard, kv)
    if (folder / "skew.csv").exists():
        _add_skew(data, folder / "skew.csv", attention, {"kv_dtype": kv, **shard.attention})
    if (folder / "moe.csv").exists():
        rows = _table(folder / "moe.csv", [], ["tokens", "activated_experts"])
        add_experts(data, _own_experts(data, rows, folder / "moe.csv"), model, bundle.tp, weights)


def _table(path: Path, words: list[str], counts: list[str]) -> pd.DataFrame:
    table = read_table(path, [*words, *counts, "time_us"])
    whole(table, counts, path, 0 if "n_decode" in counts else 1)
    positive(table, "time_us", path)
    return table


def _attention(data: Imported, path: Path) -> pd.DataFrame:
    """Rows of plain attention with one query token a decode, in the older form's columns."""
    table = _table(path, [], ["prefill_chunk", "n_decode", "kv_decode"])
    if "layer" in table:
        table = table[table.layer == "attention"]
    at_least_0(table, ["kv_prefill", "prefill_key"], path)
    if "decode_q_len" in table:
        whole(table, ["decode_q_len"], path)
        table = table[table.decode_q_len == 1]
    if "kv_prefill" not in table:
        if "prefill_key" not in table:
            raise ConfigError(f"{path}: has no column kv_prefill or prefill_key")
        # The mean key length over a chunk's tokens, each counted half of the chunk itself.
        history = table.prefill_key - table.prefill_chunk / 2
        several = history < 0
        if several.any():
            data.note(f"attention: {int(several.sum())} launches of several prompts are left out")
        table = table.assign(kv_prefill=history)[~several]
    return table


def _add_skew(
    data: Imported, path: Path, attention: pd.DataFrame, key: Mapping[str, object]
) -> None:
    """Decodes of two different contexts, where every batch size above 1 was measured so."""
    columns = ["n", "nb", "pc", "kvs", "kv_big"]
    table = read_table(path, [*columns, "t_skew_us"])
    whole(table, ["n", "nb"], path, 1)
    whole(table, ["pc", "kvs", "kv_big"], path)
    rows = table[(table.pc == 0) & (table.kv_big > table.kvs)]
    if "layer" in rows:
        rows = rows[rows.layer == "attention"]
    batches = attention[(attention.prefill_chunk == 0) & (attention.n_decode > 1)].n_decode
    if set(batches) - set(rows.n):
        data.note("decodes of unequal contexts (skew.csv) do not cover all batches: left out")
        return
    positive(rows := rows.copy(), "t_skew_us", path)
    share = rows.nb / rows.n
    mean = share * rows.kv_big + (1 - share) * rows.kvs
    deviation = (share * (1 - share)) ** 0.5 * (rows.kv_big - rows.kvs)
    data.add(
        "attention_decode",
        {**key, "batch": rows.n, "context": mean, "skew": (deviation / mean).round(6),
         "time_us": rows.t_skew_us},
    )  # fmt: skip


def _own_experts(data: Imported, rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Rows without expert parallelism."""
    if "ep" not in rows:
        return rows
    whole(rows, ["ep"], path, 1)
    if (rows.ep == 1).all():
        return rows
    data.note("experts: rows of expert parallelism are left out")
    return rows[rows.ep == 1]


def _add_collectives(data: Imported, folder: Path) -> None:
    """What ``hardware.yaml`` measured, bytes of all GPUs together."""
    path = next(
        (up / "hardware.yaml" for up in folder.parents[:4] if (up / "hardware.yaml").is_file()),
        None,
    )
    if path is None:
        data.note("no hardware.yaml, so no collectives")
        return
    link = (_yaml(path).get("measured") or {}).get("interconnect") or {}
    gpus, samples = link.get("npus"), link.get("samples")
    if "collective" in data.tables:
        return
    if not isinstance(gpus, int) or not samples:
        data.note(f"{path.name} has no measured collectives")
        return
    rows = [_sample(sample, gpus, path) for sample in samples]
    data.add("collective", {name: [row[name] for row in rows] for name in rows[0]})


def _sample(sample: Mapping[str, Any], gpus: int, path: Path) -> dict[str, object]:
    """The source counts the input of an all-reduce, and one GPU's part of the others."""
    op, size, us = sample.get("collective"), sample.get("bytes"), sample.get("us_graphed")
    us = sample.get("us") if us is None else us
    if op not in ("all_reduce", "all_gather", "reduce_scatter") or not size or not us:
        raise ConfigError(f"{path}: a sample has no collective, bytes or us: {dict(sample)}")
    if not (_number(size) and float(size).is_integer() and _number(us)):
        raise ConfigError(f"{path}: a sample's bytes or us is no number above 0: {dict(sample)}")
    times = 1 if op == "all_reduce" else gpus
    return {"op": op, "backend": "nccl", "gpus": gpus, "bytes": size * times, "time_us": us}


def _number(said: object) -> bool:
    return type(said) in (int, float) and 0 < said <= MOST_US  # type: ignore[operator]
