"""What a prefix cache holds, said in a way that is the same whenever it holds the same (rule 84).

Nodes and extents are cut and joined as requests come and go (`sim.extents`), so that one content of
the memory has many forms. Here a content is named by its tokens from the start on, a copy of it by
its rank in order of registration, and neighbours that continue each other are said as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sim.extents import Entry, Extent, Holding, Nameless, Node, Place


class Name(NamedTuple):
    """All tokens from the start to the end of a content.

    Attributes:
        before: Number of the name of what comes before its last run of consecutive integers.
        first: The first of these.
        tokens: How many.
    """

    before: int
    first: int
    tokens: int


class Free(NamedTuple):
    """Blocks that stand in a queue one behind the other, the last of them at its front.

    Attributes:
        name: Up to the end of the last block; of those that nobody can ask for, whether they hold
            content.
        rank: Of this copy among all of its content.
        blocks: How many.
    """

    name: Name | bool
    rank: int
    blocks: int


class Names:
    """The names of one cache; two moments are compared by those that one object gives.

    Args:
        block_tokens: Tokens of one block.
    """

    __slots__ = ("_numbers", "block_tokens")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self._numbers: dict[Name, int] = {}

    def queue(self, ring: Entry, blank: int = 0) -> list[Free]:
        """The blocks of a queue from its front on, the first `blank` ones being without content."""
        names: dict[Node, Name] = {}
        said = [Free(name=False, rank=0, blocks=blank)] if blank else []
        continued: Node | bool | None = False if blank else None  # by whom what is said last is
        for entry in _entries(ring):
            if isinstance(entry, Nameless):
                found, goes_on = Free(entry.content, 0, entry.blocks), continued is entry.content
                continued = entry.content
            else:
                node = entry.node
                rank = node.copies.index(entry) if isinstance(entry, Extent) else 0
                goes_on = continued is node and said[-1].rank == rank
                found = Free(self._name(node, names), rank, node.blocks)
                continued = node.parent
            if goes_on:
                before = said.pop()
                found = before._replace(blocks=before.blocks + found.blocks)
            said.append(found)
        return said

    def held(self, holding: Holding, computed_tokens: int) -> list[tuple[int, int]]:
        """(rank, blocks) of the copies that a request holds, from the start on.

        Blocks that it has computed and that are not registered, as nobody can ask for them, are the
        only copies of what they hold.
        """
        pieces = [(x.node.copies.index(x), x.node.blocks) for x in holding.extents()]
        pieces.append((0, max(0, computed_tokens // self.block_tokens - holding.blocks)))
        said: list[tuple[int, int]] = []
        for rank, blocks in pieces:
            if said and said[-1][0] == rank:
                said[-1] = rank, said[-1][1] + blocks
            elif blocks:
                said.append((rank, blocks))
        return said

    def _name(self, node: Node, names: dict[Node, Name]) -> Name:
        """The name of a content; `names` are those known by now."""
        below: list[Node] = []
        at: Node | None = node
        while at is not None and at.parent is not None and at not in names:
            below.append(at)
            at = at.parent
        name = names.get(at) if at is not None else None
        for each in reversed(below):
            for first, tokens in self._runs(each):
                if name is not None and first == name.first + name.tokens:
                    name = name._replace(tokens=name.tokens + tokens)
                else:
                    name = Name(self._number(name), first, tokens)
            assert name is not None
            names[each] = name
        assert name is not None
        return name

    def _runs(self, node: Node) -> Iterable[tuple[int, int]]:
        if isinstance(node.key, int):
            return ((node.key, node.blocks * self.block_tokens),)
        return zip(node.key[::2], node.key[1::2], strict=True)

    def _number(self, name: Name | None) -> int:
        return 0 if name is None else self._numbers.setdefault(name, len(self._numbers) + 1)


def _entries(ring: Entry) -> Iterator[Extent | Nameless | Place]:
    entry = ring.after
    while entry is not ring:
        assert isinstance(entry, Extent | Nameless | Place)
        yield entry
        entry = entry.after
