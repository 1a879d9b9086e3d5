"""The waiting queue of a replica, first-come or in another order (rules 9, 50, 90)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from sim.request import Request

if TYPE_CHECKING:
    from sim.policy import ReplicaState


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


class ChangingOrder(FirstCome):
    """An order that changes while requests wait, by what happens on the replica.

    Each replica works on a copy. While anybody waits whom the next pass could admit, passes are
    made one by one, so that fast-forward never runs past a change. Subclass it, and override what
    the order needs; `key` may then depend on what it was told, but only change in `refresh`.

    Attributes:
        preempts: It takes requests from running by itself, in `make_way`.
        times_service: It wants to know of every step who took part, in `served`.
    """

    first_come = False
    preempts = False
    times_service = False

    def begin(self, alone_ns: Callable[[int], int]) -> None:
        """A replica starts to work; `alone_ns` says how long a step with such a prompt alone is."""

    def queue(self) -> WaitingQueue:
        """The waiting queue of the replica."""
        return WaitingQueue(self)

    def refresh(self, queue: WaitingQueue, now_ns: int) -> None:
        """Bring the order up to date, before each pass and before a request joins."""

    def admitted(self, request: Request) -> None:
        """A request has left the queue for running."""

    def loaded(self, request: Request) -> None:
        """A request whose KV was transferred has joined running."""

    def served(self, requests: Iterable[Request], length_ns: int) -> None:
        """These took part in iterations of this length in all, which are over."""

    def gone(self, request: Request) -> None:
        """A request is not outstanding here any more: it ended, moved on or was given up."""

    def make_way(self, state: ReplicaState, seats: int) -> bool:
        """Preempt for those who wait, before the policy decides; whether anybody went."""
        return False


class WaitingQueue(deque[Request]):
    """Requests that wait to be prefilled, the first to be admitted at the head.

    A deque in order of admission; `join`, `put_back`, `pop_head` and `take_out` change it.

    Attributes:
        tokens: Tokens known of those that wait.
        blocks: KV blocks that these need, each request's for itself, of `block_tokens` each.
        block_tokens: Tokens of a KV block; set it before anybody waits.
        expected_cached: Tokens of those that their routers expect to be found cached.
    """

    def __init__(self, order: QueueOrder) -> None:
        super().__init__()
        self.order = order
        self._front = 0  # preempted requests, before the sorted ones
        self._keys: list[tuple[float | tuple[float, ...], int]] = []  # of the sorted ones
        self._seq = 0
        self.tokens = self.expected_cached = self.blocks = 0
        self.block_tokens = 1

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

    def move_back(self, request: Request) -> None:
        """Its key has changed: it joins anew, at the back of those with the same."""
        self.take_out(request)
        self._count(request, 1)
        self._insert(request)

    def _count(self, request: Request, sign: int) -> None:
        """What a request knows does not change while it waits."""
        tokens = request.prompt_tokens + request.emitted_then
        self.tokens += sign * tokens
        self.blocks -= sign * (-tokens // self.block_tokens)
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
