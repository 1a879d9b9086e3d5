"""A bundle as a trace in the Trace Event Format, for ui.perfetto.dev and chrome://tracing.

A replica is a process with a track for its iterations (of a pipeline, one for each stage) and
counters of queue, running requests and KV blocks; a row of ``steps.parquet``, a run of like
iterations, is one slice. Where the bundle has ``decisions.jsonl`` and no pipeline, each iteration
is a slice of its own that names its requests. An arrow leads from a request's arrival to the
iteration of its first token and on to that of its last; of a request that moved (a failed replica,
a migration) only to its last. KV transfers and migrations are tracks of their source, what happened
to a replica is a mark on it.

Times of the format are microseconds: three decimals keep the nanosecond.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments import bundle
from experiments.bundle import PERFETTO, Bundle
from experiments.exchange import decisions
from sim.errors import ConfigError
from sim.records import CAUSES, CHANGES, STATES

FILE = PERFETTO
"""Its name in a bundle."""

Event = dict[str, Any]

_ARRIVALS = 0
"""Process of the arrivals; replicas follow."""


@dataclass(frozen=True)
class Window:
    """The part of a run that is wanted, seconds from its start.

    Attributes:
        start_s: From here.
        end_s: Up to here, this instant left out.
    """

    start_s: float = 0.0
    end_s: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.start_s < self.end_s:
            raise ConfigError(
                f"--from {self.start_s:g} --until {self.end_s:g}: expected 0 <= from < until"
            )

    def overlaps(self, start_ns: Any, end_ns: Any) -> Any:
        """Whether intervals (numbers, or arrays of them) touch the window."""
        return (end_ns >= self.start_s * 1e9) & (start_ns < self.end_s * 1e9)


def write(folder: Path, path: Path | None = None, window: Window | None = None) -> Path:
    """Write the trace of a bundle.

    Args:
        folder: Of the bundle.
        path: Where to; gzip if it ends in ``.gz``. Default: `FILE` in the bundle.
        window: The part that is wanted. Default: all of it, which viewers take up to some hundred
            thousand requests.

    Returns:
        The path.

    Raises:
        ConfigError: Steps were not recorded, or the run ends before the window.
        BundleError: It is no bundle, or cannot be read.
    """
    path = path or folder / FILE
    made = bundle.read(folder, with_steps=False)
    if not (folder / bundle.STEPS).is_file():
        raise ConfigError(f"{folder}: has no {bundle.STEPS}; run it with record.steps: true")
    if window is not None and window.start_s * 1e9 > made.end_ns:
        raise ConfigError(
            f"--from {window.start_s:g}: {folder} ends at {made.end_ns / 1e9:g} s; nothing is left"
        )
    opened = gzip.GzipFile(path, "wb", compresslevel=5, mtime=0) if path.suffix == ".gz" else None
    with opened or path.open("wb") as raw, io.TextIOWrapper(raw, encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for count, event in enumerate(events(made, folder, window or Window())):
            file.write((",\n" if count else "") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return path


def events(made: Bundle, folder: Path, window: Window) -> Iterator[Event]:
    """All events of a trace, in no order: viewers sort.

    Args:
        made: The bundle, without its steps.
        folder: Where its steps are.
        window: The part that is wanted.
    """
    stages = _stages(made)
    yield from _names(made, stages)
    if not any(stages) and (folder / decisions.FILE).is_file():
        yield from _iterations(made, folder, window)
    else:
        yield from _runs(made, folder, window)
    yield from _counters(made, window)
    yield from _requests(made, stages, window)
    yield from _moves(made, window)
    yield from _changes(made, window)


def _us(time_ns: int) -> float:
    return time_ns / 1000


def _stages(made: Bundle) -> list[int]:
    """Of each replica the number of its pipeline stages, 0 without a pipeline."""
    return [len(replica.stage_busy_ns) for replica in made.replicas]


def _names(made: Bundle, stages: list[int]) -> Iterator[Event]:
    def named(pid: int, tid: int, kind: str, name: str) -> Event:
        return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}

    yield named(_ARRIVALS, 0, "process_name", f"{made.label}: requests")
    yield named(_ARRIVALS, 0, "thread_name", "arrivals")
    for pid, replica in enumerate(made.replicas, 1):
        yield named(pid, 0, "process_name", f"{made.label}: {replica.name} ({replica.role})")
        for stage in range(max(stages[pid - 1], 1)):
            yield named(
                pid, stage, "thread_name", f"stage {stage + 1}" if stages[pid - 1] else "iterations"
            )
        sort = {"sort_index": pid}
        yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": sort}


# --- iterations


def phase_of(prefill_tokens: int, decodes: int) -> str:
    """What an iteration computes: ``prefill``, ``decode``, ``mixed`` or ``nothing``."""
    if prefill_tokens and decodes:
        return "mixed"
    return "prefill" if prefill_tokens else "decode" if decodes else "nothing"


def _slice(
    pid: int, tid: int, start_ns: int, end_ns: int, name: str, args: Mapping[str, Any]
) -> Event:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": _us(start_ns),
        "dur": _us(end_ns - start_ns),
        "name": name,
        "cat": "iteration",
        "args": args,
    }


def _runs(made: Bundle, folder: Path, window: Window) -> Iterator[Event]:
    """A slice for each row of the step log."""
    for rows in bundle.read_steps(folder, [replica.name for replica in made.replicas]):
        columns = [column.tolist() for column in rows.values()]
        for values in zip(*columns, strict=True):
            row = dict(zip(rows, values, strict=True))
            if window.overlaps(row["start_ns"], row["end_ns"]):
                yield _run(row)


def _run(row: Mapping[str, Any]) -> Event:
    n = row["iterations"]
    name = phase_of(row["prefill_tokens"], row["decodes"]) if n else "lost"
    shown = ("prefill_tokens", "decodes", "first_context_tokens", "blocks_used", "waiting")
    args = {"iterations": n, **{key: row[key] for key in shown}}
    if row["cause"]:
        args["first_in_queue_waits_for"] = CAUSES[row["cause"]]
    label = f"{name}, {n} iterations" if n > 1 else name
    tid = max(row["stage"] - 1, 0)
    return _slice(row["replica"] + 1, tid, row["start_ns"], row["end_ns"], label, args)


def _iterations(made: Bundle, folder: Path, window: Window) -> Iterator[Event]:
    """A slice for each decision."""
    places = {replica.name: pid for pid, replica in enumerate(made.replicas, 1)}
    for entry in decisions.read(folder / decisions.FILE):
        if window.overlaps(entry["start_ns"], entry["end_ns"]):
            yield _iteration(entry, places)


def _iteration(entry: decisions.Entry, places: Mapping[str, int]) -> Event:
    tokens = entry["tokens"]
    args = {
        key: value for key, value in entry.items() if key not in ("replica", "start_ns", "end_ns")
    }
    rows = sum(tokens.values())
    name = "lost" if entry.get("lost") else f"{rows} tokens of {len(tokens)} requests"
    return _slice(places[entry["replica"]], 0, entry["start_ns"], entry["end_ns"], name, args)


# --- counters, requests, and what moves or happens


def _counters(made: Bundle, window: Window) -> Iterator[Event]:
    series = {name: column.tolist() for name, column in made.series.items()}
    for at, time_ns in enumerate(series.get("time_ns", [])):
        if not window.overlaps(time_ns, time_ns):
            continue
        pid = series["replica"][at] + 1
        for name, keys in (
            ("requests", ("waiting", "running")),
            ("KV blocks", ("used_blocks", "cached_blocks")),
        ):
            args = {key: series[key][at] for key in keys}
            yield {"ph": "C", "pid": pid, "tid": 0, "ts": _us(time_ns), "name": name, "args": args}


_TOLD = ("prompt_tokens", "output_tokens", "emitted_tokens", "preemptions", "cached_tokens")


def _requests(made: Bundle, stages: list[int], window: Window) -> Iterator[Event]:
    """A slice for each arrival, and the arrows that lead on from it."""
    columns = {name: column.tolist() for name, column in made.requests.items()}
    names = list(columns)
    ends = np.where(made.requests["end_ns"] < 0, made.end_ns, made.requests["end_ns"])
    inside = window.overlaps(made.requests["arrival_ns"], ends)
    for at in np.flatnonzero(inside).tolist():
        row = {name: columns[name][at] for name in names}
        yield from _request(row, stages)


def _request(row: Mapping[str, Any], stages: list[int]) -> Iterator[Event]:
    name = f"request {row['index']}"
    args = {key: row[key] for key in _TOLD} | {"state": STATES[row["state"]]}
    yield _slice(_ARRIVALS, 0, row["arrival_ns"], row["arrival_ns"] + 1, name, args)
    if row["last_token_ns"] < 0:
        return
    first, last = _places(row)
    arrow = {"id": row["index"], "name": "request", "cat": "request"}
    yield {"ph": "s", "pid": _ARRIVALS, "tid": 0, "ts": _us(row["arrival_ns"]), **arrow}
    if first is not None and row["first_token_ns"] < row["last_token_ns"]:
        yield {"ph": "t", **_at(first, stages), "ts": _us(row["first_token_ns"] - 1), **arrow}
    # Bound to the slice that it lies in, whose last nanosecond it is.
    yield {"ph": "f", "bp": "e", **_at(last, stages), "ts": _us(row["last_token_ns"] - 1), **arrow}


def _places(row: Mapping[str, Any]) -> tuple[int | None, int]:
    """Replicas of the first token, None if that is not known any more, and of the last."""
    decode = row["decode_replica"]
    last = row["replica"] if decode < 0 or row["emitted_tokens"] == 1 else decode
    if row["rerouted"] or row["migrations"]:
        return None, last
    at_prefill = decode < 0 or row["first_token_ns"] == row["prefill_end_ns"]
    return (row["replica"] if at_prefill else decode), last


def _at(replica: int, stages: list[int]) -> dict[str, int]:
    return {"pid": replica + 1, "tid": max(stages[replica] - 1, 0)}


def _moves(made: Bundle, window: Window) -> Iterator[Event]:
    """Transfers and migrations, which overlap, as asynchronous slices of their source."""
    for kind, table in (("transfer", made.transfers), ("migration", made.migrations)):
        columns = {name: column.tolist() for name, column in table.items()}
        for at in range(len(columns.get("request", ()))):
            row = {name: column[at] for name, column in columns.items()}
            if window.overlaps(row["start_ns"], row["end_ns"]):
                yield from _move(kind, at, row, made)


def _move(kind: str, at: int, row: Mapping[str, Any], made: Bundle) -> Iterator[Event]:
    common = {"cat": kind, "id": at, "pid": row["source"] + 1, "tid": 0}
    common["name"] = f"{kind} to {made.replicas[row['target']].name}"
    args = {"request": row["request"], "bytes": row["bytes"]}
    yield {"ph": "b", "ts": _us(row["start_ns"]), "args": args, **common}
    yield {"ph": "e", "ts": _us(row["end_ns"]), **common}


def _changes(made: Bundle, window: Window) -> Iterator[Event]:
    columns = {name: column.tolist() for name, column in made.changes.items()}
    for at, time_ns in enumerate(columns.get("time_ns", ())):
        if window.overlaps(time_ns, time_ns):
            name = CHANGES[columns["change"][at]]
            mark = {"ph": "i", "s": "p", "pid": columns["replica"][at] + 1, "tid": 0}
            yield {**mark, "ts": _us(time_ns), "name": name, "args": {"lost": columns["lost"][at]}}
