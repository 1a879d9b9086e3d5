"""Results of ``vllm bench serve`` and SGLang's ``bench_serving``, which are alike: one array each
of lengths and times. Every value is checked, and an error names its key and index."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.validation.formats import ARRAYS, DETAIL, Raw, documents
from experiments.validation.values import any_time_s, is_number, text_or_none, time_s, tokens, wrong
from sim.errors import ConfigError

_THEIRS = {
    "prompt_tokens": "input_lens",
    "output_tokens": "output_lens",
    "arrival_s": "start_times",
    "ttft_s": "ttfts",
    "tpot_s": "itls",
    "e2e_s": "itls",
}


def read_arrays(path: Path, tool: str, run: int | None) -> Raw:
    """One run of a file.

    Raises:
        ConfigError: several runs and `run` is None; aggregates only; arrays of unequal length; a
            value that cannot be; a duration that is shorter than the requests.
    """
    said = _one_of(list(documents(path)), path, run)
    missing = [name for name in ARRAYS if name not in said]
    if missing:
        raise ConfigError(
            f"{path}: holds aggregates only (no {', '.join(missing)}); run the benchmark again "
            f"with {DETAIL[tool]}"
        )
    arrays = {name: said[name] for name in (*ARRAYS, "errors", "start_times") if name in said}
    _same_length(arrays, path)
    columns, settings = _columns(arrays, path), _settings(said, path)
    notes = [
        *_of_chunks(columns),
        *_of_counts(said, columns, path),
        *_of_duration(settings, columns, path),
    ]
    hint = "ttfts are all 0: the requests were not streamed; measure with a streaming endpoint"
    return Raw(columns, settings, notes, lambda row, ours: f"{path}: {_THEIRS[ours]}[{row}]", hint)


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
            wrong(f"{path}: {name}", values, "a list with one entry a request")
        if len(values) != len(arrays[first]):
            raise ConfigError(
                f"{path}: {name} has {len(values)} entries, {first} {len(arrays[first])}: the file "
                "is cut or was edited"
            )


# --- requests


def _columns(arrays: Mapping[str, Any], path: Path) -> dict[str, list[Any]]:
    """The end of a request is its first token and all gaps, as the tools count it."""
    errors = [
        text_or_none(error, f"{path}: errors[{i}]")
        for i, error in enumerate(arrays.get("errors", [""] * len(arrays["ttfts"])))
    ]
    prompt, output = (
        [
            0 if error and value is None else tokens(value, f"{path}: {name}[{i}]")
            for i, (value, error) in enumerate(zip(arrays[name], errors, strict=True))
        ]
        for name in ("input_lens", "output_lens")
    )
    ok = [not error and length > 0 for error, length in zip(errors, output, strict=True)]
    first = _times(arrays["ttfts"], ok, f"{path}: ttfts")
    first = [time if time > 0 else math.nan for time in first]  # 0: not streamed
    gaps = [
        _gaps(each, served, f"{path}: itls[{i}]")
        for i, (each, served) in enumerate(zip(arrays["itls"], ok, strict=True))
    ]
    columns: dict[str, list[Any]] = {
        "prompt_tokens": prompt,
        "output_tokens": output,
        "ttft_s": first,
        "e2e_s": [time + math.fsum(each) for time, each in zip(first, gaps, strict=True)],
        "itl_s": gaps,
        "ok": ok,
    }
    if "start_times" in arrays:
        columns["arrival_s"] = _starts(arrays["start_times"], ok, f"{path}: start_times")
    return columns


def _times(values: Sequence[Any], ok: Sequence[bool], where: str) -> list[float]:
    """One time a request; a request that failed need not have one."""
    return [
        (time_s if served else any_time_s)(value, f"{where}[{i}]")
        for i, (value, served) in enumerate(zip(values, ok, strict=True))
    ]


def _gaps(values: Any, served: bool, where: str) -> list[float]:
    if values is None and not served:
        return []
    if not isinstance(values, list):
        wrong(where, values, "a list of times, s")
    read: Callable[[object, str], float] = time_s if served else any_time_s
    return [read(value, f"{where}[{i}]") for i, value in enumerate(values)]


def _starts(values: Sequence[Any], ok: Sequence[bool], where: str) -> list[float]:
    """Of a clock of any origin; all NaN where no request that was served has one.

    A request that failed before it was sent has a start of 0, which is none either.

    Raises:
        ConfigError: Some have one and some not.
    """
    for i, value in enumerate(values):
        if value is not None and not is_number(value):
            wrong(f"{where}[{i}]", value, "a time, s")
    known = [
        value is not None and abs(value) < _LATEST_S and (served or value != 0)
        for value, served in zip(values, ok, strict=True)
    ]
    lacking = [i for i, served in enumerate(ok) if served and not known[i]]
    if lacking and len(lacking) < sum(ok):
        more = f" ({len(lacking)} such values)" if len(lacking) > 1 else ""
        wrong(f"{where}[{lacking[0]}]", values[lacking[0]], f"a time, s, as others have{more}")
    return [float(v) if there else math.nan for v, there in zip(values, known, strict=True)]


_LATEST_S = 1e15
"""Times of a clock beyond this have no milliseconds as doubles; no rate is as large either."""


# --- what the file says of the run


def _settings(said: Mapping[str, Any], path: Path) -> dict[str, object]:
    names = (name for name in ("model_id", "model", "server_info_model") if said.get(name))
    model = next((text_or_none(said[name], f"{path}: {name}") for name in names), None)
    found: dict[str, object] = {
        "model": model,
        "request_rate": _rate(said.get("request_rate"), f"{path}: request_rate"),
        "burstiness": _positive(said, "burstiness", path),
        "max_concurrency": _count(said, "max_concurrency", path, least=1),
        "duration_s": _positive(said, "duration", path),
    }
    return {name: value for name, value in found.items() if value is not None}


def _rate(value: Any, where: str) -> float | None:
    """Requests a second; ``inf`` is written as text, and SGLang says ``trace`` of a replay."""
    if value is None or value == "trace":
        return None
    if value in ("inf", "Infinity", math.inf):
        return math.inf
    if not is_number(value) or not 0 < value < _LATEST_S:
        wrong(where, value, 'a number above 0, or "inf"')
    return float(value)


def _positive(said: Mapping[str, Any], name: str, path: Path) -> float | None:
    value = said.get(name)
    if value is not None and not (is_number(value) and 0 < value < _LATEST_S):
        wrong(f"{path}: {name}", value, "a number above 0")
    return None if value is None else float(value)


def _count(said: Mapping[str, Any], name: str, path: Path, least: int = 0) -> int | None:
    value = said.get(name)
    if value is None:
        return None
    found = tokens(value, f"{path}: {name}", "a whole number")
    if found < least:
        wrong(f"{path}: {name}", value, f"at least {least}")
    return found


# --- what contradicts what


def _of_chunks(columns: Mapping[str, list[Any]]) -> list[str]:
    gaps = sum(map(len, columns["itl_s"]))
    after = sum(max(0, length - 1) for length in columns["output_tokens"])
    if gaps >= 0.98 * after:
        return []
    return [
        f"The server sent {gaps:,} chunks after the first for {after:,} tokens: gaps are between "
        "chunks of several tokens."
    ]


def _of_counts(said: Mapping[str, Any], columns: Mapping[str, list[Any]], path: Path) -> list[str]:
    """The tools' own counts beside the rows."""
    ok = columns["ok"]
    rows = {"num_prompts": (len(ok), "requests"), "completed": (sum(ok), "that did not fail")}
    claimed = {name: _count(said, name, path) for name in rows}
    return [
        f"The file says {name}: {claimed[name]:,}, but holds {count:,} {what}."
        for name, (count, what) in rows.items()
        if claimed[name] not in (None, count)
    ]


_SLACK_SHARE, _SLACK_S = 0.05, 1.0
"""By how much requests may outlast the duration: clocks of two processes, rounding."""
_IDLE = 2.0
"""Durations beyond this many times that of the requests are noted."""


def _of_duration(
    settings: Mapping[str, Any], columns: Mapping[str, list[Any]], path: Path
) -> list[str]:
    """The tools' own duration beside the times.

    Raises:
        ConfigError: A request lasts longer than the run.
    """
    duration_s = settings.get("duration_s")
    starts = columns.get("arrival_s", [math.nan] * len(columns["ok"]))
    rows = [
        (start, end, i)
        for i, (start, end, ok) in enumerate(
            zip(starts, columns["e2e_s"], columns["ok"], strict=True)
        )
        if ok and not math.isnan(end)
    ]
    if duration_s is None or not rows:
        return []
    known = not any(math.isnan(start) for start, _, _ in rows)
    first = min(start for start, _, _ in rows) if known else 0.0
    last, at = max(((start - first if known else 0.0) + end, i) for start, end, i in rows)
    if last > (1 + _SLACK_SHARE) * duration_s + _SLACK_S:
        since = "after the first was sent" if known else "after it was sent"
        raise ConfigError(
            f"{path}: duration is {duration_s:g} s, but request {at} (from 0) ends {last:g} s "
            f"{since}: times of another unit, or a file that was edited"
        )
    all_served = all(columns["ok"])  # how long a request took until it failed is not known
    if known and all_served and duration_s > _IDLE * last + _SLACK_S:
        return [
            f"The file says duration: {duration_s:g} s, but its requests end {last:g} s after the "
            "first was sent."
        ]
    return []
