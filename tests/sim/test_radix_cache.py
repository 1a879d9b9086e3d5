"""The radix tree on runs gives what a trie with one entry for each page gives, whatever is done."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sim.content import Content, token_runs
from sim.radix_cache import RadixCache
from sim.radix_tree import Node
from sim.request import Identity, Request
from tests.sim.token_trie import Entry, Page, TokenTrie

RUNS = ((0, 4), (4, 3), (50, 3), (0, 9), (7, 2), (50, 1))
"""Of these texts are made: they begin alike, part inside of runs, and some are joined to one."""

TEXTS = st.lists(st.sampled_from(RUNS), min_size=1, max_size=5)

OPERATIONS = st.one_of(
    st.tuples(st.just("arrive"), TEXTS, st.integers(0, 3)),
    st.tuples(
        st.sampled_from(("look", "admit", "compute", "decode", "decode", "end", "retract", "want")),
        st.integers(0, 20),
        st.integers(1, 9),
    ),
)

PHASES = [phase for phase in Phase if phase is not Phase.explain]


@dataclass(eq=False)
class Held:
    """What the trie knows of a request that runs."""

    path: list[Entry]
    own: int


class Both:
    """The same operations on the tree and on the trie."""

    def __init__(self, pages: int, page: int, eviction: Any) -> None:
        self.page = page
        self.tree = RadixCache(pages, page, eviction)
        self.trie = TokenTrie(pages, eviction)
        self.requests: list[Request] = []
        self.running: dict[Request, Held] = {}

    def pages(self, request: Request, tokens: int) -> list[Page]:
        """The full pages of the request's first tokens."""
        content = request.identity.content
        runs = token_runs(request.index, content, 0, tokens)
        listed = [first + i for first, length in runs for i in range(length)]
        full = len(listed) // self.page
        return [tuple(listed[i * self.page : (i + 1) * self.page]) for i in range(full)]

    # --- operations: whatever makes no sense now is left out

    def arrive(self, text: list[tuple[int, int]], own: int) -> None:
        content = Content(text)
        request = Request(len(self.requests), content.tokens + own, 1 << 20)
        request.identity = Identity(content=content)
        self.requests.append(request)

    def look(self, which: int, tokens: int) -> None:
        request = self._waiting(which)
        if request is not None:
            tokens = min(tokens, request.known_tokens)
            found = self.trie.match(self.pages(request, tokens))
            assert self.tree.find(request, tokens) == len(found) * self.page

    def admit(self, which: int, tokens: int) -> None:
        """Match, lock, and compute a first piece if there is room for it."""
        request = self._waiting(which)
        if request is None:
            return
        self._peek(request)
        path = self.trie.match(self.pages(request, request.known_tokens - 1))
        cached = self.tree.match(request)
        assert cached == len(path) * self.page
        self.tree.lock(request)
        for entry in path:
            entry.locks += 1
        request.target_tokens, request.computed_then = request.known_tokens, cached
        self.running[request] = Held(path, 0)
        if not self._compute(request, tokens):
            self.tree.unlock(request)
            for entry in path:
                entry.locks -= 1
            request.target_tokens = request.computed_then = 0
            del self.running[request]

    def compute(self, which: int, tokens: int) -> None:
        request = self._running(which)
        if request is not None and request.prefilling:
            self._compute(request, tokens)

    def decode(self, which: int, _: int) -> None:
        request = self._running(which)
        if request is not None and not request.prefilling:
            request.emitted_then += self._take(request, 1)

    def end(self, which: int, _: int) -> None:
        """Inserted with all that is stored; unlocked."""
        request = self._running(which)
        if request is None:
            return
        complete = not request.prefilling
        held = self.running.pop(request)
        stored = self.pages(request, request.computed_then)
        _, there = self.trie.insert(stored, complete=complete)
        self.trie.free += held.own - (len(stored) - there)
        self._leave(request, held)
        self.tree.release(request)

    def retract(self, which: int, _: int) -> None:
        request = self._running(which)
        if request is not None:
            held = self.running.pop(request)
            self.trie.free += held.own
            self._leave(request, held)
            self.tree.release(request, again=True)
            request.computed_then = request.target_tokens = 0

    def want(self, _: int, pages: int) -> None:
        self.tree.want(pages)
        self.trie.want(pages)

    # --- parts of them

    def _waiting(self, which: int) -> Request | None:
        waiting = [request for request in self.requests if request not in self.running]
        return waiting[which % len(waiting)] if waiting else None

    def _running(self, which: int) -> Request | None:
        running = [*self.running]
        return running[which % len(running)] if running else None

    def _leave(self, request: Request, held: Held) -> None:
        for entry in held.path:
            entry.locks -= 1

    def _compute(self, request: Request, tokens: int) -> bool:
        """A piece of its prompt: inserted, then matched, and the path locked."""
        tokens = min(tokens, request.target_tokens - request.computed_then)
        if not self._take(request, tokens):
            return False
        stored = self.pages(request, request.computed_then)
        held = self.running[request]
        path, there = self.trie.insert(stored, complete=not request.prefilling)
        self.trie.free += there - len(held.path)
        held.own -= len(stored) - len(held.path)
        for entry in path[len(held.path) :]:
            entry.locks += 1
        held.path = path
        assert self.trie.match(stored) == path
        self.tree.commit(request, request.computed_then)
        return True

    def _take(self, request: Request, tokens: int) -> bool:
        end = request.computed_then + tokens
        held = self.running[request]
        need = -(-end // self.page) - len(held.path) - held.own
        fits = self.trie.free + self.trie.evictable() >= need
        assert self.tree.allocate(request, end) == fits
        if fits:
            self.trie.want(need)
            self.trie.free -= need
            held.own += need
            request.computed_then = end
        return fits

    def _peek(self, request: Request) -> None:
        """Looking for a router changes nothing at all."""
        before = self.print()
        path = self.trie.path(self.pages(request, request.known_tokens - 1))
        assert self.tree.peek(request) == len(path) * self.page
        assert self.print() == before

    def print(self) -> list[tuple[Any, ...]]:
        """All that the tree is made of."""
        nodes = self.tree._nodes()
        return [(n.firsts, n.ends, n.start, n.lock, n.stamp, n.made, n.hits) for n in nodes]

    def check(self) -> None:
        """Counts agree, and every node is there token by token, with its locks."""
        tree, trie = self.tree, self.trie
        tree.verify()
        assert tree.cached_blocks == trie.evictable()
        assert tree.free_blocks == trie.free + trie.evictable()
        assert tree.lost_blocks == trie.lost
        self.compare()

    def compare(self) -> None:
        """Nodes by the tokens from the root to their ends."""
        ours = {self._tokens(n): (n.lock, n.hits) for n in self.tree._nodes()}
        ends = [entry for entry in self.trie.entries() if entry.ends]
        counts = self.tree.eviction == "lfu"
        assert ours == {self._text(x): (x.locks, x.hits if counts else 0) for x in ends}

    def _tokens(self, node: Node) -> Page:
        parts: list[int] = []
        here: Node | None = node
        while here is not None:
            begins = (here.start, *here.ends)
            runs = zip(here.firsts, begins, here.ends, strict=False)
            parts = [first + i for first, a, b in runs for i in range(b - a)] + parts
            here = here.parent
        return tuple(parts)

    @staticmethod
    def _text(entry: Entry) -> Page:
        parts: Page = ()
        here: Entry | None = entry
        while here is not None:
            parts = here.page + parts
            here = here.parent
        return parts

    def evict_all(self) -> None:
        """Leaf by leaf: which one goes, and that this is what was foreseen."""
        foreseen = [*self.tree._in_turn()]
        for blocks in foreseen:
            before = self.tree.lost_blocks
            self.tree._evict(1)
            assert self.tree.lost_blocks - before == blocks
            self.trie.evict(1)
            self.check()
        assert self.tree.cached_blocks == 0


def _longer(request: Request) -> Request:
    """So that all it has stored may be found."""
    same = copy.copy(request)
    same.emitted_then += 1
    return same


@pytest.mark.parametrize("eviction", ["lru", "lfu", "fifo"])
@settings(max_examples=100, deadline=None, phases=PHASES)
@given(
    pages=st.integers(8, 40),
    page=st.sampled_from([1, 1, 2, 3]),
    operations=st.lists(OPERATIONS, min_size=10, max_size=60),
)
def test_any_operations_leave_what_a_trie_of_pages_would(
    eviction: str, pages: int, page: int, operations: list[tuple[Any, ...]]
) -> None:
    both = Both(pages, page, eviction)
    for name, *arguments in operations:
        getattr(both, name)(*arguments)
        both.check()
    both.evict_all()


def test_a_locked_node_is_never_evicted() -> None:
    both = Both(10, 1, "lru")
    both.arrive([(0, 4), (50, 3)], 0)
    both.admit(0, 9)
    both.arrive([(0, 4), (7, 2)], 0)
    both.admit(0, 9)
    both.end(1, 0)
    both.want(0, 10)

    # 7 tokens are locked, 2 of the other request are gone, and no more can go.
    assert (both.tree.free_blocks, both.tree.cached_blocks, both.tree.lost_blocks) == (3, 0, 2)
    assert both.tree.peek(_longer(both.requests[0])) == 7
    both.check()


def test_ticks_of_a_run_evict_as_single_ticks_do() -> None:
    def cache() -> tuple[RadixCache, list[Request]]:
        both = Both(40, 1, "lru")
        for i, length in enumerate((5, 4, 6, 3)):
            both.arrive([(100 * i, length)], 0)
            both.admit(0, 9)
            both.end(0, 0)
        for i in range(3):
            both.arrive([(1000 + 10 * i, 2)], 0)
            both.admit(len(both.requests) - 1 - len(both.running), 9)
        return both.tree, [*both.running]

    from sim.decode_group import DecodeGroup

    results = []
    for parts in ([1] * 11, [11], [3, 1, 7]):
        tree, members = cache()
        group = DecodeGroup(1)
        for request in members:
            group.join(request)
        expected = tree.losses([3] * 11)
        lost = []
        for ticks in parts:
            tree.take_ticks(group, ticks)
            group.advance([0] * ticks)
            lost.append(tree.lost_blocks)
        results.append((tree.lost_blocks, tree.free_blocks, tree.cached_blocks))
        assert lost[-1] == sum(expected)
    assert results[0] == results[1] == results[2]
    assert results[0][0] > 0


def test_a_parent_is_as_recent_as_the_child_that_went() -> None:
    both = Both(20, 1, "lru")
    for text in ([(0, 4), (50, 3)], [(0, 4), (7, 2)]):
        both.arrive(text, 0)
        both.admit(-1, 9)
        both.end(0, 0)
    both.arrive([(100, 3)], 0)
    both.admit(-1, 9)  # locked from here on, and not used again
    both.look(1, 6)
    for cache in (both.tree._evict, both.trie.evict):
        cache(4)  # both leaves behind the 4 tokens that they share
    both.retract(0, 0)
    both.check()
    for cache in (both.tree._evict, both.trie.evict):
        cache(1)

    assert [n.firsts for n in both.tree._nodes()] == [(0,)]
    both.check()
