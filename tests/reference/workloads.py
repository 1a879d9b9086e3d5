"""Small random workloads that provoke the corner cases of each part, and how often they do.

spec = random_spec(seed, kind)                  kinds: KINDS
python -m tests.reference.workloads KIND COUNT        in how many of COUNT each corner was met
"""

from __future__ import annotations

import random
import sys
from collections import Counter

from .workload_changes import failures
from .workload_links import links, push
from .workload_more import MORE
from .workload_parts import (
    NS,
    POLICIES,
    Tokens,
    any_policy,
    base_replica,
    cached_v1,
    pool,
    radix,
    runs,
    shared_requests,
    swapping,
    wire,
)


def cached(rng: random.Random) -> dict:
    """`vllm-v1` with its prefix cache, short of memory."""
    block = rng.choice([1, 2, 3, 4, 4, 8])
    longest = rng.choice([2 * block, 4 * block, 8 * block])
    requests = shared_requests(rng, block, longest, rng.choice([3, 8, 2 * block + 2]), 0.7)
    total = pool(rng, requests, block)
    cfg = cached_v1(rng, total, block, longest)
    replicas = [cfg] * rng.choice([1, 1, 1, 2])
    return {
        "requests": requests,
        "replicas": replicas,
        "router": rng.choice(["round_robin", "least_outstanding"]),
    }


def disaggregated_cached(rng: random.Random) -> dict:
    """Prefix cache on the prefill side, the decode side or both; any policy on the other side."""
    block = rng.choice([1, 2, 3, 4, 4, 8])
    longest = rng.choice([2 * block, 4 * block, 8 * block])
    requests = shared_requests(rng, block, longest, rng.choice([3, 8, 2 * block + 2]), 0.7)
    sides = rng.choice([(True, True), (True, True), (True, False), (False, True)])

    def side(with_cache: bool) -> list[dict]:
        total = pool(rng, requests, block)
        if with_cache:
            cfg = cached_v1(rng, total, block, longest)
        else:
            policy = rng.choice(POLICIES)
            if policy in ("static", "orca"):
                total += 4 * longest // block
            cfg = base_replica(rng, policy, total, block, longest)
        return [cfg] * rng.choice([1, 1, 1, 2])

    routers = ["round_robin", "least_outstanding"]
    return {
        "requests": requests,
        "disaggregated": {
            "prefill": side(sides[0]),
            "decode": side(sides[1]),
            "router": rng.choice(routers),
            "decode_router": rng.choice(routers),
            "transfer": wire(rng),
        },
    }


def swap(rng: random.Random) -> dict:
    """Swap in one pool, or on the decode side of two."""
    block = rng.choice([1, 2, 3, 4, 4, 8])
    longest = rng.choice([2 * block, 4 * block])
    requests = shared_requests(rng, block, longest, rng.choice([3, 8, 4 * block + 2]), 0.3)
    total = pool(rng, requests, block)
    if rng.random() < 0.1:
        total += 100  # a watermark (rule 11)
    cfg = swapping(rng, total, block, longest)
    router = rng.choice(["round_robin", "least_outstanding"])
    if rng.random() < 0.7:
        return {"requests": requests, "replicas": [cfg] * rng.choice([1, 1, 2]), "router": router}
    prefill = base_replica(
        rng,
        rng.choice(["vllm-v0", "vllm-v1", "sarathi"]),
        pool(rng, requests, block),
        block,
        longest,
    )
    return {
        "requests": requests,
        "router": router,
        "disaggregated": {"prefill": [prefill], "decode": [cfg], "transfer": wire(rng)},
    }


def growing(rng: random.Random, shape: str) -> dict:
    """More outputs than new_token_ratio expects (retraction), or until it is at its floor."""
    longest = rng.choice([4, 8, 16])
    requests = shared_requests(rng, rng.choice([1, 4]), longest, 3, 0.6)
    output = rng.choice([10, 20, 40])
    requests += [dict(rng.choice(requests)) for _ in range(rng.choice([0, 8, 16]))]
    requests.sort(key=lambda r: r["arrival_ns"])
    for request in requests:
        request.pop("max_tokens", None)
        request["output_tokens"] = rng.choice([output] * 4 + [rng.randint(1, output)])
        if rng.random() < 0.2:
            request["max_tokens"] = request["output_tokens"] + rng.choice([1, 5])
    cfg = radix(rng, requests, longest)
    most = max(r["prompt_tokens"] + r.get("max_tokens", r["output_tokens"]) for r in requests)
    cfg["total_blocks"] = (1 + rng.randint(2 * most, 7 * most)) // cfg["block_tokens"] + 1
    cfg.pop("max_running_requests", None)
    if shape == "floor":
        requests[0]["output_tokens"] = requests[0]["max_tokens"] = rng.randint(600, 700)
        cfg["total_blocks"] += 800 // cfg["block_tokens"]
        for request in requests[1:]:
            request["arrival_ns"] += rng.choice([0, 1000, 3000])
        requests.sort(key=lambda r: r["arrival_ns"])
    return {"requests": requests, "replicas": [cfg]}


def sglang(rng: random.Random) -> dict:
    """Ties, in-batch caching of long texts, long queues, large max_tokens, growth."""
    shape = rng.choice(
        ["short"] * 4 + ["long"] * 6 + ["grow"] * 8 + ["queue", "queue", "wide", "floor"]
    )
    if shape in ("grow", "floor"):
        return growing(rng, shape)
    longest = rng.choice([48, 70]) if shape == "long" else rng.choice([6, 12, 24])
    requests = shared_requests(rng, rng.choice([1, 4, 8]), longest, rng.choice([4, 12, 40]), 0.7)
    if shape == "queue":  # above 128 waiting, for a while
        more = [
            dict(rng.choice(requests), arrival_ns=requests[0]["arrival_ns"])
            for _ in range(rng.randint(125, 140))
        ]
        requests = sorted(requests + more, key=lambda r: r["arrival_ns"])
    if shape == "wide":  # above the clip of expected growth
        for request in requests:
            if rng.random() < 0.5:
                request["max_tokens"] = rng.choice([3000, 4096, 4097, 6000])
    cfg = radix(rng, requests, longest)
    return {
        "requests": requests,
        "replicas": [cfg] * rng.choice([1, 1, 1, 2]),
        "router": rng.choice(["round_robin", "least_outstanding"]),
    }


def moments(spec: dict) -> dict[int, list[list[int]]]:
    """For each request groups of instants worth a cancellation, from a run without any."""
    from .simulation import simulate

    result = simulate(spec)
    groups: dict[int, list[list[int]]] = {}
    for i, request in enumerate(spec["requests"]):
        times = result.requests[i].token_times_ns
        arrival = request["arrival_ns"]
        if not times:
            groups[i] = [[arrival, arrival + 1]]
            continue
        inside = range(arrival + 1, times[-1] + 1)
        own = [d for d in result.log if i in d.tokens]
        beside = [
            t
            for d in result.log
            if i not in d.tokens and times[0] <= d.start_ns < times[-1]
            for t in (d.start_ns, d.start_ns + 1)
        ]
        preempted = [d.start_ns for d in result.log if i in d.preempted]
        moved = [x for x in result.transfers if x.request == i]
        second = times[1] if len(times) > 1 else times[0]
        groups[i] = [
            [arrival - 1, arrival],
            list(inside),
            [d.start_ns + 1 for d in own],
            [d.end_ns for d in own],
            times,
            times[:1],
            times[-1:],
            beside,
            [t + k for t in preempted for k in (1, 2, 5, 10, 20)],
            [t for x in moved for t in (x.start_ns + 1, x.end_ns - 1)],
            [x.end_ns for x in moved],
            [t for x in moved for t in range(times[0] + 1, x.start_ns + 1)],
            [t for x in moved for t in range(x.end_ns, second)],
        ]
    return groups


def cancel(rng: random.Random) -> dict:
    """Any policy, one pool or two; about half of the requests are cancelled at some instant."""
    block = rng.choice([1, 2, 3, 4, 4, 8])
    longest = rng.choice([2 * block, 4 * block])
    most = rng.choice([8, 2 * block + 2, 4 * block + 2])
    requests = shared_requests(rng, block, longest, most, 0.7)
    router = rng.choice(["round_robin", "least_outstanding"])
    if rng.random() < 0.4:
        cfg = any_policy(rng, requests, block, longest)
        if rng.random() < 0.4:
            cfg = radix(rng, requests, longest)
        spec = {"requests": requests, "replicas": [cfg] * rng.choice([1, 1, 2]), "router": router}
    else:
        spec = {
            "requests": requests,
            "router": router,
            "disaggregated": {
                "prefill": [any_policy(rng, requests, block, longest)] * rng.choice([1, 1, 2]),
                "decode": [any_policy(rng, requests, block, longest)] * rng.choice([1, 1, 2]),
                "transfer": wire(rng),
            },
        }
    groups = moments(spec)
    common = rng.randint(1, 300)
    for i, request in enumerate(requests):
        if rng.random() < 0.5:
            rare = [g for g in groups[i][7:9] if g]
            usual = [g for g in groups[i] if g]
            at = rng.choice(rng.choice(rare if rare and rng.random() < 0.75 else usual))
            if rng.random() < 0.15:
                at = common
            if rng.random() < 0.3 and at >= request["arrival_ns"]:
                request["cancel_after_s"] = (at - request["arrival_ns"]) * NS
            else:
                request["cancel_at_ns"] = max(0, at)
    return spec


def sessions(rng: random.Random) -> dict:
    """Sessions whose prompts contain what was generated, alone or beside requests of one turn."""
    block = rng.choice([1, 2, 4, 8])
    longest = rng.choice([2 * block, 4 * block, 30])
    requests: list[dict] = []
    tokens = Tokens(rng, block, longest)
    thinking = rng.choice([[0], [0, 0, 5, 30], [3, 10, 200]])
    for name in range(rng.randint(1, 8)):
        arrival = rng.choice([0, 0, rng.randint(0, 60)])
        if rng.random() < 0.2:
            text = tokens.prompt(0.5)
            requests.append(
                {
                    "prompt_tokens": len(text),
                    "output_tokens": rng.randint(1, 6),
                    "content": runs(text),
                    "arrival_ns": arrival,
                }
            )
            continue
        text = []
        for turn in range(rng.randint(1, 5)):
            kept = text if rng.random() < 0.8 else text[: rng.randint(0, len(text))]
            text = kept + (tokens.prompt(0.5) if not kept else tokens.new(rng.randint(0, longest)))
            output = rng.choice([1, rng.randint(1, 4), rng.randint(1, 2 * block + 2)])
            prompt = len(text)
            text = text + tokens.new(output)
            tokens.texts.append(text)
            request = {
                "prompt_tokens": prompt,
                "output_tokens": output,
                "content": runs(text),
                "session": f"s{name}",
                "turn": turn,
                "delay_ns": rng.choice(thinking),
            }
            if turn == 0:
                request["arrival_ns"] = arrival
            if rng.random() < 0.2:
                request["max_tokens"] = output + rng.choice([1, 4])
            requests.append(request)
    if rng.random() < 0.5:  # turns of several sessions mixed in the list
        rng.shuffle(requests)
    if rng.random() < 0.3:
        for request in requests:
            if rng.random() < 0.4:
                request["cancel_after_s"] = rng.choice([0, rng.randint(1, 20), 60]) * NS
    spec: dict = {"requests": requests, "router": rng.choice(["round_robin", "least_outstanding"])}
    if rng.random() < 0.6:
        spec["concurrency"] = rng.randint(1, 5)
    if rng.random() < 0.4:
        spec["on_failed_turn"] = rng.choice(["skip", "continue", "continue"])
    total = pool(rng, requests, block)
    if rng.random() < 0.4:
        total = max(1, total // 2)  # late turns are rejected
    kind = rng.choice(["cached", "cached", "cached", "radix", "radix", "any", "pair"])
    if kind == "radix":
        cfg = radix(rng, requests, longest)
        cfg["total_blocks"] = max(1, total * block // cfg["block_tokens"])
    elif kind == "any":
        cfg = any_policy(rng, requests, block, longest)
        cfg["total_blocks"] = total
    else:
        cfg = cached_v1(rng, total, block, longest)
    if kind == "pair":
        spec["disaggregated"] = {
            "prefill": [cfg],
            "transfer": wire(rng),
            "decode": [cached_v1(rng, total + rng.choice([0, 4]), block, longest)],
        }
    else:
        spec["replicas"] = [cfg] * rng.choice([1, 1, 2])
    return spec


def tiered(rng: random.Random) -> dict:
    """Host memory, small or large, behind each cache; a block moves in some nanoseconds."""
    spec = rng.choice([cached, cached, disaggregated_cached, sessions])(rng)
    pools = spec.get("disaggregated")
    sides = [spec] if pools is None else [pools]
    for side, name in [(s, n) for s in sides for n in ("replicas", "prefill", "decode") if n in s]:
        side[name] = [hosted(rng, cfg, pools) for cfg in side[name]]
    return spec


def hosted(rng: random.Random, cfg: dict, pools: dict | None) -> dict:
    """The replica, with host memory if it has a cache of blocks."""
    if cfg["policy"] != "vllm-v1" or not cfg.get("prefix_cache"):
        return cfg
    total = cfg["total_blocks"]
    size = rng.choice([1, 2, 3])
    return dict(
        cfg,
        host_cache_blocks=rng.choice([1, 2, 3, max(1, total // 2), total, 4 * total]),
        kv_bytes_per_token=size if pools is None else pools["transfer"]["kv_bytes_per_token"],
        host_bandwidth=rng.choice([0.7, 1, 2, 3, 16]) * 1e9,
        host_overlap=rng.random() < 0.5,
    )


def disked(rng: random.Random) -> dict:
    """A disk behind each host memory, slower to write than to read or not."""
    spec = tiered(rng)
    for side in (spec, spec.get("disaggregated", {})):
        for name in [x for x in ("replicas", "prefill", "decode") if x in side]:
            side[name] = [
                dict(
                    cfg,
                    host_cache_blocks=min(cfg["host_cache_blocks"], rng.choice([1, 2, 4, 40])),
                    disk_cache_blocks=rng.choice([1, 2, 5, 12, 60]),
                    disk_read=rng.choice([0.3, 1, 5]) * 1e9,
                    disk_write=rng.choice([0.3, 1, 5]) * 1e9,
                )
                if "host_cache_blocks" in cfg
                else cfg
                for cfg in side[name]
            ]
    return spec


KINDS = {
    "disked": disked,
    "tiered": tiered,
    "cached": cached,
    "disaggregated-cached": disaggregated_cached,
    "swap": swap,
    "cancel": cancel,
    "sglang": sglang,
    "sessions": sessions,
    "failures": failures,
    "links": links,
    "push": push,
    **MORE,
}


def random_spec(seed: int, kind: str) -> dict:
    """The workload of this seed. Equal arguments, equal workload, also across processes."""
    spec = KINDS[kind](random.Random(f"{kind} {seed}"))
    spec["requests"] = [dict(r, id=i) for i, r in enumerate(spec["requests"])]
    return spec


def coverage(kind: str, seeds: range) -> tuple[Counter, int]:
    """In how many of the workloads each corner occurred."""
    from .simulation import simulate

    met: Counter = Counter()
    for seed in seeds:
        result = simulate(random_spec(seed, kind))
        corners = set(result.corners)
        corners |= {f"{o.status} {o.reason or ''}".strip() for o in result.requests.values()}
        if any(d.start_ns == d.end_ns for d in result.log):
            corners.add("pass repeated")
        if any(t.called_off for t in result.transfers):
            corners.add("transfer called off")
        if any(t.cached_tokens for t in result.transfers):
            corners.add("transfer shortened")
        if any(result.lost.values()):
            corners.add("lost content")
        met.update(corners)
    return met, len(seeds)


def main() -> None:
    kind, count = sys.argv[1], int(sys.argv[2])
    met, total = coverage(kind, range(count))
    for corner, n in sorted(met.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{100 * n / total:6.1f} %  {corner}\n")


if __name__ == "__main__":
    main()
