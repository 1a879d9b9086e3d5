"""Where the time of a run's requests went: that of the median and of the P99 request, and a word.

The median and the P99 request are the finished requests of those nearest ranks by E2E or TTFT (of
equal ones, the earliest in the trace): one request each, so that their phases add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.advice import ADVICE, Setting, help_for, resource_of, why
from sim.attribution import E2E_COLUMNS, PHASES, TTFT_COLUMNS
from sim.errors import ConfigError, nearest
from sim.metrics import NS_PER_S, Ints, Requests
from sim.records import CHANGES, FINISHED
from sim.slo import NO_CLASS, request_classes, select

MOST_REQUESTS = 200_000
"""Requests of a variant above which time is attributed only where a config asks for it."""
NOT_ATTRIBUTED = (
    f"Where the time of requests went is not recorded for more than {MOST_REQUESTS:,} requests, as "
    "the run takes a quarter to three quarters longer with it; record.attribution: always records "
    "it all the same."
)
WHOLES = ("e2e", "ttft")
"""What is taken apart: prefixes of the columns."""
_COLUMNS = frozenset((*E2E_COLUMNS, *TTFT_COLUMNS))
RANKS = {"median": 0.5, "p99": 0.99}


@dataclass(frozen=True)
class Split:
    """The time of one request, by phase.

    Attributes:
        index: Of the request, in the trace.
        whole: ``e2e`` or ``ttft``, or ``decode``: what the first has beyond the second.
        ns: Of each phase that has any, in the order of `PHASES`; below 0 where other decodes or
            prefills in a step made it shorter.
        end_ns: The instant at which it was over.
    """

    index: int
    whole: str
    ns: Mapping[str, int]
    end_ns: int = 0

    @property
    def total_ns(self) -> int:
        """Its E2E or TTFT."""
        return sum(self.ns.values())

    @property
    def dominant(self) -> str:
        """The phase that took longest."""
        return max(self.ns, key=lambda name: self.ns[name], default="other")

    def resources(self, setting: Setting) -> dict[str, int]:
        """Time by what it hung on in this setting, most first, ns."""
        sums: dict[str, int] = {}
        for name, ns in self.ns.items():
            resource = resource_of(name, setting)
            sums[resource] = sums.get(resource, 0) + ns
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def values(self, setting: Setting) -> dict[str, Any]:
        """As plain values, for JSON."""
        resources = self.resources(setting)
        return {
            "request": self.index,
            "total_ns": self.total_ns,
            "phases_ns": dict(self.ns),
            "dominant": self.dominant,
            "resource": next(iter(resources), None),
            "resources_ns": resources,
        }


def first_failure_ns(changes: Mapping[str, Ints]) -> int | None:
    """When the first replica failed, by the columns `sim.records.CHANGE_COLUMNS`; None if none did.

    Columns may be absent, as those of old bundles are.
    """
    if not len(changes.get("time_ns", ())):
        return None
    times = changes["time_ns"][changes["change"] == CHANGES.index("failed")]
    return int(times.min()) if len(times) else None


def is_attributed(requests: Requests) -> bool:
    """Whether a table says where time went."""
    return "e2e_prefill_ns" in requests


def without_phases(requests: Requests) -> dict[str, Any]:
    """A table without the columns that say so."""
    return {name: column for name, column in requests.items() if name not in _COLUMNS}


def split_of(requests: Requests, row: int, whole: str = "e2e") -> Split:
    """The time of the request in one row of a table."""
    columns = {name: f"{whole}_{name}_ns" for name in PHASES}  # an older bundle may lack some
    ns = {name: int(requests[key][row]) for name, key in columns.items() if key in requests}
    spent = {name: t for name, t in ns.items() if t}
    end_ns = int(requests["arrival_ns"][row]) + sum(ns.values())
    return Split(int(requests["index"][row]), whole, spent, end_ns)


def decode_of(requests: Requests, row: int) -> Split:
    """The time of a request after its first token: all gaps between its tokens together."""
    e2e, ttft = split_of(requests, row, "e2e"), split_of(requests, row, "ttft")
    rest = {name: e2e.ns.get(name, 0) - ttft.ns.get(name, 0) for name in PHASES}
    return Split(e2e.index, "decode", {name: t for name, t in rest.items() if t}, e2e.end_ns)


def at_rank(requests: Requests, share: float, whole: str = "e2e") -> Split | None:
    """The finished request of nearest rank by E2E or TTFT; None if none has finished."""
    finished = select(requests, requests["state"] == FINISHED)
    if not len(finished["index"]):
        return None
    order = np.argsort(_length_ns(finished, whole), kind="stable")
    rank = max(1, math.ceil(share * len(order)))
    return split_of(finished, int(order[rank - 1]), whole)


def _length_ns(requests: Requests, whole: str) -> Ints:
    end = "end_ns" if whole == "e2e" else "first_token_ns"
    length: Ints = requests[end] - requests["arrival_ns"]
    return length


def summarize(measured: Requests, setting: Setting) -> dict[str, Any]:
    """What ``summary.json`` says: by class (all requests: ``overall``), what, and rank.

    Args:
        measured: The requests of the measurement window.
        setting: Of the variant: what helps depends on it.

    Returns:
        Empty where time is not attributed.
    """
    if not is_attributed(measured):
        return {}
    blocks = {"overall": _block(measured, "", setting)}
    names = request_classes(measured)
    present = [name for name in np.unique(names).tolist() if name != NO_CLASS]
    if len(present) > 1:
        blocks |= {name: _block(select(measured, names == name), name, setting) for name in present}
    return {name: block for name, block in blocks.items() if block}


def _block(requests: Requests, name: str, setting: Setting) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for whole in WHOLES:
        splits = {rank: at_rank(requests, share, whole) for rank, share in RANKS.items()}
        found |= {
            whole: {
                rank: split.values(setting) | {"sentence": sentence(split, setting, rank, name)}
                for rank, split in splits.items()
                if split is not None
            }
        }
    return found if found["e2e"] else {}


_RANK_WORDS = {"median": "The median request", "p99": "The P99 request"}
_WHOLE_WORDS = {"e2e": "E2E", "ttft": "TTFT", "decode": "after its first token:"}


def sentence(split: Split, setting: Setting, rank: str = "", request_class: str = "") -> str:
    """One sentence: the dominant phase, the bottleneck resource, and what usually helps."""
    who = _RANK_WORDS.get(rank, f"Request {split.index}")
    if request_class:
        who += f" of class {request_class}"
    total = split.total_ns
    whole = f"{who} ({_WHOLE_WORDS[split.whole]} {seconds(total)})"
    if not total:
        return f"{whole} took no time."
    phase, advice = split.dominant, ADVICE[split.dominant]
    resource, ns = next(iter(split.resources(setting).items()))
    most = max(
        (name for name in split.ns if resource_of(name, setting) == resource),
        key=lambda name: split.ns[name],
    )
    helps = help_for(phase, setting, split.end_ns)
    return (
        f"{whole} spent {split.ns[phase] / total:.0%} of that {advice.words}; {ns / total:.0%} of "
        f"it hangs on {resource}{why(most, setting)}.{_failures(split, setting)} "
        f"What usually helps: {helps}."
    )


_BY_FAILURES = ("queue_no_replica", "lost", "reprefill_failure")


def _failures(split: Split, setting: Setting) -> str:
    """What failures of replicas took from a request; a step may also be lost as its client left."""
    failed = setting.failed_ns is not None and setting.failed_ns < split.end_ns
    if not failed or not (split.ns.keys() & {"queue_no_replica", "reprefill_failure"}):
        return ""
    ns = sum(split.ns.get(phase, 0) for phase in _BY_FAILURES)
    return f" Failures of replicas took {seconds(ns)} of it ({ns / split.total_ns:.0%})."


def seconds(ns: int) -> str:
    """A time for people, three digits."""
    size = abs(ns)
    for unit, name in ((NS_PER_S, "s"), (10**6, "ms"), (10**3, "us")):
        if size >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns} ns"


# --- single requests


def worst(requests: Requests, what: str, count: int) -> list[int]:
    """Rows of the requests with the largest TTFT, gap between tokens or E2E, largest first.

    Raises:
        ConfigError: `what` is none of ``ttft``, ``itl``, ``e2e``, or `count` is below 1.
    """
    if what not in (*WHOLES, "itl"):
        raise ConfigError(f"worst: {what}{nearest(what, ('ttft', 'itl', 'e2e'))}")
    if count < 1:
        raise ConfigError(f"worst: {count} requests: expected at least 1")
    if what == "itl":
        length = requests["largest_itl_ns"].astype(np.int64)
    else:
        length = _length_ns(requests, what)
        end = requests["end_ns"] if what == "e2e" else requests["first_token_ns"]
        length = np.where(end < 0, -1, length)
    order = np.argsort(-length, kind="stable")
    return [row for row in order[:count].tolist() if length[row] >= 0]


def row_of(requests: Requests, index: int) -> int:
    """The row of a request by its index in the trace.

    Raises:
        ConfigError: There is none.
    """
    rows = np.flatnonzero(requests["index"] == index)
    if not len(rows):
        there: Sequence[int] = requests["index"].tolist()
        known = f"they have {min(there)} to {max(there)}" if there else "they have none"
        raise ConfigError(f"request {index}: not in these results; {known}")
    return int(rows[0])
