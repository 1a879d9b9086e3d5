"""A client gives up at every possible instant of small runs (rules 53 and 74 to 77).

State changes only at the instants at which something happens, so that each of them, the one before
and the one after stand for all. Whatever the policy and the layout: the request ends there with the
tokens it had, nothing before that instant changes, every block comes back, and fast-forward gives
the integers of stepping.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from policies import ORDERS, POLICIES, ROUTERS
from sim.cluster import Cluster
from sim.content import Content
from sim.errors import ConfigError
from sim.pipeline import PipelineReplica
from sim.pool import PoolSpec
from sim.replica_spec import ReplicaSpec
from sim.request import Arrival
from sim.stages import PipelineStepTime, StageLink
from sim.step_time import LinearStepTime
from sim.transfer import TransferSpec
from tests.cancellations import assert_given_up, giving_up, instants, observed, run
from tests.contract.test_policies import OPTIONS

LAYOUTS = ("one", "two", "pools", "recomputed", "stages")
OPTIONED = [(name, options) for name in POLICIES for options in [{}, *OPTIONS.get(name, [])]]
CASES = [(name, options, layout) for name, options in OPTIONED for layout in LAYOUTS]
QUICK = [
    (name, options, layout)
    for at, (name, options) in enumerate(OPTIONED)
    for layout in (LAYOUTS if not options else ("one", LAYOUTS[at % 4 + 1]))
]
"""All layouts under default options, two of them under others."""


def _step_time(base: int = 3) -> LinearStepTime:
    return LinearStepTime(base * 1e-9, 2e-9, decode_s=1e-9, context_token_s=1e-10)


def _replica(name: str, options: dict[str, Any], blocks: int, order: str) -> ReplicaSpec:
    policy = POLICIES[name](**options)
    queue = ORDERS[order]()
    return ReplicaSpec(
        policy,
        blocks,
        _step_time(),
        4,
        order=queue,
        kv_bytes_per_token=1,
        host_bandwidth_bytes_per_s=3e9,
    )


def _staged(name: str, options: dict[str, Any], blocks: int) -> ReplicaSpec:
    link = StageLink(bytes_per_token=1, bandwidth_bytes_per_s=5e8, latency_s=1e-9)
    model = PipelineStepTime([_step_time(base) for base in (3, 5, 4)], link)
    return ReplicaSpec(POLICIES[name](**options), blocks, model, 4, kind=PipelineReplica)


def _cluster(name: str, options: dict[str, Any], layout: str, rng: random.Random) -> Cluster:
    blocks = rng.choice((7, 8, 10, 14, 40))
    order = rng.choice(("fcfs", "priority")) if name in ("vllm-v1", "sarathi") else "fcfs"
    made = _replica(name, options, blocks, order)
    if layout == "stages":
        made = _staged(name, options, blocks)
    count = 2 if layout == "two" else 1
    entry = PoolSpec("entry", [made] * count, ROUTERS["least-outstanding"]())
    if layout not in ("pools", "recomputed"):
        return Cluster(entry)
    decode = PoolSpec("decode", [made], ROUTERS["round-robin"]())
    return Cluster(entry, decode, TransferSpec(1e9, 7e-9, layout == "recomputed"))


def _workload(rng: random.Random, requests: int) -> list[Arrival]:
    rows, now = [], 0
    for index in range(requests):
        now += rng.choice((0, 0, 3, 20))
        output, prompt = rng.randint(1, 7), rng.randint(1, 14)
        most = output + rng.choice((0, 3))
        text = Content([(0, rng.choice((0, 4, 9))), (1000 * (index + 1), prompt)])
        row = Arrival(now, prompt, output, most, index, priority=index % 2)
        rows.append(row._replace(content=text.cut(prompt + most)))
    return rows


def _enumerate(name: str, options: dict[str, Any], layout: str, seed: int, requests: int) -> int:
    """Let each request give up at each instant; returns the number of runs compared."""
    rng = random.Random(f"{name} {options} {layout} {seed}")
    rows, cluster = _workload(rng, requests), _cluster(name, options, layout, rng)
    try:
        base = run(rows, cluster, fast_forward=False)
    except ConfigError as error:
        if "not modelled" not in str(error):
            raise
        pytest.skip(str(error))
    count = 0
    for arrival, now, changed in giving_up(rows, instants(base)):
        fast, stepped = (run(changed, cluster, fast_forward=x) for x in (True, False))
        assert observed(fast) == observed(stepped), f"request {arrival.index} gives up at {now}"
        assert_given_up(stepped, base, arrival, now)
        count += 1
    return count


@pytest.mark.parametrize(("name", "options", "layout"), QUICK)
def test_a_client_may_give_up_at_any_instant(
    name: str, options: dict[str, Any], layout: str
) -> None:
    assert _enumerate(name, options, layout, seed=0, requests=2) > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize(("name", "options", "layout"), CASES)
def test_a_client_may_give_up_at_any_instant_of_busier_runs(
    name: str, options: dict[str, Any], layout: str, seed: int
) -> None:
    assert _enumerate(name, options, layout, seed, requests=4) > 10
