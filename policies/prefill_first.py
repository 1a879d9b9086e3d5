"""vLLM's first scheduler: prefills go first and alone, decodes wait for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policies.separate_steps import SeparateSteps
from sim.batch import UNTIL_CHANGE, Cause, ScheduledBatch
from sim.errors import ConfigError
from sim.kvcache import BlockPool
from sim.policy import ReplicaState
from sim.request import Request


@dataclass
class PrefillFirst(SeparateSteps):
    """A step that admits anybody is prefill only; else all running requests decode.

    Paged memory without reservations: when a decode finds no free block, the last of running gives
    up its memory. It is recomputed later, or (`preemption: swap`) its KV moves to the host and back
    over the host link, which lengthens the steps of the passes that move it (rule 20).

    Source: vLLM 0.4 to 0.8, ``vllm/core/scheduler.py`` (``_schedule_default``), without chunked
    prefill. Differences: the engine decides by current length where we reject by prompt +
    max_tokens; 0.4 sorts running and swapped by arrival; from 0.6 outputs may be processed one step
    late. Of swapping: the engine's default is to recompute a request of one sequence and to swap
    groups of several, ours does what `preemption` says; too little host memory is an error there,
    where ours recomputes; block manager v2 counts the blocks it touches at swap-in.

    Args:
        max_num_seqs: Most requests running at once.
        max_num_batched_tokens: Most prompt tokens of a prefill step; None for
            max(2048, max_model_len), the engine's default.
        preemption: What becomes of the KV of a victim: computed again (``recompute``), or kept in
            host memory (``swap``).
        host_blocks: Blocks of host memory, for ``swap``; with fewer free than a victim has, it is
            recomputed. (The engine's ``swap_space`` is 4 GiB per GPU.)
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int | None = None
    preemption: Literal["recompute", "swap"] = "recompute"
    host_blocks: int | None = None

    preemptible = True

    @property
    def seats(self) -> int:
        """Most requests running at once."""
        return self.max_num_seqs

    @property
    def host_memory_blocks(self) -> int:
        """Host memory of victims that are swapped out."""
        return (self.host_blocks or 0) if self.preemption == "swap" else 0

    def watermark_blocks(self, total_blocks: int) -> int:
        """1 % of the pool is kept free at admission."""
        return total_blocks // 100

    def check(self, total_blocks: int, block_tokens: int, max_model_len: int | None) -> None:
        """A prompt that the model accepts must fit a step (rule 7); swapping needs a place."""
        if self.preemption == "swap" and self.host_blocks is None:
            raise ConfigError(
                "policy.host_blocks: is required by preemption swap: blocks of host memory for "
                "requests that are swapped out"
            )
        if self.preemption != "swap" and self.host_blocks is not None:
            raise ConfigError(
                f"policy.host_blocks: {self.host_blocks} belongs to preemption swap, not to "
                f"{self.preemption}"
            )
        budget = self.max_num_batched_tokens
        if budget is not None and max_model_len is not None and budget < max_model_len:
            raise ConfigError(
                f"policy.max_num_batched_tokens: {budget} is under max_model_len {max_model_len}, "
                f"so that long prompts could never run; give at least {max_model_len}, "
                "or a lower max_model_len"
            )

    def refuse(self, request: Request, kv: BlockPool, max_model_len: int | None) -> str | None:
        """As every paged policy; without max_model_len a recompute must fit the budget as well."""
        if max_model_len is None:
            most = request.prompt_tokens + request.max_tokens - 1
            if most > self._budget(max_model_len):
                return "over_token_budget"
        return super().refuse(request, kv, max_model_len)

    def _prefills(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        waiting, left = state.waiting, self._budget(state.max_model_len)
        watermark = state.watermark_blocks
        first_come = state.order.first_come
        while waiting:
            if state.num_running >= self.max_num_seqs:
                batch.refuse(Cause.NO_SEAT, first_come=first_come)
                return
            request = waiting[0]
            tokens = request.known_tokens
            if tokens > left:
                batch.refuse(Cause.NO_BUDGET, first_come=first_come)
                return
            if not (
                state.can_go_on(request) and state.kv.allocate(request, tokens, keep_free=watermark)
            ):
                batch.refuse(Cause.NO_BLOCKS, first_come=first_come)
                return
            state.admit(request)
            batch.tokens[request] = tokens
            left -= tokens

    def _decodes(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        batch.repeat, batch.spare_blocks = UNTIL_CHANGE, 1
        if not state.decode_all(batch, spare_blocks=1):
            state.make_room_for_decodes(spare_blocks=1)
            state.decode_all(batch)
        if state.swapped and not state.preempted:
            state.return_swapped(batch, self.max_num_seqs)
        for request in state.prefilling:  # the last prompt token, recomputed after a transfer
            batch.tokens[request] = request.remaining_tokens

    def _budget(self, max_model_len: int | None) -> int:
        return self.max_num_batched_tokens or max(2048, max_model_len or 0)
