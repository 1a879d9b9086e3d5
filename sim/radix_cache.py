"""KV memory with SGLang's prefix cache: a radix tree of everything stored, shared token by token.

The rules are those of `RadixCache`. Tokens are runs of consecutive integers (`sim.content`), and a
node holds the runs of its part of a text, so that a walk costs what it meets of nodes and runs,
not of tokens. `TokenSlots` is the same memory without a tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

from sim.decode_group import DecodeGroup
from sim.kvcache import BlockPool, CachingPool
from sim.radix_tree import Node, Text, descend, key_at, split
from sim.request import Request

Eviction = Literal["lru", "lfu", "fifo"]


class TokenSlots(BlockPool):
    """Slots of single tokens (or pages), nothing kept after use: SGLang without its tree."""

    __slots__ = ()

    def find(self, request: Request, tokens: int) -> int:
        """Nothing is found."""
        return 0

    def lock(self, request: Request) -> None:
        """Nothing was found, so nothing is locked."""

    def unlock(self, request: Request) -> None:
        """Nothing was locked."""

    def want(self, blocks: int) -> None:
        """Nothing is kept, so nothing can be evicted."""


class RadixCache(CachingPool, TokenSlots):
    """Memory of a replica in which whatever was stored is found again until its place is needed.

    Source: SGLang 0.5.9, ``python/sglang/srt/mem_cache/radix_cache.py``, and rules 40, 41, 44, 51.

    - A *path* is the tokens from the root to the end of a node. A request that holds memory locks
      the nodes of one path, and has the slots of its tokens behind that path to itself. Evictable
      are the tokens of nodes that nobody locks; `free_blocks` is free slots + evictable.
    - A *match* of the first n tokens of a request goes down from the root as far as the tree has
      them. An *insertion* does so too, and hangs what is left below as one new leaf. Where either
      ends inside a node, this is split in two, both with its locks; nodes are never merged.
    - Each match and each insertion is later than all before. It makes its path most recently used,
      the rest of a node that it splits included, and a new leaf still more so.
    - At the end of the step that computed a part of its prompt a request is inserted with all that
      is stored of it; of slots now held twice its own are freed, and it locks the path inserted.
      The tokens that it decodes are its own until it ends: it is inserted once more, with its last
      stored token, and locks nothing any more. A retracted request is not inserted: what it has
      behind its path is freed.
    - Whenever n slots are wanted and fewer are free, unlocked leaves are evicted whole, one after
      the other, until n (not n minus free) are evicted or no unlocked leaf is left. A parent
      becomes a leaf when its last child goes.
    - Which leaf goes first: ``lru``, least recently used. ``fifo``, made first; of a node that is
      split the front part counts as made then. ``lfu``, fewest hits, then least recently used: a
      node's hits are the insertions that went through it or made it, those of a prompt that is
      not complete yet excepted, and both parts of a split node keep them (this is how newer files
      count; 0.5.9 counts hits only with its host tier, and else ``lfu`` is ``lru`` there).
    - With pages of more than one token everything here is in whole pages, as are the slots: a
      match is cut to whole pages, and the tokens after the last full page of a request are never
      inserted. A request holds the last page, partly filled, alone.

    Time stamps are kept at the end of a path only. A node above it is as recent as its most recent
    descendant, and needs a stamp once it is a leaf: it then gets that of the child that went.

    Args:
        total_blocks: Size of the pool, pages.
        block_tokens: Tokens of a page; 1 in SGLang unless an attention kernel asks for more.
        eviction: ``lru``, ``lfu`` or ``fifo``.
    """

    __slots__ = (
        "_clock",
        "_evictable",
        "_found",
        "_leaves",
        "_lost",
        "_paths",
        "_root",
        "_texts",
        "eviction",
        "shared_blocks",
    )

    commits: ClassVar[bool] = True

    def __init__(
        self, total_blocks: int, block_tokens: int = 1, eviction: Eviction = "lru"
    ) -> None:
        super().__init__(total_blocks, block_tokens)
        self.eviction = eviction
        self.shared_blocks = 0
        self._root = Node(None, None, (), (), 0, 0)
        self._root.lock = 1
        self._clock = 0
        self._evictable = 0  # blocks
        self._lost = 0
        self._paths: dict[Request, Node] = {}  # end of the path that each request locks
        self._found: tuple[Request, Node] | None = None
        self._texts: dict[Request, Text] = {}
        # Every unlocked leaf is in this heap, some with a key that is lower than it is by now, and
        # so are some nodes that are none any more.
        self._leaves: list[tuple[tuple[int, int], int, Node]] = []

    @property
    def cached_blocks(self) -> int:
        """Blocks of the tree that nobody uses."""
        return self._evictable

    @property
    def lost_blocks(self) -> int:
        """Blocks evicted so far."""
        return self._lost

    # --- finding

    def match(self, request: Request) -> int:
        """Tokens found of a waiting request, at most known - 1. The tree remembers the look."""
        return self.find(request, request.known_tokens - 1)

    def peek(self, request: Request) -> int:
        """What `match` would give; changes nothing."""
        end = request.known_tokens - 1
        _, position = descend(self._root, Text(request), end, self.block_tokens)
        return position

    def text(self, request: Request) -> Text:
        """What the tokens of a request are that waits or runs here."""
        text = self._texts.get(request)
        if text is None:
            text = self._texts[request] = Text(request)
        return text

    def find(self, request: Request, tokens: int) -> int:
        """Match the first `tokens` of a request that holds nothing; returns how many are cached."""
        node, position = descend(self._root, self.text(request), tokens, self.block_tokens)
        node = self._touch(node, position)
        self._found = request, node
        return position

    def _touch(self, node: Node, position: int) -> Node:
        """A path that ends at `position`, in `node`, is used: it ends with a node afterwards."""
        self._clock += 1
        node.stamp = self._clock
        if position < node.stop:
            node = split(node, position, self._clock, self.block_tokens)
        return node

    def lock(self, request: Request) -> None:
        """The request uses what was just found of it."""
        assert self._found is not None
        assert self._found[0] is request
        node = self._found[1]
        self._paths[request] = node
        request.held_blocks = node.stop // self.block_tokens
        self._lock(node, self._root)

    def unlock(self, request: Request) -> None:
        """It is not admitted after all."""
        request.held_blocks = 0
        self._unlock(self._paths.pop(request))

    def _lock(self, node: Node, above: Node) -> None:
        """One more request uses the nodes from `node` up to `above`, which it uses already."""
        held = (node.stop - above.stop) // self.block_tokens
        taken = 0
        while node is not above:
            if not node.lock:
                taken += node.stop - node.start
            node.lock += 1
            assert node.parent is not None
            node = node.parent
        blocks = taken // self.block_tokens
        self._evictable -= blocks
        self.free_blocks -= blocks
        self.shared_blocks += held - blocks

    def _unlock(self, node: Node) -> None:
        held, freed = node.stop // self.block_tokens, 0
        end = node
        while node.parent is not None:
            node.lock -= 1
            if not node.lock:
                freed += node.stop - node.start
            node = node.parent
        blocks = freed // self.block_tokens
        self._evictable += blocks
        self.free_blocks += blocks
        self.shared_blocks -= held - blocks
        if not end.lock and not end.children:
            self._queue(end)

    # --- taking

    def allocate(self, request: Request, tokens: int, *, keep_free: int = 0) -> bool:
        """See `KVCache.allocate`; whoever admits has locked what was found, and wanted the rest."""
        need = self.blocks_for(tokens) - self.held(request)
        if self.free_blocks - max(0, need) < keep_free:
            return False
        self.want(need)
        return super().allocate(request, tokens, keep_free=keep_free)

    def want(self, blocks: int) -> None:
        """So many blocks will be taken: evict, if fewer are free."""
        if self.free_blocks - self._evictable < blocks:
            self._evict(blocks)

    def decode_all(self, group: DecodeGroup, spare_blocks: int = 0) -> bool:
        """See `KVCache.decode_all`."""
        need = group.needs[group.clock % self.block_tokens]
        if self.free_blocks - need < spare_blocks:
            return False
        self.want(need)
        return super().decode_all(group, spare_blocks)

    def take_ticks(self, group: DecodeGroup, ticks: int) -> None:
        """See `BlockPool.take_ticks`: tick by tick, as what is evicted depends on it."""
        block, first = self.block_tokens, 1 if group.taken else 0
        left = ticks - first
        if left < 0:  # it was lost in a failure: what was evicted for it stays so
            super().take_ticks(group, ticks)
            return
        if block > 1:
            for tick in range(first, ticks):
                self._take(group.needs[(group.clock + tick) % block])
            return
        need = group.needs[0]
        while left and need:
            free = self.free_blocks - self._evictable
            now = min(left, max(1, free // need))
            if free < need:
                self._evict(need)
            self.free_blocks -= now * need
            left -= now

    def _take(self, blocks: int) -> None:
        self.want(blocks)
        self.free_blocks -= blocks

    # --- storing and giving back

    def commit(self, request: Request, tokens: int) -> None:
        """A step has computed the first `tokens` of a request that stays: they can be found now."""
        before = self._paths[request]
        self._paths[request] = self._insert(
            request, before, tokens, complete=tokens == request.target_tokens
        )
        self._lock(self._paths[request], before)

    def _insert(self, request: Request, node: Node, tokens: int, *, complete: bool) -> Node:
        """The request's own slots behind the path that it locks, up to `node`, go into the tree.

        Those that are there already are freed.

        Returns:
            The node with which the tokens inserted end.
        """
        page, start = self.block_tokens, node.stop
        end = tokens // page * page
        text = self.text(request)
        node, position = descend(node, text, end, page)
        node = self._touch(node, position)
        if position < end:
            node = self._hang(node, text, end)
        if complete and self.eviction == "lfu":
            _count_hit(node)
        gone = (end - start) // page
        self._evictable += (end - position) // page
        self.free_blocks += gone
        return node

    def _hang(self, parent: Node, text: Text, end: int) -> Node:
        """A new leaf below `parent`."""
        firsts, ends = text.part(parent.stop, end)
        key = key_at(firsts, ends, parent.stop, parent.stop, self.block_tokens)
        self._clock += 1
        node = Node(parent, key, firsts, ends, parent.stop, self._clock)
        parent.children[key] = node
        self._queue(node)
        return node

    def release(self, request: Request, *, again: bool = False) -> int:
        """See `KVCache.release`: one that ends is inserted, one that is retracted is not."""
        node = self._paths.pop(request, None)
        count, page = request.held_blocks, self.block_tokens
        request.held_blocks = 0
        if node is not None:
            kept = node.stop // page
            if not again:
                stored = request.computed_then
                self._insert(request, node, stored, complete=stored >= request.target_tokens)
                kept = stored // page
            self.free_blocks += count - kept
            self._unlock(node)
        if not again:
            self._texts.pop(request, None)
        return count

    # --- evicting

    def _key(self, node: Node, stamp: int) -> tuple[int, int]:
        """Lowest first."""
        if self.eviction == "fifo":
            return node.made, 0
        return (node.hits if self.eviction == "lfu" else 0), stamp

    def _queue(self, node: Node) -> None:
        """The node is a leaf that nobody locks."""
        if not node.queued:
            node.queued = True
            heapq.heappush(self._leaves, (self._key(node, node.stamp), node.made, node))

    def _evict(self, blocks: int) -> None:
        """Evict leaves until `blocks` are evicted or none is left."""
        wanted, gone = blocks * self.block_tokens, 0
        while gone < wanted:
            node = self._next_leaf()
            if node is None:
                break
            gone += node.stop - node.start
            self._drop(node)
        self._evictable -= gone // self.block_tokens
        self._lost += gone // self.block_tokens

    def _next_leaf(self) -> Node | None:
        """Take the leaf that goes first out of the heap."""
        heap = self._leaves
        while heap:
            key, _, node = heapq.heappop(heap)
            node.queued = False
            if node.lock or node.children:
                continue
            if self._key(node, node.stamp) == key:
                return node
            self._queue(node)
        return None

    def _drop(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.parent = None
        parent.stamp = max(parent.stamp, node.stamp)
        if not parent.children and not parent.lock:
            self._queue(parent)

    def losses(self, takes: Sequence[int]) -> list[int]:
        """See `CachingPool.losses`."""
        victims = self._in_turn()
        free, lost = self.free_blocks - self._evictable, []
        for take in takes:
            gone = 0
            if free < take:
                while gone < take:
                    size = next(victims, 0)
                    if not size:
                        break
                    gone += size
            free += gone - take
            lost.append(gone)
        return lost

    def _in_turn(self) -> Iterator[int]:
        """Blocks of the leaves that would go one after the other; changes nothing."""
        heap = [(self._key(n, n.stamp), n.made, n, n.stamp) for n in self._nodes() if _free_leaf(n)]
        heapq.heapify(heap)
        left: dict[Node, int] = {}  # children of nodes that lose some
        stamps: dict[Node, int] = {}
        while heap:
            _, _, node, stamp = heapq.heappop(heap)
            yield (node.stop - node.start) // self.block_tokens
            parent = node.parent
            assert parent is not None
            left[parent] = left.get(parent, len(parent.children)) - 1
            stamps[parent] = max(stamps.get(parent, parent.stamp), stamp)
            if not left[parent] and not parent.lock:
                stamp = stamps[parent]
                heapq.heappush(heap, (self._key(parent, stamp), parent.made, parent, stamp))

    def _nodes(self) -> Iterator[Node]:
        """All nodes but the root."""
        stack = [*self._root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def verify(self) -> None:
        """Assert that locks, sizes and the heap of leaves are what the tree says."""
        locks: dict[Node, int] = {}
        held = 0
        for request, end in self._paths.items():
            held += end.stop
            assert end.stop <= request.held_blocks * self.block_tokens
            node = end
            while node.parent is not None:
                locks[node] = locks.get(node, 0) + 1
                node = node.parent
            assert node is self._root
        queued = {node for _, _, node in self._leaves}
        evictable = locked = 0
        for node in self._nodes():
            parent = node.parent
            assert parent is not None
            assert parent.children[node.key] is node
            assert node.lock == locks.get(node, 0) <= parent.lock or parent is self._root
            assert parent.stop == node.start < node.stop == node.ends[-1]
            assert node.start % self.block_tokens == node.stop % self.block_tokens == 0
            assert node.queued == (node in queued)
            assert node.queued or not _free_leaf(node)
            size = node.stop - node.start
            evictable, locked = evictable + size * (not node.lock), locked + size * bool(node.lock)
        assert evictable == self._evictable * self.block_tokens
        assert held - locked == self.shared_blocks * self.block_tokens
        assert self.free_blocks >= self._evictable


def _free_leaf(node: Node) -> bool:
    return not node.lock and not node.children


def _count_hit(node: Node | None) -> None:
    while node is not None:
        node.hits += 1
        node = node.parent
