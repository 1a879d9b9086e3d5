"""DistServe's two schedulers: prefills in batches of so many tokens, decodes that swap out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from policies.separate_steps import SeparateSteps
from sim.batch import UNTIL_CHANGE, Cause, ScheduledBatch
from sim.kvcache import BlockPool
from sim.policy import ReplicaState
from sim.request import Request


@dataclass
class DistServe(SeparateSteps):
    """First come, first served on both sides of DistServe, to the last block, without a watermark.

    - *Prefill.* If nobody is swapped out: waiting requests in order while the step has fewer than
      `max_batch_size` of them (on a replica that decodes as well: while fewer run), their tokens
      are at most `max_tokens_per_batch`, and the blocks of the whole prompt are free. The first
      that does not fit ends it. A step that admitted anybody is prefill only. Whoever is computed
      again may exceed the tokens if it is alone in the step.
    - *Decode*, else. (a) While the blocks that all running requests need for this step are not
      free, the last of running is swapped out (its rank in running counts, not its need). (b)
      Swapped requests return in order while there is a seat (fewer than `max_batch_size` run, and
      than `max_tokens_per_batch`) and the blocks that they had, and the next one where they cross a
      boundary, are free; also in a pass that swapped out. (c) If nobody is swapped out any more,
      loaded requests join in order while there is a seat and the block for their next token, if
      they need one, is free. All of them decode in this very step. The first that does not fit ends
      each of (b) and (c). Where nothing would run otherwise, (c) is done even so; and if no block
      is free for the first of those loaded, as many as have seats join, and (a) is done again.
    - What moves to and from the host costs time as in rule 20; with fewer free blocks there than a
      victim has, or no `host_blocks`, it is computed again, on its replica (rule 34).

    How the decode side accepts requests is the transfer's (`blocks_decode`, `max_waiting_share`).

    Source: Zhong et al., OSDI 2024 (DistServe), and its ``distserve/context_stage_scheduler.py``
    and ``decoding_stage_scheduler.py`` (`ContextStageFCFSScheduler`,
    `DecodingStageFCFSScheduler`), with the defaults of its API server. Differences: to let a
    request join, the engine counts the prompts of all that wait, and that of the request a second
    time, so that it joins only while its own blocks are free once more; copies to and from the host
    overlap with steps there (`kv.host_overlap` here); it sleeps for 3 ms when it has nothing to do,
    which is not modelled; it hangs where a swapped request never fits beside those that wait, and
    never recomputes.

    Args:
        max_batch_size: Most requests of a prefill step, or running.
        max_tokens_per_batch: Most tokens of a prefill step, and decodes of a step (8192 on decode
            replicas there). A prompt over it is rejected.
        host_blocks: Blocks of host memory for requests that are swapped out; None: they are
            computed again. (``--swap-space`` is 1 GB there.)
    """

    max_batch_size: int = 256
    max_tokens_per_batch: int = 4096
    host_blocks: int | None = field(default=None, metadata={"minimum": 1})

    joins_loaded = False

    @property
    def seats(self) -> int:
        """Most requests running at once."""
        return min(self.max_batch_size, self.max_tokens_per_batch)

    @property
    def host_memory_blocks(self) -> int:
        """Host memory of victims."""
        return self.host_blocks or 0

    def refuse(self, request: Request, kv: BlockPool, max_model_len: int | None) -> str | None:
        """As every paged policy; a prompt has to fit a step."""
        reason = super().refuse(request, kv, max_model_len)
        if reason != "over_model_len" and request.prompt_tokens > self.max_tokens_per_batch:
            return "over_token_budget"
        return reason

    def _prefills(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        left, first_come = self.max_tokens_per_batch, state.order.first_come
        while state.waiting:
            request = state.waiting[0]
            tokens = request.known_tokens
            seated = len(batch.tokens) if state.role == "prefill" else state.num_running
            if seated >= self.max_batch_size:
                return batch.refuse(Cause.NO_SEAT, first_come=first_come)
            if tokens > left and (batch.tokens or not request.preemptions):
                return batch.refuse(Cause.NO_BUDGET, first_come=first_come)
            if not (state.can_go_on(request) and state.kv.allocate(request, tokens)):
                return batch.refuse(Cause.NO_BLOCKS, first_come=first_come)
            state.admit(request)
            batch.tokens[request] = tokens
            left -= tokens
        return None

    def _decodes(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        batch.repeat = UNTIL_CHANGE
        self._make_room(state, batch)
        state.return_swapped(batch, self.seats, spare_blocks=0)
        if not state.swapped or not state.num_running:
            self._join(state, batch)
            if state.loaded and not state.num_running:
                state.join_loaded(self.seats)
                self._make_room(state, batch)
        for request in state.prefilling:  # the last prompt token, recomputed after a transfer
            batch.tokens[request] = request.remaining_tokens

    @staticmethod
    def _make_room(state: ReplicaState, batch: ScheduledBatch) -> None:
        """All running requests decode, or those who are left when the last ones are gone."""
        while not state.decode_all(batch):
            first, *later = state.running
            victim = state.order.victim(first, deque(later))
            if state.away and not later:
                state.hold_back(victim)
            else:
                state.preempt(victim)

    def _join(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        """Loaded requests take the block of their next token, and decode in this batch."""
        while state.loaded and state.num_running < self.seats:
            request = state.loaded[0]
            again = request.computed_then < request.target_tokens
            if not (again or state.kv.allocate(request, request.computed_then + 1)):
                return
            state.start_loaded(request)
            if not again:
                state.group.taken = batch.all_decodes = True
            batch.repeat = 1
