"""Keys of a config that find nothing to choose, to draw or to hold against, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from experiments.names import canonical
from sim.cluster import Cluster
from sim.pool import PoolSpec

if TYPE_CHECKING:
    from experiments.schema import Experiment


def without_effect(experiment: Experiment, cluster: Cluster) -> list[str]:
    """Keys that change nothing: routers without a choice, spells that never begin, `over_long`.

    Args:
        experiment: Resolved and checked. What it says by default is not told.
        cluster: As built from it.
    """
    return [*_of_routers(experiment, cluster), *_of_drawn(experiment), *_of_over_long(experiment)]


def _of_routers(experiment: Experiment, cluster: Cluster) -> Iterator[str]:
    entry, decode = cluster.entry, cluster.decode
    own = experiment.decode_router
    if own is not None and decode is not None and not _may_choose(experiment, decode):
        yield f"decode_router {own['name']} has no effect: there is one decode replica."
    default = type(experiment).model_fields["router"].default["name"]
    name = experiment.router["name"]
    routed = [entry] if decode is None or own is not None else [entry, decode]
    if canonical(str(name)) != default and not any(_may_choose(experiment, x) for x in routed):
        which = "replica" if decode is None else "replica in each pool"
        which = "prefill replica" if decode is not None and own is not None else which
        yield f"router {name} has no effect: there is one {which}."


def _may_choose(experiment: Experiment, pool: PoolSpec) -> bool:
    """Whether a pool has, or may come to have, more than one replica."""
    pools = experiment.pools
    if len(pool.replicas) > 1 or pools.role_switching is not None or pools.mixed_pool is not None:
        return True
    if pool.scaling is not None and pool.scaling.max_replicas > 1:
        return True
    return any(change.what in ("add", "role") for change in experiment.events)


def _of_drawn(experiment: Experiment) -> Iterator[str]:
    for key, drawn in (("failures", experiment.failures), ("stragglers", experiment.stragglers)):
        if drawn is not None and drawn.until_s == 0:
            yield f"{key} has no effect: until_s is 0, and none begins at the very start."


def _of_over_long(experiment: Experiment) -> Iterator[str]:
    pools, said = experiment.pools, experiment.workload.over_long
    every = [pool for pool in (pools.colocated, pools.prefill, pools.decode) if pool is not None]
    default = type(experiment.workload).model_fields["over_long"].default
    if said != default and not any(pool.max_model_len for pool in every):
        yield (
            f"workload.over_long {said} has no effect: there is no max_model_len that a request "
            "could be over."
        )
