"""Building blocks of the random workloads: texts that share prefixes, replicas, pools, links.

Coefficients of the step time are a few nanoseconds, so steps, arrivals and transfers tie often.
"""

from __future__ import annotations

import random

NS = 1e-9
POLICIES = ["static", "orca", "vllm-v0", "sarathi", "vllm-v1"]


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
        if by_ids:  # an id names a block and all before it
            blocks = -(-len(text) // trace_block)
            starts = [tuple(text[: (i + 1) * trace_block]) for i in range(blocks)]
            request["block_ids"] = [ids.setdefault(start, len(ids)) for start in starts]
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


def wire(rng: random.Random) -> dict:
    """A transfer of one token takes about one nanosecond."""
    return {
        "latency_s": rng.choice([0, 0, 3, 10]) * NS,
        "kv_bytes_per_token": rng.choice([1, 2, 3]),
        "bandwidth_bytes_per_s": rng.choice([1, 2, 2, 4]) * 1e9,
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


def any_policy(rng: random.Random, requests: list, block: int, longest: int) -> dict:
    """Any policy but `sglang`, with or without a cache or swap."""
    policy = rng.choice([*POLICIES] + ["static"] * 3 + ["sarathi"] + ["cached", "swap"] * 3)
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
