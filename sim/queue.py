"""The waiting queue of a replica, first-come or in another order (rules 9, 50, 90)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from sim.request import Request


class QueueOrder(Protocol):
    """How a waiting queue is sorted and who is preempted.

    Attributes:
        first_come: The queue is never sorted.
        preempted_first: Preempted requests stand before all others, in the order they had.
        tail_is_victim: The last of running is preempted, whatever the order of the queue.
    """

    first_come: bool
    preempted_first: bool
    tail_is_victim: bool

    def key(self, request: Request) -> float | tuple[float, ...]:
        """Sort key, smallest first, constant while the request waits."""
        ...

    def victim(self, request: Request, later: deque[Request]) -> Request:
        """Who gives up its memory: taken out of `later`, or `request` itself."""
        ...


class FirstCome:
    """First come, first served; the last of running is the victim."""

    first_come = True
    preempted_first = True
    tail_is_victim = True

    def key(self, request: Request) -> float | tuple[float, ...]:
        """Constant: the queue keeps its order."""
        return 0.0

    def victim(self, request: Request, later: deque[Request]) -> Request:
        """The last of those not yet handled, `request` if there is none."""
        return later.pop() if later else request


class WaitingQueue(deque[Request]):
    """Requests that wait to be prefilled, the first to be admitted at the head.

    A deque in order of admission; `join`, `put_back`, `pop_head` and `take_out` change it.

    Attributes:
        tokens: Tokens known of those that wait.
        expected_cached: Tokens of those that their routers expect to be found cached.
    """

    def __init__(self, order: QueueOrder) -> None:
        super().__init__()
        self.order = order
        self._front = 0  # preempted requests, before the sorted ones
        self._keys: list[tuple[float | tuple[float, ...], int]] = []  # of the sorted ones
        self._seq = 0
        self.tokens = self.expected_cached = 0

    @property
    def head(self) -> Request:
        """The request that is next in order."""
        return self[0]

    def join(self, request: Request) -> None:
        """Let a new request wait."""
        self._count(request, 1)
        if self.order.first_come:
            self.append(request)
        else:
            self._insert(request)

    def put_back(self, request: Request) -> None:
        """Let a preempted request wait again, before those that never ran (priority: in order)."""
        self._count(request, 1)
        if self.order.preempted_first:
            self._front += 1
            self.appendleft(request)
        else:
            self._insert(request)

    def pop_head(self) -> Request:
        """Take out the head."""
        if self._front:
            self._front -= 1
        elif self._keys:
            del self._keys[0]
        request = self.popleft()
        self._count(request, -1)
        return request

    def take_out(self, request: Request) -> None:
        """Take out any request that waits here."""
        at = self.index(request)
        if at < self._front:
            self._front -= 1
        elif self._keys:
            del self._keys[at - self._front]
        del self[at]
        self._count(request, -1)

    def _count(self, request: Request, sign: int) -> None:
        """What a request knows does not change while it waits."""
        self.tokens += sign * (request.prompt_tokens + request.emitted_then)
        self.expected_cached += sign * request.expected_cached_tokens

    def rearrange(self, requests: Iterable[Request]) -> None:
        """Let those who wait, all of them, stand in this order; a first-come queue only."""
        assert self.order.first_come
        assert not self._front
        ordered = list(requests)
        self.clear()
        self.extend(ordered)

    def _insert(self, request: Request) -> None:
        self._seq += 1
        entry = (self.order.key(request), self._seq)
        at = bisect_left(self._keys, entry)
        self._keys.insert(at, entry)
        self.insert(self._front + at, request)
