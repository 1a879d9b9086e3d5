"""Measured times of operators, brought to the form that `fit.py` takes.

Reads the folders `aiconfigurator`, `llmservingsim` and `vidur` of a folder of measured data; what
each holds, and under which licence, is said in their own READMEs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernels_profile.importers.reading import read_parquet
from kernels_profile.operators import (
    Curve,
    PrefillAttentionCurve,
    elementwise_bytes,
    link_key,
)
from sim.specs import DeviceSpec, ModelSpec, load_device, load_model

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Fitted = dict[str, dict[tuple[str, str], Curve]]
"""Curves by operator, then by device and data type (or number of GPUs)."""

SYSTEMS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""Names of aiconfigurator's systems and of our sheets."""

VLLM = {"a100_sxm": "0.14.0", "l40s": "0.14.0"}
"""vLLM version of a system's profile where it is not 0.19.0."""

L2_BYTES = {
    "a100-sxm-80gb": 40e6,
    "h100-sxm": 50e6,
    "h200": 50e6,
    "b200": 126e6,
    "l40s": 96e6,
    "rtx-pro-6000": 128e6,
    "rtx-4090": 72e6,
}
"""Last-level caches (NVIDIA's architecture white papers). A profile repeats one launch, so keys and
values of about this size are read from cache there and from memory in a real step: such rows are
left out of the decode-attention fit."""

PROFILED = {
    "Llama-3.1-8B": "llama-3.1-8b",
    "Qwen3-32B": "qwen3-32b",
}
"""Names of LLMServingSim's models and of our sheets."""


@dataclass(frozen=True)
class Samples:
    """Measured times of one operator on one device.

    Attributes:
        device: Name of its sheet.
        key: Data type, or number of GPUs, that has coefficients of its own.
        inputs: Arguments of the curve's `us`, each (n,).
        us: Measured, (n,).
        group: Which rows belong together when some are held out, (n,) int.
        source: What was measured and where.
    """

    device: str
    key: str
    inputs: tuple[Floats, ...]
    us: Floats
    group: npt.NDArray[np.int64]
    source: str

    def take(self, keep: npt.NDArray[np.bool_]) -> Samples:
        """The rows of a mask."""
        inputs = tuple(values[keep] for values in self.inputs)
        return Samples(self.device, self.key, inputs, self.us[keep], self.group[keep], self.source)


def gemm_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """aiconfigurator's GEMMs, and the dense layers that LLMServingSim profiled on an RTX 4090.

    Weights of 8 to 512 Mi elements, which is what layers have: smaller ones stay in cache.
    """
    for system, table in _aiconfigurator(measured, "gemm"):
        device = load_device(SYSTEMS[system])
        weights = table.n * table.k / 2**20
        chosen = table[(weights >= 8) & (weights <= 512) & (table.m <= 16384)]
        for dtype, rows in chosen.groupby("dtype"):
            group = (rows.n // 256 * 31 + rows.k // 256).to_numpy(np.int64)
            inputs = _gemm_inputs(device, str(dtype), rows.m, rows.n, rows.k)
            yield Samples(
                device.name, _precision(dtype), inputs, _us(rows), group, _aic(system, "GEMM")
            )
    yield dense_samples(measured, "RTX4090", "rtx-4090")


def decode_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """Decode attention, where keys and values are far smaller or far larger than the cache."""
    for system, table in _aiconfigurator(measured, "attention_generation"):
        for dtype, rows in table.groupby("kv_dtype"):
            device = load_device(SYSTEMS[system])
            kv = _kv_bytes(rows.n_kv_heads, dtype) * rows.batch * rows.kv_len
            group = _pairs(rows.n_heads, rows.n_kv_heads)
            inputs = (_f(rows.batch * rows.n_kv_heads), _f(kv) / device.memory_bytes_per_s * 1e6)
            samples = Samples(
                device.name, _precision(dtype), inputs, _us(rows), group,
                _aic(system, "decode attention"),
            )  # fmt: skip
            yield samples.take(_not_cached(device, _f(kv)))
    yield served_attention(measured, "RTX4090", "rtx-4090", "decode")


def prefill_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """Prefill attention of whole prompts, 16 tokens or more, up to 8 KV heads on the GPU."""
    for system, table in _aiconfigurator(measured, "attention_context"):
        chosen = table[(table.q_len >= 16) & (table.n_kv_heads <= 8)]
        for dtype, rows in chosen.groupby("kv_dtype"):
            device = load_device(SYSTEMS[system])
            tokens = rows.batch * rows.q_len
            pairs = tokens * (rows.q_len + 1) / 2
            inputs = (
                *_prefill_inputs(device, rows.n_heads, rows.n_kv_heads, dtype, tokens, pairs),
                _f(rows.q_len),
            )
            group = _pairs(rows.n_heads, rows.n_kv_heads)
            yield Samples(
                device.name, _precision(dtype), inputs, _us(rows), group,
                _aic(system, "prefill attention"),
            )  # fmt: skip
    yield served_attention(measured, "RTX4090", "rtx-4090", "prefill")


def mixed_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """Launches with a chunk and decodes, by FlashAttention 2 (LLMServingSim's profiles)."""
    table = _attention_table(measured)
    for name, sheet in (("RTX4090", "rtx-4090"), ("RTXPRO6000", "rtx-pro-6000")):
        rows = table[(table.device == name) & (table.prefill_chunk > 0) & (table.n_decode > 0)]
        prefill = fitted["prefill_attention"][sheet, "bf16"]
        assert isinstance(prefill, PrefillAttentionCurve)
        io, flops, longest = _served_prefill_inputs(load_device(sheet), rows)
        walk = prefill.tile_ns * np.maximum(longest, rows.kv_decode) / 1e3
        row_heads = _f(rows.n_decode * rows.heads)
        inputs = (
            np.full(len(rows), prefill.t0_us),
            io / prefill.e_io + flops / prefill.e_flop,
            _f(walk),
            row_heads,
            row_heads * _f(rows.kv_decode),
        )
        group = np.arange(len(rows))
        yield Samples(sheet, "bf16", inputs, _us(rows), group, _served("mixed attention"))


def all_reduce_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """All-reduce as vLLM launches it in a CUDA graph; NCCL's where that was not measured."""
    import pandas as pd

    table = pd.read_csv(measured / "aiconfigurator" / "collectives.csv")
    table = table[(table.op == "all_reduce") & (table.bytes >= 2048) & (table.bytes <= 2**28)]
    for (system, gpus), rows in table.groupby(["system", "n_gpus"]):
        graph = rows[rows.backend == "vllm_graph"]
        chosen = graph if len(graph) else rows[rows.backend == "nccl"]
        backend = "vllm_graph" if len(graph) else "nccl"
        device = load_device(SYSTEMS[str(system)])
        sent = 2 * (int(gpus) - 1) / int(gpus) * _f(chosen.bytes)
        yield Samples(
            device.name, link_key(device, int(gpus)), (sent / device.peer_bytes_per_s * 1e6,),
            _us(chosen), np.arange(len(chosen)), _aic(str(system), f"all-reduce ({backend})"),
        )  # fmt: skip


def all_to_all_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """All-to-all of NCCL: the bytes that each GPU holds, an equal part for every GPU."""
    import pandas as pd

    table = pd.read_csv(measured / "aiconfigurator" / "collectives.csv")
    table = table[(table.op == "alltoall") & (table.bytes >= 2048) & (table.bytes <= 2**28)]
    for (system, gpus), rows in table.groupby(["system", "n_gpus"]):
        device = load_device(SYSTEMS[str(system)])
        sent = (int(gpus) - 1) / int(gpus) * _f(rows.bytes)
        yield Samples(
            device.name, link_key(device, int(gpus)), (sent / device.peer_bytes_per_s * 1e6,),
            _us(rows), np.arange(len(rows)), _aic(str(system), "all-to-all (nccl)"),
        )  # fmt: skip


def elementwise_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """Norms, rotary embedding and activation as vLLM runs them (LLMServingSim's profiles)."""
    table = _dense_table(measured)
    for name, sheet in (("RTX4090", "rtx-4090"), ("RTXPRO6000", "rtx-pro-6000")):
        device = load_device(sheet)
        rows = table[
            (table.device == name) & table.layer.isin(["layernorm", "act_fn", "rotary_emb"])
        ]
        moved = [
            elementwise_bytes(load_model(PROFILED[row.model]), row.layer, row.tp) * row.tokens
            for row in rows.itertuples()
        ]
        inputs = (np.array(moved) / device.memory_bytes_per_s * 1e6,)
        group = np.arange(len(rows))
        yield Samples(sheet, "bf16", inputs, _us(rows), group, _served("element-wise layers"))
    for name, sheet in (("a100", "a100-sxm-80gb"), ("h100", "h100-sxm")):
        yield _vidur_elementwise(measured, name, sheet)


def sampler_tables(measured: Path, fitted: Fitted) -> Iterator[Samples]:
    """vLLM's sampler by sequences (LLMServingSim's profiles)."""
    import pandas as pd

    table = pd.read_csv(measured / "llmservingsim" / "ops_per_sequence.csv")
    for name, sheet in (("RTX4090", "rtx-4090"), ("RTXPRO6000", "rtx-pro-6000")):
        rows = table[(table.device == name) & (table.layer == "sampler")]
        group = np.arange(len(rows))
        yield Samples(sheet, "any", (_f(rows.sequences),), _us(rows), group, _served("sampler"))


def _aiconfigurator(measured: Path, kind: str) -> Iterator[tuple[str, pd.DataFrame]]:

    for system in SYSTEMS:
        table = read_parquet(measured / "aiconfigurator" / f"{kind}_{system}.parquet")
        # Stored as 32-bit integers, whose products overflow.
        whole = table.select_dtypes("integer").columns
        yield system, table.astype(dict.fromkeys(whole, np.float64))


def _dense_table(measured: Path) -> pd.DataFrame:
    import pandas as pd

    table = pd.read_csv(measured / "llmservingsim" / "ops_dense.csv")
    return table[table.model.isin(PROFILED)]


def dense_samples(measured: Path, name: str, sheet: str) -> Samples:
    """Profiled matrix products of `LLMServingSim`'s device `name`, whose data sheet is `sheet`."""
    shapes = {"qkv_proj": _qkv, "o_proj": _output, "gate_up_proj": _up, "down_proj": _down}
    table = _dense_table(measured)
    rows = table[(table.device == name) & table.layer.isin(shapes)]
    sizes = np.array(
        [shapes[r.layer](load_model(PROFILED[r.model]), r.tp) for r in rows.itertuples()], float
    )
    device = load_device(sheet)
    inputs = _gemm_inputs(device, "bfloat16", _f(rows.tokens), sizes[:, 0], sizes[:, 1])
    group = rows.tokens.to_numpy(np.int64)
    return Samples(sheet, "bf16", inputs, _us(rows), group, _served("dense layers"))


def vidur_samples(measured: Path, name: str, sheet: str) -> Samples:
    """The four projections of a layer, as vidur timed them one by one in PyTorch.

    Its clock counts whole microseconds: shorter times than 20 say nothing and are left out.
    """
    table = _vidur(measured, name)
    heads = table.d_model / table.n_head
    q, kv = table.n_head / table.tp * heads, table.n_kv_head / table.tp * heads
    layers = {
        "attn_pre_proj_us": (q + 2 * kv, table.d_model),
        "attn_post_proj_us": (table.d_model, q),
        "mlp_up_proj_us": (2 * table.d_ff / table.tp, table.d_model),
        "mlp_down_proj_us": (table.d_model, table.d_ff / table.tp),
    }
    m = np.concatenate([_f(table.num_tokens)] * 4)
    n, k = (np.concatenate([_f(layers[name][i]) for name in layers]) for i in (0, 1))
    us = np.concatenate([_f(table[name]) for name in layers])
    inputs = _gemm_inputs(load_device(sheet), "bfloat16", m, n, k)
    samples = Samples(
        sheet,
        "bf16",
        inputs,
        us,
        np.arange(len(us)),
        "vidur 7d47513363ec, PyTorch linear layers, fp16",
    )
    return samples.take((us >= 20) & (n * k >= 8 * 2**20))


def _vidur_elementwise(measured: Path, name: str, sheet: str) -> Samples:
    """Activation and rotary embedding (without the cache's write), of 5 us or more: see above."""
    table = _vidur(measured, name)
    act = 3 * table.d_ff / table.tp
    rope = 2 * (table.n_head + table.n_kv_head) / table.tp * (table.d_model / table.n_head)
    moved = 2 * np.concatenate([_f(act * table.num_tokens), _f(rope * table.num_tokens)])
    us = np.concatenate([_f(table.mlp_act_us), _f(table.attn_rope_us)])
    inputs = (moved / load_device(sheet).memory_bytes_per_s * 1e6,)
    samples = Samples(
        sheet,
        "bf16",
        inputs,
        us,
        np.arange(len(us)),
        "vidur 7d47513363ec, PyTorch activation, rotary",
    )
    return samples.take(us >= 5)


def _vidur(measured: Path, name: str) -> pd.DataFrame:
    import pandas as pd

    table = pd.read_csv(measured / "vidur" / "linear_ops.csv")
    return table[(table.device == name) & table.gated_mlp]


def _attention_table(measured: Path) -> pd.DataFrame:

    table = read_parquet(measured / "llmservingsim" / "ops_attention.parquet")
    table = table[table.model.isin(PROFILED)].copy()
    for column in ("heads", "kv_heads"):
        sizes = {name: getattr(load_model(sheet), column) for name, sheet in PROFILED.items()}
        table[column] = table.model.map(sizes) / table.tp
    whole = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]
    return table.astype(dict.fromkeys(whole, np.float64))


def served_attention(measured: Path, name: str, sheet: str, phase: str) -> Samples:
    """Profiled attention of `LLMServingSim`'s device `name` in steps of one phase only."""
    table = _attention_table(measured)
    table = table[table.device == name]
    device = load_device(sheet)
    if phase == "decode":
        rows = table[(table.prefill_chunk == 0) & (table.n_decode > 0)]
        inputs: tuple[Floats, ...] = _served_decode_inputs(device, rows)
        keep = _not_cached(device, inputs[1] * device.memory_bytes_per_s / 1e6)
    else:
        rows = table[(table.prefill_chunk > 0) & (table.n_decode == 0)]
        inputs = _served_prefill_inputs(device, rows)
        keep = np.ones(len(rows), bool)
    group = np.arange(len(rows))
    return Samples(
        sheet, "bf16", inputs, _us(rows), group, _served(f"{phase} attention")
    ).take(keep)  # fmt: skip


def _served_decode_inputs(device: DeviceSpec, rows: pd.DataFrame) -> tuple[Floats, Floats]:
    kv = _kv_bytes(rows.kv_heads, "bfloat16") * rows.n_decode * rows.kv_decode
    return _f(rows.n_decode * rows.kv_heads), _f(kv) / device.memory_bytes_per_s * 1e6


def _served_prefill_inputs(device: DeviceSpec, rows: pd.DataFrame) -> tuple[Floats, ...]:
    chunk, before = rows.prefill_chunk, rows.kv_prefill
    pairs = chunk * before + chunk * (chunk + 1) / 2
    ideal = _prefill_inputs(device, rows.heads, rows.kv_heads, "bfloat16", chunk, pairs)
    return *ideal, _f(chunk + before)


def _gemm_inputs(device: DeviceSpec, dtype: str, m: Any, n: Any, k: Any) -> tuple[Floats, Floats]:
    element = 2 if dtype == "bfloat16" else 1
    moved = (n * k + m * k) * element + 2 * m * n
    peak = device.peak_flops(_precision(dtype))
    return _f(moved) / device.memory_bytes_per_s * 1e6, _f(2.0 * m * n * k) / peak * 1e6


def _prefill_inputs(
    device: DeviceSpec, heads: Any, kv_heads: Any, dtype: object, tokens: Any, pairs: Any
) -> tuple[Floats, Floats]:
    io = tokens * (2 * heads * HEAD_DIM * 2 + _kv_bytes(kv_heads, dtype))
    flops = 4 * heads * HEAD_DIM * pairs
    return _f(io) / device.memory_bytes_per_s * 1e6, _f(flops) / device.bf16_flops * 1e6


HEAD_DIM = 128
"""Of every attention table here."""


def _kv_bytes(kv_heads: Any, dtype: object) -> Any:
    return 2 * kv_heads * HEAD_DIM * (2 if dtype == "bfloat16" else 1)


def _not_cached(device: DeviceSpec, kv: Floats) -> npt.NDArray[np.bool_]:
    cache = L2_BYTES[device.name]
    return (kv < 0.1 * cache) | (kv > 2.5 * cache)


def _qkv(model: ModelSpec, tp: int) -> tuple[float, float]:
    return (model.heads + 2 * model.kv_heads) * model.head_dim / tp, model.hidden


def _output(model: ModelSpec, tp: int) -> tuple[float, float]:
    return model.hidden, model.heads * model.head_dim / tp


def _up(model: ModelSpec, tp: int) -> tuple[float, float]:
    return (model.mlp_matrices - 1) * model.intermediate / tp, model.hidden


def _down(model: ModelSpec, tp: int) -> tuple[float, float]:
    return model.hidden, model.intermediate / tp


def _pairs(heads: Any, kv_heads: Any) -> npt.NDArray[np.int64]:
    return (_f(heads) // 4 * 3 + _f(kv_heads)).astype(np.int64)


def _precision(dtype: object) -> str:
    return {"bfloat16": "bf16"}.get(str(dtype), str(dtype))


def _f(values: Any) -> Floats:
    return np.asarray(values, np.float64)


def _us(rows: pd.DataFrame) -> Floats:
    return _f(rows.time_us)


def _aic(system: str, what: str) -> str:
    version = VLLM.get(system, "0.19.0")
    if system == "h200_sxm" and what.endswith("attention"):
        version = "0.24.0"
    return f"aiconfigurator 095f58a51c4c, vLLM {version} {what}"


def _served(what: str) -> str:
    return f"LLMServingSim 5daddb21a545, vLLM 0.19.0 {what}"


TABLES: dict[str, Callable[[Path, Fitted], Iterable[Samples]]] = {
    "gemm": gemm_tables,
    "decode_attention": decode_tables,
    "prefill_attention": prefill_tables,
    "mixed_attention": mixed_tables,
    "all_reduce": all_reduce_tables,
    "all_to_all": all_to_all_tables,
    "elementwise": elementwise_tables,
    "sampler": sampler_tables,
}
