"""Whatever is done to a prefix cache in whatever order, it keeps its blocks and its chains apart.

The same calls go to the cache of extents and to the one of single blocks, which have to agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.content import Content
from sim.extents import Node
from sim.prefix_cache import PrefixCache
from sim.request import Identity, Request
from tests.sim.block_by_block import PlainPrefixCache

PROMPT, OUTPUT = 24, 9
TEXTS = [
    Content([(0, 40)]),
    Content([(0, 11), (500, 40)]),
    Content([(0, 12), (600, 40)]),
    Content([(0, 12), (600, 6), (700, 30)]),
    Content([(900, 16)]),
    None,
]

Call = tuple[str, int, int]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(
            ("admit", "admit", "grow", "grow", "free", "preempt", "cut", "take back", "load")
        ),
        st.integers(0, 5),
        st.integers(0, 40),
    ),
    max_size=60,
)


@dataclass
class Run:
    """One cache and the requests on it; each call names a request and a number.

    Attributes:
        cache: The memory.
        requests: By place; a place gets a new request when its old one has ended.
        stored: Contents ever scheduled here, each cut to what was.
        coming: Requests with reserved blocks whose KV has not come.
    """

    cache: PrefixCache
    requests: list[Request] = field(default_factory=list)
    stored: list[tuple[int, Content | None, int]] = field(default_factory=list)
    coming: set[int] = field(default_factory=set)
    made: int = 0

    def __post_init__(self) -> None:
        self.requests = [self._new(place) for place in range(6)]

    def _new(self, place: int) -> Request:
        text = TEXTS[(place + self.made) % len(TEXTS)]
        self.made += 1
        return Request(self.made, PROMPT - place, OUTPUT, identity=Identity(content=text))

    def call(self, what: str, place: int, number: int) -> tuple[object, ...]:
        """Make a call; what is seen of the cache after it."""
        request = self.requests[place]
        if place in self.coming:
            self._come(request, place, number)
        elif what == "load" and not request.held_blocks:
            if self.cache.reserve(request, request.prompt_tokens) is not None:
                self.coming.add(place)
        elif what == "admit" and not request.held_blocks:
            self._admit(request, number)
        elif request.held_blocks and what in ("grow", "cut", "take back"):
            self._grow(request, number, what)
        elif request.held_blocks and what in ("free", "preempt"):
            self._leave(request, place, again=what == "preempt")
        cache = self.cache
        cache.verify()
        found = tuple(cache.peek(x) for x in self.requests if not x.held_blocks)
        return (
            found,
            cache.free_blocks,
            cache.cached_blocks,
            cache.lost_blocks,
            place in self.coming,
        )

    def _come(self, request: Request, place: int, number: int) -> None:
        self.coming.discard(place)
        request.computed_then = request.prompt_tokens
        request.emitted_then = 1
        self.cache.arrived(request)
        self._store(request, request.prompt_tokens)
        if number % 3 == 0:
            self._leave(request, place, again=False)

    def _admit(self, request: Request, number: int) -> None:
        found = self.cache.match(request)
        assert found <= self._most(request)
        tokens = found + 1 + number % (request.known_tokens - found)
        if self.cache.allocate(request, tokens):
            request.computed_then = tokens
            self._store(request, tokens)

    def _grow(self, request: Request, number: int, what: str) -> None:
        most = request.prompt_tokens + request.max_tokens - 1
        tokens = min(most, request.computed_then + 1 + number % 9)
        before = request.held_blocks
        if tokens <= request.computed_then or not self.cache.allocate(request, tokens):
            return
        if what == "take back":
            self.cache.give_back(request, request.held_blocks - before)
        elif what == "cut":  # preempted in the very pass that scheduled it
            self._leave(request, self.requests.index(request), again=True)
        else:
            request.computed_then = tokens
            request.emitted_then = max(request.emitted_then, tokens - request.prompt_tokens + 1)
            self._store(request, tokens)

    def _leave(self, request: Request, place: int, *, again: bool) -> None:
        held = request.held_blocks
        assert self.cache.release(request, again=again) == held
        request.computed_then = 0
        if not again:
            self.requests[place] = self._new(place)

    def _store(self, request: Request, tokens: int) -> None:
        self.stored.append((request.index, request.identity.content, tokens))

    def _most(self, request: Request) -> int:
        """Tokens that the request has in common with whatever was ever stored."""
        content, most = request.identity.content, 0
        for index, other, tokens in self.stored:
            shared = 0 if content is None or other is None else content.shared(other)
            most = max(most, tokens if index == request.index else min(tokens, shared))
        return most


@given(
    calls=CALLS,
    blocks=st.integers(6, 30),
    block_tokens=st.sampled_from((1, 3, 4, 8)),
    uncached_first=st.booleans(),
)
def test_extents_and_single_blocks_agree_on_any_calls(
    calls: list[Call], blocks: int, block_tokens: int, uncached_first: bool
) -> None:
    caches = [
        kind(blocks, block_tokens, uncached_first=uncached_first)
        for kind in (PrefixCache, PlainPrefixCache)
    ]
    extents, single = (Run(cache) for cache in caches)
    for call in calls:
        assert extents.call(*call) == single.call(*call)
    for run in (extents, single):
        for place, request in enumerate(run.requests):
            run.coming.discard(place)
            run.cache.release(request)
        run.cache.verify()
        assert run.cache.free_blocks == blocks


def _never_pruned(node: Node) -> None:
    """Contents that nobody has stay in the tree."""


@pytest.mark.parametrize("how", ["frees twice", "keeps what is lost", "miscounts users"])
def test_a_cache_that_is_wrong_in_itself_is_caught(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = PrefixCache(8, 4)
    request = Request(0, 12, 1, identity=Identity(content=TEXTS[0]))
    assert cache.allocate(request, 12)
    cache.verify()
    request.computed_then = 12
    (extent,) = cache._held[request].extents()
    if how == "miscounts users":
        extent.users = 2
    elif how == "frees twice":
        cache.release(request)
        extent.users = 1
    else:
        monkeypatch.setattr(Node, "prune", _never_pruned)
        cache.release(request)
        assert cache.allocate(Request(1, 32, 1), 32)
    with pytest.raises(AssertionError):
        cache.verify()
