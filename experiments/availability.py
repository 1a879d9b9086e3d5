"""How much of their time replicas were up, and how many were there at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.schema import Experiment, Pool
from sim.metrics import NS_PER_S
from sim.records import UNFINISHED, SimulationResult
from sim.request import NEVER

_SERVES = ("up", "taken_back", "draining", "changed_role")
_DOWN = ("failed", "called_off")


def availability(
    experiment: Experiment,
    result: SimulationResult,
    changes: Sequence[dict[str, Any]],
    end_ns: int,
) -> float | None:
    """Share of the replicas' time, from joining to leaving or the end, in which they could serve.

    A replica serves while it is up or draining; it does not while it has failed, or is starting: a
    machine that is ordered, or weights that are loaded. A pool of which no replica is there at all
    counts as one that does not serve (`nobody_there_ns`). None where no time has passed.

    Args:
        experiment: That was run.
        result: What came out.
        changes: As `experiments.changes.listed` gives them, none of them later than the end.
        end_ns: When the last request has ended.
    """
    there_ns, up_ns = nobody_there_ns(experiment, result, end_ns), 0
    for replica in result.replicas:
        left_ns = end_ns if replica.left_ns == NEVER else min(end_ns, replica.left_ns)
        mine = [each for each in changes if each["replica"] == replica.name]
        loads = _loads(_pool(experiment, replica.pool))
        since_ns, up = replica.joined_ns, not (mine and mine[0]["change"] == "added")
        for each in mine:
            now_ns = round(each["at_s"] * NS_PER_S)
            up_ns += (now_ns - since_ns) * up
            since_ns, up = now_ns, _is_up(each["change"], up, loads=loads)
        up_ns += max(0, left_ns - since_ns) * up
        there_ns += max(0, left_ns - replica.joined_ns)
    return up_ns / there_ns if there_ns else None


def nobody_there_ns(experiment: Experiment, result: SimulationResult, end_ns: int) -> int:
    """Time in which a pool had no replica at all, all having left, added over the pools.

    A pool that scales by itself is left out: at zero it is as small as it is meant to be.
    """
    total_ns = 0
    for name in dict.fromkeys(replica.pool for replica in result.replicas):
        if _pool(experiment, name).autoscale is not None:
            continue
        until_ns = 0
        for replica in sorted(result.replicas, key=lambda each: each.joined_ns):
            if replica.pool == name:
                total_ns += max(0, min(end_ns, replica.joined_ns) - until_ns)
                left_ns = end_ns if replica.left_ns == NEVER else replica.left_ns
                until_ns = max(until_ns, left_ns)
        total_ns += max(0, end_ns - until_ns)
    return total_ns


def left_alone(
    experiment: Experiment, result: SimulationResult, changes: Sequence[dict[str, Any]]
) -> list[str]:
    """Pools without a replica that takes requests as the run ends, while some are unfinished.

    Args:
        experiment: That was run.
        result: What came out.
        changes: As `experiments.changes.listed` gives them.
    """
    left = int((result.requests["state"] == UNFINISHED).sum())
    if not left or not changes:
        return []
    notes = []
    for name in dict.fromkeys(replica.pool for replica in result.replicas):
        last = _last_to_leave(experiment, result, changes, name)
        if last is not None:
            said = last["change"].replace("_", " ")
            notes.append(
                f"pool {name} has had no replica that takes requests since {last['at_s']:.4g} s "
                f"({last['replica']} {said}): {left:,} requests were left unfinished."
            )
    return notes


def _last_to_leave(
    experiment: Experiment, result: SimulationResult, changes: Sequence[dict[str, Any]], name: str
) -> dict[str, Any] | None:
    """The change that left a pool without replicas up to the end; None if it has any."""
    loads = _loads(_pool(experiment, name))
    last = None
    for replica in result.replicas:
        if replica.pool != name:
            continue
        mine = [each for each in changes if each["replica"] == replica.name]
        up = replica.left_ns == NEVER and not (mine and mine[0]["change"] == "added")
        for each in mine:
            before = up
            up = each["change"] != "draining" and _is_up(each["change"], up, loads=loads)
            leaves = (before or each["change"] == "draining") and not up
            if leaves and (last is None or each["at_s"] >= last["at_s"]):
                last = each
        if up and replica.left_ns == NEVER:
            return None
    return last


def _is_up(change: str, before: bool, *, loads: dict[str, bool]) -> bool:
    if change in loads:
        return not loads[change]
    if change in _DOWN:
        return False
    return True if change in _SERVES else before


def _loads(pool: Pool) -> dict[str, bool]:
    """Whether a replica that is restored, or added, has to start before it is up."""
    restart = pool.restart
    weights = bool(restart.load_s) or restart.weights_bytes_per_s is not None
    return {"restored": weights, "added": weights or pool.autoscale is not None}


def _pool(experiment: Experiment, name: str) -> Pool:
    pools = experiment.pools
    found = {"prefill": pools.prefill, "decode": pools.decode}.get(name, pools.colocated)
    assert found is not None
    return found


def over_the_limit(experiment: Experiment, result: SimulationResult) -> list[str]:
    """Pools of which more replicas were there at once than `max_replicas`, one sentence each.

    The limit is on replicas that are up or starting: those that drain and those that have failed
    are there, and paid for, besides (`sim.autoscale`).
    """
    notes = []
    for name in dict.fromkeys(replica.pool for replica in result.replicas):
        scales = _pool(experiment, name).autoscale
        if scales is None:
            continue
        spans = [(x.joined_ns, x.left_ns) for x in result.replicas if x.pool == name]
        steps = [(joined, 1) for joined, _ in spans]
        steps += [(left, -1) for _, left in spans if left != NEVER]
        number = most = 0
        for _, by in sorted(steps):
            number += by
            most = max(most, number)
        if most > scales.max_replicas:
            notes.append(
                f"autoscale: pool {name} had up to {most} replicas at once, all paid for: "
                f"max_replicas {scales.max_replicas} limits those that are up or starting, and "
                "those that drain or have failed come on top."
            )
    return notes


def too_late(experiment: Experiment, result: SimulationResult) -> list[str]:
    """Events after the last request had ended, which change nothing that is measured."""
    ends = result.requests["end_ns"]
    last_ns = int(ends.max()) if len(ends) else 0
    if not experiment.events or (ends == NEVER).any():
        return []
    late = [each for each in experiment.events if round(each.at_s * NS_PER_S) > last_ns]
    if not late:
        return []
    first = min(each.at_s for each in late)
    return [
        f"events: {len(late)} of {len(experiment.events)} come after the last request has ended "
        f"at {last_ns / NS_PER_S:.4g} s, the first of them at {first:g} s, and change nothing."
    ]
