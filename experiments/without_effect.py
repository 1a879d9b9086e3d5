"""Keys of a config that have no effect on a run, one sentence each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments import conditional, idle_keys, migration, prefix_fetch, roles, transfers
from experiments.names import canonical
from sim.cluster import Cluster
from sim.policy import Policy
from sim.pool import PoolSpec
from sim.queue import ChangingOrder

if TYPE_CHECKING:
    from experiments.schema import Experiment, Pool
    from experiments.schema import RateLimit as RateLimitConfig
    from sim.request import Trace


def of_cluster(experiment: Experiment, cluster: Cluster) -> list[str]:
    """What the cluster that was built has no use for.

    Args:
        experiment: Resolved and checked.
        cluster: As built from it.
    """
    pools = [pool for pool in (cluster.entry, cluster.decode) if pool is not None]
    return [
        *_of_snapshots(experiment, pools),
        *_of_restarts(experiment),
        *_of_changes(experiment),
        *_of_schedules(experiment),
        *_of_caches(experiment, pools),
        *_of_orders(experiment, pools),
        *_of_limits(experiment),
        *idle_keys.without_effect(experiment),
        *conditional.without_effect(experiment),
        *transfers.without_effect(experiment, _block_bytes(cluster.entry)),
        *roles.without_effect(experiment),
        *prefix_fetch.without_effect(experiment, cluster.entry),
        *migration.without_effect(experiment, cluster.decode or cluster.entry),
    ]


def _block_bytes(pool: PoolSpec) -> int:
    spec = pool.replicas[0]
    return spec.block_tokens * spec.kv_bytes_per_token


def _of_restarts(experiment: Experiment) -> list[str]:
    """What only replicas need that start during the run."""
    pools = experiment.pools
    said = [pool for pool in (pools.colocated, pools.prefill, pools.decode) if pool is not None]
    starts = experiment.failures is not None or any(
        change.what in ("restore", "add") for change in experiment.events
    )
    starts = starts or any(pool.autoscale is not None for pool in said)
    if starts or all(pool.restart == type(pool.restart)() for pool in said):
        return [_of_warm_up(pool) for pool in said if _of_warm_up(pool)][:1]
    return ["restart has no effect: no replica is restored or added during the run."]


def _of_warm_up(pool: Pool) -> str:
    warm = pool.restart.warm_up
    if not warm.iterations and warm.factor != 1:
        return f"restart.warm_up.factor {warm.factor:g} has no effect: iterations is 0."
    if warm.iterations and warm.factor == 1:
        return f"restart.warm_up.iterations {warm.iterations} has no effect: factor is 1."
    return ""


def _of_changes(experiment: Experiment) -> list[str]:
    """Changes that change nothing, and what is said of changes that there are not."""
    notes = list(_of_spells(experiment))
    fails = experiment.failures is not None
    fails = fails or any(each.what == "fail" for each in experiment.events)
    if experiment.on_failure != "reroute" and not fails:
        notes.append(f"on_failure {experiment.on_failure} has no effect: no replica fails.")
    whole = experiment.failures is not None and experiment.failures.of == "node"
    whole = whole or any(each.node is not None for each in experiment.events)
    if experiment.node_replicas is not None and not whole:
        notes.append(
            "node_replicas has no effect: no node fails (events with node, or failures of: node)."
        )
    notes += _of_nodes(experiment)
    if experiment.stragglers is not None and experiment.stragglers.factor == 1:
        notes.append("stragglers has no effect: factor is 1.")
    return notes


def _of_nodes(experiment: Experiment) -> Iterator[str]:
    """Nodes that are written down without replicas, and restores before which nothing fails.

    Nodes of a topology on which no replica lies: `experiments.topology.placement`.
    """
    written, drawn = experiment.node_replicas, experiment.failures is not None
    fails = [each.at_s for each in experiment.events if each.what == "fail"]
    for at, each in enumerate(experiment.events):
        if each.node is None or (written is not None and each.node >= len(written)):
            continue  # no node, or one that is refused
        said = f"events[{at}]: {each.what} of node {each.node} has no effect"
        if written is not None and not written[each.node]:
            yield f"{said}: node_replicas names none on it."
        elif each.what == "restore" and not drawn and each.at_s < min(fails, default=math.inf):
            yield f"{said}: nothing has failed by {each.at_s:g} s."


def _of_spells(experiment: Experiment) -> Iterator[str]:
    """Of stragglers and slow NICs: factors of 1, and ends of what has not begun."""
    begins = {"normal": "slow", "mend": "degrade"}
    until: dict[tuple[str, str | None, int], float] = {}
    drawn = experiment.stragglers is not None
    in_order = sorted(enumerate(experiment.events), key=lambda entry: entry[1].at_s)
    for at, each in in_order:
        if each.what in begins.values():
            end = math.inf if each.until_s is None else each.until_s
            until[each.what, each.pool, each.replica] = end
            if each.factor == 1:
                yield f"events[{at}]: {each.what} has no effect: its factor is 1."
        elif each.what in begins:
            end = until.pop((begins[each.what], each.pool, each.replica), -1.0)
            if end <= each.at_s and not (drawn and each.what == "normal"):
                what = "NIC" if each.what == "mend" else "replica"
                state = "degraded" if each.what == "mend" else "slow"
                yield (
                    f"events[{at}]: {each.what} has no effect: {what} {each.replica} is not "
                    f"{state} at {each.at_s:g} s."
                )


def _of_schedules(experiment: Experiment) -> Iterator[str]:
    """Numbers of a schedule that the limits of its pool cut."""
    for pool in _pools(experiment):
        scales = pool.autoscale
        if scales is None or canonical(str(scales.autoscaler["name"])) != "schedule":
            continue
        for number in dict.fromkeys(scales.autoscaler.get("replicas", ())):
            for key, cut in (
                ("max_replicas", number > scales.max_replicas),
                ("min_replicas", number < scales.min_replicas),
            ):
                if cut:
                    yield (
                        f"autoscale: replicas {number} of the schedule are cut to {key} "
                        f"{getattr(scales, key)}."
                    )


def _of_snapshots(experiment: Experiment, pools: list[PoolSpec]) -> list[str]:
    said, gate = experiment.router_snapshot_s, experiment.admission
    limits = (gate.max_waiting, gate.max_waiting_per_replica, gate.early_rejection)
    if not said or any(limit is not None for limit in limits):
        return []
    grows = any(change.what == "add" for change in experiment.events)
    several = [pool for pool in pools if grows or len(pool.replicas) > 1]
    if any(pool.router.sees_state for pool in several):
        return []
    why = "no router has a choice: no pool has more than one replica"
    if several:
        why = (
            "the routers go by nothing else than what they know themselves: where they sent "
            "requests, and how many are outstanding"
        )
    return [f"router_snapshot_s {said:g} has no effect: {why}."]


def _of_caches(experiment: Experiment, pools: list[PoolSpec]) -> list[str]:
    """What looks into caches where there are none."""
    notes = []
    cached = [_may_cache(pool.replicas[0].policy) for pool in pools]
    if not any(cached) and any(pool.router.sees_contents for pool in pools):
        name = "mooncake" if any(pool.router.places_prefills for pool in pools) else "kv-aware"
        notes.append(
            f"router {name}: no pool has a prefix cache, so that it goes by load alone; try "
            "prefix_cache: true in policy."
        )
    early = experiment.admission.early_rejection
    if early is not None and early.counts_cached and not cached[0]:
        notes.append(
            "admission.early_rejection.counts_cached has no effect: the replicas that requests "
            "arrive at have no prefix cache."
        )
    return notes


def _may_cache(policy: Policy) -> bool:
    """Whether it keeps a prefix cache; true of one with a memory of its own, which may."""
    own = type(policy).memory is not Policy.memory
    return bool(getattr(policy, "prefix_cache", own))


def _of_orders(experiment: Experiment, pools: list[PoolSpec]) -> list[str]:
    notes: dict[str, None] = {}
    for pool, said in zip(pools, _pools(experiment), strict=True):
        order, policy = pool.replicas[0].order, pool.replicas[0].policy
        if not isinstance(order, ChangingOrder) or not order.preempts:
            continue
        if not policy.preemptible or policy.host_memory_blocks:
            swaps = " with swap" if policy.preemptible else ""
            notes[
                f"order {said.order['name']}: only sorts the queue: under policy "
                f"{said.policy['name']}{swaps} it preempts nobody."
            ] = None
    return [*notes]


def _of_limits(experiment: Experiment) -> list[str]:
    most, each = experiment.admission.max_waiting, experiment.admission.max_waiting_per_replica
    if most is None or each is None or most > each:
        return []
    return [
        f"admission.max_waiting_per_replica {each} has no effect: no more than max_waiting {most} "
        "requests wait in all queues together."
    ]


def of_requests(trace: Trace, experiment: Experiment) -> list[str]:
    """What routing and admission ask of requests, and none of these says.

    Args:
        trace: The requests.
        experiment: Resolved and checked.
    """
    has_session, has_tenant = _says(trace.session), _says(trace.tenant)
    told = trace.block_ids is not None or trace.content is not None
    routers = {name for named in _routers(experiment) for name in _names(named)}
    notes = []
    if "session-affinity" in routers and not has_session:
        notes.append(
            "router session-affinity: no request has a session, so that its fallback chooses for "
            "all."
        )
    if "consistent-hash" in routers and not (has_session or has_tenant or told):
        notes.append(
            "router consistent-hash: requests have neither session nor tenant nor block ids, so "
            "that each is a key of its own."
        )
    if "prefix-aware" in routers and not told:
        notes.append(
            "router prefix-aware: the trace has no block ids, so that no two requests share a "
            "prefix: it goes by load."
        )
    limit = experiment.admission.rate_limit
    if limit is not None:
        if not has_tenant:
            notes.append(
                "admission.rate_limit: no request has a tenant, so that all share one bucket."
            )
        notes += _beyond_bursts(trace, limit)
    return notes


def _beyond_bursts(trace: Trace, limit: RateLimitConfig) -> list[str]:
    """Requests that cost more than their bucket ever holds."""
    n = len(trace)
    tenants = [""] * n if trace.tenant is None else [name or "" for name in trace.tenant.tolist()]
    bursts = np.array([limit.tenants.get(name, limit).burst_tokens for name in tenants])
    cost = np.ones(n, dtype=np.int64)
    if limit.charge != "request":
        cost = np.asarray(trace.prompt_tokens, dtype=np.int64)
    if limit.charge == "prompt_and_max":
        cost = cost + trace.max_tokens
    over = int((cost > bursts).sum())
    if not over:
        return []
    return [
        f"admission.rate_limit: {over:,} of {n:,} requests cost more than burst_tokens of their "
        f"bucket and can never pass; the largest costs {int(cost.max()):,}."
    ]


def _says(column: Any) -> bool:
    return column is not None and any(value is not None for value in column.tolist())


def _pools(experiment: Experiment) -> list[Any]:
    pools = experiment.pools
    return [pool for pool in (pools.colocated, pools.prefill, pools.decode) if pool is not None]


def _routers(experiment: Experiment) -> list[Mapping[str, Any]]:
    named = (experiment.router, experiment.decode_router)
    return [each for each in named if each is not None]


def _names(said: Any) -> Iterator[str]:
    """Names of a router and of those within it."""
    named = said if isinstance(said, Mapping) else {"name": said}
    yield canonical(str(named.get("name")))
    for key in ("fallback", "within"):
        if key in named:
            yield from _names(named[key])
