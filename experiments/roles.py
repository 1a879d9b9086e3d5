"""Roles in a config: who changes its role or does the other's work, and what is refused beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import check_changes, parts
from experiments.explain import placed
from experiments.startup import exact
from sim.errors import ConfigError, PhasewiseError
from sim.metrics import NS_PER_S
from sim.mixed_pool import MixedPool
from sim.records import CHANGES
from sim.roles import RoleSpec

if TYPE_CHECKING:
    from experiments.schema import Experiment
    from sim.records import SimulationResult

Where = Callable[..., str]


def spec_of(experiment: Experiment, folder: Path, where: Where) -> RoleSpec | None:
    """How replicas change roles by themselves, or None.

    Args:
        experiment: Resolved and checked.
        folder: Where a user's own module is looked for first.
        where: Places for messages.

    Raises:
        ConfigError: Unknown names or options, or pools or events that do not go with it.
    """
    said = experiment.pools.role_switching
    if said is None:
        return None
    _check(experiment, where)
    place = ("pools", "role_switching")
    switcher = parts.role_switcher(said.switcher, where(*place, "switcher"), folder)
    try:
        return RoleSpec(
            switcher,
            round(said.interval_s * NS_PER_S),
            round(said.cool_down_s * NS_PER_S),
            said.min_prefill,
            said.min_decode,
        )
    except PhasewiseError as error:
        raise ConfigError(placed(where(*place, "switcher"), error)) from None


def mixed_pool(experiment: Experiment, where: Where) -> MixedPool | None:
    """When replicas run whole requests, or None.

    Args:
        experiment: Resolved and checked.
        where: Places for messages.

    Raises:
        ConfigError: Pools, policies or keys that do not go with it.
    """
    said, pools = experiment.pools.mixed_pool, experiment.pools
    if said is None:
        return None
    assert pools.transfer is not None  # else the layout is refused before
    for key in ("local_prefill", "role_switching"):
        if getattr(pools, key) is not None:
            raise ConfigError(f"{where('pools', key)}: beside mixed_pool: leave out one of them")
    for role in ("prefill", "decode"):
        if getattr(pools, role).policy["name"] == "static":
            raise ConfigError(
                f"{where('pools', role, 'policy')}.name: static: forms batches of requests of one "
                "phase; with mixed_pool try vllm-v1"
            )
    if pools.transfer.recompute_last_token:
        raise ConfigError(
            f"{where('pools', 'transfer', 'recompute_last_token')}: prefill replicas emit nothing "
            "to clients then, and can finish no request; leave it out, or mixed_pool"
        )
    return MixedPool(said.max_prompt_tokens, exact(said.max_kv_share))


def without_effect(experiment: Experiment) -> list[str]:
    """Minima that keep every replica in its role (`sim.roles`; no replica is added beside)."""
    said, prefill, decode = (
        getattr(experiment.pools, key) for key in ("role_switching", "prefill", "decode")
    )
    if said is None or prefill.replicas > said.min_prefill or decode.replicas > said.min_decode:
        return []
    return [
        f"role_switching has no effect: min_prefill {said.min_prefill} and min_decode "
        f"{said.min_decode} keep all replicas in their roles."
    ]


def _of_switches(
    experiment: Experiment, result: SimulationResult, summary: dict[str, Any]
) -> list[str]:
    """Add how often replicas changed role by themselves to the summary; none is said as well.

    Those of the list of events are not told apart: there are none beside `role_switching`.
    """
    if experiment.pools.role_switching is None:
        return []
    codes, places = result.changes.get("change", ()), result.changes.get("replica", ())
    joined = [
        result.replicas[place].role
        for code, place in zip(codes, places, strict=True)
        if code == CHANGES.index("changed_role")
    ]
    to = {role: joined.count(role) for role in ("prefill", "decode")}
    summary["role_switching"] = to
    if without_effect(experiment):
        return []
    return [
        f"role_switching: {to['prefill']:,} replicas became prefill replicas and "
        f"{to['decode']:,} decode replicas."
    ]


def report(experiment: Experiment, result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add who changed role, and how many requests one replica ran whole, and say so."""
    switched = _of_switches(experiment, result, summary)
    if experiment.pools.mixed_pool is None:
        return switched
    placed, decode = result.requests["replica"], result.requests["decode_replica"]
    whole = (placed >= 0) & (placed == decode)
    decodes = np.array([replica.role == "decode" for replica in result.replicas])
    there = int(decodes[placed[whole]].sum())
    by_role = {"prefill": int(whole.sum()) - there, "decode": there}
    summary["mixed_pool"] = {"whole": by_role, "routed": int((placed >= 0).sum())}
    return [
        f"mixed_pool: of {summary['mixed_pool']['routed']:,} requests decode replicas ran "
        f"{by_role['decode']:,} whole, prefill replicas {by_role['prefill']:,}, counted where they "
        "were last sent to."
    ]


def _check(experiment: Experiment, where: Where) -> None:
    """Refuse role switching where replicas cannot stand in for each other, or others rule them."""
    said, pools = experiment.pools.role_switching, experiment.pools
    assert said is not None
    place = where("pools", "role_switching")
    check_changes.check_machines(experiment, place, "role_switching", where)
    assert pools.prefill is not None
    assert pools.decode is not None
    for role, pool, least in (
        ("prefill", pools.prefill, said.min_prefill),
        ("decode", pools.decode, said.min_decode),
    ):
        if pool.replicas < least:
            raise ConfigError(
                f"{place}.min_{role}: {least}: the pool has {pool.replicas} at the start; expected "
                "at most so many"
            )
        if pool.autoscale is not None:
            raise ConfigError(
                f"{where('pools', role, 'autoscale')}: scales a pool whose replicas change role; "
                "leave out one of them"
            )
    _check_others(experiment, where)


def _check_others(experiment: Experiment, where: Where) -> None:
    """What cannot be foreseen, and so not be written down, where roles change by themselves."""
    if experiment.pools.transfer is not None and experiment.pools.transfer.staging is not None:
        raise ConfigError(
            f"{where('pools', 'transfer', 'staging')}: is not modelled where replicas change; "
            "leave it out, or role_switching"
        )
    if experiment.node_replicas is not None:
        raise ConfigError(
            f"{where('node_replicas')}: names replicas, and who changes role gets another name; "
            "give a topology, or leave out role_switching"
        )
    for at, each in enumerate(experiment.events):
        if each.what in ("add", "drain", "role"):
            raise ConfigError(
                f"{where('events', at, 'what')}: {each.what}: with role_switching nobody knows "
                "which replicas there are then; leave it out, or role_switching"
            )
