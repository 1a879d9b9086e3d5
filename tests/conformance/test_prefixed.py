"""`vllm-v1` with its prefix cache on random workloads, compared with a plain one on the reference.

Token times, decisions, free blocks, tokens found at each admission and blocks that lost their
content have to be equal, stepping and with fast-forward.
"""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from policies import ORDERS, PREDICTORS, ROUTERS
from sim.event_loop import simulate
from sim.extents import Holding
from sim.prefix_cache import PrefixCache
from sim.records import Record
from sim.request import Request
from tests.conformance import adapter
from tests.conformance.cases import differences, observe_reference
from tests.conformance.prefixed import prefixed_workload, simulate_prefixed
from tests.conformance.reference import load_reference
from tests.conformance.workloads import Spec

WORKLOADS = int(os.environ.get("PHASEWISE_PREFIXED_N", "600"))
CHUNK = 50


def differs(spec: Spec, expected: Any) -> list[str]:
    """What differs from the expected result, facts of the cache included."""
    facts: dict[str, list[Any]] = {}
    for x in expected.log:
        facts.setdefault(x.replica, []).append([x.facts["cached"], x.facts["lost"]])
    lines = []
    for name, fast_forward in (("stepping", False), ("fast-forward", True)):
        cluster, names = adapter.build(spec)
        result = simulate(
            adapter.arrivals(spec),
            cluster,
            fast_forward=fast_forward,
            check=True,
            record=Record(decisions=True),
        )
        got = adapter.observe_result(spec, result, names)
        lines += [f"{name}: {x}" for x in differences(observe_reference(spec, expected), got)]
        ours: dict[str, list[Any]] = {}
        for y in result.decisions:
            ours.setdefault(names[y.replica], []).append([dict(y.cached), y.lost_blocks])
        if ours != facts:
            at = next(
                (x, i, a, b)
                for x in facts
                for i, (a, b) in enumerate(zip(facts[x], ours.get(x, []), strict=False))
                if a != b
            )
            lines.append(f"{name}: {at[0]}: step {at[1]}: facts {at[2]}, got {at[3]}")
    return lines


@pytest.mark.parametrize("first", range(0, WORKLOADS, CHUNK))
def test_hits_losses_and_times_equal_the_reference_with_a_cache(first: int, shared: Path) -> None:
    reference = load_reference(shared)
    for seed in range(first, first + CHUNK):
        spec = prefixed_workload(seed)
        assert differs(spec, simulate_prefixed(reference, copy.deepcopy(spec))) == [], seed


def _sorted(seed: int) -> Spec:
    """A workload with a cache under an order that the reference does not have."""
    rng = random.Random(f"sorted {seed}")
    spec = prefixed_workload(seed) | {"predictor": rng.choice(sorted(PREDICTORS))}
    spec["router"] = rng.choice(sorted(ROUTERS))
    order = rng.choice(sorted(ORDERS))
    for request in spec["requests"]:
        request["priority"] = rng.choice((0, 0, 1, 2))
        request["deadline_ns"] = rng.choice((1, 10**6, 10**9))
    for replica in spec["replicas"]:
        replica["order"] = order
        replica["watermark"] = rng.choice((0.0, 0.0, 0.1))
    return spec


@pytest.mark.parametrize("first", range(5000, 5200, CHUNK))
def test_fast_forward_equals_stepping_with_other_orders_routers_and_a_watermark(first: int) -> None:
    for seed in range(first, first + CHUNK):
        spec = _sorted(seed)
        stepping, fast = (_decisions(spec, fast_forward=x) for x in (False, True))
        assert stepping == fast, seed


def _decisions(spec: Spec, *, fast_forward: bool) -> Any:
    cluster, names = adapter.build(spec)
    record = Record(decisions=True)
    result = simulate(
        adapter.arrivals(spec), cluster, fast_forward=fast_forward, check=True, record=record
    )
    columns = {name: column.tolist() for name, column in result.requests.items()}
    decisions = sorted(result.decisions, key=lambda x: (x.replica, x.start_ns, x.end_ns))
    return columns, adapter.observe_result(spec, result, names), decisions


def _never_found(cache: PrefixCache, request: Request) -> list[Any]:
    return []


def _heads_first(cache: PrefixCache, holding: Holding) -> None:
    """Frees a request's blocks from its first to its last."""
    for extent in holding.extents():
        while extent.node.blocks > 1:
            extent.node.split(1, cache.block_tokens)
            assert extent.rest is not None
            extent = extent.rest
    for extent in holding.extents():
        alone = Holding(holding.request, 1)
        alone.add(extent, 1)
        PrefixCache_free(cache, alone)


def _copied_last(cache: PrefixCache, request: Request) -> list[Any]:
    """Finds the copy registered last."""
    return [(extent.node.copies[-1], n) for extent, n in PrefixCache_find(cache, request)]


PrefixCache_free, PrefixCache_find = PrefixCache._free, PrefixCache._find


@pytest.mark.parametrize(
    ("name", "broken"),
    [("_find", _never_found), ("_free", _heads_first), ("_find", _copied_last)],
    ids=["never finds", "heads first", "last copy"],
)
def test_a_broken_cache_does_not_pass(
    name: str, broken: Any, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = load_reference(shared)
    monkeypatch.setattr(PrefixCache, name, broken)
    specs = [prefixed_workload(seed) for seed in range(40)]
    wrong = [x for x in specs if differs(x, simulate_prefixed(reference, copy.deepcopy(x)))]
    assert len(wrong) > 3


def test_the_workloads_find_lose_and_preempt(shared: Path) -> None:
    reference = load_reference(shared)
    counts: Counter[str] = Counter()
    for seed in range(60):
        log = simulate_prefixed(reference, prefixed_workload(seed)).log
        counts["hit"] += any(sum(x.facts["cached"].values()) for x in log)
        counts["loss"] += any(x.facts["lost"] for x in log)
        counts["preemption"] += any(x.preempted for x in log)
        gone = {index for x in log for index in x.preempted}
        counts["hit again"] += any(x.facts["cached"].get(i) for x in log for i in gone)
    assert min(counts[x] for x in ("hit", "loss", "preemption", "hit again")) >= 12, counts
