"""A replica as it is now: what is over is applied first, so that readers see the present."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from sim import host_side
from sim.clock import now_ns
from sim.flight import Flight
from sim.ledger import Ledger
from sim.policy import Prefix
from sim.replica_accounts import ReplicaAccounts
from sim.replica_spec import FAILED, GONE
from sim.request import NEVER, Request
from sim.step_time import PROBE_TOKENS, StepWork, varies


class ReplicaPresent(ReplicaAccounts):
    """Knows how far the flights are, and shows routers, the series and reports the present."""

    # --- the present

    def sync(self, *, passed: bool = False) -> None:
        """Apply the iterations that are over, so that whoever reads the state sees the present.

        Args:
            passed: The passes of this instant are over. Else an iteration of a run that would start
                at this instant has not started: the pass that decides so is still to come.
        """
        if not self.in_flight:
            return
        flight, now = self.in_flight[-1], self.env.now
        over = min(bisect_right(flight.ends_ns, now), len(flight.ends_ns) - 1)
        begun = passed or not over or flight.ends_ns[over - 1] < now
        if over > flight.applied or begun > flight.begun:
            self._advance(flight, over, begun=begun)

    def _advance(self, flight: Flight, upto: int, *, begun: bool = True) -> None:
        """Apply the iterations of a run up to `upto`.

        If there is one more, and that has begun, its blocks are taken as well.
        """
        ends, group = flight.ends_ns, flight.group
        new = ends[flight.applied : upto] if flight.applied or upto < len(ends) else ends
        flight.applied = upto
        more = begun and upto < len(ends)
        had, flight.begun = flight.begun, begun
        if flight.chunks:
            flight.advance_chunks(len(new), self.kv, had=had, more=more)
        if not flight.ticks:
            return
        # The first tick ahead may have its blocks already. Of a run that was cut where it was last
        # synced, that tick never starts, and gives them back.
        started = len(new) + more
        if started != group.taken:
            self.kv.take_ticks(group, started)
        group.advance(new)
        group.taken = more

    def settle(self) -> None:
        """Bring every request up to date when the run is stopped before it ended."""
        self.sync()
        if self._ledger is not None:
            self._bill_unfinished(self._ledger)
        for request in list(self.state.running):
            if request.group is not None:
                self._leave_group(request)

    def _bill_unfinished(self, ledger: Ledger) -> None:
        """Steps that are over belong to someone, those under way give nobody anything."""
        now = now_ns(self.env)
        for flight in self.in_flight:
            ledger.bill(flight, flight.applied)
            for request, _ in flight.chunks:
                self._abandon(ledger, flight, request, now)

    def _abandon(self, ledger: Ledger, flight: Flight, request: Request, now: int) -> None:
        """The step under way of a flight gives one request nothing."""
        over, life = flight.applied, self.lives.get(request)
        if life is not None and life.account is not None:
            began = flight.ends_ns[over - 1] if over else flight.start_ns
            ledger.abandon(life.account, began, now)

    # --- the state as a whole

    @property
    def comparable(self) -> bool:
        """Whether `standing` says all that decides what happens next.

        It does not for an order or a memory that keeps accounts of its own, nor for step times that
        depend on the number of the iteration.
        """
        if self._changing is not None or varies(self._own_step_time, self.spec.step_time):
            return False
        return self._cache is None or self._cache.standing() is not None

    def standing(self) -> Hashable:
        """All that decides what happens here next, instants being counted from now (rule 84)."""
        if self.condition in (FAILED, GONE):
            return self.condition
        self.sync(passed=True)
        state, kv, now = self.state, self.kv, now_ns(self.env)
        remembered = (v for name, v in vars(self.policy).items() if name.startswith("_"))
        seated = sorted((request for request in self.lives if request.seat >= 0), key=by_seat)
        queues = (seated, state.running, state.paused, state.loaded, state.waiting)
        here = (self.lives, self.expected, self.reserved, self.kept)
        return (
            self.condition,
            kv.free_blocks,
            tuple(_indices(queue) for queue in queues),
            tuple((request.index, n) for request, n in state.swapped.items()),
            tuple((request.index, n) for request, n in state.afoot.items()),
            tuple(tuple(sorted(self._progress(r) for r in requests)) for requests in here),
            _indices(r for r, a in self.expected.items() if a.found_tokens is None),
            self._under_way(now),
            tuple(_plain(value, now) for value in remembered),
            self._timer_ns - now if self._timer_ns != NEVER else None,
            self._pace.standing(self.iterations),
            None if self._cache is None else self._cache.standing(),
            None if self.host_link is None else self.host_link.owed_ns,
        )

    def _progress(self, request: Request) -> tuple[int, ...]:
        return (
            request.index,
            request.emitted_tokens,
            request.computed_tokens,
            request.target_tokens,
            self.kv.held(request),
        )

    def _under_way(self, now: int) -> Hashable:
        """What is in flight, and for how long."""
        return tuple((flight.ends_ns[-1] - now, flight.cargo) for flight in self.in_flight)

    # --- what routers and reports see

    @property
    def as_of_ns(self) -> int:
        """The present: the numbers here are exact."""
        return now_ns(self.env)

    def serves(self, request: Request) -> bool:
        """Whether a request is outstanding here."""
        ahead = self.expected.get(request)
        if ahead is not None:
            return not ahead.given_up
        life = self.lives.get(request)
        return life is not None and life.where is self

    @property
    def outstanding_tokens(self) -> int:
        """Prompt and emitted tokens of all requests outstanding here, as of now."""
        self.sync()
        return self._known_tokens + self.state.group.context_tokens

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.state.waiting)

    @property
    def waiting_tokens(self) -> int:
        """Tokens known of the requests in the queue."""
        return self.state.waiting.tokens

    @property
    def prefill_tokens_left(self) -> int:
        """Tokens still to be prefilled here, as of now."""
        self.sync()
        queue = self.state.waiting
        begun = sum(r.target_tokens - r.computed_then for r in self._begun())
        fetching = sum(self.fetching.values()) if self.fetching else 0
        return queue.tokens - queue.expected_cached + begun + fetching

    def _begun(self) -> Iterable[Request]:
        """Requests whose prefill has begun and is not complete."""
        return self.state.prefilling

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.kv.block_tokens

    @property
    def total_blocks(self) -> int:
        """Size of the KV pool."""
        return self.kv.total_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks held or kept for a transfer, as of now."""
        self.sync()
        return self.kv.total_blocks - self.kv.free_blocks

    @property
    def needed_blocks(self) -> int:
        """Blocks used, as of now, and those that whoever holds none yet will need."""
        return (
            self.used_blocks
            + self.state.waiting.blocks
            + self._surroundings.unsent_blocks(self._this)
            + sum(self.kv.blocks_for(request.known_tokens) for request in self.fetching)
        )

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request that would be found cached here now."""
        self.sync()
        return self.kv.peek(request)

    def prefix(self, request: Request) -> Prefix:
        """What it need not compute here, if its prefix is fetched where that is worth it."""
        fetched = self._surroundings.prefix(self._this, request)
        return Prefix(self.cached_tokens(request), 0) if fetched is None else fetched

    def prefill_ns(self, tokens: int, cached: int) -> int:
        """Time to prefill `tokens` that follow `cached` ones, alone, in chunks of `PROBE_TOKENS`.

        It is the mean of the first and the last chunk's step time, times tokens / chunk, rounded
        up: the sum of all of them where the time is linear in what was computed before. A part of a
        chunk counts as that part.
        """
        if not tokens:
            return 0
        chunk = min(tokens, PROBE_TOKENS)
        model = self.spec.step_time
        first = model.step_ns(StepWork([(chunk, cached)]), 0)
        last = first
        if chunk < tokens:
            last = model.step_ns(StepWork([(chunk, cached + tokens - chunk)]), 0)
        return -(-tokens * (first + last) // (2 * chunk))

    @property
    def step_time_usage(self) -> Mapping[str, Any] | None:
        """What its step-time model counted; None if it counts nothing."""
        return None if self._notes_to is None else self._notes_to.usage()

    def decode_ns(self, requests: int, tokens: int) -> int:
        """Time of one step of so many decodes, as many as have seats, with their share of tokens.

        The context is rounded up. A pipeline counts as its step-time model says of one batch.
        """
        if not requests:
            return 0
        rows = min(requests, self.policy.seats)
        work = StepWork([], rows, -(-tokens * rows // requests))
        return self.spec.step_time.step_ns(work, 0)

    @property
    def busy_by_now_ns(self) -> int:
        """Time with a step in flight up to now."""
        if not self.in_flight:
            return self.busy_ns
        since = max(self._counted_until_ns, min(flight.start_ns for flight in self.in_flight))
        return self.busy_ns + now_ns(self.env) - since

    @property
    def _counted_until_ns(self) -> int:
        """Up to when `busy_ns` counts, where steps of several batches overlap."""
        return 0

    def gauges(self) -> tuple[int, int, int, int, int]:
        """What the series holds of it, as of now: see `sim.records.SERIES_COLUMNS`."""
        self.sync(passed=True)
        kv, state = self.kv, self.state
        used = kv.total_blocks - kv.free_blocks
        lost = self.lost_blocks_then + kv.lost_blocks
        return len(state.waiting), state.num_running, used, kv.cached_blocks, lost

    @property
    def neither_waits_nor_runs(self) -> int:
        """Requests placed here that are neither in the queue nor running, KV on its way left out.

        Their prefix is fetched, their KV has come and they are not admitted yet, or it is in host
        memory.
        """
        return len(self.fetching) + len(self.state.loaded) + len(self.state.swapped)

    def tier_facts(self) -> dict[str, int]:
        """What moved to and from host memory and a disk behind it, and what was found there."""
        return host_side.facts_of(self.host_link, self._tier)


def by_seat(request: Request) -> int:
    """Order of requests that run: that in which they took their seats."""
    return request.seat


def _indices(requests: Iterable[Request]) -> tuple[int, ...]:
    return tuple(request.index for request in requests)


def _plain(value: object, otherwise: int) -> Hashable:
    """What a policy remembers, requests by their numbers; `otherwise` for what cannot be said."""
    if isinstance(value, Request):
        return value.index
    if value is None or isinstance(value, int | float | str):
        return value
    if isinstance(value, list | tuple | deque | dict):
        items = value.items() if isinstance(value, dict) else value
        return tuple(_plain(item, otherwise) for item in items)
    return otherwise
