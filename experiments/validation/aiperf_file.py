"""AIPerf's ``profile_export.jsonl``: one request a line, each metric with its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.validation.formats import Raw, documents
from sim.errors import ConfigError, nearest

SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def read_aiperf(path: Path) -> Raw:
    """Records of ``profile_export.jsonl``: one request a line.

    Requests of the warm-up are dropped.

    Raises:
        ConfigError: a line that is no record; no length of the prompts.
    """
    rows: list[dict[str, Any]] = []
    warmup = 0
    for number, record in enumerate(documents(path), start=1):
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
