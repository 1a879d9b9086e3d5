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

from sim.extents import Node
from sim.host_cache import TieredPrefixCache
from sim.tier import Tier


class DiskBackedCache(TieredPrefixCache):
    """`TieredPrefixCache` whose host loses blocks to a disk.

    Args:
        total_blocks: Size of the pool.
        block_tokens: Tokens of one block.
        uncached_first: See `PrefixCache`.
        host_blocks: Size of host memory, blocks, at least 1.
        disk_blocks: Size of the disk, blocks, at least 1.

    Attributes:
        disk: What the disk holds, and what was written to it.
        disk_read_blocks: Copied from it so far.
    """

    __slots__ = (
        "_disk_before",
        "disk",
        "disk_read_blocks",
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
        self.disk = self.host.below = Tier(disk_blocks, block_tokens)
        self.disk_read_blocks = 0
        self._disk_before = (0, 0)

    def newly_on_disk(self) -> tuple[int, int]:
        """Blocks read from the disk and written to it since this was last asked."""
        self.settle()
        before, self._disk_before = (
            self._disk_before,
            (self.disk_read_blocks, self.disk_written_blocks),
        )
        return self.disk_read_blocks - before[0], self.disk_written_blocks - before[1]

    @property
    def disk_written_blocks(self) -> int:
        """Blocks copied to the disk so far."""
        return self.disk.written

    def _fetch(self, node: Node) -> None:
        """See `TieredPrefixCache`."""
        super()._fetch(node)
        self.disk_read_blocks += node.blocks
