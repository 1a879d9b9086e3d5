"""The topology of a config: its nodes, the seats of replicas, and what its links have carried."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from experiments import changes
from experiments.explain import placed
from experiments.schema import Experiment, NodeKind, Pool, Wire
from sim import specs
from sim.errors import ConfigError
from sim.kv_shards import KvShards
from sim.pool import PoolSpec
from sim.records import FINISHED, REJECTED, SimulationResult
from sim.topology import Gpu, LinkSpec, NodeSpec, Placement, Seat, Topology
from sim.topology_sheets import TopologySheet, load_topology

if TYPE_CHECKING:
    from experiments.cluster import Where
    from sim.cluster import Cluster
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
    place = where("pools", role, "nodes")
    nodes = pool.nodes or []
    if len(set(nodes)) < len(nodes):
        raise ConfigError(f"{place}: {nodes}: names a node twice")
    for node in nodes:
        check_node(experiment, node, place)


def check_node(experiment: Experiment, node: int, place: str) -> None:
    """Refuse a number that no node of the topology has; any is one where they are not counted.

    Raises:
        ConfigError: With the numbers that there are.
    """
    said = experiment.topology
    if said is None or said.nodes is None:
        return
    count = said.nodes + sum(group.nodes for group in said.more_nodes)
    if node >= count:
        raise ConfigError(f"{place}: {node}: there are {count} nodes; choose from 0 to {count - 1}")


# --- who lies where


def placement(
    experiment: Experiment, topology: Topology, pools: Mapping[str, PoolSpec], where: Where
) -> list[str]:
    """Put all replicas on their nodes, those that events add too, and say where they lie.

    Raises:
        ConfigError: One fits nowhere, with what is free; or a stage of one lies on several nodes.
    """
    places = Placement(topology)
    for role, pool in _pools(experiment):
        if pool.autoscale is not None:
            _check_all_nodes(role, pools[role].replicas[0].seat, topology, where)
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
                _check_all_nodes(role, spec.seat, topology, where)
                continue
            key = ("pools", role, "nodes") if spec.seat.nodes is not None else ("topology",)
            raise ConfigError(f"{where(*key)}: {error}") from None
        _check_stages(role, name, spec.seat, found[role][-1], topology, where)
    told = "; ".join(_told(role, gpus) for role, gpus in found.items())
    taken = {gpu.node for placed in found.values() for gpus in placed for gpu in gpus}
    return [f"topology: {told}.", *_of_empty_nodes(experiment, taken)]


def _check_stages(
    role: str, name: str, seat: Seat, gpus: Sequence[Gpu], topology: Topology, where: Where
) -> None:
    """Tensor parallelism needs all-reduces, which are measured within a node only.

    The stages of a pipeline may lie on different nodes, the GPUs of one stage may not.
    """
    degree = seat.shards.tensor_parallel
    for first in range(0, len(gpus), degree):
        nodes = sorted({gpu.node for gpu in gpus[first : first + degree]})
        if len(nodes) > 1:
            sizes = {node.gpus for each in nodes if (node := topology.node(each)) is not None}
            raise ConfigError(
                f"{where('pools', role, 'tensor_parallel')}: {degree}: {name} would share its "
                f"layers over nodes {nodes[0]} to {nodes[-1]}, and no all-reduce across nodes is "
                f"measured; {_nearest_degree(seat, min(sizes))}"
            )


def _check_all_nodes(role: str, seat: Seat | None, topology: Topology, where: Where) -> None:
    """Nobody knows on which nodes a replica will lie: its stages have to fit all that it may."""
    assert seat is not None
    numbers = range(len(topology.nodes)) if seat.nodes is None else seat.nodes
    for number in numbers:
        node = topology.node(number)
        if node is not None and not _stages_fit(seat, seat.shards.tensor_parallel, node.gpus):
            raise ConfigError(
                f"{where('pools', role, 'tensor_parallel')}: {seat.shards.tensor_parallel}: a "
                f"replica may come to node {number} with {node.gpus} GPUs and those after it, and "
                f"no all-reduce across nodes is measured; {_nearest_degree(seat, node.gpus)}, or "
                f"other nodes in pools.{role}.nodes"
            )


def _nearest_degree(seat: Seat, gpus: int) -> str:
    """What to choose with nodes of so many GPUs."""
    shards = seat.shards
    fits = [
        degree
        for degree in range(1, min(shards.tensor_parallel, gpus + 1))
        if degree % shards.groups == 0
        and shards.tensor_parallel % degree == 0
        and _stages_fit(seat, degree, gpus)
    ]
    fewer = f"{max(fits)}, the most that fits" if fits else "a number that fits"
    return f"choose {fewer} a node of {gpus} GPUs (pipeline_parallel may span nodes)"


def _stages_fit(seat: Seat, degree: int, gpus: int) -> bool:
    """Whether no stage of such a replica lies on two nodes of so many GPUs."""
    return degree * len(seat.shards.stage_layers) <= gpus or gpus % degree == 0


def _of_empty_nodes(experiment: Experiment, taken: Collection[int]) -> list[str]:
    """Events on nodes of the topology on which no replica lies, one sentence each."""
    if experiment.node_replicas is not None:
        return []
    scales = any(pool.autoscale is not None for _, pool in _pools(experiment))
    but = ", unless an autoscaler has put one there by then" if scales else ""
    return [
        f"events[{at}]: {each.what} of node {each.node} has no effect: no replica lies on it{but}."
        for at, each in enumerate(experiment.events)
        if each.node is not None and each.node not in taken
    ]


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


def unused_nics(experiment: Experiment, cluster: Cluster, result: SimulationResult) -> list[str]:
    """Slow NICs that no transfer has used, one sentence each: their bandwidth made no difference.

    Of replicas that are there at the start: where others lie only the run knows. Nothing is said
    where a transfer may have begun and not ended, since such leave no trace over a dead NIC.
    """
    slow = [(at, each) for at, each in enumerate(experiment.events) if each.what == "degrade"]
    requests = result.requests
    ended_well = np.isin(requests["state"], (FINISHED, REJECTED)) & (requests["rerouted"] == 0)
    if not slow or not ended_well.all():
        return []
    pools = [pool for pool in (cluster.entry, cluster.decode) if pool is not None]
    used = _used_nics(cluster, pools, result)
    return [
        f"events[{at}]: degrade has no effect: no transfer used the NIC of {name} in this run."
        for at, each in slow
        if (name := f"{each.pool or pools[0].name}-{each.replica}") in used and not used[name]
    ]


def _used_nics(
    cluster: Cluster, pools: Sequence[PoolSpec], result: SimulationResult
) -> dict[str, bool]:
    """By name whether a replica's NIC has carried anything; of those there at the start."""
    if cluster.topology is None:
        moves = [
            (table["source"], table["target"])
            for table in (result.transfers, result.migrations, result.fetches)
            if table
        ]
        places = {int(place) for ends in moves for end in ends for place in end}
        return {replica.name: n in places for n, replica in enumerate(result.replicas)}
    places_of, found = Placement(cluster.topology), {}
    sent = {use.name for use in result.links if use.sent_bytes}
    for pool in pools:
        for index, spec in enumerate(pool.replicas):
            name = f"{pool.name}-{index}"
            assert spec.seat is not None
            gpus = places_of.place(spec.seat, name)
            found[name] = any(
                _nic_of(cluster.topology, gpu, way) in sent for gpu in gpus for way in ("out", "in")
            )
    return found


def _nic_of(topology: Topology, gpu: Gpu, direction: str) -> str:
    """The name of a GPU's NIC in `sim.network`."""
    node = topology.node(gpu.node)
    assert node is not None
    return f"node {gpu.node} nic {gpu.slot * node.nics // node.gpus} {direction}"


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
