"""`vllm-v1` with its prefix cache on random workloads, compared with the second implementation.

Token times, decisions, free blocks, transfers, tokens found at each admission and blocks that lost
their content have to be equal, stepping and with fast-forward.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from sim.extents import Holding
from sim.prefix_cache import PrefixCache
from sim.request import Request
from tests.conformance.second import CHUNK, Second, assert_alike, differs, load_second

FEW = {"cached": 150, "disaggregated-cached": 150}
MANY = 2000

QUICK = [(kind, first) for kind, few in FEW.items() for first in range(0, few, CHUNK)]
SLOW = [(kind, first) for kind, few in FEW.items() for first in range(few, MANY, CHUNK)]


@pytest.fixture(scope="module")
def second(shared: Path) -> Second:
    return load_second(shared)


@pytest.mark.parametrize(("kind", "first"), QUICK)
def test_hits_losses_and_times_equal_the_second_implementation(
    second: Second, kind: str, first: int
) -> None:
    assert_alike(second, kind, first)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), SLOW)
def test_hits_losses_and_times_equal_the_second_implementation_on_more(
    second: Second, kind: str, first: int
) -> None:
    assert_alike(second, kind, first)


def _never_found(cache: PrefixCache, request: Request, most: int) -> list[Any]:
    return []


def _heads_first(cache: PrefixCache, holding: Holding) -> None:
    """Frees a request's blocks from its first to its last, so that heads are evicted first."""
    for extent in holding.extents():
        while extent.node.blocks > 1:
            extent.node.split(1, cache.block_tokens)
            assert extent.rest is not None
            extent = extent.rest
    for extent in holding.extents():
        alone = Holding(holding.request, 1)
        alone.add(extent, 1)
        _FREE(cache, alone)


def _copied_last(cache: PrefixCache, request: Request, most: int) -> list[Any]:
    """Finds the copy registered last."""
    return [(extent.node.copies[-1], n) for extent, n in _FIND(cache, request, most)]


def _all_sent(
    cache: PrefixCache, request: Request, tokens: int, *, keep_free: int = 0
) -> int | None:
    """What the decode side has is sent all the same."""
    return None if _RESERVE(cache, request, tokens, keep_free=keep_free) is None else 0


def _here_at_once(
    cache: PrefixCache, request: Request, tokens: int, *, keep_free: int = 0
) -> int | None:
    """Blocks on their way are found already."""
    found = _RESERVE(cache, request, tokens, keep_free=keep_free)
    if found is not None:
        cache.arrived(request)
    return found


_FREE, _FIND, _RESERVE = PrefixCache._free, PrefixCache._find, PrefixCache.reserve


@pytest.mark.parametrize(
    ("kind", "name", "broken"),
    [
        ("cached", "_find", _never_found),
        ("cached", "_free", _heads_first),
        ("cached", "_find", _copied_last),
        ("disaggregated-cached", "reserve", _all_sent),
        ("disaggregated-cached", "reserve", _here_at_once),
    ],
    ids=["never finds", "evicts heads first", "last copy", "sends all", "found on its way"],
)
def test_a_broken_cache_does_not_pass(
    second: Second, kind: str, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefixCache, name, broken)
    specs = (second.random_spec(seed, kind) for seed in range(90))
    noticed = (spec for spec in specs if differs(second, spec))

    assert len(list(islice(noticed, 4))) == 4


CORNERS = {
    "cached": (
        "hit of free blocks",
        "hit of blocks in use",
        "hit partly free",
        "hit after a preemption",
        "hit of generated tokens of its own",
        "hit capped",
        "hit with two copies",
        "refused only for its free hits",
        "preempted itself",
    ),
    "disaggregated-cached": ("hit on the decode side", "hit after a preemption"),
}


@pytest.mark.parametrize("kind", CORNERS)
def test_the_workloads_reach_the_corners(second: Second, kind: str) -> None:
    met: Counter[str] = Counter()
    for seed in range(FEW[kind]):
        met.update(set(second.simulate(second.random_spec(seed, kind)).corners))
    assert [corner for corner in CORNERS[kind] if not met[corner]] == []
