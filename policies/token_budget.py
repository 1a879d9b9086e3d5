"""vLLM V1: no phases; one token budget, spent on running requests in order, then on new ones."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sim.batch import UNTIL_CHANGE, Cause, ScheduledBatch, repeat_chunk
from sim.disk_cache import DiskBackedCache
from sim.errors import ConfigError
from sim.host_cache import TieredPrefixCache
from sim.kvcache import BlockPool
from sim.policy import Policy, ReplicaState
from sim.prefix_cache import PrefixCache
from sim.request import Request


@dataclass
class TokenBudget(Policy):
    """Each request's computed tokens catch up with its known ones, within one budget a step.

    A decode wants one token, a prefill as many as are left; running requests are served in order,
    so that a long prefill ahead of a decode can take the budget. Blocks are taken chunk by chunk.

    Source: vLLM 0.8 to 0.19, ``vllm/v1/core/sched/scheduler.py``. Differences: one usable block
    less there (a null block); early versions took up to 4 spare blocks; asynchronous scheduling
    (default since about 0.14) decides one step ahead.

    With `prefix_cache` a request starts from its cached full blocks (`sim.prefix_cache`, rules 40
    to 44 and 47). vLLM turns it on by default; here it is off, as most traces say nothing of what
    prompts share.

    Args:
        max_num_batched_tokens: Token budget of an iteration (8192 for the API server on GPUs of
            70 GiB and more in newer versions).
        max_num_seqs: Most requests running at once (1024 there).
        long_prefill_token_threshold: Largest chunk of one prompt; None or 0 for no limit.
        reserve_full_prompt: Admit only if the whole prompt's blocks are free
            (``scheduler_reserve_full_isl``, on in vLLM 0.19).
        watermark: Share of the blocks kept free at admission while something runs.
        prefix_cache: Keep full blocks after use, and find them again by the trace's block ids.
        uncached_first: With a prefix cache: blocks freed without content are the next to be taken
            (newest vLLM); else each block waits its turn.
        host_cache_blocks: With a prefix cache: blocks of host memory that keep what the cache loses
            and give it back over the host link (`sim.host_cache`); None for no such tier.
        disk_cache_blocks: With a host tier: blocks of a disk that keep what the host has no room
            for (`sim.disk_cache`); None for no such tier.
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    long_prefill_token_threshold: int | None = field(default=None, metadata={"minimum": 0})
    reserve_full_prompt: bool = False
    watermark: float = 0.0
    prefix_cache: bool = False
    uncached_first: bool = False
    host_cache_blocks: int | None = field(default=None, metadata={"minimum": 1})
    disk_cache_blocks: int | None = field(default=None, metadata={"minimum": 1})

    pulls_need_seat = True
    preemptible = True
    cuts_prompts = True

    @property
    def seats(self) -> int:
        """Most requests running at once."""
        return self.max_num_seqs

    @property
    def most_chunk_tokens(self) -> int:
        """A prompt alone has the whole budget, up to the threshold."""
        return min(self.max_num_batched_tokens, self.long_prefill_token_threshold or 1 << 60)

    def check(self, total_blocks: int, block_tokens: int, max_model_len: int | None) -> None:
        """The watermark is a share of the pool."""
        if not 0 <= self.watermark < 1:
            raise ConfigError(
                f"policy.watermark: {self.watermark} is not a share; give 0 to under 1"
            )
        if self.uncached_first and not self.prefix_cache:
            raise ConfigError("policy.uncached_first: true needs prefix_cache: true")
        if self.host_cache_blocks is not None and not self.prefix_cache:
            raise ConfigError(
                f"policy.host_cache_blocks: {self.host_cache_blocks} needs prefix_cache: true"
            )
        if self.disk_cache_blocks is not None and self.host_cache_blocks is None:
            raise ConfigError(
                f"policy.disk_cache_blocks: {self.disk_cache_blocks} needs host_cache_blocks: what "
                "is read from disk goes through host memory"
            )

    @property
    def uses_host_link(self) -> bool:
        """A host tier of the cache moves KV over it."""
        return self.host_cache_blocks is not None

    @property
    def uses_disk(self) -> bool:
        """A tier behind the host's."""
        return self.disk_cache_blocks is not None

    def memory(self, total_blocks: int, block_tokens: int) -> BlockPool:
        """With a prefix cache if that is on."""
        if not self.prefix_cache:
            return BlockPool(total_blocks, block_tokens)
        first, host_blocks = self.uncached_first, self.host_cache_blocks
        if host_blocks is None:
            return PrefixCache(total_blocks, block_tokens, uncached_first=first)
        if self.disk_cache_blocks is None:
            return TieredPrefixCache(
                total_blocks, block_tokens, uncached_first=first, host_blocks=host_blocks
            )
        return DiskBackedCache(
            total_blocks,
            block_tokens,
            uncached_first=first,
            host_blocks=host_blocks,
            disk_blocks=self.disk_cache_blocks,
        )

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """Running requests in order, then waiting ones."""
        batch = ScheduledBatch(UNTIL_CHANGE)
        batch.in_running_order = True
        left = self._serve_lockstep(state, batch)
        if left is None:
            batch.all_decodes = False
            left = self._serve_in_turn(state, batch)
        if state.preempted or state.held_back:
            batch.cause = Cause.PREEMPTED
        elif state.waiting:
            left = self._admit(state, batch, left)
        repeat_chunk(batch, left)
        if isinstance(state.kv, PrefixCache):
            self._doubt(state.kv, state, batch)
        return batch

    @staticmethod
    def _doubt(cache: PrefixCache, state: ReplicaState, batch: ScheduledBatch) -> None:
        """Whoever did not fit may fit once it finds more, or less and so computes a smaller piece.

        More is found while others compute what it asks for, less when blocks it would find are
        taken.
        """
        if batch.cause == Cause.NO_BLOCKS:
            batch.chunk_repeat = 1
            if not cache.is_match_settled(state.waiting[0]):
                batch.repeat = 1
        if cache.rivals:
            batch.repeat = batch.chunk_repeat = 1
        if batch.chunk_repeat > 1 and any(map(cache.meets_growth, batch.tokens)):
            batch.chunk_repeat = 1

    def _serve_lockstep(self, state: ReplicaState, batch: ScheduledBatch) -> int | None:
        """Serve all decodes at once, then prefills: the same as in turn if these stand at the tail.

        Returns the budget left, or None if requests have to be served in turn.
        """
        left = self.max_num_batched_tokens - state.num_decoding
        if left < 0 or (state.prefilling and not _at_tail(state)):
            return None
        chunks: list[tuple[Request, int]] = []
        blocks = 0
        for request in state.prefilling:
            tokens = self._chunk(request, request.computed_tokens, left)
            if not tokens:
                break
            chunks.append((request, tokens))
            have = state.kv.held(request)
            blocks += max(0, state.kv.blocks_for(request.computed_tokens + tokens) - have)
            left -= tokens
        if not state.decode_all(batch, spare_blocks=blocks):
            return None
        for request, tokens in chunks:
            state.kv.allocate(request, request.computed_tokens + tokens)
            batch.tokens[request] = tokens
        return left

    def _serve_in_turn(self, state: ReplicaState, batch: ScheduledBatch) -> int:
        """Walk over running in order, preempting where blocks are short; returns what is left."""
        left = self.max_num_batched_tokens
        later = deque(state.running)
        while later and left > 0:
            request = later.popleft()
            tokens = self._chunk(request, request.computed_tokens, left)
            gone = len(state.preempted)
            fits = self._make_room(state, request, tokens, later, batch)
            left += sum(batch.tokens.pop(victim, 0) for victim in state.preempted[gone:])
            if not fits:
                break
            batch.tokens[request] = tokens
            left -= tokens
        decodes = [request for request in batch.tokens if request.decoding]
        if len(decodes) == state.num_decoding and state.decode_all(batch):
            for request in decodes:
                del batch.tokens[request]
        return left

    def _make_room(
        self,
        state: ReplicaState,
        request: Request,
        tokens: int,
        later: deque[Request],
        batch: ScheduledBatch,
    ) -> bool:
        """Blocks for `tokens` more. Victims may be any of running, served ones too (rule 89)."""
        if state.order.tail_is_victim:
            return state.make_room(request, later, tokens=tokens)
        candidates = deque(r for r in state.running if r is not request)
        fits = state.make_room(request, candidates, tokens=tokens)
        gone = set(state.preempted)
        for victim in [r for r in later if r in gone]:
            later.remove(victim)
        return fits

    def _admit(self, state: ReplicaState, batch: ScheduledBatch, left: int) -> int:
        """Admit waiting requests in order; returns the budget left."""
        waiting, kv = state.waiting, state.kv
        first_come = state.order.first_come
        while waiting:
            if left <= 0:
                batch.refuse(Cause.NO_BUDGET, first_come=first_come)
                return left
            if state.num_running >= self.max_num_seqs:
                batch.refuse(Cause.NO_SEAT, first_come=first_come)
                return left
            request = waiting[0]
            cached = kv.match(request)
            tokens = self._chunk(request, cached, left)
            keep = int(self.watermark * kv.total_blocks) if state.num_running else 0
            if self.reserve_full_prompt:
                keep += kv.blocks_for(request.known_tokens) - kv.blocks_for(cached + tokens)
            if not (
                state.can_go_on(request) and kv.allocate(request, cached + tokens, keep_free=keep)
            ):
                batch.refuse(Cause.NO_BLOCKS, first_come=first_come)
                return left
            state.admit(request, cached)
            batch.tokens[request] = tokens
            left -= tokens
        return left

    def _chunk(self, request: Request, computed: int, left: int) -> int:
        tokens = min(request.known_tokens - computed, left)
        longest = self.long_prefill_token_threshold
        return min(tokens, longest) if longest else tokens


def _at_tail(state: ReplicaState) -> bool:
    """Whether all half-prefilled requests stand behind all decodes in running."""
    tail = reversed(state.running)
    return all(next(tail).prefilling for _ in range(len(state.prefilling)))
