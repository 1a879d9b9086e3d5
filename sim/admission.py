"""Admission control at the entry of a cluster: who is turned away although it could run.

A request that some replica can ever run (rules 6 to 8) is judged when it arrives, in phase (3),
before it is routed and before a predictor or a router is asked or draws anything. The tests are, in
this order, and the first that refuses gives the reason of its rejection:

1. ``rate_limited``: its tenant's token bucket has less than the request costs. A bucket is full at
   the start and gains `tokens_per_s` tokens a second, exactly (in units of 1e-9 tokens, integers),
   up to `burst_tokens`. The cost is p + m, p or 1 (`charge`); it is taken when the request has
   passed all tests, so that one refused for another reason costs nothing. Requests without a tenant
   share a bucket. What costs more than `burst_tokens` never passes.
2. ``queue_full``: `max_waiting` requests or more wait in the queues of the entry pool; or each
   replica that can run it has `max_waiting_per_replica` or more in its queue.
3. ``predicted_ttft``: on each replica that is left the predicted TTFT is over the limit of its
   class, else the general one; without a limit nobody is refused. The prediction is the time to
   prefill the n tokens that are ahead of its first one there: what is left to prefill on the
   replica (`ReplicaView.prefill_tokens_left`) and its own p, less, with `counts_cached`, what the
   replica's cache would give it now. That takes ceil(n x 1e9 / prefill_tokens_per_s) ns, or, where
   no rate is stated, ceil(n x t / 2048) ns, t being the replica's step time of a prompt of 2048
   tokens alone. Decodes that share the steps are not foreseen, nor is anything of the output.

4. ``decode_load``: with two pools, the decode pool has too much load already, or will have by the
   time that the prefill ends (`sim.decode_load`).

Of a pool's replicas only those that pass the tests 2 and 3 are offered to the router. What the
tests see of replicas is what routers see, snapshots included (rule 27). A request refused leaves no
other trace than its record (rejected, with the reason) and what its end causes (rule 52). Only
first arrivals are judged, at the prefill pool where there are two.

Source: early rejection as in Mooncake (Qin et al., FAST 2025, algorithm 1: refused on arrival if
the TTFT predicted for the best instance is over the target), with a rate in place of its model of
prefill times; its target for the time between tokens is test 4. Queue caps and token buckets are
those of API gateways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sim.decode_load import DecodeLimit, DecodeLoad
from sim.errors import ConfigError
from sim.policy import ReplicaView
from sim.request import NEVER, Request
from sim.step_time import PROBE_TOKENS, StepWork

if TYPE_CHECKING:
    from sim.replica import Replica

_NANO = 10**9

Charge = Literal["prompt_and_max", "prompt", "request"]


@dataclass(frozen=True)
class Bucket:
    """A token bucket.

    Attributes:
        tokens_per_s: Tokens that it gains a second.
        burst_tokens: Most that it holds, and what it starts with.
    """

    tokens_per_s: int
    burst_tokens: int


@dataclass(frozen=True)
class RateLimit:
    """A bucket for each tenant.

    Attributes:
        bucket: Size of a tenant's bucket.
        tenants: Other sizes, by tenant.
        charge: What a request costs: p + m, p, or 1.
    """

    bucket: Bucket
    tenants: Mapping[str, Bucket] = field(default_factory=dict)
    charge: Charge = "prompt_and_max"


@dataclass(frozen=True)
class EarlyRejection:
    """A limit of the predicted TTFT.

    Attributes:
        limit_ns: For requests of no class in `classes`; None: no limit.
        classes: Limit by class, ns.
        prefill_tokens_per_s: Rate of prefill of one replica; None: of its step-time model.
        counts_cached: Tokens cached on the replica need no time.
        decode_load: A limit of the load of the decode pool, or None.
    """

    limit_ns: int | None = None
    classes: Mapping[str, int] = field(default_factory=dict)
    prefill_tokens_per_s: int | None = None
    counts_cached: bool = False
    decode_load: DecodeLimit | None = None


@dataclass(frozen=True)
class Admission:
    """What is judged; see the text above.

    Attributes:
        max_waiting: Most requests in the queues of the entry pool when one more comes.
        max_waiting_per_replica: Most in the queue of a replica that is offered to the router.
        rate_limit: Token buckets, or None.
        early_rejection: Limit of the predicted TTFT, or None.
    """

    max_waiting: int | None = None
    max_waiting_per_replica: int | None = None
    rate_limit: RateLimit | None = None
    early_rejection: EarlyRejection | None = None


class Gate:
    """Admission control at work.

    Args:
        spec: What is judged.
        replicas: All of the entry pool.
        views: The same as routers see them.
        decode_load: That of the decode pool, where it is judged.

    Attributes:
        due_ns: When the prefill of the request that has just passed will have ended, as predicted;
            `NEVER` where decode load is not judged.
    """

    def __init__(
        self,
        spec: Admission,
        replicas: Sequence[Replica],
        views: Sequence[ReplicaView],
        decode_load: DecodeLoad | None = None,
    ) -> None:
        self._spec = spec
        self._decode_load = decode_load
        self.due_ns = NEVER
        self._views = views
        self._levels: dict[str | None, tuple[int, int]] = {}  # as of when, in 1e-9 tokens
        self._paces: list[tuple[int, int]] = []  # of each replica: so many ns for so many tokens
        early = spec.early_rejection
        if early is not None:
            self._paces = [_pace(early, replica) for replica in replicas]

    def add(self, replica: Replica) -> None:
        """One more replica of the entry pool; its view stands behind those that there were."""
        if self._spec.early_rejection is not None:
            self._paces.append(_pace(self._spec.early_rejection, replica))

    def judge(
        self, request: Request, able: Sequence[ReplicaView], now_ns: int
    ) -> tuple[Sequence[ReplicaView], str]:
        """Which of the replicas that can run a request may have it; if none, why.

        Args:
            request: As the entry pool sees it, before it is routed.
            able: Those that can ever run it.
            now_ns: The instant.

        Returns:
            The replicas to offer to the router and "", or none and the reason. A request that
            passes is charged.
        """
        spec = self._spec
        level = 0
        if spec.rate_limit is not None:
            level = self._level(spec.rate_limit, request, now_ns) - _cost(spec.rate_limit, request)
            if level < 0:
                return (), "rate_limited"
        able = self._with_room(able)
        if not able:
            return (), "queue_full"
        if spec.early_rejection is not None:
            able = self._in_time(spec.early_rejection, request, able)
            if not able:
                return (), "predicted_ttft"
            if self._decode_load is not None:
                soonest = min(self.predicted_ns(spec.early_rejection, request, x) for x in able)
                self.due_ns = now_ns + soonest
                if self._decode_load.refuses(request, self.due_ns, now_ns):
                    return (), "decode_load"
        if spec.rate_limit is not None:
            self._levels[request.identity.tenant] = now_ns, level
        return able, ""

    def _level(self, limit: RateLimit, request: Request, now_ns: int) -> int:
        """What the bucket of its tenant holds, in units of 1e-9 tokens."""
        tenant = request.identity.tenant
        bucket = limit.bucket if tenant is None else limit.tenants.get(tenant, limit.bucket)
        full = bucket.burst_tokens * _NANO
        if tenant not in self._levels:
            return full
        then, level = self._levels[tenant]
        return min(full, level + (now_ns - then) * bucket.tokens_per_s)

    def _with_room(self, able: Sequence[ReplicaView]) -> Sequence[ReplicaView]:
        most, most_each = self._spec.max_waiting, self._spec.max_waiting_per_replica
        if most is not None and sum(view.waiting for view in self._views) >= most:
            return ()
        if most_each is None:
            return able
        return [view for view in able if view.waiting < most_each]

    def _in_time(
        self, early: EarlyRejection, request: Request, able: Sequence[ReplicaView]
    ) -> Sequence[ReplicaView]:
        name = request.identity.request_class
        limit_ns = early.limit_ns if name is None else early.classes.get(name, early.limit_ns)
        if limit_ns is None:
            return able
        return [view for view in able if self.predicted_ns(early, request, view) <= limit_ns]

    def predicted_ns(self, early: EarlyRejection, request: Request, view: ReplicaView) -> int:
        """Predicted TTFT of a request on a replica, ns."""
        tokens = view.prefill_tokens_left + request.known_tokens
        if early.counts_cached:
            tokens -= view.cached_tokens(request)
        time_ns, of_tokens = self._paces[view.index]
        return -(-tokens * time_ns // of_tokens)


def _cost(limit: RateLimit, request: Request) -> int:
    """In units of 1e-9 tokens."""
    if limit.charge == "request":
        return _NANO
    tokens = request.prompt_tokens
    return _NANO * (tokens if limit.charge == "prompt" else tokens + request.max_tokens)


def _pace(early: EarlyRejection, replica: Replica) -> tuple[int, int]:
    if early.prefill_tokens_per_s is not None:
        return _NANO, early.prefill_tokens_per_s
    work = StepWork([(PROBE_TOKENS, 0)])
    return replica.spec.step_time.step_ns(work, 0), PROBE_TOKENS


def check(spec: Admission, snapshot_ns: int) -> None:
    """Raise `ConfigError` for what cannot be judged together."""
    early = spec.early_rejection
    if early is not None and early.counts_cached and snapshot_ns:
        raise ConfigError(
            "early_rejection.counts_cached: true looks into caches, of which a snapshot shows "
            "nothing; try router_snapshot_s: 0"
        )
    if early is not None and early.decode_load is not None and snapshot_ns:
        raise ConfigError(
            "early_rejection.decode_load: counts requests as they are, of which a snapshot shows "
            "nothing; try router_snapshot_s: 0"
        )
