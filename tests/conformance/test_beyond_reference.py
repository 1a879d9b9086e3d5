"""What the reference does not cover: orders, routers, last tokens computed again.

Fast-forward equals stepping there too; orders and `least-tokens` are compared with the reference
extended by them.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from policies import ORDERS, PREDICTORS, ROUTERS
from tests.conformance import adapter
from tests.conformance.cases import differences, observe_reference
from tests.conformance.check import compare
from tests.conformance.extended import ORDERS as SORTED
from tests.conformance.extended import simulate_extended
from tests.conformance.reference import load_reference
from tests.conformance.workloads import Spec, workload

SEEDS = range(400)
CHUNK = 50


def _beyond(seed: int) -> Spec:
    """A conformance workload with what the reference does not know."""
    rng = random.Random(f"beyond {seed}")
    spec = workload(seed) | {"predictor": rng.choice(sorted(PREDICTORS))}
    for request in spec["requests"]:
        request["priority"] = rng.choice((0, 0, 1, 2))
        request["deadline_ns"] = rng.choice((1, 10**6, 10**9))
    layout = spec.get("disaggregated")
    order = rng.choice(sorted(ORDERS))
    for pool in (layout["prefill"], layout["decode"]) if layout else (spec["replicas"],):
        for replica in pool:
            replica["order"] = order
    if layout:
        layout["router"], layout["decode_router"] = rng.choices(sorted(ROUTERS), k=2)
        layout["transfer"]["recompute_last_token"] = rng.random() < 0.7
    else:
        spec["router"] = rng.choice(sorted(ROUTERS))
    return spec


@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, CHUNK))
def test_fast_forward_equals_stepping_beyond_the_reference(first: int) -> None:
    for seed in range(first, first + CHUNK):
        spec = _beyond(seed)
        stepping = adapter.observe(spec, fast_forward=False)
        fast = adapter.observe(spec, fast_forward=True)

        assert differences(stepping, fast) == [], seed
        for request, got in zip(spec["requests"], stepping["requests"], strict=True):
            tokens = 0 if got["status"] == "rejected" else request["output_tokens"]
            assert len(got["token_times_ns"]) == tokens, (seed, got)


def _sorted(seed: int, order: str) -> Spec:
    """A conformance workload with one order everywhere, and routers that count tokens."""
    rng = random.Random(f"sorted {seed}")
    spec = workload(seed) | {"predictor": "oracle"}
    for request in spec["requests"]:
        request["priority"] = rng.choice((0, 0, 1, 2))
        request["deadline_ns"] = rng.choice((1, 10**6, 10**9))
    layout = spec.get("disaggregated")
    for pool in (layout["prefill"], layout["decode"]) if layout else (spec["replicas"],):
        for replica in pool:
            replica["order"] = order
            replica.pop("batch_timeout_s", None)  # rule 91 is not in the reference
    (layout or spec)["router"] = rng.choice(("round_robin", "least_outstanding", "least_tokens"))
    return spec


@pytest.mark.parametrize("order", SORTED)
def test_orders_and_least_tokens_equal_the_extended_reference(order: str, shared: Path) -> None:
    reference = load_reference(shared)
    compared = 0
    for seed in range(1000, 1060):
        spec = _sorted(seed, order)
        theirs = {key: value for key, value in copy.deepcopy(spec).items() if key != "predictor"}
        result = simulate_extended(reference, theirs, order)
        preempted = any(outcome.preemptions for outcome in result.requests.values())
        if order == "priority" and preempted:
            continue
        compared += 1
        assert compare(spec, observe_reference(spec, result)) == [], seed
    assert compared > 35
