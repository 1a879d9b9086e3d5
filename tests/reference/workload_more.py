"""Random workloads of roles, last token recomputed, layer-wise, pipelines and slow-downs.

roles       drains with a change of role, failures and restoring beside them (82, 83)
recompute   `recompute_last_token` with pull, push and layer-wise (38, 67, 68)
layerwise   layer-wise with failures, drains and cancellations (66, 76, 81, 83)
pipeline    one to five stages, one pool or two, events, cancellations (55, 85 to 87)
pipeline-static   the same, half of the replicas `static` (86: one batch at a time)
slow        slow-downs that do not overlap, no other events
slow-mixed  slow-downs that replace each other, beside failures, drains and roles
"""

from __future__ import annotations

import random

from .workload_changes import events, instants
from .workload_links import cancellations, pair
from .workload_parts import (
    NS,
    any_policy,
    base_replica,
    cached_v1,
    pool,
    shared_requests,
    step_time,
    wire,
)


def transfer_of(rng: random.Random, ways: list[str]) -> dict:
    way = rng.choice(ways)
    transfer: dict = {"sharing": rng.choice(["none", "max-min"])}
    if way != "pull":
        transfer["start"] = "push"
    if way == "layerwise":
        transfer.update(overlap="layerwise", layers=rng.choice([1, 2, 3, 4, 10]))
    return transfer


def speeds(rng: random.Random) -> list:
    return rng.choice([[0.1, 0.3, 0.5], [0.3, 1, 2], [0.25, 0.5, 1]])


def roles(rng: random.Random) -> dict:
    """Mostly drains with `to`, in both directions, now and then back; two to four replicas."""
    spec = pair(rng, transfer_of(rng, ["pull", "pull", "push", "layerwise"]), speeds(rng))
    sides = spec["disaggregated"]
    for name in ("prefill", "decode"):
        while len(sides[name]) < 2:
            sides[name] = [*sides[name], rng.choice(sides["prefill"] + sides["decode"])]
    spec.pop("events", None)
    found = events(rng, spec) if rng.random() < 0.5 else []
    groups = instants(spec)
    for _ in range(rng.choice([1, 1, 2, 3, 4])):
        pool = rng.choice(["prefill", "decode"])
        index = rng.randrange(len(sides[pool]) + rng.choice([0, 0, 1]))
        to = "decode" if pool == "prefill" else "prefill"
        if index < len(sides[pool]):
            event = {"pool": pool, "index": index, "what": rng.choice(["role", "drain"]), "to": to}
        else:  # the one that comes there, if it has come
            event = {"pool": pool, "index": 0, "what": "role", "to": to}
        found.append({"at_ns": rng.choice(rng.choice(groups)), **event})
    spec["events"] = sorted(found, key=lambda e: e["at_ns"])
    if rng.random() < 0.2:
        spec["on_failure"] = "fail"
    return spec


def recompute(rng: random.Random) -> dict:
    """Also single tokens, which are handed over against rule 28."""
    spec = pair(rng, transfer_of(rng, ["pull", "pull", "push", "layerwise"]), speeds(rng))
    if rng.random() < 0.5:
        for request in spec["requests"]:
            if rng.random() < 0.4:
                request["output_tokens"] = 1
                request["max_tokens"] = rng.choice([1, 1, 3])
    spec["disaggregated"]["recompute_last_token"] = True
    spec.pop("events", None)
    for request in spec["requests"]:
        request.pop("cancel_at_ns", None)
    if rng.random() < 0.35:
        spec["events"] = events(rng, spec)
    if rng.random() < 0.35:
        cancellations(rng, spec)
    return spec


def layerwise(rng: random.Random) -> dict:
    """Always events or cancellations, many inside of transfers and prefills."""
    spec = pair(rng, transfer_of(rng, ["layerwise"]), speeds(rng))
    if rng.random() < 0.2:
        spec["disaggregated"]["recompute_last_token"] = True
    draw = rng.random()
    if draw < 0.75 and "events" not in spec:
        spec["events"] = events(rng, spec)
    if draw > 0.5:
        cancellations(rng, spec)
    return spec


USUAL = ["orca", "sarathi", "vllm-v0", "vllm-v1", "cached", "cached"]


def staged(rng: random.Random, requests: list, block: int, longest: int, policies: list) -> dict:
    """A replica that is a pipeline; small budgets, so that there is more than one batch."""
    policy = rng.choice(policies)
    total = pool(rng, requests, block)
    if policy == "cached":
        cfg = cached_v1(rng, total, block, longest)
    else:
        if policy in ("orca", "static"):
            total += rng.choice([longest // block, 4 * longest // block])
        cfg = base_replica(rng, policy, total, block, longest)
    if policy in ("vllm-v1", "cached"):
        cfg["max_num_seqs"] = rng.choice([4, 256, 256])
        cfg["max_num_batched_tokens"] = rng.choice([1, 2, 3, longest // 2 + 1, longest])
    if policy == "sarathi":
        cfg["max_num_seqs"] = rng.choice([2, 4, 64, 64])
        cfg["budget_tokens"] = rng.choice([1, 2, 3, longest // 2 + 1, longest])
    if policy == "vllm-v0":
        cfg["max_num_seqs"] = rng.choice([2, 4, 64, 64])
        cfg["max_num_batched_tokens"] = 2 * longest + rng.choice([0, 3])
    cfg.pop("step_time", None)
    count = rng.choice([1, 2, 2, 2, 3, 3, 4, 5])
    cfg["stages"] = [step_time(rng) for _ in range(count)]
    if rng.random() < 0.3:  # stages alike
        cfg["stages"] = [cfg["stages"][0]] * count
    if rng.random() < 0.5:
        cfg["activations"] = {
            "bytes_per_token": rng.choice([1, 2, 3]),
            "bandwidth_bytes_per_s": rng.choice([0.7, 1, 2, 4]) * 1e9,
            "latency_s": rng.choice([0, 0, 1, 3]) * NS,
        }
    return cfg


def pipeline_static(rng: random.Random) -> dict:
    return pipeline(rng, ["static"] * 5 + USUAL)


def pipeline(rng: random.Random, policies: list = USUAL) -> dict:
    """Mostly tight pools; half of the workloads on two pools, mostly pull."""
    block = rng.choice([1, 2, 3, 4, 4, 8])
    longest = rng.choice([2 * block, 4 * block])
    most = rng.choice([8, 2 * block + 2, 4 * block + 2])
    requests = shared_requests(rng, block, longest, most, 0.6)
    routers = ["round_robin", "least_outstanding"]

    def one() -> dict:
        if rng.random() < 0.15:
            return any_policy(rng, requests, block, longest)
        return staged(rng, requests, block, longest, policies)

    def replicas() -> list[dict]:
        count = rng.choice([1, 1, 1, 2, 3])
        return [one() for _ in range(count)] if rng.random() < 0.3 else [one()] * count

    spec: dict = {"requests": requests, "router": rng.choice(routers)}
    for i, request in enumerate(requests):
        request["id"] = i
    if rng.random() < 0.5:
        spec["replicas"] = replicas()
    else:
        transfer = wire(rng)
        if rng.random() < 0.15:
            transfer["start"] = "push"
        spec["disaggregated"] = {
            "prefill": replicas(),
            "decode": replicas(),
            "decode_router": rng.choice(routers),
            "transfer": transfer,
        }
        if rng.random() < 0.2:
            spec["disaggregated"]["recompute_last_token"] = True
    draw = rng.random()
    if draw < 0.45:
        spec["events"] = events(rng, spec)
    if 0.35 < draw < 0.65:
        cancellations(rng, spec)
    return spec


FACTORS = ["1.5", "2", "2.5", "1.1", "0.5", "3", "10", "1", "1.25", "0.01"]


def slow_downs(rng: random.Random, spec: dict, overlap: bool) -> list[dict]:
    """Events at instants of the run so far; some with `until`, some with an event of their own."""
    groups = instants(spec)
    pair_of = spec.get("disaggregated")
    sizes = (
        {"both": len(spec["replicas"])}
        if pair_of is None
        else {name: len(pair_of[name]) for name in ("prefill", "decode")}
    )
    found: list[dict] = []
    for pool_name, size in sizes.items():
        for index in range(size):
            at = -1
            for _ in range(rng.choice([0, 1, 1, 2, 3])):
                start = rng.choice(rng.choice(groups))
                if not overlap and start <= at:
                    continue
                event = {
                    "at_ns": start,
                    "pool": pool_name,
                    "index": index,
                    "what": "slow",
                    "factor": rng.choice(FACTORS),
                }
                found.append(event)
                at = start + rng.choice([1, 5, rng.randint(1, 60), rng.randint(1, 200)])
                draw = rng.random()
                if draw < 0.6:
                    event["until"] = at
                elif draw < 0.8 or not overlap:
                    found.append({"at_ns": at, "pool": pool_name, "index": index, "what": "normal"})
                if draw > 0.95:
                    break
    return sorted(found, key=lambda e: e["at_ns"])


def base_of(rng: random.Random) -> dict:
    """Any workload of failures, pipelines or links, its events and cancellations taken out."""
    from .workload_changes import failures

    spec = rng.choice([failures, failures, pipeline, pipeline, plain_pair])(rng)
    spec.pop("events", None)
    return spec


def plain_pair(rng: random.Random) -> dict:
    return pair(rng, transfer_of(rng, ["pull", "push", "layerwise"]), speeds(rng))


def slow(rng: random.Random) -> dict:
    spec = base_of(rng)
    spec["events"] = slow_downs(rng, spec, False)
    return spec


def slow_mixed(rng: random.Random) -> dict:
    spec = base_of(rng)
    more = events(rng, spec)
    paces = slow_downs(rng, spec, True)
    found = more + paces if rng.random() < 0.5 else paces + more
    spec["events"] = sorted(found, key=lambda e: e["at_ns"])
    return spec


MORE = {
    "roles": roles,
    "recompute": recompute,
    "layerwise": layerwise,
    "pipeline": pipeline,
    "pipeline-static": pipeline_static,
    "slow": slow,
    "slow-mixed": slow_mixed,
}
