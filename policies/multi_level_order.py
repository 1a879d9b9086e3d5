"""`mlfq`: FastServe's skip-join multi-level feedback queue, with preemption."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sim.errors import ConfigError
from sim.policy import ReplicaState
from sim.queue import ChangingOrder, WaitingQueue
from sim.request import Request

_NANO = 10**9


class _Job:
    """Where a request stands.

    Attributes:
        start: Level at which it joined, or was promoted to.
        served_ns: Time of iterations in which it took part since then.
        waits: Number of its present wait, by which a promotion knows that it still waits.
    """

    __slots__ = ("served_ns", "start", "waits")

    def __init__(self, start: int) -> None:
        self.start = start
        self.served_ns = 0
        self.waits = 0


@dataclass
class MultiLevelQueue(ChangingOrder):
    """FastServe's skip-join MLFQ: short service first, whoever has had more is demoted.

    There are `levels` levels, 0 the highest; level i has a quantum of q_i = quantum x ratio^i ns,
    the last has no bound.

    - *Skip-join.* A request that joins the queue for the first time starts at the highest level
      whose quantum is at least the length of its first iteration: that of a step which prefills its
      known tokens alone, from the start, by the replica's step-time model; at the last level if
      there is none. Levels above are skipped.
    - *Demotion.* Its service is the time of the iterations in which it took part, shared or not,
      prefill pieces and decodes alike, counted when they end. With start s it is at the last level
      l for which its service is at least q_s + ... + q_(l-1): when a quantum is used up it goes on
      one level lower, at that very boundary, and what it had beyond the quantum counts there.
    - *Order.* Waiting requests stand by (level, order of joining this queue), preempted ones among
      the others, at the back of their level.
    - *Starvation.* A request that has waited `starvation_s` since it last joined the queue, or was
      last due, is due: it moves to the back of level 0, with service 0, at the first pass or
      arrival from then on, the earliest due first, ties in order of arrival. 0: never.
    - *Preemption* (under `vllm-v0` without swap, `sarathi` and `vllm-v1`). Before a policy's pass,
      for the waiting requests in order: one that finds no free seat, or fewer free blocks than its
      known tokens need beyond the watermark and those before it in the queue, takes those of
      running requests of lower levels whose prefill is complete: the lowest level first, in it the
      one that joined running last, until it fits. If it would not fit even so, nobody goes for it,
      and the walk ends; it also ends where no such victim is left. Victims are preempted as for
      want of memory. If anybody went, that was a pass which preempted and ran nothing (rule 2): the
      next one, at the same instant, may admit. Requests in batches under way are no victims. (A
      prefill under way is none since all of it would be lost: so everyone emits a token each time
      it is admitted, and no two can keep each other from it.)
    - For want of memory the last of running is the victim (rule 50).

    Under `static`, `orca`, and with swap, the queue is in this order and nobody is preempted by it.
    On a decode replica a request whose KV was loaded joins running at level 0.

    Source: Wu et al., "Fast Distributed Inference Serving for Large Language Models" (FastServe),
    arXiv 2305.05920 v3, section 4 (skip-join MLFQ), NSDI 2026. Differences: there the KV of victims
    is kept in host memory and brought back ahead of time, here it is computed again; the number of
    levels, quantum, ratio and limit of waiting are free there, and the defaults here are ours.

    What that costs: FastServe moves n tokens of KV over the host link, mostly while other steps
    run; here the victim's next step prefills its n known tokens again, as compute that nobody else
    gets. A quantum is used up by that, too, as it counts as service. So a limit of waiting below
    the time that a backlog lasts has many promoted requests each preempt another and be preempted
    after a quantum or two: most of the work is then done again, and all are late. That is why
    `starvation_s` is 0 here; give it where queues are short, several times the wait usual there.

    Args:
        levels: Number of levels.
        quantum_s: Quantum of level 0, seconds.
        ratio: Quantum of a level in units of that of the level above.
        starvation_s: Longest wait before a request is promoted; 0: no limit.
    """

    levels: int = field(default=6, metadata={"maximum": 64})
    quantum_s: float = field(default=0.05, metadata={"maximum": 1e6})
    ratio: int = field(default=2, metadata={"maximum": 1000})
    starvation_s: float = 0.0

    preempted_first = False
    preempts = True
    times_service = True
    _jobs: dict[Request, _Job] = field(default_factory=dict, init=False, repr=False)
    _due: list[tuple[int, int, int, Request]] = field(default_factory=list, init=False, repr=False)
    _now_ns: int = field(default=0, init=False, repr=False)
    _alone_ns: Callable[[int], int] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._quantum_ns = round(self.quantum_s * _NANO)
        self._starvation_ns = round(self.starvation_s * _NANO)
        if self._quantum_ns < 1:
            raise ConfigError(f"quantum_s: {self.quantum_s:g}: expected at least 1e-9")

    def begin(self, alone_ns: Callable[[int], int]) -> None:
        """Nobody is here yet."""
        self._alone_ns = alone_ns

    # --- levels

    def level(self, request: Request) -> int:
        """The level of a request now."""
        job = self._jobs[request]
        level, bound = job.start, self._quantum(job.start)
        while level < self.levels - 1 and job.served_ns >= bound:
            level += 1
            bound += self._quantum(level)
        return level

    def _quantum(self, level: int) -> int:
        return self._quantum_ns * int(self.ratio**level)

    def key(self, request: Request) -> float:
        """Its level; a request that joins for the first time gets one."""
        job = self._jobs.get(request)
        if job is None:
            job = self._jobs[request] = _Job(self._entry_level(request))
        job.waits += 1
        if self._starvation_ns:
            due_ns = self._now_ns + self._starvation_ns
            heapq.heappush(self._due, (due_ns, request.order, job.waits, request))
        return self.level(request)

    def _entry_level(self, request: Request) -> int:
        assert self._alone_ns is not None
        first_ns = self._alone_ns(request.known_tokens)
        fits = (i for i in range(self.levels - 1) if self._quantum(i) >= first_ns)
        return next(fits, self.levels - 1)

    # --- what happens

    def refresh(self, queue: WaitingQueue, now_ns: int) -> None:
        """Promote those who have waited for too long."""
        while self._due and self._due[0][0] <= now_ns:
            self._now_ns, _, wait, request = heapq.heappop(self._due)  # its next wait begins then
            job = self._jobs.get(request)
            if job is not None and job.waits == wait:
                job.start = job.served_ns = 0
                queue.move_back(request)
        self._now_ns = now_ns

    def admitted(self, request: Request) -> None:
        """It waits no more."""
        self._jobs[request].waits += 1

    def loaded(self, request: Request) -> None:
        """It runs without having waited here."""
        self._jobs.setdefault(request, _Job(0))

    def served(self, requests: Iterable[Request], length_ns: int) -> None:
        """Count the time of iterations."""
        for request in requests:
            job = self._jobs.get(request)
            if job is not None:
                job.served_ns += length_ns

    def gone(self, request: Request) -> None:
        """Forget it."""
        self._jobs.pop(request, None)

    # --- victims

    def _lowness(self, request: Request) -> tuple[int, int]:
        return self.level(request), request.seat

    def make_way(self, state: ReplicaState, seats: int) -> bool:
        """Preempt lower levels for those who wait on higher ones."""
        begun = [request for request in state.running if request.decoding]
        worst = max(map(self.level, begun), default=0)
        if state.host is not None or worst <= self.level(state.waiting[0]):
            return False
        lower = sorted(begun, key=self._lowness)  # the first victim at the end
        kv, room, gone = state.kv, seats - state.num_running, False
        free = kv.free_blocks - state.watermark_blocks
        for request in list(state.waiting):
            need, level = kv.blocks_for(request.known_tokens), self.level(request)
            if not lower or self.level(lower[-1]) <= level:
                break
            below = [r for r in lower if self.level(r) > level]
            if free + sum(map(kv.held, below)) < need:
                break
            while room < 1 or free < need:
                if not lower or self.level(lower[-1]) <= level:
                    return gone
                before = kv.free_blocks
                state.preempt(lower.pop())
                free += kv.free_blocks - before
                room, gone = room + 1, True
            room, free = room - 1, free - need
        return gone
