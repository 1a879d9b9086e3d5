"""Which changes of the cluster in a config can happen.

Whether a replica can change so is told before the run: by the list alone, in order of time. A drain
ends in the run, so that a ``fail`` after it is accepted, and changes nothing if it comes too late.
Where failures are drawn, nobody can tell; what they decide is then not taken from a list as well.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from experiments import topology
from experiments.changes import POOL_NAMES
from experiments.schema import Change, Experiment
from sim.errors import ConfigError, nearest

Where = Callable[..., str]

_AFTER = MappingProxyType(
    {
        "up": dict.fromkeys(("drain", "role"), "draining")
        | {"fail": "failed", "add": "up", "slow": "up"},
        "draining": {"fail": "gone", "add": "draining", "slow": "draining"},
        "failed": {"restore": "up", "add": "failed"},
        "gone": {"add": "gone"},
    }
)
"""Condition of a replica, and what each change that is possible makes of it."""
_ALWAYS = ("normal", "degrade", "mend")
"""Changes that are possible in any condition."""
_FOR_A_WHILE = ("slow", "degrade")
_UNSURE = ("fail", "restore", "drain", "role", "slow")
"""Changes that are possible in some conditions only."""
_MACHINE = (
    *("device", "tensor_parallel", "pipeline_parallel", "stage_layers", "expert_parallel"),
    *("data_parallel_attention", "precision"),
)
"""Keys of a pool that say what its replicas are made of: weights loaded, and where."""


def check(experiment: Experiment, where: Where) -> None:
    """Refuse what cannot happen to the replicas that there are.

    Raises:
        ConfigError: One line with the entry of the list and what could happen instead.
    """
    _check_drawn(experiment, where)
    _check_staging(experiment, where)
    pools = experiment.pools
    present = {"colocated": pools.colocated, "prefill": pools.prefill, "decode": pools.decode}
    replicas = {role: ["up"] * pool.replicas for role, pool in present.items() if pool is not None}
    _check_nodes(experiment, {role: len(each) for role, each in replicas.items()}, where)
    _check_roles(experiment, where)
    for at, each in sorted(enumerate(experiment.events), key=lambda entry: entry[1].at_s):
        _check_keys(experiment, at, each, where)
        if each.node is None:
            _check_change(at, each, replicas, where)
        else:
            _change_node(experiment, each, replicas)


def _check_staging(experiment: Experiment, where: Where) -> None:
    """KV that waits off the GPU is not modelled where replicas change."""
    transfer = experiment.pools.transfer
    if transfer is None or transfer.staging is None:
        return
    for key in ("events", "failures", "stragglers"):
        if getattr(experiment, key):
            raise ConfigError(
                f"{where('pools', 'transfer', 'staging')}: is not modelled where replicas change; "
                f"leave it out, or {key}"
            )


def _check_roles(experiment: Experiment, where: Where) -> None:
    """Who changes role keeps its machine, and its index there is not known beforehand."""
    places = [at for at, each in enumerate(experiment.events) if each.what == "role"]
    if not places:
        return
    check_machines(experiment, where("events", places[0], "what"), "role", where)
    if experiment.node_replicas is not None:
        raise ConfigError(
            f"{where('node_replicas')}: names replicas, and who changes role gets another name; "
            "give a topology, or leave out the changes of role"
        )
    joined = {"prefill": "decode", "decode": "prefill"}
    gets = {joined[experiment.events[at].pool or "prefill"] for at in places}
    for at, each in enumerate(experiment.events):
        pool = None if each.pool is None else getattr(experiment.pools, each.pool)
        if each.pool in gets and pool is not None and each.replica >= pool.replicas:
            raise ConfigError(
                f"{where('events', at, 'replica')}: {each.replica}: replicas come to this pool by "
                "a change of role when they have drained, so that nobody knows which one this is; "
                f"choose from 0 to {pool.replicas - 1}"
            )


def check_machines(experiment: Experiment, place: str, said: str, where: Where) -> None:
    """Refuse changes of role without two pools of machines that are alike.

    Args:
        experiment: As validated.
        place: Of what asks for changes of role.
        said: What that is, for the message.
        where: Places for messages.

    Raises:
        ConfigError: With the key that differs.
    """
    prefill, decode = experiment.pools.prefill, experiment.pools.decode
    if prefill is None or decode is None:
        raise ConfigError(f"{place}: {said}: there is one pool, whose replicas do both")
    for key in _MACHINE:
        one, other = getattr(prefill, key), getattr(decode, key)
        if one != other:
            raise ConfigError(
                f"{where('pools', 'decode', key)}: {other}: a replica that changes role keeps its "
                f"GPUs and weights, and pools.prefill.{key} is {one}; let them be alike, or leave "
                f"out {said}"
            )


def _check_change(at: int, each: Change, replicas: dict[str, list[str]], where: Where) -> None:
    role = each.pool or "colocated"
    if role not in replicas:
        advice = "leave it out" if each.pool else "say which: prefill or decode"
        said = each.pool or "not given"
        raise ConfigError(f"{where('events', at, 'pool')}: {said}: {advice}")
    conditions = replicas[role]
    if each.replica >= len(conditions):
        raise ConfigError(
            f"{where('events', at, 'replica')}: {each.replica}: there is no such replica then; "
            f"choose from 0 to {len(conditions) - 1}"
        )
    if each.what in _ALWAYS:
        return
    before = conditions[each.replica]
    if each.what not in _AFTER[before]:
        possible = sorted(set(_AFTER[before]) - ({"role"} if len(replicas) == 1 else set()))
        raise ConfigError(
            f"{where('events', at, 'what')}: {each.what}: replica {each.replica} is {before} "
            f"at {each.at_s:g} s; choose one of {', '.join(possible)}"
        )
    conditions[each.replica] = _AFTER[before][each.what]
    if each.what == "add":
        conditions.append("up")


def _change_node(experiment: Experiment, each: Change, replicas: dict[str, list[str]]) -> None:
    """What becomes of the replicas of a node that is written down, not of a topology's."""
    assert each.node is not None
    for name in (experiment.node_replicas or {each.node: []})[each.node]:
        pool, _, index = name.rpartition("-")
        conditions = replicas["colocated" if pool == POOL_NAMES[0] else pool]
        after = _AFTER[conditions[int(index)]]
        conditions[int(index)] = after.get(each.what, conditions[int(index)])


def _check_keys(experiment: Experiment, at: int, each: Change, where: Where) -> None:
    """Keys of an entry that belong to what happens."""
    lasts, on_node = each.what in _FOR_A_WHILE, each.what in ("fail", "restore")
    if lasts and each.factor is None:
        example = "1.5" if each.what == "slow" else "0.1"
        raise ConfigError(
            f"{where('events', at, 'factor')}: is required for {each.what}, as {example}"
        )
    if each.what == "slow" and each.factor is not None and each.factor < 1:
        raise ConfigError(
            f"{where('events', at, 'factor')}: {each.factor:g}: expected at least 1 for slow: "
            "iterations take so many times as long, and 2 is half the speed"
        )
    if each.what == "degrade" and each.factor is not None and each.factor > 1:
        raise ConfigError(
            f"{where('events', at, 'factor')}: {each.factor:g}: expected at most 1 for degrade: "
            "the NIC carries so much of its bandwidth, and 0.5 is half of it"
        )
    for key, belongs, to in (
        ("factor", lasts, "slow and degrade"),
        ("until_s", lasts, "slow and degrade"),
        ("node", on_node, "fail and restore"),
    ):
        if getattr(each, key) is not None and not belongs:
            raise ConfigError(f"{where('events', at, key)}: belongs to {to}; leave it out")
    if each.until_s is not None and each.until_s <= each.at_s:
        place = where("events", at, "until_s")
        raise ConfigError(f"{place}: {each.until_s:g}: expected later than at_s {each.at_s:g}")
    if each.what in ("degrade", "mend"):
        _check_links(experiment, where("events", at, "what"), each.what)
    if each.node is not None:
        _check_node(experiment, at, each, where)
    if experiment.failures is not None and each.what in _UNSURE:
        raise ConfigError(
            f"{where('events', at, 'what')}: {each.what}: failures are drawn, so that nobody knows "
            "whether it can happen; leave out failures, or this"
        )


def _check_links(experiment: Experiment, place: str, what: str) -> None:
    transfer = experiment.pools.transfer
    if transfer is None or transfer.sharing != "max-min":
        advice = "there are no transfers" if transfer is None else "set transfer.sharing: max-min"
        raise ConfigError(f"{place}: {what}: concerns links that transfers share; {advice}")


def _check_node(experiment: Experiment, at: int, each: Change, where: Where) -> None:
    place = where("events", at, "node")
    if each.pool is not None or each.replica:
        raise ConfigError(f"{place}: {each.node}: a node, or a replica of a pool: give one of them")
    written = experiment.node_replicas
    if written is None and experiment.topology is None:
        raise ConfigError(f"{place}: {each.node}: there are no nodes; give node_replicas")
    assert each.node is not None
    if written is not None and each.node >= len(written):
        raise ConfigError(
            f"{place}: {each.node}: there are {len(written)} nodes; choose from 0 to "
            f"{len(written) - 1}"
        )
    if written is None:
        topology.check_node(experiment, each.node, place)


def _check_nodes(experiment: Experiment, counts: dict[str, int], where: Where) -> None:
    """Names of replicas on nodes that are written down: those that there are, each once."""
    names = [
        f"{POOL_NAMES[0] if role == 'colocated' else role}-{index}"
        for role, count in counts.items()
        for index in range(count)
    ]
    seen: set[str] = set()
    for at, node in enumerate(experiment.node_replicas or ()):
        for name in node:
            place = where("node_replicas", at)
            if name not in names:
                raise ConfigError(f"{place}: there is no replica {name!r}{nearest(name, names)}")
            if name in seen:
                raise ConfigError(f"{place}: {name}: is on two nodes; name it once")
            seen.add(name)


def _check_drawn(experiment: Experiment, where: Where) -> None:
    fails = experiment.failures
    for key, drawn in (("failures", fails), ("stragglers", experiment.stragglers)):
        if drawn is None or drawn.pools is None:
            continue
        if experiment.pools.decode is None:
            raise ConfigError(f"{where(key, 'pools')}: there is one pool; leave it out")
        if key == "failures" and fails is not None and fails.of == "node":
            raise ConfigError(f"{where(key, 'pools')}: nodes fail whole; leave it out")
    nodes = experiment.node_replicas or experiment.topology
    if fails is not None and fails.of == "node" and not nodes:
        raise ConfigError(
            f"{where('failures', 'of')}: node: there are no nodes; give node_replicas, or a "
            "topology, or of: replica"
        )
