"""The queue of `vtc` against a plain one: a list, and counters worked out anew each time."""

from __future__ import annotations

import random

import pytest

from policies.fair_order import VirtualTokenCounters
from sim.request import Identity, Request

P, Q = 2, 3


class Plain:
    """The rules of `VirtualTokenCounters` with lists and dicts, nothing kept but who waits."""

    def __init__(self) -> None:
        self.front: list[Request] = []
        self.waiting: list[Request] = []
        self.counters: dict[str | None, int] = {}
        self.last: list[str | None] = []

    def counter(self, request: Request) -> int:
        return self.counters.get(request.identity.tenant, 0)

    def join(self, request: Request) -> None:
        tenant = request.identity.tenant
        present = {r.identity.tenant for r in self.front + self.waiting}
        if tenant not in present:
            others = [self.counters.get(x, 0) for x in present or self.last]
            lift = min(others, default=0)
            self.counters[tenant] = max(self.counters.get(tenant, 0), lift)
        self.waiting.append(request)

    def order(self) -> list[Request]:
        left, ahead, order = list(self.waiting), dict(self.counters), list(self.front)
        while left:
            firsts = {r.identity.tenant: r for r in reversed(left)}.values()
            chosen = min(firsts, key=lambda r: (ahead.get(r.identity.tenant, 0), left.index(r)))
            left.remove(chosen)
            order.append(chosen)
            ahead[chosen.identity.tenant] = (
                ahead.get(chosen.identity.tenant, 0) + P * chosen.prompt_tokens
            )
        return order

    def leave(self, request: Request) -> None:
        (self.front if request in self.front else self.waiting).remove(request)
        self.last = [request.identity.tenant]

    def charge(self, request: Request, tokens: int) -> None:
        self.counters[request.identity.tenant] = self.counter(request) + tokens


@pytest.mark.parametrize("seed", range(60))
def test_it_serves_in_the_order_of_the_plain_rules(seed: int) -> None:
    rng = random.Random(seed)
    order = VirtualTokenCounters(prompt_weight=P, output_weight=Q)
    queue, plain = order.queue(), Plain()
    running: list[Request] = []
    for index in range(80):
        what = rng.choice(("join", "join", "admit", "emit", "preempt", "end", "cancel"))
        if what == "join":
            tenant = rng.choice(("a", "b", "c", None))
            request = Request(index, rng.randint(1, 9), 50, identity=Identity(tenant=tenant))
            order.refresh(queue, 0)
            queue.join(request)
            plain.join(request)
        elif what == "admit" and len(queue):
            order.refresh(queue, 0)
            request = queue[0]
            first = request not in plain.front
            assert queue.pop_head() is request
            order.admitted(request)
            plain.leave(request)
            if first:
                plain.charge(request, P * request.prompt_tokens)
            running.append(request)
        elif what == "cancel" and len(queue):
            request = rng.choice(list(queue))
            queue.take_out(request)
            order.gone(request)
            plain.leave(request)
        elif running:
            request = rng.choice(running)
            if what == "emit":
                tokens = rng.randint(1, 4)
                request.emitted_then += tokens
                plain.charge(request, Q * tokens)
            elif what == "preempt":
                running.remove(request)
                queue.put_back(request)
                plain.front.insert(0, request)
            else:
                running.remove(request)
                order.gone(request)
        order.refresh(queue, 0)
        assert list(queue) == plain.order()
        assert len(queue) == len(plain.order())
        assert all(order.counter(x) == plain.counters.get(x, 0) for x in ("a", "b", "c", None))
