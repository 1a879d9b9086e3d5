"""Chunked prefills that never share an iteration with decodes: an ablation of Sarathi-Serve."""

from __future__ import annotations

from dataclasses import dataclass

from policies.sarathi import Sarathi
from sim.batch import ScheduledBatch
from sim.policy import ReplicaState


@dataclass
class Alternating(Sarathi):
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

    def __post_init__(self) -> None:
        self._decodes_next = False

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
        self._admit(state, batch, left)
