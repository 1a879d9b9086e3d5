"""Which parts of transfers always have the same rate, and so can be counted as one, exactly.

Of a transfer between replicas of 8 GPUs each, 8 parts of equal bytes may cross 8 NICs side by side.
Rates of all parts and all links on their own would cost eight times the work for the same numbers.

The rule: wires (links of the topology) and, for each pair of replicas that has sent, the lanes
(parts with their paths) are put into classes such that

1. the wires of a class have one bandwidth, whatever happens to it;
2. the lanes of a class have equal bytes and latency, and cross wires of the same classes in order;
3. of each class of lanes, equally many lanes cross each wire of a class of wires.

Then all lanes of a class have one rate at any moment, whoever else sends: in progressive filling
the wires of a class start with equal room, and by (3) as many lanes rise on each of them; so they
are full at the same level, and lanes of a class stop together, by (2). They begin together with
equal bytes, so they end together. One lane for all, which counts on a wire for as many as cross it,
has that rate. The classes are the coarsest ones that satisfy the rule, found by splitting those
that do not (the colour refinement of graphs, with lanes as edges). When a pair sends for the first
time, classes may have to be split further, and what is on its way is split with them; classes never
grow, so pairs that are gone still count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from sim.links import Link


@dataclass(eq=False)
class Wire:
    """One link of a topology, in one direction.

    Attributes:
        name: Such as ``node 0 nic 3 out``.
        kind: ``nvlink``, ``pcie``, ``nic`` or ``uplink``.
        node: Number of the node; of an uplink, of the leaf.
        direction: ``out`` or ``in``.
        nominal_bytes_per_s: What it carries when nothing is wrong.
        latency_ns: Added to what crosses it; 0 inward.
        bytes_per_s: What it carries now.
        marks: What tells it apart from others of its kind.
        link: That of its class.
        sent_bytes: Carried so far.
        could_bytes: What it could have carried until `since_ns`.
        since_ns: When its bandwidth was last changed.
    """

    name: str
    kind: str
    node: int
    direction: str
    nominal_bytes_per_s: int
    latency_ns: int
    bytes_per_s: Fraction
    marks: list[Hashable] = field(default_factory=list)
    link: Link | None = None
    sent_bytes: Fraction = Fraction(0)
    could_bytes: Fraction = Fraction(0)
    since_ns: int = 0


@dataclass(frozen=True, eq=False)
class Lane:
    """One part of the transfers of a pair of replicas, with its path.

    Attributes:
        share: Of the bytes of the transfer, each of them counted once.
        path: Wires that it crosses, in order.
        latency_ns: Of the path.
    """

    share: Fraction
    path: tuple[Wire, ...]
    latency_ns: int


@dataclass(frozen=True, eq=False)
class Bundle:
    """A class of lanes.

    Attributes:
        lanes: All of it.
        path: Links of the classes of wires that they cross, and how many lanes cross a wire of it.
    """

    lanes: tuple[Lane, ...]
    path: Mapping[Link, int]


Colours = Mapping[Wire, int]


def classes(wires: Iterable[Wire], pairs: Sequence[Sequence[Lane]]) -> dict[Wire, int]:
    """The coarsest classes of wires that satisfy the rule.

    Args:
        wires: All of them.
        pairs: Lanes of each pair that sends.
    """
    found = _numbered({wire: (wire.kind, wire.direction, *wire.marks) for wire in wires})
    while True:
        counts: dict[Wire, Counter[Hashable]] = {wire: Counter() for wire in found}
        for number, lanes in enumerate(pairs):
            for lane in lanes:
                of_lane = number, _alike(lane, found)
                for wire in lane.path:
                    counts[wire][of_lane] += 1
        finer = _numbered({w: (found[w], frozenset(counts[w].items())) for w in found})
        if len(set(finer.values())) == len(set(found.values())):
            return finer
        found = finer


def _numbered(keys: Mapping[Wire, Hashable]) -> dict[Wire, int]:
    numbers: dict[Hashable, int] = {}
    return {wire: numbers.setdefault(key, len(numbers)) for wire, key in keys.items()}


def _alike(lane: Lane, found: Colours) -> Hashable:
    """What lanes of one class have in common."""
    return lane.share, lane.latency_ns, tuple(found[wire] for wire in lane.path)


def fits(lanes: Sequence[Lane], found: Colours, members: Mapping[int, Sequence[Wire]]) -> bool:
    """Whether classes satisfy the rule with one more pair as they are.

    Args:
        lanes: Those of the pair.
        found: Classes of wires.
        members: The wires of each.
    """
    counts: dict[tuple[Hashable, int], Counter[Wire]] = {}
    for lane in lanes:
        key = _alike(lane, found)
        for wire in lane.path:
            counts.setdefault((key, found[wire]), Counter())[wire] += 1
    return all(
        len(count) == len(members[number]) and len(set(count.values())) == 1
        for (_, number), count in counts.items()
    )


def bundles(lanes: Sequence[Lane], found: Colours) -> list[Bundle]:
    """The lanes of a pair by class, in order of the first of each."""
    alike: dict[Hashable, list[Lane]] = {}
    for lane in lanes:
        alike.setdefault(_alike(lane, found), []).append(lane)
    return [Bundle(tuple(group), _crossed(group)) for group in alike.values()]


def _crossed(group: Sequence[Lane]) -> dict[Link, int]:
    """Links of their wires, and how many of the lanes cross one wire of each."""
    on_wire: Counter[Wire] = Counter(wire for lane in group for wire in lane.path)
    path: dict[Link, int] = {}
    for wire, count in on_wire.items():
        assert wire.link is not None
        assert path.get(wire.link, count) == count
        path[wire.link] = count
    return path
