"""Paged KV memory with vLLM V1's prefix cache: full blocks are kept after use and found again.

All free blocks, with content or without, stand in one queue. A block is taken from its front and
loses its content then; it enters at the back when its last user frees it, a request's blocks last
one first; a hit takes it out (rules 41 and 42).

Which block a request gets makes no difference before it is freed. So blocks are taken as a count
(`free_blocks`), as in `BlockPool`, and leave the queue only when its order matters next: a
fast-forwarded run costs nothing per iteration. Blocks with content are kept as extents
(`sim.extents`): an operation costs what a request adds and what a loss cuts, not its length. Blocks
that nobody can ask for again (generated tokens and prompts without content that is told, once
their request has ended) stand in the queue as one entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import ClassVar

from sim.cache_names import Names
from sim.decode_group import DecodeGroup
from sim.extents import Entry, Extent, Holding, Key, Nameless, Node, block_runs
from sim.kvcache import CachingPool
from sim.request import Request

Path = list[tuple[Extent, int]]
"""Extents, and how many of their blocks, from the start on; all but the last one whole."""


class PrefixCache(CachingPool):
    """Memory of a replica whose full blocks stay findable until their place is taken.

    Source: vLLM 0.8 to 0.19, ``vllm/v1/core/kv_cache_manager.py`` and ``block_pool.py``. A block
    can be found from when its last token is scheduled (rule 44), a generated one too. Only requests
    that hold nothing are matched, so one that runs never changes blocks.

    Blocks that decodes fill are registered when somebody comes by who could find them. That is as
    exact as registering them at once, unless two requests generate the same tokens (`rivals`).

    Args:
        total_blocks: Size of the pool.
        block_tokens: Tokens of one block.
        uncached_first: A freed block without content enters the queue at the front (newest vLLM).

    Attributes:
        shared_blocks: Holdings of blocks beyond the first of each: what the sum over requests of
            blocks held exceeds the blocks in use by.
        rivals: Requests running here of which another one, when it was admitted, was said to
            generate the very tokens of theirs. While there are any, each decode is registered at
            once, in the order of running, and every iteration has its pass.
    """

    __slots__ = (
        "_blank",
        "_held",
        "_in_order",
        "_lost",
        "_match",
        "_names",
        "_origins",
        "_queue",
        "_queued",
        "_root",
        "_with_content",
        "rivals",
        "shared_blocks",
        "uncached_first",
    )

    has_cache: ClassVar[bool] = True

    def __init__(
        self, total_blocks: int, block_tokens: int = 16, *, uncached_first: bool = False
    ) -> None:
        super().__init__(total_blocks, block_tokens)
        self.uncached_first = uncached_first
        self.shared_blocks = self.rivals = self._lost = 0
        self._root = Node(None, 0, 0)
        # In the queue: blocks without content at the front, then entries. Blocks taken since the
        # queue was last brought up to date are in it still: more than `free_blocks`.
        self._blank = total_blocks
        self._queue = Entry()  # a ring: what comes after it is the front
        self._queued = total_blocks
        self._with_content = 0
        self._held: dict[Request, Holding] = {}
        self._origins: Counter[int] = Counter()
        self._in_order = False
        self._match: tuple[Request, Path] | None = None
        self._names: Names | None = None

    @property
    def cached_blocks(self) -> int:
        """Blocks with content that nobody uses."""
        self.settle()
        return self._with_content

    @property
    def lost_blocks(self) -> int:
        """Blocks that have lost their content so far."""
        self.settle()
        return self._lost

    # --- finding

    def match(self, request: Request) -> int:
        """Tokens of a waiting request found in full blocks, at most known - 1 (rules 41, 44)."""
        path = self._find(request, self._cap(request))
        self._match = (request, path)
        return sum(blocks for _, blocks in path) * self.block_tokens

    def peek(self, request: Request) -> int:
        """See `KVCache.peek`."""
        path = self._find(request, self._cap(request))
        return sum(blocks for _, blocks in path) * self.block_tokens

    def is_match_settled(self, request: Request) -> bool:
        """Whether decodes alone can neither shorten nor lengthen what `match` finds for it."""
        path = self._find(request, self._cap(request))
        in_use = all(extent.users for extent, _ in path)
        return in_use and not self._may_grow(request, path, self._cap(request))

    def _may_grow(self, request: Request, path: Path, most: int) -> bool:
        """Whether somebody is generating what the request would find next."""
        node = path[-1][0].node if path else self._root
        found = sum(blocks for _, blocks in path)
        if not node.growing or found == most or (path and path[-1][1] < node.blocks):
            return False
        key = self._key_of(request, found)
        return any(self._key_of(holding.request, found) == key for holding in node.growing)

    def _key_of(self, request: Request, block: int) -> Key:
        return next(block_runs(request, block, block + 1, self.block_tokens))[0]

    def _find(self, request: Request, most: int) -> Path:
        """What the first blocks of the request, at most so many, are found in."""
        self.settle()
        path: Path = []
        node = self._root
        self._catch_up(node)
        for key, blocks in block_runs(request, 0, most, self.block_tokens):
            while blocks:
                child = node.children.get(key)
                if child is None or not child.copies:
                    return path
                self._catch_up(child)
                node, found = child, min(blocks, child.blocks)
                path.append((node.copies[0], found))
                if found < node.blocks:
                    return path
                blocks -= found
                key = self._key_after(key, found) if blocks else key
        return path

    def _cap(self, request: Request) -> int:
        """Most blocks that may be found of it: at least one known token is computed."""
        return (request.known_tokens - 1) // self.block_tokens

    def _key_after(self, key: Key, blocks: int) -> int:
        assert isinstance(key, int)
        return key + blocks * self.block_tokens

    # --- taking

    def allocate(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """See `KVCache.allocate`. A request that holds nothing first takes what is found of it.

        Blocks found that are free count as needed. The first `tokens` are taken to be scheduled:
        from now on their full blocks can be found.
        """
        if request.held_blocks == 0:
            match, self._match = self._match, None
            path = match[1] if match is not None and match[0] is request else None
            if path is None:
                path = self._find(request, self._cap(request))
            if not self._admit(request, path, tokens, keep_free):
                return False
        if not super().allocate(request, tokens, keep_free=keep_free):
            return False
        holding = self._held[request]
        full = min(tokens // self.block_tokens, holding.named)
        if full > holding.blocks:
            self._register(holding, full)
        return True

    def reserve(self, request: Request, tokens: int, *, keep_free: int = 0) -> int | None:
        """See `KVCache.reserve`. At least one token comes (rule 41)."""
        path = self._find(request, self._prompt_cap(request))
        if not self._admit(request, path, tokens, keep_free):
            return None
        super().allocate(request, tokens)
        return self._held[request].blocks * self.block_tokens

    def has_room(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """See `KVCache.has_room`."""
        path = self._find(request, self._prompt_cap(request))
        used = sum(blocks for extent, blocks in path if extent.users)
        return self.free_blocks - (self.blocks_for(tokens) - used) >= keep_free

    def may_reserve_less(self, request: Request) -> bool:
        """See `KVCache.may_reserve_less`. It may: what is found and used need not be taken."""
        most = self._prompt_cap(request)
        return self._may_grow(request, self._find(request, most), most)

    def _prompt_cap(self, request: Request) -> int:
        return (request.prompt_tokens - 1) // self.block_tokens

    def arrived(self, request: Request) -> None:
        """See `KVCache.arrived`. What came can be found from now on (rule 44)."""
        holding = self._held[request]
        holding.stored_tokens = request.prompt_tokens
        full = min(request.prompt_tokens // self.block_tokens, holding.named)
        if full > holding.blocks:
            self._register(holding, full)

    def _admit(self, request: Request, path: Path, tokens: int, keep_free: int) -> bool:
        """Take the blocks found, if the rest of what `tokens` need can be had as well."""
        found = sum(blocks for _, blocks in path)
        unused = sum(blocks for extent, blocks in path if not extent.users)
        need = self.blocks_for(tokens) - found + unused
        if self.free_blocks - need < keep_free:
            return False
        self._queued -= unused
        self._with_content -= unused
        self.free_blocks -= unused
        self.shared_blocks += found - unused
        holding = self._held[request] = Holding(request, self._named_blocks(request))
        for extent, blocks in path:
            if blocks < extent.node.blocks:
                extent.node.split(blocks, self.block_tokens)
            if not extent.users:
                extent.leave()
            extent.users += 1
            holding.add(extent, blocks)
        request.held_blocks = found
        holding.stored_tokens = found * self.block_tokens
        self._count_origins(holding, 1)
        self._wait_to_grow(holding)
        return True

    def _named_blocks(self, request: Request) -> int:
        """Leading blocks of the request in which some other request may find its tokens."""
        content = request.identity.content
        if content is None:
            return 0
        most = request.prompt_tokens + request.max_tokens - 1  # ever stored here
        return min(content.tokens, most) // self.block_tokens

    def _register(self, holding: Holding, full: int) -> None:
        """The first `full` blocks of the holding can be found from now on."""
        self._match = None
        node = holding.last().node if holding.pieces else self._root
        if holding in node.growing:
            node.growing.remove(holding)
        self._catch_up(node)
        for key, blocks in block_runs(holding.request, holding.blocks, full, self.block_tokens):
            while blocks:
                child = node.children.get(key)
                if child is None:
                    node = self._append_content(holding, node, key, blocks)
                    break
                self._catch_up(child)
                more = min(blocks, child.blocks)
                node = child.split(more, self.block_tokens) if more < child.blocks else child
                extent = Extent(node)
                node.copies.append(extent)
                holding.add(extent, more)
                blocks -= more
                key = self._key_after(key, more) if blocks else key
        self._wait_to_grow(holding)

    def _append_content(self, holding: Holding, node: Node, key: Key, blocks: int) -> Node:
        """Register blocks with new content behind those that the holding has."""
        alone = not (node.children or node.growing or node.places)
        if holding.pieces and alone and len(node.copies) == 1:
            extent = node.copies[0]
            goes_on = isinstance(node.key, int) and key == self._key_after(node.key, node.blocks)
            if extent.users == 1 and goes_on:
                extent.rest = None
                node.blocks += blocks
                holding.grow(blocks)
                return node
        child = node.children[key] = Node(node, key, blocks)
        child.copies.append(Extent(child))
        holding.add(child.copies[0], blocks)
        return child

    # --- decodes, which fill blocks without a call

    def _wait_to_grow(self, holding: Holding) -> None:
        """Who has more content than is registered is found at the end of that."""
        if holding.blocks < holding.named:
            node = holding.last().node if holding.pieces else self._root
            node.growing.append(holding)

    def _catch_up(self, node: Node) -> None:
        """Register what those who grow from here have scheduled since."""
        if node.growing and not self._in_order:
            for holding in tuple(node.growing):
                self._register_scheduled(holding)

    def _register_scheduled(self, holding: Holding) -> None:
        request, group = holding.request, holding.request.group
        scheduled = request.computed_tokens + (group is not None and group.taken)
        full = min(scheduled // self.block_tokens, holding.named)
        if full > holding.blocks:
            self._register(holding, full)

    def decode_all(self, group: DecodeGroup, spare_blocks: int = 0) -> bool:
        """See `KVCache.decode_all`."""
        if not super().decode_all(group, spare_blocks):
            return False
        if self.rivals:
            self._register_in_order(group)
        return True

    def _register_in_order(self, group: DecodeGroup) -> None:
        """Register what the next tick fills of each member, in order of running."""
        members = [holding for holding in self._held.values() if holding.request.group is group]
        self._in_order = True
        for holding in sorted(members, key=_seat):
            self._register_scheduled(holding)
        self._in_order = False

    def meets_growth(self, request: Request) -> bool:
        """Whether a running request may compute what another one is generating."""
        origins, computed = self._origins, request.computed_tokens
        own = _origins(request, request.prompt_tokens)
        return any(origins[x] > (x in own) for x in _origins(request, computed) if x in origins)

    def _count_origins(self, holding: Holding, sign: int) -> None:
        """Note that a request generates its tokens, or does no longer."""
        alone = not self.rivals
        for origin in _origins(holding.request, holding.request.prompt_tokens):
            before = self._origins[origin]
            self._origins[origin] = before + sign
            self.rivals += max(0, before + sign - 1) - max(0, before - 1)
            if not self._origins[origin]:
                del self._origins[origin]
        if alone and self.rivals:
            for other in tuple(self._held.values()):
                self._register_scheduled(other)

    # --- giving back

    def release(self, request: Request, *, again: bool = False) -> int:
        """See `KVCache.release`; `again`: it was preempted, and may find its own tokens later."""
        self.settle()
        self._match = None
        count, before = request.held_blocks, self._queued
        holding = self._held.pop(request, None) or Holding(request, 0)
        self._count_origins(holding, -1)
        stored = max(request.computed_then, holding.stored_tokens)
        full = min(stored // self.block_tokens, count)
        self._trim(holding, full)
        self._free_nameless(count - full, content=False)
        told = full if again else min(full, holding.named)
        holding.named = told
        if holding.blocks < told:
            self._register(holding, told)
        else:
            self._stop_growing(holding)
        self._free_nameless(full - holding.blocks, content=True)
        self._free(holding)
        self.free_blocks += self._queued - before
        request.held_blocks = 0
        return count

    def _stop_growing(self, holding: Holding) -> None:
        node = holding.last().node if holding.pieces else self._root
        if holding in node.growing:
            node.growing.remove(holding)

    def _free_nameless(self, blocks: int, *, content: bool) -> None:
        """Blocks that nobody can ask for are free."""
        if not blocks:
            return
        self._queued += blocks
        if content:
            self._with_content += blocks
        elif self.uncached_first:
            self._blank += blocks
            return
        last = self._queue.before
        if isinstance(last, Nameless) and last.content == content:
            last.blocks += blocks
        else:
            Nameless(blocks, content=content).enter(self._queue)

    def _free(self, holding: Holding) -> None:
        """Its extents have a user less; those without any enter the queue, the last one first."""
        child: Extent | None = None
        for extent in reversed(holding.extents()):
            blocks = extent.node.blocks
            extent.users -= 1
            if extent.users:
                self.shared_blocks -= blocks
                child = None
                continue
            extent.rest = None
            self._queued += blocks
            self._with_content += blocks
            if child is None or not extent.node.swallow(child.node, self.block_tokens):
                extent.enter(self._queue)
                child = extent

    def give_back(self, request: Request, blocks: int) -> None:
        """See `BlockPool.give_back`."""
        super().give_back(request, blocks)
        holding = self._held[request]
        self._trim(holding, request.computed_then // self.block_tokens)

    def _trim(self, holding: Holding, full: int) -> None:
        """Blocks beyond the first `full` were scheduled in this pass, and are taken back."""
        if holding.blocks <= full:
            return
        self._match = None
        self._stop_growing(holding)
        extents = holding.extents()
        over = holding.blocks - full
        while over:
            extent = extents[-1]
            node, blocks = extent.node, extent.node.blocks
            if blocks > over:
                node.split(blocks - over, self.block_tokens)
                assert extent.rest is not None
                extents.append(extent.rest)
                continue
            assert extent.users == 1
            over -= blocks
            node.copies.remove(extents.pop())
            node.prune()
        holding.hold(extents)
        self._wait_to_grow(holding)

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
        self._match = None
        while gone:
            entry = self._queue.after
            if isinstance(entry, Extent):
                gone -= self._lose(entry, gone)
            else:
                assert isinstance(entry, Nameless)
                gone -= self._lose_nameless(entry, gone)

    def _lose_nameless(self, entry: Nameless, most: int) -> int:
        """Blocks that nobody can ask for are taken, at most so many; how many were."""
        taken = min(most, entry.blocks)
        entry.blocks -= taken
        if not entry.blocks:
            entry.leave()
        if entry.content:
            self._note_lost(taken)
        return taken

    def _note_lost(self, blocks: int) -> None:
        self._lost += blocks
        self._with_content -= blocks

    def _lose(self, extent: Extent, most: int) -> int:
        """The last blocks of a free extent lose their content, at most so many; how many did."""
        node = extent.node
        lost = min(most, node.blocks)
        self._note_lost(lost)
        if lost < node.blocks:
            if self._may_forget(node):
                node.blocks -= lost
                return lost
            node.split(node.blocks - lost, self.block_tokens)
            tail = extent.before  # cut off, and nearer to the front
            assert isinstance(tail, Extent)
            extent, node = tail, tail.node
        extent.leave()
        node.copies.remove(extent)
        self._let_go(node)
        return lost

    def _may_forget(self, node: Node) -> bool:
        """Whether what its last copy loses from its end is known nowhere else."""
        return len(node.copies) == 1 and not node.children

    def _let_go(self, node: Node) -> None:
        """A copy of this content is lost."""
        node.prune()

    def losses(self, takes: Sequence[int]) -> list[int]:
        """Blocks that would lose their content if so many were taken, one after the other.

        Args:
            takes: Blocks taken, one number for each iteration to come.
        """
        self.settle()
        queue = self._contents()
        left, content = self._blank, False
        lost = []
        for take in takes:
            gone = 0
            while take:
                if not left:
                    left, content = next(queue)
                now = min(take, left)
                take -= now
                left -= now
                gone += now if content else 0
            lost.append(gone)
        return lost

    def _contents(self) -> Iterator[tuple[int, bool]]:
        """(blocks, whether they have content) of the entries of the queue."""
        entry = self._queue.after
        while entry is not self._queue:
            if isinstance(entry, Extent):
                yield entry.node.blocks, True
            elif isinstance(entry, Nameless):
                yield entry.blocks, entry.content
            entry = entry.after

    # --- the state as a whole

    def standing(self) -> Hashable:
        """See `CachingPool.standing`."""
        if self._names is None:
            self._names = Names(self.block_tokens)
        self.settle()
        for holding in tuple(self._held.values()):
            self._register_scheduled(holding)
        held = sorted(
            (x.request.index, tuple(self._names.held(x, x.request.computed_tokens)))
            for x in self._held.values()
        )
        return tuple(held), tuple(self._names.queue(self._queue, self._blank))

    # --- checking

    def verify(self) -> None:
        """Assert that the queue holds the blocks that nobody uses, and only these."""
        self.settle()
        entries = list(self._contents())
        assert self._blank + sum(blocks for blocks, _ in entries) == self._queued
        assert self._queued == self.free_blocks
        assert sum(blocks for blocks, content in entries if content) == self._with_content
        users: Counter[Extent] = Counter()
        for holding in self._held.values():
            extents = holding.extents()
            users.update(extents)
            assert sum(extent.node.blocks for extent in extents) == holding.blocks
            node = extents[-1].node if extents else self._root
            assert (holding in node.growing) == (holding.blocks < holding.named)
        shared = sum((count - 1) * extent.node.blocks for extent, count in users.items())
        assert shared == self.shared_blocks
        free = self._verify_contents(users)
        named = sum(isinstance(entry, Extent) for entry in self._entries())
        assert named == free, f"{named} extents in the queue, {free} free ones in the tree"

    def _entries(self) -> Iterator[Entry]:
        entry = self._queue.after
        while entry is not self._queue:
            yield entry
            entry = entry.after

    def _verify_contents(self, users: Counter[Extent]) -> int:
        """Assert that the tree is one, and that its extents have these users; returns free ones."""
        nodes, free = [self._root], 0
        while nodes:
            node = nodes.pop()
            assert node is self._root or node.needed
            for key, child in node.children.items():
                assert child.parent is node
                assert child.key == key
                assert child.blocks > 0
                assert child.blocks == 1 or isinstance(key, int)
                nodes.append(child)
            for extent in node.copies:
                assert extent.node is node
                assert extent.users == users.pop(extent, 0)
                free += not extent.users
        assert not users, "a request holds blocks whose content is not in the tree"
        return free


def _seat(holding: Holding) -> int:
    return holding.request.seat


def _origins(request: Request, start: int) -> set[int]:
    """Of the runs of a request's content from a position on, where each would have position 0.

    Requests with the same tokens at the same positions have an origin in common.
    """
    content = request.identity.content
    if content is None or start >= content.tokens:
        return set()
    origins, position = set(), start
    for begin, tokens in content.runs(start, content.tokens):
        origins.add(begin - position)
        position += tokens
    return origins
