"""Sarathi-Serve: chunked prefills that ride along with the decodes, which never stall."""

from __future__ import annotations

from dataclasses import dataclass

from sim.batch import UNTIL_CHANGE, Cause, ScheduledBatch, repeat_chunk
from sim.policy import Policy, ReplicaState


@dataclass
class Sarathi(Policy):
    """Every decode is in every iteration; prefill chunks take the rest of the token budget.

    Source: Agrawal et al., OSDI 2024 (Sarathi-Serve), and its
    ``sarathi/core/scheduler/sarathi_scheduler.py``. Differences: the engine sorts running by
    arrival and never rejects a prompt that cannot fit; there a request that is computed again may
    emit max_tokens more; that a step which preempted admits nobody is our rule, which comes to the
    same.

    Args:
        budget_tokens: Tokens one iteration computes; decodes may exceed it, chunks fill it.
        max_num_seqs: Most requests running at once.
    """

    budget_tokens: int = 512
    max_num_seqs: int = 128

    preemptible = True
    cuts_prompts = True

    @property
    def seats(self) -> int:
        """Most requests running at once."""
        return self.max_num_seqs

    @property
    def most_chunk_tokens(self) -> int:
        """A prompt alone has the whole budget."""
        return self.budget_tokens

    def watermark_blocks(self, total_blocks: int) -> int:
        """1 % of the pool is kept free at admission."""
        return total_blocks // 100

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """Decodes, then chunks of prefills under way, then new requests, within the budget."""
        batch = ScheduledBatch(UNTIL_CHANGE, 1)
        if not state.decode_all(batch, spare_blocks=1):
            state.make_room_for_decodes(spare_blocks=1)
            state.decode_all(batch)
        left = max(0, self.budget_tokens - state.group.size)
        for request in state.prefilling:
            if not left:
                break
            batch.tokens[request] = tokens = min(request.remaining_tokens, left)
            left -= tokens
        if state.preempted or state.held_back:
            batch.cause = Cause.PREEMPTED
        elif state.waiting:
            left = self._admit(state, batch, left)
        repeat_chunk(batch, left)
        return batch

    def _admit(self, state: ReplicaState, batch: ScheduledBatch, left: int) -> int:
        """Admit waiting requests in order; returns the budget left."""
        waiting, watermark = state.waiting, state.watermark_blocks
        first_come = state.order.first_come
        while waiting:
            if not left:
                batch.refuse(Cause.NO_BUDGET, first_come=first_come)
                return left
            if state.num_running >= self.max_num_seqs:
                batch.refuse(Cause.NO_SEAT, first_come=first_come)
                return left
            request = waiting[0]
            whole = request.known_tokens
            if not (
                state.can_go_on(request) and state.kv.allocate(request, whole, keep_free=watermark)
            ):
                batch.refuse(Cause.NO_BLOCKS, first_come=first_come)
                return left
            state.admit(request)
            batch.tokens[request] = tokens = min(whole, left)
            left -= tokens
        return left
