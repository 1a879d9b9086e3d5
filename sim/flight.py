"""A decided batch under way, and the log of single decisions that can be made of it."""

from __future__ import annotations

from collections.abc import Sequence

from sim.batch import ScheduledBatch
from sim.policy import ReplicaState
from sim.records import Decision
from sim.request import Request
from sim.step_time import StepWork


class Flight:
    """A batch under way: one iteration, or a run of iterations with the same decision.

    Attributes:
        batch: The decision.
        start_ns: When it began.
        ends_ns: End of each iteration; cut short when something reaches the replica.
        chunks: Prefill pieces (request, tokens), in batch order.
        ticks: Whether the decode group takes part.
        work: What the first iteration computes, padding included.
        prefill_tokens: Real prompt tokens computed.
        decodes: Real decodes in each iteration.
        applied: Iterations whose effect has been applied.
        notes: What the log of decisions needs; None if there is none.
    """

    __slots__ = (
        "applied",
        "batch",
        "chunks",
        "decodes",
        "ends_ns",
        "notes",
        "prefill_tokens",
        "start_ns",
        "ticks",
        "work",
    )

    def __init__(
        self,
        batch: ScheduledBatch,
        start_ns: int,
        chunks: Sequence[tuple[Request, int]],
        decodes: int,
        work: StepWork,
        prefill_tokens: int,
    ) -> None:
        self.batch = batch
        self.start_ns = start_ns
        self.ends_ns: list[int] = []
        self.chunks = chunks
        self.ticks = decodes > 0
        self.work = work
        self.prefill_tokens = prefill_tokens
        self.decodes = decodes
        self.applied = 0
        self.notes: DecisionNotes | None = None


class DecisionNotes:
    """Who decodes in a flight and how many blocks stay free in each of its iterations."""

    __slots__ = ("free_after", "members", "preempted")

    def __init__(self, flight: Flight, state: ReplicaState) -> None:
        group, free = state.group, state.kv.free_blocks
        self.preempted = [request.index for request in state.preempted]
        self.members: list[int] = []
        self.free_after = [free]
        if flight.ticks:
            self.members = [r.index for r in state.running if r.group is group]
            first = group.blocks_needed()
            later = range(2, len(flight.ends_ns) + 1)
            self.free_after += [free - (group.blocks_needed(i) - first) for i in later]

    def decisions(self, flight: Flight, iterations: int, replica: int) -> list[Decision]:
        """One entry for each of the first iterations of the flight."""
        chunks = {request.index: tokens for request, tokens in flight.chunks}
        tokens = dict.fromkeys(self.members, 1) | chunks
        start, gone, entries = flight.start_ns, self.preempted, []
        for end, free in zip(flight.ends_ns[:iterations], self.free_after, strict=False):
            entries.append(Decision(replica, start, end, dict(tokens), gone, free))
            start, gone = end, []
        return entries
