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
from tests.conformance.extended import AGAIN, simulate_extended, simulate_last_tokens
from tests.conformance.extended import ORDERS as SORTED
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
        layout["router"] = rng.choice(sorted(ROUTERS))
        layout["decode_router"] = rng.choice(sorted(ROUTERS.keys() - {"mooncake"}))  # of prefills
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


def _again(seed: int) -> Spec | None:
    """A conformance workload of two pools with the last token computed again, or None."""
    rng = random.Random(f"again {seed}")
    spec = workload(seed)
    if "disaggregated" not in spec:
        return None
    for request in spec["requests"]:
        request["output_tokens"] += 1
        request["max_tokens"] = max(request["output_tokens"], request.get("max_tokens", 1))
    layout = spec["disaggregated"]
    kept = ("total_blocks", "block_tokens", "max_model_len", "step_time")
    for i, replica in enumerate(layout["decode"]):
        small = {"policy": rng.choice(AGAIN), **{x: replica[x] for x in kept if x in replica}}
        if small["policy"] == "sarathi" and rng.random() < 0.5:
            small["budget_tokens"] = rng.randint(1, 9)
        layout["decode"][i] = small
    layout["transfer"]["recompute_last_token"] = True
    return spec


@pytest.mark.parametrize("first", [2000, 2100])
def test_last_tokens_computed_again_equal_the_extended_reference(first: int, shared: Path) -> None:
    reference = load_reference(shared)
    specs = {seed: _again(seed) for seed in range(first, first + 100)}
    for seed, spec in specs.items():
        if spec is not None:
            result = simulate_last_tokens(reference, copy.deepcopy(spec))
            assert compare(spec, observe_reference(spec, result)) == [], seed
    assert sum(spec is not None for spec in specs.values()) > 20
