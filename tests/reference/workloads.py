"""Small random workloads that provoke the corner cases of each part, and how often they do.

    spec = random_spec(seed, kind)                  kinds: KINDS
    coverage(kind, seeds)                           how many of them met each corner

Coefficients of the step time are a few nanoseconds, so steps, arrivals and transfers tie often.
"""

from __future__ import annotations

import random
from collections import Counter

NS = 1e-9


class Tokens:
    """Prompts as lists of integers that share prefixes: branches of texts seen before."""

    def __init__(self, rng: random.Random, block: int, longest: int):
        self.rng = rng
        self.block = block
        self.longest = longest
        self.fresh = 0
        self.texts: list[list[int]] = []

    def new(self, count: int) -> list[int]:
        self.fresh += count
        return list(range(self.fresh - count, self.fresh))

    def prompt(self, share: float) -> list[int]:
        """A new text, or the start of an old one, continued; often of an exact number of blocks."""
        rng = self.rng
        start: list[int] = []
        if self.texts and rng.random() < share:
            old = rng.choice(self.texts)
            cut = rng.choice([len(old), len(old), rng.randint(1, len(old))])
            if rng.random() < 0.5:
                cut = max(1, cut // self.block * self.block)
            start = old[: min(cut, self.longest)]
        more = rng.choice([0, 0, 1, rng.randint(0, self.longest)]) if start else self.longest
        more = rng.randint(0, max(0, min(more, self.longest - len(start))))
        text = start + self.new(more)
        if not text:
            text = self.new(1)
        if rng.random() < 0.3 and len(text) > self.block:
            text = text[: len(text) // self.block * self.block]
        return text


def runs(tokens: list[int]) -> list[list[int]]:
    """[[first, count], ..] of a list of integers."""
    result: list[list[int]] = []
    for token in tokens:
        if result and result[-1][0] + result[-1][1] == token:
            result[-1][1] += 1
        else:
            result.append([token, 1])
    return result


def step_time(rng: random.Random) -> dict:
    """A few nanoseconds a step, so that ties occur."""
    return {
        "base_s": rng.choice([0, 1, 2, 5]) * NS,
        "prefill_token_s": rng.choice([0, 1, 1, 2]) * NS,
        "prefill_pair_s": rng.choice([0, 0, 0, 1]) * NS,
        "decode_s": rng.choice([0, 1, 1]) * NS,
        "context_token_s": rng.choice([0, 0, 1]) * NS,
        "prefill_token_sq_s": rng.choice([0, 0, 0, 1]) * NS,
    }


def arrivals(rng: random.Random, count: int, spread: int) -> list[int]:
    """Bursts: few different instants, many requests at each."""
    instants = [rng.randint(0, spread) for _ in range(rng.randint(1, max(1, count // 2)))]
    return sorted(rng.choice(instants) for _ in range(count))


def shared_requests(rng: random.Random, block: int, longest: int, most: int, share: float) -> list:
    """Requests whose prompts share prefixes, named by content or by block ids of a trace."""
    count = rng.choice([rng.randint(2, 8), rng.randint(5, 20), rng.randint(10, 40)])
    tokens = Tokens(rng, block, longest)
    by_ids = rng.random() < 0.2
    trace_block = rng.choice([block, 2 * block, 3])
    ids: dict[tuple, int] = {}
    requests = []
    for arrival in arrivals(rng, count, rng.choice([0, 20, 100, 300])):
        text = tokens.prompt(share)
        output = rng.choice([1, 1, 2, rng.randint(1, most), rng.randint(1, most)])
        request = {"prompt_tokens": len(text), "output_tokens": output, "arrival_ns": arrival}
        if rng.random() < 0.4:
            request["max_tokens"] = output + rng.choice([0, 1, 4])
        if by_ids:  # every full block has one id for its whole prefix
            blocks = -(-len(text) // trace_block)
            request["block_ids"] = [
                ids.setdefault(tuple(text[: (i + 1) * trace_block]), len(ids))
                for i in range(blocks)
            ]
            request["block_ids_tokens"] = trace_block
            tokens.texts.append(text)
        else:
            named = text + (tokens.new(output) if rng.random() < 0.5 else [])
            request["content"] = runs(named)
            tokens.texts.append(named)
        requests.append(request)
    return requests


def blocks_needed(request: dict, block: int) -> int:
    most = request.get("max_tokens", request["output_tokens"])
    return -(-(request["prompt_tokens"] + most - 1) // block)


def pool(rng: random.Random, requests: list, block: int) -> int:
    """So few blocks that requests are preempted, and now and then rejected."""
    largest = max(blocks_needed(r, block) for r in requests)
    return max(1, largest + rng.choice([-1, 0, 0, 1, 1, 2, largest // 2, largest, 3 * largest]))


def cached_v1(rng: random.Random, total: int, block: int, longest: int) -> dict:
    cfg = {
        "policy": "vllm-v1",
        "total_blocks": total,
        "block_tokens": block,
        "prefix_cache": True,
        "max_num_seqs": rng.choice([2, 4, 8, 256]),
        "max_num_batched_tokens": rng.choice([1, 3, longest // 2 + 1, longest, 3 * longest, 2048]),
        "step_time": step_time(rng),
    }
    if rng.random() < 0.3:
        cfg["uncached_first"] = True
    if rng.random() < 0.2:
        cfg["reserve_full_prompt"] = True
    if rng.random() < 0.2:
        cfg["long_prefill_token_threshold"] = rng.choice([1, 3, block, 2 * block])
    return cfg


def cached(rng: random.Random) -> dict:
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


def base_replica(rng: random.Random, policy: str, total: int, block: int, longest: int) -> dict:
    """A replica of any policy of the base rules."""
    cfg = {
        "policy": policy,
        "total_blocks": total,
        "block_tokens": block,
        "step_time": step_time(rng),
    }
    seqs = rng.choice([1, 2, 4, 64])
    if policy == "static":
        cfg["batch_size"] = seqs
        cfg["pad_prompts"] = rng.choice([True, "attention", False])
        cfg["keep_finished_slots"] = rng.random() < 0.7
        cfg["return_at"] = rng.choice(["token", "token", "batch_end"])
        cfg["batch_timeout_s"] = rng.choice([0, 0, 7 * NS, 30 * NS])
    elif policy == "orca":
        cfg["max_batch_size"] = seqs
        cfg["reserve"] = rng.choice(["max_tokens", "oracle"])
    elif policy == "sarathi":
        cfg["max_num_seqs"] = seqs
        cfg["budget_tokens"] = rng.choice([1, 3, longest // 2 + 1, longest, 512])
    elif policy == "vllm-v0":
        cfg["max_num_seqs"] = seqs
        cfg["max_num_batched_tokens"] = rng.choice([2 * longest, 4 * longest, 2048])
    else:
        cfg = dict(cached_v1(rng, total, block, longest), prefix_cache=False)
    return cfg


POLICIES = ["static", "orca", "vllm-v0", "sarathi", "vllm-v1"]


def wire(rng: random.Random) -> dict:
    """A transfer of one token takes about one nanosecond."""
    return {
        "latency_s": rng.choice([0, 0, 3, 10]) * NS,
        "kv_bytes_per_token": rng.choice([1, 2, 3]),
        "bandwidth_bytes_per_s": rng.choice([1, 2, 2, 4]) * 1e9,
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


def swapping(rng: random.Random, total: int, block: int, longest: int) -> dict:
    """`vllm-v0` with swap; the host has little room, and a block's move takes a few nanoseconds."""
    cfg = base_replica(rng, "vllm-v0", total, block, longest)
    cfg["max_num_seqs"] = rng.choice([2, 4, 64, 64])
    return dict(
        cfg,
        preemption="swap",
        host_blocks=rng.choice([0, 2, total // 2, total, 4 * total]),
        kv_bytes_per_token=rng.choice([1, 2, 3]),
        host_bandwidth=rng.choice([0.7, 1, 2, 3, 16]) * 1e9,
    )


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


def any_policy(rng: random.Random, requests: list, block: int, longest: int) -> dict:
    """Any policy but `sglang`, with or without a cache or swap."""
    policy = rng.choice(
        [
            *POLICIES,
            "static",
            "static",
            "sarathi",
            "cached",
            "cached",
            "cached",
            "swap",
            "swap",
            "swap",
        ]
    )
    total = pool(rng, requests, block)
    if policy in ("static", "orca"):
        total += rng.choice([longest // block, 4 * longest // block])
    if policy == "cached":
        return cached_v1(rng, total, block, longest)
    if policy == "swap":
        return swapping(rng, total, block, longest)
    return base_replica(rng, policy, total, block, longest)


def radix(rng: random.Random, requests: list, longest: int) -> dict:
    """A replica of `sglang`; slots are single tokens, and chunks are small."""
    block = rng.choice([1, 1, 4, 16])
    most = max(r["prompt_tokens"] + r.get("max_tokens", r["output_tokens"]) for r in requests)
    slots = most + rng.choice([0, 1, 1, 2, 5, most // 2, most, 2 * most, 6 * most])
    cfg = {
        "policy": "sglang",
        "total_blocks": -(-slots // block),
        "block_tokens": block,
        "step_time": step_time(rng),
        "order": rng.choice(["lpm", "lpm", "lpm", "fcfs"]),
        "chunked_prefill_size": rng.choice([3, longest // 2 + 1, longest, 3 * longest, 8192]),
        "max_prefill_tokens": rng.choice([longest // 2 + 1, longest, 2 * longest, 16384, 16384]),
    }
    if rng.random() < 0.3:
        cfg["max_running_requests"] = rng.choice([1, 2, 3, 6])
    if rng.random() < 0.1:
        cfg["prefix_cache"] = False
    return cfg


def growing(rng: random.Random, shape: str) -> dict:
    """More outputs than new_token_ratio expects (retraction), or enough to reach its floor."""
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
    """Short texts with ties, long ones for in-batch caching, queues, large max_tokens, growth."""
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
    """For each request, in groups, instants worth a cancellation, from a run without any."""
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
    requests = shared_requests(
        rng, block, longest, rng.choice([8, 2 * block + 2, 4 * block + 2]), 0.7
    )
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
            at = rng.choice(rng.choice(rare if rare and rng.random() < 0.6 else usual))
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


KINDS = {
    "cached": cached,
    "disaggregated-cached": disaggregated_cached,
    "swap": swap,
    "cancel": cancel,
    "sglang": sglang,
    "sessions": sessions,
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
        corners |= {
            o.status + (" " + o.reason if o.reason else "") for o in result.requests.values()
        }
        if any(d.start_ns == d.end_ns for d in result.log):
            corners.add("pass repeated")
        if any(t.cached_tokens for t in result.transfers):
            corners.add("transfer shortened")
        if any(result.lost.values()):
            corners.add("lost content")
        met.update(corners)
    return met, len(seeds)
