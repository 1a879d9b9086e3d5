"""Random workloads whose cluster changes: failures, restoring, draining, adding, roles."""

from __future__ import annotations

import random

from .workload_parts import any_policy, radix, shared_requests, wire


def instants(spec: dict) -> list[list[int]]:
    """Groups of instants worth an event, from a run without any."""
    from .simulation import simulate

    result = simulate(spec)
    log = [d for d in result.log if d.end_ns > d.start_ns]
    groups = [
        [d.start_ns for d in log],
        [d.end_ns for d in log],
        [t for d in log for t in range(d.start_ns + 1, d.end_ns)],
        [t for d in log for t in range(d.start_ns + 1, d.end_ns)],
        [t for x in result.transfers for t in range(x.start_ns, x.end_ns)],
        [t for x in result.transfers for t in range(x.start_ns + 1, x.end_ns)],
        [x.end_ns for x in result.transfers],
        [r.get("arrival_ns", 0) for r in spec["requests"]],
        [d.start_ns + 1 for d in log if d.preempted],
        list(range(max([d.end_ns for d in log] + [0]) + 20)),
    ]
    first = {r["id"]: r.get("arrival_ns", 0) for r in spec["requests"]}
    again = spec.get("disaggregated", {}).get("recompute_last_token", False)
    queued = [  # somebody waits for a pull
        t
        for x in result.transfers
        for end in result.requests[x.request].prefill_ends_ns[:1]
        for t in range(end, x.start_ns)
    ]
    loaded = [
        t
        for x in result.transfers
        for second in result.requests[x.request].token_times_ns[0 if again else 1 :][:1]
        for t in range(x.end_ns, second)
    ]
    groups += [queued, queued, loaded, loaded, sorted(first.values())]
    return [g for g in groups if g]


def events(rng: random.Random, spec: dict) -> list[dict]:
    """Mostly events that have an effect; many come several at one instant."""
    groups = instants({k: v for k, v in spec.items() if k != "events"})
    pair = spec.get("disaggregated")
    if pair:
        states = {"prefill": ["up"] * len(pair["prefill"]), "decode": ["up"] * len(pair["decode"])}
    else:
        states = {"both": ["up"] * len(spec["replicas"])}
    times = sorted(rng.choice(rng.choice(groups)) for _ in range(rng.choice([1, 2, 3, 4, 6, 9])))
    found: list[dict] = []
    for at in times:
        if found and rng.random() < 0.15:
            at = found[-1]["at_ns"]
        if found and rng.random() < 0.2:
            at = max(found[-1]["at_ns"], min(at, found[-1]["at_ns"] + rng.randint(1, 12)))
        pool = rng.choice(list(states))
        now = states[pool]
        index = rng.randrange(len(now))
        event = {"at_ns": at, "pool": pool, "index": index}
        down = [i for i, s in enumerate(now) if s == "failed"]
        draw = rng.random()
        if down and draw < 0.45:
            event["index"] = rng.choice(down)
            event["what"] = "restore"
            now[event["index"]] = "up"
        elif 0.45 < draw < 0.53:
            event["what"] = "add"
            now.append("up")
        elif 0.53 <= draw < 0.66:
            up = [i for i, s in enumerate(now) if s == "up"]
            if not up:
                continue
            event["index"] = rng.choice(up)
            event["what"] = "drain"
            now[event["index"]] = "draining"
            if pair and rng.random() < 0.3:
                event["to"] = "decode" if pool == "prefill" else "prefill"
        else:
            if now[index] == "failed":
                continue
            event["what"] = "fail"
            now[index] = "failed" if now[index] == "up" else "gone"
        found.append(event)
        found.sort(key=lambda e: e["at_ns"])
    return found


def stuck(rng: random.Random, spec: dict, block: int) -> None:
    """Blocks held for a decode pool that is down, and prompts in small chunks (rule 84)."""
    largest = max(r["prompt_tokens"] for r in spec["requests"])
    cfg = {
        "policy": "vllm-v1",
        "block_tokens": block,
        "total_blocks": -(-largest // block) + rng.choice([0, 0, 1, 2]),
        "max_num_batched_tokens": rng.choice([1, 2, 3, largest // 2 + 1]),
        "prefix_cache": rng.random() < 0.5,
        "step_time": {"base_s": 2e-9, "prefill_token_s": 1e-9},
    }
    pair = spec["disaggregated"]
    pair["prefill"] = [cfg] * rng.choice([1, 1, 2])
    at = rng.choice([0, rng.randint(0, 40)])
    spec["events"] = [
        {"at_ns": at, "pool": "decode", "index": i, "what": "fail"}
        for i in range(len(pair["decode"]))
    ]


def failures(rng: random.Random) -> dict:
    """Any policy, one pool or two, now and then sessions and cancellations."""
    block = rng.choice([1, 2, 3, 4, 4, 8])
    longest = rng.choice([2 * block, 4 * block])
    most = rng.choice([8, 2 * block + 2, 4 * block + 2])
    requests = shared_requests(rng, block, longest, most, 0.7)
    routers = ["round_robin", "least_outstanding"]

    def replicas(one) -> list[dict]:
        count = rng.choice([1, 1, 2, 2, 3])
        return [one() for _ in range(count)] if rng.random() < 0.25 else [one()] * count

    def any_one() -> dict:
        return any_policy(rng, requests, block, longest)

    spec: dict = {"requests": requests, "router": rng.choice(routers)}
    if rng.random() < 0.4:
        if rng.random() < 0.35:
            spec["replicas"] = replicas(lambda: radix(rng, requests, longest))
        else:
            spec["replicas"] = replicas(any_one)
    else:
        transfer = wire(rng)
        if rng.random() < 0.4:  # slow: more is in transit or held
            transfer["bandwidth_bytes_per_s"] = rng.choice([0.1, 0.3]) * 1e9
        spec["disaggregated"] = {
            "prefill": replicas(any_one),
            "decode": replicas(any_one),
            "decode_router": rng.choice(routers),
            "transfer": transfer,
        }
    if rng.random() < 0.2:
        for i, request in enumerate(requests):
            if rng.random() < 0.6:
                request["session"] = f"s{i % rng.randint(1, 6)}"
                request["delay_ns"] = rng.choice([0, 0, 5, 30])
        if rng.random() < 0.5:
            spec["concurrency"] = rng.randint(1, 5)
        if rng.random() < 0.5:
            spec["on_failed_turn"] = "continue"
    for i, request in enumerate(requests):
        request["id"] = i
    if "disaggregated" in spec and rng.random() < 0.2:
        stuck(rng, spec, block)
    if rng.random() < 0.3:
        spec["on_failure"] = "fail"
    if "events" not in spec or rng.random() < 0.3:
        spec["events"] = spec.get("events", []) + events(rng, spec)
    spec["events"].sort(key=lambda e: e["at_ns"])
    if rng.random() < 0.3:
        for request in requests:
            if rng.random() < 0.4:
                at = rng.choice([e["at_ns"] for e in spec["events"]] or [5]) + rng.randint(0, 9)
                request["cancel_at_ns"] = at
    return spec
