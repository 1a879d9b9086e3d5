"""Changes of the cluster in a config: what `simulate` is given, and what came of it.

`experiments.check_changes` says which of them can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from experiments.availability import (
    availability,
    left_alone,
    nobody_there_ns,
    over_the_limit,
    too_late,
)
from experiments.schema import Change, Drawn, Experiment
from experiments.startup import exact
from sim.changes import Change as Made
from sim.cluster import LiveCluster
from sim.hazards import Failures, Stragglers
from sim.metrics import NS_PER_S
from sim.records import CHANGES, SimulationResult
from sim.request import NEVER
from sim.slow_down import Degrade, Mend, Node, NodeChange, Normal, Slow, for_a_while

Timed = tuple[int, Callable[[LiveCluster], None]]
"""An instant, ns, and what happens then."""

POOL_NAMES = ("replica", "prefill", "decode")
"""Of pools in results; the first is the colocated one."""


def events_of(experiment: Experiment) -> list[Timed]:
    """What `sim.event_loop.simulate` takes, in order of time, ties in the order of the list.

    What ends another change stands at its place in the list; what is drawn begins first.
    """
    made: list[Timed] = [(0, each) for each in _drawn(experiment)]
    nodes = nodes_of(experiment)
    for each in experiment.events:
        made += _made(each, nodes)
    return sorted(made, key=lambda entry: entry[0])


def _made(each: Change, nodes: Sequence[Node] | None) -> list[Timed]:
    at_ns, where = round(each.at_s * NS_PER_S), (each.replica, each.pool == "decode")
    until_ns = None if each.until_s is None else round(each.until_s * NS_PER_S)
    if each.what == "slow" or each.what == "degrade":
        assert each.factor is not None
        kind: type[Slow | Degrade] = Slow if each.what == "slow" else Degrade
        return for_a_while(at_ns, until_ns, kind(exact(each.factor), *where))
    if each.what == "normal" or each.what == "mend":
        return [(at_ns, (Normal if each.what == "normal" else Mend)(None, *where))]
    if each.node is not None and (each.what == "fail" or each.what == "restore"):
        node = each.node if nodes is None else nodes[each.node]
        return [(at_ns, NodeChange(each.what, node))]
    return [(at_ns, Made(each.what, *where))]


def _drawn(experiment: Experiment) -> Iterator[Failures | Stragglers]:
    fails, slow = experiment.failures, experiment.stragglers
    if fails is not None:
        yield Failures(
            fails.mtbf_s * NS_PER_S,
            fails.mttr_s * NS_PER_S,
            shape=fails.shape,
            nodes=(nodes_of(experiment) or ()) if fails.of == "node" else None,
            **_common(experiment, fails),
        )
    if slow is not None:
        yield Stragglers(
            slow.mtbs_s * NS_PER_S,
            slow.duration_s * NS_PER_S,
            exact(slow.factor),
            **_common(experiment, slow),
        )


def _common(experiment: Experiment, drawn: Drawn) -> dict[str, Any]:
    until = drawn.until_s
    return {
        "seed": experiment.seed if drawn.seed is None else drawn.seed,
        "pools": drawn.pools,
        "until_ns": None if until is None else round(until * NS_PER_S),
    }


def nodes_of(experiment: Experiment) -> list[Node] | None:
    """The nodes that are written down; None: those of the topology, by number."""
    if experiment.node_replicas is None:
        return None
    return [[place_of(name) for name in names] for names in experiment.node_replicas]


def place_of(name: str) -> tuple[bool, int]:
    """A replica by its name in results: whether it is a decode replica, and its position."""
    pool, _, index = name.rpartition("-")
    return pool == "decode", int(index)


def roles_of_added(experiment: Experiment) -> list[str]:
    """Roles of the pools that get a replica, in the order in which they get it."""
    in_order = sorted(experiment.events, key=lambda each: each.at_s)
    return [each.pool or "colocated" for each in in_order if each.what == "add"]


def report(experiment: Experiment, result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add what happened to the cluster to the summary, and say it in a sentence.

    What comes after the last request has ended is left out: it happens to nobody.
    """
    notes = [*too_late(experiment, result), *over_the_limit(experiment, result)]
    ends = result.requests["end_ns"]
    over = len(ends) and (ends != NEVER).all()
    end_ns = int(ends.max()) if over else result.end_ns
    changes = [each for each in listed(result) if each["at_s"] <= end_ns / NS_PER_S]
    if not changes:
        return notes
    moved = int(result.requests["rerouted"].sum())
    counts = {name: sum(x["change"] == name for x in changes) for name in CHANGES}
    share = availability(experiment, result, changes, end_ns)
    nobody = " (a pool of which none is left counts as one that is down)"
    summary["changes"] = {
        "events": changes,
        "counts": counts,
        "rerouted": moved,
        "availability": share,
    }
    told = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items() if n)
    lost = sum(int(x["lost"]) for x in changes)
    paid = " Each counts, and is paid for, while it is there." if counts["added"] else ""
    counted = nobody if nobody_there_ns(experiment, result, end_ns) else ""
    up = "" if share is None else f" Replicas were up for {share:.2%} of their time{counted}."
    return [
        f"events: replicas {told}; requests were lost by a replica {lost:,} times and routed to "
        f"another {moved:,} times.{up}{paid}",
        *notes,
    ]


def left_without_replicas(experiment: Experiment, result: SimulationResult) -> list[str]:
    """Pools that are without replicas as the run ends, while requests are unfinished."""
    return left_alone(experiment, result, listed(result))


def listed(result: SimulationResult) -> list[dict[str, Any]]:
    """What happened, in order: when, to which replica, and how many requests it lost."""
    columns = result.changes
    if not columns:
        return []
    rows = zip(*(columns[name].tolist() for name in columns), strict=True)
    changes = []
    for when, place, code, lost, millionths in rows:
        entry = {
            "at_s": when / NS_PER_S,
            "replica": result.replicas[place].name,
            "change": CHANGES[code],
            "lost": lost,
        }
        changes.append(entry if millionths < 0 else {**entry, "factor": millionths / 1_000_000})
    return changes
