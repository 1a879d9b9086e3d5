"""A config's host of `step_time`: read from it, put into it, and written as a line to paste."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from experiments import cluster, parts
from experiments.names import canonical
from experiments.schema import Experiment, Pool
from sim.errors import ConfigError

if TYPE_CHECKING:
    from kernels_profile.host import HostOverhead

WITH_HOST = ("roofline", "profile")
"""Step-time models that have a host's time."""


def host_of(experiment: Experiment, where: str) -> HostOverhead:
    """The host's time of a config.

    Args:
        experiment: Resolved.
        where: Config and variant, for messages.

    Raises:
        ConfigError: Its step times have none; two pools have different ones.
    """
    hosts = {role: _of_pool(pool, where) for role, pool in cluster.pools_of(experiment).items()}
    first, *others = hosts.values()
    if any(other != first for other in others):
        raise ConfigError(
            f"--fit host: {where}: the pools {' and '.join(hosts)} have different hosts "
            f"({'; '.join(map(str, hosts.values()))}); one run cannot tell them apart"
        )
    return first


def _of_pool(pool: Pool, where: str) -> HostOverhead:
    from kernels_profile.host import DEFAULT_HOST, HOSTS

    model = canonical(str(pool.step_time["model"]))
    if model not in WITH_HOST:
        raise ConfigError(
            f"--fit host: {where}: step_time {model} has no host; only {' and '.join(WITH_HOST)} do"
        )
    if "host" not in pool.step_time:
        return HOSTS[DEFAULT_HOST]
    return parts.host(pool.step_time["host"], f"{where}: step_time.host")


def with_host(experiment: Experiment, host: HostOverhead) -> Experiment:
    """The same experiment with another host in each of its pools."""
    changed = {
        role: pool.model_copy(update={"step_time": {**pool.step_time, "host": _as_keys(host)}})
        for role, pool in cluster.pools_of(experiment).items()
    }
    return experiment.model_copy(update={"pools": experiment.pools.model_copy(update=changed)})


def _as_keys(host: HostOverhead) -> dict[str, Any]:
    keys: dict[str, Any] = {"form": host.form, "step_us": host.step_us}
    if host.form != "constant":
        keys["request_us"] = host.request_us
    if host.eager_layer_us:
        keys["eager_layer_us"] = host.eager_layer_us
    return keys


def line_of(experiment: Experiment) -> str:
    """The `step_time` of all pools on one line of YAML; of different ones, what they share."""
    import yaml

    first, *others = (pool.step_time for pool in cluster.pools_of(experiment).values())
    ordered = {"model": first["model"], **first}
    if any(other != first for other in others):
        ordered = {"host": first["host"]}
    text: str = yaml.safe_dump(ordered, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.strip()
