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

from experiments.validation.values import MOST_S
from sim.errors import ConfigError, nearest

if TYPE_CHECKING:
    import pandas as pd

    from experiments.validation.formats import Raw

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

    Columns of a CSV, one row a request: ``prompt_tokens`` and ``output_tokens`` (tokens); two or
    all of ``ttft`` (arrival to first token), ``tpot`` (mean gap between tokens) and ``e2e``
    (arrival to last token); ``arrival``, of a clock of any origin, if it is known; ``ok``, true or
    false, if some failed. Times end in ``_s`` (seconds) or ``_ms`` (milliseconds), such as
    ``ttft_ms``. An empty cell says that a time is not known.

    Args:
        path: The file.
        format: One of `FORMATS`; recognised from the content by default.
        columns: Names of a CSV's columns by ours, such as ``{"ttft_ms": "first_token"}``.
        run: Which of several runs in one file, from 1.

    Raises:
        ConfigError: no such file; a format that is none; aggregates without requests (with the
            option of the benchmark that adds them); a value that cannot be, with its key and index
            or line; a file that is cut or contradicts itself.
    """
    from experiments.validation import formats
    from experiments.validation.aiperf_file import read_aiperf
    from experiments.validation.arrays_file import read_arrays
    from experiments.validation.csv_file import read_csv

    if format is not None and format not in FORMATS:
        raise ConfigError(f"--format: {format} is none{nearest(format, FORMATS)}")
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; expected the file of a benchmark")
    if not path.exists():
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
        raw = read_arrays(path, found, run)
    requests, notes = tidy(raw, path)
    return Measurement(requests, found, str(path), raw.settings, (*raw.notes, *notes))


def tidy(raw: Raw, path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Derive what follows from the rest, and refuse what cannot be.

    Args:
        raw: What a format's reader made of the file.
        path: For messages.

    Returns:
        The table of `Measurement`, and notes.

    Raises:
        ConfigError: no requests, none that was served, or times that contradict each other.
    """
    import pandas as pd

    table = pd.DataFrame(raw.columns)
    if table.empty:
        raise ConfigError(f"{path}: has no requests")
    for name in ("arrival_s", "ttft_s", "tpot_s", "e2e_s"):
        table[name] = table[name].astype(float) if name in table else math.nan
    table["itl_s"] = table.get("itl_s")
    table["ok"] = table["ok"].astype(bool)
    if not table.ok.any():
        raise ConfigError(f"{path}: all {len(table)} requests failed")
    _check_arrivals(table, raw)
    _derive(table)
    table.loc[~table.ok, ["ttft_s", "tpot_s", "e2e_s"]] = math.nan
    _check(table, raw, path)
    table["arrival_s"] -= table.arrival_s[table.ok].min()
    return table[[*COLUMNS, "ok"]].reset_index(drop=True), _notes(table, raw)


def _check_arrivals(table: pd.DataFrame, raw: Raw) -> None:
    """All requests that were served have an arrival time, or none."""
    served = table[table.ok]
    lacking = served[served.arrival_s.isna()]
    if 0 < len(lacking) < len(served):
        raise ConfigError(
            f"{raw.place(int(lacking.index[0]), 'arrival_s')}: there is none ({len(lacking)} of "
            f"{len(served)} such requests); expected one of each request, or of none"
        )
    latest = served.arrival_s.max() - served.arrival_s.min()
    if latest > MOST_S:
        row = int(served.arrival_s.argmax())
        raise ConfigError(
            f"{raw.place(int(served.index[row]), 'arrival_s')}: is {latest:g} s after the first; "
            f"expected at most {MOST_S:,.0f} s"
        )


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


def _check(table: pd.DataFrame, raw: Raw, path: Path) -> None:
    served = table[table.ok]
    for name in ("prompt_tokens", "output_tokens"):
        for row, value in served.loc[~(served[name] >= 1), name].items():
            raise ConfigError(
                f"{raw.place(row, name)}: {value}, of a request that did not fail; expected at "
                "least 1"
            )
    for row, one in served[served.e2e_s < served.ttft_s - _SLACK_S].iterrows():
        raise ConfigError(
            f"{raw.place(row, 'ttft_s')}: its request ends after {one.e2e_s:g} s but has its "
            f"first token after {one.ttft_s:g} s"
        )
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        for row, value in served.loc[served[name] < -_SLACK_S, name].items():
            raise ConfigError(f"{raw.place(row, name)}: comes to {value:g} s; expected 0 or more")
    if served[["e2e_s", "tpot_s", "ttft_s"]].isna().all(axis=None):
        raise ConfigError(f"{path}: has no times: {raw.times_hint.removeprefix(f'{path}: ')}")


def _notes(table: pd.DataFrame, raw: Raw) -> list[str]:
    notes = []
    failed = int((~table.ok).sum())
    if failed:
        notes.append(f"{failed} of {len(table)} requests failed; they are left out of all metrics.")
    served = table[table.ok]
    if served.arrival_s.isna().any():
        notes.append("The file has no arrival times.")
    for name in ("ttft_s", "e2e_s"):
        lacking = served.index[served[name].isna()]
        if len(lacking):
            first = raw.place(int(lacking[0]), name)
            notes.append(
                f"{len(lacking):,} of {len(served):,} requests have no "
                f"{name.removesuffix('_s').upper()}; the first is {first}."
            )
    return notes
