"""`vllm-v1` with tiers behind its prefix cache, compared with the second implementation.

That one has an entry for each block, and makes every iteration on its own. Its host memory was
written from the rules in the docstring of `sim.host_cache`, without a look at the code; its disk
from those of `sim.disk_cache`, by the same author. Token times, decisions, tokens found,
blocks lost and bytes moved over the host link have to be equal, stepping and with fast-forward.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from sim.extents import Node
from sim.host_cache import TieredPrefixCache
from sim.prefix_cache import PrefixCache
from sim.request import Request
from tests.conformance.second import Second, differs, load_second, replicas_of
from tests.conformance.workloads import Spec

KINDS = ("tiered", "disked")
CHUNK = 50
FEW, MANY = 200, 2000
TELLING = (11, 12, 25, 26, 34, 37, 50, 58, 114, 185, 195, 210, 214, 228, 259, 292, 296)
"""Seeds on which what is broken below shows; found by search."""


@pytest.fixture(scope="module")
def second(shared: Path) -> Second:
    return load_second(shared)


def _specs(second: Second, first: int, count: int, kind: str = "tiered") -> list[tuple[int, Spec]]:
    """Workloads of these seeds; `sglang` has a comparison of its own."""
    specs = [(seed, second.random_spec(seed, kind)) for seed in range(first, first + count)]
    return [x for x in specs if all(r["policy"] != "sglang" for r in replicas_of(x[1]))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, FEW, CHUNK))
def test_tiers_and_times_equal_the_second_implementation(
    second: Second, first: int, kind: str
) -> None:
    for seed, spec in _specs(second, first, CHUNK, kind):
        assert differs(second, spec) == [], f"{kind} {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(FEW, MANY, CHUNK))
def test_tiers_and_times_equal_the_second_implementation_on_more(
    second: Second, first: int, kind: str
) -> None:
    for seed, spec in _specs(second, first, CHUNK, kind):
        assert differs(second, spec) == [], f"{kind} {seed}"


def _first_in_first_out(cache: TieredPrefixCache, run: list[tuple[Node, int]]) -> None:
    """What is loaded keeps its place on the host."""


def _copies_twice(cache: TieredPrefixCache, node: Node) -> None:
    """What the host has already is copied again."""
    if node.place_in(cache.host) is not None:
        cache.host.written += node.blocks
    _LET_GO(cache, node)


def _forgets_own(cache: TieredPrefixCache, request: Request) -> int:
    """What a request generated before it was preempted is not known by its name."""
    return PrefixCache._named_blocks(cache, request)


_LET_GO = TieredPrefixCache._let_go


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_load", _first_in_first_out),
        ("_let_go", _copies_twice),
        ("_named_blocks", _forgets_own),
    ],
)
def test_a_broken_tier_does_not_pass(
    second: Second, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [spec for seed in TELLING for _, spec in _specs(second, seed, 1)]
    monkeypatch.setattr(TieredPrefixCache, name, broken)

    assert sum(bool(differs(second, spec)) for spec in specs) >= 3


CORNERS = (
    "written",
    "loaded",
    "host hit behind a hit",
    "lost, another block has it",
    "lost, the host has it",
    "the host forgets",
    "hit on the decode side",
    "preempted half-prefilled",
    "preempted itself",
    "cancelled in a step",
)


DISK_CORNERS = ("read from disk", "the disk has it", "the disk forgets")


@pytest.mark.parametrize(
    ("kind", "corners"), [("tiered", CORNERS), ("disked", (*CORNERS, *DISK_CORNERS))]
)
def test_the_workloads_reach_the_corners(
    second: Second, kind: str, corners: tuple[str, ...]
) -> None:
    met: Counter[str] = Counter()
    for _, spec in _specs(second, 0, FEW, kind):
        met.update(set(second.simulate(spec).corners))
    assert [corner for corner in corners if not met[corner]] == []
