"""Chunked prefills that never share an iteration with decodes: an ablation of Sarathi-Serve."""

from __future__ import annotations

from dataclasses import dataclass

from sim.batch import Cause, ScheduledBatch
from sim.policy import Policy, ReplicaState


@dataclass
class Alternating(Policy):
    """Iterations take turns: chunks of prompts up to a budget, then one token of every decode.

    The rule: a pass begins with prefills if the last one did not, or if nothing decodes. Then
    half-prefilled requests in order of admission get min(left, budget left), and after them waiting
    ones are admitted in order while budget and seats are left and the blocks of the whole prompt
    are free above the watermark of rule 11; if anybody got a chunk, that is the iteration. Else all
    running requests decode, victims being taken as `sarathi` takes them (rules 21 and 22).

    Source: sarathi-serve, ``sarathi/core/scheduler/simple_chunking_scheduler.py``, which has these
    turns. "chunked-prefills-only" of Agrawal et al., OSDI 2024, table 4, is this policy as far as
    the paper says what it is. It lives here and not among the policies since nobody serves with it.

    Args:
        budget_tokens: Tokens of an iteration with chunks.
        max_num_seqs: Most requests running at once.
    """

    budget_tokens: int = 512
    max_num_seqs: int = 128

    preemptible = True
    cuts_prompts = True

    def __post_init__(self) -> None:
        self._decodes_next = False

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
        """Chunks, or decodes, whose turn it is."""
        batch = ScheduledBatch()
        if not (self._decodes_next and state.num_decoding):
            self._chunks(state, batch)
        self._decodes_next = bool(batch.tokens)
        if not batch.tokens and not state.decode_all(batch, spare_blocks=1):
            state.make_room_for_decodes(spare_blocks=1)
            state.decode_all(batch)
        return batch

    def _chunks(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        left = self.budget_tokens
        for request in state.prefilling:
            if not left:
                return
            batch.tokens[request] = tokens = min(request.remaining_tokens, left)
            left -= tokens
        while state.waiting and left:
            request = state.waiting[0]
            whole, keep = request.known_tokens, state.watermark_blocks
            if state.num_running >= self.max_num_seqs:
                batch.refuse(Cause.NO_SEAT, first_come=state.order.first_come)
                return
            if not (state.can_go_on(request) and state.kv.allocate(request, whole, keep_free=keep)):
                batch.refuse(Cause.NO_BLOCKS, first_come=state.order.first_come)
                return
            state.admit(request)
            batch.tokens[request] = tokens = min(whole, left)
            left -= tokens
        if state.waiting:
            batch.refuse(Cause.NO_BUDGET, first_come=state.order.first_come)
