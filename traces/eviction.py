"""Hits of a trace under other orders of eviction than LRU, block by block."""

from __future__ import annotations

import heapq
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
    were not cached entering now. While there are more than `capacity_blocks`, a block leaves that
    no cached block follows and that the request does not hold, the one with the lowest key:

    - ``lru``: (request that used it last, -position in the prompt);
    - ``fifo``: (request with which it entered, -position);
    - ``lfu``: (requests that used it since it entered, request that used it last, -position).

    Two blocks never have the same key. Of a request longer than the cache the first
    `capacity_blocks` stay and nothing else does. Only LRU finds never less in a larger cache.

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
    cache = _Cache(reuse, eviction, capacity_blocks)
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


class _Cache:
    """Blocks by number; keys in columns, and a heap of those that may leave."""

    def __init__(self, reuse: PrefixReuse, eviction: str, capacity_blocks: int) -> None:
        n = reuse.unique_blocks
        self.parents = reuse.parents
        self.capacity = capacity_blocks
        self.eviction = eviction
        self.cached = np.zeros(n, dtype=bool)
        self.children = np.zeros(n, dtype=np.int64)
        self.uses, self.entered, self.last, self.position = np.zeros((4, n), dtype=np.int64)
        self.size = 0
        self.leaves: list[tuple[tuple[int, ...], int]] = []

    def leading(self, path: Ints) -> int:
        """How many blocks of a path are cached, without a gap, from its start."""
        gaps = np.flatnonzero(~self.cached[path])
        return int(gaps[0]) if len(gaps) else len(path)

    def use(self, path: Ints, request: int) -> None:
        """Hold a request's blocks, let others leave, and free them again."""
        if len(path) > self.capacity:
            path = path[: self.capacity]
            self._keep_only(path[: self.leading(path)])
        # What is cached of a path is always its beginning: only last blocks leave.
        new = path[self.leading(path) :]
        self.position[new] = np.arange(len(path) - len(new), len(path))
        self.entered[new] = request
        self.uses[new] = 0
        self.uses[path] += 1
        self.last[path] = request
        self.cached[new] = True
        followed = self.parents[new]
        self.children[followed[followed >= 0]] += 1
        self.size += len(new)
        while self.size > self.capacity:
            self._evict(request)
        if len(path):
            self._offer(int(path[-1]))

    def _keep_only(self, path: Ints) -> None:
        self.cached[:] = False
        self.children[:] = 0
        self.cached[path] = True
        self.children[path[:-1]] = 1
        self.size, self.leaves = len(path), []

    def _offer(self, block: int) -> None:
        if self.children[block] == 0:
            heapq.heappush(self.leaves, (self._key(block), block))

    def _key(self, block: int) -> tuple[int, ...]:
        last, back = int(self.last[block]), -int(self.position[block])
        if self.eviction == "lru":
            return last, back
        if self.eviction == "fifo":
            return int(self.entered[block]), back
        return int(self.uses[block]), last, back

    def _evict(self, request: int) -> None:
        while True:
            key, block = heapq.heappop(self.leaves)
            held = self.last[block] == request
            # Of the entries of a block only one that has its present key counts.
            leaf = bool(self.cached[block]) and not self.children[block]
            if leaf and not held and key == self._key(block):
                break
        self.cached[block] = False
        self.size -= 1
        parent = int(self.parents[block])
        if parent >= 0:
            self.children[parent] -= 1
            if self.last[parent] != request:
                self._offer(parent)
