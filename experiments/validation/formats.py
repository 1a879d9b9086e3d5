"""Files of benchmark tools, told apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.validation.values import wrong
from sim.errors import ConfigError


@dataclass
class Raw:
    """Columns as a file has them, and what it says of the run.

    Attributes:
        columns: Some of `measured.COLUMNS` and ``ok``, each (n,), in seconds and tokens.
        settings: Those of `measured.Measurement`.
        notes: What was odd, one sentence each.
        place: Where the file has the value of a row, from 0, and one of our columns; for messages.
        times_hint: What to do if there are no times at all.
    """

    columns: dict[str, list[Any]]
    settings: dict[str, object]
    notes: list[str]
    place: Callable[[int, str], str]
    times_hint: str


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
    try:
        text = path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is no text in UTF-8: byte {error.start}") from None
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
        except (ValueError, RecursionError) as error:  # a number of thousands of digits; [[[[...
            raise ConfigError(f"{path}: entry {count}: cannot be read: {error}") from None
        if not isinstance(found, dict):
            wrong(f"{path}: entry {count}", found, "an object in braces")
        yield found
        at = end
        while at < len(text) and text[at] in " \t\r\n":
            at += 1
