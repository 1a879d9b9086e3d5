"""Hits of a trace under other orders of eviction than LRU, block by block."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from typing import Literal, get_args

import numpy as np

from sim.errors import nearest
from sim.request import Ints
from traces.reuse import PrefixReuse

Eviction = Literal["lru", "fifo", "lfu"]
EVICTIONS: tuple[str, ...] = get_args(Eviction)


def hits_under(reuse: PrefixReuse, eviction: str, capacity_blocks: int) -> Ints:
    """(requests,) blocks found by each request in a cache of so many blocks.

    As `PrefixReuse` counts, with these rules for what leaves. Requests come one after the other; a
    request finds what is cached of its leading blocks, then holds all its full blocks, those that
    were not cached entering now. While there are more than `capacity_blocks`, the block with the
    lowest key leaves that the request does not hold:

    - ``lru``: (request that used it last, -position in the prompt);
    - ``fifo``: (request with which it entered, -position);
    - ``lfu``: (requests that used it since it entered, request that used it last, -position).

    Two blocks never have the same key. Under FIFO a block may stay while the one before it goes,
    and is of no use until that one is back; under the others the block before always has the higher
    key. Of a request longer than the cache the first `capacity_blocks` stay and nothing else does.
    Only under LRU a larger cache never finds less.

    Args:
        reuse: Of the trace.
        eviction: ``lru`` (as `PrefixReuse.hits`, but slower), ``fifo`` or ``lfu``.
        capacity_blocks: Size of the cache, at least 0.

    Raises:
        ValueError: No such order, or a capacity below 0.
    """
    if eviction not in EVICTIONS:
        raise ValueError(f"eviction: {eviction!r}{nearest(eviction, EVICTIONS)}")
    if capacity_blocks < 0:
        raise ValueError(f"capacity_blocks: {capacity_blocks}; expected at least 0")
    made = _Fifo if eviction == "fifo" else _Lfu if eviction == "lfu" else _Lru
    cache = made(reuse, capacity_blocks)
    hits = np.zeros(reuse.requests, dtype=np.int64)
    most = np.bincount(reuse.found[:, 0], reuse.found[:, 2], reuse.requests).astype(np.int64)
    bounds = np.searchsorted(reuse.paths[:, 0], np.arange(reuse.requests + 1))
    for request in range(reuse.requests):
        rows = reuse.paths[bounds[request] : bounds[request + 1]]
        if len(rows):
            path = np.concatenate([np.arange(n, n + blocks) for _, n, blocks in rows.tolist()])
            hits[request] = min(cache.leading(path), most[request])
            cache.use(path, request)
    return hits


class _Cache(ABC):
    """Blocks by number, those that are cached, and the request that used each last."""

    def __init__(self, reuse: PrefixReuse, capacity_blocks: int) -> None:
        n = reuse.unique_blocks
        self.parents = reuse.parents
        self.capacity = capacity_blocks
        self.cached = np.zeros(n, dtype=bool)
        self.last = np.full(n, -1, dtype=np.int64)
        self.size = 0

    def leading(self, path: Ints) -> int:
        """How many blocks of a path are cached, without a gap, from its start."""
        gaps = np.flatnonzero(~self.cached[path])
        return int(gaps[0]) if len(gaps) else len(path)

    def use(self, path: Ints, request: int) -> None:
        """Hold a request's blocks, let others leave, and free them again."""
        if len(path) > self.capacity:
            path = path[: self.capacity]
            kept = path[self.cached[path]]
            self.cached[:] = False
            self.cached[kept] = True
            self.size = len(kept)
            self.drop_others(kept)
        new = path[~self.cached[path]]
        self.cached[new] = True
        self.last[path] = request
        self.size += len(new)
        self.hold(path, new, request)
        while self.size > self.capacity:
            self.cached[self.evict(request)] = False
            self.size -= 1
        self.free(path)

    @abstractmethod
    def drop_others(self, kept: Ints) -> None:
        """Only these blocks, all of one path and in its order, are cached any more."""

    @abstractmethod
    def hold(self, path: Ints, new: Ints, request: int) -> None:
        """Note that a request uses the blocks of `path`, of which `new` were not cached."""

    @abstractmethod
    def evict(self, request: int) -> int:
        """The next block to leave of those that the request does not hold."""

    @abstractmethod
    def free(self, path: Ints) -> None:
        """The request's blocks may leave again."""


class _Fifo(_Cache):
    """Blocks in the order in which they entered: of one request the last one first."""

    def __init__(self, reuse: PrefixReuse, capacity_blocks: int) -> None:
        super().__init__(reuse, capacity_blocks)
        self.queue: deque[int] = deque()
        self.held: list[int] = []
        self.entering: list[int] = []

    def drop_others(self, kept: Ints) -> None:
        stay = set(kept.tolist())
        self.queue = deque(block for block in self.queue if block in stay)

    def hold(self, path: Ints, new: Ints, request: int) -> None:
        self.entering = new[::-1].tolist()

    def evict(self, request: int) -> int:
        while self.last[block := self.queue.popleft()] == request:
            self.held.append(block)
        return block

    def free(self, path: Ints) -> None:
        self.queue.extendleft(reversed(self.held))
        self.held.clear()
        self.queue.extend(self.entering)


class _Lru(_Cache):
    """Keys in columns, and a heap of the cached blocks that no cached block follows.

    One of these has the lowest key: a block was used at least as often, and as lately, as those
    behind it.
    """

    def __init__(self, reuse: PrefixReuse, capacity_blocks: int) -> None:
        super().__init__(reuse, capacity_blocks)
        n = reuse.unique_blocks
        self.children, self.position = np.zeros((2, n), dtype=np.int64)
        self.leaves: list[tuple[tuple[int, ...], int]] = []

    def drop_others(self, kept: Ints) -> None:
        self.children[:] = 0
        self.children[kept[:-1]] = 1
        self.leaves = []

    def hold(self, path: Ints, new: Ints, request: int) -> None:
        self.position[new] = np.arange(len(path) - len(new), len(path))
        followed = self.parents[new]
        self.children[followed[followed >= 0]] += 1

    def evict(self, request: int) -> int:
        while True:
            key, block = heapq.heappop(self.leaves)
            leaf = bool(self.cached[block]) and not self.children[block]
            # Of the entries of a block only one that has its present key counts.
            if leaf and self.last[block] != request and key == self.key(block):
                break
        parent = int(self.parents[block])
        if parent >= 0:
            self.children[parent] -= 1
            if self.last[parent] != request:
                self._offer(parent)
        return block

    def free(self, path: Ints) -> None:
        if len(path):
            self._offer(int(path[-1]))

    def _offer(self, block: int) -> None:
        if self.children[block] == 0:
            heapq.heappush(self.leaves, (self.key(block), block))

    def key(self, block: int) -> tuple[int, ...]:
        """Of a cached block; the lowest leaves first."""
        return int(self.last[block]), -int(self.position[block])


class _Lfu(_Lru):
    """As `_Lru`, by the number of uses since a block entered first."""

    def __init__(self, reuse: PrefixReuse, capacity_blocks: int) -> None:
        super().__init__(reuse, capacity_blocks)
        self.uses = np.zeros(reuse.unique_blocks, dtype=np.int64)

    def hold(self, path: Ints, new: Ints, request: int) -> None:
        super().hold(path, new, request)
        self.uses[new] = 0
        self.uses[path] += 1

    def key(self, block: int) -> tuple[int, ...]:
        return int(self.uses[block]), *super().key(block)
