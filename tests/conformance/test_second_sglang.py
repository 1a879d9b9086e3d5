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
from tests.conformance.cases import observe_reference
from tests.conformance.check import compare
from tests.conformance.second import Second, load_second, replicas_of
from tests.conformance.workloads import Spec

CHUNK = 50
FEW = {"sglang": 50, "cancel": 100, "sessions": 100}
MANY = 2000

QUICK = [(kind, first) for kind, few in FEW.items() for first in range(0, few, CHUNK)]
SLOW = [(kind, first) for kind, few in FEW.items() for first in range(few, MANY, CHUNK)]


class Referred:
    """The second implementation's workloads of this policy, and its results, each made once."""

    def __init__(self, second: Second) -> None:
        self._second = second
        self._results: dict[tuple[str, int], Any] = {}

    def specs(self, kind: str, seeds: range) -> list[tuple[Spec, Any]]:
        """Of the workloads of a kind those of this policy, with what comes of them."""
        specs = [(seed, self._second.random_spec(seed, kind)) for seed in seeds]
        of_ours = [(seed, x) for seed, x in specs if replicas_of(x)[0]["policy"] == "sglang"]
        return [(spec, self._result(kind, seed, spec)) for seed, spec in of_ours]

    def _result(self, kind: str, seed: int, spec: Spec) -> Any:
        if (kind, seed) not in self._results:
            self._results[kind, seed] = self._second.simulate(spec)
        return self._results[kind, seed]


@pytest.fixture(scope="module")
def referred(shared: Path) -> Referred:
    return Referred(load_second(shared))


def _cache_differs(spec: Spec, expected: Any) -> list[str]:
    """Tokens found and evicted, in each decision of each replica."""
    cluster, names = adapter.build(spec)
    source = adapter.feed(spec)
    result = simulate(source, cluster, fast_forward=True, record=Record(decisions=True))
    ours = [(names[x.replica], x.start_ns, dict(x.cached), x.lost_blocks) for x in result.decisions]
    cached = replicas_of(spec)[0].get("prefix_cache", True)
    theirs = [
        (x.replica, x.start_ns, dict(x.facts["cached"]) if cached else {}, x.facts["lost"])
        for x in expected.log
    ]
    pairs = zip(sorted(ours, key=_place), sorted(theirs, key=_place), strict=True)
    return [f"{a} is not {b}" for a, b in pairs if a != b]


def _place(entry: tuple[Any, ...]) -> tuple[str, int]:
    return entry[0], entry[1]


def _compare(referred: Referred, kind: str, first: int) -> None:
    for spec, expected in referred.specs(kind, range(first, first + CHUNK)):
        assert compare(spec, observe_reference(spec, expected)) == []
        assert _cache_differs(spec, expected) == []


@pytest.mark.parametrize(("kind", "first"), QUICK)
def test_decisions_and_hits_equal_the_second_implementation(
    referred: Referred, kind: str, first: int
) -> None:
    _compare(referred, kind, first)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "first"), SLOW)
def test_decisions_and_hits_equal_the_second_implementation_on_more(
    referred: Referred, kind: str, first: int
) -> None:
    _compare(referred, kind, first)


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
    referred: Referred, target: Any, broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*((target,) if isinstance(target, str) else target), broken)
    different = 0
    for spec, expected in referred.specs("sglang", range(CHUNK)):
        if len(spec["requests"]) < 100:  # long queues take long
            different += _differs(spec, expected)
    assert different


def _differs(spec: Spec, expected: Any) -> bool:
    cluster, _ = adapter.build(spec)
    try:
        result = simulate(adapter.feed(spec), cluster)
    except StuckError:
        return True
    ours = [result.token_times_ns(i).tolist() for i in range(len(spec["requests"]))]
    return any(x != list(expected.requests[i].token_times_ns) for i, x in enumerate(ours))


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
)


def test_the_workloads_reach_the_corners(referred: Referred) -> None:
    met: Counter[str] = Counter()
    for _, expected in referred.specs("sglang", range(CHUNK)):
        met.update(set(expected.corners))
    assert [corner for corner in CORNERS if not met[corner]] == []
