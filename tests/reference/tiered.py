"""`vllm-v1` with a prefix cache, host memory and perhaps a disk behind it.

Made from the rules of `sim.host_cache` and `sim.disk_cache`. Options beside those of
`CachedVllmV1`: host_cache_blocks, host_bandwidth (bytes per second), host_overlap [False] and
kv_bytes_per_token; disk_cache_blocks [None], disk_read and disk_write (bytes per second). Host
memory and the disk are lists of contents, front first.
"""

from __future__ import annotations

from .cached import BlockCache, CachedVllmV1
from .loading import refsim
from .request import Request


class RememberingCache(BlockCache):
    """It keeps a list of contents that blocks lost and that nobody has judged yet."""

    def __init__(self, total: int, uncached_first: bool):
        super().__init__(total, uncached_first)
        self.gone: list[int] = []  # in order of loss

    def take(self):
        if self.queue[0].content is not None:
            self.gone.append(self.queue[0].content)
        return super().take()


class TieredVllmV1(CachedVllmV1):
    """What the pool loses goes to the host, and comes back from there at admission."""

    def __init__(self, name, cfg, role):
        super().__init__(name, cfg, role)
        self.cache = RememberingCache(self.total, cfg.get("uncached_first", False))
        self.host_size = cfg["host_cache_blocks"]
        self.host: list[int] = []
        self.moved = 0  # blocks, this pass, both directions
        self.moved_in_all = 0
        self.owed_ns = 0
        self.disk_size = cfg.get("disk_cache_blocks") or 0
        self.disk: list[int] = []
        self.read = self.written = 0  # blocks, this pass
        self.disk_in_all = [0, 0]
        self.disk_owed_ns = 0

    # --- write-back

    def judge(self) -> None:
        """The pass looks for hits or preempts, or is over: what was lost goes to the host."""
        while self.cache.gone:
            content = self.cache.gone.pop(0)
            if content in self.cache.copies or content in self.cache.gone:
                self.sim.note("lost, another block has it")
                continue
            self.put(content)

    def preempt(self, r: Request) -> None:
        self.judge()
        super().preempt(r)

    def put(self, content: int) -> None:
        if content in self.host:
            self.sim.note("lost, the host has it")
            self.host.remove(content)
        else:
            self.sim.note("written")
            self.moved += 1
        self.host.append(content)
        self.make_room()

    def make_room(self) -> None:
        while len(self.host) > self.host_size:
            self.sim.note("the host forgets")
            self.demote(self.host.pop(0))

    def demote(self, content: int) -> None:
        """It leaves the host, for the disk if there is one."""
        if not self.disk_size:
            return
        if content in self.disk:
            self.sim.note("the disk has it")
            self.disk.remove(content)
        else:
            self.written += 1
        self.disk.append(content)
        while len(self.disk) > self.disk_size:
            self.sim.note("the disk forgets")
            self.disk.pop(0)

    # --- loading

    def match(self, r: Request, tokens: int) -> list:
        self.judge()
        return super().match(r, tokens)

    def more(self, r: Request, found: int) -> list[int]:
        """The run that the host has behind what the pool has."""
        most = (r.known - 1) // self.block_tokens
        run = []
        for content in self.sim.chains.of(r, most, self.block_tokens)[found:]:
            if content not in self.host and content not in self.disk:
                break
            run.append(content)
        if run and found:
            self.sim.note("host hit behind a hit")
        return run

    def fetch(self, contents: list[int]) -> None:
        for content in reversed(contents):
            self.sim.note("loaded")
            if content in self.host:
                self.host.remove(content)
            else:
                self.sim.note("read from disk")
                self.disk.remove(content)
                self.disk.append(content)
                self.read += 1
            self.host.append(content)
        self.moved += len(contents)
        self.make_room()

    # --- time

    def end_pass(self):
        self.judge()
        size = self.moved * self.block_tokens * self.cfg["kv_bytes_per_token"]
        self.owed_ns += refsim.to_ns(size / self.cfg["host_bandwidth"])  # rounded on its own
        self.moved_in_all += self.moved
        self.moved = 0
        if self.disk_size:
            self.disk_time()

    def disk_time(self) -> None:
        block = self.block_tokens * self.cfg["kv_bytes_per_token"]
        read, written = self.read * block, self.written * block
        self.disk_owed_ns += refsim.to_ns(
            read / self.cfg["disk_read"] + written / self.cfg["disk_write"]
        )
        self.disk_in_all[0] += read
        self.disk_in_all[1] += written
        self.read = self.written = 0

    def step_ns(self, pieces):
        """The sum of step, copies and disk, or the longest of them."""
        parts = [super().step_ns(pieces), self.owed_ns, self.disk_owed_ns]
        self.owed_ns = self.disk_owed_ns = 0
        return max(parts) if self.cfg.get("host_overlap", False) else sum(parts)

    def check(self, reqs):
        super().check(reqs)
        assert len(self.host) == len(set(self.host)) <= self.host_size
        assert len(self.disk) == len(set(self.disk)) <= self.disk_size
        assert not self.cache.gone
