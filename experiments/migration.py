"""Live migration in a config: who moves between replicas and how, and what moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from experiments import parts
from experiments.explain import placed
from sim.errors import ConfigError
from sim.metrics import NS_PER_S
from sim.migration import MigrationSpec
from sim.records import OUTCOMES
from sim.request import NEVER
from sim.transfer import TransferSpec

if TYPE_CHECKING:
    from experiments.schema import Experiment, Migration
    from sim.pool import PoolSpec
    from sim.records import SimulationResult

Where = Callable[..., str]

COLUMNS = ("migration_downtime_ns", "migration_pause_ns", "migrated_bytes")
"""Of requests, where these can move: stopped while KV was copied, from the stops to their next
tokens, and bytes copied; over all migrations of the request."""
_STAGE_KEYS = ("last_stage_blocks", "max_stages")
_LINK_KEYS = ("bandwidth_bytes_per_s", "latency_s", "sharing")


def spec_of(
    experiment: Experiment,
    entry: PoolSpec,
    decode: PoolSpec | None,
    folder: Path,
    where: Where,
) -> MigrationSpec | None:
    """How requests move between the replicas of the pool that decodes, or None.

    Args:
        experiment: Resolved.
        entry: The pool that requests enter.
        decode: The decode pool, if there is one.
        folder: Where a user's own module is looked for first.
        where: Places for messages.

    Raises:
        ConfigError: Unknown names or options, or a layout in which requests cannot move.
    """
    said = experiment.migration
    if said is None:
        return None
    migrator = parts.migrator(said.migrator, where("migration", "migrator"), folder)
    spec = MigrationSpec(
        migrator=migrator,
        interval_ns=round(said.interval_s * NS_PER_S),
        mode=said.mode,
        link=_link(experiment, said, decode, where),
        last_stage_blocks=said.last_stage_blocks,
        max_stages=said.max_stages,
    )
    transfer = None
    if experiment.pools.transfer is not None:
        push = experiment.pools.transfer.start == "push"
        transfer = TransferSpec(experiment.pools.transfer.bandwidth_bytes_per_s, push=push)
    try:
        spec.check(decode or entry, transfer, has_network=experiment.topology is not None)
    except ConfigError as error:
        raise ConfigError(placed(where("migration"), error)) from None
    return spec


def _link(
    experiment: Experiment, said: Migration, decode: PoolSpec | None, where: Where
) -> TransferSpec | None:
    """How KV moves where there is one pool; with two, `transfer` says so."""
    given = [key for key in _LINK_KEYS if key in said.model_fields_set]
    if decode is not None:
        if given:
            raise ConfigError(
                f"{where('migration', given[0])}: {getattr(said, given[0])}: KV moves as transfer "
                "says; leave it out"
            )
        return None
    network = experiment.topology is not None
    place = where("migration", "bandwidth_bytes_per_s")
    if network and said.bandwidth_bytes_per_s is not None:
        raise ConfigError(
            f"{place}: {said.bandwidth_bytes_per_s:g}: the links of the topology say it; leave it "
            "out, or set topology.nic.bytes_per_s"
        )
    if said.bandwidth_bytes_per_s is None and not network:
        if said.mode == "recompute":
            return None
        raise ConfigError(
            f"{place}: is required with mode: {said.mode}: bytes per second of one copy, such as "
            "25e9"
        )
    shares = network or said.sharing == "max-min"
    return TransferSpec(said.bandwidth_bytes_per_s, said.latency_s, shares_links=shares)


def without_effect(experiment: Experiment, pool: PoolSpec) -> list[str]:
    """Keys that change nothing, one sentence each.

    Args:
        experiment: Resolved.
        pool: The pool in which requests may move.
    """
    said = experiment.migration
    if said is None:
        return []
    grows = any(change.what == "add" for change in experiment.events) or pool.scaling is not None
    if len(pool.replicas) == 1 and not grows:
        return [
            f"migration has no effect: pool {pool.name} has one replica, and requests move within "
            "a pool."
        ]
    unused = {"live": (), "stop": _STAGE_KEYS, "recompute": (*_STAGE_KEYS, *_LINK_KEYS)}[said.mode]
    return [
        f"migration.{key} has no effect with mode: {said.mode}."
        for key in unused
        if key in said.model_fields_set
    ]


def of_requests(
    experiment: Experiment, result: SimulationResult
) -> dict[str, npt.NDArray[np.int64]]:
    """`COLUMNS`, one value per row of the requests; none where nobody can move."""
    if experiment.migration is None:
        return {}
    moves, index = result.migrations, result.requests["index"]
    at = np.searchsorted(index, moves["request"])
    columns = {name: np.zeros(len(index), np.int64) for name in COLUMNS}
    np.add.at(columns["migration_downtime_ns"], at, since_stop_ns(result, "end_ns"))
    np.add.at(columns["migration_pause_ns"], at, since_stop_ns(result, "resumed_ns"))
    np.add.at(columns["migrated_bytes"], at, moves["bytes"])
    return columns


def since_stop_ns(result: SimulationResult, column: str) -> npt.NDArray[np.int64]:
    """Of each migration, from the stop to another instant; 0 where there was none of the two.

    Args:
        result: Of the run.
        column: ``end_ns``, of the last copy, or ``resumed_ns``, of the next token.
    """
    moves = result.migrations
    seen = (moves["stop_ns"] != NEVER) & (moves[column] != NEVER)
    return np.where(seen, moves[column] - moves["stop_ns"], 0)


def _spread(lengths_ns: npt.NDArray[np.int64]) -> dict[str, float | None]:
    if not len(lengths_ns):
        return {"mean": None, "p99": None}
    p99 = np.quantile(lengths_ns, 0.99, method="inverted_cdf")
    return {"mean": float(lengths_ns.mean() / NS_PER_S), "p99": float(p99 / NS_PER_S)}


def report(experiment: Experiment, result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add what moved to the summary, and say it in a sentence."""
    if experiment.migration is None:
        return []
    moves = result.migrations
    counts = np.bincount(moves["outcome"], minlength=len(OUTCOMES)).tolist()
    moved = moves["outcome"] == OUTCOMES.index("moved")
    down, pause = (
        _spread(since_stop_ns(result, column)[moved]) for column in ("end_ns", "resumed_ns")
    )
    sent = int(moves["bytes"].sum())
    summary["migrations"] = {
        "outcomes": dict(zip(OUTCOMES, counts, strict=True)),
        "bytes": sent,
        "downtime_s": down,
        "pause_s": pause,
    }
    stayed = ", ".join(
        f"{name.replace('_', ' ')} {count:,}"
        for name, count in zip(OUTCOMES[1:], counts[1:], strict=True)
        if count
    )
    paused = ""
    if down["mean"] is not None and pause["mean"] is not None:
        paused = (
            f", stopped for {down['mean'] * 1e3:,.1f} ms each while KV was copied and "
            f"{pause['mean'] * 1e3:,.1f} ms until their next token (means)"
        )
    return [
        f"migration: requests moved {counts[0]:,} times{paused}; {sent / 1e9:,.1f} GB of KV were "
        f"copied; requests stayed: {stayed or 'none'}."
    ]
