"""Extents give the same integers as a cache block by block, on random workloads.

Contents are told as runs, generated tokens at times among them, so that requests find what others
are generating; some requests even generate the same tokens.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest

from policies import ORDERS, PREDICTORS, ROUTERS
from sim.cluster import Cluster
from sim.event_loop import simulate
from sim.pool import PoolSpec
from sim.records import Record, SimulationResult
from tests.conformance import adapter
from tests.conformance.workloads import Spec
from tests.sim.block_by_block import BlockByBlock
from tests.sim.prefixed_workloads import prefixed_workload

CHUNK = 20
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
    return _laid_out(rng, spec)


def _laid_out(rng: random.Random, spec: Spec) -> Spec:
    """Mostly as it is; at times replicas have stages, or a pool prefills and another decodes."""
    layout = rng.choice(("", "", "stages", "pools", "pools"))
    if layout in ("stages", "pools") and rng.random() < (0.3 if layout == "pools" else 1):
        for replica in spec["replicas"]:
            replica["stages"] = [replica["step_time"]] * rng.choice((2, 2, 3))
    if layout == "pools":
        prefill = spec.pop("replicas")
        decode = [copy.deepcopy(x) for x in prefill]
        for replica in decode:
            replica["total_blocks"] = max(1, round(replica["total_blocks"] * rng.uniform(0.8, 2)))
        longest = max(request["prompt_tokens"] for request in spec["requests"])
        step_s = prefill[0]["step_time"].get("base_s", 1e-3) or 1e-6
        wire = {
            "kv_bytes_per_token": 1000,
            "bandwidth_bytes_per_s": 1000 * longest / (step_s * 10 ** rng.uniform(-2, 1.3)),
            "recompute_last_token": rng.random() < 0.2,
        }
        spec["disaggregated"] = {"prefill": prefill, "decode": decode, "transfer": wire}
    return spec


def tiered_workload(seed: int) -> Spec:
    """A workload of replicas of one stage whose caches have a tier in host memory, or two."""
    rng = random.Random(f"tiered {seed}")
    spec = told_workload(seed)
    pools = spec.get("disaggregated")
    for replica in spec["replicas"] if pools is None else pools["prefill"] + pools["decode"]:
        replica.pop("stages", None)
        blocks = replica["total_blocks"]
        replica["host_cache_blocks"] = max(1, round(blocks * rng.choice((0.1, 0.5, 1, 3))))
        replica["host_overlap"] = rng.random() < 0.3
        replica["kv_bytes_per_token"] = 1000
        step_s = replica["step_time"].get("base_s", 1e-3) or 1e-6
        per_block = 1000 * replica["block_tokens"]
        replica["host_bandwidth"] = per_block / (step_s * 10 ** rng.uniform(-3, 0.5))
        if rng.random() < 0.5:
            replica["disk_cache_blocks"] = max(1, round(blocks * rng.choice((0.2, 1, 5))))
            replica["disk_read"] = per_block / (step_s * 10 ** rng.uniform(-2, 1))
            replica["disk_write"] = replica["disk_read"] * rng.choice((0.3, 1))
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

    def pool(old: PoolSpec) -> PoolSpec:
        specs = [replace(x, policy=policy(x.policy)) for x in old.replicas]
        return replace(old, replicas=specs)

    decode = None if cluster.decode is None else pool(cluster.decode)
    return replace(cluster, entry=pool(cluster.entry), decode=decode)


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
    transfers = {name: column.tolist() for name, column in result.transfers.items()}
    moved = [replica.host_bytes for replica in result.replicas]
    return columns, times, decisions, transfers, moved


@pytest.mark.parametrize("first", range(0, 80, CHUNK))
def test_extents_give_the_integers_of_single_blocks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _compare(told_workload(seed))


@pytest.mark.parametrize("first", range(0, 60, CHUNK))
def test_extents_on_the_host_give_the_integers_of_single_blocks(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _compare(tiered_workload(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(80, 3000, CHUNK))
def test_extents_give_the_integers_of_single_blocks_on_thousands(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _compare(told_workload(seed))
        _compare(tiered_workload(seed))


def _compare(spec: Spec) -> None:
    expected = observed(run(spec, by_block=True))
    assert observed(run(spec)) == expected, spec
    assert observed(run(spec, fast_forward=True)) == expected, spec


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


def _sorted(seed: int) -> Spec:
    """A workload under any order and nearly any router, with a watermark at times."""
    rng = random.Random(f"sorted {seed}")
    spec = prefixed_workload(seed) | {"predictor": rng.choice(sorted(PREDICTORS))}
    spec["router"] = rng.choice(sorted(set(ROUTERS) - {"class-aware"}))  # needs classes
    order = rng.choice(sorted(ORDERS))
    for request in spec["requests"]:
        request["priority"] = rng.choice((0, 0, 1, 2))
        request["deadline_ns"] = rng.choice((1, 10**6, 10**9))
    for replica in spec["replicas"]:
        replica["order"] = order
        replica["watermark"] = rng.choice((0.0, 0.0, 0.1))
    return spec


@pytest.mark.parametrize("first", range(0, 120, CHUNK))
def test_fast_forward_equals_stepping_with_any_order_and_router(first: int) -> None:
    for seed in range(first, first + CHUNK):
        spec = _sorted(seed)
        assert observed(run(spec)) == observed(run(spec, fast_forward=True)), seed
