"""Fast-forward equals stepping beyond what the reference covers: orders, routers, last tokens."""

from __future__ import annotations

import random

import pytest

from policies import ORDERS, PREDICTORS, ROUTERS
from tests.conformance import adapter
from tests.conformance.cases import differences
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
