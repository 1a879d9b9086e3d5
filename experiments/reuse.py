"""What the order of prompts offers a prefix cache, whatever serves it.

Requests one after the other, each holding its blocks until the next; see `traces.reuse`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.metric_definitions import STATISTICS
from sim.metrics import QUANTILES
from sim.request import Trace

MOST_REQUESTS = 20_000
"""Requests up to which a run counts the reuse of its trace; `phasewise trace prefix` takes all."""
_POINTS = 60
"""Capacities of the curve, evenly on a logarithmic axis."""


def reuse_of(trace: Trace) -> dict[str, Any] | None:
    """Reuse distances and LRU hits by capacity, in the order of the rows, as values for JSON.

    The reuse distance of a block is how many tokens of other blocks were used since its last use.
    An LRU cache finds it if it is larger.

    Returns:
        ``distance_tokens`` with the statistics of a metric; ``capacity_tokens`` and ``hit_rate``,
        prompt tokens found by an LRU cache of that size / prompt tokens; ``block_tokens``. None
        where nothing is known of the prompts, or there are more than `MOST_REQUESTS`.
    """
    from traces.reuse import prefix_reuse

    known = trace.block_ids is not None or trace.content is not None
    if not known or not 0 < len(trace) <= MOST_REQUESTS:
        return None
    reuse = prefix_reuse(trace)
    size, curve = reuse.block_tokens, reuse.curve
    if reuse.unique_blocks == 0:
        return None
    points = np.unique(np.geomspace(1, reuse.unique_blocks, _POINTS).round().astype(np.int64))
    return {
        "block_tokens": size,
        "distance_tokens": _distribution(np.diff(curve), size),
        "capacity_tokens": (points * size).tolist(),
        "hit_rate": (curve[points] * size / max(1, reuse.prompt_tokens)).tolist(),
    }


def _distribution(count: np.ndarray[Any, np.dtype[np.int64]], size: int) -> dict[str, Any]:
    """Of blocks by their distance: `count` of 0, 1, 2, ... blocks."""
    distance = np.flatnonzero(count)
    weights = count[distance]
    n = int(weights.sum())
    if not n:
        return {"n": 0, **dict.fromkeys(STATISTICS[1:], float("nan"))}
    at = np.quantile(distance, QUANTILES, weights=weights, method="inverted_cdf") * size
    return {
        "n": n,
        "mean": float((distance * weights).sum()) / n * size,
        "min": float(distance[0] * size),
        **{f"p{100 * q:g}": float(value) for q, value in zip(QUANTILES, at, strict=True)},
        "max": float(distance[-1] * size),
    }
