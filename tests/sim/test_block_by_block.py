"""Extents give the same integers as a cache block by block, on random workloads.

Contents are told as runs, generated tokens at times among them, so that requests find what others
are generating; some requests even generate the same tokens.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest

from policies import ORDERS
from sim.cluster import Cluster, PoolSpec
from sim.event_loop import simulate
from sim.records import Record, SimulationResult
from tests.conformance import adapter
from tests.conformance.prefixed import prefixed_workload
from tests.conformance.workloads import Spec
from tests.sim.block_by_block import BlockByBlock

CHUNK = 50
Runs = list[tuple[int, int]]


def told_workload(seed: int) -> Spec:
    """A workload of one pool whose requests tell their contents by runs."""
    rng = random.Random(f"told {seed}")
    spec = prefixed_workload(seed)
    texts = [_text(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    for request in spec["requests"]:
        request.pop("block_ids", None)
        request.pop("block_ids_tokens", None)
        if rng.random() < 0.9:
            request["content"] = _content(rng, texts, request)
    if rng.random() < 0.3:
        spec["predictor"] = "oracle"
        order = rng.choice(sorted(ORDERS))
        for replica in spec["replicas"]:
            replica["order"] = order
        for request in spec["requests"]:
            request["priority"] = rng.choice((0, 0, 1, 2))
            request["deadline_ns"] = rng.choice((1, 10**6, 10**9))
    return spec


def _text(rng: random.Random) -> Runs:
    """A few runs, in all longer than any request, at times of one run."""
    return [
        (rng.randrange(10**6) * 10**4, rng.choice((3, 10, 40, 200, 10**4))) for _ in range(8)
    ] + [(10**12, 10**5)]


def _content(rng: random.Random, texts: list[Runs], request: Spec) -> Runs:
    """The start of a text, then at times something else; it may tell what will be generated."""
    prompt = request["prompt_tokens"]
    most = prompt + request.get("max_tokens", request["output_tokens"])
    told = rng.choice((prompt // 2, prompt, prompt, most, most))
    alike = rng.choice((told, told, told // 2, rng.randint(0, told)))
    begun: Runs = []
    left = alike
    for first, tokens in rng.choice(texts):
        begun.append((first, min(left, tokens)))
        left -= begun[-1][1]
    own = 10**13 + 10**6 * rng.choice((0, 1, rng.randrange(10**4)))
    return [*begun, (own, told - alike)]


def plain(cluster: Cluster) -> Cluster:
    """The same, with caches block by block."""

    def policy(old: Any) -> BlockByBlock:
        return BlockByBlock(**{x.name: getattr(old, x.name) for x in fields(old)})

    specs = [replace(x, policy=policy(x.policy)) for x in cluster.entry.replicas]
    entry = PoolSpec(cluster.entry.name, specs, cluster.entry.router)
    return replace(cluster, entry=entry)


def run(spec: Spec, *, by_block: bool = False, fast_forward: bool = False) -> SimulationResult:
    cluster, _ = adapter.build(spec)
    return simulate(
        adapter.arrivals(spec),
        plain(cluster) if by_block else cluster,
        fast_forward=fast_forward,
        check=True,
        record=Record(decisions=True),
    )


def observed(result: SimulationResult) -> Any:
    columns = {name: column.tolist() for name, column in result.requests.items()}
    decisions = sorted(result.decisions, key=lambda x: (x.replica, x.start_ns, x.end_ns))
    times = [result.token_times_ns(i).tolist() for i in range(len(columns["index"]))]
    return columns, times, decisions


@pytest.mark.parametrize("first", range(0, 300, CHUNK))
def test_extents_give_the_integers_of_single_blocks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _compare(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, CHUNK))
def test_extents_give_the_integers_of_single_blocks_on_thousands(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _compare(seed)


def _compare(seed: int) -> None:
    spec = told_workload(seed)
    expected = observed(run(spec, by_block=True))
    assert observed(run(spec)) == expected, seed
    assert observed(run(spec, fast_forward=True)) == expected, seed


def test_the_workloads_find_what_was_generated_and_what_others_generate() -> None:
    counts: Counter[str] = Counter()
    for seed in range(60):
        spec = told_workload(seed)
        result = run(spec)
        for x in result.decisions:
            counts["hits"] += sum(x.cached.values()) > 0
            counts["losses"] += x.lost_blocks > 0
            counts["preemptions"] += bool(x.preempted)
        counts["generated ones are told"] += any(
            sum(tokens for _, tokens in r.get("content", ())) > r["prompt_tokens"]
            for r in spec["requests"]
        )
    assert min(counts.values()) >= 20, counts
