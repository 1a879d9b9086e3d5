"""Random workloads of links (rules 39, 63 to 66, 92) and push (66, 69, 70, 76, 83)."""

from __future__ import annotations

import random

from .workload_changes import events
from .workload_parts import NS, any_policy, cached_v1, pool, shared_requests


def pair(rng: random.Random, transfer: dict, slow: list) -> dict:
    """Two pools of several replicas; prompts of different lengths; tight pools."""
    block = rng.choice([1, 2, 3, 4, 4, 8])
    longest = rng.choice([2 * block, 4 * block, 8 * block])
    most = rng.choice([3, 8, 2 * block + 2])
    requests = shared_requests(rng, block, longest, most, 0.5)
    if rng.random() < 0.5:
        for request in requests:
            if request["output_tokens"] == 1:
                request["output_tokens"] = rng.randint(2, 4)
                if "max_tokens" in request:
                    request["max_tokens"] += 4
    for i, request in enumerate(requests):
        request["id"] = i

    def one() -> dict:
        if rng.random() < 0.25:  # small chunks, so prefills are preempted
            total = pool(rng, requests, block)
            cfg = cached_v1(rng, total, block, longest)
            cfg["prefix_cache"] = rng.random() < 0.5
            cfg["max_num_seqs"] = 256
            cfg["max_num_batched_tokens"] = rng.choice([3, longest, 2 * longest])
            cfg["long_prefill_token_threshold"] = rng.choice([1, 2, block])
        else:
            cfg = any_policy(rng, requests, block, longest)
        if rng.random() < 0.3:
            cfg["nic_bytes_per_s"] = rng.choice([0.3, 1, 3]) * rng.choice(slow) * 1e9
        return cfg

    def replicas(counts: list) -> list[dict]:
        count = rng.choice(counts)
        return [one() for _ in range(count)] if rng.random() < 0.4 else [one()] * count

    transfer.update(
        latency_s=rng.choice([0, 0, 1, 3, 10]) * NS,
        kv_bytes_per_token=rng.choice([1, 2, 3]),
        bandwidth_bytes_per_s=rng.choice(slow) * 1e9,
    )
    routers = ["round_robin", "least_outstanding"]
    spec = {
        "requests": requests,
        "disaggregated": {
            "prefill": replicas([1, 2, 2, 3, 3]),
            "decode": replicas([1, 1, 2, 3]),
            "router": rng.choice(routers),
            "decode_router": rng.choice(routers),
            "transfer": transfer,
        },
    }
    changes = rng.random()
    if changes < 0.3:
        spec["events"] = events(rng, spec)
    if changes > 0.8 or changes < 0.05:
        cancellations(rng, spec)
    return spec


def cancellations(rng: random.Random, spec: dict) -> None:
    """At instants of a run without any: prefill ends, transfers, steps."""
    from .simulation import simulate

    result = simulate(spec)
    for request in spec["requests"]:
        if rng.random() < 0.5:
            times = result.requests[request["id"]].token_times_ns
            moved = [t for t in result.transfers if t.request == request["id"]]
            own = [d for d in result.log if request["id"] in d.tokens]
            groups = [
                times[:1],
                times[:1],
                [t for x in moved for t in range(x.start_ns, x.end_ns + 1)],
                [t for d in own[:2] for t in range(d.start_ns, d.end_ns + 1)],
                [request["arrival_ns"] + rng.randint(0, 20)],
            ]
            request["cancel_at_ns"] = rng.choice(rng.choice([g for g in groups if g]))


def links(rng: random.Random) -> dict:
    """Pull; shared links, or a decode side that has one transfer at a time, or both."""
    sharing = rng.choice(["max-min", "max-min", "max-min", "none"])
    blocks = sharing == "none" or rng.random() < 0.25
    slow = rng.choice([[0.1, 0.3, 0.5], [0.3, 1, 2], [0.25, 0.5, 1]])
    return pair(rng, {"sharing": sharing, "blocks_decode": blocks}, slow)


def push(rng: random.Random) -> dict:
    """Push, with and without layers, with and without shared links."""
    transfer: dict = {"start": "push", "sharing": rng.choice(["none", "max-min"])}
    if rng.random() < 0.6:
        transfer.update(overlap="layerwise", layers=rng.choice([1, 2, 3, 4, 10]))
    return pair(rng, transfer, rng.choice([[0.1, 0.3, 0.5], [0.3, 1, 2], [0.25, 0.5, 1]]))
