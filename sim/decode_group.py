"""Requests that decode in lockstep: one clock for all, so that an iteration is O(what changed).

A member emits one token a tick and stores the KV of one more token. Its counters are the clock's
advance since it joined; the sum of contexts, the blocks that each tick needs and the ends of the
ticks are kept for the group as a whole.
"""

from __future__ import annotations

import heapq
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.records import Lifetime
    from sim.request import Request

_NO_EXTRAS = (0,) * 6
_NEVER_GROWS, _COUNTED, _LATE = 0, 1, 2


class DecodeGroup:
    """The decoding requests of one replica that advance together.

    Attributes:
        block_tokens: Tokens of a KV block.
        clock: Ticks (decode iterations) completed.
        size: Members.
        ends_ns: End of each tick, ns; tick ``t`` (from 0) ends at ``ends_ns[t]``.
        taken: The blocks of the next tick have been taken from the pool.
        needs: Members that need a block in a tick, by the clock modulo the block size.
        late: Members that own blocks for more than the next tick, by the clock at which that ends.
        finish: (tick, sequence, life): when members emit their last token on their replica; stale
            entries among them. Kept by the replica.
        ticked_ns: Length of all ticks that the ledger has billed (`sim.ledger`).
        prefills_ns: Of these, what prefills in the same iterations added.
        extras: What else was added: running totals, by phase.
        billed_ns: End of the last tick that it has billed; -1 before the first.
        begins: (tick, when its step began, ns), one after the other, of the ticks whose step did
            not begin as the tick before ended; kept where time is attributed, as the next two.
        parts: (tick, phase, ns) of what prefills and others added to single ticks.
        padded: (first tick, ns of each): ticks whose steps have rows of padding, without these.
        lost: (the next tick, begin of a step that was lost before it, its ns).
        log: Number of `ends_ns` among the logs of a run; -1 if it is none of them.
    """

    __slots__ = (
        "_late_seq",
        "_squares",
        "_sum",
        "begins",
        "billed_ns",
        "block_tokens",
        "clock",
        "ends_ns",
        "extras",
        "finish",
        "late",
        "log",
        "lost",
        "needs",
        "padded",
        "parts",
        "prefills_ns",
        "size",
        "taken",
        "ticked_ns",
    )

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.clock = 0
        self.size = 0
        self.ends_ns = array("q")
        self.taken = False
        self._sum = 0  # sum over members of (computed tokens - clock)
        self._squares = 0  # and of the squares of that
        # A member needs a block in a tick that starts with computed % block_tokens == 0. Computed
        # minus clock is constant: that is whenever the clock has one residue, by which it counts.
        self.needs = [0] * block_tokens
        self.late: list[tuple[int, int, Request]] = []
        self.finish: list[tuple[int, int, Lifetime]] = []
        self.log = -1
        self.ticked_ns = self.prefills_ns = 0
        self.extras: tuple[int, ...] = _NO_EXTRAS
        self.billed_ns = -1
        self.begins, self.parts = array("q"), array("q")
        self.padded: list[tuple[int, array[int]]] = []
        self.lost: list[tuple[int, int, int]] = []
        self._late_seq = 0

    # --- membership

    def join(self, request: Request) -> None:
        """Take in a request whose prefill is complete."""
        request.group = self
        request.since = self.clock
        self.size += 1
        offset = request.computed_then - self.clock
        self._sum += offset
        self._squares += offset * offset
        self.follow_growth(request)

    def leave(self, request: Request) -> int:
        """Let a member go, its counters brought up to date. Returns the ticks it took part in."""
        clock = self.clock
        ticks = clock - request.since
        computed = request.computed_then + ticks
        if request.grows == _COUNTED:
            self.needs[(clock - computed) % self.block_tokens] -= 1
            stored = computed + 1 if self.taken else computed
            blocks = -(-stored // self.block_tokens)
            if blocks > request.held_blocks:
                request.held_blocks = blocks
        request.grows = _NEVER_GROWS
        request.computed_then = computed
        request.emitted_then += ticks
        request.group = None
        self.size -= 1
        offset = computed - clock
        self._sum -= offset
        self._squares -= offset * offset
        return ticks

    def follow_growth(self, request: Request) -> None:
        """(Re-)count when this member will need blocks, after its `held_blocks` changed."""
        clock, block = self.clock, self.block_tokens
        offset = request.computed_then - request.since
        if request.grows == _COUNTED:
            self.needs[-offset % block] -= 1
        room = request.held_blocks * block - (offset + clock)
        if request.held_blocks * block >= request.prompt_tokens + request.max_tokens - 1:
            request.grows = _NEVER_GROWS
        elif room < block:
            request.grows = _COUNTED
            self.needs[-offset % block] += 1
        else:
            # Its spare blocks last until the tick that would start with none left.
            request.grows = _LATE
            self._late_seq += 1
            heapq.heappush(self.late, (clock + room, self._late_seq, request))

    def held(self, request: Request) -> int:
        """Blocks a member holds now, those of a tick already taken included."""
        if request.grows != _COUNTED:
            return request.held_blocks
        stored = request.computed_then + self.clock - request.since + (1 if self.taken else 0)
        return max(request.held_blocks, -(-stored // self.block_tokens))

    # --- the next ticks

    @property
    def context_tokens(self) -> int:
        """Sum of the contexts that the next tick attends to."""
        return self._sum + self.size * (self.clock + 1)

    @property
    def context_spread(self) -> int:
        """How unequal the contexts are: see `StepWork.context_spread`. A tick changes nothing."""
        return self.size * self._squares - self._sum * self._sum

    def blocks_needed(self, ticks: int = 1) -> int:
        """Blocks that the next `ticks` ticks take, valid up to `steady_ticks`."""
        block, needs = self.block_tokens, self.needs
        first = self.clock % block
        if ticks == 1:
            return needs[first]
        if ticks <= block - first:
            return sum(needs[first : first + ticks])
        rounds, rest = divmod(ticks, block)
        total = rounds * sum(needs) if rounds else 0
        total += sum(needs[first : first + rest])
        if first + rest > block:
            total += sum(needs[: first + rest - block])
        return total

    def ticks_within(self, blocks: int, most: int) -> int:
        """Most ticks, up to `most`, that together need at most `blocks` blocks."""
        if self.blocks_needed(most) <= blocks:
            return most
        clock, block, needs = self.clock, self.block_tokens, self.needs
        rounds = blocks // max(1, sum(needs))
        ticks, left = rounds * block, blocks - rounds * sum(needs)
        while True:
            left -= needs[(clock + ticks) % block]
            if left < 0:
                return ticks
            ticks += 1

    def steady_ticks(self, most: int) -> int:
        """Ticks, at most `most`, until a member with spare blocks starts to need some."""
        late = self.late
        while late:
            clock, _, request = late[0]
            if request.group is self and request.grows == _LATE and clock > self.clock:
                return min(most, clock - self.clock)
            heapq.heappop(late)
        return most

    def advance(self, ends_ns: list[int]) -> None:
        """Complete one tick for each end."""
        self.clock += len(ends_ns)
        self.ends_ns.extend(ends_ns)
        self.taken = False
        if self.late:
            self.activate_late()

    def activate_late(self) -> None:
        """Count those whose spare blocks are used up among those who need blocks."""
        late = self.late
        while late and late[0][0] <= self.clock:
            _, _, request = heapq.heappop(late)
            if request.group is self and request.grows == _LATE:
                self._activate(request)

    def _activate(self, request: Request) -> None:
        offset = request.computed_then - request.since
        if offset + self.clock < request.held_blocks * self.block_tokens:
            return  # a stale entry: it was given blocks again later, and has an entry for that
        request.grows = _COUNTED
        self.needs[-offset % self.block_tokens] += 1
