"""The topology of a config: its nodes, the seats of replicas, and what its links have carried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from experiments import changes
from experiments.explain import placed
from experiments.schema import Experiment, NodeKind, Pool, Wire
from sim import specs
from sim.errors import ConfigError
from sim.kv_shards import KvShards
from sim.pool import PoolSpec
from sim.records import SimulationResult
from sim.topology import Gpu, LinkSpec, NodeSpec, Placement, Seat, Topology
from sim.topology_sheets import TopologySheet, load_topology

if TYPE_CHECKING:
    from experiments.cluster import Where
    from sim.model_part import ModelPart


def with_sharing(resolved: dict[str, Any]) -> dict[str, Any]:
    """With a topology transfers share its links, unless the config says something about it."""
    pools = resolved.get("pools")
    if resolved.get("topology") is None or not isinstance(pools, dict):
        return resolved
    transfer = pools.get("transfer")
    if not isinstance(transfer, dict) or "sharing" in transfer:
        return resolved
    shared = {**transfer, "sharing": "max-min"}
    return {**resolved, "pools": {**pools, "transfer": shared}}


def check_keys(experiment: Experiment, where: Where) -> None:
    """Refuse what a topology and a transfer may not say both, and nodes where there are none.

    Raises:
        ConfigError: With the key to leave out, or to give.
    """
    transfer, said = experiment.pools.transfer, experiment.topology
    bandwidth = where("pools", "transfer", "bandwidth_bytes_per_s")
    if said is None:
        if transfer is not None and transfer.bandwidth_bytes_per_s is None:
            raise ConfigError(
                f"{bandwidth}: is required: bytes per second of one transfer, such as 50e9, or "
                "give a topology"
            )
        for role, pool in _pools(experiment):
            if pool.nodes is not None:
                place = where("pools", role, "nodes")
                raise ConfigError(f"{place}: {pool.nodes}: there is no topology; give one")
        return
    if transfer is None:
        return
    if transfer.bandwidth_bytes_per_s is not None:
        raise ConfigError(
            f"{bandwidth}: {transfer.bandwidth_bytes_per_s:g}: the links of the topology say it; "
            "leave it out, or set topology.nic.bytes_per_s"
        )
    if transfer.message_bytes is not None:
        raise ConfigError(
            f"{where('pools', 'transfer', 'message_bytes')}: {transfer.message_bytes}: with a "
            "topology the efficiency of its links says what messages cost; leave it out"
        )
    if transfer.sharing != "max-min":
        raise ConfigError(
            f"{where('pools', 'transfer', 'sharing')}: {transfer.sharing}: transfers over a "
            "topology share its links; leave it out, or the topology"
        )


def _pools(experiment: Experiment) -> Iterator[tuple[str, Pool]]:
    pools = experiment.pools
    for role in ("colocated", "prefill", "decode"):
        pool = getattr(pools, role)
        if pool is not None:
            yield role, pool


# --- what there is


def of(experiment: Experiment, where: Where) -> Topology | None:
    """The nodes of a config, or None.

    Raises:
        ConfigError: A sheet that there is not, or a number that neither sheet nor config says.
    """
    said = experiment.topology
    if said is None:
        return None
    first = _node(said, where, "topology")
    if said.more_nodes and said.nodes is None:
        place = where("topology", "nodes")
        raise ConfigError(f"{place}: is required beside more_nodes, which come after them")
    nodes = [first] * (said.nodes or 1)
    for position, group in enumerate(said.more_nodes):
        nodes += [_node(group, where, "topology", "more_nodes", position)] * group.nodes
    if said.nodes_per_leaf is None and (said.oversubscription != 1 or said.leaf_latency_s):
        key = "oversubscription" if said.oversubscription != 1 else "leaf_latency_s"
        raise ConfigError(
            f"{where('topology', key)}: {getattr(said, key):g}: there are no leaf switches; set "
            "nodes_per_leaf"
        )
    return Topology(
        tuple(nodes),
        said.nodes is None,
        said.nodes_per_leaf,
        said.oversubscription,
        said.leaf_latency_s,
    )


def _sheet(said: NodeKind, where: Where, *path: str | int) -> TopologySheet | None:
    if said.sheet is None:
        return None
    try:
        return load_topology(said.sheet)
    except ConfigError as error:
        raise ConfigError(placed(where(*path, "sheet"), error)) from None


def _node(said: NodeKind, where: Where, *path: str | int) -> NodeSpec:
    sheet = _sheet(said, where, *path)
    sizes = {
        key: getattr(said, key) or (None if sheet is None else getattr(sheet, key))
        for key in ("gpus_per_node", "nics_per_node")
    }
    for key, value in sizes.items():
        if value is None:
            raise ConfigError(f"{where(*path, key)}: is required without a sheet")
    nic = _link(said.nic, {} if sheet is None else sheet.nic)
    if nic is None:
        place = where(*path, "nic", "bytes_per_s")
        raise ConfigError(f"{place}: is required without a sheet, such as 5.0e+10 for 400 Gb/s")
    try:
        return NodeSpec(int(sizes["gpus_per_node"] or 0), int(sizes["nics_per_node"] or 0), nic)
    except ConfigError as error:
        raise ConfigError(placed(where(*path, "nics_per_node"), error)) from None


def _link(
    said: Wire | Literal["none"], sheet: Mapping[str, float], bytes_per_s: float | None = None
) -> LinkSpec | None:
    """A link: what the config says, then the sheet, then the device; None without a bandwidth."""
    if not isinstance(said, Wire):
        return None
    own = {key: value for key, value in said.model_dump().items() if value is not None}
    full: dict[str, float] = {**sheet, **own}
    rate = full.pop("bytes_per_s", bytes_per_s)
    return None if rate is None else LinkSpec(rate, **full)


def seat(
    experiment: Experiment,
    role: str,
    pool: Pool,
    model: specs.ModelSpec,
    stages: Sequence[ModelPart],
    where: Where,
) -> Seat | None:
    """What a replica of a pool brings to the topology; None without one."""
    said = experiment.topology
    if said is None:
        return None
    device = specs.load_device(pool.device)
    sheet = _sheet(said, where, "topology")
    nvlink = None
    if device.nvlink_bytes_per_s is not None:
        nvlink = _link(said.nvlink, sheet.nvlink if sheet else {}, device.nvlink_bytes_per_s)
    pcie = _link(said.pcie, sheet.pcie if sheet else {}, device.pcie_bytes_per_s)
    _check_nodes(experiment, role, pool, where)
    nodes = None if pool.nodes is None else tuple(pool.nodes)
    return Seat(shards_of(pool, model, stages), device.name, nvlink, pcie, nodes)


def shards_of(pool: Pool, model: specs.ModelSpec, stages: Sequence[ModelPart]) -> KvShards:
    """How the KV of a replica lies on its GPUs; a latent counts as one head."""
    heads = 1 if model.latent else model.kv_heads
    per_token = specs.kv_bytes_per_token(model, pool.precision.kv)
    return KvShards(
        tuple(part.layers for part in stages),
        pool.tensor_parallel,
        pool.data_parallel_attention,
        heads,
        per_token // (model.layers * heads),
    )


def _check_nodes(experiment: Experiment, role: str, pool: Pool, where: Where) -> None:
    said = experiment.topology
    assert said is not None
    place = where("pools", role, "nodes")
    nodes = pool.nodes or []
    if len(set(nodes)) < len(nodes):
        raise ConfigError(f"{place}: {nodes}: names a node twice")
    if said.nodes is None:
        return
    count = said.nodes + sum(group.nodes for group in said.more_nodes)
    for node in nodes:
        if node >= count:
            raise ConfigError(
                f"{place}: {node}: there are {count} nodes; choose from 0 to {count - 1}"
            )


# --- who lies where


def placement(
    experiment: Experiment, topology: Topology, pools: Mapping[str, PoolSpec], where: Where
) -> list[str]:
    """Put all replicas on their nodes, those that events add too, and say where they lie.

    Raises:
        ConfigError: One fits nowhere, with what is free.
    """
    places = Placement(topology)
    found: dict[str, list[tuple[Gpu, ...]]] = {role: [] for role in pools}
    wanted = [(role, spec) for role, pool in pools.items() for spec in pool.replicas]
    wanted += [(role, pools[role].replicas[0]) for role in changes.roles_of_added(experiment)]
    for role, spec in wanted:
        assert spec.seat is not None
        name = f"{role} replica {len(found[role])}"
        try:
            found[role].append(places.place(spec.seat, name))
        except ConfigError as error:
            # A replica that is gone by then may make room for one that is added.
            if len(found[role]) >= len(pools[role].replicas) and _shrinks(experiment):
                continue
            key = ("pools", role, "nodes") if spec.seat.nodes is not None else ("topology",)
            raise ConfigError(f"{where(*key)}: {error}") from None
    told = "; ".join(_told(role, gpus) for role, gpus in found.items())
    return [f"topology: {told}."]


def _shrinks(experiment: Experiment) -> bool:
    return any(change.what == "drain" for change in experiment.events)


def _told(role: str, replicas: Sequence[tuple[Gpu, ...]]) -> str:
    """Such as ``prefill on node 0 (2 replicas), nodes 1-2``."""
    spans = [(gpus[0].node, gpus[-1].node) for gpus in replicas]
    parts = []
    for (first, last), same in groupby(spans):
        count = len(list(same))
        place = f"node {first}" if first == last else f"nodes {first} to {last}"
        parts.append(place if count == 1 else f"{place} ({count} replicas)")
    shown = parts if len(parts) <= 6 else [*parts[:3], "...", parts[-1]]
    return f"{role} on {', '.join(shown)}"


def sharing_note(experiment: Experiment, topology: Topology) -> str:
    """What transfers share, for the notes of a run."""
    kinds = dict.fromkeys(topology.nodes)
    nics = ", ".join(
        f"{node.nics} NICs of {node.nic.carried_bytes_per_s / 1e9:g} GB/s for {node.gpus} GPUs"
        for node in kinds
    )
    leaf = ""
    if topology.nodes_per_leaf is not None:
        leaf = f", leaves of {topology.nodes_per_leaf} nodes at {topology.oversubscription:g}:1"
    return (
        f"KV transfers share the links of their paths max-min fairly: nodes with {nics}{leaf}; "
        "NVLink and PCIe as in the device's sheet unless given. Efficiencies and latencies that "
        "neither sheet nor config states are 1 and 0; other traffic is not modelled."
    )


# --- what came of it


def report(result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add what the links have carried to the summary, and say which was busiest.

    In the summary, ``network`` has one entry for each kind of link, node and direction: how many
    there are, bytes in all, and the busiest one's share of what it could have carried.
    """
    if not result.links:
        return []

    def key(use: Any) -> tuple[str, int, str]:
        return use.kind, use.node, use.direction

    entries = []
    for (kind, node, direction), uses in groupby(sorted(result.links, key=key), key):
        listed = list(uses)
        busiest = max(listed, key=lambda use: use.busy)
        entries.append(
            {
                "kind": kind,
                "leaf" if kind == "uplink" else "node": node,
                "direction": direction,
                "links": len(listed),
                "bytes": sum(use.sent_bytes for use in listed),
                "busiest": busiest.name,
                "busiest_share": busiest.busy,
            }
        )
    summary["network"] = entries
    busiest = max(result.links, key=lambda use: use.busy)
    if not busiest.sent_bytes:
        return ["topology: nothing moved between replicas."]
    return [
        f"topology: the busiest link was {busiest.name}: {busiest.sent_bytes / 1e9:,.1f} GB, "
        f"{busiest.busy:.1%} of what it could have carried over the run."
    ]
