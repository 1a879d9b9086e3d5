"""Pipelines: one stage changes nothing, several give the reference's times, stage by stage.

The reference's policies are stepped through the stages by `tests.conformance.pipelined`, a plain
loop of its own. All policies, one pool and two, with and without fast-forward.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import adapter
from tests.conformance.cases import Observed, differences, observe_reference
from tests.conformance.pipelined import simulate_pipelines
from tests.conformance.reference import load_reference
from tests.conformance.test_beyond_reference import _beyond
from tests.conformance.workloads import Spec, workload

CHUNK = 50


def chunks(first: int, quick: int, last: int) -> list[Any]:
    """Where chunks of seeds begin; those from `quick` on are among the slow tests."""
    slow = [pytest.param(at, marks=pytest.mark.slow) for at in range(quick, last, CHUNK)]
    return [*range(first, quick, CHUNK), *slow]


def _replicas(spec: Spec) -> list[Spec]:
    layout = spec.get("disaggregated")
    replicas: list[Spec] = layout["prefill"] + layout["decode"] if layout else spec["replicas"]
    return replicas


def _with_one_stage(spec: Spec) -> Spec:
    staged = copy.deepcopy(spec)
    for replica in _replicas(staged):
        replica["stages"] = [replica.pop("step_time", {})]
    return staged


@pytest.mark.parametrize("make", [workload, _beyond], ids=["workloads", "beyond"])
@pytest.mark.parametrize("first", chunks(0, 50, 100))
def test_one_stage_gives_the_very_same_integers(make: object, first: int) -> None:
    assert callable(make)
    for seed in range(first, first + CHUNK):
        spec = make(seed)
        without = adapter.observe(spec, fast_forward=False)
        for fast_forward in (False, True):
            got = adapter.observe(_with_one_stage(spec), fast_forward=fast_forward)
            assert differences(without, got) == [], (seed, fast_forward)


def _pipelined(spec: Spec, seed: str) -> Spec:
    """The workload on replicas of 1 to 4 stages, even or not, and links of all speeds."""
    rng = random.Random(seed)
    for replica in _replicas(spec):
        whole = replica.pop("step_time", {})
        shares = (1,) if rng.random() < 0.4 else (0, 0.5, 1, 1, 2)
        replica["stages"] = [
            {term: seconds * rng.choice(shares) for term, seconds in whole.items()}
            for _ in range(rng.choice((1, 2, 2, 3, 4)))
        ]
        base_s = whole.get("base_s") or 1e-9
        replica["link"] = {
            "bytes_per_token": rng.choice((0, 1, 4096)),
            "bandwidth_bytes_per_s": rng.choice((3 * 4096 / base_s, 1e9)),
            "latency_s": rng.choice((0.0, base_s, base_s / 3)),
        }
    return spec


def _in_order(observed: Observed) -> Observed:
    """Batches in order of their decisions: they overlap, and are logged when they end."""
    for entries in observed["log"].values():
        entries.sort(key=lambda entry: (entry[0], entry[1]))
    return observed


@pytest.mark.parametrize("first", chunks(0, 100, 250))
def test_several_stages_give_the_times_and_decisions_of_the_plain_loop(
    first: int, shared: Path
) -> None:
    reference = load_reference(shared)
    overlapping = preempting = 0
    for seed in range(first, first + CHUNK):
        spec = _pipelined(workload(seed), f"pipelined {seed}")
        expected = observe_reference(spec, simulate_pipelines(reference, copy.deepcopy(spec)))
        for fast_forward in (False, True):
            got = _in_order(adapter.observe(spec, fast_forward=fast_forward))
            assert differences(expected, got) == [], (seed, fast_forward)
        overlapping += any(_overlaps(entries) for entries in expected["log"].values())
        preempting += any(request["preemptions"] for request in expected["requests"])
    assert overlapping >= CHUNK / 4
    assert preempting >= CHUNK / 10


@pytest.mark.parametrize(
    "seeds",
    [range(60), pytest.param(range(60, 120), marks=pytest.mark.slow), [626]],
    ids=["0", "60", "626"],
)
def test_orders_routers_and_last_tokens_are_the_same_with_and_without_fast_forward(
    seeds: Sequence[int],
) -> None:
    # 626: a prefill replica recomputes while the decode replica is between two batches.
    for seed in seeds:
        spec = _pipelined(_beyond(seed), f"pb {seed}")
        stepping, fast = (
            _in_order(adapter.observe(spec, fast_forward=fast)) for fast in (False, True)
        )
        assert differences(stepping, fast) == [], seed
        for request, got in zip(spec["requests"], stepping["requests"], strict=True):
            tokens = 0 if got["status"] == "rejected" else request["output_tokens"]
            assert len(got["token_times_ns"]) == tokens, (seed, got)


def _overlaps(entries: list[list[int]]) -> bool:
    ends = sorted((entry[0], entry[1]) for entry in entries)
    return any(b[0] < a[1] for a, b in pairwise(ends))
