"""A decided batch under way, and the log of single decisions that can be made of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import pairwise

from sim.batch import ScheduledBatch
from sim.decode_group import DecodeGroup
from sim.kvcache import BlockPool, CachingPool
from sim.policy import ReplicaState
from sim.records import Decision
from sim.request import Request
from sim.step_time import ReplicaStepTime, StepTimeModel, StepWork


class Flight:
    """A batch under way: one iteration, or a run of iterations with the same decision.

    Attributes:
        batch: The decision.
        start_ns: When it began.
        ends_ns: End of each iteration; cut short when something reaches the replica.
        chunks: Prefill pieces (request, tokens), in batch order.
        ticks: Whether the decode group takes part.
        work: What the first iteration computes, padding included.
        prefill_tokens: Real prompt tokens computed in each iteration.
        decodes: Real decodes in each iteration.
        group: The decoding requests that take part if it ticks.
        pieces: (tokens, tokens before) of each chunk in the first iteration, without padding.
        context_tokens: Sum of the contexts of the decodes in the first iteration, without padding.
        spread: How unequal these are (`StepWork.context_spread`), where the model asks for it.
        model: The step times that it was launched with.
        number: Of its first iteration.
        copied_ns: Of its length, what copies to and from the host add.
        idle_ns: Time in which it was in no stage's step, the next one not being free.
        billed: Iterations in the ledger (`sim.ledger`).
        applied: Iterations whose effect has been applied.
        begun: The first iteration not applied has started, and its blocks are taken.
        ahead_blocks: Blocks that were taken, when last synced, for the chunk then in progress.
        goes_on: Requests whose chunk in it is not their last, where the next one does not wait for
            its end (`sim.chunked_pipeline`).
        given_up: Requests in it whose clients gave up meanwhile: they leave when it ends.
        notes: What the log of decisions needs; None if there is none.
    """

    __slots__ = (
        "ahead_blocks",
        "applied",
        "batch",
        "begun",
        "billed",
        "chunks",
        "context_tokens",
        "copied_ns",
        "decodes",
        "ends_ns",
        "given_up",
        "goes_on",
        "group",
        "idle_ns",
        "model",
        "notes",
        "number",
        "pieces",
        "prefill_tokens",
        "spread",
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
        group: DecodeGroup,
        pieces: Sequence[tuple[int, int]] = (),
        context_tokens: int = 0,
        spread: int = 0,
    ) -> None:
        self.batch = batch
        self.start_ns = start_ns
        self.ends_ns: list[int] = []
        self.chunks = chunks
        self.ticks = decodes > 0
        self.work = work
        self.prefill_tokens = prefill_tokens
        self.decodes = decodes
        self.group = group
        self.pieces, self.context_tokens, self.spread = pieces, context_tokens, spread
        self.model: StepTimeModel | None = None
        self.number = self.copied_ns = self.idle_ns = self.billed = 0
        self.applied = self.ahead_blocks = 0
        self.begun = True
        self.notes: DecisionNotes | None = None
        self.given_up: tuple[Request, ...] = ()
        self.goes_on: tuple[Request, ...] = ()

    def carries(self, request: Request) -> bool:
        """Whether it computes tokens of the request."""
        if self.ticks and request.group is self.group:
            return True
        return any(other is request for other, _ in self.chunks)

    @property
    def cargo(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """(request, tokens) of its chunks, and the requests that it computes in vain."""
        chunks = tuple((request.index, tokens) for request, tokens in self.chunks)
        return chunks, tuple(request.index for request in self.given_up)

    @property
    def brings_on(self) -> bool:
        """Whether its end brings a request forward: it emits a token, or completes a prefill."""
        return self.ticks or any(
            request.computed_then + tokens >= request.target_tokens
            for request, tokens in self.chunks
            if request not in self.goes_on
        )

    def chunk_steps_ns(self, model: StepTimeModel, n: int, first_iteration: int) -> list[int]:
        """Lengths of `n` iterations that compute the next chunks of the same prompts, ns."""
        numbers = range(first_iteration, first_iteration + n)
        return [model.step_ns(work, i) for work, i in zip(self._works(n), numbers, strict=True)]

    def works(self, first: int, n: int) -> Iterator[StepWork]:
        """What each of `n` iterations from number `first` on computes, padding included."""
        if self.chunks:
            works = list(self._works(first + n)) if self.batch.padding is None else [self.work]
            yield from works[first:]
            return
        for i in range(first, first + n):
            work = copy.copy(self.work)
            work.context_tokens += i * work.attending_rows
            yield work

    def _works(self, n: int) -> Iterator[StepWork]:
        """What each of `n` iterations with prefill chunks computes."""
        work = self.work
        for i in range(n):
            chunks = [(tokens, before + i * tokens) for tokens, before in work.chunks]
            context = work.context_tokens + i * self.decodes
            yield StepWork(chunks, self.decodes, context, context_spread=work.context_spread)

    def note(self, model: ReplicaStepTime, first_iteration: int, n: int) -> None:
        """Tell a model of the first `n` iterations, which took place."""
        ends, start = self.ends_ns, self.start_ns
        if not self.chunks or n == 1:
            model.note(self.work, first_iteration, start, ends if n == len(ends) else ends[:n])
            return
        for i, work in enumerate(self._works(n)):
            model.note(work, first_iteration + i, start, ends[i : i + 1])
            start = ends[i]

    def blocks_needed(self, n: int, kv: BlockPool) -> int:
        """Blocks that the first `n` iterations take, beyond those that the chunks hold already."""
        blocks = self.group.blocks_needed(n) if self.ticks else 0
        for request, tokens in self.chunks:
            stored = request.computed_then + n * tokens
            blocks += max(0, kv.blocks_for(stored) - request.held_blocks)
        return blocks

    def advance_chunks(self, iterations: int, kv: BlockPool, *, had: bool, more: bool) -> None:
        """Apply chunks that are over; take the blocks of the one in progress if there is one.

        Args:
            iterations: How many are over.
            kv: The memory that they are in.
            had: Whether the first of them, or the one in progress, has its blocks already.
            more: Whether one is in progress after them.
        """
        for request, tokens in self.chunks:
            request.computed_then += tokens * iterations
            if iterations:
                kv.allocate(request, request.computed_then)
            if iterations or more > had:
                before = request.held_blocks
                if more:
                    kv.allocate(request, request.computed_then + tokens)
                self.ahead_blocks = request.held_blocks - before
            elif had > more:  # cut where it was last synced: that chunk never starts
                kv.give_back(request, self.ahead_blocks)
                self.ahead_blocks = 0


class DecisionNotes:
    """Who decodes in a flight, and what becomes of the blocks in each of its iterations."""

    __slots__ = ("cached", "free_after", "lost", "members", "preempted")

    def __init__(self, flight: Flight, state: ReplicaState, lost_blocks: int = 0) -> None:
        group, free = flight.group, state.kv.free_blocks
        self.preempted = [request.index for request in state.preempted]
        self.members: list[int] = []
        if flight.ticks:
            self.members = [r.index for r in state.running if r.group is group]
        first = flight.blocks_needed(1, state.kv)
        iterations = range(1, len(flight.ends_ns) + 1)
        needs = [flight.blocks_needed(i, state.kv) - first for i in iterations]
        self.free_after = [free - need for need in needs]
        self.cached: dict[int, int] = {}
        self.lost = [lost_blocks] + [0] * (len(needs) - 1)
        if isinstance(state.kv, CachingPool):
            self.cached = {request.index: tokens for request, tokens in state.found.items()}
            takes = [b - a for a, b in pairwise(needs)]
            self.lost[1:] = state.kv.losses(takes)

    def decisions(self, flight: Flight, iterations: int, replica: int) -> list[Decision]:
        """One entry for each of the first iterations of the flight."""
        chunks = {request.index: tokens for request, tokens in flight.chunks}
        tokens = dict.fromkeys(self.members, 1) | chunks
        start, gone, cached, entries = flight.start_ns, self.preempted, self.cached, []
        ends = flight.ends_ns[:iterations]
        for end, free, lost in zip(ends, self.free_after, self.lost, strict=False):
            entry = Decision(replica, start, end, dict(tokens), gone, free, cached, lost)
            entries.append(entry)
            start, gone, cached = end, [], {}
        return entries

    def drop(self, iterations: int) -> None:
        """Forget the first iterations: they are over and logged."""
        del self.free_after[:iterations], self.lost[:iterations]
        if iterations:
            self.preempted, self.cached = [], {}
