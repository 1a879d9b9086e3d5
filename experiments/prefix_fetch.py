"""A global prefix cache in a config: how replicas fetch prefixes, and what moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments.explain import placed
from sim import prefix_fetch
from sim.errors import ConfigError
from sim.prefix_fetch import FetchSpec

if TYPE_CHECKING:
    from experiments.schema import Experiment
    from sim.pool import PoolSpec
    from sim.records import SimulationResult

COLUMNS = ("fetched_tokens", "fetch_wait_ns")
"""Of requests, where prefixes are fetched: what was fetched for each, and how long that took."""


def spec_of(experiment: Experiment, entry: PoolSpec, where: Callable[..., str]) -> FetchSpec | None:
    """How prefixes are fetched, or None.

    Args:
        experiment: Resolved.
        entry: The pool that requests enter.
        where: Places for messages.

    Raises:
        ConfigError: No bandwidth is known, or the replicas have no caches of one kind.
    """
    said, transfer = experiment.prefix_fetch, experiment.pools.transfer
    if said is None:
        return None
    bandwidth, latency_s = said.bandwidth_bytes_per_s, said.latency_s
    if bandwidth is None and transfer is not None:
        bandwidth = transfer.bandwidth_bytes_per_s
    if bandwidth is None:
        raise ConfigError(
            f"{where('prefix_fetch', 'bandwidth_bytes_per_s')}: is required, as no transfer says "
            "one: bytes per second of one fetch, such as 50e9"
        )
    if latency_s is None:
        latency_s = 0.0 if transfer is None else transfer.latency_s
    try:
        prefix_fetch.check(entry.replicas)
    except ConfigError as error:
        raise ConfigError(placed(where("prefix_fetch"), error)) from None
    return FetchSpec(bandwidth, latency_s, said.balancing_threshold)


def without_effect(experiment: Experiment, entry: PoolSpec) -> list[str]:
    """Keys that change nothing, one sentence each."""
    if experiment.prefix_fetch is None:
        return []
    grows = any(change.what == "add" for change in experiment.events)
    if len(entry.replicas) > 1 or grows:
        return []
    return [
        f"prefix_fetch has no effect: pool {entry.name} has one replica, and prefixes move within "
        "the pool that requests enter."
    ]


def of_requests(
    experiment: Experiment, result: SimulationResult
) -> dict[str, npt.NDArray[np.int64]]:
    """`COLUMNS`, one value per row of the requests; none where nothing can be fetched.

    A request that waited for a fetch which was started for another one has 0 in both.
    """
    if experiment.prefix_fetch is None:
        return {}
    fetches, index = result.fetches, result.requests["index"]
    at = np.searchsorted(index, fetches["request"])
    columns = {name: np.zeros(len(index), np.int64) for name in COLUMNS}
    np.add.at(columns["fetched_tokens"], at, fetches["tokens"])
    np.add.at(columns["fetch_wait_ns"], at, fetches["end_ns"] - fetches["start_ns"])
    return columns


def report(experiment: Experiment, result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add what was fetched to the summary, and say it in a sentence."""
    if experiment.prefix_fetch is None:
        return []
    fetches = result.fetches
    count, tokens, moved = (
        len(fetches["tokens"]),
        *(int(fetches[name].sum()) for name in ("tokens", "bytes")),
    )
    summary["prefix_fetch"] = {
        "fetches": count,
        "tokens": tokens,
        "bytes": moved,
        "without_room": result.fetches_without_room,
    }
    return [
        f"prefix_fetch: {count:,} prefixes were fetched from another replica's cache, {tokens:,} "
        f"tokens, {moved / 1e9:,.1f} GB; {result.fetches_without_room:,} times the blocks for one "
        "were not free, and it was computed."
    ]
