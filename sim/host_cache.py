"""A second tier behind a prefix cache: host memory that keeps what the device's blocks lose.

The rules, in the form of those of the prefix cache (40 to 48):

- Host memory has `host_blocks` blocks of the pool's size. A content, whose identity is that of rule
  40, is there once at most. All stand in one queue, those used least recently at the front.
- *Write-back.* A block that loses its content (rule 41) is copied to the host, unless another block
  of the pool has that content. This is judged when the pass next looks for hits or preempts, or at
  its end, all that was scheduled up to then being registered, one lost block after the other: one
  that is lost later still has its content. It enters the queue at the back; if the host has its
  content already, that moves to the back and nothing is copied. Blocks that nobody can ask for any
  more are copied like others: an engine does not know it. While there are more blocks than
  `host_blocks` the front leaves.
- *Loading.* A request at its (re-)admission finds h blocks in the pool (rule 47) and then g, the
  longest run from there that the host has, h + g at most floor((known - 1) / block). The g blocks
  are new ones of the pool, counted as needed like those of the first chunk, and count as computed:
  they are in `before` and not in P. They can be hit from then on, as blocks scheduled in this pass
  (rule 44). On the host they move to the back, the last block first. What the pool has behind the
  run is not used.
- *Time.* What a pass writes and loads, blocks x block_tokens x kv_bytes_per_token, moves over the
  host link, and lengthens the step as rule 20 says for swapping, or runs beside it (`overlap`). A
  loaded block is used in the very step that waits for it.
- A decode replica matches only its pool when it reserves; what it evicts is written as above.

Sources: vLLM 0.11 to 0.19, ``vllm/v1/kv_offload`` with the ``OffloadingConnector`` (LRU of blocks
in host memory, lookup behind the device's hits; it copies blocks when they are computed, and a
request waits for its load outside of the batch), and SGLang 0.5 HiCache, ``mem_cache/
hiradix_cache.py`` (``write_back``: copied when evicted from the device). LMCache also copies at
once. A disk behind it: `sim.disk_cache`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from sim.extents import Extent, Nameless, Node, block_runs
from sim.prefix_cache import Path, PrefixCache
from sim.request import Request
from sim.tier import Tier


class TieredPrefixCache(PrefixCache):
    """`PrefixCache` whose lost blocks go to host memory and come back from there.

    Args:
        total_blocks: Size of the pool.
        block_tokens: Tokens of one block.
        uncached_first: See `PrefixCache`.
        host_blocks: Size of host memory, blocks, at least 1.

    Attributes:
        host: What the host holds, and what it wrote.
        loaded_blocks: Copied from the host to the pool so far.
    """

    __slots__ = (
        "_loading",
        "_moved_before",
        "host",
        "loaded_blocks",
    )

    def __init__(
        self,
        total_blocks: int,
        block_tokens: int = 16,
        *,
        uncached_first: bool = False,
        host_blocks: int,
    ) -> None:
        super().__init__(total_blocks, block_tokens, uncached_first=uncached_first)
        self.host = Tier(host_blocks, block_tokens)
        self.loaded_blocks = self._moved_before = 0
        self._loading: tuple[Request, int] | None = None  # blocks that `match` found on the host

    @property
    def written_blocks(self) -> int:
        """Blocks copied to the host so far."""
        return self.host.written

    def newly_moved(self) -> int:
        """Blocks copied in either direction since this was last asked."""
        self.settle()
        before, self._moved_before = self._moved_before, self.written_blocks + self.loaded_blocks
        return self._moved_before - before

    def blocks_without_content(self) -> int:
        """Blocks that can be taken before one loses its content."""
        self.settle()
        blocks = self._blank
        for more, content in self._contents():
            if content:
                break
            blocks += more
        return blocks

    def _named_blocks(self, request: Request) -> int:
        """See `PrefixCache`. The host may have what a request generated before it was preempted."""
        if request.preemptions:
            return (request.prompt_tokens + request.max_tokens - 1) // self.block_tokens
        return super()._named_blocks(request)

    # --- loading

    def match(self, request: Request) -> int:
        """Tokens of a waiting request found in the pool and then on the host."""
        found = super().match(request)
        assert self._match is not None
        hosted = sum(blocks for _, blocks in self._on_host(request, self._match[1]))
        self._loading = (request, hosted)
        return found + hosted * self.block_tokens

    def peek(self, request: Request) -> int:
        """See `KVCache.peek`."""
        path = self._find(request, self._cap(request))
        blocks = sum(n for _, n in path) + sum(n for _, n in self._on_host(request, path))
        return blocks * self.block_tokens

    def _on_host(self, request: Request, path: Path) -> list[tuple[Node, int]]:
        """The run of contents on the host that follows what was found in the pool."""
        found = sum(blocks for _, blocks in path)
        node = path[-1][0].node if path else self._root
        run: list[tuple[Node, int]] = []
        inside = path[-1][1] if path else node.blocks  # blocks of `node` behind us
        for key, blocks in block_runs(request, found, self._cap(request), self.block_tokens):
            while blocks:
                if inside < node.blocks:
                    return run
                child = node.children.get(key)
                if child is None or not child.places:
                    return run
                node, inside = child, min(blocks, child.blocks)
                run.append((node, inside))
                blocks -= inside
                key = self._key_after(key, inside) if blocks else key
        return run

    def _admit(self, request: Request, path: Path, tokens: int, keep_free: int) -> bool:
        """See `PrefixCache`; what is loaded is computed, and used last."""
        loading, self._loading = self._loading, None
        if not super()._admit(request, path, tokens, keep_free):
            return False
        if loading is not None and loading[0] is request:
            self._load(self._on_host(request, path))
            self.loaded_blocks += loading[1]
            self._held[request].stored_tokens += loading[1] * self.block_tokens
        return True

    def _load(self, run: list[tuple[Node, int]]) -> None:
        for node, blocks in reversed(run):
            used = node.split(blocks, self.block_tokens) if blocks < node.blocks else node
            if used.place_in(self.host) is None:
                self._fetch(used)
            self.host.use(used)
        self.host.make_room()

    def _fetch(self, node: Node) -> None:
        """The host lacks this content, and reads it from below."""
        self.host.read_from_below(node)

    # --- writing

    def _lose(self, extent: Extent, most: int) -> int:
        """See `PrefixCache`. Who generates this content has it, registered or not."""
        above = extent.node.parent
        while above is not None:
            parent = above.parent
            self._catch_up(above)
            above = parent
        front = self._queue.after  # that extent, or what was cut off it just now
        assert isinstance(front, Extent)
        return super()._lose(front, most)

    def _may_forget(self, node: Node) -> bool:
        """The host keeps it."""
        return False

    def _let_go(self, node: Node) -> None:
        """A copy of this content is lost: the host has it from now on if nobody else does."""
        if not node.copies:
            self.host.keep(node)

    def _lose_nameless(self, entry: Nameless, most: int) -> int:
        """See `PrefixCache`. What nobody can ask for takes room on the host as well."""
        taken = super()._lose_nameless(entry, most)
        if entry.content:
            self.host.keep_nameless(taken)
        return taken

    def standing(self) -> Hashable:
        """See `CachingPool.standing`: also what the tiers hold, and in which order."""
        pool = super().standing()
        assert self._names is not None
        tiers: list[Hashable] = []
        tier: Tier | None = self.host
        while tier is not None:
            tiers.append(tier.standing(self._names))
            tier = tier.below
        return pool, tuple(tiers)

    def verify(self) -> None:
        """Assert also that the tiers' queues and the contents agree."""
        super().verify()
        tier: Tier | None = self.host
        while tier is not None:
            tier.verify(self._nodes())
            tier = tier.below

    def _nodes(self) -> Iterator[Node]:
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            yield node
            nodes += node.children.values()
