"""KV memory of one replica: the `KVCache` contract, and `BlockPool`, paged without sharing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Protocol

from sim.decode_group import DecodeGroup
from sim.request import Request


class KVCache(Protocol):
    """Memory that a policy allocates from; the one owner of blocks.

    Attributes:
        block_tokens: Tokens of one block.
        total_blocks: Size of the pool.
        free_blocks: Blocks that can be had now, those cached but unused included.
        has_cache: Whether content is kept after use, so that it can be found again.
    """

    block_tokens: int
    total_blocks: int
    free_blocks: int
    has_cache: ClassVar[bool]

    @property
    def cached_blocks(self) -> int:
        """Of the free blocks those whose content can be found again; 0 without a cache."""
        ...

    @property
    def lost_blocks(self) -> int:
        """Blocks that have lost such content so far; 0 without a cache."""
        ...

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        ...

    def match(self, request: Request) -> int:
        """Tokens found cached of a request about to be admitted, at most known - 1."""
        ...

    def peek(self, request: Request) -> int:
        """What `match` would find, for a router: changes nothing at all."""
        ...

    def allocate(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """Let `request` hold blocks for `tokens` in all, leaving at least `keep_free` free.

        Tests and takes in one call; returns False, and changes nothing, if there are too few. A
        request that holds nothing is first given the blocks that `match` counts.
        """
        ...

    def reserve(self, request: Request, tokens: int, *, keep_free: int = 0) -> int | None:
        """As `allocate`, on a decode replica, for KV that is yet to come.

        Returns:
            Leading tokens that need not come, as blocks with them are here; None if there are too
            few blocks.
        """
        ...

    def reserve_more(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """Let a request with reserved blocks reserve them for `tokens` in all; False without room.

        Nothing of it is here yet, so a cache finds nothing there.
        """
        ...

    def has_room(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """Whether `reserve` would succeed; changes nothing."""
        ...

    def arrived(self, request: Request) -> None:
        """The KV of the prompt of a request with reserved blocks is here."""
        ...

    def may_reserve_less(self, request: Request) -> bool:
        """Whether decodes alone may let `reserve` succeed that just failed."""
        ...

    def commit(self, request: Request, tokens: int) -> None:
        """The first `tokens` of the request are stored (what a prefix cache may now share)."""
        ...

    def release(self, request: Request, *, again: bool = False) -> int:
        """Take back all blocks of the request; returns how many.

        Args:
            request: It ends here, or was preempted.
            again: It was preempted: it will be admitted again, and may find what it stored.
        """
        ...

    def held(self, request: Request) -> int:
        """Blocks the request holds."""
        ...

    def decode_all(self, group: DecodeGroup, spare_blocks: int = 0) -> bool:
        """Take the blocks of the group's next tick if `spare_blocks` stay free; else False."""
        ...


class BlockPool:
    """Paged KV memory without sharing (vLLM's paged attention, no prefix cache).

    Free and held blocks are counts: nothing depends on which block a request gets.
    """

    __slots__ = ("block_tokens", "free_blocks", "total_blocks")

    has_cache: ClassVar[bool] = False

    def __init__(self, total_blocks: int, block_tokens: int = 16) -> None:
        self.total_blocks = total_blocks
        self.block_tokens = block_tokens
        self.free_blocks = total_blocks

    @property
    def cached_blocks(self) -> int:
        """Nothing is kept after use."""
        return 0

    @property
    def lost_blocks(self) -> int:
        """Nothing is kept, so nothing is lost."""
        return 0

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-tokens // self.block_tokens)

    def match(self, request: Request) -> int:
        """Nothing is shared, so nothing is found."""
        return 0

    def peek(self, request: Request) -> int:
        """Nothing is shared, so nothing is found."""
        return 0

    def allocate(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """See `KVCache.allocate`."""
        group = request.group
        held = request.held_blocks if group is None else group.held(request)
        need = -(-tokens // self.block_tokens) - held
        if need <= 0:
            return self.free_blocks >= keep_free
        if self.free_blocks - need < keep_free:
            return False
        self.free_blocks -= need
        request.held_blocks = held + need
        if group is not None:
            group.follow_growth(request)
        return True

    def reserve(self, request: Request, tokens: int, *, keep_free: int = 0) -> int | None:
        """See `KVCache.reserve`."""
        return 0 if self.allocate(request, tokens, keep_free=keep_free) else None

    def reserve_more(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """See `KVCache.reserve_more`."""
        if self.blocks_for(tokens) <= request.held_blocks:
            return True
        return BlockPool.allocate(self, request, tokens, keep_free=keep_free)

    def has_room(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """See `KVCache.has_room`."""
        return self.free_blocks - self.blocks_for(tokens) >= keep_free

    def arrived(self, request: Request) -> None:
        """Nothing is shared, so nothing is published."""

    def may_reserve_less(self, request: Request) -> bool:
        """Decodes only take blocks."""
        return False

    def commit(self, request: Request, tokens: int) -> None:
        """Nothing is shared, so nothing is published."""

    def release(self, request: Request, *, again: bool = False) -> int:
        """See `KVCache.release`. The request must have left its decode group."""
        blocks = request.held_blocks
        self.free_blocks += blocks
        request.held_blocks = 0
        return blocks

    def shrink(self, request: Request, tokens: int) -> int:
        """Give back what the request holds beyond `tokens`; returns the blocks it keeps."""
        keep = -(-tokens // self.block_tokens)
        self.free_blocks += request.held_blocks - keep
        request.held_blocks = keep
        return keep

    def give_back(self, request: Request, blocks: int) -> None:
        """Undo the last `allocate` of a prefilling request: what it was for never started."""
        request.held_blocks -= blocks
        self.free_blocks += blocks

    def held(self, request: Request) -> int:
        """See `KVCache.held`."""
        group = request.group
        return request.held_blocks if group is None else group.held(request)

    def decode_all(self, group: DecodeGroup, spare_blocks: int = 0) -> bool:
        """See `KVCache.decode_all`."""
        need = group.needs[group.clock % self.block_tokens]
        if self.free_blocks - need < spare_blocks:
            return False
        self.free_blocks -= need
        group.taken = True
        return True

    def take_ticks(self, group: DecodeGroup, ticks: int) -> None:
        """Take the blocks of the group's next `ticks` ticks, which are there.

        Those of the first may be taken already; without any tick they are given back.
        """
        blocks = group.blocks_needed(ticks) if ticks else 0
        if group.taken:
            blocks -= group.needs[group.clock % self.block_tokens]
        self.free_blocks -= blocks


class CachingPool(BlockPool):
    """KV memory that keeps content after use: what the engine asks of each such memory.

    `free_blocks` counts the blocks that are cached and unused as well.

    Attributes:
        shared_blocks: What the sum over requests of blocks held exceeds the blocks in use by.
    """

    __slots__ = ()

    has_cache: ClassVar[bool] = True
    commits: ClassVar[bool] = False
    """Content is kept from the end of the step that computed it on, which calls `commit`."""

    shared_blocks: int

    def losses(self, takes: Sequence[int]) -> list[int]:
        """Blocks that would lose their content if so many were taken, one after the other.

        Args:
            takes: Blocks taken, one number for each iteration to come.
        """
        raise NotImplementedError

    def standing(self) -> Hashable:
        """What decides what will be found, and which content is lost next.

        Equal at two moments if and only if requests with the same progress and blocks would find
        and lose the same from then on. None: this memory cannot say.
        """
        return None

    def verify(self) -> None:
        """Assert that blocks are counted rightly."""
        raise NotImplementedError
