"""A global prefix cache: a replica fetches the blocks of a prompt that another one has cached.

The rules, in the form of those of the prefix cache (40 to 48):

- *When.* It is judged in phase (3), when a request has been routed to replica r of its pool, by
  whatever router, re-routed requests included. Let h(x) be the tokens of its prompt that the cache
  of replica x would give it at that instant (whole blocks, at most known - 1 tokens, rule 41), as
  far as its content is told; b is the replica with the largest h among those of the pool that are
  up or draining, ties to the lowest index. If h(b) > h(r) and h(b) > `balancing_threshold` x h(r)
  (doubles), r fetches the blocks from h(r) to h(b) from b. The request joins no queue until they
  are there.
- *Company.* If another fetch to r is under way of which c tokens are the request's own, cut to
  whole blocks and at most known - 1, and c >= h(b), c > h(r) and c > `balancing_threshold` x h(r):
  nothing more moves, and the request waits for the end of that one (the largest c, then the one
  that started first).
- *Memory.* From the start on the first h(b) tokens' blocks are in use on both sides: on b, and on r
  those that it has, with new ones for the others. If r has fewer blocks free than are needed
  (free ones that it finds count as needed, as at admission) nothing is fetched and the request
  joins the queue at once.
- *Time.* (h(b) - h(r)) x kv_bytes_per_token, as rule 35 says with the fetch's own bandwidth and
  latency; where transfers share links, over these, like a transfer (rules 39, 63 to 65).
- *End.* In phase (2), with the transfers, in order of start: b's blocks are not in use any more;
  r's can be found from now on (rule 44), and are free: they enter the queue of free blocks at the
  back, the last one first, as those of a request that ends (rule 42). Then those who waited join
  the queue of r, in order of coming. Nothing is kept for them: who is admitted late may find less.
- *Meanwhile* the request is outstanding on r; in the tokens left to prefill it counts with what it
  knows beyond h(b), or c; it does not wait in the queue (`max_waiting`).
- *Cancelled* (53): it leaves at once, and the fetch ends as planned.
- *Failure* (54), in phase (2c): a fetch from the replica that fails is called off, what r reserved
  is free and without content, and those who waited join its queue, which fetches nothing more. One
  to the replica that fails is called off, b's blocks are not in use any more, and those who waited
  are re-routed behind those of its queue. A draining replica is not gone before its fetches ended.

So a prefix that many ask for is soon cached on several replicas.

Source: Qin et al., Mooncake (arXiv 2407.00079, 6.1 with algorithm 1, and 6.2; FAST 2025, 4: hot
blocks are replicated by such fetches). Differences: the blocks lie in GPU memory here and in the
hosts' there, and a host or disk tier is not modelled with it; there a request is admitted with its
blocks, here it queues for its prefill once they are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from sim.carrier import OnTheWay
from sim.clock import Instant, Phase, now_ns
from sim.content import Content
from sim.errors import ConfigError, called
from sim.policy import Prefix
from sim.prefix_cache import PrefixCache
from sim.records import Lifetime
from sim.replica import Replica
from sim.replica_spec import DRAINING, UP, ReplicaSpec
from sim.request import Identity, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simpy.events import Event

    from sim.cluster import LiveCluster


@dataclass(frozen=True)
class FetchSpec:
    """How replicas of the pool that requests enter fetch prefixes from each other.

    Attributes:
        bandwidth_bytes_per_s: That each fetch has to itself; where transfers share links, what
            routers reckon with only.
        latency_s: Seconds before the first byte; where transfers share links theirs counts, and
            this one is what routers reckon with.
        balancing_threshold: A prefix is fetched if it is so many times as long as what the replica
            has of it (``kvcache_balancing_threshold``). 1: whenever another has more.
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    balancing_threshold: float = 1.0

    def duration_ns(self, num_bytes: int) -> int:
        """Length of a fetch alone, ns, rounded half to even, at least 1."""
        return max(1, round((self.latency_s + num_bytes / self.bandwidth_bytes_per_s) * 1e9))

    def worth(self, own_tokens: int, other_tokens: int) -> bool:
        """Whether what another replica has is worth fetching."""
        return other_tokens > max(own_tokens, self.balancing_threshold * own_tokens)


def check(replicas: Sequence[ReplicaSpec]) -> None:
    """Raise `ConfigError` where replicas of a pool cannot give each other blocks."""
    first = replicas[0]
    for spec in replicas:
        if type(spec.policy.memory(spec.num_blocks, spec.block_tokens)) is not PrefixCache:
            raise ConfigError(
                f"prefix_fetch: policy {called(spec.policy)} has no cache of blocks on the GPU "
                "alone; it works with policy vllm-v1, prefix_cache: true and no host tier"
            )
        if (spec.block_tokens, spec.kv_bytes_per_token) != (
            first.block_tokens,
            first.kv_bytes_per_token,
        ):
            raise ConfigError(
                "prefix_fetch: replicas of a pool fetch blocks of one size; give all the same "
                "kv.block_tokens and KV precision"
            )


@dataclass(eq=False)
class _Fetch:
    """Blocks on their way between two caches.

    Attributes:
        request: Index of whom it was started for.
        source: Has the blocks cached, held by `lent` meanwhile.
        target: Gets them, into blocks held by `taken`.
        content: The tokens that the target then has, from the start.
        tokens: Of these, those that move.
        num_bytes: Their size.
        start_ns: When it was sent.
        waiting: Who waits for it, in order of coming.
        end: Its wake-up, or what is on the way on shared links.
    """

    request: int
    source: Replica
    target: Replica
    lent: Request
    taken: Request
    content: Content
    tokens: int
    num_bytes: int
    start_ns: int
    waiting: list[tuple[Lifetime, Request]] = field(default_factory=list)
    end: Instant | OnTheWay | None = None


class PrefixFetch:
    """The fetches of one run.

    Attributes:
        spec: How they are made.
        under_way: In order of start.
        without_room: Fetches that would have been made, had their replica had the blocks.
    """

    def __init__(self, live: LiveCluster, spec: FetchSpec) -> None:
        self._live, self.spec = live, spec
        self.under_way: dict[_Fetch, None] = {}
        self.without_room = 0
        self._seen: tuple[Request, int, list[tuple[Replica, int]]] | None = None

    # --- what would be found

    def prefix(self, replica: Replica, request: Request) -> Prefix:
        """What a request would find on a replica, with what is fetched, and the time that takes."""
        own, best, _ = self._look(replica, request)
        coming = self._coming(replica, request, own, best)
        found = best if coming is None else self._shared(coming, request)
        if not self.spec.worth(own, found):
            return Prefix(own, 0)
        size = (found - own) * replica.spec.kv_bytes_per_token
        return Prefix(found, self.spec.duration_ns(size))

    def _look(self, replica: Replica, request: Request) -> tuple[int, int, Replica]:
        """Tokens found on the replica, the most found on any, and who has these."""
        matches = self._matches(request)
        own = next((tokens for other, tokens in matches if other is replica), 0)
        source, best = max(matches, key=lambda match: match[1])
        return own, best, source

    def _matches(self, request: Request) -> list[tuple[Replica, int]]:
        """Of each replica that has a cache now, what it would give; looked up once for a router."""
        now, seen = now_ns(self._live.env), self._seen
        if seen is not None and seen[0] is request and seen[1] == now:
            return seen[2]
        content, matches = request.identity.content, []
        for replica in self._live.entry.replicas:
            if replica.condition in (UP, DRAINING):
                told = 0 if content is None else content.tokens
                whole = told - told % replica.block_tokens
                matches.append((replica, min(whole, replica.cached_tokens(request))))
        self._seen = (request, now, matches)
        return matches

    def _coming(self, target: Replica, request: Request, own: int, best: int) -> _Fetch | None:
        """A fetch under way to the replica which brings as much as there is to fetch."""
        there = [fetch for fetch in self.under_way if fetch.target is target]
        if not there:
            return None
        fetch = max(there, key=lambda fetch: self._shared(fetch, request))
        shared = self._shared(fetch, request)
        return fetch if shared >= best and self.spec.worth(own, shared) else None

    @staticmethod
    def _shared(fetch: _Fetch, request: Request) -> int:
        """Tokens of the request that the target of a fetch will have because of it."""
        content = request.identity.content
        if content is None:
            return 0
        shared = min(fetch.content.shared(content), request.known_tokens - 1)
        return shared - shared % fetch.target.block_tokens

    # --- start and end

    def awaited(self, life: Lifetime, request: Request, replica: Replica) -> bool:
        """Phase (3): start or join a fetch for a request routed there; False: it has to queue."""
        if request.identity.content is None:
            return False
        own, best, source = self._look(replica, request)
        fetch = self._coming(replica, request, own, best)
        if fetch is None:
            if not self.spec.worth(own, best):
                return False
            fetch = self._start(request, source, replica, own, best)
        if fetch is None:
            self.without_room += 1
            request.expected_cached_tokens = min(request.expected_cached_tokens, own)
            return False
        fetch.waiting.append((life, request))
        found = self._shared(fetch, request)
        replica.fetching[request] = request.known_tokens - found
        return True

    def _start(
        self, request: Request, source: Replica, target: Replica, own: int, best: int
    ) -> _Fetch | None:
        told = request.identity.content
        assert told is not None
        content = told.cut(best)
        lent, taken = (_stand_in(request.index, content, best) for _ in range(2))
        if target.lodge(taken, best) is None:
            return None
        found = source.lodge(lent, best)
        assert found == best, f"{source.place} gives {found} of {best} tokens"
        size = (best - own) * source.spec.kv_bytes_per_token
        now = now_ns(self._live.env)
        fetch = _Fetch(request.index, source, target, lent, taken, content, best - own, size, now)
        self._send(fetch)
        self.under_way[fetch] = None
        return fetch

    def _send(self, fetch: _Fetch) -> None:
        live = self._live
        carrier = live.network if live.between is None else live.between.carrier
        if carrier is None:
            fetch.end = Instant(
                live.env, self.spec.duration_ns(fetch.num_bytes), Phase.TRANSFER_END
            )
            fetch.end.callbacks.append(partial(self._arrived, fetch))
        else:
            arrived = partial(self._arrived, fetch, None)
            fetch.end = carrier.send(
                fetch.source, fetch.target, fetch.request, fetch.num_bytes, arrived
            )

    def _arrived(self, fetch: _Fetch, _: Event | None) -> None:
        """Phase (2): the blocks can be found on the target too, and nobody holds them."""
        del self.under_way[fetch]
        target = fetch.target
        fetch.source.evict(fetch.lent)
        target.sync()
        target.kv.arrived(fetch.taken)
        target.evict(fetch.taken)
        self._live.recorder.fetches.extend(
            (
                fetch.request,
                fetch.source.place,
                target.place,
                fetch.start_ns,
                now_ns(self._live.env),
                fetch.tokens,
                fetch.num_bytes,
            )
        )
        self._join_queue(fetch)

    def _join_queue(self, fetch: _Fetch) -> None:
        now = now_ns(self._live.env)
        for life, request in fetch.waiting:
            if not life.ended:
                del fetch.target.fetching[request]
                request.joined_ns = now
                fetch.target.enqueue(request)

    # --- failure

    def fail(self, replica: Replica) -> None:
        """Phase (2c): what is on its way to or from a replica that fails never arrives."""
        for fetch in [f for f in self.under_way if replica in (f.source, f.target)]:
            assert fetch.end is not None
            fetch.end.call_off()
            del self.under_way[fetch]
            if fetch.target is replica:
                fetch.source.evict(fetch.lent)
            else:
                fetch.target.evict(fetch.taken)
                self._join_queue(fetch)


def _stand_in(index: int, content: Content, tokens: int) -> Request:
    """Who holds the blocks of a prefix while it is copied; a token more, as no hit is whole."""
    return Request(index, tokens + 1, 1, identity=Identity(content=content))
