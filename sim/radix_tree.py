"""The tree behind `sim.radix_cache`: nodes that hold runs of tokens, the walk down, the split.

Positions count tokens from the start of a request. A text and a node say what their tokens are as
the runs of `sim.content`, by first integer and by the position after the last token.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable
from typing import Final

from sim.content import LONGEST, own_tokens
from sim.request import Request

Ints = tuple[int, ...]

Head = tuple[Ints, Ints]

HEAD: Final = 32
"""Tokens by which SGLang tells that two waiting requests share enough to wait for each other."""


class Node:
    """A part of the texts that were stored, behind that of its parent.

    Attributes:
        parent: Node before; None for the root, and for nodes that are gone.
        key: By which the parent finds it: see `key_at`.
        firsts: First integer of each of its runs.
        ends: Position after the last token of each.
        start: Position of its first token.
        stop: Position after its last.
        children: Nodes that continue it, by their keys.
        lock: Requests that use it.
        stamp: When a path that ends here was last used.
        made: When it was made; no two are alike.
        hits: Insertions that met it.
        queued: Whether it is in the heap of leaves.
    """

    __slots__ = (
        *("children", "ends", "firsts", "hits", "key", "lock", "made", "parent", "queued"),
        *("stamp", "start", "stop"),
    )

    def __init__(
        self, parent: Node | None, key: Hashable, firsts: Ints, ends: Ints, start: int, made: int
    ) -> None:
        self.parent = parent
        self.key = key
        self.firsts = firsts
        self.ends = ends
        self.start = start
        self.stop = ends[-1] if ends else start
        self.children: dict[Hashable, Node] = {}
        self.lock = 0
        self.stamp = self.made = made
        self.hits = 0
        self.queued = False


class Text:
    """What all tokens of a request are, those included that nobody else has: one run at the end.

    Attributes:
        firsts: First integer of each run.
        ends: Position after the last token of each.
        head: The first `HEAD` tokens, to be compared with those of others.
    """

    __slots__ = ("ends", "firsts", "head")

    def __init__(self, request: Request) -> None:
        content = request.identity.content
        if content is None:
            self.firsts: Ints = (own_tokens(request.index),)
            self.ends: Ints = (LONGEST,)
        else:
            self.firsts = (*content.firsts, own_tokens(request.index, content.tokens))
            self.ends = (*content.ends, LONGEST)
        self.head = self.part(0, HEAD)

    def part(self, start: int, stop: int) -> Head:
        """Runs of the positions `start` to `stop`, exclusive."""
        a, b = bisect_right(self.ends, start), bisect_left(self.ends, stop)
        begin = self.ends[a - 1] if a else 0
        firsts = (self.firsts[a] + start - begin, *self.firsts[a + 1 : b + 1])
        return firsts, (*self.ends[a:b], stop)


def key_at(firsts: Ints, ends: Ints, start: int, position: int, page: int) -> Hashable:
    """What the page of tokens at `position` is, of runs that begin at `start`.

    The token itself where that is a page; else its runs.
    """
    at = bisect_right(ends, position)
    begin = ends[at - 1] if at else start
    first, stop = firsts[at] + position - begin, position + page
    if ends[at] >= stop:
        return first
    key = [first, ends[at] - position]
    while ends[at] < stop:
        at += 1
        key += (firsts[at], min(ends[at], stop) - ends[at - 1])
    return tuple(key)


def descend(node: Node, text: Text, end: int, page: int) -> tuple[Node, int]:
    """Go down from the end of `node` as far as the tree has what the text says, in whole pages.

    Args:
        node: Its path is a beginning of the text.
        text: What the tokens are.
        end: Position after the last token to look for.
        page: Tokens of a page.

    Returns:
        The last node met, and the position up to which it agrees: its end, or one inside.
    """
    firsts, ends = text.firsts, text.ends
    end -= end % page
    position = node.stop
    at = bisect_right(ends, position)
    while position < end:
        if page == 1:
            key: Hashable = firsts[at] + position - (ends[at - 1] if at else 0)
        else:
            key = key_at(firsts, ends, 0, position, page)
        child = node.children.get(key)
        if child is None:
            break
        node = child
        if len(child.ends) == 1:  # one run, which agrees at its first token
            position = child.stop if child.stop <= ends[at] else ends[at]
        else:
            position, at = _agreed(child, firsts, ends, at)
        if position > end:
            position = end
        position -= position % page
        if position < child.stop:
            break
        at += ends[at] == position
    return node, position


_SIDE_BY_SIDE = 4
"""From so many runs on they are compared as tuples."""


def _agreed(node: Node, firsts: Ints, ends: Ints, at: int) -> tuple[int, int]:
    """Up to which position, and in which of the text's runs, a node agrees with a text.

    Args:
        node: Its first token is in run `at` of the text, and agrees.
        firsts: Of the text.
        ends: Of the text.
        at: Number of that run.
    """
    theirs, stops = node.firsts, node.ends
    last, i = len(stops) - 1, 0
    if (
        last > _SIDE_BY_SIDE
        and ends[at : at + last] == stops[:last]
        and firsts[at + 1 : at + last + 1] == theirs[1:]
    ):
        i = last
    while i < last:
        if ends[at + i] != stops[i]:
            return min(ends[at + i], stops[i]), at + i
        i += 1
        if firsts[at + i] != theirs[i]:
            return stops[i - 1], at + i
    return min(stops[last], ends[at + last]), at + last


def split(node: Node, position: int, made: int, page: int) -> Node:
    """Cut a node in two; both parts keep its locks and hits.

    Args:
        node: Becomes the part behind `position`, which lies inside it.
        position: Where the cut is.
        made: When the front part is made.
        page: Tokens of a page.

    Returns:
        The front part.
    """
    parent = node.parent
    assert parent is not None
    firsts, ends = node.firsts, node.ends
    at = bisect_right(ends, position)
    begin = ends[at - 1] if at else node.start
    if position > begin:
        front = Node(parent, node.key, firsts[: at + 1], (*ends[:at], position), node.start, made)
    else:
        front = Node(parent, node.key, firsts[:at], ends[:at], node.start, made)
    parent.children[front.key] = front
    node.firsts = (firsts[at] + position - begin, *firsts[at + 1 :])
    node.ends = ends[at:]
    node.start, node.parent = position, front
    node.key = key_at(node.firsts, node.ends, position, position, page)
    front.children[node.key] = node
    front.lock, front.hits = node.lock, node.hits
    return front
