"""SGLang: a radix tree of all that was stored, the longest cached prefix first, prefills alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sim.batch import UNTIL_CHANGE, Cause, ScheduledBatch
from sim.errors import ConfigError
from sim.kvcache import BlockPool
from sim.policy import Policy, ReplicaState
from sim.radix_cache import Eviction, RadixCache, TokenSlots
from sim.radix_tree import HEAD, Head
from sim.request import Request

RATIO = 0.7
"""Of what running requests may still ask for, the share expected at first (SGLang's default of
``schedule_conservativeness`` 1.0)."""

LEAST_RATIO = 0.098
"""0.14 of that: the share expected in the end."""

DECAY = (RATIO - LEAST_RATIO) / 600
"""By which each decode pass lowers it."""

MOST_EXPECTED = 4096
"""Output tokens that are reckoned with at most (``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION``)."""

LONGEST_SORTED = 128
"""Waiting requests above which the queue is taken as it stands."""

SHORT_MATCH = 32
"""In-batch caching: a request with at most so many tokens cached waits for an earlier one that
shares at least `HEAD` with it."""

RETRACT_STEPS = 20
"""Slots wanted for each request left after a retraction (``SGLANG_RETRACT_DECODE_STEPS``)."""


@dataclass
class LongestPrefix(Policy):
    """SGLang: chunked extend steps alone and first, longest cached prefix, admission by growth.

    Each pass forms an *extend step*: first the request whose prompt was cut in the last one, then
    waiting requests in order, chunked. Only if it is empty all running requests decode. A request
    is admitted if what it computes and may emit fits what is free and evictable, less the expected
    growth of running requests: their remaining max_tokens times a ratio that decays with each
    decode pass and is set anew by a retraction. When it does not fit the replica is *full*, and
    nobody waiting is looked at until the mark is cleared. When a decode step finds too few slots
    the requests with the fewest outputs are retracted: they wait again, behind all others.

    The rules are number 51 and those of the memory, `sim.radix_cache.RadixCache`. Source: SGLang
    0.5.9, ``python/sglang/srt/managers/scheduler.py`` (``get_next_batch_to_run``,
    ``update_running_batch``), ``schedule_policy.py`` (``PrefillAdder``, ``SchedulePolicy``) and
    ``schedule_batch.py`` (``retract_decode``). Where rule 51 leaves room:

    - Whoever is refused for ``max_running_requests`` is not matched, but the queue was sorted (in
      the engine it is not, with that many running and nobody half-prefilled).
    - The tests of one request go in the order: memory before the lock, memory behind it, prefill
      budget, chunk budget. The last two end the admission and do not mark the replica full.
    - In-batch caching compares the first 32 tokens: who shares them with an earlier request that
      was itself put behind, shares them with the one before that as well.
    - A request cancelled in a step counts as one that finished there. Cancelled between steps, one
      that is running counts as finished in a decode step, one whose prefill is under way or ended
      at that very instant as neither.
    - The mark of a request that finished in a decode step is used up by the next decode pass, or
      by a pass that finds nothing running and would schedule nothing.
    - A replica marked full that finds nothing running clears the mark, sets the ratio to 0.7 and
      admits in the same pass; if it was not marked the ratio stays.
    - What a retraction asks for, slots for a decode step, is a test: nothing is evicted for it.
    - Pages (`page_size`): new tokens are counted in whole pages against memory and budgets, a
      chunk is cut to whole pages unless it ends the prompt, and ``over_pool`` is p + m + page - 1
      >= total tokens, so that a request alone always fits.

    Differences from the engine: overlap scheduling, on by default there, decides one step late;
    requests that finished early count in the expected growth there until the next decode pass;
    it evicts all that it can for a decode step before it retracts anybody; newer versions add a
    page per request to the admission test, and apply `max_prefill_tokens` only without
    chunking; the engine lowers max_tokens where we reject as ``over_pool``, and bounds running
    requests by the size of its request table (2048 to 4096) where we have none.

    Args:
        order: ``lpm`` (longest cached prefix first, and in-batch caching), or ``fcfs``, which is
            the default of SGLang 0.5.
        prefix_cache: Keep what was stored; off, nothing is kept and the order is ``fcfs``.
        chunked_prefill_size: Most tokens that an extend step computes; None for no limit.
        max_prefill_tokens: No request but the first joins an extend step beyond so many tokens.
        max_running_requests: Most requests running at once; None for no limit.
        mixed_chunk: Decodes ride along with extend steps; only false is modelled.
        page_size: Tokens of a page of the memory.
        eviction: Which leaf of the tree goes first: ``lru``, ``lfu`` or ``fifo``.
    """

    order: Literal["lpm", "fcfs"] = field(
        default="lpm", metadata={"needs": "prefix_cache", "but": ("fcfs",)}
    )
    prefix_cache: bool = True
    chunked_prefill_size: int | None = 8192
    max_prefill_tokens: int = 16384
    max_running_requests: int | None = None
    mixed_chunk: bool = False
    page_size: int = 1
    eviction: Eviction = field(default="lru", metadata={"needs": "prefix_cache"})

    alone = True

    def __post_init__(self) -> None:
        self._full = False
        self._cause: int = Cause.NONE
        self._extending: dict[Request, None] = {}  # of the last step
        self._cut_or_left = False  # it ends with somebody cut or finished
        self._left = False  # somebody finished in a decode step since the last decode pass
        self._ratio = RATIO
        self._since = 0  # clock of the decode group from which the ratio decays

    # --- what a replica asks

    @property
    def seats(self) -> int:
        """Most requests running at once."""
        return self.max_running_requests or super().seats

    def check(self, total_blocks: int, block_tokens: int, max_model_len: int | None) -> None:
        """Pages fit the pool and the chunks; decodes and prefills do not mix."""
        if self.mixed_chunk:
            raise ConfigError("policy.mixed_chunk: true is not modelled; try false")
        page, chunk = self.page_size, self.chunked_prefill_size
        if total_blocks * block_tokens < page:
            raise ConfigError(
                f"policy.page_size: {page} is more than the {total_blocks * block_tokens} tokens "
                "of the pool"
            )
        if chunk is not None and chunk % page:
            raise ConfigError(
                f"policy.chunked_prefill_size: {chunk} is no multiple of page_size {page}; "
                f"try {max(1, chunk // page) * page}"
            )

    def memory(self, total_blocks: int, block_tokens: int) -> BlockPool:
        """Slots of single tokens, or pages, as many as the blocks hold."""
        pages = total_blocks * block_tokens // self.page_size
        if not self.prefix_cache:
            return TokenSlots(pages, self.page_size)
        return RadixCache(pages, self.page_size, self.eviction)

    def refuse(self, request: Request, kv: BlockPool, max_model_len: int | None) -> str | None:
        """The first two reasons of rule 8; p + max_tokens must stay below the whole memory."""
        tokens = request.prompt_tokens + request.max_tokens
        if max_model_len is not None and tokens > max_model_len:
            return "over_model_len"
        if tokens + kv.block_tokens - 1 >= kv.total_blocks * kv.block_tokens:
            return "over_pool"
        return None

    def leaving(self, done: Sequence[Request], state: ReplicaState) -> Sequence[Request]:
        """All go; their going may clear the mark."""
        for request in done:
            if request not in self._extending:
                self._left = True
            elif not state.early:
                self._cut_or_left = True
        return done

    # --- a pass

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """An extend step, or else a decode step."""
        kv = state.kv
        assert isinstance(kv, TokenSlots)
        self._look_back(state)
        batch = ScheduledBatch()
        if state.prefilling or (state.waiting and not self._full):
            self._extend(state, kv, batch)
        if not batch.tokens:
            self._decode(state, kv, batch)
        batch.cause = self._cause if state.waiting else Cause.NONE
        return batch

    def _look_back(self, state: ReplicaState) -> None:
        """What the end of an extend step, or an empty running list, does to the mark."""
        if self._extending:
            joined = sum(1 for request in self._extending if request.decoding)
            if self._cut_or_left or 0 < joined == state.num_decoding:
                self._full = False
            self._extending, self._cut_or_left = {}, False
        if self._full and not state.running:
            self._full = self._left = False
            self._reset(RATIO, state)

    def _reset(self, ratio: float, state: ReplicaState, passes: int = 0) -> None:
        """The ratio decays from this value on, the next `passes` decode passes not counted."""
        self._ratio, self._since = ratio, state.group.clock + passes

    def _refuse(self, cause: Cause) -> None:
        """The admission ends; for want of memory or seats the replica is full."""
        self._cause = cause
        self._full = cause != Cause.NO_BUDGET

    # --- extend

    def _extend(self, state: ReplicaState, kv: TokenSlots, batch: ScheduledBatch) -> None:
        room = _Room(kv, self._growth(state), self.max_prefill_tokens, self.chunked_prefill_size)
        for request in state.prefilling:  # one at most
            room.put(batch, request, request.remaining_tokens)
        if state.waiting:
            sorts = self.order == "lpm" and len(state.waiting) <= LONGEST_SORTED
            if sorts and isinstance(kv, RadixCache):
                _sort(state, kv)
            self._admit(state, kv, batch, room)
        if batch.tokens:
            self._extending = dict.fromkeys(batch.tokens)
            self._cut_or_left = room.cut
            _allocate(kv, batch)

    def _seats_taken(self, state: ReplicaState, batch: ScheduledBatch) -> bool:
        return state.num_decoding + len(batch.tokens) >= self.seats

    def _growth(self, state: ReplicaState) -> float:
        """Tokens that running requests are expected to need yet."""
        passes = state.group.clock - self._since
        ratio = self._ratio if passes <= 0 else max(LEAST_RATIO, self._ratio - passes * DECAY)
        most = sum(_may_emit(request) for request in state.running if not request.prefilling)
        return ratio * most

    def _admit(
        self, state: ReplicaState, kv: TokenSlots, batch: ScheduledBatch, room: _Room
    ) -> None:
        """Waiting requests in order, until one is refused or nothing is left."""
        waiting = state.waiting
        while waiting:
            request = waiting[0]
            if self._seats_taken(state, batch):
                self._refuse(Cause.NO_SEAT)
                return
            cached = kv.find(request, request.known_tokens - 1)
            cause = room.refusal(request, cached, first=not batch.tokens)
            if cause:
                self._refuse(cause)
                return
            state.admit(request, cached)
            room.put(batch, request, request.remaining_tokens)
            if room.remaining <= 0:
                self._refuse(Cause.NO_BLOCKS)
                return
            if room.prefill <= 0 or room.chunk <= 0:
                self._refuse(Cause.NO_BUDGET)
                return

    # --- decode

    def _decode(self, state: ReplicaState, kv: TokenSlots, batch: ScheduledBatch) -> None:
        if not state.running:
            self._left = False
            self._reset(RATIO, state)
            return
        if self._left:
            self._full = self._left = False
        if not state.decode_all(batch):
            self._retract(state, kv)
            state.decode_all(batch)
        batch.repeat = 1 if state.waiting and not self._full else UNTIL_CHANGE
        batch.deaf, batch.deaf_cause = self._full, self._cause

    def _retract(self, state: ReplicaState, kv: TokenSlots) -> None:
        """Let those with the fewest outputs wait again until a decode step has its slots."""
        group, page = state.group, kv.block_tokens
        left = sorted(state.running, key=lambda r: (-r.emitted_tokens, r.prompt_tokens))
        while len(left) > 1:
            state.preempt(left.pop(), to_end=True)
            kv.want(-(-RETRACT_STEPS * len(left) // page))
            if kv.free_blocks >= group.needs[group.clock % page]:
                break
        state.rearrange(left)
        emitted = sum(request.emitted_tokens for request in left)
        most = sum(request.max_tokens for request in left)
        self._full = False
        self._reset(min(1.0, (emitted + RETRACT_STEPS * len(left)) / (most + 1)), state, 1)


class _Room:
    """What a pass may still take, in tokens.

    Attributes:
        prefill: Of `max_prefill_tokens`.
        chunk: Of `chunked_prefill_size`.
        cut: Whether a prompt was cut to it.
    """

    def __init__(self, kv: TokenSlots, growth: float, prefill: int, chunk: int | None) -> None:
        self.prefill = prefill
        self.chunk = UNTIL_CHANGE if chunk is None else chunk
        self.cut = False
        self._kv = kv
        self._growth = growth
        self._taken = 0

    @property
    def remaining(self) -> float:
        """Of the memory, less the expected growth of running requests."""
        kv = self._kv
        return (kv.free_blocks * kv.block_tokens - self._taken) - self._growth

    def refusal(self, request: Request, cached: int, *, first: bool) -> Cause:
        """Why the request is not admitted, or none: then what was found of it is locked."""
        new = self._paged(request.known_tokens - cached)
        need = new + _may_emit(request)
        if need >= self.remaining:
            return Cause.NO_BLOCKS
        self._kv.lock(request)
        if need >= self.remaining:
            cause = Cause.NO_BLOCKS
        elif (not first and new >= self.prefill) or self.chunk < self._kv.block_tokens:
            cause = Cause.NO_BUDGET
        else:
            return Cause.NONE
        self._kv.unlock(request)
        return cause

    def put(self, batch: ScheduledBatch, request: Request, left: int) -> None:
        """Let it compute what is left of its prompt, or as much of that as the chunk has room."""
        tokens, page = left, self._kv.block_tokens
        if self._paged(left) > self.chunk:
            tokens = self.chunk // page * page
        batch.tokens[request] = tokens
        paged = self._paged(tokens)
        self.prefill -= paged
        self.chunk -= paged
        self._taken += paged
        if tokens < left:
            self.cut = True
        else:
            self._taken += min(request.max_tokens, MOST_EXPECTED)

    def _paged(self, tokens: int) -> int:
        page = self._kv.block_tokens
        return -(-tokens // page) * page


def _may_emit(request: Request) -> int:
    return min(request.max_tokens - request.emitted_tokens, MOST_EXPECTED)


def _sort(state: ReplicaState, kv: RadixCache) -> None:
    """Longest match first, whoever may find more after this pass last; stably, in place."""
    heads: set[Head] = set()
    ranks: dict[Request, int] = {}
    for request in state.waiting:
        known = request.known_tokens
        found = kv.find(request, known)
        ranks[request] = -found
        if found <= SHORT_MATCH and known >= HEAD:
            head = kv.text(request).head
            if head in heads:
                ranks[request] = 1
            heads.add(head)
    if len(ranks) > 1:
        state.waiting.rearrange(sorted(state.waiting, key=ranks.__getitem__))


def _allocate(kv: TokenSlots, batch: ScheduledBatch) -> None:
    """Take the memory of an extend step, wanted once for all its tokens."""
    ends = {request: request.computed_then + tokens for request, tokens in batch.tokens.items()}
    kv.want(sum(kv.blocks_for(end) - request.held_blocks for request, end in ends.items()))
    for request, end in ends.items():
        if not kv.allocate(request, end):
            raise AssertionError(f"{request} was admitted without memory for it")
