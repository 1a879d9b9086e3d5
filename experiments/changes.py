"""Changes of the cluster in a config: which can happen, what `simulate` is given, what came of it.

Whether a replica can change so is told before the run: by the list alone, in order of time. A drain
ends in the run, so that a ``fail`` after it is accepted, and changes nothing if it comes too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

from experiments.schema import Change, Experiment
from sim.changes import Change as Made
from sim.errors import ConfigError
from sim.metrics import NS_PER_S
from sim.records import CHANGES, SimulationResult

Where = Callable[..., str]

_AFTER = MappingProxyType(
    {
        "up": {"fail": "failed", "drain": "draining", "add": "up"},
        "draining": {"fail": "gone", "add": "draining"},
        "failed": {"restore": "up", "add": "failed"},
        "gone": {"add": "gone"},
    }
)
"""Condition of a replica, and what each change that is possible makes of it."""


def events_of(experiment: Experiment) -> list[tuple[int, Made]]:
    """What `sim.event_loop.simulate` takes, in order of time, ties in the order of the list."""
    return [
        (round(each.at_s * NS_PER_S), Made(each.what, each.replica, each.pool == "decode"))
        for _, each in _in_order(experiment)
    ]


def _in_order(experiment: Experiment) -> Iterator[tuple[int, Change]]:
    """(position in the list, change), in order of time."""
    return iter(sorted(enumerate(experiment.events), key=lambda entry: entry[1].at_s))


def _role(change: Change) -> str:
    return change.pool or "colocated"


def check(experiment: Experiment, where: Where) -> None:
    """Refuse what cannot happen to the replicas that there are.

    Raises:
        ConfigError: One line with the entry of the list and what could happen instead.
    """
    pools = experiment.pools
    present = {"colocated": pools.colocated, "prefill": pools.prefill, "decode": pools.decode}
    replicas = {role: ["up"] * pool.replicas for role, pool in present.items() if pool is not None}
    for at, each in _in_order(experiment):
        if _role(each) not in replicas:
            advice = "leave it out" if each.pool else "say which: prefill or decode"
            said = each.pool or "not given"
            raise ConfigError(f"{where('events', at, 'pool')}: {said}: {advice}")
        conditions = replicas[_role(each)]
        if each.replica >= len(conditions):
            raise ConfigError(
                f"{where('events', at, 'replica')}: {each.replica}: there is no such replica then; "
                f"choose from 0 to {len(conditions) - 1}"
            )
        before = conditions[each.replica]
        if each.what not in _AFTER[before]:
            raise ConfigError(
                f"{where('events', at, 'what')}: {each.what}: replica {each.replica} is {before} "
                f"at {each.at_s:g} s; choose one of {', '.join(sorted(_AFTER[before]))}"
            )
        conditions[each.replica] = _AFTER[before][each.what]
        if each.what == "add":
            conditions.append("up")


def report(result: SimulationResult, summary: dict[str, Any]) -> list[str]:
    """Add what happened to the cluster to the summary, and say it in a sentence."""
    columns = result.changes
    if not columns or not len(columns["time_ns"]):
        return []
    rows = zip(*(columns[name].tolist() for name in columns), strict=True)
    changes = [
        {
            "at_s": when / NS_PER_S,
            "replica": result.replicas[place].name,
            "change": CHANGES[code],
            "lost": lost,
        }
        for when, place, code, lost in rows
    ]
    moved = int(result.requests["rerouted"].sum())
    summary["changes"] = {"events": changes, "rerouted": moved}
    counts = {name: sum(x["change"] == name for x in changes) for name in CHANGES}
    told = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in counts.items() if n)
    lost = sum(int(x["lost"]) for x in changes)
    paid = " Each counts, and is paid for, while it is there." if counts["added"] else ""
    return [
        f"events: replicas {told}; requests were lost by a replica {lost:,} times and routed to "
        f"another {moved:,} times.{paid}"
    ]
