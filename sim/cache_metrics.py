"""What a prefix cache does for the requests and to the memory: hits, occupancy, evictions.

As in `metrics.py`, functions of the table of requests and of the series on the time grid. Whether
there was a cache at all is known from the replicas: without one these quantities are absent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.metrics import Bools, Floats, Ints, ReplicaFacts, Requests, inside


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


def has_cache(replicas: Sequence[ReplicaFacts]) -> bool:
    """Whether any replica has a prefix cache."""
    return any(replica.lost_blocks is not None for replica in replicas)


def evicted_tokens(replicas: Sequence[ReplicaFacts]) -> int:
    """Tokens whose KV lost its place, by whole blocks, over the whole run."""
    return sum((replica.lost_blocks or 0) * replica.block_tokens for replica in replicas)


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
