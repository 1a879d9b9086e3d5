"""What is measured, defined once: pure functions of the table of requests.

Every function takes the requests of one run as columns (`Requests`, one row per arrived request,
times in integer ns, -1 for never) and gives either one value per request, NaN where it is
undefined, or one number. The definitions are in `metric_definitions.py`, what concerns prefix
caches in `cache_metrics.py`, targets and windows in `slo.py`, FLOPs and bytes in `model_work.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sim.records import FINISHED

Requests = Mapping[str, npt.NDArray[Any]]
"""Columns of the requests table: name -> array of shape (n,)."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Gaps = tuple[Ints, Ints]
"""Distinct gaps between tokens, ns, ascending, and how often each occurred; both of shape (k,)."""

QUANTILES = (0.5, 0.9, 0.95, 0.99)
"""Percentiles in every summary."""

NS_PER_S = 1_000_000_000


# One value per request


def _since_arrival_s(requests: Requests, column: str) -> Floats:
    then = requests[column]
    return np.where(then >= 0, (then - requests["arrival_ns"]) / NS_PER_S, np.nan)


def finished(requests: Requests) -> Bools:
    """Which requests emitted all their tokens, shape (n,)."""
    return np.asarray(requests["state"] == FINISHED)


def ttft_s(requests: Requests) -> Floats:
    """Arrival to first token as the client sees it, seconds, shape (n,); NaN where none came."""
    return _since_arrival_s(requests, "first_token_ns")


def prefill_ttft_s(requests: Requests) -> Floats:
    """Arrival to end of prefill, seconds, shape (n,); NaN where no prefill was completed."""
    return _since_arrival_s(requests, "prefill_end_ns")


def queueing_delay_s(requests: Requests) -> Floats:
    """Arrival to first scheduled, seconds, shape (n,); NaN where that never came."""
    return _since_arrival_s(requests, "first_scheduled_ns")


def tpot_s(requests: Requests) -> Floats:
    """Mean gap between the tokens of a request, seconds, shape (n,).

    NaN for one token and for requests that did not finish.
    """
    tokens = requests["emitted_tokens"]
    span_ns = requests["last_token_ns"] - requests["first_token_ns"]
    defined = finished(requests) & (tokens > 1)
    return np.where(defined, span_ns / NS_PER_S / np.maximum(tokens - 1, 1), np.nan)


def largest_itl_s(requests: Requests) -> Floats:
    """Longest gap between two tokens of a request, seconds, shape (n,); NaN under two tokens."""
    gap_ns = requests["largest_itl_ns"]
    return np.where(gap_ns >= 0, gap_ns / NS_PER_S, np.nan)


def e2e_s(requests: Requests) -> Floats:
    """Arrival to last token, seconds, shape (n,); NaN for requests that did not finish."""
    return np.where(finished(requests), _since_arrival_s(requests, "last_token_ns"), np.nan)


def normalised_latency_s_per_token(requests: Requests) -> Floats:
    """E2E / output tokens, s/token, shape (n,); NaN for requests that did not finish."""
    return e2e_s(requests) / np.maximum(requests["emitted_tokens"], 1)


PER_REQUEST = {
    "ttft": ttft_s,
    "prefill_ttft": prefill_ttft_s,
    "queueing_delay": queueing_delay_s,
    "tpot": tpot_s,
    "largest_itl": largest_itl_s,
    "e2e": e2e_s,
    "normalised_latency": normalised_latency_s_per_token,
}
"""Metrics with one value per request: key -> function of the requests."""


def transfer_times_s(requests: Requests, transfers: Requests) -> dict[str, Floats]:
    """Length of each request's last transfer, and from the end of its prefill to that one's end.

    Args:
        requests: Columns ``index`` and ``prefill_end_ns``.
        transfers: Columns ``request``, ``start_ns`` and ``end_ns``, in order of end.

    Returns:
        Columns `transfer_s` and `decode_wait_s`, shape (n,), NaN where none ended; none at all
        where no request had a transfer.
    """
    if not len(transfers.get("request", ())):
        return {}
    index = requests["index"]
    start_ns, end_ns = np.full((2, len(index)), -1, np.int64)
    row = np.searchsorted(index, transfers["request"])
    start_ns[row], end_ns[row] = transfers["start_ns"], transfers["end_ns"]
    ended = end_ns >= 0
    waits = (("transfer_s", start_ns), ("decode_wait_s", requests["prefill_end_ns"]))
    return {
        name: np.where(ended, (end_ns - since_ns) / NS_PER_S, np.nan) for name, since_ns in waits
    }


# Percentiles


def quantiles(values: Floats, q: Sequence[float] = QUANTILES) -> Floats:
    """Percentiles that are values that occurred (``inverted_cdf``), shape (len(q),).

    NaN in `values` means undefined and is left out; all NaN if nothing is left.
    """
    defined = values[~np.isnan(values)]
    if not len(defined):
        return np.full(len(q), np.nan)
    return np.quantile(defined, q, method="inverted_cdf")


def gap_quantiles_s(gaps: Gaps, q: Sequence[float] = QUANTILES) -> Floats:
    """Percentiles of pooled gaps, seconds, each gap weighted by its count, shape (len(q),)."""
    gap_ns, count = gaps
    if not len(gap_ns):
        return np.full(len(q), np.nan)
    ns = np.quantile(gap_ns, q, weights=count, method="inverted_cdf")
    return np.asarray(ns / NS_PER_S, dtype=np.float64)


def distribution(values: Floats, q: Sequence[float] = QUANTILES) -> dict[str, float]:
    """Count, mean, least, largest and percentiles of the values that are defined.

    Keys: ``n``, ``mean``, ``min``, ``p50`` and so on, ``max``; NaN where n is 0.
    """
    defined = values[~np.isnan(values)]
    some = len(defined) > 0
    return {
        "n": len(defined),
        "mean": float(defined.mean()) if some else np.nan,
        "min": float(defined.min()) if some else np.nan,
        **_named(quantiles(defined, q), q),
        "max": float(defined.max()) if some else np.nan,
    }


def gap_distribution(gaps: Gaps, q: Sequence[float] = QUANTILES) -> dict[str, float]:
    """The same as `distribution` for pooled gaps, seconds."""
    gap_ns, count = gaps
    n = int(count.sum())
    # Python integers: 10^8 gaps of seconds in ns are beyond the exact range of a double.
    total_ns = sum(map(int.__mul__, gap_ns.tolist(), count.tolist()))
    return {
        "n": n,
        "mean": total_ns / n / NS_PER_S if n else np.nan,
        "min": int(gap_ns[0]) / NS_PER_S if n else np.nan,
        **_named(gap_quantiles_s(gaps, q), q),
        "max": int(gap_ns[-1]) / NS_PER_S if n else np.nan,
    }


def _named(values: Floats, q: Sequence[float]) -> dict[str, float]:
    return {f"p{100 * p:g}": float(value) for p, value in zip(q, values, strict=True)}


def merge_gaps(parts: Iterable[Gaps]) -> Gaps:
    """Pool counted gaps of several classes or replicas into one."""
    pairs = list(parts)
    if not pairs:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    all_gaps = np.concatenate([gap_ns for gap_ns, _ in pairs])
    gap_ns, position = np.unique(all_gaps, return_inverse=True)
    count = np.zeros(len(gap_ns), np.int64)
    np.add.at(count, position, np.concatenate([count for _, count in pairs]))
    return gap_ns, count


# Rates, over time


def observed_s(requests: Requests, start_ns: int, run_end_ns: int) -> float:
    """Start of the window to the last end of these requests, seconds.

    Requests that never ended count as ending with the run.
    """
    end_ns = requests["end_ns"]
    if not len(end_ns):
        return 0.0
    last = run_end_ns if (end_ns < 0).any() else int(end_ns.max())
    return (last - start_ns) / NS_PER_S


def throughput_out_per_s(requests: Requests, duration_s: float) -> float:
    """Tokens emitted per second; NaN over no time."""
    return per_second(int(requests["emitted_tokens"].sum()), duration_s)


def throughput_in_per_s(requests: Requests, duration_s: float) -> float:
    """Prompt tokens, of requests that emitted a token, per second; NaN over no time."""
    served = requests["emitted_tokens"] > 0
    return per_second(int(requests["prompt_tokens"][served].sum()), duration_s)


def per_second(count: float, seconds: float) -> float:
    """A rate; NaN over no time."""
    return count / seconds if seconds > 0 else float("nan")


class ReplicaFacts(Protocol):
    """What the metrics need to know of a replica (`sim.records.ReplicaInfo` has it)."""

    @property
    def name(self) -> str:
        """Unique in the run."""

    @property
    def pool(self) -> str:
        """Name of its pool."""

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""

    @property
    def joined_ns(self) -> int:
        """When it joined its pool, up or still starting, ns."""

    @property
    def left_ns(self) -> int:
        """When it was gone, ns; -1 if it was there at the end."""

    @property
    def total_blocks(self) -> int:
        """KV blocks of its pool."""

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""

    @property
    def busy_ns(self) -> int:
        """Time with a step in flight, ns."""

    @property
    def prefill_busy_ns(self) -> int:
        """Of it, with a step that computes any prompt token, ns."""

    @property
    def iterations(self) -> int:
        """Forward passes that it ran."""

    @property
    def iterations_by_rows(self) -> Sequence[tuple[int, int]]:
        """How many of them computed how many rows: (rows, iterations), in order of rows."""

    @property
    def lost_blocks(self) -> int | None:
        """Blocks of a prefix cache that lost their content; None without a cache."""

    @property
    def found_tokens(self) -> int:
        """Found cached by all admissions, in whatever tier."""

    @property
    def asked_tokens(self) -> int:
        """Known at these admissions."""

    @property
    def host_found_tokens(self) -> int:
        """Of those found, the ones from host memory."""

    @property
    def disk_found_tokens(self) -> int:
        """Of those found, the ones from disk."""

    @property
    def host_bytes(self) -> int:
        """Moved over the host link."""

    @property
    def disk_read_bytes(self) -> int:
        """Read from disk."""

    @property
    def disk_written_bytes(self) -> int:
        """Written to disk."""


def there_ns(replica: ReplicaFacts, span_ns: tuple[int, int]) -> int:
    """Time of the span in which a replica is there, from its joining to its leaving, ns."""
    left_ns = span_ns[1] if replica.left_ns < 0 else min(replica.left_ns, span_ns[1])
    return max(0, left_ns - max(replica.joined_ns, span_ns[0]))


def shares_there(replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]) -> Floats:
    """Share of the span in which each replica is there; 1 for all where the span is none."""
    length = span_ns[1] - span_ns[0]
    there = np.array([there_ns(replica, span_ns) for replica in replicas], dtype=np.float64)
    return there / length if length > 0 else np.ones(len(replicas))


def gpus_at_most(replicas: Sequence[ReplicaFacts]) -> int:
    """Most GPUs of replicas that were there at one time; whoever leaves does so first."""
    steps = [(replica.joined_ns, 1, replica.gpus) for replica in replicas]
    steps += [(replica.left_ns, 0, -replica.gpus) for replica in replicas if replica.left_ns >= 0]
    return max(accumulate((gpus for _, _, gpus in sorted(steps)), initial=0))


def run_span_ns(requests: Requests, run_end_ns: int) -> tuple[int, int]:
    """First arrival and last end, ns; requests that never ended count as ending with the run."""
    if not len(requests["arrival_ns"]):
        return 0, 0
    end_ns = requests["end_ns"]
    last = run_end_ns if (end_ns < 0).any() else int(end_ns.max())
    return int(requests["arrival_ns"].min()), last


def utilisation(replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]) -> Floats:
    """Share of the span, as far as it is there, in which each replica has a step in flight.

    Shape (len(replicas),); 0 for one that was never there.
    """
    length = span_ns[1] - span_ns[0]
    if length <= 0:
        return np.full(len(replicas), np.nan)
    busy = np.array([replica.busy_ns for replica in replicas], dtype=np.float64)
    there = np.array([there_ns(replica, span_ns) for replica in replicas], dtype=np.float64)
    return busy / np.maximum(there, 1)


def mean_utilisation(replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]) -> float:
    """Mean over replicas, each with the time that it is there; NaN over no time."""
    shares, there = utilisation(replicas, span_ns), shares_there(replicas, span_ns)
    if (there == 1).all():
        return float(shares.mean()) if len(shares) else math.nan
    return float(np.average(shares, weights=there)) if there.sum() > 0 else math.nan


def kv_use(series: Requests, replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]) -> Floats:
    """Share of KV blocks in use, one value per grid point in the span and replica there."""
    chosen = inside(series, span_ns) & is_there(series, replicas)
    total = np.array([replica.total_blocks for replica in replicas], dtype=np.float64)
    return np.asarray(series["used_blocks"][chosen] / total[series["replica"][chosen]])


def is_there(series: Requests, replicas: Sequence[ReplicaFacts]) -> Bools:
    """Which rows of the series are of a replica that is there then."""
    place, when_ns = series["replica"], series["time_ns"]
    joined = np.array([replica.joined_ns for replica in replicas], dtype=np.int64)
    left = np.array([replica.left_ns for replica in replicas], dtype=np.int64)
    return (when_ns >= joined[place]) & ((left[place] < 0) | (when_ns < left[place]))


def batch_sizes(series: Requests, span_ns: tuple[int, int]) -> Floats:
    """Requests running, one value per grid point in the span and replica, where any runs."""
    running = series["running"][inside(series, span_ns)]
    return running[running > 0].astype(np.float64)


def inside(series: Requests, span_ns: tuple[int, int]) -> Bools:
    """Which rows of the series lie in the span, both ends included."""
    time_ns = series["time_ns"]
    return np.asarray((time_ns >= span_ns[0]) & (time_ns <= span_ns[1]))
