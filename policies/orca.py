"""Orca: iteration-level scheduling, whole prompts join the running decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sim.batch import UNTIL_CHANGE, Cause, ScheduledBatch
from sim.errors import ConfigError
from sim.kvcache import BlockPool
from sim.policy import Policy, ReplicaState
from sim.request import Request


@dataclass
class Orca(Policy):
    """Every running request decodes in every iteration; waiting ones join with their whole prompt.

    Memory for the longest possible output is reserved at admission and kept to the end, so nobody
    is ever preempted.

    Source: Yu et al., OSDI 2022 (Orca), section 4; `reserve` as in the vLLM paper's Orca (Max),
    Orca (Pow2) and Orca (Oracle), Kwon et al., SOSP 2023, section 6.1. The public ports default to
    batches of 128 and reserve max_model_len. Not modelled: the buddy allocator that the vLLM paper
    assumes for these, which rounds whole reservations up and leaves gaps between them.

    Args:
        max_batch_size: Most requests running at once.
        reserve: Blocks reserved at admission: for the prompt and `max_tokens`, for `max_model_len`,
            for the prompt and the true output (``oracle``, a bound that no real system reaches), or
            for the prompt and the least power of two that is not below the true output (``pow2``:
            32 for an output of 25), at most up to `max_model_len`.
    """

    max_batch_size: int = 64
    reserve: Literal["max_tokens", "max_model_len", "oracle", "pow2"] = "max_tokens"

    @property
    def seats(self) -> int:
        """Most requests running at once."""
        return self.max_batch_size

    @property
    def clairvoyant(self) -> bool:  # type: ignore[override]
        """Whether the true output length is needed."""
        return self.reserve in ("oracle", "pow2")

    def check(self, total_blocks: int, block_tokens: int, max_model_len: int | None) -> None:
        """`max_model_len` must be known where it is reserved."""
        if self.reserve == "max_model_len" and max_model_len is None:
            raise ConfigError("policy.reserve: max_model_len needs max_model_len to be set")

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """All decodes, then whole prompts in order while there are seats and memory."""
        batch = ScheduledBatch(UNTIL_CHANGE)
        state.decode_all(batch)
        for request in state.prefilling:  # the last prompt token, recomputed after a transfer
            batch.tokens[request] = request.remaining_tokens
        first_come = state.order.first_come
        while state.waiting:
            request = state.waiting[0]
            full = self._full(state, batch)
            if full != Cause.NONE:
                batch.refuse(full, first_come=first_come)
                break
            if not self._reserve(state, request):
                batch.refuse(Cause.NO_BLOCKS, first_come=first_come)
                break
            state.admit(request)
            batch.tokens[request] = request.remaining_tokens
        return batch

    def _full(self, state: ReplicaState, batch: ScheduledBatch) -> Cause:
        """Why nobody can join the batch any more; ``NONE``: somebody can."""
        return Cause.NO_SEAT if state.num_running >= self.max_batch_size else Cause.NONE

    def _reserve(self, state: ReplicaState, request: Request) -> bool:
        """Take the memory of a waiting request, if there is as much."""
        tokens = self._reserved_tokens(request, state.max_model_len)
        return state.can_go_on(request) and state.kv.allocate(request, tokens)

    def refuse(self, request: Request, kv: BlockPool, max_model_len: int | None) -> str | None:
        """Too long for the model, or a reservation larger than the pool."""
        if max_model_len is not None and request.prompt_tokens + request.max_tokens > max_model_len:
            return "over_model_len"
        reserved = kv.blocks_for(self._reserved_tokens(request, max_model_len))
        return "over_pool" if reserved > kv.total_blocks else None

    def transfer_tokens(self, request: Request, max_model_len: int | None) -> int:
        """On a decode replica the whole reservation is taken before the transfer (rule 31)."""
        return self._reserved_tokens(request, max_model_len)

    def _reserved_tokens(self, request: Request, max_model_len: int | None) -> int:
        if self.reserve == "max_model_len":
            assert max_model_len is not None
            return max_model_len
        if self.clairvoyant:
            output = request.oracle_tokens
            assert output is not None
            if self.reserve == "oracle":
                return request.prompt_tokens + output
            reserved = request.prompt_tokens + (1 << (output - 1).bit_length())
            return reserved if max_model_len is None else min(reserved, max_model_len)
        return request.prompt_tokens + request.max_tokens
