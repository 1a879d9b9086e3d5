"""When replicas were down after failures, and whether that can be shown to have cost time.

Rule. An *outage* of a pool lasts from the failure of a replica until that one is up again, or
another one comes up in its pool (a replacement; of several outages the oldest ends). A failure is
named as what lengthened a stretch of a request's time only where

1. failures of replicas took at least a fifth of it themselves: waiting for a replica to come up,
   steps that were lost, and computing again what a replica lost (`FAILURES`), while or after a
   replica was down in that very stretch; or
2. its longest phase is waiting in a queue (`_QUEUED`, the pool that takes requests) or for the
   decode side (`_FOR_DECODES`), and at least a fifth of the stretch was spent so while a replica of
   that pool was down. A request that no failure hit queues first, after its prefix was fetched: its
   wait is a span, less the fetch. Of any other wait the least is taken that may overlap the outage:
   the outage within the stretch, less all of it that was spent otherwise.

What a backlog costs after the replica is up again is not told: nothing here shows what it is of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from experiments.cluster import POOL_NAMES
from sim.metrics import Ints, ReplicaFacts
from sim.records import CHANGES

FAILURES = ("queue_no_replica", "lost", "reprefill_failure")
"""Phases that are due to failures, where there was one."""
_QUEUED = frozenset(
    ("queue_step", "queue_seat", "queue_budget", "queue_memory", "queue_batch", "queue_other")
)
_FOR_DECODES = frozenset(("queue_held", "transfer_queue", "loaded"))
_SUBSTANTIAL = 5
"""A fifth."""
_EVER = 1 << 62


class Outage(NamedTuple):
    """A replica is down.

    Attributes:
        decodes: Its pool is one of decodes alone.
        begin_ns: When it failed.
        end_ns: When it, or its replacement, was up; `_EVER` if none ever was.
    """

    decodes: bool
    begin_ns: int
    end_ns: int


def outages_of(
    config: Mapping[str, Any], changes: Mapping[str, Ints], replicas: Sequence[ReplicaFacts]
) -> tuple[Outage, ...]:
    """All outages of a run, in the order in which they ended; those that did not, last.

    Args:
        config: The resolved config, as `Experiment` is dumped.
        changes: Columns `sim.records.CHANGE_COLUMNS`; they may be absent, as in old bundles.
        replicas: In the order of their indices.
    """
    pools = config["pools"]
    at_once = {
        name: _up_at_once(pools[role]) for role, name in POOL_NAMES.items() if pools.get(role)
    }
    down: dict[str, dict[int, int]] = {}  # of each pool: replica, since when
    found = []
    columns = [changes.get(name, ()) for name in ("time_ns", "replica", "change")]
    for at_ns, replica, code in zip(*columns, strict=True):
        change, pool = CHANGES[int(code)], replicas[int(replica)].pool
        of_pool = down.setdefault(pool, {})
        if change == "failed":
            of_pool.setdefault(int(replica), int(at_ns))
        elif change in ("up", "changed_role") or change in at_once.get(pool, ()):
            ended = int(replica) if int(replica) in of_pool else next(iter(of_pool), None)
            if ended is not None:
                found.append(Outage(pool == "decode", of_pool.pop(ended), int(at_ns)))
    for pool, of_pool in down.items():
        found += [Outage(pool == "decode", since_ns, _EVER) for since_ns in of_pool.values()]
    return tuple(found)


def _up_at_once(pool: Mapping[str, Any]) -> tuple[str, ...]:
    """The changes after which a replica is up at once, as nothing has to be loaded."""
    restart = pool.get("restart", {})
    if restart.get("load_s") or restart.get("weights_bytes_per_s") is not None:
        return ()
    return ("restored",) if pool.get("autoscale") else ("restored", "added")


def taken_by_failures(
    ns: Mapping[str, int], outages: Sequence[Outage], begin_ns: int, end_ns: int
) -> int:
    """Time of a stretch that failures of replicas took themselves, ns.

    A step may be lost as its client left, too: without any other of `FAILURES`, it was.

    Args:
        ns: Of each phase.
        outages: Of the run.
        begin_ns: Of the stretch.
        end_ns: Of it.
    """
    failed = any(each.begin_ns < end_ns and each.end_ns >= begin_ns for each in outages)
    if not failed or not (ns.keys() & {"queue_no_replica", "reprefill_failure"}):
        return 0
    return sum(ns.get(phase, 0) for phase in FAILURES)


def mattered(
    ns: Mapping[str, int],
    outages: Sequence[Outage],
    begin_ns: int,
    end_ns: int,
    *,
    from_arrival: bool,
    pools: bool,
) -> bool:
    """Whether a failure can be shown to have lengthened a stretch; see the module's rule.

    Args:
        ns: Of each phase, together the stretch.
        outages: Of the run.
        begin_ns: Of the stretch.
        end_ns: Of it.
        from_arrival: It begins as the request arrives.
        pools: Prefills and decodes have pools of their own.
    """
    total = end_ns - begin_ns
    if not outages or total <= 0:
        return False
    own = taken_by_failures(ns, outages, begin_ns, end_ns)
    if own * _SUBSTANTIAL >= total:
        return True
    longest = max(ns, key=lambda name: ns[name])
    names = next((kind for kind in (_QUEUED, _FOR_DECODES) if longest in kind), frozenset[str]())
    waited = sum(ns.get(name, 0) for name in names)
    slack = total - waited
    if from_arrival and not own and names is _QUEUED:
        slack = ns.get("fetch", 0)
        end_ns = begin_ns + slack + waited
    decodes = pools and names is _FOR_DECODES
    spans = [(o.begin_ns, o.end_ns) for o in outages if o.decodes == decodes]
    return (_covered(spans, begin_ns, end_ns) - slack) * _SUBSTANTIAL >= total and bool(names)


def _covered(spans: Sequence[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """How much of a span others cover together, ns."""
    covered, until = 0, begin_ns
    for begin, end in sorted(spans):
        covered += max(0, min(end, end_ns) - max(begin, until))
        until = max(until, min(end, end_ns))
    return covered
