"""Where the time of a run's requests went: that of the median and of the P99 request, and a word.

The median and the P99 request are those of these nearest ranks by E2E, of all that finished, or by
TTFT, of all that emitted a token, however they ended, as `sim.metrics` counts them (of equal ones,
the earliest in the trace): one request each, so that their phases add up. The median
and the P99 gap are the gaps between tokens of those nearest ranks of all gaps of the measured
requests (of equal ones, the first of the request that is the earliest in the trace).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import outages
from experiments.advice import ADVICE, Setting, resource_of, why
from experiments.names import unknown
from experiments.remedies import help_for
from sim.attribution import E2E_COLUMNS, ITL_COLUMNS, PHASES, TTFT_COLUMNS
from sim.errors import ConfigError
from sim.metrics import NS_PER_S, PER_REQUEST, Bools, Gaps, Ints, Requests, merge_gaps
from sim.records import FINISHED, STATES
from sim.slo import NO_CLASS, request_classes, select

if TYPE_CHECKING:
    from sim.gap_splits import Gaps as SomeGaps
    from sim.gap_splits import GapSplits

MOST_REQUESTS = 200_000
"""Requests of a variant above which time is attributed only where a config asks for it."""
NOT_ATTRIBUTED = (
    f"Where the time of requests went is not recorded for more than {MOST_REQUESTS:,} requests, as "
    "the run takes a fifth longer to twice as long with it; record.attribution: always records "
    "it all the same."
)
WHOLES = ("e2e", "ttft")
"""What is taken apart of each request, beside the gaps between its tokens (``itl``)."""
_PREFIXES = {"e2e": "e2e", "ttft": "ttft", "itl": "itl_max"}
_COLUMNS = frozenset((*E2E_COLUMNS, *TTFT_COLUMNS, *ITL_COLUMNS))
RANKS = {"median": 0.5, "p99": 0.99}


@dataclass(frozen=True)
class Split:
    """The time of one request, by phase.

    Attributes:
        index: Of the request, in the trace.
        whole: ``e2e`` or ``ttft``; ``decode``: what the first has beyond the second; or ``itl``: a
            gap between two tokens.
        ns: Of each phase that has any, in the order of `PHASES`; below 0 where other decodes or
            prefills in a step made it shorter.
        end_ns: The instant at which it was over.
        token: That ends it, counted from 1, if it is a gap.
        ended: How the request ended, when, and with how many tokens, if it did not finish and this
            is all of its time.
    """

    index: int
    whole: str
    ns: Mapping[str, int]
    end_ns: int = 0
    token: int | None = None
    ended: str = ""

    @property
    def total_ns(self) -> int:
        """Its E2E or TTFT, or the gap."""
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
        which = {} if self.token is None else {"token": self.token}
        resources = self.resources(setting)
        return {
            "request": self.index,
            **which,
            "total_ns": self.total_ns,
            "phases_ns": dict(self.ns),
            "dominant": self.dominant,
            "resource": next(iter(resources), None),
            "resources_ns": resources,
        }


def is_attributed(requests: Requests) -> bool:
    """Whether a table says where time went."""
    return "e2e_prefill_ns" in requests


def without_phases(requests: Requests) -> dict[str, Any]:
    """A table without the columns that say so."""
    return {name: column for name, column in requests.items() if name not in _COLUMNS}


def largest_gap(requests: Requests, row: int) -> Split | None:
    """The largest gap between tokens of a request; None if it has none, or the table says nothing.

    (That of an older bundle does not.)
    """
    if "itl_max_token" not in requests or int(requests["itl_max_token"][row]) < 0:
        return None
    split = split_of(requests, row, "itl")
    token, end_ns = (int(requests[f"itl_max_{name}"][row]) for name in ("token", "end_ns"))
    return replace(split, token=token, end_ns=end_ns)


def split_of(requests: Requests, row: int, whole: str = "e2e") -> Split:
    """The time of the request in one row of a table."""
    prefix = _PREFIXES[whole]
    columns = {name: f"{prefix}_{name}_ns" for name in PHASES}  # an older bundle may lack some
    ns = {name: int(requests[key][row]) for name, key in columns.items() if key in requests}
    spent = {name: t for name, t in ns.items() if t}
    end_ns = int(requests["arrival_ns"][row]) + sum(ns.values())
    ended = _ended(requests, row, sum(ns.values())) if whole == "e2e" else ""
    return Split(int(requests["index"][row]), whole, spent, end_ns, ended=ended)


def _ended(requests: Requests, row: int, after_ns: int) -> str:
    """How a request ended that did not finish: ``cancelled after 314 ms without a token``."""
    state, tokens = int(requests["state"][row]), int(requests["emitted_tokens"][row])
    if state == FINISHED:
        return ""
    what = f"with {tokens:,} token{'s' if tokens > 1 else ''}" if tokens else "without a token"
    return f"{STATES[state]} after {seconds(after_ns)} {what}"


def decode_of(requests: Requests, row: int) -> Split:
    """The time of a request after its first token: all gaps between its tokens together."""
    e2e, ttft = split_of(requests, row, "e2e"), split_of(requests, row, "ttft")
    rest = {name: e2e.ns.get(name, 0) - ttft.ns.get(name, 0) for name in PHASES}
    return Split(e2e.index, "decode", {name: t for name, t in rest.items() if t}, e2e.end_ns)


def at_rank(requests: Requests, share: float, whole: str = "e2e") -> Split | None:
    """The request of nearest rank by E2E or TTFT, of those that have one; None if none has."""
    rows = np.flatnonzero(_counted(requests, whole))
    if not len(rows):
        return None
    length = _length_ns(requests, whole)[rows]
    at = np.flatnonzero(length == np.quantile(length, share, method="inverted_cdf"))[0]
    return split_of(requests, int(rows[at]), whole)


def _counted(requests: Requests, whole: str) -> Bools:
    """Which requests the metric is defined for, (n,)."""
    return ~np.isnan(PER_REQUEST[whole](requests))


def _length_ns(requests: Requests, whole: str) -> Ints:
    end = "last_token_ns" if whole == "e2e" else "first_token_ns"
    length: Ints = requests[end] - requests["arrival_ns"]
    return length


def gaps_at_ranks(
    splits: GapSplits | None, measured: Requests, counted: Mapping[str, Gaps]
) -> dict[str, dict[str, Split]]:
    """The median and the P99 gap between tokens, of all requests (``overall``) and of each class.

    Args:
        splits: Of the run.
        measured: The requests of the measurement window.
        counted: Gaps of each class, as `sim.slo.class_groups` names them.
    """
    if splits is None:
        return {}
    names, found = request_classes(measured), {}
    for name, gaps in {"overall": merge_gaps(counted.values()), **counted}.items():
        index = measured["index"]
        wanted = index if name == "overall" else index[names == name]
        if len(gaps[0]):
            found[name] = {
                rank: _gap_of(splits, round(ns), wanted)
                for rank, ns in zip(RANKS, _gap_quantiles(gaps), strict=True)
            }
    return found


def _gap_quantiles(gaps: Gaps) -> list[float]:
    length_ns, count = gaps
    ranks = list(RANKS.values())
    values: list[float] = np.quantile(
        length_ns, ranks, weights=count, method="inverted_cdf"
    ).tolist()
    return values


def _gap_of(splits: GapSplits, length_ns: int, wanted: Ints) -> Split:
    gaps = splits.first_of(length_ns, wanted)
    assert gaps is not None, f"no gap of {length_ns} ns, which was counted"
    return as_splits(splits, gaps)[0]


def as_splits(splits: GapSplits, gaps: SomeGaps) -> list[Split]:
    """Each of some gaps by itself."""
    rows = zip(*(x.tolist() for x in (gaps.request, gaps.until_ns, gaps.token)), strict=True)
    return [
        Split(request, "itl", {p: t for p, t in zip(PHASES, ns, strict=True) if t}, end_ns, token)
        for (request, end_ns, token), ns in zip(rows, splits.split(gaps).tolist(), strict=True)
    ]


def summarize(
    measured: Requests, setting: Setting, gaps: Mapping[str, Mapping[str, Split]] | None = None
) -> dict[str, Any]:
    """What ``summary.json`` says: by class (all requests: ``overall``), what, and rank.

    Args:
        measured: The requests of the measurement window.
        setting: Of the variant: what helps depends on it.
        gaps: What `gaps_at_ranks` found.

    Returns:
        Empty where time is not attributed.
    """
    if not is_attributed(measured):
        return {}
    gaps = gaps or {}
    blocks = {"overall": _block(measured, "", setting, gaps.get("overall", {}))}
    names = request_classes(measured)
    present = [name for name in np.unique(names).tolist() if name != NO_CLASS]
    if len(present) > 1:
        blocks |= {
            name: _block(select(measured, names == name), name, setting, gaps.get(name, {}))
            for name in present
        }
    return {name: block for name, block in blocks.items() if block}


def _block(
    requests: Requests, name: str, setting: Setting, gaps: Mapping[str, Split]
) -> dict[str, Any]:
    splits_of: dict[str, Mapping[str, Split | None]] = {
        whole: {rank: at_rank(requests, share, whole) for rank, share in RANKS.items()}
        for whole in WHOLES
    }
    if gaps:
        splits_of["itl"] = gaps
    found: dict[str, Any] = {}
    for whole, splits in splits_of.items():
        found |= {
            whole: {
                rank: split.values(setting) | {"sentence": sentence(split, setting, rank, name)}
                for rank, split in splits.items()
                if split is not None
            }
        }
    return {whole: ranks for whole, ranks in found.items() if ranks}


_RANK_WORDS = {"median": "The median", "p99": "The P99"}
_WHOLE_WORDS = {"e2e": "E2E", "ttft": "TTFT", "decode": "after its first token:"}


def _subject(split: Split, rank: str, request_class: str) -> str:
    """Who or what the sentence is about, and how long it took."""
    total = seconds(split.total_ns)
    of_class = f" of class {request_class}" if request_class else ""
    if split.whole == "itl":
        who = f"{_RANK_WORDS[rank]} gap between tokens" if rank else "The gap between tokens"
        return f"{who}{of_class} ({total}, before token {split.token} of request {split.index})"
    took = split.ended or f"{_WHOLE_WORDS[split.whole]} {total}"
    if rank:
        return f"{_RANK_WORDS[rank]} request{of_class} (request {split.index}, {took})"
    return f"Request {split.index}{of_class} ({took})"


def sentence(split: Split, setting: Setting, rank: str = "", request_class: str = "") -> str:
    """One sentence: the dominant phase, the bottleneck resource, and what usually helps."""
    total, whole = split.total_ns, _subject(split, rank, request_class)
    if not total:
        return f"{whole} took no time."
    phase, advice = split.dominant, ADVICE[split.dominant]
    resource, ns = next(iter(split.resources(setting).items()))
    most = max(
        (name for name in split.ns if resource_of(name, setting) == resource),
        key=lambda name: split.ns[name],
    )
    helps = help_for(phase, setting, after_failure=_after_failure(split, setting))
    return (
        f"{whole} spent {split.ns[phase] / total:.0%} of that {advice.words}; {ns / total:.0%} of "
        f"it hangs on {resource}{why(most, setting)}.{_failures(split, setting)} "
        f"What usually helps: {helps}."
    )


def _after_failure(split: Split, setting: Setting) -> bool:
    """Whether a failure of a replica can be shown to have made this longer."""
    begin_ns, end_ns = split.end_ns - split.total_ns, split.end_ns
    from_arrival, pools = split.whole in WHOLES, setting.pools
    return outages.mattered(
        split.ns, setting.outages, begin_ns, end_ns, from_arrival=from_arrival, pools=pools
    )


def _failures(split: Split, setting: Setting) -> str:
    """What failures of replicas took from a request."""
    begin_ns, end_ns = split.end_ns - split.total_ns, split.end_ns
    ns = outages.taken_by_failures(split.ns, setting.outages, begin_ns, end_ns)
    share = f"{ns / split.total_ns:.0%}" if ns else ""
    return f" Failures of replicas took {seconds(ns)} of it ({share})." if ns else ""


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

    Those that have one, as in `sim.metrics`: no E2E has who did not finish.

    Raises:
        ConfigError: `what` is none of ``ttft``, ``itl``, ``e2e``, or `count` is below 1.
    """
    if what not in (*WHOLES, "itl"):
        known = unknown("metric", what, ("ttft", "itl", "e2e"))
        raise ConfigError(f"--worst {what} {count}: {known}")
    if count < 1:
        raise ConfigError(f"--worst {what} {count}: expected at least 1")
    if what == "itl":
        length = requests["largest_itl_ns"].astype(np.int64)
    else:
        length = np.where(_counted(requests, what), _length_ns(requests, what), -1)
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
