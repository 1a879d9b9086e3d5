"""The reference's vLLM v1 with a prefix cache, added by subclassing, and workloads for it.

Plain lists and dicts, one entry for each block, every iteration stepped: written from rules 40 to
44 and 47. The content of a block is that of the block before it and the identities of its own
tokens, as a tuple with a number, so that nothing collides.
"""

from __future__ import annotations

import random
from collections import Counter
from types import ModuleType
from typing import Any

from tests.conformance.extended import copy_of
from tests.conformance.workloads import Spec, workload


def simulate_prefixed(reference: ModuleType, spec: Spec) -> Any:
    """The reference's result; replicas of ``vllm-v1`` may have ``prefix_cache``.

    Requests may have ``block_ids`` and ``block_ids_tokens``. A decision's facts are ``cached``
    (tokens found, of each request admitted in it) and ``lost`` (blocks that lost their content).
    """
    module = copy_of(reference)
    plain = reference.POLICIES["vllm-v1"]
    cached = _caching(reference)

    def either(name: str, cfg: Spec, role: str) -> Any:
        return (cached if cfg.get("prefix_cache") else plain)(name, cfg, role)

    module.POLICIES = reference.POLICIES | {"vllm-v1": either}
    return module.simulate(**spec)


def token(request: Any, position: int) -> tuple[Any, ...]:
    """Identity of one token (rule 40)."""
    size = request.spec.get("block_ids_tokens")
    ids = request.spec.get("block_ids")
    if ids is None or position >= request.p // size * size or position // size >= len(ids):
        return ("own", request.index, position)
    return (ids[position // size], position % size)


def _caching(reference: ModuleType) -> type:
    class Caching(reference.VllmV1):  # type: ignore[misc, name-defined]
        def __init__(self, name: str, cfg: Spec, role: str) -> None:
            super().__init__(name, cfg, role)
            self.queue = list(range(self.total))  # free blocks, the next to be taken first
            self.numbers: dict[tuple[Any, ...], int] = {}  # of contents
            self.keys: dict[tuple[Any, int], int] = {}  # of the blocks of requests
            self.content: dict[int, int] = {}
            self.copies: dict[int, list[int]] = {}  # in order of registration
            self.users = [0] * self.total
            self.mine: dict[Any, list[int]] = {}
            self.cached_now: dict[int, int] = {}
            self.lost_now = 0

        # --- blocks

        def take(self, r: Any, tokens: int) -> None:
            """Blocks for `tokens` in all; the full ones can be hit from now on."""
            mine = self.mine.setdefault(r, [])
            while len(mine) < self.blocks_for(tokens):
                block = self.queue.pop(0)
                if block in self.content:
                    self.lost_now += 1
                    self.forget(block)
                self.users[block] = 1
                mine.append(block)
            for i in range(tokens // self.block_tokens):
                if mine[i] not in self.content:
                    key = self.key(r, i)
                    self.content[mine[i]] = key
                    self.copies.setdefault(key, []).append(mine[i])
            r.blocks, self.free = len(mine), len(self.queue)

        def key(self, r: Any, block: int) -> int:
            if (r, block) not in self.keys:
                before = self.key(r, block - 1) if block else None
                start, end = block * self.block_tokens, (block + 1) * self.block_tokens
                content = (before, tuple(token(r, j) for j in range(start, end)))
                self.keys[r, block] = self.numbers.setdefault(content, len(self.numbers))
            return self.keys[r, block]

        def forget(self, block: int) -> None:
            key = self.content.pop(block)
            self.copies[key].remove(block)

        def hits(self, r: Any) -> list[int]:
            found: list[int] = []
            while len(found) < (r.known - 1) // self.block_tokens:
                copies = self.copies.get(self.key(r, len(found)))
                if not copies:
                    break
                found.append(copies[0])
            return found

        def release(self, r: Any) -> None:
            for block in reversed(self.mine.pop(r, [])):
                self.users[block] -= 1
                if self.users[block]:
                    continue
                if self.cfg.get("uncached_first") and block not in self.content:
                    self.queue.insert(0, block)
                else:
                    self.queue.append(block)
            r.blocks, self.free = 0, len(self.queue)

        def check(self, reqs: list[Any]) -> None:
            assert len(set(self.queue)) == len(self.queue)
            users = Counter(block for mine in self.mine.values() for block in mine)
            assert self.users == [users[block] for block in range(self.total)]
            assert set(self.queue) == {x for x in range(self.total) if not users[x]}

        # --- decisions

        def schedule(self, now: int) -> list[Any]:
            self.cached_now, self.lost_now = {}, 0
            pieces, budget, i = [], self.budget, 0
            while i < len(self.running) and budget > 0:
                r = self.running[i]
                n = self.want(r, r.computed, budget)
                while self.blocks_for(r.computed + n) - r.blocks > self.free:
                    victim = self.running[-1]
                    self.preempt(victim)
                    if victim is r:
                        return pieces
                self.take(r, r.computed + n)
                pieces.append(self.piece(r, n))
                budget -= n
                i += 1
            if self.preempted_now:
                return pieces
            while self.waiting and budget > 0 and len(self.running) < self.max_seqs:
                r = self.waiting[0]
                hits = self.hits(r)
                start = len(hits) * self.block_tokens
                n = self.want(r, start, budget)
                unused = sum(block in self.queue for block in hits)
                whole = r.known if self.reserve_full_prompt else start + n
                if self.blocks_for(whole) - len(hits) + unused > self.free:
                    break
                self.waiting.pop(0)
                self.running.append(r)
                r.computed, r.target = start, r.known
                for block in hits:
                    if block in self.queue:
                        self.queue.remove(block)
                    self.users[block] += 1
                self.mine[r] = hits
                self.take(r, start + n)
                self.cached_now[r.id] = start
                pieces.append(self.piece(r, n))
                budget -= n
            return pieces

        def facts(self) -> dict[str, Any]:
            return {"cached": dict(self.cached_now), "lost": self.lost_now}

    return Caching


# --- workloads


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
