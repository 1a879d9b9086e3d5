"""What a prefix cache does for the requests and to the memory: hits, occupancy, evictions.

As in `metrics.py`, functions of the table of requests and of the series on the time grid. Whether
there was a cache at all is known from the replicas: without one these quantities are absent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.errors import ProfileError
from sim.metrics import NS_PER_S, Bools, Floats, Ints, ReplicaFacts, Requests, inside
from sim.step_time import StepTimeModel, StepWork

MOST_EVALUATED = 10_000
"""Requests with a hit of which the saved time is calculated, evenly over the trace; 1 s or so."""


def looked_up(requests: Requests) -> Bools:
    """Requests that were scheduled: a prefix cache was asked for their prompts, shape (n,)."""
    return np.asarray(requests["first_scheduled_ns"] >= 0)


def hit_rate_tokens(requests: Requests) -> float:
    """Prompt tokens found cached / prompt tokens, of requests looked up; NaN without any."""
    mask = looked_up(requests)
    prompts = int(requests["prompt_tokens"][mask].sum())
    return int(requests["cached_tokens"][mask].sum()) / prompts if prompts else float("nan")


def hit_rate_requests(requests: Requests) -> float:
    """Share of the requests looked up of which any token was found; NaN without any."""
    found = requests["cached_tokens"][looked_up(requests)]
    return float((found > 0).mean()) if len(found) else float("nan")


def hits_over_time(requests: Requests, ends_ns: Ints) -> Floats:
    """Prompt tokens found cached / prompt tokens of the requests first scheduled in each interval.

    Args:
        requests: Columns of shape (n,).
        ends_ns: Ends of the intervals, ascending, (k,); the first begins with the run.

    Returns:
        Shape (k,); NaN where nothing was looked up.
    """
    mask = looked_up(requests)
    at = np.searchsorted(ends_ns, requests["first_scheduled_ns"][mask], side="left")
    inside_of = at < len(ends_ns)
    sums = [
        np.bincount(at[inside_of], requests[name][mask][inside_of], len(ends_ns))
        for name in ("cached_tokens", "prompt_tokens")
    ]
    with np.errstate(invalid="ignore"):
        return np.asarray(sums[0] / sums[1])


def blocks_over_time(series: Requests, name: str) -> tuple[Ints, Ints]:
    """A column of the series summed over all replicas: times, ns, and sums, both (k,)."""
    time_ns, at = np.unique(series["time_ns"], return_inverse=True)
    return time_ns, np.bincount(at, series[name], len(time_ns)).astype(np.int64)


def has_cache(replicas: Sequence[ReplicaFacts]) -> bool:
    """Whether any replica has a prefix cache."""
    return any(replica.lost_blocks is not None for replica in replicas)


def evicted_tokens(replicas: Sequence[ReplicaFacts]) -> int:
    """Tokens whose KV lost its place, by whole blocks, over the whole run."""
    return sum((replica.lost_blocks or 0) * replica.block_tokens for replica in replicas)


def of_tiers(replicas: Sequence[ReplicaFacts]) -> dict[str, float]:
    """Where admissions of the whole run found tokens, and what moved; empty if nothing moved."""
    caches = [replica for replica in replicas if replica.lost_blocks is not None]
    moved = sum(replica.host_bytes for replica in caches)
    if not moved:
        return {}
    host = sum(replica.host_found_tokens for replica in caches)
    disk = sum(replica.disk_found_tokens for replica in caches)
    values: dict[str, float] = {
        "gpu_found_tokens": sum(replica.found_tokens for replica in caches) - host - disk,
        "host_found_tokens": host,
        "tier_hit_rate_tokens": (host + disk) / sum(replica.asked_tokens for replica in caches),
        "host_bytes": moved,
    }
    read = sum(replica.disk_read_bytes for replica in caches)
    written = sum(replica.disk_written_bytes for replica in caches)
    if read or written:
        values |= {"disk_found_tokens": disk, "disk_bytes": read + written}
    return values


def kv_cached(
    series: Requests, replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]
) -> Floats:
    """Share of blocks cached and unused, one value per grid point in the span and replica."""
    return _share(series, series["cached_blocks"], replicas, span_ns)


def kv_free(series: Requests, replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]) -> Floats:
    """Share of blocks that hold nothing, one value per grid point in the span and replica."""
    total = np.array([replica.total_blocks for replica in replicas], np.int64)
    free = total[series["replica"]] - series["used_blocks"] - series["cached_blocks"]
    return _share(series, free, replicas, span_ns)


def _share(
    series: Requests, blocks: Ints, replicas: Sequence[ReplicaFacts], span_ns: tuple[int, int]
) -> Floats:
    """Blocks / total, of the points in the span and of replicas with a cache."""
    cached = np.array([replica.lost_blocks is not None for replica in replicas])
    total = np.array([replica.total_blocks for replica in replicas], dtype=np.float64)
    of = series["replica"]
    chosen = inside(series, span_ns) & cached[of]
    return np.asarray(blocks[chosen] / total[of[chosen]])


def saved_prefill_each_s(requests: Requests, models: Sequence[StepTimeModel]) -> Floats:
    """Prefill seconds that its hit saved each request, shape (n,).

    With p prompt tokens of which c were found, that is the time of a step that computes all p,
    alone on the replica, less that of a step that computes the p - c others with c before them. The
    cost of a step as such stands on both sides and drops out; whether the replica would have cut
    the prompt into chunks, or have had something else to do in these steps, does not enter.

    Args:
        requests: All of a run.
        models: Step times of each replica, without noise, in the order of their indices.

    Returns:
        0 without a hit. With over `MOST_EVALUATED` hits NaN for all but as many, evenly over the
        trace. NaN for all hits where a model refuses such a step, since its tables do not reach it.
    """
    saved = np.zeros(len(requests["cached_tokens"]))
    hits = np.flatnonzero(looked_up(requests) & (requests["cached_tokens"] > 0))
    saved[hits] = np.nan
    chosen = hits[:: -(-len(hits) // MOST_EVALUATED) or 1]
    columns = (requests[name][chosen] for name in ("replica", "prompt_tokens", "cached_tokens"))
    cases = np.stack([np.asarray(column, np.int64) for column in columns], axis=1)
    distinct, case = np.unique(cases, axis=0, return_inverse=True)
    try:
        seconds = [_saved_s(models[place], p, c) for place, p, c in distinct.tolist()]
    except ProfileError:
        return saved
    saved[chosen] = np.array(seconds, dtype=np.float64)[case.reshape(-1)]
    return saved


def _saved_s(model: StepTimeModel, prompt: int, cached: int) -> float:
    whole, rest = StepWork([(prompt, 0)]), StepWork([(prompt - cached, cached)])
    return (model.step_ns(whole, 0) - model.step_ns(rest, 0)) / NS_PER_S


def saved_prefill_s(requests: Requests) -> float:
    """Sum of the column `saved_prefill_s`, each hit that was left out counting as the mean.

    NaN where there were hits, and none was calculated.
    """
    saved = requests["saved_prefill_s"]
    missing = np.isnan(saved)
    hits = looked_up(requests) & (requests["cached_tokens"] > 0)
    calculated = saved[hits & ~missing]
    if not len(calculated):
        return float("nan") if hits.any() else 0.0
    return float(calculated.mean()) * int(hits.sum())
