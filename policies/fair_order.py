"""`vtc`: the tenant that has had the least is served next."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import SupportsIndex

from sim.queue import ChangingOrder, WaitingQueue
from sim.request import Request

Tenant = str | None


@dataclass
class VirtualTokenCounters(ChangingOrder):
    """Fair shares of tenants: least virtual tokens first, first come within a tenant.

    Each queue (so each replica) has a counter c of every tenant, an integer, 0 at first; requests
    without a tenant are those of one more.

    - *Charge.* When a request is admitted from the queue for the first time, its tenant's counter
      grows by `prompt_weight` x p, whatever of the prompt is cached. For each token that a request
      so admitted emits, the first included, it grows by `output_weight`, at the end of the step.
      What is computed again after a preemption is charged no second time.
    - *Order.* The next request is that of the tenant with the least counter among those who have a
      request waiting, ties to the tenant whose first waiting request joined first; of a tenant, the
      one that joined first. Within a pass each admission counts before the next is chosen.
    - *Lift.* When a request joins and its tenant u has none waiting: if others wait, c_u becomes
      at least the least counter of the tenants who wait, so that an absence earns no credit. If
      nobody waits, c_u becomes at least the counter of the tenant whose request left the queue
      last, if any has. Counters are first brought up to the tokens emitted by then.
    - Preempted requests wait in front of all others (rule 50) and count as waiting of their tenant;
      the last of running is the victim: the scheme itself does not preempt.

    Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2 (VTC)
    and its weights 1 and 2. There the counters are those of one server, output tokens are charged
    by decode steps, and nobody is preempted.

    Args:
        prompt_weight: Virtual tokens of a prompt token (w_p).
        output_weight: Virtual tokens of an emitted one (w_q).
    """

    prompt_weight: int = 1
    output_weight: int = 2
    counters: dict[Tenant, int] = field(default_factory=dict, init=False, repr=False)
    last_left: tuple[Tenant, ...] = field(default=(), init=False, repr=False)
    _charged: dict[Request, int] = field(default_factory=dict, init=False, repr=False)

    def queue(self) -> WaitingQueue:
        """One queue of each tenant."""
        return TenantQueue(self)

    def counter(self, tenant: Tenant) -> int:
        """Virtual tokens that a tenant has had here."""
        return self.counters.get(tenant, 0)

    def refresh(self, queue: WaitingQueue, now_ns: int) -> None:
        """Charge what was emitted since."""
        changed = False
        for request, charged in self._charged.items():
            emitted = request.emitted_tokens
            if emitted > charged:
                self._charge_output(request, emitted - charged)
                self._charged[request] = emitted
                changed = True
        if changed and isinstance(queue, TenantQueue):
            queue.forget_head()

    def admitted(self, request: Request) -> None:
        """Charge the prompt, once."""
        if request not in self._charged:
            tenant = request.identity.tenant
            cost = self.prompt_weight * request.prompt_tokens
            self.counters[tenant] = self.counter(tenant) + cost
            self._charged[request] = request.emitted_tokens

    def gone(self, request: Request) -> None:
        """Charge the last tokens."""
        charged = self._charged.pop(request, None)
        if charged is not None:
            self._charge_output(request, request.emitted_tokens - charged)

    def _charge_output(self, request: Request, tokens: int) -> None:
        tenant = request.identity.tenant
        self.counters[tenant] = self.counter(tenant) + self.output_weight * tokens

    def lift(self, tenant: Tenant, waiting: list[Tenant]) -> None:
        """A tenant of whom nobody waited has a request again; `waiting`: those who have."""
        if waiting:
            least = min(map(self.counter, waiting))
        elif self.last_left:
            least = self.counter(self.last_left[0])
        else:
            return
        self.counters[tenant] = max(self.counter(tenant), least)


class TenantQueue(WaitingQueue):
    """The preempted ones in order, then a first-come queue of each tenant.

    The underlying deque stays empty; reading goes through the methods below, in order of service.
    """

    def __init__(self, order: VirtualTokenCounters) -> None:
        super().__init__(order)
        self._counters = order
        self._preempted: deque[Request] = deque()
        self._tenants: dict[Tenant, deque[tuple[int, Request]]] = {}
        self._waiting_of: dict[Tenant, int] = {}
        self._size = 0
        self._next: Request | None = None

    def forget_head(self) -> None:
        """Counters have changed: who is next is worked out anew."""
        self._next = None

    def join(self, request: Request) -> None:
        """Let a new request wait behind those of its tenant."""
        tenant = request.identity.tenant
        if tenant not in self._waiting_of:
            self._counters.lift(tenant, list(self._waiting_of))
        self._seq += 1
        self._tenants.setdefault(tenant, deque()).append((self._seq, request))
        self._note(request, 1)

    def put_back(self, request: Request) -> None:
        """Let a preempted request wait before all others."""
        self._preempted.appendleft(request)
        self._note(request, 1)

    def pop_head(self) -> Request:
        """Take out the head."""
        request = self.head
        self.take_out(request)
        return request

    def take_out(self, request: Request) -> None:
        """Take out any request that waits here."""
        if request in self._preempted:
            self._preempted.remove(request)
        else:
            tenant = request.identity.tenant
            mine = self._tenants[tenant]
            if mine[0][1] is request:
                mine.popleft()
            else:
                mine.remove(next(entry for entry in mine if entry[1] is request))
            if not mine:
                del self._tenants[tenant]
        self._counters.last_left = (request.identity.tenant,)
        self._note(request, -1)

    def _note(self, request: Request, sign: int) -> None:
        tenant = request.identity.tenant
        self._size += sign
        self._waiting_of[tenant] = self._waiting_of.get(tenant, 0) + sign
        if not self._waiting_of[tenant]:
            del self._waiting_of[tenant]
        self._count(request, sign)
        self._next = None

    @property
    def head(self) -> Request:
        """The request that is next in order."""
        if self._next is None:
            self._next = self._preempted[0] if self._preempted else self._of_least()
        return self._next

    def _of_least(self) -> Request:
        """The first request of the tenant with the least counter."""
        counter = self._counters.counter
        queues = self._tenants.items()
        return min((counter(tenant), *mine[0]) for tenant, mine in queues)[2]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        """In order of service, as if each were admitted before the next is chosen."""
        yield from self._preempted
        left = {tenant: iter(tuple(mine)) for tenant, mine in self._tenants.items()}
        heap = [
            (self._counters.counter(tenant), *next(entries)) for tenant, entries in left.items()
        ]
        heapq.heapify(heap)
        while heap:
            counter, _, request = heapq.heappop(heap)
            yield request
            following = next(left[request.identity.tenant], None)
            if following is not None:
                cost = self._counters.prompt_weight * request.prompt_tokens
                heapq.heappush(heap, (counter + cost, *following))

    def __getitem__(self, at: SupportsIndex) -> Request:  # type: ignore[override]
        position = at.__index__()
        if position == 0 and self._size:
            return self.head
        if position < 0:
            position += self._size
        if not 0 <= position < self._size:
            raise IndexError(f"{position} of {self._size} waiting requests")
        return next(islice(self, position, None))

    def __contains__(self, request: object) -> bool:
        return any(request is each for each in self)
