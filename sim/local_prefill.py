"""Local prefill: requests that are prefilled and decoded on one replica of the decode pool.

The mechanism of conditional disaggregation. Rules, in the form of those they add to:

- *Choice.* In phase (3) the decode router chooses a decode replica first, for every request (its
  turn or draw counts, whatever follows), among those up that can run it. Let u be the prompt tokens
  that are not cached there now (p less what an admission would find, rules 41 and 47), and w the
  requests that wait in the queues of all prefill replicas, both exact, whatever a router's
  snapshots say. The request is *local* if u <= `max_uncached_tokens`, or w >= `max_queue` where
  that is set, or no prefill replica that takes requests can run it. Else the prefill router chooses
  as always, and the decode replica keeps the request: it is outstanding on both sides until its
  prefill ends, and is handed over to that replica then (as rule 69 says of push; under push its
  blocks are reserved there as in rule 70). A local request is asked of no prefill router, and is
  outstanding on its decode replica alone.
- *On the replica.* A local request counts with p, m and o as on a colocated replica (rule 29 does
  not apply). It joins the replica's waiting queue, is prefilled and decoded by its policy, and is
  preempted as others are. It emits token 1 there, also with `recompute_last_token`.
- *One line* (32). Requests handed over and waiting requests stand in one line, in order of joining
  the replica; what was handed over at an instant comes before what arrived at it, and who was
  preempted before all. A request that waits is not admitted while one stands before it that was
  handed over and has reserved nothing; that ends the admission as a lack of blocks does. Pulls end
  at the first behind the head of the waiting queue. Queue orders sort only those who wait: it is
  their head that is compared. A pass that starts a transfer and runs nothing, while somebody waits,
  is made again at the same instant. Under push nothing is pulled: rule 70 holds as it stands, no
  blocks are reserved while somebody waits on the target.
- *Rejection* (36) is as with two pools. With m = 1 a request that no decode replica could run is
  not local.
- *Admission control* judges at the prefill pool before all this (`sim.admission`).
- *Cancellation, failure* (53, 54). A local request is like one of a colocated replica: on a failure
  it is routed anew, by the same choice. Whose decode replica fails during its prefill is handed
  over by the decode router when that ends (83); whose prefill replica fails chooses anew on both
  sides. A draining replica keeps those it was chosen for (82).

Sources: Dynamo 0.2, ``examples/llm/utils/disagg_router.py`` (`PyDisaggregatedRouter`): prefill
elsewhere only if prompt tokens not found cached > ``max_local_prefill_length`` (1000) and the
prefill queue is shorter than ``max_prefill_queue_size`` (2); decode workers are chosen first, and
later versions decode alone where no prefill worker is up. llm-d inference scheduler 0.6,
``prefix_based_pd_decider.go``: the decode pod is chosen first, and prefills itself fewer than
``nonCachedTokens`` tokens. vLLM's scheduler has one queue for requests with and without remote KV
(``vllm/v1/core/sched/scheduler.py``). Differences: there a waiting request behind one whose
transfer has just started may join in the same step, here in the next; both engines go by an index
of what was cached, here by the cache itself; llm-d estimates tokens by characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.errors import ConfigError, called

if TYPE_CHECKING:
    from sim.hand_over import HandOver
    from sim.pool import Pool, PoolSpec
    from sim.replica import Replica
    from sim.request import Request


@dataclass(frozen=True)
class LocalPrefill:
    """When a decode replica prefills by itself; see the text above.

    Attributes:
        max_uncached_tokens: Most prompt tokens, not found cached, for which it always does.
        max_queue: It does for all while so many requests wait for a prefill replica; None: never.
    """

    max_uncached_tokens: int = 0
    max_queue: int | None = None

    def stays(self, request: Request, target: Replica, entry: Pool, as_seen_there: Request) -> bool:
        """Whether a request is local.

        Args:
            request: As the decode replica sees it.
            target: That replica.
            entry: The prefill pool.
            as_seen_there: The request as the prefill pool sees it.
        """
        uncached = request.known_tokens - target.cached_tokens(request)
        if uncached <= self.max_uncached_tokens:
            return True
        if self.max_queue is not None:
            waiting = sum(replica.waiting for replica in entry.replicas)
            if waiting >= self.max_queue:
                return True
        return not entry.able(as_seen_there)


def check(pool: PoolSpec) -> None:
    """Raise `ConfigError` if the policy of a decode replica never prefills who waits there."""
    for replica in pool.replicas:
        if not replica.policy.prefills_who_waits:
            raise ConfigError(
                f"local_prefill: policy {called(replica.policy)} forms its batches on a "
                "decode replica of requests whose KV came, and prefills nobody; try vllm-v1"
            )


@dataclass
class InLine:
    """Who comes before a waiting request on a decode replica, as its policy asks."""

    between: HandOver
    replica: Replica

    def has_room(self, request: Request) -> bool:
        """Whether nobody who was handed over stands before it (`sim.policy.Onward`)."""
        pulls = self.between.pulls[self.replica]
        return not pulls or comes_first(request, pulls[0].request)

    def reserve(self, request: Request) -> None:
        """Nothing is needed elsewhere."""


def comes_first(waits: Request, handed_over: Request) -> bool:
    """Whether a waiting request stands before one whose KV is to be pulled."""
    return waits.preemptions > 0 or waits.joined_ns < handed_over.joined_ns


def head_comes_first(waiting: Sequence[Request], handed_over: Request) -> bool:
    """Whether the head of a waiting queue does; False if nobody waits."""
    return bool(waiting) and comes_first(waiting[0], handed_over)
