"""Autoscaling in a config: how a pool grows and shrinks, and what is refused beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from experiments import parts
from experiments.explain import placed
from experiments.schema import Experiment, Pool
from sim.autoscale import ScalingSpec
from sim.errors import ConfigError, PhasewiseError
from sim.metrics import NS_PER_S

if TYPE_CHECKING:
    from experiments.cluster import Where


def of_pool(pool: Pool, role: str, folder: Path, where: Where) -> ScalingSpec | None:
    """How a pool scales, None if it does not.

    Args:
        pool: As validated.
        role: Of the pool.
        folder: Where a user's own module is looked for first.
        where: Places for messages.

    Raises:
        ConfigError: Limits or options that cannot work.
    """
    said = pool.autoscale
    if said is None and not pool.replicas:
        raise ConfigError(
            f"{where('pools', role, 'replicas')}: 0: expected at least 1; a pool begins at 0 only "
            "with autoscale and min_replicas: 0"
        )
    if said is None:
        return None
    place = where("pools", role, "autoscale")
    if not said.min_replicas <= pool.replicas <= said.max_replicas:
        raise ConfigError(
            f"{where('pools', role, 'replicas')}: {pool.replicas}: the number at the start has to "
            f"be from min_replicas {said.min_replicas} to max_replicas {said.max_replicas} of "
            "autoscale"
        )
    autoscaler = parts.autoscaler(
        said.autoscaler, where("pools", role, "autoscale", "autoscaler"), folder
    )
    try:
        autoscaler.check()
    except PhasewiseError as error:
        raise ConfigError(placed(f"{place}.autoscaler", error)) from None
    return ScalingSpec(
        autoscaler,
        said.min_replicas,
        said.max_replicas,
        round(said.interval_s * NS_PER_S),
        round(said.cool_down_up_s * NS_PER_S),
        round(said.cool_down_down_s * NS_PER_S),
        round(said.provisioning_s * NS_PER_S),
        said.take_back,
        from_zero=not pool.replicas,
    )


def check(experiment: Experiment, where: Where) -> None:
    """Refuse what an autoscaler cannot be beside.

    Raises:
        ConfigError: Events that it would undo.
    """
    pools = experiment.pools
    present = {"colocated": pools.colocated, "prefill": pools.prefill, "decode": pools.decode}
    scaled = [role for role, pool in present.items() if pool is not None and pool.autoscale]
    for at, change in enumerate(experiment.events):
        concerned = scaled if change.what == "role" else [change.pool or "colocated"]
        if set(concerned) & set(scaled) and change.what in ("add", "drain", "role"):
            raise ConfigError(
                f"{where('events', at, 'what')}: {change.what}: the pool has autoscale, which "
                "would undo it; try the autoscaler schedule, or leave autoscale out"
            )
