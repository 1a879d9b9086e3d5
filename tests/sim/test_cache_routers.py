"""Routers that go by contents, keys and classes, by hand: what is decided from which numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from policies import (
    ClassAware,
    ConsistentHash,
    KVAware,
    LeastKV,
    PrefixAware,
    RoundRobin,
    SessionAffinity,
)
from policies.prefix_index import PrefixIndex
from sim.content import Content
from sim.errors import ConfigError
from sim.policy import ReplicaView, Router
from sim.request import Identity, Request
from tests.sim.timeline import replica, run_here

# A step takes 10 + P + 2 D microseconds; blocks hold 4 tokens.
LARGE = replica("vllm-v1", 100)
CACHED = replica("vllm-v1", 100, prefix_cache=True)


@dataclass
class View:
    """A replica as a router sees it, every number written out."""

    index: int
    outstanding: int = 0
    used_blocks: int = 0
    needed_blocks: int = 0
    prefill_tokens_left: int = 0
    waiting_tokens: int = 0
    cached: int = 0
    block_tokens: int = 4
    served: list[Request] = field(default_factory=list)

    def cached_tokens(self, request: Request) -> int:
        return self.cached


def asked(prompt: int = 8, index: int = 0, **identity: Any) -> Request:
    return Request(index, prompt, 4, identity=Identity(**identity))


def picks(router: Router, request: Request, views: Sequence[View]) -> int:
    chosen: ReplicaView = router.pick(request, views)  # type: ignore[arg-type]
    return chosen.index


class Numbers:
    """Stands in for a generator: hands out what it was given."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def started(router: Router, rng: Any = None) -> Any:
    router.start(rng or np.random.default_rng(0))
    return router


# --- least-kv


def test_least_kv_takes_the_fewest_blocks_then_the_fewest_requests_then_the_lowest_index() -> None:
    router = started(LeastKV())

    assert picks(router, asked(), [View(0, 1, 7, 9), View(1, 9, 8, 8)]) == 1
    assert picks(router, asked(), [View(0, 3, 5, 5), View(1, 2, 4, 5), View(2, 2, 1, 5)]) == 1


def test_least_kv_sees_blocks_held_at_the_moment(fast_forward: bool) -> None:
    got = run_here(
        [(0, 8, 4), (0, 20, 1), (15, 4, 1), (16, 1, 1), (31, 1, 1)],
        LARGE,
        LARGE,
        router="least_kv",
        fast_forward=fast_forward,
    )

    # 0: none hold anything: request 0 to replica 0, request 1 to 1 (fewer requests outstanding).
    # 15: 2 blocks against 5: replica 0. 16: 3, as request 2 waits for the end of the step.
    # Replica 0: P = 8: 18. Replica 1: P = 20: 30, done. 31: replica 0 decodes: replica 1 is empty.
    assert got.placed == ["replica0", "replica1", "replica0", "replica0", "replica1"]
    # Replica 0 at 18: a decode and prompts of 4 and 1: 10 + 5 + 2 -> 35.
    assert got.tokens == [[18, 35, 47, 59], [30], [35], [35], [42]]


# --- kv-aware


def test_kv_aware_adds_prefill_not_cached_and_blocks() -> None:
    router = started(KVAware(overlap_score_weight=2.0))
    request = asked(prompt=10)
    views = [
        View(0, used_blocks=4, prefill_tokens_left=2, waiting_tokens=2),  # 2 x 12/4 + 4 + 3 = 13
        View(1, used_blocks=9, cached=8),  # 2 x 2/4 + 9 + 3 = 13, as much
        View(2, used_blocks=12, cached=8, block_tokens=8),  # 2 x 2/8 + 12 + 2 = 14.5
    ]

    assert picks(router, request, views) == 0
    assert request.expected_cached_tokens == 0
    views[0].used_blocks = 5
    assert picks(router, request, views) == 1
    assert request.expected_cached_tokens == 8


def test_kv_aware_without_weight_goes_by_load() -> None:
    router = started(KVAware(overlap_score_weight=0))

    assert picks(router, asked(), [View(0, used_blocks=3, cached=8), View(1, used_blocks=2)]) == 1


# Costs of a prompt of 8: 2 + 2 + used blocks. With 0, 1 and 2 used and temperature 0.5 the weights
# are 1, exp(-1) and exp(-2): 1, 0.368 and 0.135, in all 1.503.
@pytest.mark.parametrize(("u", "chosen"), [(0.0, 0), (0.66, 0), (0.67, 1), (0.9, 1), (0.92, 2)])
def test_kv_aware_draws_by_a_softmax_of_the_costs(u: float, chosen: int) -> None:
    router = started(KVAware(temperature=0.5), Numbers(u))

    assert picks(router, asked(), [View(i, used_blocks=i) for i in range(3)]) == chosen


def test_kv_aware_draws_uniformly_among_equals_and_not_at_all_for_one() -> None:
    router = started(KVAware(temperature=0.5), Numbers(0.74, 0.76))

    assert picks(router, asked(), [View(i) for i in range(4)]) == 2
    assert picks(router, asked(), [View(1)]) == 1
    assert picks(router, asked(), [View(i) for i in range(4)]) == 3


def test_kv_aware_finds_the_replica_that_has_the_prompt(fast_forward: bool) -> None:
    contents = [Content([(100, 8)]), Content([(500, 8)]), Content([(500, 8), (900, 4)]), None]
    got = run_here(
        [(0, 8, 1), (1, 8, 1), (40, 12, 1), (41, 12, 1)],
        CACHED,
        CACHED,
        router="kv_aware",
        fast_forward=fast_forward,
        content=contents,
    )

    # 1: replica 0 has 8 tokens in its step and 2 blocks in use, 8 of prefill left: replica 1.
    # 40: nothing runs; 8 of 12 tokens are cached on replica 1: cost 1 + 3 against 3 + 3.
    # 41: replica 1 prefills: 4 tokens left and 3 blocks: replica 0.
    assert got.placed == ["replica0", "replica1", "replica1", "replica0"]
    assert got.tokens == [[18], [19], [54], [63]]


# --- prefix-aware


def test_prefix_aware_follows_the_longest_match_that_is_long_enough() -> None:
    router = started(PrefixAware(cache_threshold=0.5))
    views = [View(0), View(1), View(2)]

    def route(index: int, prompt: int, *runs: tuple[int, int]) -> int:
        return picks(router, asked(prompt, index, content=Content(runs)), views)

    assert route(0, 10, (100, 10)) == 0  # all trees are empty: the lowest index
    assert route(1, 8, (200, 8)) == 1  # no match: the smallest tree, 1 and 2 being empty
    assert route(2, 20, (100, 10), (300, 10)) == 2  # 10 of 20 is not more than half
    assert route(3, 21, (100, 10), (300, 11)) == 2  # 20 of 21
    assert route(4, 10, (100, 10)) == 0  # 10 in the trees of 0 and 2: the lowest index
    assert route(5, 6, (400, 6)) == 1  # tokens in the trees: 10, 8 and 21


def test_prefix_aware_goes_by_load_where_it_is_out_of_balance() -> None:
    router = started(PrefixAware(balance_abs_threshold=2, balance_rel_threshold=2.0))
    told = {"content": Content([(100, 8)])}
    assert picks(router, asked(**told), [View(0), View(1)]) == 0

    assert picks(router, asked(**told), [View(0, 2), View(1, 0)]) == 0  # 2 apart: not more than 2
    assert picks(router, asked(**told), [View(0, 6), View(1, 3)]) == 0  # 6 is not more than 2 x 3
    assert picks(router, asked(**told), [View(0, 7), View(1, 3)]) == 1
    # What load sent to replica 1 is in its tree: it is found there from now on.
    assert picks(router, asked(**told), [View(1, 9), View(2, 9)]) == 1


def test_prefix_aware_does_not_know_what_was_generated(fast_forward: bool) -> None:
    content = Content([(100, 12)])
    got = run_here(
        [(0, 4, 8), (0, 4, 1), (200, 12, 1), (200, 20, 1)],
        *[LARGE] * 3,
        router=PrefixAware(cache_threshold=0.3),
        fast_forward=fast_forward,
        content=[content, None, content, None],
    )

    # Request 0's prompt is 4 tokens, and only these were put into the tree: 4 of 12 is enough.
    assert got.placed == ["replica0", "replica1", "replica0", "replica2"]


def test_an_index_forgets_the_end_that_was_inserted_longest_ago() -> None:
    index = PrefixIndex(20)
    index.insert([(0, 10)])
    index.insert([(0, 4), (50, 6)])  # splits the first: 0..3, then 4..9 and 50..55
    index.insert([(0, 4), (70, 4)])
    assert index.tokens == 4 + 6 + 6 + 4

    index.insert([(0, 10)])  # nothing new, but its end is the latest now
    index.insert([(90, 1)])  # one too many: 50..55 is the oldest end

    assert index.tokens == 15
    assert index.match([(0, 4), (50, 6)]) == 4
    assert index.match([(0, 10)]) == 10
    assert index.match([(0, 4), (70, 9)]) == 8
    assert index.match([(0, 3), (90, 1)]) == 3


def test_an_index_that_one_prompt_overflows_keeps_nothing_of_it() -> None:
    index = PrefixIndex(5)
    index.insert([(0, 4)])
    index.insert([(7, 9)])

    # The oldest goes first, then the prompt itself: whole ends go, until the rest fits.
    assert index.tokens == 0
    assert index.match([(7, 9)]) == 0


@pytest.mark.parametrize("seed", range(30))
def test_an_index_finds_what_a_set_of_all_beginnings_finds(seed: int) -> None:
    rng = random.Random(seed)
    index = PrefixIndex(1 << 60)
    beginnings: set[tuple[int, ...]] = set()
    for _ in range(40):
        drawn = [(rng.choice((0, 10, 20)), rng.randint(1, 9)) for _ in range(3)]
        runs = list(Content(drawn).runs(0, 99))
        tokens = tuple(first + i for first, length in runs for i in range(length))
        known = [n for n in range(1, len(tokens) + 1) if tokens[:n] in beginnings]
        assert index.match(runs) == max(known, default=0)
        if rng.random() < 0.6:
            index.insert(runs)
            beginnings.update(tokens[:n] for n in range(1, len(tokens) + 1))
        assert index.tokens == len(beginnings)


# --- session-affinity


def test_a_session_stays_where_its_first_turn_went() -> None:
    router = started(SessionAffinity(fallback=RoundRobin()))
    views = [View(0), View(1), View(2)]

    chosen = [picks(router, asked(session=name), views) for name in ("a", "b", "a", None, "b", "c")]

    # Round robin is asked for a, b, the request without a session, and c.
    assert chosen == [0, 1, 0, 2, 1, 0]


def test_a_session_moves_when_its_replica_cannot_run_a_turn_and_stays_there() -> None:
    router = started(SessionAffinity())
    assert picks(router, asked(session="a"), [View(0), View(1)]) == 0

    assert picks(router, asked(session="a"), [View(1, 5), View(2, 4)]) == 2
    assert picks(router, asked(session="a"), [View(0), View(1), View(2, 9)]) == 2


def test_a_session_is_served_by_one_replica_in_a_run(fast_forward: bool) -> None:
    got = run_here(
        [(0, 8, 3), (1, 4, 1), (2, 4, 1), (30, 4, 1)],
        LARGE,
        LARGE,
        router="session_affinity",
        fast_forward=fast_forward,
        session=["a", "b", "a", "a"],
    )

    assert got.placed == ["replica0", "replica1", "replica0", "replica0"]
    # Replica 0: 18; a decode and a prompt of 4: 16 -> 34; again with request 3: 50.
    assert got.tokens == [[18, 34, 50], [15], [34], [50]]


# --- consistent-hash


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _walk(key: str, replicas: int, points: int) -> list[int]:
    """Replicas in the order in which their points follow the key's, from a plain list."""
    ring = [(_hash(f"replica {i} point {j}"), i) for i in range(replicas) for j in range(points)]
    after = sorted(ring, key=lambda entry: (entry[0] < _hash(key), entry[0]))
    return list(dict.fromkeys(index for _, index in after))


@pytest.mark.parametrize(
    ("identity", "key"),
    [
        ({"session": "s1", "tenant": "t", "content": Content([(5, 8)])}, "session s1"),
        ({"tenant": "acme", "content": Content([(5, 8)])}, "tenant acme"),
        ({"content": Content([(5, 3), (50, 90)])}, "prefix 5+3 50+3"),
        ({"content": Content([(5, 3)])}, "prefix 5+3"),
        ({}, "prompt 1"),
    ],
)
def test_the_key_is_the_session_else_the_tenant_else_the_prefix(
    identity: dict[str, Any], key: str
) -> None:
    router = started(ConsistentHash(virtual_nodes=4, prefix_tokens=6))

    walk = _walk(key, 5, 4)
    assert picks(router, asked(**identity), [View(i) for i in range(5)]) == walk[0]


def test_a_full_replica_is_passed_over_and_the_key_returns_when_it_is_not() -> None:
    router = started(ConsistentHash(load_factor=1.5, virtual_nodes=3))
    first, second, third = _walk("session a", 3, 3)

    def route(*loads: tuple[int, int]) -> int:
        load = dict(loads)
        return picks(router, asked(session="a"), [View(i, load.get(i, 0)) for i in range(3)])

    # At most ceil(1.5 (m + 1) / 3): of m = 3 2, of m = 5 3 in all.
    assert route((first, 1), (second, 2)) == first
    assert route((first, 2), (second, 1)) == second
    assert route((first, 3), (second, 2)) == second
    assert route((first, 2), (second, 2)) == first  # m = 4: ceil(2.5) = 3
    tight = started(ConsistentHash(load_factor=1.0, virtual_nodes=3))
    views = [View(i, 0 if i == third else 2) for i in range(3)]
    assert picks(tight, asked(session="a"), views) == third  # m = 4: ceil(5 / 3) = 2
    assert picks(tight, asked(session="a"), [views[first], views[second]]) == first  # ceil(2.5)


def test_points_of_replicas_are_alike_whoever_is_offered_first() -> None:
    router = started(ConsistentHash(virtual_nodes=4))
    walk = _walk("tenant t", 4, 4)

    for offered in ([0], [0, 1], [1, 2, 3], [0, 1, 2, 3]):
        expected = next(index for index in walk if index in offered)
        assert picks(router, asked(tenant="t"), [View(i) for i in offered]) == expected


# --- class-aware


def test_classes_have_replicas_of_their_own_and_others_the_rest() -> None:
    router = ClassAware(classes={"tab": [1], "agent": [2, 3]}, within=RoundRobin())
    router.check(5)
    started(router)
    views = [View(i) for i in range(5)]

    names = ["tab", "agent", "agent", "tab", None, "chat", "agent", None]
    chosen = [picks(router, asked(request_class=name), views) for name in names]

    assert chosen == [1, 2, 3, 1, 0, 4, 2, 0]


def test_a_preferred_class_overflows_when_all_its_replicas_are_loaded() -> None:
    router = ClassAware(classes={"tab": [0, 1], "agent": [2]}, others=[2], overflow={"agent": 3})
    started(router)

    def route(name: str, *outstanding: int) -> int:
        views = [View(i, load) for i, load in enumerate(outstanding)]
        return picks(router, asked(request_class=name), views)

    assert route("agent", 0, 0, 2) == 2
    assert route("agent", 1, 0, 3) == 1  # anywhere, the least outstanding
    assert route("agent", 4, 4, 3) == 2  # its own may be that
    assert route("tab", 9, 8, 0) == 1  # dedicated
    assert route("none", 0, 0, 9) == 2


def test_a_request_that_its_class_cannot_run_goes_where_it_can() -> None:
    router = started(ClassAware(classes={"tab": [0]}))

    assert picks(router, asked(request_class="tab"), [View(1, 5), View(2, 4)]) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": {}}, "classes: is empty"),
        ({"classes": {"tab": []}}, "classes.tab: is empty"),
        ({"classes": {"tab": [0, 3]}}, "classes.tab: 3: there is no such replica"),
        ({"classes": {"tab": [0, 0]}}, "classes.tab: .*names a replica twice"),
        ({"classes": {"tab": [0, 1], "chat": [2]}}, "classes: list all 3 replicas"),
        ({"classes": {"tab": [0]}, "others": [-1]}, "others: -1: there is no such replica"),
        ({"classes": {"tab": [0]}, "overflow": {"tap": 1}}, "overflow.tap: .*did you mean tab"),
        ({"classes": {"tab": [0]}, "overflow": {"tab": 0}}, "overflow.tab: 0: expected at least 1"),
    ],
)
def test_classes_and_replicas_that_are_not_there_are_refused(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        ClassAware(**options).check(3)


def test_classes_are_kept_apart_in_a_run(fast_forward: bool) -> None:
    got = run_here(
        [(0, 40, 1), (1, 4, 1), (2, 40, 1), (3, 4, 1)],
        LARGE,
        LARGE,
        router=ClassAware(classes={"agent": [0], "tab": [1]}, others=[0]),
        fast_forward=fast_forward,
        request_class=["agent", "tab", "agent", "tab"],
    )

    assert got.placed == ["replica0", "replica1", "replica0", "replica1"]
    assert got.tokens == [[50], [15], [100], [29]]
