"""Prefix hits of a trace, counted block by block: requests one after the other (rules 40 to 43).

    chains = chains_of_ids(id_lists, prompt_tokens, block_tokens)    a trace's own block ids
    chains = chains_of_requests(specs, block_tokens)                 any block size, by token
    hits = hit_blocks(chains, most_hits(prompt_tokens, block_tokens), capacity, "lru")

A request hits the longest run of cached full blocks from its start, at most floor((p - 1) /
block_tokens) of them (41). It then holds all its full blocks together; a block that is cached
already does not occupy a second place, wherever it stands in the request. What is too much is
evicted among blocks the request does not hold. A request with more blocks than the capacity keeps
its first `capacity` blocks cached, and all others are evicted (43). Only full blocks of the prompt
count, never generated tokens.

Who is evicted, and ties:

lru   The block whose last request ended first; of one request the last block first (42).
fifo  The block that entered the cache first. A request's new blocks enter when it ends, the last
      first; a hit or a second computation changes no place. A block that was evicted enters anew.
lfu   The block with the fewest requests that held it since it entered; ties as in lru.

Only under lru no capacity hits less than a smaller one. Under fifo and lfu a block may stay while
the one before it goes; it is then of no use until that one has been computed again.
"""

from __future__ import annotations

from collections import OrderedDict

from .request import Chains, Request


def chains_of_ids(id_lists: list, prompt_tokens: list[int], block_tokens: int) -> list[list[int]]:
    """Numbers of the full blocks: equal numbers if and only if all ids from the start are equal."""
    numbers: dict[tuple, int] = {}
    chains = []
    for ids, p in zip(id_lists, prompt_tokens, strict=True):
        chain: list[int] = []
        for name in ids[: p // block_tokens]:
            parent = chain[-1] if chain else None
            chain.append(numbers.setdefault((parent, name), len(numbers)))
        chains.append(chain)
    return chains


def chains_of_requests(specs: list[dict], block_tokens: int) -> list[list[int]]:
    """The same from the tokens of request specs (rule 40)."""
    chains = Chains()
    requests = [Request(i, spec) for i, spec in enumerate(specs)]
    return [chains.of(r, r.p // block_tokens, block_tokens) for r in requests]


def most_hits(prompt_tokens: list[int], block_tokens: int) -> list[int]:
    """At least one token is computed (rule 41)."""
    return [(p - 1) // block_tokens for p in prompt_tokens]


def unlimited(chains: list[list[int]], most: list[int]) -> list[int]:
    """Hit blocks of each request with an unlimited cache."""
    seen: set[int] = set()
    hits = []
    for chain, cap in zip(chains, most, strict=True):
        run = 0
        while run < min(cap, len(chain)) and chain[run] in seen:
            run += 1
        hits.append(run)
        seen.update(chain)
    return hits


def hit_blocks(
    chains: list[list[int]], most: list[int], capacity: int | None = None, policy: str = "lru"
) -> list[int]:
    """Hit blocks of each request. `capacity` in blocks; None: unlimited."""
    assert policy in ("lru", "fifo", "lfu")
    if capacity is None:
        return unlimited(chains, most)
    cached: OrderedDict[int, int] = OrderedDict()  # block -> requests that held it
    hits = []
    for chain, cap in zip(chains, most, strict=True):
        run = 0
        while run < min(cap, len(chain)) and chain[run] in cached:
            run += 1
        hits.append(run)
        held = chain[:capacity]  # rule 43
        mine = set(held)
        new = [block for block in held if block not in cached]
        if len(chain) > capacity:
            for block in [block for block in cached if block not in mine]:
                del cached[block]
        while len(cached) + len(new) > capacity:
            del cached[victim(cached, mine, policy)]
        for block in reversed(held):  # last block first (rule 42)
            uses = cached.get(block, 0) + 1
            if policy != "fifo":
                cached.pop(block, None)  # to the back
            cached[block] = uses
        assert len(cached) <= capacity
    return hits


def victim(cached: OrderedDict[int, int], mine: set[int], policy: str) -> int:
    """The next block to be evicted among those that the request does not hold."""
    if policy == "lfu":
        fewest = min(uses for block, uses in cached.items() if block not in mine)
        return next(b for b, uses in cached.items() if uses == fewest and b not in mine)
    return next(block for block in cached if block not in mine)
