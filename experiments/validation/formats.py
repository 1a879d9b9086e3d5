"""Files of benchmark tools, told apart; those of vLLM and SGLang, which are alike."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sim.errors import ConfigError


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
    if start.startswith("["):
        raise ConfigError(_foreign(path))
    if not start.startswith("{"):
        if first.lower().startswith("metric,"):
            raise ConfigError(_summary(path))
        return "csv"
    if '"metrics"' in first and '"metadata"' in first:
        return "aiperf"
    first_run = next(documents(path))
    keys = first_run.keys()
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
    raise ConfigError(_foreign(path))


def _foreign(path: Path) -> str:
    return (
        f"{path}: is of no known benchmark; expected vLLM's or SGLang's result, AIPerf's "
        "profile_export.jsonl, or a CSV"
    )


def _summary(path: Path) -> str:
    return (
        f"{path}: is AIPerf's summary, which holds no requests; give profile_export.jsonl of the "
        "same run (it is written unless --export-level is summary)"
    )


def documents(path: Path) -> Iterator[dict[str, Any]]:
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
    said = _one_of(list(documents(path)), path, run)
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
