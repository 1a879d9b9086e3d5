"""Llumnix: who moves to which replica, by virtual usage and freeness."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sim.errors import ConfigError
from sim.migrator import Migrator, Order, ReplicaLoad
from sim.request import Request

_INFINITE = float("inf")


@dataclass
class Llumnix(Migrator):
    """Requests move from the replicas with the least freeness to those with the most.

    The freeness of a replica is the blocks that are left for each request of its batch: what is
    free above its watermark, less virtual usage, divided by the requests that run. Virtual usage is

    - of the first request that waits, the blocks that it needs (de-fragmentation): it counts as
      one more of the batch, so that others are moved away and it fits;
    - of requests of high priority, together `headroom_blocks` if there are any: others move away
      and leave them a lighter batch;
    - of a draining replica, without end.

    A round pairs replicas with a freeness below `threshold_blocks`, the least first, with replicas
    that are up and above it, the most first; ties go to the lower index. From the source of a pair
    one request moves, if none does already: of the lowest priority, of these the shortest, of these
    the one that joined first; if the target has no room for it, none does. A draining replica has
    no threshold; nor has a target for it.

    Source: Sun et al., OSDI 2024 (Llumnix), section 4.4, algorithm 1; the unit, the watermark, the
    threshold of 3 and the shortest request as in its repository (AlibabaPAI/llumnix,
    ``load_computation.py``: RemainingStepsLoad with defrag, ``migration_policy.py``: Defrag,
    ``local_migration_scheduler.py``). There a source goes on with the next request at once, not in
    the next round; what is at work between two replicas there is one pair at a time, here a target
    may receive from one source of each round.

    Args:
        threshold_blocks: Blocks for each request: sources have less, targets more.
        defragment: The first request that waits is virtual usage; else all that wait are, as in
            the repository without defrag.
        headroom_blocks: Virtual usage of the requests of high priority of a replica, together.
        high_priority_below: Requests with a priority below are of high priority (lower is first).
        narrow_only: Only if the target, with the request, stays above the threshold and not behind
            what the source then has (the repository's Balanced).
    """

    threshold_blocks: float = 3.0
    defragment: bool = True
    headroom_blocks: int = field(default=0, metadata={"minimum": 0})
    high_priority_below: int = field(default=0, metadata={"minimum": -(10**9)})
    narrow_only: bool = False

    def __post_init__(self) -> None:
        if self.headroom_blocks < 0:
            raise ConfigError(f"headroom_blocks: {self.headroom_blocks}: expected at least 0")

    def decide(self, replicas: Sequence[ReplicaLoad], now_ns: int) -> Iterable[Order]:
        """Pairs of the round, one request for each."""
        freeness = {replica: self.freeness(replica) for replica in replicas}
        limit = self.threshold_blocks
        sources = [r for r in replicas if r.draining or freeness[r] < limit]
        sources.sort(key=lambda r: freeness[r])
        targets = [r for r in replicas if r.takes_requests and freeness[r] > limit]
        targets.sort(key=lambda r: -freeness[r])
        pairs = zip(sources, targets, strict=False)
        orders = (self._order(source, target, freeness[source]) for source, target in pairs)
        return [order for order in orders if order is not None]

    def freeness(self, replica: ReplicaLoad) -> float:
        """Blocks left for each request of the batch; infinite where there is none."""
        if replica.draining:
            return -_INFINITE
        running = replica.running
        return self._freeness(replica, replica.free_blocks, running)

    def _freeness(self, replica: ReplicaLoad, free: int, running: Sequence[Request]) -> float:
        waiting = replica.waiting
        free -= replica.head_blocks if self.defragment else replica.waiting_blocks
        if any(request.priority < self.high_priority_below for request in running):
            free -= self.headroom_blocks
        batch = len(running) + (min(waiting, 1) if self.defragment else waiting)
        return free / batch if batch else _INFINITE

    def _order(self, source: ReplicaLoad, target: ReplicaLoad, before: float) -> Order | None:
        if source.leaving:
            return None
        able = [request for request in source.movable if target.could_run(request)]
        if not able:
            return None
        request = min(able, key=lambda r: (-r.priority, r.known_tokens))
        if target.blocks_of(request) > target.free_blocks:
            return None
        if self.narrow_only and not source.draining and not self._narrows(source, target, request):
            return None
        return Order(request, source, target)

    def _narrows(self, source: ReplicaLoad, target: ReplicaLoad, request: Request) -> bool:
        stay = [r for r in source.running if r is not request]
        left = self._freeness(source, source.free_blocks + source.blocks_of(request), stay)
        more = [*target.running, request]
        there = self._freeness(target, target.free_blocks - target.blocks_of(request), more)
        return there >= max(left, self.threshold_blocks)


@dataclass
class Evacuation(Migrator):
    """Requests leave draining replicas, one at a time from each, so that these are gone sooner.

    The longest leaves first (of these the one that joined first): it has the most to lose by
    waiting. It goes to the replica that is up with the most free blocks (ties to the lower index);
    if it does not fit there, the next one is tried. Nobody else moves.
    """

    def decide(self, replicas: Sequence[ReplicaLoad], now_ns: int) -> Iterable[Order]:
        """One request of each draining replica from which none is on the move."""
        targets = [replica for replica in replicas if replica.takes_requests]
        for source in replicas:
            if source.draining and targets and not source.leaving:
                target = max(targets, key=lambda r: (r.free_blocks, -r.index))
                yield from self._leaves(source, target)

    @staticmethod
    def _leaves(source: ReplicaLoad, target: ReplicaLoad) -> Iterable[Order]:
        for request in sorted(source.movable, key=lambda r: -r.known_tokens):
            if target.could_run(request) and target.blocks_of(request) <= target.free_blocks:
                yield Order(request, source, target)
                return
