"""What a replica has beside its GPUs: the link to host memory, and what is kept behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.disk_cache import DiskBackedCache
from sim.errors import ConfigError, called
from sim.host import Disk, HostLink, HostMemory
from sim.host_cache import TieredPrefixCache

if TYPE_CHECKING:
    from sim.kvcache import BlockPool
    from sim.replica_spec import ReplicaSpec


class HostTier:
    """A prefix cache with a tier in host memory, and the link that its blocks move over.

    Attributes:
        cache: The cache; it counts blocks.
        link: To host memory, and to a disk behind it if the cache has a tier there.
        block_tokens: Tokens of a block.
        block_bytes: Bytes of a block.
    """

    __slots__ = ("block_bytes", "block_tokens", "cache", "link")

    def __init__(
        self, cache: TieredPrefixCache, link: HostLink, block_tokens: int, block_bytes: int
    ) -> None:
        self.cache, self.link = cache, link
        self.block_tokens, self.block_bytes = block_tokens, block_bytes

    def move(self) -> None:
        """What the pass loaded from the host or made the cache write there moves over the link."""
        cache, disk = self.cache, self.link.disk
        self.link.move(cache.newly_moved() * self.block_bytes)
        if isinstance(cache, DiskBackedCache) and disk is not None:
            read, written = cache.newly_on_disk()
            disk.move(read * self.block_bytes, written * self.block_bytes)

    def found_tokens(self) -> dict[str, int]:
        """Tokens found in host memory and on the disk."""
        cache = self.cache
        disk = cache.disk_read_blocks if isinstance(cache, DiskBackedCache) else 0
        return {
            "host_found_tokens": (cache.loaded_blocks - disk) * self.block_tokens,
            "disk_found_tokens": disk * self.block_tokens,
        }


def link_of(spec: ReplicaSpec) -> HostLink | None:
    """The link to host memory, if the replica has one."""
    bandwidth, read = spec.host_bandwidth_bytes_per_s, spec.disk_read_bytes_per_s
    if bandwidth is None:
        return None
    disk = None if read is None else Disk(read, spec.disk_write_bytes_per_s or read)
    return HostLink(bandwidth, overlap=spec.host_overlap, disk=disk)


def tier_of(spec: ReplicaSpec, kv: BlockPool, link: HostLink | None) -> HostTier | None:
    """The cache, if it has a tier in host memory.

    Raises:
        ConfigError: What it keeps KV on is not there.
    """
    if not isinstance(kv, TieredPrefixCache):
        return None
    name = called(spec.policy)
    if link is None:
        raise ConfigError(
            f"policy {name} keeps KV on the host, and its replica has no link to it; give "
            "host_bandwidth_bytes_per_s"
        )
    if isinstance(kv, DiskBackedCache) and link.disk is None:
        raise ConfigError(
            f"policy {name} keeps KV on a disk, and its replica has none; give "
            "disk_read_bytes_per_s"
        )
    return HostTier(kv, link, spec.block_tokens, _block_bytes(spec))


def memory_of(spec: ReplicaSpec, blocks: int, link: HostLink | None) -> HostMemory | None:
    """Host memory of as many blocks as the policy asks for, behind the link.

    Raises:
        ConfigError: There is no link.
    """
    if not blocks:
        return None
    if link is None:
        raise ConfigError(
            f"policy {called(spec.policy)} swaps to the host, and its replica has no link to it; "
            "give host_bandwidth_bytes_per_s"
        )
    return HostMemory(blocks, link, _block_bytes(spec))


def facts_of(link: HostLink | None, tier: HostTier | None) -> dict[str, int]:
    """What moved to and from host memory and a disk behind it, and what was found there."""
    if link is None:
        return {}
    facts = {"host_bytes": link.moved_bytes}
    if link.disk is not None:
        facts["disk_read_bytes"] = link.disk.read_bytes
        facts["disk_written_bytes"] = link.disk.written_bytes
    if tier is not None:
        facts |= tier.found_tokens()
    return facts


def _block_bytes(spec: ReplicaSpec) -> int:
    return spec.block_tokens * spec.kv_bytes_per_token
