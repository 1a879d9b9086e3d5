"""Random workloads in which prefill replicas compute for ever in vain (rule 84).

Decode replicas fail, all or some, so that prompts hold memory on the prefill side for good; there
pools are small and prompts are cut into small chunks, so that others can go on only to lose what
they have computed. With and without caches, host memory behind them, pipelines, push, layer-wise
transfers that start anew with each attempt, shared links, and stragglers.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.conformance.workloads import Spec

if TYPE_CHECKING:
    from tests.conformance.second import Second

_BASES = ("push", "push", "failures", "disaggregated-cached", "links")
_NS = 1e-9


def stuck_spec(second: Second, seed: int) -> Spec:
    """The workload of this seed."""
    rng = random.Random(f"stuck {seed}")
    while True:
        spec = dict(second.random_spec(rng.randrange(1 << 30), rng.choice(_BASES)))
        if "disaggregated" in spec:
            break
    pools = dict(spec["disaggregated"])
    requests = spec["requests"] = [dict(r) for r in spec["requests"]]
    if rng.random() < 0.7:
        for request in requests:
            request.pop("cancel_at_ns", None)
    block = pools["prefill"][0].get("block_tokens", 16)
    longest = max(r["prompt_tokens"] for r in requests)
    kv_bytes = pools["transfer"]["kv_bytes_per_token"]
    for request in requests:
        if rng.random() < 0.6 and "block_ids" not in request:
            request["prompt_tokens"] = rng.randint(longest // 2 + 1, longest)
    one = _prefill(rng, block, longest, kv_bytes)
    alike = rng.random() < 0.6
    count = rng.choice([1, 1, 2, 2, 3])
    pools["prefill"] = [
        one if alike else _prefill(rng, block, longest, kv_bytes) for _ in range(count)
    ]
    if rng.random() < 0.5:
        _let_some_fit_one_only(rng, pools, requests)
    spec["disaggregated"] = pools
    spec["events"] = _events(rng, len(pools["decode"]), count)
    return spec


def _prefill(rng: random.Random, block: int, longest: int, kv_bytes: int) -> Spec:
    cfg: Spec = {
        "policy": "vllm-v1",
        "block_tokens": block,
        "total_blocks": -(-longest // block) + rng.choice([0, 0, 1, 2, 3]),
        "max_num_batched_tokens": rng.choice([1, 2, 3, longest // 2 + 1]),
        "prefix_cache": rng.random() < 0.6,
        "step_time": {"base_s": 2 * _NS, "prefill_token_s": rng.choice([0, 1, 1]) * _NS},
    }
    draw = rng.random()
    if draw < 0.25 and not cfg["prefix_cache"]:
        steps = [dict(cfg["step_time"]) for _ in range(rng.choice([2, 3]))]
        steps[0]["base_s"] = rng.choice([1, 4]) * _NS
        cfg["stages"] = steps
    elif draw < 0.2 and cfg["prefix_cache"]:
        cfg["host_cache_blocks"] = rng.choice([1, 2, 8])
        cfg["kv_bytes_per_token"] = kv_bytes
        cfg["host_bandwidth"] = rng.choice([1, 4]) * 1e9
    if rng.random() < 0.3:
        cfg["max_num_seqs"] = rng.choice([1, 2])
    return cfg


def _let_some_fit_one_only(rng: random.Random, pools: Spec, requests: list[Spec]) -> None:
    """Of two decode replicas the second one takes what is small only; the first one fails."""
    large = {"policy": "vllm-v1", "block_tokens": pools["decode"][0].get("block_tokens", 16)}
    large["step_time"] = {"base_s": 3 * _NS}
    tokens = sorted(r["prompt_tokens"] + r.get("max_tokens", r["output_tokens"]) for r in requests)
    blocks = [-(-n // large["block_tokens"]) for n in tokens]
    small = {**large, "total_blocks": blocks[rng.randrange(len(blocks))]}
    pools["decode"] = [{**large, "total_blocks": sum(blocks)}, small]


def _events(rng: random.Random, decode: int, prefill: int) -> list[Spec]:
    at = rng.choice([0, 0, rng.randint(1, 40), rng.randint(20, 200)])
    some = rng.random() < 0.5
    failed = [0] if some else range(decode)
    events = [{"at_ns": at, "pool": "decode", "index": i, "what": "fail"} for i in failed]
    if rng.random() < 0.25:
        late = at + rng.randint(1, 100)
        index = rng.randrange(prefill)
        slow = {"at_ns": late, "pool": "prefill", "index": index, "what": "slow", "factor": 2}
        events.append(slow)
    if rng.random() < 0.2:
        index = rng.randrange(prefill)
        events.append({"at_ns": at + 9, "pool": "prefill", "index": index, "what": "drain"})
    return events
