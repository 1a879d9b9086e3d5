"""A topology at work: the paths of transfers between replicas, and what each link has carried.

A transfer between two replicas is that of `sim.kv_shards`, part by part, each on the path between
its two GPUs (`sim.topology`); all parts of all transfers share the links max-min fairly
(`sim.links`). It starts when its parts do, all at once, and ends when its last part ends. Of bytes
that are withheld (`sim.links`, rule 6) each part withholds the same share.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm
from typing import NamedTuple

from simpy import Environment

from sim.clock import now_ns
from sim.kv_shards import parts_between
from sim.lanes import Bundle, Lane, Wire, bundles, classes, fits
from sim.links import Flow, Link, SharedLinks
from sim.topology import Gpu, LinkSpec, Placement, Seat, Topology

_NS_PER_S = 10**9


class LinkUse(NamedTuple):
    """What one direction of a link did in a run.

    Attributes:
        name: Such as ``node 0 nic 3 out``.
        kind: ``nvlink``, ``pcie``, ``nic`` or ``uplink``.
        node: Number of the node; of an uplink, of the leaf.
        direction: ``out`` or ``in``; of an uplink, seen from the nodes on the leaf.
        bytes_per_s: Bandwidth when nothing is wrong, efficiency included.
        sent_bytes: Carried, those of transfers called off included.
        busy: Share of what it could have carried.
    """

    name: str
    kind: str
    node: int
    direction: str
    bytes_per_s: int
    sent_bytes: float
    busy: float


@dataclass(eq=False)
class _Member:
    """A replica and its GPUs."""

    seat: Seat
    gpus: tuple[Gpu, ...]
    ports: tuple[dict[tuple[str, str], Wire], ...]


class Sending:
    """One transfer under way, made by `Network.send`."""

    def __init__(self, network: Network, num_bytes: Fraction, on_end: Callable[[], None]) -> None:
        self.network, self.num_bytes, self.on_end = network, num_bytes, on_end
        self.flows: dict[Flow, tuple[Lane, ...]] = {}
        self.left = 0

    def part_over(self) -> None:
        """One of its flows has ended."""
        self.left -= 1
        if not self.left:
            self.network.sent(self)
            self.on_end()

    def standing(self) -> Hashable:
        """See `sim.carrier.OnTheWay`."""
        return tuple(flow.standing() for flow in self.flows)

    def release(self, share: Fraction | None = None) -> None:
        """See `sim.carrier.OnTheWay`: each part releases the same share."""
        for flow, lanes in list(self.flows.items()):
            size = self.num_bytes * lanes[0].share if lanes[0].path else Fraction(0)
            flow.release(None if share is None else size * share)

    def call_off(self) -> None:
        """It never ends, and takes no bandwidth from now on."""
        self.network.call_off(self)


class Network:
    """The links of a cluster and the transfers on them.

    Args:
        env: The clock.
        topology: What there is.
        latency_ns: Of every transfer, before that of its path.
        joins_alike: Count parts that always have the same rate as one (`sim.lanes`): the same
            numbers, sooner.
    """

    def __init__(
        self, env: Environment, topology: Topology, latency_ns: int = 0, *, joins_alike: bool = True
    ) -> None:
        self.env, self.topology, self.latency_ns = env, topology, latency_ns
        self.links = SharedLinks(env)
        self.wires: dict[str, Wire] = {}
        self._placement = Placement(topology)
        self._members: dict[object, _Member] = {}
        self._joined = self._changes = 0
        self._joins_alike = joins_alike
        self._lanes: dict[tuple[object, object, int], list[Lane]] = {}
        self._bundles: dict[tuple[object, object, int], list[Bundle]] = {}
        self._alone: dict[tuple[object, object, int], tuple[Fraction, int]] = {}
        self._classes: dict[Wire, int] = {}
        self._wires_of: dict[int, list[Wire]] = {}
        self._stale = False
        self._under_way: dict[Sending, None] = {}

    # --- replicas

    def join(
        self, member: object, seat: Seat, name: str, *, instead_of: object | None = None
    ) -> tuple[Gpu, ...]:
        """Give a replica its GPUs and their ports.

        Args:
            member: The replica, as `send` will name it.
            seat: What it needs.
            name: For errors.
            instead_of: A replica that is gone, with as many GPUs, which are its own now.

        Raises:
            ConfigError: It fits nowhere.
        """
        if instead_of is None:
            gpus = self._placement.place(seat, name)
        else:
            gpus = self._members.pop(instead_of).gpus
        self._joined += 1
        ports = tuple(self._ports(seat, gpu) for gpu in gpus)
        self._mark(seat, ports)
        self._members[member] = _Member(seat, gpus, ports)
        self._stale = True
        return gpus

    def _mark(self, seat: Seat, ports: Sequence[Mapping[tuple[str, str], Wire]]) -> None:
        """Tell wires apart that the transfers of the replica will: fewer classes to split later."""
        shards = seat.shards
        for group in range(shards.groups):
            for held in shards.held(group):
                cells = len(held.layers) * len(held.heads)
                for wire in ports[held.gpu].values():
                    wire.marks.append((self._joined, group, cells))

    def leave(self, member: object) -> None:
        """A replica is gone for good, with no transfer under way: its GPUs are free."""
        self._placement.give_back(self._members.pop(member).gpus)

    def gpus_of(self, member: object) -> tuple[Gpu, ...]:
        """Where a replica lies."""
        return self._members[member].gpus

    def _ports(self, seat: Seat, gpu: Gpu) -> dict[tuple[str, str], Wire]:
        """Wires at a GPU, its NIC and its node's uplink, by kind and direction."""
        topology = self.topology
        node = topology.node(gpu.node)
        assert node is not None
        nic = gpu.slot * node.nics // node.gpus
        wanted = [("nic", f"nic {nic}", node.nic, gpu.node)]
        if seat.nvlink is not None:
            wanted.append(("nvlink", f"gpu {gpu.slot} nvlink", seat.nvlink, gpu.node))
        if seat.pcie is not None:
            wanted.append(("pcie", f"gpu {gpu.slot} pcie", seat.pcie, gpu.node))
        if topology.nodes_per_leaf is not None:
            leaf = gpu.node // topology.nodes_per_leaf
            wanted.append(("uplink", "uplink", topology.uplink(leaf), leaf))
        return {
            (kind, direction): self._wire(kind, name, spec, node, direction)
            for kind, name, spec, node in wanted
            for direction in ("out", "in")
        }

    def _wire(self, kind: str, name: str, spec: LinkSpec, node: int, direction: str) -> Wire:
        place = "leaf" if kind == "uplink" else "node"
        full = f"{place} {node} {name} {direction}"
        if full not in self.wires:
            rate = spec.carried_bytes_per_s
            latency_ns = spec.latency_ns if direction == "out" else 0
            wire = Wire(full, kind, node, direction, rate, latency_ns, Fraction(rate))
            wire.marks.append(rate)
            wire.since_ns = now_ns(self.env)
            self.wires[full] = wire
        return self.wires[full]

    def _path(self, source: _Member, i: int, target: _Member, j: int) -> tuple[Wire, ...]:
        """Rule 2 of `sim.topology`."""
        a, b = source.gpus[i], target.gpus[j]
        out, to = source.ports[i], target.ports[j]
        if a == b:
            return ()
        if a.node == b.node:
            switched = ("nvlink", "out") in out and ("nvlink", "in") in to
            kinds = ["nvlink"] if switched else ["pcie"]
            wanted = [out.get((kind, "out")) for kind in kinds]
            wanted += [to.get((kind, "in")) for kind in kinds]
        else:
            up, down = out.get(("uplink", "out")), to.get(("uplink", "in"))
            crosses = up is not None and down is not None and up.node != down.node
            wanted = [out.get(("pcie", "out")), out["nic", "out"]]
            wanted += [up, down] if crosses else []
            wanted += [to["nic", "in"], to.get(("pcie", "in"))]
        return tuple(wire for wire in wanted if wire is not None)

    # --- transfers

    def send(
        self,
        source: object,
        target: object,
        request: int,
        num_bytes: Fraction | int,
        on_end: Callable[[], None],
        *,
        withheld: Fraction | None = None,
    ) -> Sending:
        """Start a transfer now.

        Args:
            source: The replica that sends.
            target: The one that receives.
            request: Index of the request, which says in which groups of GPUs it lies.
            num_bytes: Keys and values, each counted once, however many GPUs they go to.
            on_end: Called in phase (2) of the instant at which its end is applied.
            withheld: Share of its bytes that waits for `Sending.release`, 0 being possible.
        """
        pair = self._pair(source, target, request)
        sending = Sending(self, Fraction(num_bytes), on_end)
        made = self._bundles[pair]
        sending.left = len(made)
        self._under_way[sending] = None
        for bundle in made:
            first = bundle.lanes[0]
            size = sending.num_bytes * first.share if first.path else Fraction(0)
            held = None if withheld is None else size * withheld
            latency_ns = self.latency_ns + first.latency_ns
            flow = self.links.send(
                bundle.path, size, latency_ns, sending.part_over, withheld_bytes=held
            )
            sending.flows[flow] = bundle.lanes
        return sending

    def _pair(self, source: object, target: object, request: int) -> tuple[object, object, int]:
        """The key of a pair of replicas and groups, whose bundles are known when this returns."""
        a, b = self._members[source], self._members[target]
        group = request % lcm(a.seat.shards.groups, b.seat.shards.groups)
        pair = source, target, group
        if pair not in self._lanes:
            self._lanes[pair] = lanes = self._lanes_of(a, b, group)
            known = not self._stale and self._joins_alike
            if known and fits(lanes, self._classes, self._wires_of):
                self._bundles[pair] = bundles(lanes, self._classes)
            else:
                self._stale = True
        if self._stale:
            self._classify()
        return pair

    def _lanes_of(self, source: _Member, target: _Member, request: int) -> list[Lane]:
        a, b = source.seat.shards, target.seat.shards
        cells = sum(a.stage_layers) * a.heads
        lanes = []
        for part in parts_between(a, b, request):
            path = self._path(source, part.source, target, part.target)
            latency_ns = sum(wire.latency_ns for wire in path)
            lanes.append(Lane(Fraction(part.cells, cells), path, latency_ns))
        return lanes

    def _classify(self) -> None:
        """Find the classes anew, and let what is under way go on in them."""
        self._stale = False
        wires = list(self.wires.values())
        if self._joins_alike:
            self._classes = classes(wires, list(self._lanes.values()))
        else:
            self._classes = {wire: number for number, wire in enumerate(wires)}
        self._wires_of = {}
        for wire, number in self._classes.items():
            self._wires_of.setdefault(number, []).append(wire)
        for alike in self._wires_of.values():
            link = Link(alike[0].bytes_per_s)
            for wire in alike:
                wire.link = link
        self._bundles = {pair: self._bundled(lanes) for pair, lanes in self._lanes.items()}
        self._split()

    def _bundled(self, lanes: Sequence[Lane]) -> list[Bundle]:
        if self._joins_alike:
            return bundles(lanes, self._classes)
        return [bundle for lane in lanes for bundle in bundles([lane], self._classes)]

    def _split(self) -> None:
        """Each flow under way becomes one for each class among its lanes."""
        parts: list[tuple[Sending, Flow, list[Bundle]]] = []
        for sending in self._under_way:
            for flow, lanes in sending.flows.items():
                if not flow.over:
                    parts.append((sending, flow, self._bundled(lanes)))
        if not parts:
            return
        made = self.links.split([(flow, [b.path for b in finer]) for _, flow, finer in parts])
        for (sending, _, finer), flows in zip(parts, made, strict=True):
            sending.left += len(flows) - 1
            for flow, bundle in zip(flows, finer, strict=True):
                sending.flows[flow] = bundle.lanes

    def sent(self, sending: Sending) -> None:
        """A transfer has ended: count its bytes."""
        del self._under_way[sending]
        for lanes in sending.flows.values():
            _count(lanes, sending.num_bytes * lanes[0].share)

    def call_off(self, sending: Sending) -> None:
        """See `Sending.call_off`."""
        if sending not in self._under_way:
            return
        del self._under_way[sending]
        for flow, lanes in sending.flows.items():
            size = sending.num_bytes * lanes[0].share
            _count(lanes, size if flow.over else size - self.links.unsent(flow))
            flow.call_off()

    # --- changes and counts

    def change_bandwidth(self, wires: Iterable[Wire], factor: Fraction | float) -> None:
        """Let links carry a multiple of what they carry when nothing is wrong, from now on.

        Args:
            wires: Which, as in `wires_of`.
            factor: At least 0; 1 mends them.
        """
        chosen, now = list(wires), now_ns(self.env)
        self._changes += 1
        for wire in chosen:
            wire.marks.append(("changed", self._changes))
        self._classify()
        for wire in chosen:
            wire.could_bytes += wire.bytes_per_s * (now - wire.since_ns) / _NS_PER_S
            wire.since_ns = now
            wire.bytes_per_s = wire.nominal_bytes_per_s * Fraction(factor)
        for link, rate in {wire.link: wire.bytes_per_s for wire in chosen}.items():
            assert link is not None
            self.links.change_bandwidth(link, rate)

    def pair(self, source: object, target: object, request: int) -> Hashable:
        """See `sim.carrier.Carrier`."""
        return self._pair(source, target, request)

    def alone_ns(self, source: object, target: object, request: int, num_bytes: int) -> int:
        """See `sim.carrier.Carrier`; the link that would carry its bytes longest decides."""
        pair = self._pair(source, target, request)
        if pair not in self._alone:
            self._alone[pair] = _slowest(self._lanes[pair])
        seconds_per_byte, latency_ns = self._alone[pair]
        sent_ns = ceil(num_bytes * seconds_per_byte * _NS_PER_S)
        return max(1, self.latency_ns + latency_ns + sent_ns)

    def slow_nics(self, member: object, factor: Fraction | float) -> None:
        """See `sim.carrier.Carrier`."""
        ports = self._members[member].ports
        nics = {port["nic", way]: None for port in ports for way in ("out", "in")}
        self.change_bandwidth(nics, factor)

    def wires_of(self, node: int, kind: str = "nic") -> list[Wire]:
        """Links of a node by kind, both directions; of a leaf for ``uplink``."""
        return [w for w in self.wires.values() if w.node == node and w.kind == kind]

    def uses(self, until_ns: int | None = None) -> tuple[LinkUse, ...]:
        """What each link has done until an instant, at which the last transfer is over, or now."""
        now = now_ns(self.env) if until_ns is None else until_ns
        made = []
        for wire in self.wires.values():
            since = wire.bytes_per_s * max(0, now - wire.since_ns) / _NS_PER_S
            could = wire.could_bytes + since
            busy = float(wire.sent_bytes / could) if could else 0.0
            made.append(
                LinkUse(
                    wire.name,
                    wire.kind,
                    wire.node,
                    wire.direction,
                    wire.nominal_bytes_per_s,
                    float(wire.sent_bytes),
                    busy,
                )
            )
        return tuple(made)


def _slowest(lanes: Iterable[Lane]) -> tuple[Fraction, int]:
    """Seconds per byte of a transfer alone on its links, and its longest latency, ns."""
    load: dict[Wire, Fraction] = {}
    latency_ns = 0
    for lane in lanes:
        latency_ns = max(latency_ns, lane.latency_ns)
        for wire in lane.path:
            load[wire] = load.get(wire, Fraction(0)) + lane.share
    spans = [share / wire.nominal_bytes_per_s for wire, share in load.items()]
    return max(spans, default=Fraction(0)), latency_ns


def _count(lanes: Iterable[Lane], num_bytes: Fraction) -> None:
    for lane in lanes:
        for wire in lane.path:
            wire.sent_bytes += num_bytes
