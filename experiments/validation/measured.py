"""What a real server's benchmark measured, request by request, in one form.

`read_measurement` takes the files of ``vllm bench serve``, SGLang's ``bench_serving`` and AIPerf,
or a CSV with a column map. Times are seconds, lengths tokens; what a file does not say is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "tpot_s", "e2e_s", "itl_s")
"""Of `Measurement.requests`, beside ``ok``."""

FORMATS = ("vllm", "sglang", "aiperf", "csv")

_SLACK_S = 1e-3
"""By how much times may disagree: some tools print whole milliseconds."""


@dataclass(frozen=True)
class Measurement:
    """Requests of one benchmark run.

    Attributes:
        requests: One row a request, in the file's order: ``arrival_s`` from the first one (NaN
            where the file does not say), ``prompt_tokens``, ``output_tokens``, ``ttft_s``,
            ``tpot_s`` (NaN for one token), ``e2e_s``, ``itl_s`` (list of the gaps between chunks,
            or None), and ``ok`` (False where it failed; its times are NaN then).
        format: One of `FORMATS`.
        source: The file.
        settings: What the file says of the run: ``model``, ``request_rate`` (requests a second,
            inf for all at once), ``burstiness``, ``max_concurrency``, ``duration_s``; those known.
        notes: What was odd, one sentence each.
    """

    requests: pd.DataFrame
    format: str
    source: str
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def served(self) -> pd.DataFrame:
        """The requests that did not fail."""
        return self.requests[self.requests.ok]


def read_measurement(
    path: Path,
    *,
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
    run: int | None = None,
) -> Measurement:
    """Requests of a benchmark's file.

    Args:
        path: The file.
        format: One of `FORMATS`; recognised from the content by default.
        columns: Names of a CSV's columns by ours, such as ``{"ttft_ms": "first_token"}``.
        run: Which of several runs in one file, from 1.

    Raises:
        ConfigError: no such file; a format that is none; aggregates without requests (with the
            option of the benchmark that adds them); a file that is cut or contradicts itself.
    """
    from experiments.validation import formats
    from experiments.validation.aiperf_file import read_aiperf
    from experiments.validation.csv_file import read_csv

    if format is not None and format not in FORMATS:
        raise ConfigError(f"--format: {format} is none{nearest(format, FORMATS)}")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    found = format or formats.recognise(path)
    if columns and found != "csv":
        raise ConfigError(f"{path}: --column renames the columns of a CSV; this is of {found}")
    if run is not None and found not in ("vllm", "sglang"):
        raise ConfigError(f"{path}: --run chooses among the runs of vLLM's or SGLang's files")
    if found == "csv":
        raw = read_csv(path, columns or {})
    elif found == "aiperf":
        raw = read_aiperf(path)
    else:
        raw = formats.read_arrays(path, found, run)
    requests, notes = tidy(raw.columns, path)
    return Measurement(requests, found, str(path), raw.settings, (*raw.notes, *notes))


def tidy(columns: Mapping[str, object], path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Derive what follows from the rest, and refuse what cannot be.

    Args:
        columns: Some of `COLUMNS` and ``ok``, each (n,).
        path: For messages.

    Returns:
        The table of `Measurement`, and notes.

    Raises:
        ConfigError: no requests, none that was served, or times that contradict each other.
    """
    import pandas as pd

    table = pd.DataFrame(columns)
    for name in ("arrival_s", "ttft_s", "tpot_s", "e2e_s"):
        table[name] = table[name].astype(float) if name in table else math.nan
    table["itl_s"] = table.get("itl_s")
    table["ok"] = table["ok"].astype(bool) if "ok" in table else True
    if table.empty:
        raise ConfigError(f"{path}: has no requests")
    _derive(table)
    table.loc[~table.ok, ["ttft_s", "tpot_s", "e2e_s"]] = math.nan
    if not table.ok.any():
        raise ConfigError(f"{path}: all {len(table)} requests failed")
    _check(table, path)
    table["arrival_s"] -= table.arrival_s.min()
    for name in ("prompt_tokens", "output_tokens"):
        table[name] = table[name].fillna(0).astype("int64")
    return table[[*COLUMNS, "ok"]].reset_index(drop=True), _notes(table)


def _derive(table: pd.DataFrame) -> None:
    """Two of first token, gap and end give the third."""
    gaps = (table.output_tokens - 1).clip(lower=0)
    several = gaps > 0
    whole = table.ttft_s + (table.tpot_s * gaps).where(several, 0.0)
    table["e2e_s"] = table.e2e_s.fillna(whole)
    first = table.e2e_s - (table.tpot_s * gaps).where(several, 0.0)
    table["ttft_s"] = table.ttft_s.fillna(first)
    gap = (table.e2e_s - table.ttft_s) / gaps.where(several)
    table["tpot_s"] = table.tpot_s.fillna(gap).where(several)


def _check(table: pd.DataFrame, path: Path) -> None:
    served = table[table.ok]
    for name in ("prompt_tokens", "output_tokens"):
        wrong = ~(served[name] >= 1)
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise ConfigError(
                f"{path}: request {served.index[row] + 1}: {name} is {served[name].iloc[row]}, of "
                "a request that did not fail; expected at least 1"
            )
    early = served.e2e_s < served.ttft_s - _SLACK_S
    if early.any():
        row = int(early.to_numpy().argmax())
        raise ConfigError(
            f"{path}: request {served.index[row] + 1}: ends after {served.e2e_s.iloc[row]:g} s but "
            f"has its first token after {served.ttft_s.iloc[row]:g} s"
        )
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        wrong = served[name] < -_SLACK_S
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise ConfigError(
                f"{path}: request {served.index[row] + 1}: {name} is {served[name].iloc[row]:g}"
            )
    if served.e2e_s.isna().all() and served.tpot_s.isna().all() and served.ttft_s.isna().all():
        raise ConfigError(f"{path}: has no times: expected two of ttft, tpot and e2e")


def _notes(table: pd.DataFrame) -> list[str]:
    notes = []
    failed = int((~table.ok).sum())
    if failed:
        notes.append(f"{failed} of {len(table)} requests failed; they are left out of all metrics.")
    if table.arrival_s.isna().any():
        notes.append("The file has no arrival times.")
    lacking = (x for x in ("ttft_s", "e2e_s") if table.loc[table.ok, x].isna().any())
    notes += [f"Some requests have no {x.removesuffix('_s').upper()}." for x in lacking]
    return notes
