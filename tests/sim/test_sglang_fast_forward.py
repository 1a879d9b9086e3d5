"""`sglang`: runs of equal decisions advanced at once give the integers of single steps.

With pages, every eviction order, texts that branch inside of runs, and routers that look into the
trees while runs are under way. Every step checks locks, sizes and the heap of leaves.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from sim.event_loop import simulate
from sim.records import Record
from tests.conformance import adapter
from tests.conformance.workloads import Spec

CHUNK, FEW, MANY = 20, 60, 2000
ROUTERS = ("round-robin", "least-outstanding", "least-kv", "kv-aware", "prefix-aware")
STEP = {"base_s": 1e-5, "prefill_token_s": 1e-6, "decode_s": 2e-6, "context_token_s": 3e-9}


def workload(seed: int) -> Spec:
    """Up to 24 requests of a few families of texts, mostly short of memory."""
    rng = random.Random(f"sglang {seed}")
    longest_prompt, longest_output = rng.choice([6, 30, 90]), rng.choice([1, 4, 12, 40])
    families = [
        [(1000 * rng.randrange(1000), rng.randint(1, longest_prompt)) for _ in range(3)]
        for _ in range(rng.randint(1, 4))
    ]
    now, requests = 0, []
    for _ in range(rng.randint(2, 24)):
        requests.append(_request(rng, now, longest_prompt, longest_output, families))
        if rng.random() < 0.7:
            now += rng.choice([1, 1000, 20_000, 100_000])
    if rng.random() < 0.4:  # outputs grow beyond what is expected of them, and some are retracted
        for request in requests:
            request["prompt_tokens"] = min(request["prompt_tokens"], 8)
            request["output_tokens"] = request["max_tokens"] = rng.choice([20, 40, 40])
            request.pop("content", None)
    return {
        "requests": requests,
        "replicas": [_replica(rng, requests)] * rng.choice([1, 1, 2]),
        "router": rng.choice(ROUTERS),
    }


def _request(
    rng: random.Random,
    now: int,
    longest_prompt: int,
    longest_output: int,
    families: list[list[tuple[int, int]]],
) -> Spec:
    prompt, output = rng.randint(1, longest_prompt), rng.randint(1, longest_output)
    most = output + rng.choice([0, 0, rng.randint(0, longest_output)])
    request: Spec = {"arrival_ns": now, "prompt_tokens": prompt}
    request |= {"output_tokens": output, "max_tokens": most}
    if rng.random() < 0.8:
        text = rng.choice(families)
        if rng.random() < 0.5:
            other = (10**7 + 1000 * rng.randrange(5), rng.randint(1, 20))
            text = [*text[: rng.randint(1, len(text))], other]
        left = prompt + rng.choice([0, 0, most])
        request["content"] = []
        for first, tokens in text:
            request["content"].append((first, min(tokens, left)))
            left -= min(tokens, left)
    return request


def _replica(rng: random.Random, requests: list[Spec]) -> Spec:
    page = rng.choice([1] * 6 + [2, 4])
    most = max(r["prompt_tokens"] + r["max_tokens"] for r in requests) + page
    block_tokens = rng.choice([1, 4, 16])
    total = int(most * rng.choice([1.05, 1.3, 1.6, 2.5, 3.0, 4.0, 6.0])) // block_tokens + 2
    made: dict[str, Any] = {
        "policy": "sglang",
        "total_blocks": total,
        "block_tokens": block_tokens,
        "step_time": STEP,
        "order": rng.choice(["lpm", "fcfs"]),
        "page_size": page,
        "chunked_prefill_size": rng.choice([None, 2 * page, 5 * page, 20 * page]),
        "max_prefill_tokens": rng.choice([4, 16, 64, 16384]),
        "eviction": rng.choice(["lru", "lru", "lfu", "fifo"]),
    }
    if rng.random() < 0.3:
        made["max_running_requests"] = rng.randint(1, 5)
    return made | ({"prefix_cache": False} if rng.random() < 0.1 else {})


def _outcome(spec: Spec, *, fast_forward: bool) -> tuple[Any, ...]:
    cluster, _ = adapter.build(spec)
    source, record = adapter.arrivals(spec), Record(decisions=True)
    result = simulate(source, cluster, fast_forward=fast_forward, check=True, record=record)
    decisions = sorted(result.decisions, key=lambda x: (x.replica, x.start_ns))
    times = [result.token_times_ns(i).tolist() for i in range(len(source))]
    lost = [replica.lost_blocks for replica in result.replicas]
    return decisions, times, lost, result.requests["cached_tokens"].tolist()


def _compare(first: int) -> None:
    for seed in range(first, first + CHUNK):
        spec = workload(seed)
        stepped, fast = (_outcome(spec, fast_forward=on) for on in (False, True))
        assert stepped == fast, f"workload {seed}"


@pytest.mark.parametrize("first", range(0, FEW, CHUNK))
def test_fast_forward_equals_stepping(first: int) -> None:
    _compare(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FEW, MANY, CHUNK))
def test_fast_forward_equals_stepping_on_more(first: int) -> None:
    _compare(first)


def test_the_workloads_hit_evict_and_retract() -> None:
    found = evicted = retracted = 0
    for seed in range(FEW):
        decisions, _, lost, cached = _outcome(workload(seed), fast_forward=True)
        found += sum(cached)
        evicted += sum(x or 0 for x in lost)
        retracted += sum(len(x.preempted) for x in decisions)
    assert found > 1000
    assert evicted > 1000
    assert retracted
