"""A memory behind the pool of a prefix cache (host, disk): which contents it holds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from sim.cache_names import Names
from sim.extents import Entry, Nameless, Node, Place


class Tier:
    """Contents, each there once at most, in one queue: those used least recently at the front.

    While it holds too much the front leaves, to the tier below if there is one.

    Args:
        size: Most blocks.
        block_tokens: Tokens of one block.
        below: Where goes what has to leave; None: nowhere.

    Attributes:
        size: Most blocks.
        blocks: Blocks that it holds.
        written: Blocks copied to it from above so far.
    """

    __slots__ = ("_queue", "below", "block_tokens", "blocks", "size", "written")

    def __init__(self, size: int, block_tokens: int, below: Tier | None = None) -> None:
        self.size = size
        self.block_tokens = block_tokens
        self.below = below
        self.blocks = self.written = 0
        self._queue = Entry()  # a ring: what comes after it leaves first

    def keep(self, node: Node) -> None:
        """This content comes from above; what is there already is copied no second time."""
        place = node.place_in(self)
        if place is None:
            place = node.put_in(self)
            self.count_written(node.blocks)
        place.leave()
        place.enter(self._queue)
        older = place.before
        if isinstance(older, Place) and not (node.copies or older.node.copies):
            node.swallow(older.node, self.block_tokens)
        self.make_room()

    def keep_nameless(self, blocks: int) -> None:
        """Blocks that nobody can ask for come from above, and take room as well."""
        last = self._queue.before
        if isinstance(last, Nameless):
            last.blocks += blocks
        else:
            Nameless(blocks, content=True).enter(self._queue)
        self.count_written(blocks)
        self.make_room()

    def count_written(self, blocks: int) -> None:
        """So many were copied to it."""
        self.written += blocks
        self.blocks += blocks

    def read_from_below(self, node: Node) -> None:
        """This content comes from the tier below, where it is the one used last."""
        assert self.below is not None
        node.put_in(self)
        self.blocks += node.blocks
        self.below.use(node)

    def use(self, node: Node) -> None:
        """This content is the one used last."""
        place = node.place_in(self)
        assert place is not None
        place.leave()
        place.enter(self._queue)

    def make_room(self) -> None:
        """What was used least recently leaves while there is too much."""
        while self.blocks > self.size:
            over, oldest = self.blocks - self.size, self._queue.after
            if isinstance(oldest, Nameless):
                gone = oldest.give(over)
                if self.below is not None:
                    self.below.keep_nameless(gone)
            else:
                assert isinstance(oldest, Place)
                gone = self._forget(oldest.node, over)
            self.blocks -= gone

    def _forget(self, node: Node, most: int) -> int:
        """The last blocks of a content, at most so many, leave; how many did."""
        gone = min(most, node.blocks)
        if gone < node.blocks:
            node.split(node.blocks - gone, self.block_tokens)
        node.leave(self)
        if self.below is None:
            node.prune()
        else:
            self.below.keep(node)
        return gone

    def standing(self, names: Names) -> Hashable:
        """What it holds, from the front on."""
        return tuple(names.queue(self._queue))

    def verify(self, nodes: Iterable[Node]) -> None:
        """Assert that its queue and the contents agree; `nodes` are all that there are."""
        entry, places, blocks = self._queue.after, 0, 0
        while entry is not self._queue:
            if isinstance(entry, Place):
                assert entry.node.place_in(self) is entry
                places += 1
                blocks += entry.node.blocks
            elif isinstance(entry, Nameless):
                blocks += entry.blocks
            entry = entry.after
        assert blocks == self.blocks <= self.size
        assert places == sum(node.place_in(self) is not None for node in nodes)
