"""A third tier behind a prefix cache: a disk that keeps what host memory has no room for.

The rules, which go on from those of `sim.host_cache`:

- The disk has `disk_blocks` blocks of the pool's size. A content is there once at most. All stand
  in one queue, those used least recently at the front.
- *Writing.* What leaves the host for want of room is copied to the disk, in the order in which it
  leaves, whoever else has it; it enters the queue at the back. If the disk has its content already,
  that moves to the back and nothing is copied. While there are more blocks than `disk_blocks` the
  front leaves, and is lost.
- *Loading.* g of `sim.host_cache` is the longest run that the host or the disk has, block by block.
  What the host has not is read from the disk into host memory, and goes on from there over the host
  link like all g. The run moves to the back on the host, or enters there, the last block first;
  what of it was read moves to the back on the disk, and stays there, the last block first. Then
  the front leaves the host while it has too many, and is written as above.
- *Time.* A pass reads r bytes and writes w: r / read bandwidth + w / write bandwidth, rounded to ns
  on its own, half to even. This comes before the step like the copies over the link, one after the
  other; with `overlap` step, link and disk run side by side, and the step takes the longest of the
  three. A pass that starts no step leaves it to the next that does.

Sources: LMCache 0.3, ``lmcache/v1/storage_backend/local_disk_backend.py`` (LRU of its own; a hit is
read into buffers of the host's memory and copied to the GPU from there) and SGLang 0.5 HiCache,
``mem_cache/hiradix_cache.py`` and ``managers/cache_controller.py`` (third tier: fetched into host
memory, loaded from there). Differences: both write to disk when the host gets a block or after a
few hits, in the background; here it is written when it leaves the host, and its time is paid.
SGLang fetches while a request waits, and asks the third tier only behind what the host has.
"""

from __future__ import annotations

from sim.extents import Entry, Hosted, Nameless, Node
from sim.host_cache import TieredPrefixCache


class DiskBackedCache(TieredPrefixCache):
    """`TieredPrefixCache` whose host loses blocks to a disk.

    Args:
        total_blocks: Size of the pool.
        block_tokens: Tokens of one block.
        uncached_first: See `PrefixCache`.
        host_blocks: Size of host memory, blocks, at least 1.
        disk_blocks: Size of the disk, blocks, at least 1.

    Attributes:
        disk_blocks: Size of the disk.
        stored_blocks: Blocks that it holds.
        disk_written_blocks: Copied to it so far.
        disk_read_blocks: Copied from it so far.
    """

    __slots__ = (
        "_disk_before",
        "_stored",
        "disk_blocks",
        "disk_read_blocks",
        "disk_written_blocks",
        "stored_blocks",
    )

    def __init__(
        self,
        total_blocks: int,
        block_tokens: int = 16,
        *,
        uncached_first: bool = False,
        host_blocks: int,
        disk_blocks: int,
    ) -> None:
        super().__init__(
            total_blocks, block_tokens, uncached_first=uncached_first, host_blocks=host_blocks
        )
        self.disk_blocks = disk_blocks
        self.stored_blocks = self.disk_written_blocks = self.disk_read_blocks = 0
        self._stored = Entry()  # a ring: what comes after it leaves first
        self._disk_before = (0, 0)

    def newly_on_disk(self) -> tuple[int, int]:
        """Blocks read from the disk and written to it since this was last asked."""
        self.settle()
        before, self._disk_before = (
            self._disk_before,
            (self.disk_read_blocks, self.disk_written_blocks),
        )
        return self.disk_read_blocks - before[0], self.disk_written_blocks - before[1]

    def _is_behind(self, node: Node) -> bool:
        """See `TieredPrefixCache`."""
        return node.hosted is not None or node.stored is not None

    def _use(self, node: Node) -> None:
        """See `TieredPrefixCache`. What the host lacks comes from the disk."""
        if node.hosted is None:
            assert node.stored is not None
            node.hosted = Hosted(node)
            self.hosted_blocks += node.blocks
            self.disk_read_blocks += node.blocks
            node.stored.leave()
            node.stored.enter(self._stored)
        super()._use(node)

    def _left_host(self, node: Node) -> None:
        """See `TieredPrefixCache`. The disk has it from now on."""
        if node.stored is not None:
            node.stored.leave()
        else:
            node.stored = Hosted(node)
            self._written_to_disk(node.blocks)
        node.stored.enter(self._stored)
        older = node.stored.before
        if isinstance(older, Hosted) and not (node.copies or older.node.copies):
            node.swallow(older.node, self.block_tokens)
        self._make_room_on_disk()

    def _nameless_left_host(self, blocks: int) -> None:
        """See `TieredPrefixCache`."""
        last = self._stored.before
        if isinstance(last, Nameless):
            last.blocks += blocks
        else:
            Nameless(blocks, content=True).enter(self._stored)
        self._written_to_disk(blocks)
        self._make_room_on_disk()

    def _written_to_disk(self, blocks: int) -> None:
        self.disk_written_blocks += blocks
        self.stored_blocks += blocks

    def _make_room_on_disk(self) -> None:
        """What was used least recently leaves the disk while it holds too much."""
        while self.stored_blocks > self.disk_blocks:
            over, oldest = self.stored_blocks - self.disk_blocks, self._stored.after
            if isinstance(oldest, Nameless):
                gone = oldest.give(over)
            else:
                assert isinstance(oldest, Hosted)
                gone = self._forget_stored(oldest.node, over)
            self.stored_blocks -= gone

    def _forget_stored(self, node: Node, most: int) -> int:
        """The last blocks of a content, at most so many, leave the disk; how many did."""
        gone = min(most, node.blocks)
        if gone < node.blocks:
            node.split(node.blocks - gone, self.block_tokens)
        assert node.stored is not None
        node.stored.leave()
        node.stored = None
        node.prune()
        return gone

    def verify(self) -> None:
        """Assert also that the disk's queue and the contents agree."""
        super().verify()
        entry, nodes, blocks = self._stored.after, 0, 0
        while entry is not self._stored:
            if isinstance(entry, Hosted):
                assert entry.node.stored is entry
                nodes += 1
                blocks += entry.node.blocks
            elif isinstance(entry, Nameless):
                blocks += entry.blocks
            entry = entry.after
        assert blocks == self.stored_blocks <= self.disk_blocks
        assert nodes == sum(node.stored is not None for node in self._nodes())
