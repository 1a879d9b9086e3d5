"""Migrators for tests: one move at a given round, moves all the time, and none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sim.migrator import Migrator, Order, ReplicaLoad


@dataclass
class Never(Migrator):
    """Looks at everything there is to see, and moves nobody."""

    def decide(self, replicas: Sequence[ReplicaLoad], now_ns: int) -> list[Order]:
        for replica in replicas:
            assert all(replica.could_run(request) for request in replica.movable)
            assert replica.leaving + replica.coming == 0
            assert replica.head_blocks <= replica.waiting_blocks or not replica.waiting
            assert replica.free_blocks <= replica.total_blocks
        return []


@dataclass
class Once(Migrator):
    """Moves each of some requests once, in the first round in which it can, to the next replica.

    Args:
        moves: (instant in ns, index of the request): not before then.
    """

    moves: tuple[tuple[int, int], ...]
    done: set[int] = field(default_factory=set)

    def decide(self, replicas: Sequence[ReplicaLoad], now_ns: int) -> Iterator[Order]:
        due = {index for at_ns, index in self.moves if now_ns >= at_ns} - self.done
        for at, source in enumerate(replicas):
            others = [r for r in (*replicas[at + 1 :], *replicas[:at]) if r.takes_requests]
            for request in source.movable if others else ():
                if request.index in due:
                    self.done.add(request.index)
                    yield Order(request, source, others[0])


@dataclass
class Restless(Migrator):
    """In each round moves whom it can, as a hash of the instant says."""

    seed: int = 0

    def decide(self, replicas: Sequence[ReplicaLoad], now_ns: int) -> Iterator[Order]:
        for source in replicas:
            targets = [r for r in replicas if r.takes_requests and r is not source]
            for request in source.movable:
                dice = hash((self.seed, now_ns, request.index)) % 7
                able = [target for target in targets if target.could_run(request)]
                if able and dice < 3:
                    yield Order(request, source, able[dice % len(able)])
