"""`sglang` on random workloads against the plain second implementation, decision by decision.

Beside times, decisions and free slots: what each admitted request found, and what was evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policies.sglang import LongestPrefix
from sim.errors import StuckError
from sim.event_loop import simulate
from sim.policy import ReplicaState
from sim.radix_cache import RadixCache
from sim.records import Record
from sim.request import Request
from tests.conformance import adapter
from tests.conformance.second import Second, differs, load_second, replicas_of
from tests.conformance.workloads import Spec

CHUNK = 50
FEW = {"sglang": 100, "cancel": 150, "sessions": 150}
MANY = 2000

QUICK = [(kind, first) for kind, few in FEW.items() for first in range(0, few, CHUNK)]
SLOW = [(kind, first) for kind, few in FEW.items() for first in range(few, MANY, CHUNK)]


@pytest.fixture(scope="module")
def second(shared: Path) -> Second:
    return load_second(shared)


def _specs(second: Second, kind: str, seeds: range) -> list[Spec]:
    """Of the workloads of a kind those of this policy."""
    specs = [second.random_spec(seed, kind) for seed in seeds]
    return [spec for spec in specs if replicas_of(spec)[0]["policy"] == "sglang"]


def _cache_differs(second: Second, spec: Spec) -> list[str]:
    """Tokens found and evicted, in each decision of each replica."""
    cluster, names = adapter.build(spec)
    source = adapter.feed(spec)
    result = simulate(source, cluster, fast_forward=True, record=Record(decisions=True))
    ours = [(names[x.replica], x.start_ns, dict(x.cached), x.lost_blocks) for x in result.decisions]
    cached = replicas_of(spec)[0].get("prefix_cache", True)
    theirs = [
        (x.replica, x.start_ns, dict(x.facts["cached"]) if cached else {}, x.facts["lost"])
        for x in second.simulate(spec).log
    ]
    pairs = zip(sorted(ours, key=_place), sorted(theirs, key=_place), strict=True)
    return [f"{a} is not {b}" for a, b in pairs if a != b]


def _place(entry: tuple[Any, ...]) -> tuple[str, int]:
    return entry[0], entry[1]


def _compare(second: Second, kind: str, first: int) -> None:
    for spec in _specs(second, kind, range(first, first + CHUNK)):
        assert differs(second, spec) == []
        assert _cache_differs(second, spec) == []


@pytest.mark.parametrize(("kind", "first"), QUICK)
def test_decisions_and_hits_equal_the_second_implementation(
    second: Second, kind: str, first: int
) -> None:
    _compare(second, kind, first)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), SLOW)
def test_decisions_and_hits_equal_the_second_implementation_on_more(
    second: Second, kind: str, first: int
) -> None:
    _compare(second, kind, first)


def _never_hits(cache: RadixCache, request: Request, tokens: int) -> int:
    """Nothing is found."""
    cache._found = request, cache._root
    return 0


def _most_recent_first(cache: RadixCache, node: Any, stamp: int) -> tuple[int, int]:
    """The leaf used last is evicted first."""
    return -stamp, 0


def _expects_nothing(policy: LongestPrefix, state: ReplicaState) -> float:
    """Running requests are taken not to grow."""
    return 0.0


def _never_clears(policy: LongestPrefix, state: ReplicaState) -> None:
    """The end of an extend step changes nothing."""
    policy._extending, policy._cut_or_left = {}, False


def _retracts_the_last(policy: LongestPrefix, state: ReplicaState, kv: Any) -> None:
    """As vLLM does: the one that joined last."""
    while len(state.running) > 1 and kv.free_blocks < state.group.size:
        state.preempt(next(reversed(state.running)), to_end=True)
    policy._full = False


def _unsorted(state: ReplicaState, kv: RadixCache) -> None:
    """The queue as it stands."""


@pytest.mark.parametrize(
    ("target", "broken"),
    [
        ((RadixCache, "find"), _never_hits),
        ((RadixCache, "_key"), _most_recent_first),
        ((LongestPrefix, "_growth"), _expects_nothing),
        ((LongestPrefix, "_look_back"), _never_clears),
        ((LongestPrefix, "_retract"), _retracts_the_last),
        ("policies.sglang._sort", _unsorted),
        ("policies.sglang.DECAY", 0.0),
        ("policies.sglang.HEAD", 1 << 40),
    ],
)
def test_a_broken_policy_does_not_pass(
    second: Second, target: Any, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*((target,) if isinstance(target, str) else target), broken)
    different = 0
    for spec in _specs(second, "sglang", range(60)):
        if len(spec["requests"]) < 100:  # long queues take long
            different += bool(_any_difference(second, spec))
    assert different


def _any_difference(second: Second, spec: Spec) -> list[str]:
    cluster, _ = adapter.build(spec)
    try:
        result = simulate(adapter.feed(spec), cluster, fast_forward=False)
    except StuckError as error:
        return [str(error)]
    ours = [result.token_times_ns(i).tolist() for i in range(len(spec["requests"]))]
    theirs = second.simulate(spec).requests
    return [f"request {i}" for i, x in enumerate(ours) if x != list(theirs[i].token_times_ns)]


CORNERS = (
    "above 128 waiting",
    "chunk after chunk",
    "cut",
    "duplicates freed",
    "hit",
    "hit after a retraction",
    "mark cleared: a request was cut",
    "mark cleared: after an end in a decode step",
    "mark cleared: an end in an extend step",
    "mark cleared: joined an empty list",
    "mark cleared: nothing running",
    "mark cleared: retraction",
    "mark set: max_running_requests",
    "mark set: remaining",
    "mark set: remaining after locking",
    "mark set: remaining used up",
    "order changed",
    "postponed in batch",
    "ratio at its floor",
    "refused for max_prefill_tokens",
    "retracted",
    "several retracted",
)


def test_the_workloads_reach_the_corners(second: Second) -> None:
    met: Counter[str] = Counter()
    for spec in _specs(second, "sglang", range(120)):
        met.update(set(second.simulate(spec).corners))
    assert [corner for corner in CORNERS if not met[corner]] == []
