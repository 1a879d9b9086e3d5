"""A radix tree of tokens, as rule 51 describes it: split nodes, locks up to the root, LRU eviction.

Time is a counter. Each match and each insertion makes its path most recently used, the rest of a
node it splits included, and a new leaf still more so, so no two leaves were used last at the same
time.
"""

from __future__ import annotations


class Node:
    """One edge of the tree: its tokens continue those of its parent."""

    def __init__(self, parent: Node | None, tokens: list):
        self.parent = parent
        self.tokens = tokens
        self.children: dict = {}  # first token -> node
        self.locks = 0  # requests that use it or a node below it
        self.used = 0  # when it was used last


class RadixTree:
    """Knows tokens, not slots: a node holds as many slots as it has tokens."""

    def __init__(self) -> None:
        self.root = Node(None, [])
        self.clock = 0
        self.splits = 0

    # --- looking and adding

    def match(self, tokens: list) -> tuple[Node, int]:
        """The last node of the longest cached run from the start, and the run's length.

        A node in which the run ends is split there.
        """
        self.clock += 1
        node, at = self.root, 0
        while at < len(tokens) and tokens[at] in node.children:
            child = node.children[tokens[at]]
            same = common(child.tokens, tokens[at:])
            child.used = self.clock
            at += same
            if same < len(child.tokens):
                return self.split(child, same), at
            node = child
        return node, at

    def insert(self, tokens: list) -> tuple[Node, int]:
        """Adds what is missing as one leaf. Returns the last node and how much was there."""
        node, at = self.match(tokens)
        if at < len(tokens):
            self.clock += 1  # a new leaf is used still more recently
            leaf = Node(node, tokens[at:])
            leaf.used = self.clock
            node.children[tokens[at]] = leaf
            node = leaf
        return node, at

    def split(self, node: Node, length: int) -> Node:
        """Cuts a node in two; both halves keep its locks and its use. Returns the upper one.

        Whoever locked the node keeps the lower half, and so the whole path.
        """
        self.splits += 1
        upper = Node(node.parent, node.tokens[:length])
        upper.locks, upper.used = node.locks, node.used
        upper.parent.children[upper.tokens[0]] = upper
        node.tokens = node.tokens[length:]
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    # --- locks and eviction

    def lock(self, node: Node) -> None:
        while node is not self.root:
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node is not self.root:
            node.locks -= 1
            assert node.locks >= 0
            node = node.parent

    def evict(self, wanted: int) -> int:
        """Whole unlocked leaves, least recently used first, until that many tokens are out."""
        out = 0
        while out < wanted:
            leaves = [n for n in self.nodes() if not n.children and n.locks == 0]
            if not leaves:
                break
            leaf = min(leaves, key=lambda n: n.used)
            assert sum(n.used == leaf.used for n in leaves) == 1
            del leaf.parent.children[leaf.tokens[0]]
            out += len(leaf.tokens)
        return out

    # --- counting

    def nodes(self) -> list[Node]:
        """All but the root."""
        found, todo = [], [self.root]
        while todo:
            node = todo.pop()
            found += node.children.values()
            todo += node.children.values()
        return found

    def size(self) -> int:
        return sum(len(n.tokens) for n in self.nodes())

    def evictable(self) -> int:
        return sum(len(n.tokens) for n in self.nodes() if n.locks == 0)

    def path(self, node: Node) -> list:
        """All tokens from the start up to the end of the node."""
        tokens: list = []
        while node is not self.root:
            tokens = node.tokens + tokens
            node = node.parent
        return tokens

    def check(self, holders: list[Node]) -> None:
        """Links are right and locks are those of the holders' paths."""
        locks: dict[int, int] = {}
        for node in holders:
            while node is not self.root:
                locks[id(node)] = locks.get(id(node), 0) + 1
                node = node.parent
        for node in self.nodes():
            assert node.tokens, "an empty node"
            assert node.parent.children[node.tokens[0]] is node
            assert node.locks == locks.pop(id(node), 0), "locks differ from those of the requests"
        assert not locks, "a locked node has left the tree"


def common(a: list, b: list) -> int:
    """Length of the common start."""
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n
