"""Random workloads of one pool of `vllm-v1` with a prefix cache, most prompts starting alike."""

from __future__ import annotations

import random
from typing import Any

from tests.conformance.workloads import Spec, workload


def prefixed_workload(seed: int) -> Spec:
    """A conformance workload on one pool of `vllm-v1`, most of its prompts starting alike."""
    rng = random.Random(f"prefixed {seed}")
    number = seed * 10
    spec = workload(number)
    while "replicas" not in spec:
        number += 1
        spec = workload(number)
    size = rng.choice((1, 2, 3, 4, 8, 16, 16, 32))
    texts = [[rng.randrange(10**6) for _ in range(400)] for _ in range(rng.choice((1, 1, 2, 4)))]
    for index, request in enumerate(spec["requests"]):
        if rng.random() < 0.85:
            request["block_ids"] = _ids(rng, texts, index, request["prompt_tokens"], size)
            request["block_ids_tokens"] = size
    spec["replicas"] = [_replica(rng, x, spec["requests"]) for x in spec["replicas"][:2]]
    return spec


def _ids(rng: random.Random, texts: list[list[int]], index: int, prompt: int, size: int) -> Any:
    """The start of a shared text, then ids of its own; at times the text alone, or branched."""
    n = -(-prompt // size) if rng.random() < 0.7 else prompt // size
    text = rng.choice(texts)
    shared = rng.choice((0, n // 2, n, n, rng.randint(0, n)))
    own = rng.choice((0, 1, index))
    return [text[i] if i < shared else 10**7 * (1 + own) + i for i in range(n)]


def _replica(rng: random.Random, replica: Spec, requests: list[Spec]) -> Spec:
    """The replica under `vllm-v1` with a prefix cache, mostly short of memory."""
    kept = {"block_tokens", "max_model_len", "step_time", "total_blocks"}
    made: Spec = {"policy": "vllm-v1", "prefix_cache": True}
    made |= {name: value for name, value in replica.items() if name in kept}
    made["block_tokens"] = rng.choice((1, 2, 2, 3, 4, 4, 8, 16))
    longest = max(r["prompt_tokens"] + r.get("max_tokens", r["output_tokens"]) for r in requests)
    need = -(-longest // made["block_tokens"])
    made["total_blocks"] = max(1, round(need * rng.choice((0.9, 1, 1, 1.1, 1.5, 2, 3, 10))))
    prompt = max(r["prompt_tokens"] for r in requests)
    if rng.random() < 0.5:
        made["max_num_seqs"] = rng.choice((1, 2, 3, 6, 16))
    if rng.random() < 0.6:
        made["max_num_batched_tokens"] = rng.randint(1, 2 * prompt + 4)
    if rng.random() < 0.3:
        made["long_prefill_token_threshold"] = rng.randint(0, prompt)
    if rng.random() < 0.3:
        made["reserve_full_prompt"] = True
    if rng.random() < 0.3:
        made["uncached_first"] = True
    return made
