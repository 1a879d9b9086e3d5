"""Where a run on a changing cluster ends although steps go on: rule 84.

Once nothing can come from outside any more, the state at the end of each instant (rule 62) is
compared with those at the ends of earlier ones; at the first that returns the run ends there, and
whoever is left is ``unfinished``. For from there on everything would repeat itself for ever: a
``vllm-v1`` prefill replica whose blocks are held for a decode pool that is down computes, preempts
and computes again.

- *From outside* come arrivals, those caused by ends (52) included, cancellations of requests that
  have not ended, and changes of the cluster: those of the list, drawn ones (`sim.hazards`) for as
  long as any may be drawn, and weights that are loading. Where an autoscaler looks at a pool, or
  migrations are decided, that is always to come.
- *The state* is what decides the rest of the run: of each replica its condition, free blocks,
  queues in order, what each request has emitted, computed and holds, what is in flight and for how
  long, its pace, its timer and what its cache holds in which order; who waits for a replica, or
  between the pools; what is left of each transfer. Instants are counted from now. Counters of what
  was done are no part of it.
- Steps at whose end a token comes lead to no earlier state (nor do those at whose end a prefill is
  complete, unless its KV may be given up again: `sim.holds`). So fast-forward goes on with steps in
  which somebody decodes; all others are made one by one from the first such instant on.
- *Not compared* are radix caches (``sglang``), orders that change as time
  passes (``mlfq``, ``vtc``) and step times that depend on the iteration (noise). There, and if no
  state has returned after `MOST_STATES` instants (replicas that repeat themselves with unequal
  periods are together where they were only after a common multiple), the run ends when a replica
  has made more steps without a token than there are tokens (`ReplicaAccounts`): whoever is left is
  the same, with the same tokens, but the instant and the counts of steps are later ones.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b
from typing import TYPE_CHECKING

from sim.clock import looks_to_come, now_ns

if TYPE_CHECKING:
    from sim.cluster import LiveCluster

MOST_STATES = 100_000
"""Instants that are compared: a few seconds of computing."""

_DIGEST_BYTES = 16
"""Of states only digests are kept: of 10^5, two are taken for one with a chance of 10^-29."""


class Standstill:
    """The states of one run since nothing comes from outside."""

    def __init__(self, live: LiveCluster) -> None:
        self._live = live
        self._seen: set[bytes] = set()
        self._steps = False
        self._judged: list[bool] = []  # of each replica, whether its states can be compared

    @property
    def is_looked_for(self) -> bool:
        """Whether states are being compared, so that the run ends where one returns."""
        return 0 < len(self._seen) < MOST_STATES

    def reached(self) -> bool:
        """Whether the state at the end of this instant is that of an earlier one."""
        live = self._live
        if not live.changes.closed or not live.live or len(self._seen) >= MOST_STATES:
            return False
        if not self._begun():
            return False  # this very instant goes on
        held = live.between is not None and live.between.holds is not None
        flights = (flight for replica in live.replicas for flight in replica.in_flight)
        if any(flight.ticks if held else flight.brings_on for flight in flights):
            return False
        if not self._comparable:
            return False
        digest = blake2b(repr(self._state()).encode(), digest_size=_DIGEST_BYTES).digest()
        if digest in self._seen:
            return True
        self._seen.add(digest)
        return False

    def _begun(self) -> bool:
        """Have prefills stepped through from now on; False if that made a replica pass again."""
        if self._steps:
            return True
        self._steps = True
        live = self._live
        for replica in live.replicas:
            replica.step_prefills()
        live.changes.on_join.append(lambda replica: replica.step_prefills())
        return live.env.peek() > live.env.now

    @property
    def _comparable(self) -> bool:
        live = self._live
        if live.migrations is not None or looks_to_come(live.env):
            return False
        for replica in live.replicas[len(self._judged) :]:
            self._judged.append(replica.comparable)
        return all(self._judged)

    def _state(self) -> Hashable:
        live = self._live
        fetching = live.fetches is not None and live.fetches.under_way
        return (
            tuple(replica.standing() for replica in live.replicas),
            tuple(life.arrival.index for life in live.changes.at_router),
            None if live.between is None else live.between.standing(),
            now_ns(live.env) if fetching else None,
        )
