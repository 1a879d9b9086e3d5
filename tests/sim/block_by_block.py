"""vLLM's prefix cache block by block, for comparison: one dictionary touch for every block.

The same rules as `sim.prefix_cache`, in the plain form: a tree with a node for each content, and a
queue with an entry for each block. What decodes fill is registered in each pass, so that the runs
it serves have to be stepped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from policies.token_budget import TokenBudget
from sim.content import token_runs
from sim.decode_group import DecodeGroup
from sim.disk_cache import DiskBackedCache
from sim.host_cache import TieredPrefixCache
from sim.kvcache import BlockPool
from sim.prefix_cache import PrefixCache
from sim.request import Request


@dataclass
class BlockByBlock(TokenBudget):
    """`vllm-v1` on a cache without extents."""

    def memory(self, total_blocks: int, block_tokens: int) -> BlockPool:
        """The plain cache."""
        first = self.uncached_first
        if self.host_cache_blocks is None:
            return PlainPrefixCache(total_blocks, block_tokens, uncached_first=first)
        if self.disk_cache_blocks is None:
            return PlainTieredCache(total_blocks, block_tokens, first, self.host_cache_blocks)
        return PlainDiskCache(
            total_blocks, block_tokens, first, self.host_cache_blocks, self.disk_cache_blocks
        )


class _Node:
    """A content, found from the root by what the blocks up to it hold.

    Attributes:
        parent: Content of the block before; None for the root.
        key: What this block's own tokens are.
        children: Contents that continue this one.
        copies: Blocks that hold it, the one registered first at the front.
    """

    __slots__ = ("children", "copies", "key", "parent")

    def __init__(self, parent: _Node | None, key: Hashable) -> None:
        self.parent = parent
        self.key = key
        self.children: dict[Hashable, _Node] = {}
        self.copies: list[_Block] = []


class _Block:
    """A block with content that can be found.

    Attributes:
        node: Its content.
        users: Requests that hold it.
    """

    __slots__ = ("node", "users")

    def __init__(self, node: _Node) -> None:
        self.node = node
        self.users = 1


class _Run:
    """Neighbours in the queue that nobody can ask for.

    Attributes:
        blocks: How many are left.
        content: Whether they hold anything.
    """

    __slots__ = ("blocks", "content")

    def __init__(self, blocks: int, *, content: bool) -> None:
        self.blocks = blocks
        self.content = content


class PlainPrefixCache(PrefixCache):
    """`PrefixCache`, one entry for each block.

    Its `rivals` stay 0: all decodes are registered in their pass, in order of running.
    """

    def __init__(
        self, total_blocks: int, block_tokens: int = 16, *, uncached_first: bool = False
    ) -> None:
        BlockPool.__init__(self, total_blocks, block_tokens)
        self.uncached_first = uncached_first
        self.shared_blocks = self.rivals = self._lost = 0
        self._root = _Node(None, None)
        # In the queue: blocks without content at the front, then entries. Blocks taken since the
        # queue was last brought up to date are in it still: more than `free_blocks`.
        self._blank = total_blocks
        self._queue: OrderedDict[_Block | _Run, None] = OrderedDict()
        self._queued = total_blocks
        self._held: dict[Request, list[_Block]] = {}  # those with content, from the start on
        self._stored: dict[Request, int] = {}  # leading tokens found or sent

    @property
    def cached_blocks(self) -> int:
        """Free blocks with content."""
        self.settle()
        return sum(
            1 if isinstance(entry, _Block) else entry.blocks * entry.content
            for entry in self._queue
        )

    # --- finding

    def match(self, request: Request) -> int:
        """Tokens of a waiting request found in full blocks, at most known - 1 (rules 41, 44)."""
        return len(self._find(request)) * self.block_tokens

    def peek(self, request: Request) -> int:
        """As `match`."""
        return self.match(request)

    def meets_growth(self, request: Request) -> bool:
        """It is stepped, so nobody needs to know."""
        return True

    def is_match_settled(self, request: Request) -> bool:
        """It is stepped, so nobody needs to know."""
        return False

    def _find(self, request: Request, most: int | None = None) -> list[_Block]:  # type: ignore[override]
        self.settle()
        found: list[_Block] = []
        children = self._root.children
        for key in self._keys(request, 0, self._cap(request) if most is None else most):
            node = children.get(key)
            if node is None or not node.copies:
                break
            found.append(node.copies[0])
            children = node.children
        return found

    def _keys(self, request: Request, first: int, last: int) -> list[Hashable]:
        """What the tokens of the request's blocks `first` to `last` (exclusive) are (rule 40)."""
        block = self.block_tokens
        content, end = request.identity.content, last * block
        keys: list[Hashable] = []
        parts: tuple[int, ...] = ()
        room = block
        for begin, tokens in token_runs(request.index, content, first * block, end):
            while tokens:
                now = min(tokens, room)
                parts += (begin, now)
                begin, tokens, room = begin + now, tokens - now, room - now
                if not room:
                    keys.append(parts if len(parts) > 2 else parts[0])
                    parts, room = (), block
        return keys

    # --- taking

    def allocate(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """See `KVCache.allocate`. A request that holds nothing first takes what is found of it.

        Blocks found that are free count as needed. The first `tokens` are taken to be scheduled:
        from now on their full blocks can be found.
        """
        if not request.held_blocks and not self._take_found(request, None, tokens, keep_free):
            return False
        if not BlockPool.allocate(self, request, tokens, keep_free=keep_free):
            return False
        full = min(tokens // self.block_tokens, self._named_blocks(request))
        if full > len(self._held[request]):
            self._register(request, full)
        return True

    def reserve(self, request: Request, tokens: int, *, keep_free: int = 0) -> int | None:
        """See `KVCache.reserve`."""
        if not self._take_found(request, self._prompt_cap(request), tokens, keep_free):
            return None
        BlockPool.allocate(self, request, tokens)
        return len(self._held[request]) * self.block_tokens

    def may_reserve_less(self, request: Request) -> bool:
        """It is stepped, so nobody needs to know."""
        return True

    def arrived(self, request: Request) -> None:
        """See `KVCache.arrived`."""
        self._stored[request] = request.prompt_tokens
        full = min(request.prompt_tokens // self.block_tokens, self._named_blocks(request))
        if full > len(self._held[request]):
            self._register(request, full)

    def _take_found(self, request: Request, most: int | None, tokens: int, keep_free: int) -> bool:
        """Take the blocks found, if the rest of what `tokens` need can be had as well."""
        found = self._find(request, most)
        unused = [block for block in found if not block.users]
        need = self.blocks_for(tokens) - len(found) + len(unused)
        if self.free_blocks - need < keep_free:
            return False
        for block in unused:
            del self._queue[block]
        for block in found:
            block.users += 1
        self._queued -= len(unused)
        self.free_blocks -= len(unused)
        self.shared_blocks += len(found) - len(unused)
        request.held_blocks = len(found)
        self._held[request] = list(found)
        self._stored[request] = len(found) * self.block_tokens
        return True

    def _register(self, request: Request, full: int) -> None:
        """The first `full` blocks of the request can be found from now on."""
        held = self._held[request]
        node = held[-1].node if held else self._root
        for key in self._keys(request, len(held), full):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(node, key)
            node = child
            block = _Block(node)
            node.copies.append(block)
            held.append(block)

    def decode_all(self, group: DecodeGroup, spare_blocks: int = 0) -> bool:
        """See `KVCache.decode_all`: what the next tick fills is registered, in running order."""
        if not BlockPool.decode_all(self, group, spare_blocks):
            return False
        for request in sorted(self._held, key=lambda request: request.seat):
            if request.group is group:
                full = (request.computed_tokens + 1) // self.block_tokens
                full = min(full, self._named_blocks(request))
                if full > len(self._held[request]):
                    self._register(request, full)
        return True

    # --- giving back

    def release(self, request: Request, *, again: bool = False) -> int:
        """See `KVCache.release`; `again`: it was preempted, and may find its own tokens later."""
        self.settle()
        count, before = request.held_blocks, self._queued
        held = self._held.pop(request, [])
        stored = max(request.computed_then, self._stored.pop(request, 0))
        full = min(stored // self.block_tokens, count)
        for block in held[full:]:  # scheduled in this pass, and taken back
            self._forget(block)
        del held[full:]
        self._free_blank(count - full)
        told = full if again else min(full, self._named_blocks(request))
        if len(held) < told:
            self._held[request] = held
            self._register(request, told)
            del self._held[request]
        if len(held) < full:
            self._append(_Run(full - len(held), content=True), full - len(held))
        for block in reversed(held):
            block.users -= 1
            if block.users:
                self.shared_blocks -= 1
            else:
                self._append(block, 1)
        self.free_blocks += self._queued - before
        request.held_blocks = 0
        return count

    def _free_blank(self, blocks: int) -> None:
        """Blocks without content are free."""
        if not blocks:
            return
        if self.uncached_first:
            self._blank += blocks
            self._queued += blocks
        else:
            self._append(_Run(blocks, content=False), blocks)

    def _append(self, entry: _Block | _Run, blocks: int) -> None:
        self._queue[entry] = None
        self._queued += blocks

    def give_back(self, request: Request, blocks: int) -> None:
        """See `BlockPool.give_back`."""
        BlockPool.give_back(self, request, blocks)
        held = self._held[request]
        full = request.computed_then // self.block_tokens
        if len(held) > full:
            for block in held[full:]:
                self._forget(block)
            del held[full:]

    # --- losing

    def settle(self) -> None:
        """Bring the queue up to date: the blocks taken leave it from its front."""
        gone = self._queued - self.free_blocks
        if not gone:
            return
        self._queued = self.free_blocks
        blank = min(gone, self._blank)
        self._blank -= blank
        gone -= blank
        if not gone:
            return
        while gone:
            entry = next(iter(self._queue))
            if isinstance(entry, _Block):
                del self._queue[entry]
                self._forget(entry)
                self._lost += 1
                if not entry.node.copies:
                    self._gone(_chain(entry.node))
                gone -= 1
                continue
            blocks = min(gone, entry.blocks)
            entry.blocks -= blocks
            gone -= blocks
            if entry.content:
                self._lost += blocks
                for _ in range(blocks):
                    self._gone(object())
            if not entry.blocks:
                del self._queue[entry]

    def _gone(self, content: Hashable) -> None:
        """No block has this content any more."""

    def losses(self, takes: Sequence[int]) -> list[int]:
        """Blocks that would lose their content if so many were taken, one after the other.

        Args:
            takes: Blocks taken, one number for each iteration to come.
        """
        self.settle()
        entries = iter(self._queue)
        left, content = self._blank, False
        lost = []
        for take in takes:
            gone = 0
            while take:
                if not left:
                    entry = next(entries)
                    left, content = 1, True
                    if isinstance(entry, _Run):
                        left, content = entry.blocks, entry.content
                now = min(take, left)
                take -= now
                left -= now
                gone += now if content else 0
            lost.append(gone)
        return lost

    def _forget(self, block: _Block) -> None:
        """The block holds nothing any more; contents nobody has or leads through go."""
        node = block.node
        block.node.copies.remove(block)
        while node.parent is not None and not (node.copies or node.children):
            del node.parent.children[node.key]
            node = node.parent

    def verify(self) -> None:
        """Assert that the queue holds the blocks that nobody uses, and only these."""
        self.settle()
        blocks = [entry for entry in self._queue if isinstance(entry, _Block)]
        runs = [entry.blocks for entry in self._queue if isinstance(entry, _Run)]
        assert self._blank + len(blocks) + sum(runs) == self._queued == self.free_blocks
        assert all(block.users == 0 and block in block.node.copies for block in blocks)
        users = Counter(block for held in self._held.values() for block in held)
        assert all(block.users == count for block, count in users.items())
        assert sum(users.values()) - len(users) == self.shared_blocks


def _chain(node: _Node) -> tuple[Hashable, ...]:
    """What all blocks up to this one hold."""
    keys: list[Hashable] = []
    while node.parent is not None:
        keys.append(node.key)
        node = node.parent
    return tuple(reversed(keys))


class PlainTieredCache(PlainPrefixCache, TieredPrefixCache):
    """`TieredPrefixCache`, one entry for each block on the host as well."""

    written_blocks = 0  # counted here, not by a tier

    def __init__(
        self, total_blocks: int, block_tokens: int, uncached_first: bool, host_blocks: int
    ) -> None:
        PlainPrefixCache.__init__(self, total_blocks, block_tokens, uncached_first=uncached_first)
        self.host_blocks = host_blocks
        self.written_blocks = self.loaded_blocks = self._moved_before = 0
        self._host: OrderedDict[Hashable, None] = OrderedDict()
        self._wanted: tuple[Request, list[Hashable]] | None = None

    def blocks_without_content(self) -> int:
        """It is stepped, so nobody needs to know."""
        return 0

    def match(self, request: Request) -> int:
        """See `TieredPrefixCache.match`."""
        found = super().match(request)
        chain = tuple(self._keys(request, 0, self._cap(request)))
        here = found // self.block_tokens
        wanted: list[Hashable] = []
        while here + len(wanted) < len(chain) and self._has(chain[: here + len(wanted) + 1]):
            wanted.append(chain[: here + len(wanted) + 1])
        self._wanted = (request, wanted)
        return found + len(wanted) * self.block_tokens

    def _take_found(self, request: Request, most: int | None, tokens: int, keep_free: int) -> bool:
        if not super()._take_found(request, most, tokens, keep_free):
            return False
        wanted, self._wanted = self._wanted, None
        if wanted is not None and wanted[0] is request:
            self.loaded_blocks += len(wanted[1])
            for content in reversed(wanted[1]):
                self._load_one(content)
            self._shrink()
        return True

    def _has(self, content: Hashable) -> bool:
        return content in self._host

    def _load_one(self, content: Hashable) -> None:
        self._host.move_to_end(content)

    def _shrink(self) -> None:
        while len(self._host) > self.host_blocks:
            self._pushed_out(self._host.popitem(last=False)[0])

    def _pushed_out(self, content: Hashable) -> None:
        """The host has no room for it."""

    def _gone(self, content: Hashable) -> None:
        if content in self._host:
            self._host.move_to_end(content)
            return
        self._host[content] = None
        self.written_blocks += 1
        self._shrink()

    def verify(self) -> None:
        """As one tier, and the host is not too full."""
        PlainPrefixCache.verify(self)
        assert len(self._host) <= self.host_blocks


class PlainDiskCache(PlainTieredCache, DiskBackedCache):
    """`DiskBackedCache`, one entry for each block on disk as well."""

    disk_written_blocks = 0  # counted here, not by a tier

    def __init__(
        self,
        total_blocks: int,
        block_tokens: int,
        uncached_first: bool,
        host_blocks: int,
        disk_blocks: int,
    ) -> None:
        PlainTieredCache.__init__(self, total_blocks, block_tokens, uncached_first, host_blocks)
        self.disk_blocks = disk_blocks
        self.disk_written_blocks = self.disk_read_blocks = 0
        self._disk_before = (0, 0)
        self._disk: OrderedDict[Hashable, None] = OrderedDict()

    def _has(self, content: Hashable) -> bool:
        return content in self._host or content in self._disk

    def _load_one(self, content: Hashable) -> None:
        if content not in self._host:
            self.disk_read_blocks += 1
            self._disk.move_to_end(content)
            self._host[content] = None
        self._host.move_to_end(content)

    def _pushed_out(self, content: Hashable) -> None:
        self.disk_written_blocks += content not in self._disk
        self._disk[content] = None
        self._disk.move_to_end(content)
        if len(self._disk) > self.disk_blocks:
            self._disk.popitem(last=False)

    def verify(self) -> None:
        """As two tiers, and the disk is not too full."""
        PlainTieredCache.verify(self)
        assert len(self._disk) <= self.disk_blocks
