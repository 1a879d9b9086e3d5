"""The waiting queue of a replica, first-come or in another order (rules 9, 50, 90)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
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


class WaitingQueue:
    """Requests that wait to be prefilled, the first to be admitted at the head."""

    __slots__ = ("_front", "_keys", "_seq", "_sorted", "_tail", "order")

    def __init__(self, order: QueueOrder) -> None:
        self.order = order
        self._front: deque[Request] = deque()
        self._tail: deque[Request] = deque()
        self._keys: list[tuple[float | tuple[float, ...], int]] = []
        self._sorted: list[Request] = []
        self._seq = 0

    def __len__(self) -> int:
        return len(self._front) + len(self._tail) + len(self._sorted)

    def __bool__(self) -> bool:
        return bool(self._tail or self._front or self._sorted)

    def __iter__(self) -> Iterator[Request]:
        yield from self._front
        yield from self._tail
        yield from self._sorted

    @property
    def head(self) -> Request:
        """The request that is next in order."""
        if self._front:
            return self._front[0]
        return self._tail[0] if self._tail else self._sorted[0]

    def append(self, request: Request) -> None:
        """Let a new request join."""
        if self.order.first_come:
            self._tail.append(request)
        else:
            self._insert(request)

    def put_back(self, request: Request) -> None:
        """Let a preempted request wait again, before those that never ran (priority: in order)."""
        if self.order.preempted_first:
            self._front.appendleft(request)
        else:
            self._insert(request)

    def pop_head(self) -> Request:
        """Take out the head."""
        if self._front:
            return self._front.popleft()
        if self._tail:
            return self._tail.popleft()
        del self._keys[0]
        return self._sorted.pop(0)

    def remove(self, request: Request) -> None:
        """Take out any request that waits here."""
        for part in (self._front, self._tail):
            if request in part:
                part.remove(request)
                return
        at = self._sorted.index(request)
        del self._keys[at], self._sorted[at]

    def _insert(self, request: Request) -> None:
        self._seq += 1
        entry = (self.order.key(request), self._seq)
        at = bisect_left(self._keys, entry)
        insort(self._keys, entry)
        self._sorted.insert(at, request)
