"""GPUs in nodes and the links between them: what there is, and which GPUs a replica gets.

The rules:

1. **Links.** Each link is one direction. It carries bandwidth times efficiency, rounded half to
   even to whole bytes per second (the product is exact, of the values that the doubles have). A GPU
   has an NVLink port where its device has NVLink, behind a switch that never is the bottleneck, and
   a PCIe port where one is described. NIC k of the n of a node serves GPUs [k G / n, (k + 1) G / n)
   of its G GPUs. All nodes are on one switch without bottleneck; or, with ``nodes_per_leaf`` L,
   nodes [i L, (i + 1) L) are on leaf i, whose uplink carries, each direction, L times what all NICs
   of its first node carry, divided by ``oversubscription``, rounded half to even.
2. **Path** from GPU a to GPU b. The same GPU: no link. One node: a's NVLink port outward, b's
   inward; where one of the two has no NVLink, their PCIe ports, as far as there are any. Two nodes:
   a's PCIe port outward, its NIC outward, the uplink of its leaf upward and that of the other leaf
   downward if the leaves differ, b's NIC inward, b's PCIe port inward.
3. **Latency** of a path: that of the transfer, then that of each outward or upward link in order of
   the path, each rounded half to even to ns by itself, added. Inward links add none.
4. **Placement.** Replicas get GPUs in the order in which they join: the entry pool by index, then
   the decode pool, then those added later. A replica with g GPUs goes to the first node of its
   pool's ``nodes`` (default: all, by number) with g free GPUs and none of another device, and gets
   the free ones with the lowest numbers. With more GPUs than a node has, it takes nodes of the list
   that are empty and follow each other in it, each whole but the last. GPU s t + r of the replica
   is rank r of stage s of t GPUs. Where the number of nodes is not given, there is always one more
   like the last.

Not described: PCIe switches and sockets in a node, a NIC's own PCIe link, and traffic other than
the transfers, such as all-reduces between the nodes of a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from sim.errors import ConfigError
from sim.kv_shards import KvShards


@dataclass(frozen=True)
class LinkSpec:
    """One direction of a kind of link.

    Attributes:
        bytes_per_s: Bandwidth as its data sheet has it.
        latency_s: Before the first byte arrives.
        efficiency: Share of the bandwidth that transfers get; 1 where none was measured.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    efficiency: float = 1.0

    @property
    def carried_bytes_per_s(self) -> int:
        """What it carries (rule 1)."""
        return round(Fraction(self.bytes_per_s) * Fraction(self.efficiency))

    @property
    def latency_ns(self) -> int:
        """Rounded half to even."""
        return round(self.latency_s * 1e9)


@dataclass(frozen=True)
class NodeSpec:
    """One node.

    Attributes:
        gpus: GPUs in it.
        nics: NICs for transfers, each of which serves ``gpus / nics`` GPUs.
        nic: One of them.
    """

    gpus: int
    nics: int
    nic: LinkSpec

    def __post_init__(self) -> None:
        if self.nics < 1 or self.gpus % self.nics:
            fits = ", ".join(str(n) for n in range(1, self.gpus + 1) if self.gpus % n == 0)
            raise ConfigError(
                f"nics_per_node: {self.nics} does not divide the {self.gpus} GPUs of a node; "
                f"choose one of {fits} (several NICs of one GPU count as one of their bandwidth)"
            )


@dataclass(frozen=True)
class Topology:
    """The nodes of a cluster and what connects them.

    Attributes:
        nodes: By number.
        endless: There are more nodes, like the last one, as far as they are needed.
        nodes_per_leaf: Nodes on one leaf switch; None: no uplink is ever crossed.
        oversubscription: Bandwidth of a leaf's NICs over that of its uplink.
        leaf_latency_s: Added where an uplink is crossed.
    """

    nodes: tuple[NodeSpec, ...]
    endless: bool = False
    nodes_per_leaf: int | None = None
    oversubscription: float = 1.0
    leaf_latency_s: float = 0.0

    def node(self, number: int) -> NodeSpec | None:
        """The node of a number, or None."""
        if number < len(self.nodes):
            return self.nodes[number]
        return self.nodes[-1] if self.endless else None

    def uplink(self, leaf: int) -> LinkSpec:
        """The uplink of a leaf, either direction."""
        assert self.nodes_per_leaf is not None
        first = self.node(leaf * self.nodes_per_leaf)
        assert first is not None
        nics = self.nodes_per_leaf * first.nics * first.nic.carried_bytes_per_s
        return LinkSpec(round(nics / Fraction(self.oversubscription)), self.leaf_latency_s)


@dataclass(frozen=True)
class Seat:
    """What a replica brings to a topology.

    Attributes:
        shards: How its KV lies on its GPUs.
        device: What these are.
        nvlink: Port of each, each direction; None without.
        pcie: Port of each towards NICs and, without NVLink, its neighbours; None: no bottleneck.
        nodes: Numbers of the nodes on which it may lie, in order of preference; None: all.
    """

    shards: KvShards
    device: str = "gpu"
    nvlink: LinkSpec | None = None
    pcie: LinkSpec | None = None
    nodes: tuple[int, ...] | None = None


class Gpu(NamedTuple):
    """A place for a GPU.

    Attributes:
        node: Number of the node.
        slot: Number in the node.
    """

    node: int
    slot: int


class Placement:
    """Which GPUs are taken (rule 4)."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._free: dict[int, list[int]] = {}
        self._device: dict[int, str] = {}

    def place(self, seat: Seat, name: str) -> tuple[Gpu, ...]:
        """The GPUs of one more replica.

        Args:
            seat: What it needs.
            name: Of the replica, for the error.

        Raises:
            ConfigError: It fits nowhere.
        """
        chosen = self._on_one_node(seat) or self._on_several(seat)
        if chosen is None:
            raise ConfigError(self._no_room(seat, name))
        for node, slot in chosen:
            self._free_of(node).remove(slot)
            self._device[node] = seat.device
        return chosen

    def give_back(self, gpus: Sequence[Gpu]) -> None:
        """A replica has left for good: its GPUs are free."""
        for node, slot in gpus:
            free = self._free[node]
            free.append(slot)
            free.sort()
            spec = self.topology.node(node)
            if spec is not None and len(free) == spec.gpus:
                del self._device[node]

    def _free_of(self, node: int) -> list[int]:
        spec = self.topology.node(node)
        return self._free.setdefault(node, list(range(spec.gpus if spec else 0)))

    def _candidates(self, seat: Seat) -> list[int]:
        """Nodes that may be tried, in order; of endless ones, as many empty ones as it may need."""
        if seat.nodes is not None:
            return list(seat.nodes)
        topology = self.topology
        if not topology.endless:
            return list(range(len(topology.nodes)))
        used = max(self._device, default=-1) + 1
        return list(range(max(used, len(topology.nodes)) + seat.shards.gpus))

    def _on_one_node(self, seat: Seat) -> tuple[Gpu, ...] | None:
        needed = seat.shards.gpus
        for node in self._candidates(seat):
            free = self._free_of(node)
            if len(free) >= needed and self._device.get(node, seat.device) == seat.device:
                return tuple(Gpu(node, slot) for slot in free[:needed])
        return None

    def _on_several(self, seat: Seat) -> tuple[Gpu, ...] | None:
        """Empty nodes in a row, where the replica is larger than the first of them."""
        candidates = self._candidates(seat)
        for first in range(len(candidates)):
            gpus: list[Gpu] = []
            for node in candidates[first:]:
                spec, free = self.topology.node(node), self._free_of(node)
                if spec is None or len(free) < spec.gpus or spec.gpus >= seat.shards.gpus:
                    break
                gpus += [Gpu(node, slot) for slot in free]
                if len(gpus) >= seat.shards.gpus:
                    return tuple(gpus[: seat.shards.gpus])
        return None

    def _no_room(self, seat: Seat, name: str) -> str:
        nodes = self._candidates(seat)
        free = ", ".join(
            f"{len(self._free_of(node))} of node {node}"
            + (f" (of {self._device[node]})" if node in self._device else "")
            for node in nodes[:8]
        )
        more = ", ..." if len(nodes) > 8 else ""
        return (
            f"{name}: needs {seat.shards.gpus} GPUs ({seat.device}) on one node, or whole nodes if "
            f"it is larger than one; free are {free}{more}; give more nodes, more gpus_per_node, "
            "or other nodes for its pool"
        )
