"""What a router remembers of the prompts that it sent to one replica: a radix tree with a limit."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

Runs = Iterable[tuple[int, int]]
"""(first integer, tokens) of each run of consecutive tokens, in order: see `sim.content`."""


class _Node:
    """One run of tokens below another.

    Attributes:
        first: Its first integer, under which its parent has it.
        tokens: Its length.
        parent: What stands before it; None for the root.
        children: What follows it, by the first integer.
        used: Number of the insertion that used it last.
    """

    __slots__ = ("children", "first", "parent", "tokens", "used")

    def __init__(self, first: int, tokens: int, parent: _Node | None, used: int) -> None:
        self.first = first
        self.tokens = tokens
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.used = used


class PrefixIndex:
    """Token sequences as a tree, the least recently inserted ends of which are forgotten.

    A node is split where an insertion ends in it or leaves it. Looking changes nothing. Each
    insertion makes its path the most recently used; while the tree holds more than `most_tokens`,
    the leaf that was used longest ago goes, whole (no two leaves were used last by the same
    insertion). Work is in proportion to the nodes passed, not to the tokens.

    Args:
        most_tokens: Most tokens kept.

    Attributes:
        tokens: Tokens of all nodes.
    """

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.tokens = 0
        self._root = _Node(0, 0, None, 0)
        self._insertions = 0
        self._leaves: list[tuple[int, int, _Node]] = []  # by last use; stale entries among them
        self._pushed = 0

    def match(self, runs: Runs) -> int:
        """Tokens of the longest beginning of `runs` that is in the tree."""
        node, matched = self._root, 0
        for first, tokens in runs:
            while tokens:
                child = node.children.get(first)
                if child is None:
                    return matched
                if tokens < child.tokens:  # the run after it does not continue it, or were one
                    return matched + tokens
                matched += child.tokens
                first, tokens, node = first + child.tokens, tokens - child.tokens, child
        return matched

    def insert(self, runs: Runs) -> None:
        """Take in a sequence; forget what is too much."""
        self._insertions += 1
        node = self._root
        for first, tokens in runs:
            while tokens:
                child = node.children.get(first)
                if child is None:
                    child = self._add(node, first, tokens)
                elif tokens < child.tokens:
                    self._split(child, tokens)
                child.used = self._insertions
                first, tokens, node = first + child.tokens, tokens - child.tokens, child
        if node is not self._root and not node.children:
            self._push(node)
        while self.tokens > self.most_tokens:
            self._forget_one()

    def _add(self, parent: _Node, first: int, tokens: int) -> _Node:
        node = parent.children[first] = _Node(first, tokens, parent, self._insertions)
        self.tokens += tokens
        return node

    def _split(self, node: _Node, tokens: int) -> None:
        """The node keeps its first `tokens`; the rest stands below it, last used when it was."""
        rest = _Node(node.first + tokens, node.tokens - tokens, node, node.used)
        rest.children, node.children = node.children, {rest.first: rest}
        for child in rest.children.values():
            child.parent = rest
        node.tokens = tokens
        if not rest.children:
            self._push(rest)

    def _push(self, leaf: _Node) -> None:
        self._pushed += 1
        heapq.heappush(self._leaves, (leaf.used, self._pushed, leaf))

    def _forget_one(self) -> None:
        """Drop the leaf used longest ago."""
        while True:
            used, _, leaf = heapq.heappop(self._leaves)
            parent = leaf.parent
            alive = parent is not None and parent.children.get(leaf.first) is leaf
            if alive and not leaf.children and leaf.used == used:
                break
        assert parent is not None
        del parent.children[leaf.first]
        self.tokens -= leaf.tokens
        if parent is not self._root and not parent.children:
            self._push(parent)
