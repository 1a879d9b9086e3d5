"""Transfers over a topology: paths and times by hand, all others by a fluid of single parts."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock import Clock, Instant, Phase
from sim.errors import ConfigError
from sim.kv_shards import KvShards, parts_between, whole
from sim.network import Network
from sim.topology import Gpu, LinkSpec, NodeSpec, Placement, Seat, Topology
from tests.reference.fluid import finish

GB = 1e9  # bytes per ns, where a rate is per second


def seat(tp: int = 1, layers: tuple[int, ...] = (4,), **more: object) -> Seat:
    """8 KV heads; the device has NVLink of 10 bytes/ns and PCIe of 4."""
    ports = {"nvlink": LinkSpec(10 * GB), "pcie": LinkSpec(4 * GB)}
    groups = more.pop("groups", 1)
    shards = KvShards(layers, tp, groups, 8, 1)
    return Seat(shards, **(ports | more))


def nodes(*, gpus: int = 2, nics: int = 2, rate: float = 1 * GB, **more: object) -> Topology:
    return Topology((NodeSpec(gpus, nics, LinkSpec(rate)),), endless=True, **more)


def ends(network: Network, sends: Sequence[tuple[int, str, str, int]]) -> dict[int, int]:
    """When each of (start, source, target, bytes) ends."""
    got: dict[int, int] = {}

    def start(i: int) -> None:
        _, source, target, size = sends[i]
        network.send(source, target, i, size, lambda: got.__setitem__(i, int(network.env.now)))

    for i, (start_ns, *_) in enumerate(sends):
        Instant(network.env, start_ns, Phase.SCHEDULE).callbacks.append(lambda _, i=i: start(i))
    network.env.run()
    return got


def network_of(topology: Topology, **seats: Seat) -> Network:
    network = Network(Clock(initial_time=0), topology)
    for name, needs in seats.items():
        network.join(name, needs, name)
    return network


def carried(network: Network) -> dict[str, int]:
    return {use.name: int(use.sent_bytes) for use in network.uses() if use.sent_bytes}


def test_within_a_node_the_ports_of_both_gpus_are_crossed() -> None:
    network = network_of(nodes(gpus=4), a=seat(), b=seat(), c=seat())
    assert network.gpus_of("c") == (Gpu(0, 2),)
    # b's port is shared: 5 bytes/ns each; a's 100 are over at 20, c has 100 left of 200: 30.
    assert ends(network, [(0, "a", "b", 100), (0, "c", "b", 200)]) == {0: 20, 1: 30}
    assert carried(network) == {
        "node 0 gpu 0 nvlink out": 100,
        "node 0 gpu 2 nvlink out": 200,
        "node 0 gpu 1 nvlink in": 300,
    }
    assert {u.name: u.busy for u in network.uses()}["node 0 gpu 1 nvlink in"] == 1.0


def test_without_nvlink_neighbours_talk_over_pcie() -> None:
    network = network_of(nodes(), a=seat(nvlink=None), b=seat())
    assert ends(network, [(0, "a", "b", 100)]) == {0: 25}
    assert carried(network) == {"node 0 gpu 0 pcie out": 100, "node 0 gpu 1 pcie in": 100}
    free = network_of(nodes(), a=seat(nvlink=None, pcie=None), b=seat(nvlink=None, pcie=None))
    assert ends(free, [(0, "a", "b", 100)]) == {0: 1}, "no link is described: at least 1 ns"


def test_between_nodes_pcie_and_nics_are_crossed_and_latency_adds_outward() -> None:
    slow = LinkSpec(4 * GB, latency_s=3e-9)
    topology = Topology(
        (NodeSpec(2, 1, LinkSpec(2 * GB, latency_s=5e-9, efficiency=0.5)),), endless=True
    )
    network = Network(Clock(initial_time=0), topology, latency_ns=100)
    for name in "abc":
        network.join(name, seat(pcie=slow), name)
    # a and b are on node 0, c on node 1: PCIe 3 and NIC 5 outward, 100 of every transfer.
    # The NIC carries 1 byte/ns: 50 bytes each at half of it: 108 + 100; then the rest alone.
    assert ends(network, [(0, "a", "c", 50), (0, "b", "c", 80)]) == {0: 208, 1: 238}
    assert carried(network) == {
        "node 0 gpu 0 pcie out": 50,
        "node 0 gpu 1 pcie out": 80,
        "node 0 nic 0 out": 130,
        "node 1 nic 0 in": 130,
        "node 1 gpu 0 pcie in": 130,
    }


def test_gpus_of_a_node_share_its_nics_in_order() -> None:
    network = network_of(nodes(gpus=4, nics=2), a=seat(4), b=seat(4))
    ends(network, [(0, "a", "b", 800)])
    assert {k: v for k, v in carried(network).items() if "nic" in k} == {
        f"node {n} nic {k} {way}": 400 for n, way in ((0, "out"), (1, "in")) for k in (0, 1)
    }


def test_an_oversubscribed_uplink_is_crossed_between_leaves_only() -> None:
    one = nodes(gpus=1, nics=1, nodes_per_leaf=2, oversubscription=4.0)
    network = network_of(one, a=seat(), b=seat(), c=seat(), d=seat())
    # 2 nodes of 1 byte/ns on a leaf, a quarter of that upward: 0.5.
    got = ends(network, [(0, "a", "b", 100), (1000, "a", "c", 100), (2000, "b", "d", 100)])
    assert got == {0: 100, 1: 1200, 2: 2200}
    assert carried(network)["leaf 0 uplink out"] == 200
    assert carried(network)["leaf 1 uplink in"] == 200


def test_a_transfer_ends_with_its_last_part() -> None:
    # Stages of 3 and 1 layers to one GPU over NICs of 1 byte/ns: they share the target's NIC.
    network = network_of(nodes(gpus=2, nics=2), a=seat(1, (3, 1)), b=seat())
    assert ends(network, [(0, "a", "b", 400)]) == {0: 400}
    # To 2 GPUs with stages of 2 and 2: 200 from stage 0 to GPU 0; 100 and 100 to GPU 1.
    network = network_of(nodes(gpus=2, nics=2), a=seat(1, (3, 1)), b=seat(1, (2, 2)))
    # Stage 0 sends 200 and 100 over its NIC, a half each: 200; 100 left of the first alone: 300.
    assert ends(network, [(0, "a", "b", 400)]) == {0: 300}


def test_a_latent_is_sent_to_each_rank() -> None:
    shards = KvShards((4,), 2, 1, 1, 10)
    network = network_of(nodes(gpus=2, nics=1), a=Seat(shards), b=Seat(shards))
    # 100 bytes of latents, twice, over one NIC.
    assert ends(network, [(0, "a", "b", 100)]) == {0: 200}


def test_what_is_withheld_is_so_in_each_part() -> None:
    network = network_of(nodes(), a=seat(2), b=seat(2))
    got: list[int] = []
    sending = network.send(
        "a", "b", 0, 200, lambda: got.append(network.env.now), withheld=Fraction(1, 4)
    )
    Instant(network.env, 500, Phase.STEP_END).callbacks.append(lambda _: sending.release())
    network.env.run()
    assert got == [525]


def test_a_transfer_called_off_leaves_its_links_and_counts_what_it_sent() -> None:
    network = network_of(nodes(), a=seat(2), b=seat(2))
    got: list[int] = []
    first = network.send("a", "b", 0, 200, lambda: got.append(-1))
    network.send("a", "b", 0, 200, lambda: got.append(network.env.now))
    Instant(network.env, 60, Phase.CANCEL).callbacks.append(lambda _: first.call_off())
    network.env.run()
    # 30 of 100 on each NIC at 60; 70 alone: 130.
    assert got == [130]
    assert carried(network)["node 0 nic 0 out"] == 130


# --- placement


def test_replicas_take_the_first_node_with_room_for_them() -> None:
    placement = Placement(nodes(gpus=4))
    sizes = [2, 4, 1, 1, 2]
    got = [placement.place(seat(n), "r")[0] for n in sizes]
    assert got == [Gpu(0, 0), Gpu(1, 0), Gpu(0, 2), Gpu(0, 3), Gpu(2, 0)]
    placement.give_back([Gpu(1, k) for k in range(4)])
    assert placement.place(seat(device="b"), "r") == (Gpu(1, 0),), "an empty node has no device"


def test_a_node_holds_one_kind_of_device_and_pools_choose_nodes() -> None:
    placement = Placement(nodes(gpus=4))
    assert placement.place(seat(device="a100"), "r") == (Gpu(0, 0),)
    assert placement.place(seat(device="h200"), "r") == (Gpu(1, 0),)
    assert placement.place(seat(device="h200", nodes=(3, 1)), "r") == (Gpu(3, 0),)
    with pytest.raises(
        ConfigError, match=r"decode-0: needs 2 GPUs \(h200\).* 3 of node 0 \(of a100\)"
    ):
        placement.place(seat(2, device="h200", nodes=(0,)), "decode-0")


def test_a_replica_larger_than_a_node_takes_empty_ones_in_a_row() -> None:
    placement = Placement(nodes(gpus=4))
    placement.place(seat(), "r")
    got = placement.place(seat(4, (2, 2)), "r")
    assert got == tuple(Gpu(1 + k // 4, k % 4) for k in range(8))
    few = Placement(Topology((NodeSpec(4, 1, LinkSpec(1)),) * 2))
    with pytest.raises(ConfigError, match="needs 16 GPUs"):
        few.place(seat(4, (1, 1, 1, 1)), "r")


def test_nics_divide_the_gpus_of_a_node() -> None:
    with pytest.raises(ConfigError, match="nics_per_node: 3 does not divide the 8 GPUs"):
        NodeSpec(8, 3, LinkSpec(1))


# --- any topology


class Drawn(NamedTuple):
    """A cluster, what it sends, and what happens to its links."""

    topology: Topology
    seats: list[Seat]
    late: list[Seat]
    sends: list[tuple[int, int, int, int]]
    changes: list[tuple[int, int, str, float]]


RATES = st.sampled_from([1 * GB, 2.5 * GB, 0.7 * GB, 1e9 / 3, 3.123456789e9])


@st.composite
def seats(draw: st.DrawFn) -> Seat:
    tp = draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.sampled_from([1, 1, 2])) if tp > 1 else 1
    layers = draw(st.sampled_from([(4,), (2, 2), (3, 1)]))
    heads = draw(st.just(4))
    latency = draw(st.sampled_from([0.0, 2e-9]))
    nvlink = draw(st.one_of(st.none(), st.builds(LinkSpec, RATES)))
    pcie = draw(st.one_of(st.none(), st.builds(LinkSpec, RATES, st.just(latency))))
    return Seat(KvShards(layers, tp, groups, heads, 1), "gpu", nvlink, pcie)


@st.composite
def clusters(draw: st.DrawFn) -> Drawn:
    gpus = draw(st.sampled_from([2, 4, 8]))
    nics = draw(st.sampled_from([n for n in (1, 2, 4) if gpus % n == 0]))
    leaf = draw(st.sampled_from([None, None, 1, 2]))
    node = NodeSpec(gpus, nics, LinkSpec(draw(RATES), efficiency=draw(st.sampled_from([1, 0.73]))))
    topology = Topology((node,), True, leaf, draw(st.sampled_from([1.0, 2.0, 3.0])))
    members = draw(st.lists(seats(), min_size=2, max_size=5))
    late = draw(st.lists(seats(), max_size=2))
    number = st.integers(0, len(members) + len(late) - 1)
    # Odd sizes too: parts need not be whole bytes.
    send = st.tuples(st.integers(0, 80), number, number, st.integers(0, 300))
    change = st.tuples(
        st.integers(0, 120),
        st.integers(0, 2),
        st.sampled_from(["nic", "pcie", "nvlink"]),
        st.sampled_from([0.5, 0.25, 1.0]),
    )
    sends = draw(st.lists(send, min_size=1, max_size=10))
    return Drawn(topology, members, late, sends, draw(st.lists(change, max_size=2)))


LATE_NS = 30
"""When the late replicas join."""


def run(drawn: Drawn, *, joins_alike: bool) -> tuple[list[int], Network]:
    """When each transfer ends; one of each change's links alone is changed, so classes split."""
    env = Clock(initial_time=0)
    network = Network(env, drawn.topology, joins_alike=joins_alike)
    got = [-1] * len(drawn.sends)
    members = [*drawn.seats, *drawn.late]
    for i, needs in enumerate(drawn.seats):
        network.join(i, needs, str(i))

    def join() -> None:
        for i in range(len(drawn.seats), len(members)):
            network.join(i, members[i], str(i))

    def start(i: int) -> None:
        _, source, target, size = drawn.sends[i]
        network.send(source, target, i, size, lambda: got.__setitem__(i, int(env.now)))

    def change(node: int, kind: str, factor: float) -> None:
        wires = network.wires_of(node, kind)[:1]
        if wires:
            network.change_bandwidth(wires, factor)

    Instant(env, LATE_NS, Phase.TRANSFER_END).callbacks.append(lambda _: join())
    for at_ns, *what in drawn.changes:
        Instant(env, at_ns, Phase.TRANSFER_END).callbacks.append(lambda _, w=what: change(*w))
    for i in order_of(drawn):
        Instant(env, starts(drawn)[i], Phase.SCHEDULE).callbacks.append(lambda _, i=i: start(i))
    env.run()
    return got, network


def starts(drawn: Drawn) -> list[int]:
    """Transfers with late replicas start when these are there."""
    early = len(drawn.seats)
    return [
        start_ns + (LATE_NS if max(source, target) >= early else 0)
        for start_ns, source, target, _ in drawn.sends
    ]


def order_of(drawn: Drawn) -> list[int]:
    return sorted(range(len(drawn.sends)), key=lambda i: starts(drawn)[i])


def by_parts(drawn: Drawn) -> list[int]:
    """The same as single flows over single links, by the independent fluid."""
    network = Network(Clock(initial_time=0), drawn.topology, joins_alike=False)
    members = [*drawn.seats, *drawn.late]
    known: dict[int, set[str]] = {}
    for i, needs in enumerate(members):
        network.join(i, needs, str(i))
        known[i] = set(network.wires)
    flows: list[dict[str, object]] = []
    for i in order_of(drawn):
        _, source, target, size = drawn.sends[i]
        a, b = network._members[source], network._members[target]
        for k, part in enumerate(parts_between(a.seat.shards, b.seat.shards, i)):
            path = network._path(a, part.source, b, part.target)
            share = Fraction(size * part.cells, a.seat.shards.bytes_per_token) if path else 0
            flows.append(
                {
                    "id": (i, k),
                    "links": [wire.name for wire in path],
                    "bytes": share,
                    "start": starts(drawn)[i],
                    "latency": sum(wire.latency_ns for wire in path),
                }
            )
    rates: dict[str, dict[int, Fraction]] = {
        wire.name: {0: Fraction(wire.nominal_bytes_per_s)} for wire in network.wires.values()
    }
    for at_ns, node, kind, factor in sorted(drawn.changes, key=lambda change: change[0]):
        there = known[len(drawn.seats) - 1] if at_ns < LATE_NS else known[len(members) - 1]
        for wire in [w for w in network.wires_of(node, kind) if w.name in there][:1]:
            rates[wire.name][at_ns] = wire.nominal_bytes_per_s * Fraction(factor)
    done = finish({name: list(map(list, each.items())) for name, each in rates.items()}, flows)
    last = [-1] * len(drawn.sends)
    for (i, _), end in done.items():
        last[i] = max(last[i], end.applied)
    return last


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_every_end_is_that_of_a_fluid_of_single_parts(drawn: Drawn) -> None:
    got, network = run(drawn, joins_alike=True)
    assert got == by_parts(drawn)
    alone, single = run(drawn, joins_alike=False)
    assert got == alone, "counting alike parts as one changes nothing"
    sent = {u.name: u.sent_bytes for u in network.uses()}
    assert sent == pytest.approx({u.name: u.sent_bytes for u in single.uses()})


def test_alike_parts_are_one_flow_until_something_tells_them_apart() -> None:
    network = network_of(nodes(gpus=8, nics=8), a=seat(8), b=seat(8), c=seat(4), d=Seat(whole(32)))
    sending = network.send("a", "b", 0, 800, lambda: None)
    assert len(sending.flows) == 1
    network.send("a", "c", 0, 800, lambda: None)
    assert len(sending.flows) == 1, "8 to 4 merge evenly"
    inward = [wire for wire in network.wires_of(1) if wire.direction == "in"]
    network.change_bandwidth(inward[:1], 0.5)
    # Part 0 crosses it; part 1 shares the GPU of c with part 0 of the other transfer; 6 are alike.
    assert [len(lanes) for lanes in sending.flows.values()] == [1, 1, 6]
