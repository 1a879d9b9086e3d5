"""Prefix reuse of a trace: a direct, exact count of what a cache of any size would have found.

Requests come one after the other (rules 40 to 43); a simulation, where they overlap and the queue
of free blocks also holds blocks without content, may find other numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sim.content import token_runs
from sim.errors import TraceError
from sim.request import Ints, Trace

_ODD_KEYS = -(1 << 62)
"""Where the names of blocks begin that are no run of consecutive tokens; below `own_tokens`."""


@dataclass(frozen=True)
class PrefixReuse:
    """What requests of a trace find cached, one after the other, block by block.

    A request finds the leading run of its full blocks that is cached, at most
    ``(prompt - 1) // block_tokens`` of them. Then it holds all its full blocks; as it ends they are
    the ones used last, its first block most recently. A cache of C blocks under LRU holds the C
    blocks used last, so that a block is found by every cache that is larger than the number of
    blocks used more recently: one pass counts for all capacities. That also says what a request
    longer than the cache leaves: its first C blocks. Only prompts count, not what was generated.

    Attributes:
        block_tokens: Tokens of a KV block.
        prompt_tokens: Of all requests.
        requests: How many.
        full_blocks: Of all prompts.
        unique_blocks: Different ones: what an unlimited cache holds in the end.
        found: (k, 3) runs of blocks that some cache finds: request, blocks used more recently than
            the first of the run, blocks in the run. Each next block has one more in front of it.
        paths: (j, 3) what requests hold, from their first block on: request, number of the first
            block of a run, blocks. Blocks are numbered from 0 in order of first use.
        parents: (unique_blocks,) number of the block before each in every prompt, -1 for none.
    """

    block_tokens: int
    prompt_tokens: int
    requests: int
    full_blocks: int
    unique_blocks: int
    found: Ints = field(repr=False)
    paths: Ints = field(repr=False)
    parents: Ints = field(repr=False)

    def hits(self, capacity_blocks: int | None = None) -> Ints:
        """(requests,) blocks found under LRU; `capacity_blocks` None is unlimited.

        Raises:
            ValueError: A capacity below 0.
        """
        blocks = _seen(self.found, capacity_blocks)
        return np.bincount(self.found[:, 0], blocks, self.requests).astype(np.int64)

    def hit_blocks(self, capacity_blocks: int | None = None) -> int:
        """Blocks found by all requests under LRU; None is unlimited."""
        return int(_seen(self.found, capacity_blocks).sum())

    def block_ids(self) -> list[Ints]:
        """(requests,) the full blocks of each prompt by number; equal leading ones are shared."""
        ends = np.searchsorted(self.paths[:, 0], np.arange(1, self.requests))
        return [
            np.concatenate(
                [np.arange(n, n + k) for _, n, k in rows.tolist()] or [self.paths[:0, 0]]
            )
            for rows in np.split(self.paths, ends)
        ]

    @cached_property
    def curve(self) -> Ints:
        """(unique_blocks + 1,) blocks found under LRU by a cache of 0, 1, 2, ... blocks."""
        steps = np.zeros(self.unique_blocks + 2, dtype=np.int64)
        np.add.at(steps, self.found[:, 1] + 1, 1)
        np.add.at(steps, self.found[:, 1] + self.found[:, 2] + 1, -1)
        return np.cumsum(np.cumsum(steps))[: self.unique_blocks + 1]


def _seen(found: Ints, capacity_blocks: int | None) -> Ints:
    if capacity_blocks is None:
        return found[:, 2]
    if capacity_blocks < 0:
        raise ValueError(f"capacity_blocks: {capacity_blocks}; expected at least 0")
    return np.clip(capacity_blocks - found[:, 1], 0, found[:, 2])


def prefix_reuse(trace: Trace, block_tokens: int | None = None) -> PrefixReuse:
    """Count the prefix reuse of `trace`, in its order.

    The cost follows the runs of consecutive blocks, not the blocks.

    Args:
        trace: With block ids, or content.
        block_tokens: Tokens of a KV block; None for the trace's own blocks, else 16.

    Raises:
        TraceError: Nothing is known of what prompts are made of.
        ValueError: `block_tokens` below 1.
    """
    if trace.block_ids is None and trace.content is None:
        raise TraceError(
            f"{trace.source}: no block ids, so that no two prompts are known to share anything;"
            " expected a trace with hash_ids, sessions, or a preset whose prompts share parts"
        )
    size = block_tokens or trace.block_ids_tokens or 16
    if size < 1:
        raise ValueError(f"block_tokens: {block_tokens}; expected at least 1")
    counter = _Counter(size, len(trace))
    full = trace.prompt_tokens // size
    for request, blocks in enumerate(full.tolist()):
        runs = token_runs(request, trace.content_of(request), 0, blocks * size)
        most = max(0, int(trace.prompt_tokens[request]) - 1) // size
        counter.add(request, counter.blocks(runs), most)
    return PrefixReuse(
        block_tokens=size,
        prompt_tokens=int(trace.prompt_tokens.sum()),
        requests=len(trace),
        full_blocks=int(full.sum()),
        unique_blocks=len(counter.parents),
        found=_rows(counter.found),
        paths=_rows(counter.paths),
        parents=np.array(counter.parents, dtype=np.int64),
    )


def _rows(flat: array[int]) -> Ints:
    return np.array(flat, dtype=np.int64).reshape(-1, 3)


class _Node:
    """Blocks that follow each other in every prompt that has the first of them.

    Attributes:
        key: Name of the first block; that of each next one is `block_tokens` higher.
        number: Of the first block.
        blocks: How many.
        last: The request that used them last. Those used last by one request follow each other.
        children: By the key of their first block.
    """

    __slots__ = ("blocks", "children", "key", "last", "number")

    def __init__(self, key: int, number: int, blocks: int, last: int) -> None:
        self.key = key
        self.number = number
        self.blocks = blocks
        self.last = last
        self.children: dict[int, _Node] = {}


class _Counter:
    """All blocks seen so far as a tree, and how many each request was the last to use."""

    def __init__(self, block_tokens: int, requests: int) -> None:
        self.size = block_tokens
        self.root = _Node(0, -1, 0, 0)
        self.odd: dict[tuple[tuple[int, int], ...], int] = {}
        self.recent = _Sums(requests)
        self.found = array("q")
        self.paths = array("q")
        self.parents: list[int] = []

    def blocks(self, runs: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Runs of tokens, cut into (name of the first block, blocks); whole blocks in all.

        A block inside one run of tokens is named after its first token, one made of several runs
        gets a name of its own.
        """
        size, pieces, held = self.size, list[tuple[int, int]](), 0
        for first, tokens in runs:
            if held:
                taken = min(tokens, size - held)
                pieces.append((first, taken))
                held, first, tokens = held + taken, first + taken, tokens - taken
                if held == size:
                    yield self.odd.setdefault(tuple(pieces), _ODD_KEYS + len(self.odd) * size), 1
                    pieces, held = [], 0
            if whole := tokens // size:
                yield first, whole
            if rest := tokens % size:
                pieces, held = [*pieces, (first + tokens - rest, rest)], held + rest

    def add(self, request: int, blocks: Iterator[tuple[int, int]], most: int) -> None:
        """One request: what it finds, at most `most` blocks, then what it holds."""
        node, room, new = self.root, most, 0
        last, used, counted = -1, 0, 0  # blocks in a row that one request was the last to use
        for key, left in blocks:
            while left:
                child = node.children.get(key)
                if child is None:
                    child = self._grow(node, key, left, request)
                    new += left
                else:
                    if left < child.blocks:
                        self._split(child, left)
                    if child.last != last:
                        self._use(request, last, used, counted)
                        last, used, counted = child.last, 0, 0
                    used += child.blocks
                    counted += min(child.blocks, room)
                    room -= min(child.blocks, room)
                    child.last = request
                self.paths.extend((request, child.number, child.blocks))
                left -= child.blocks
                key += child.blocks * self.size
                node = child
        self._use(request, last, used, counted)
        self.recent.add(request, new)

    def _use(self, request: int, last: int, used: int, counted: int) -> None:
        """Blocks in a row that `last` was the last to use are now of `request`."""
        if not used:
            return
        if counted:
            self.found.extend((request, self.recent.after(last), counted))
        self.recent.add(last, -used)
        self.recent.add(request, used)

    def _grow(self, node: _Node, key: int, blocks: int, request: int) -> _Node:
        number = len(self.parents)
        self.parents.append(node.number + node.blocks - 1 if node.blocks else -1)
        self.parents.extend(range(number, number + blocks - 1))
        child = node.children[key] = _Node(key, number, blocks, request)
        return child

    def _split(self, node: _Node, blocks: int) -> None:
        key = node.key + blocks * self.size
        rest = _Node(key, node.number + blocks, node.blocks - blocks, node.last)
        rest.children, node.children, node.blocks = node.children, {key: rest}, blocks


class _Sums:
    """Blocks of each request, and sums over all later ones: a Fenwick tree."""

    def __init__(self, requests: int) -> None:
        self._sums = [0] * (requests + 1)
        self._total = 0

    def add(self, request: int, blocks: int) -> None:
        self._total += blocks
        at = request + 1
        while at < len(self._sums):
            self._sums[at] += blocks
            at += at & -at

    def after(self, request: int) -> int:
        """Blocks of the requests after this one."""
        at, until = request + 1, 0
        while at:
            until += self._sums[at]
            at -= at & -at
        return self._total - until
