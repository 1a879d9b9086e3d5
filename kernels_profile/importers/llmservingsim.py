"""LLMServingSim's profiles (casys-kaist/LLMServingSim): every operator of a model, as vLLM runs it.

Two forms are read. *Published*: ``profiler/perf/<hardware>/<model>/<variant>/tp<N>/`` with
``dense.csv``, ``per_sequence.csv``, ``attention.csv`` and, where there are, ``moe.csv``,
``skew.csv`` and the hardware's collectives. *Tidy*: ``ops_dense``, ``ops_per_sequence``,
``ops_attention`` and ``ops_moe``, with columns device, model and tp. All in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kernels_profile.importers.data_set import Imported
from kernels_profile.importers.naming import Naming
from kernels_profile.importers.reading import positive, read_table, whole
from kernels_profile.importers.shapes import Shard
from sim.errors import ConfigError, nearest
from sim.specs import ModelSpec

if TYPE_CHECKING:
    import pandas as pd

LICENCE = "MIT"
REPOSITORY = "https://github.com/casys-kaist/LLMServingSim"
TIDY_VERSION = "0.19.0"
"""vLLM of the tidy tables."""

HARDWARE = {"RTX4090": "rtx-4090", "RTXPRO6000": "rtx-pro-6000"}
"""Its names of devices and our sheets, where the two are unlike."""

MODELS = {"Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b"}
"""Its names of models and our sheets of the same shapes."""

LINEAR: Mapping[str, Callable[[Shard], tuple[int, int]]] = {
    "qkv_proj": lambda shard: shard.qkv,
    "o_proj": lambda shard: shard.output,
    "gate_up_proj": lambda shard: shard.up,
    "down_proj": lambda shard: shard.down,
}
"""Layers that are matrix products: (outputs, inputs) on one GPU."""

ELEMENTWISE: Mapping[str, tuple[str, Callable[[Shard], int]]] = {
    "embedding": ("embedding", lambda shard: shard.hidden),
    "layernorm": ("rms_norm", lambda shard: shard.hidden),
    "rotary_emb": ("rotary", lambda shard: shard.rotary),
    "qk_norm": ("qk_norm", lambda shard: shard.qk),
    "act_fn": ("silu_mul", lambda shard: shard.intermediate),
}
"""Other layers: our operator, and its width on one GPU."""

LEFT_OUT = ("final_layernorm",)
"""The same kernel and width as ``layernorm``."""

NOTES = (
    "the write of keys and values is in attention, as vLLM has it, and not in rotary",
    "norms of queries and keys at tp above 1 are the source's copy of those at tp 1",
    "collectives are not in the tidy tables",
)


def read(path: Path, naming: Naming) -> list[Imported]:
    """Data sets of all devices found, one each (two where precisions differ).

    Args:
        path: A folder in either form.
        naming: Sheets of devices and models.

    Raises:
        ConfigError: nothing that can be read; a device or model without a sheet; a bad table.
    """
    if (path / "ops_dense.csv").exists():
        return list(_read_tidy(path, naming))
    from kernels_profile.importers.llmservingsim_published import read_published

    return read_published(path, naming)


def _read_tidy(path: Path, naming: Naming) -> Iterator[Imported]:
    dense = _grouped(path / "ops_dense.csv", ["layer", "tokens"])
    sequences = _grouped(path / "ops_per_sequence.csv", ["layer", "sequences"])
    attention = _grouped(
        path / "ops_attention.parquet", ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]
    )
    moe = path / "ops_moe.csv"
    experts = _grouped(moe, ["tokens", "activated_experts"]) if moe.exists() else {}
    found: dict[str, Imported] = {}
    for key in sorted({*dense, *sequences, *attention, *experts}):
        hardware, name, tp = key
        sheets = naming.pair(hardware, name, HARDWARE, MODELS)
        if sheets is None:
            continue
        device, model = sheets
        origin = f"LLMServingSim, {hardware} (tidy tables)"
        data = found.setdefault(device, Imported(device, origin, "vllm", TIDY_VERSION))
        shard = Shard.of(model, tp)
        if key in dense:
            add_dense(data, dense[key], shard, path / "ops_dense.csv")
        if key in sequences:
            add_sequences(data, sequences[key], shard, path / "ops_per_sequence.csv")
        if key in attention:
            add_attention(data, attention[key], shard)
        if key in experts:
            add_experts(data, experts[key], model, tp)
    for data in found.values():
        data.notes.extend(NOTES)
        yield data


def _grouped(path: Path, columns: list[str]) -> dict[tuple[str, str, int], pd.DataFrame]:
    """Checked rows of a tidy table by device, model and tensor parallelism."""
    table = read_table(path, ["device", "model", "tp", *columns, "time_us"])
    whole(table, ["tp"], path, 1)
    counts = [column for column in columns if column != "layer"]
    whole(table, counts, path, 0 if "n_decode" in counts else 1)
    positive(table, "time_us", path)
    groups = table.groupby(["device", "model", "tp"], observed=True)
    return {(str(d), str(m), int(tp)): rows for (d, m, tp), rows in groups}


def add_dense(
    data: Imported, rows: pd.DataFrame, shard: Shard, path: Path, dtype: str = "bf16"
) -> None:
    """Layers by number of tokens.

    Raises:
        ConfigError: a layer that is not known.
    """
    for layer, part in rows.groupby("layer"):
        name = str(layer)
        if name in LINEAR:
            n, k = LINEAR[name](shard)
            data.add(
                "linear",
                {"dtype": dtype, "n": n, "k": k, "tokens": part.tokens, "time_us": part.time_us},
            )
        elif name in ELEMENTWISE:
            op, width = ELEMENTWISE[name]
            data.add(
                "elementwise",
                {"op": op, "width": width(shard), "tokens": part.tokens, "time_us": part.time_us},
            )
        elif name not in LEFT_OUT:
            raise ConfigError(
                f"{path}: layer {name} is not known{nearest(name, [*LINEAR, *ELEMENTWISE])}"
            )


def add_sequences(data: Imported, rows: pd.DataFrame, shard: Shard, path: Path) -> None:
    """LM head and sampler by number of sequences, both in 16 bits.

    Raises:
        ConfigError: a layer that is not known.
    """
    for layer, part in rows.groupby("layer"):
        if layer not in ("lm_head", "sampler"):
            raise ConfigError(f"{path}: layer {layer} is not known; expected lm_head or sampler")
        data.add(
            "per_sequence",
            {"op": str(layer), "dtype": "bf16", "vocab": shard.vocab, "hidden": shard.hidden,
             "sequences": part.sequences, "time_us": part.time_us},
        )  # fmt: skip


def add_attention(data: Imported, rows: pd.DataFrame, shard: Shard, kv_dtype: str = "bf16") -> None:
    """Attention of one chunk, of decodes of equal context, or of both in one launch."""
    key = {"kv_dtype": kv_dtype, **shard.attention}
    chunk, decodes = rows.prefill_chunk > 0, rows.n_decode > 0
    alone = rows[chunk & ~decodes]
    data.add(
        "attention_prefill",
        {**key, "batch": 1, "tokens": alone.prefill_chunk, "history": alone.kv_prefill,
         "time_us": alone.time_us},
    )  # fmt: skip
    decoding = rows[decodes & ~chunk]
    data.add(
        "attention_decode",
        {**key, "batch": decoding.n_decode, "context": decoding.kv_decode, "skew": 0.0,
         "time_us": decoding.time_us},
    )  # fmt: skip
    mixed = rows[chunk & decodes]
    data.add(
        "attention_mixed",
        {**key, "tokens": mixed.prefill_chunk, "history": mixed.kv_prefill,
         "decodes": mixed.n_decode, "context": mixed.kv_decode, "time_us": mixed.time_us},
    )  # fmt: skip


def add_experts(
    data: Imported, rows: pd.DataFrame, model: ModelSpec, tp: int, dtype: str = "bf16"
) -> None:
    """The whole expert block of a layer.

    Raises:
        ConfigError: a model without experts.
    """
    if not model.experts:
        raise ConfigError(f"experts of {model.name} were profiled, but its sheet has none")
    data.add(
        "moe",
        {"dtype": dtype, "experts": model.experts, "top_k": model.experts_per_token,
         "hidden": model.hidden, "intermediate": model.intermediate // tp, "tokens": rows.tokens,
         "touched": rows.activated_experts, "time_us": rows.time_us},
    )  # fmt: skip
