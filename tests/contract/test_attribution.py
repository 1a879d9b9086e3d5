"""The phases of every request add up to its E2E exactly, fast-forward on and off, everywhere.

So do those of every single gap between its tokens, which are what reading its account at each token
of a run without fast-forward says.

All policies, queue orders and routers; caches, host tiers, swapping, cancellations, sessions, two
pools under pull and push, pipelines, and clusters that fail and slow down.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.contract import Subject, arrivals_of, cluster_of, random_workload
from sim.attribution import E2E_COLUMNS
from sim.errors import ConfigError
from sim.event_loop import simulate
from sim.records import Record, SimulationResult
from tests.attributed import assert_adds_up, assert_alike, assert_lives, token_by_token
from tests.conformance import adapter
from tests.conformance.second import Second, load_second, without_idle_nics
from tests.conformance.test_second_failures import as_changes
from tests.contract.test_policies import SORTED, SUBJECTS

FOLLOWED = range(0, 10**6, 4)
ATTRIBUTED = Record(attribution=True, follow=FOLLOWED)


def _both(source: Any, cluster: Any, **options: Any) -> SimulationResult:
    """Run with fast-forward and without, and check both, gap by gap of all requests."""
    runs = []
    with token_by_token() as read:
        for fast_forward in (True, False):
            read.ns.clear()
            made = source() if callable(source) else source
            result = simulate(
                made, cluster, fast_forward=fast_forward, check=True, record=ATTRIBUTED, **options
            )
            assert_adds_up(result)
            assert sorted(result.lives) == [
                i for i in result.requests["index"].tolist() if i % 4 == 0
            ]
            assert_lives(result)
            runs.append(result)
    assert_alike(*runs)
    for result in runs:
        read.assert_same_gaps(result)
    return runs[0]


@pytest.mark.parametrize("subject", [*SUBJECTS.values(), *SORTED.values()], ids=lambda s: s.name)
def test_every_policy_order_and_router(subject: Subject) -> None:
    ran = 0
    for seed in range(6):
        workload = random_workload(seed)
        try:
            _both(arrivals_of(workload), cluster_of(subject, workload), seed=seed)
        except ConfigError:
            continue
        ran += 1
    assert ran


@pytest.fixture(scope="module")
def second(shared: Path) -> Second:
    return load_second(shared)


MEETS = {
    "disked": {"copy", "reprefill"},
    "tiered": {"copy"},
    "cached": {"queue_memory"},
    "disaggregated-cached": {"transfer", "loaded"},
    "swap": {"swapped", "copy"},
    "cancel": {"lost"},
    "sglang": {"stall"},
    "sessions": {"stall"},
    "links": {"transfer_queue"},
    "push": {"queue_held"},
    "recompute": {"reprefill"},
    "layerwise": {"transfer"},
    "pipeline": {"bubble"},
    "pipeline-static": {"padding"},
}
"""Kinds of random workloads, and phases that they have to meet for the test to say anything."""


@pytest.mark.parametrize("kind", MEETS)
def test_caches_pools_pipelines_and_cancellations(second: Second, kind: str) -> None:
    met: Counter[str] = Counter()
    for seed in range(12):
        spec = without_idle_nics(second.random_spec(seed, kind))
        plain = {key: value for key, value in spec.items() if key != "events"}
        cluster, _ = adapter.build(plain)
        result = _both(lambda plain=plain: adapter.feed(plain), cluster)
        met.update(_met(result))
    assert MEETS[kind] <= set(met)


@pytest.mark.parametrize(
    ("kind", "meets"),
    [("failures", {"lost", "queue_no_replica", "reprefill_failure"}), ("slow", {"slow", "lost"})],
)
def test_failures_and_stragglers(second: Second, kind: str, meets: set[str]) -> None:
    met: Counter[str] = Counter()
    for seed in range(30):
        spec = without_idle_nics(second.random_spec(seed, kind))
        made = as_changes(spec)
        if made is None:
            continue
        source, cluster, changes = made
        result = _both(source, cluster, cluster_events=changes)
        met.update(_met(result))
    assert meets <= set(met)


def _met(result: SimulationResult) -> set[str]:
    return {
        name.removeprefix("e2e_").removesuffix("_ns")
        for name in E2E_COLUMNS
        if result.requests[name].any()
    }
