"""AIPerf's ``profile_export.jsonl``: one request a line, each metric with its unit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.validation.formats import Raw, documents
from experiments.validation.values import any_time_s, time_s, tokens, wrong
from sim.errors import ConfigError, nearest

SECONDS = {"s": 1.0, "sec": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}

_THEIRS = {
    "prompt_tokens": "input_sequence_length",
    "output_tokens": "output_sequence_length",
    "arrival_s": "request_start_ns",
    "ttft_s": "time_to_first_token",
    "tpot_s": "request_latency",
    "e2e_s": "request_latency",
}


def read_aiperf(path: Path) -> Raw:
    """Records of ``profile_export.jsonl``: one request a line.

    Requests of the warm-up are dropped, and counted in a note.

    Raises:
        ConfigError: a line that is no record; no length of the prompts; a value that cannot be,
            with its record and metric.
    """
    rows: list[dict[str, Any]] = []
    numbers: list[int] = []
    warmup = 0
    for number, record in enumerate(documents(path), start=1):
        where = f"{path}: record {number}"
        metadata = _object(record, "metadata", where)
        metrics = _object(record, "metrics", where)
        if _is_warmup(metadata.get("benchmark_phase"), f"{where}: benchmark_phase"):
            warmup += 1
            continue
        rows.append(_row(record, metadata, metrics, where))
        numbers.append(number)
    if not rows:
        raise ConfigError(f"{path}: has no requests (of the warm-up: {warmup})")
    notes = [f"{warmup} requests of the warm-up are left out."] if warmup else []
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns["arrival_s"] = _since_first(columns.pop("start_ns"))
    hint = "no record has time_to_first_token and request_latency"
    return Raw(
        columns,
        {},
        notes,
        lambda row, ours: f"{path}: record {numbers[row]}: {_THEIRS[ours]}",
        hint,
    )


def _object(record: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    found = record.get(name)
    if found is None and name == "metrics":  # of a request that failed
        return {}
    if not isinstance(found, dict):
        wrong(f"{where}: {name}", found, "an object in braces")
    return found


def _is_warmup(phase: Any, where: str) -> bool:
    if phase not in (None, "profiling", "warmup"):
        wrong(where, phase, "profiling or warmup")
    return bool(phase == "warmup")


def _since_first(starts_ns: Sequence[int | None]) -> list[float]:
    """Seconds since the first; taken off as integers, as doubles of today's date lack digits."""
    first = min((start for start in starts_ns if start is not None), default=0)
    return [math.nan if start is None else (start - first) / 1e9 for start in starts_ns]


def _row(
    record: Mapping[str, Any], metadata: Mapping[str, Any], metrics: Mapping[str, Any], where: str
) -> dict[str, Any]:
    cancelled = metadata.get("was_cancelled")
    if cancelled not in (None, True, False):
        wrong(f"{where}: was_cancelled", cancelled, "true or false")
    ok = not record.get("error") and not cancelled
    return {
        "start_ns": _start_ns(metadata.get("request_start_ns"), f"{where}: request_start_ns"),
        "prompt_tokens": _length(metrics, "input_sequence_length", ok, where),
        "output_tokens": _length(metrics, "output_sequence_length", ok, where),
        "ttft_s": _time(metrics, "time_to_first_token", ok, where),
        "e2e_s": _time(metrics, "request_latency", ok, where),
        "itl_s": _gaps(metrics, "inter_chunk_latency", ok, where),
        "ok": ok,
    }


_LATEST_NS = 2**63


def _start_ns(value: Any, where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _LATEST_NS:
        wrong(where, value, "a whole number of nanoseconds, or null")
    return value


# --- metrics


def _metric(metrics: Mapping[str, Any], name: str, where: str) -> Mapping[str, Any] | None:
    """A metric, ``{"value": ..., "unit": ...}``, or None where the record has none."""
    found = metrics.get(name)
    if found is not None and not (isinstance(found, dict) and "value" in found):
        wrong(f"{where}: {name}", found, "a value with its unit")
    return found


def _length(metrics: Mapping[str, Any], name: str, ok: bool, where: str) -> int:
    found = _metric(metrics, name, where)
    if found is None and ok:
        raise ConfigError(
            f"{where}: has no {name}, which is written for streamed chat and completions"
        )
    if found is None or (found["value"] is None and not ok):
        return 0
    return tokens(found["value"], f"{where}: {name}")


def _time(metrics: Mapping[str, Any], name: str, ok: bool, where: str) -> float:
    """Seconds, NaN where the record has none."""
    found = _metric(metrics, name, where)
    if found is None:
        return math.nan
    read = time_s if ok else any_time_s
    return read(found["value"], f"{where}: {name}", _unit(found, f"{where}: {name}"))


def _gaps(metrics: Mapping[str, Any], name: str, ok: bool, where: str) -> list[float] | None:
    found = _metric(metrics, name, where)
    if found is None or (found["value"] is None and not ok):
        return None
    values, at = found["value"], f"{where}: {name}"
    if not isinstance(values, list):
        wrong(at, values, "a list of times")
    unit = _unit(found, at)
    read = time_s if ok else any_time_s
    return [read(value, f"{at}[{i}]", unit) for i, value in enumerate(values)]


def _unit(metric: Mapping[str, Any], where: str) -> float:
    unit = str(metric.get("unit", "ms"))
    if unit not in SECONDS:
        raise ConfigError(f"{where}: unit {unit} is not known{nearest(unit, SECONDS)}")
    return SECONDS[unit]
