"""Routers that go by KV memory: what is cached where, and how much of it is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from policies.prefix_index import PrefixIndex
from policies.routing import Drawing
from sim.content import token_runs
from sim.policy import ReplicaView, Router
from sim.request import Request


@dataclass
class LeastKV(Router):
    """Fewest KV blocks in use or about to be; ties by fewer outstanding, then the lowest index.

    The load of a replica is `ReplicaView.needed_blocks`: the blocks in use there, and for each
    request that holds none yet (it waits in the queue, preempted ones included, or a decode replica
    has yet to send for its KV) ceil(tokens known of it / tokens of a block). Blocks that are free,
    cached or not, are not in use. Under `router_snapshot_s` it is that load at the snapshot, plus
    the same ceil of each request placed there since and still outstanding. So requests that arrive
    together are spread, with snapshots and without. Source: the rule is ours; vLLM production stack
    and the Gateway API inference extension score replicas by KV cache utilisation.
    """

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The one with the most room."""
        return min(replicas, key=_kv_load)


def _kv_load(view: ReplicaView) -> tuple[int, int]:
    return view.needed_blocks, view.outstanding


@dataclass
class KVAware(Drawing):
    """Least cost of prefill not cached and of decode blocks, as in NVIDIA Dynamo.

    For a request of n known tokens the cost of a replica with blocks of b tokens is
    ``overlap_score_weight * (prefill / b) + blocks``, evaluated so in IEEE doubles, from integers:

    - prefill = n - cached + what is left to prefill there, `cached` being the tokens of the request
      that the replica's cache would give it at this instant (`ReplicaView.cached_tokens`);
    - blocks = blocks in use there + ceil((n + tokens known of the requests in its queue) / b).

    With `temperature` 0 the least cost wins, exact ties go to the lowest index. Above 0, let lo and
    hi be the least and the largest cost: replica i is drawn with a probability in proportion to
    ``exp(-(cost_i - lo) / ((hi - lo) * temperature))``, uniformly if hi is lo; one draw u of the
    router's generator per request, uniform in [0, 1), takes the first replica in index order at
    which the running sum of the weights exceeds u times their sum. With one replica nothing is
    drawn. The chosen replica's `cached` is noted on the request (`expected_cached_tokens`), so that
    while it waits there it counts with the rest only.

    Source: Dynamo 0.4 to 0.8, ``lib/llm/src/kv_router/scheduler.rs`` (``DefaultWorkerSelector``,
    ``softmax_sample``). Differences: there ties go by the size of the index, then at random;
    prompts count as left to prefill whole until their first token; blocks that running requests
    share with this one are not counted twice.

    Args:
        overlap_score_weight: Weight of the prefill against the decode blocks; 0: by load alone.
        temperature: Randomness of the choice, in units of the spread of costs.
    """

    overlap_score_weight: float = 1.0
    temperature: float = 0.0

    sees_contents = True

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The cheapest, or a draw in favour of the cheaper ones."""
        cached = [view.cached_tokens(request) for view in replicas]
        costs = [self._cost(request, *pair) for pair in zip(replicas, cached, strict=True)]
        if self.temperature == 0 or len(replicas) == 1:
            at = costs.index(min(costs))
        else:
            at = self._draw(costs)
        request.expected_cached_tokens = cached[at]
        return replicas[at]

    def _cost(self, request: Request, view: ReplicaView, cached: int) -> float:
        known, block = request.known_tokens, view.block_tokens
        prefill = known - cached + view.prefill_tokens_left
        blocks = view.used_blocks - (-(known + view.waiting_tokens) // block)
        return self.overlap_score_weight * (prefill / block) + blocks

    def _draw(self, costs: Sequence[float]) -> int:
        assert self.rng is not None
        low, spread = min(costs), max(costs) - min(costs)
        weights = [1.0] * len(costs)
        if spread:
            weights = [math.exp(-(cost - low) / (spread * self.temperature)) for cost in costs]
        aim = self.rng.random() * sum(weights)
        total = 0.0
        for at, weight in enumerate(weights):
            total += weight
            if total > aim:
                return at
        return len(costs) - 1


@dataclass
class PrefixAware(Router):
    """SGLang's router: where most of the prompt was sent before, unless load is out of balance.

    For each replica the router keeps a tree of the prompts that it has sent there
    (`policies.prefix_index`); it does not know what is really cached. For a request, among the
    replicas that can run it:

    1. If the most and the fewest requests outstanding differ by more than `balance_abs_threshold`
       and the most is more than `balance_rel_threshold` times the fewest: fewest outstanding, ties
       to the lowest index.
    2. Else, let m be the longest beginning of the prompt in any replica's tree. If m / p is more
       than `cache_threshold`: the replica that has it, ties to the lowest index.
    3. Else the replica with the fewest tokens in its tree, ties to the lowest index.

    The prompt is then put into the tree of the replica chosen, its own tokens included. What a
    request generates is in no tree until it is part of a prompt. The comparisons are made in IEEE
    doubles, ``most > rel * fewest`` and ``m / p > threshold``.

    Source: sglang-router 0.2 and 0.3, ``sgl-router/src/policies/cache_aware.rs`` and ``tree.rs``;
    defaults of ``launch_router`` there (0.1: 0.5, 32 and 1.0001). Differences: one tree there with
    a mark of each replica at its nodes, which comes to a tree for each, and where several have the
    longest match any of them is taken; it holds characters, 2^26 at most, here tokens, at four
    characters a token; it is cut back every 120 s, here at once; a look-up there makes what it
    finds more recent even where the request then goes elsewhere.

    Args:
        cache_threshold: Share of the prompt, 0 to 1, above which the match decides.
        balance_abs_threshold: Difference in outstanding requests above which load may decide.
        balance_rel_threshold: Ratio above which it then does.
        max_tree_tokens: Most tokens in the tree of one replica.
    """

    sees_state = False

    cache_threshold: float = field(default=0.3, metadata={"maximum": 1})
    balance_abs_threshold: int = field(default=64, metadata={"minimum": 0})
    balance_rel_threshold: float = 1.5
    max_tree_tokens: int = 1 << 24
    _trees: dict[int, PrefixIndex] = field(default_factory=dict, init=False, repr=False)

    def start(self, rng: np.random.Generator) -> None:
        """Nothing was sent anywhere yet."""
        self._trees = {}

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """By load if that is out of balance, else by what was sent where."""
        prompt = request.prompt_tokens
        runs = list(token_runs(request.index, request.identity.content, 0, prompt))
        chosen = self._choose(prompt, runs, replicas)
        self._tree(chosen).insert(runs)
        return chosen

    def _choose(
        self, prompt: int, runs: Sequence[tuple[int, int]], replicas: Sequence[ReplicaView]
    ) -> ReplicaView:
        loads = [view.outstanding for view in replicas]
        most, fewest = max(loads), min(loads)
        apart = most - fewest > self.balance_abs_threshold
        if apart and most > self.balance_rel_threshold * fewest:
            return replicas[loads.index(fewest)]
        matches = [self._tree(view).match(runs) for view in replicas]
        longest = max(matches)
        if longest / prompt > self.cache_threshold:
            return replicas[matches.index(longest)]
        return min(replicas, key=lambda view: self._tree(view).tokens)

    def _tree(self, view: ReplicaView) -> PrefixIndex:
        tree = self._trees.get(view.index)
        if tree is None:
            tree = self._trees[view.index] = PrefixIndex(self.max_tree_tokens)
        return tree
