"""Orca with a buddy allocator, as the vLLM paper's baselines have it."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from policies.orca import Orca
from sim.batch import ScheduledBatch
from sim.policy import ReplicaState
from sim.request import Request


class BuddyMemory:
    """Slots in contiguous pieces, each a power of two long and aligned to its length.

    The rules: the pool is cut once, from slot 0, into the longest aligned pieces that fit (15,696
    into 8192, 4096, 2048, 1024, 256, 64 and 16). Taking 2**k slots takes the shortest free piece
    that is long enough, of several the one that begins lowest, and halves it, the lower half being
    cut on, until it is 2**k long. A piece that is given back joins its buddy, the other half of
    what it was cut from, if that is free and whole, and so on up.

    Source: Knuth, The Art of Computer Programming, volume 1, section 2.5; Kwon et al., SOSP 2023,
    section 6.1, assume such an allocator for Orca.

    Args:
        slots: Tokens that the pool holds.
    """

    def __init__(self, slots: int) -> None:
        self._free: list[list[int]] = [[] for _ in range(slots.bit_length())]
        begin = 0
        for order in reversed(range(slots.bit_length())):
            if slots >> order & 1:
                self._free[order].append(begin)
                begin += 1 << order
        self._roots = {each[0]: order for order, each in enumerate(self._free) if each}

    def take(self, order: int) -> int | None:
        """Where 2**order slots begin that are taken now; None if there is no such piece."""
        for found in range(order, len(self._free)):
            if self._free[found]:
                begin = self._free[found].pop(0)
                for smaller in range(order, found):
                    insort(self._free[smaller], begin + (1 << smaller))
                return begin
        return None

    def give(self, begin: int, order: int) -> None:
        """Free a piece, and join it with its buddies."""
        while self._roots.get(begin) != order:
            buddy = begin ^ (1 << order)
            if buddy not in self._free[order]:
                break
            self._free[order].remove(buddy)
            begin, order = min(begin, buddy), order + 1
        insort(self._free[order], begin)


@dataclass
class BuddyOrca(Orca):
    """`Orca` whose reservations are pieces of a buddy allocator (`BuddyMemory`).

    The rules: what `Orca` reserves for a request (`reserve`) is rounded up to a power of two of
    tokens. A waiting request is admitted if there is a piece of that length and the pool has the
    blocks for all of it. Pieces of requests that have left are given back at the begin of the next
    pass. A request longer than the longest piece is refused, ``over_pool``.

    Source: Kwon et al., SOSP 2023, section 6.1, which assume a buddy allocator for Orca; how its
    pool is cut they do not say. It lives here and not among the policies since nobody serves with
    it.

    Args:
        max_batch_size: Most requests running at once.
        reserve: What is reserved at admission, as `Orca` has it.
    """

    def __post_init__(self) -> None:
        self._memory: BuddyMemory | None = None
        self._held: dict[Request, tuple[int, int]] = {}

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """As `Orca`, once the pieces of those that have left are back."""
        if self._memory is None:
            self._memory = BuddyMemory(state.kv.total_blocks * state.kv.block_tokens)
        for request in [each for each in self._held if not state.kv.held(each)]:
            self._memory.give(*self._held.pop(request))
        return super().schedule(state)

    def _reserve(self, state: ReplicaState, request: Request) -> bool:
        assert self._memory is not None
        order = self._reserved_tokens(request, state.max_model_len).bit_length() - 1
        begin = self._memory.take(order)
        if begin is None:
            return False
        if not super()._reserve(state, request):
            self._memory.give(begin, order)
            return False
        self._held[request] = begin, order
        return True

    def _reserved_tokens(self, request: Request, max_model_len: int | None) -> int:
        return 1 << (super()._reserved_tokens(request, max_model_len) - 1).bit_length()
