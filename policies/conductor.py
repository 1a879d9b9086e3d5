"""Mooncake's router of prefills: the shortest time to first token, prefixes that move included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim.policy import ReplicaView, Router
from sim.request import Request
from sim.step_time import PROBE_TOKENS


@dataclass
class Conductor(Router):
    """The replica with the least predicted TTFT; exact ties go to the lowest index.

    The prediction for a replica is the sum, in integer nanoseconds, of

    - the time to fetch what is missing of the prefix, if it would be (`sim.prefix_fetch`, as the
      config's `prefix_fetch` says): bytes over bandwidth, and the latency. Fetches under way to it
      and others on the link are not foreseen. Without `prefix_fetch` nothing is ever fetched;
    - the queue: ceil(q x t / 2048), q being the tokens left to prefill there
      (`ReplicaView.prefill_tokens_left`) and t its time for a prompt of 2048 tokens alone;
    - the prefill of the rest of the prompt, known less cached or fetched tokens, after these
      (`ReplicaView.prefill_ns`).

    What the chosen replica is expected to have is noted on the request (`expected_cached_tokens`),
    so that while it waits there it counts with the rest only. Decodes that share the steps are not
    foreseen. With exact predictions it is the cache-aware choice of the paper.

    Source: Qin et al., Mooncake (arXiv 2407.00079, 6.1, algorithm 1; FAST 2025, 4.1), without
    its choice of the decode replica and its rejections (`decode_router`, `admission`). There the
    queue and fetch waits add up as here; prefill times come from a model fitted offline.
    """

    sees_contents = True
    places_prefills = True

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """The one that would emit the first token first."""
        known = request.known_tokens
        best, least, expected = replicas[0], -1, 0
        for view in replicas:
            cached, wait_ns = view.prefix(request)
            ttft = wait_ns + _queue_ns(view) + view.prefill_ns(known - cached, cached)
            if least < 0 or ttft < least:
                best, least, expected = view, ttft, cached
        request.expected_cached_tokens = expected
        return best


def _queue_ns(view: ReplicaView) -> int:
    tokens = view.prefill_tokens_left
    return -(-tokens * view.prefill_ns(PROBE_TOKENS, 0) // PROBE_TOKENS) if tokens else 0
