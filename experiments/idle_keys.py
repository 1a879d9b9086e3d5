"""Keys of a config that find nothing to choose, to draw or to hold against, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from experiments.names import canonical

if TYPE_CHECKING:
    from experiments.schema import Experiment, Pool


def routers(experiments: Sequence[Experiment], source: str) -> list[str]:
    """A note on routers that in no variant have more than one replica to choose from.

    Args:
        experiments: All variants: one router for all is no surprise where some have one replica.
        source: What messages call the config.
    """
    default = canonical(str(experiments[0].__class__.model_fields["router"].default["name"]))
    said = [each for each in experiments if canonical(str(each.router["name"])) != default]
    notes = []
    if said and not any(_may_choose(each, pool) for each in said for pool in _routed(each)):
        notes.append(
            f"{source}: router: has no effect: no variant has more than one replica to choose from"
        )
    own = [each for each in experiments if each.decode_router is not None]
    if own and not any(_may_choose(each, each.pools.decode) for each in own):
        notes.append(
            f"{source}: decode_router: has no effect: no variant has more than one decode replica"
        )
    return notes


def _routed(experiment: Experiment) -> list[Pool | None]:
    """The pools that `router` chooses in."""
    pools = experiment.pools
    own = experiment.decode_router is not None
    return [pools.colocated, pools.prefill, None if own else pools.decode]


def _may_choose(experiment: Experiment, pool: Pool | None) -> bool:
    """Whether a pool has, or may come to have, more than one replica."""
    if pool is None:
        return False
    pools = experiment.pools
    if pool.replicas > 1 or pools.role_switching is not None or pools.mixed_pool is not None:
        return True
    if pool.autoscale is not None and pool.autoscale.max_replicas > 1:
        return True
    return any(change.what in ("add", "role") for change in experiment.events)


def without_effect(experiment: Experiment) -> list[str]:
    """Keys of one variant that change nothing: spells that never begin, and `over_long`."""
    return [*_of_drawn(experiment), *_of_over_long(experiment)]


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
