"""The worst requests of a run, and when each of their tokens came.

Of each metric of `KEYS` the `WORST` measured requests with the largest values, the largest first,
of equal ones the one that comes first in the trace. Token times of all requests would be most of a
bundle; those of the worst are what a reader of a report asks for.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sim.metrics import PER_REQUEST, Bools, Ints, Requests
from sim.records import SimulationResult

WORST = 10
"""Requests of each metric."""
KEYS = ("ttft", "largest_itl", "e2e")
TOKEN_COLUMNS = ("request", "time_ns")
"""One row per token: index of its request, and when its client got it."""


def worst_rows(requests: Requests, measured: Bools, key: str) -> Ints:
    """Rows of the worst requests by one metric, at most `WORST`, the worst first.

    Args:
        requests: All requests.
        measured: Those of the measurement window, shape (n,).
        key: Of `KEYS`.
    """
    values = np.where(measured, PER_REQUEST[key](requests), np.nan)
    rows = np.flatnonzero(~np.isnan(values))
    if len(rows) > WORST:  # all that may be among them, ties included
        least = np.partition(values[rows], len(rows) - WORST)[len(rows) - WORST]
        rows = rows[values[rows] >= least]
    return rows[np.argsort(-values[rows], kind="stable")][:WORST]


def token_times(result: SimulationResult, requests: Requests, measured: Bools) -> dict[str, Ints]:
    """Columns `TOKEN_COLUMNS` of the worst requests of all metrics, in order of request."""
    rows = sorted({row for key in KEYS for row in worst_rows(requests, measured, key).tolist()})
    times = {int(index): result.token_times_ns(int(index)) for index in requests["index"][rows]}
    return {
        "request": _joined(np.full(len(each), index) for index, each in times.items()),
        "time_ns": _joined(times.values()),
    }


def preemptions(result: SimulationResult, tokens: dict[str, Ints]) -> dict[str, Ints]:
    """Of the same requests when they were preempted and admitted again; empty if none was.

    Args:
        result: Of the run.
        tokens: Columns `TOKEN_COLUMNS` of the requests.
    """
    its = np.isin(result.preemptions["request"], tokens["request"])
    return {name: column[its] for name, column in result.preemptions.items()} if its.any() else {}


def _joined(parts: Iterable[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *parts])
