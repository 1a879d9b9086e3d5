"""Contents of KV blocks as a tree of runs, and the queue of the free ones: what costs, extents do.

The identity of a block is that of all tokens from the start of the request up to its end (rule 40):
contents hang in a tree, each below the one before it. Neighbours whose tokens are consecutive
integers are one node, and a copy of it that is used and freed as one is one extent, however many
blocks it has. A node is cut in two where a hit, a copy or a loss ends inside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sim.content import token_runs
from sim.request import Request

if TYPE_CHECKING:
    from sim.tier import Tier

Key = int | tuple[int, ...]
"""What the tokens of a block are: the first of consecutive ones, or (first, tokens) of each run."""


class Entry:
    """A place in the queue of free blocks.

    Attributes:
        before: Its neighbour nearer to the front, itself while it is in no queue.
        after: The other one.
    """

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: Entry = self
        self.after: Entry = self

    def leave(self) -> None:
        """It is in the queue no longer."""
        self.before.after, self.after.before = self.after, self.before
        self.before = self.after = self

    def enter(self, after: Entry) -> None:
        """It stands right before `after` from now on."""
        self.before, self.after = after.before, after
        after.before.after = self
        after.before = self


class Nameless(Entry):
    """Free neighbours that nobody can ask for.

    Attributes:
        blocks: How many are left.
        content: Whether they hold anything.
    """

    __slots__ = ("blocks", "content")

    def __init__(self, blocks: int, *, content: bool) -> None:
        super().__init__()
        self.blocks = blocks
        self.content = content

    def give(self, most: int) -> int:
        """At most so many leave the queue; how many did."""
        gone = min(most, self.blocks)
        self.blocks -= gone
        if not self.blocks:
            self.leave()
        return gone


class Extent(Entry):
    """A copy of a node's content: blocks that are used together, or free and in the queue.

    Attributes:
        node: Its content.
        users: Requests that hold it.
        rest: The extent that was cut off behind it while it was in use. Who held both still says
            that it holds this one, for as many blocks as both have.
    """

    __slots__ = ("node", "rest", "users")

    def __init__(self, node: Node, users: int = 1) -> None:
        super().__init__()
        self.node = node
        self.users = users
        self.rest: Extent | None = None


class Place(Entry):
    """A content that a tier behind the pool holds, in that tier's queue.

    Attributes:
        node: The content.
        tier: The tier.
    """

    __slots__ = ("node", "tier")

    def __init__(self, node: Node, tier: Tier) -> None:
        super().__init__()
        self.node = node
        self.tier = tier


class Node:
    """Contents of neighbouring blocks, found from the root by what the blocks up to them hold.

    Attributes:
        parent: Contents of the blocks before; None for the root.
        key: What the first block's own tokens are.
        blocks: How many; more than one only if all tokens are consecutive integers.
        children: Contents that go on after the last block, by their keys.
        copies: Extents with this content, the one registered first at the front.
        places: Its places in the tiers that hold it, one each.
        growing: Requests whose last registered block is the last of this content and who may have
            scheduled more of their content since.
    """

    __slots__ = ("blocks", "children", "copies", "growing", "key", "parent", "places")

    def __init__(self, parent: Node | None, key: Key, blocks: int) -> None:
        self.parent = parent
        self.key = key
        self.blocks = blocks
        self.children: dict[Key, Node] = {}
        self.copies: list[Extent] = []
        self.growing: list[Holding] = []
        self.places: tuple[Place, ...] = ()

    def place_in(self, tier: Tier) -> Place | None:
        """Its place there, or None."""
        for place in self.places:
            if place.tier is tier:
                return place
        return None

    def put_in(self, tier: Tier) -> Place:
        """Give it a place there, in no queue yet."""
        place = Place(self, tier)
        self.places += (place,)
        return place

    def leave(self, tier: Tier) -> None:
        """It has no place there any more."""
        place = self.place_in(tier)
        assert place is not None
        place.leave()
        self.places = tuple(other for other in self.places if other is not place)

    def split(self, at: int, block_tokens: int) -> Node:
        """Cut it after `at` blocks; returns the new node of these. What follows keeps this one.

        Copies in the queue stay at their place, last block first.
        """
        assert self.parent is not None
        assert isinstance(self.key, int)
        head = Node(self.parent, self.key, at)
        self.parent.children[self.key] = head
        self.parent = head
        self.key += at * block_tokens
        self.blocks -= at
        head.children[self.key] = self
        head.copies, self.copies = self.copies, []
        for extent in head.copies:
            extent.node = head
            tail = Extent(self, extent.users)
            self.copies.append(tail)
            if extent.users:
                tail.rest, extent.rest = extent.rest, tail
            else:
                tail.enter(extent)
        head.places, self.places = self.places, ()
        for place in head.places:
            place.node = head
            self.put_in(place.tier).enter(place)
        return head

    @property
    def needed(self) -> bool:
        """Somebody has this content, or leads through it."""
        return bool(self.copies or self.children or self.places)

    def prune(self) -> None:
        """Contents nobody has or leads through go, from here to the root."""
        node = self
        while node.parent is not None and not node.needed:
            del node.parent.children[node.key]
            node = node.parent

    def swallow(self, child: Node, block_tokens: int) -> bool:
        """Make this one part of its only child, if both are one run and one thing to free or lose.

        The child's copy, if any, must be the entry that this one's would have to stand behind. True
        if done; then this node and its copy are no more.
        """
        if len(self.children) > 1 or len(self.copies) > 1 or len(child.copies) > 1:
            return False
        if not self._stands_behind(child):
            return False
        if child.parent is not self or self.parent is None or self.growing:
            return False
        if not isinstance(self.key, int) or child.key != self.key + self.blocks * block_tokens:
            return False
        for place in self.places:
            place.leave()
        child.parent, child.key = self.parent, self.key
        child.blocks += self.blocks
        self.parent.children[self.key] = child
        return True

    def _stands_behind(self, child: Node) -> bool:
        """Whether the same tiers hold both, this one right behind `child` in each."""
        if len(self.places) != len(child.places):
            return False
        for place in self.places:
            other = child.place_in(place.tier)
            if other is None or other.after is not place:
                return False
        return True


class Holding:
    """Blocks with content that a request holds, from the start on.

    Attributes:
        request: Whose.
        named: Leading blocks of it in which some other request may find its tokens.
        stored_tokens: Leading tokens whose KV it has not computed: found, or from another replica.
        blocks: How many are registered.
        pieces: (extent, blocks) of each, in order; what an extent lost to a cut, its `rest` has.
    """

    __slots__ = ("blocks", "named", "pieces", "request", "stored_tokens")

    def __init__(self, request: Request, named: int) -> None:
        self.request = request
        self.named = named
        self.stored_tokens = self.blocks = 0
        self.pieces: list[tuple[Extent, int]] = []

    def add(self, extent: Extent, blocks: int) -> None:
        """It holds this extent as well, behind the others."""
        self.pieces.append((extent, blocks))
        self.blocks += blocks

    def grow(self, blocks: int) -> None:
        """Its last extent has become so much longer."""
        extent, before = self.pieces[-1]
        self.pieces[-1] = (extent, before + blocks)
        self.blocks += blocks

    def extents(self) -> list[Extent]:
        """As they are now, from the start on."""
        found = []
        for extent, blocks in self.pieces:
            found += _cut_up(extent, blocks)
        return found

    def last(self) -> Extent:
        """The extent of its last registered block; there must be one."""
        return _cut_up(*self.pieces[-1])[-1]

    def hold(self, extents: list[Extent]) -> None:
        """It holds these, and nothing else."""
        self.pieces = [(extent, extent.node.blocks) for extent in extents]
        self.blocks = sum(blocks for _, blocks in self.pieces)


def _cut_up(extent: Extent, blocks: int) -> list[Extent]:
    found = [extent]
    blocks -= extent.node.blocks
    while blocks:
        assert extent.rest is not None
        extent = extent.rest
        found.append(extent)
        blocks -= extent.node.blocks
    return found


def block_runs(
    request: Request, first: int, last: int, block_tokens: int
) -> Iterator[tuple[Key, int]]:
    """(key of the first, blocks) of the runs of a request's blocks `first` to `last`, exclusive."""
    start, stop = first * block_tokens, last * block_tokens
    parts: tuple[int, ...] = ()
    room = block_tokens
    for begin, tokens in token_runs(request.index, request.identity.content, start, stop):
        if parts:
            now = min(tokens, room)
            parts += (begin, now)
            begin, tokens, room = begin + now, tokens - now, room - now
            if not room:
                yield parts, 1
                parts, room = (), block_tokens
        whole = tokens // block_tokens
        if whole:
            yield begin, whole
        if tokens % block_tokens:
            parts = (begin + whole * block_tokens, tokens % block_tokens)
            room = block_tokens - tokens % block_tokens
