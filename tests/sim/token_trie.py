"""`sim.radix_cache` said plainly: a trie with one entry for each page, and no run anywhere.

Written from rule 51. A *node* of the radix tree is a chain of entries up to one where a node
`ends`. Every entry on a path is stamped; eviction looks at all leaves each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Page = tuple[int, ...]


class Entry:
    """A page of tokens behind those of its parent."""

    def __init__(self, parent: Entry | None, page: Page) -> None:
        self.parent = parent
        self.page = page
        self.children: dict[Page, Entry] = {}
        self.ends = False
        self.locks = self.stamp = self.made = self.hits = 0

    def node(self) -> list[Entry]:
        """The entries of the node that ends here, last one first."""
        entries = [self]
        while (before := entries[-1].parent) is not None and before.parent is not None:
            if before.ends:
                break
            entries.append(before)
        return entries


class TokenTrie:
    """As `RadixCache`, for whoever says what the tokens are, page by page."""

    def __init__(self, total: int, eviction: str) -> None:
        self.root = Entry(None, ())
        self.free = total
        self.eviction = eviction
        self.clock = self.lost = 0

    def entries(self) -> list[Entry]:
        """All of them."""
        found, stack = [], [*self.root.children.values()]
        while stack:
            entry = stack.pop()
            found.append(entry)
            stack += entry.children.values()
        return found

    def evictable(self) -> int:
        """Pages that nobody locks."""
        return sum(not entry.locks for entry in self.entries())

    def path(self, pages: list[Page]) -> list[Entry]:
        """The entries of these pages, as far as they are there."""
        path, here = [], self.root
        for page in pages:
            if page not in here.children:
                break
            here = here.children[page]
            path.append(here)
        return path

    def match(self, pages: list[Page]) -> list[Entry]:
        """A use of the path, which ends with a node afterwards."""
        self.clock += 1
        path = self.path(pages)
        if path and not path[-1].ends:
            for entry in path[-1].node():  # the front part of the node that is split
                entry.made = self.clock
            for entry in self.rest(path[-1]):
                entry.stamp = self.clock
            path[-1].ends = True
        for entry in path:
            entry.stamp = self.clock
        return path

    @staticmethod
    def rest(entry: Entry) -> Iterator[Entry]:
        """The entries behind one that is inside a node, up to its end."""
        while not entry.ends:
            (entry,) = entry.children.values()
            yield entry

    def insert(self, pages: list[Page], *, complete: bool) -> tuple[list[Entry], int]:
        """The path afterwards, and how much of it was there."""
        path = self.match(pages)
        there = len(path)
        self.clock += 1
        for page in pages[there:]:
            above = path[-1] if path else self.root
            above.children[page] = entry = Entry(above, page)
            entry.stamp = entry.made = self.clock
            path.append(entry)
        if pages:
            path[-1].ends = True
        if complete:
            for entry in path:
                entry.hits += 1
        return path, there

    def want(self, pages: int) -> None:
        """Evict if fewer are free."""
        if self.free < pages:
            self.evict(pages)

    def evict(self, pages: int) -> None:
        """Evict whole leaves until so many pages are evicted or no unlocked leaf is left."""
        gone = 0
        while gone < pages:
            leaves = [x for x in self.entries() if not x.children and not x.locks]
            if not leaves:
                break
            node = min(leaves, key=self._key).node()
            parent = node[-1].parent
            assert parent is not None
            del parent.children[node[-1].page]
            gone += len(node)
            self.free += len(node)
        self.lost += gone

    def _key(self, leaf: Entry) -> Any:
        if self.eviction == "fifo":
            return leaf.made
        return (leaf.hits if self.eviction == "lfu" else 0), leaf.stamp
