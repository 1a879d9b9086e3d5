"""Files of benchmark tools, each brought to the columns of `measured.Measurement`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import ConfigError, nearest


@dataclass
class Raw:
    """Columns as a file has them, and what it says of the run."""

    columns: dict[str, list[Any]]
    settings: dict[str, object] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


ARRAYS = ("input_lens", "output_lens", "ttfts", "itls")
"""What vLLM and SGLang write of each request, if asked to."""

DETAIL = {
    "vllm": "`vllm bench serve --save-result --save-detailed`",
    "sglang": "`bench_serving --output-file ... --output-details`",
}
"""How to have each request in the file."""

AIPERF_SUMMARIES = ("metric", "input_config", "aiperf_version")
"""First cells or keys of AIPerf's summaries, which hold no requests."""

SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

CSV_COUNTS = {
    "prompt_tokens": ("input_tokens", "prompt_len", "input_len", "input_lens", "isl"),
    "output_tokens": ("output_len", "output_lens", "completion_tokens", "osl"),
}
"""Lengths of a CSV, and names that are understood without a column map."""

CSV_TIMES = ("arrival", "ttft", "tpot", "e2e")
"""Times of a CSV, in ``_s`` or ``_ms``."""


def recognise(path: Path) -> str:
    """Which tool wrote a file.

    Raises:
        ConfigError: a summary without requests, or nothing that is known.
    """
    with path.open("rb") as file:
        start = file.read(1 << 16).decode("utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    if not start:
        raise ConfigError(f"{path}: is empty")
    first = start.split("\n", 1)[0]
    if not start.startswith("{"):
        if first.lower().startswith("metric,"):
            raise ConfigError(_summary(path))
        return "csv"
    if '"metrics"' in first and '"metadata"' in first:
        return "aiperf"
    documents = list(_documents(path))
    keys = documents[0].keys()
    if "metrics" in keys and "metadata" in keys:
        return "aiperf"
    if "input_config" in keys or "aiperf_version" in keys:
        raise ConfigError(_summary(path))
    if "model_id" in keys or "date" in keys:
        return "vllm"
    if "sharegpt_output_len" in keys or "random_input_len" in keys or "backend" in keys:
        return "sglang"
    if set(ARRAYS) & keys:
        return "vllm"
    raise ConfigError(
        f"{path}: is of no known benchmark; expected vLLM's or SGLang's result, AIPerf's "
        "profile_export.jsonl, or a CSV"
    )


def _summary(path: Path) -> str:
    return (
        f"{path}: is AIPerf's summary, which holds no requests; give profile_export.jsonl of the "
        "same run (it is written unless --export-level is summary)"
    )


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one after another: lines, or as ``--append-result`` leaves it."""
    text = path.read_text(encoding="utf-8-sig").strip()
    decoder, at, count = json.JSONDecoder(), 0, 0
    while at < len(text):
        count += 1
        try:
            found, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            line = text.count("\n", 0, error.pos) + 1
            raise ConfigError(
                f"{path}: line {line}: is not complete JSON ({error.msg}); the run may not have "
                "ended"
            ) from None
        if not isinstance(found, dict):
            raise ConfigError(f"{path}: entry {count}: expected an object, not {type(found)}")
        yield found
        at = end
        while at < len(text) and text[at] in " \t\r\n":
            at += 1


# --- vLLM and SGLang


def read_arrays(path: Path, tool: str, run: int | None) -> Raw:
    """One run of ``vllm bench serve`` or SGLang's ``bench_serving``.

    Raises:
        ConfigError: several runs and `run` is None; aggregates only; arrays of unequal length.
    """
    said = _one_of(list(_documents(path)), path, run)
    missing = [name for name in ARRAYS if name not in said]
    if missing:
        raise ConfigError(
            f"{path}: holds aggregates only (no {', '.join(missing)}); run the benchmark again "
            f"with {DETAIL[tool]}"
        )
    arrays = {name: said[name] for name in (*ARRAYS, "errors", "start_times") if name in said}
    _same_length(arrays, path)
    raw = Raw(_columns(arrays), _settings(said))
    gaps, tokens = sum(map(len, said["itls"])), sum(max(0, n - 1) for n in said["output_lens"])
    if gaps < 0.98 * tokens:
        raw.notes.append(
            f"The server sent {gaps:,} chunks after the first for {tokens:,} tokens: gaps are "
            "between chunks of several tokens."
        )
    return raw


def _one_of(runs: Sequence[dict[str, Any]], path: Path, run: int | None) -> dict[str, Any]:
    if run is None and len(runs) > 1:
        raise ConfigError(f"{path}: holds {len(runs)} runs; say which with --run 1 to {len(runs)}")
    chosen = run or 1
    if not 1 <= chosen <= len(runs):
        raise ConfigError(f"--run {chosen}: {path} holds {len(runs)} run(s)")
    return runs[chosen - 1]


def _same_length(arrays: Mapping[str, Any], path: Path) -> None:
    first = next(iter(arrays))
    for name, values in arrays.items():
        if not isinstance(values, list):
            raise ConfigError(f"{path}: {name}: expected a list")
        if len(values) != len(arrays[first]):
            raise ConfigError(
                f"{path}: {name} has {len(values)} entries, {first} {len(arrays[first])}: the file "
                "is cut or was edited"
            )


def _columns(arrays: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The end of a request is its first token and all gaps, as the tools count it."""
    errors = arrays.get("errors", [""] * len(arrays["ttfts"]))
    ok = [
        not error and length > 0
        for error, length in zip(errors, arrays["output_lens"], strict=True)
    ]
    first = [ttft if ttft > 0 else math.nan for ttft in arrays["ttfts"]]  # 0: not streamed
    ends = [ttft + math.fsum(gaps) for ttft, gaps in zip(first, arrays["itls"], strict=True)]
    columns = {
        "prompt_tokens": arrays["input_lens"],
        "output_tokens": arrays["output_lens"],
        "ttft_s": first,
        "e2e_s": ends,
        "itl_s": arrays["itls"],
        "ok": ok,
    }
    if "start_times" in arrays:
        columns["arrival_s"] = arrays["start_times"]
    return columns


def _settings(said: Mapping[str, Any]) -> dict[str, object]:
    names = {
        "model": ("model_id", "model", "server_info_model"),
        "request_rate": ("request_rate",),
        "burstiness": ("burstiness",),
        "max_concurrency": ("max_concurrency",),
        "duration_s": ("duration",),
    }
    found = {ours: said[name] for ours, many in names.items() for name in many if said.get(name)}
    if "request_rate" in found:
        found["request_rate"] = float(found["request_rate"])  # "inf" is written as text
    return found


# --- AIPerf


def read_aiperf(path: Path) -> Raw:
    """Records of ``profile_export.jsonl``: one request a line.

    Requests of the warm-up are dropped.

    Raises:
        ConfigError: a line that is no record; no length of the prompts.
    """
    rows: list[dict[str, Any]] = []
    warmup = 0
    for number, record in enumerate(_documents(path), start=1):
        metadata, metrics = record.get("metadata"), record.get("metrics") or {}
        if not isinstance(metadata, dict) or not isinstance(metrics, dict):
            raise ConfigError(f"{path}: record {number}: expected metadata and metrics")
        if metadata.get("benchmark_phase", "profiling") != "profiling":
            warmup += 1
            continue
        rows.append(_aiperf_row(record, metadata, metrics, path, number))
    if not rows:
        raise ConfigError(f"{path}: has no requests (of the warm-up: {warmup})")
    notes = [f"{warmup} requests of the warm-up are left out."] if warmup else []
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["arrival_s"] = _since_first(columns.pop("start_ns"))
    return Raw(columns, {}, notes)


def _since_first(starts_ns: Sequence[int | None]) -> list[float]:
    """Seconds since the first; taken off as integers, as doubles of today's date lack digits."""
    first = min((start for start in starts_ns if start is not None), default=0)
    return [math.nan if start is None else (start - first) / 1e9 for start in starts_ns]


def _aiperf_row(
    record: Mapping[str, Any],
    metadata: Mapping[str, Any],
    metrics: Mapping[str, Any],
    path: Path,
    number: int,
) -> dict[str, Any]:
    where = f"{path}: record {number}"
    ok = not record.get("error") and not metadata.get("was_cancelled", False)
    prompt = _metric(metrics, "input_sequence_length", where)
    output = _metric(metrics, "output_sequence_length", where)
    if ok and (math.isnan(prompt) or math.isnan(output)):
        raise ConfigError(
            f"{where}: has no input_sequence_length or output_sequence_length; both are written "
            "for streamed chat and completions"
        )
    start = metadata.get("request_start_ns")
    gaps = metrics.get("inter_chunk_latency", {}).get("value")
    unit = _unit(metrics.get("inter_chunk_latency", {"unit": "ms"}), where)
    return {
        "start_ns": None if start is None else int(start),
        "prompt_tokens": 0 if math.isnan(prompt) else round(prompt),
        "output_tokens": 0 if math.isnan(output) else round(output),
        "ttft_s": _metric(metrics, "time_to_first_token", where),
        "e2e_s": _metric(metrics, "request_latency", where),
        "itl_s": [gap * unit for gap in gaps] if isinstance(gaps, list) else None,
        "ok": ok,
    }


def _metric(metrics: Mapping[str, Any], name: str, where: str) -> float:
    """A metric in seconds or tokens, NaN where the record has none."""
    found = metrics.get(name)
    if found is None:
        return math.nan
    value = found.get("value") if isinstance(found, dict) else None
    if not isinstance(value, int | float):
        raise ConfigError(f"{where}: {name}: expected a value with its unit")
    return value * (1.0 if name.endswith("sequence_length") else _unit(found, where))


def _unit(metric: Mapping[str, Any], where: str) -> float:
    unit = str(metric.get("unit", "ms"))
    if unit not in SECONDS:
        raise ConfigError(f"{where}: unit {unit} is not known{nearest(unit, SECONDS)}")
    return SECONDS[unit]


# --- CSV


def read_csv(path: Path, columns: Mapping[str, str]) -> Raw:
    """A table of requests.

    Args:
        path: With a header.
        columns: Its names by ours: ``prompt_tokens``, ``output_tokens``, and ``arrival``, ``ttft``,
            ``tpot`` and ``e2e`` with ``_s`` or ``_ms``; ``ok``.

    Raises:
        ConfigError: a name of ours that is none, a column that is missing or no number.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except ValueError as error:
        raise ConfigError(f"{path}: is no CSV: {str(error).splitlines()[0]}") from None
    ours = [*CSV_COUNTS, *(f"{name}_{unit}" for name in CSV_TIMES for unit in ("s", "ms")), "ok"]
    for name, theirs in columns.items():
        if name not in ours:
            raise ConfigError(
                f"--column {name}={theirs}: {name} is none of ours{nearest(name, ours)}"
            )
        if theirs not in table.columns:
            hint = nearest(theirs, [str(name) for name in table.columns])
            raise ConfigError(f"{path}: has no column {theirs}{hint}")
    found = {name: _numbers(table, _count(table, columns, name, path), path) for name in CSV_COUNTS}
    for name in CSV_TIMES:
        for key, factor in ((f"{name}_s", 1.0), (f"{name}_ms", 1e-3)):
            head = columns.get(key) or (key if key in table.columns else None)
            if head is not None and f"{name}_s" not in found:
                found[f"{name}_s"] = _numbers(table, head, path) * factor
    raw = Raw({name: values.tolist() for name, values in found.items()})
    head = columns.get("ok") or ("ok" if "ok" in table.columns else None)
    if head is not None:
        raw.columns["ok"] = table[head].astype(str).str.lower().isin(("true", "1", "1.0")).tolist()
    return raw


def _count(table: Any, columns: Mapping[str, str], name: str, path: Path) -> str:
    """Which column is one of the lengths.

    Raises:
        ConfigError: none is.
    """
    if name in columns:
        return columns[name]
    for head in (name, *CSV_COUNTS[name]):
        if head in table.columns:
            return head
    heads = ", ".join(str(head) for head in table.columns)
    raise ConfigError(f"{path}: which column is {name}? It has {heads}; say --column {name}=THEIRS")


def _numbers(table: Any, name: str, path: Path) -> Any:
    """A column as floats; empty cells are NaN.

    Raises:
        ConfigError: a cell that is no number, with its line.
    """
    import pandas as pd

    values = pd.to_numeric(table[name], errors="coerce")
    wrong = values.isna() & table[name].notna()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise ConfigError(f"{path}: line {row + 2}: {name}: {table[name].iloc[row]!r} is no number")
    return values.astype(float)
