"""What a replica counts and logs of its work, and what has to be true of its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from sim.errors import StuckError, called
from sim.flight import Flight
from sim.records import ADMITTED, ADMITTED_AGAIN, Lifetime
from sim.replica_parts import ReplicaParts
from sim.request import NEVER, Request

_PATIENCE = 1000
"""Steps without a token before anybody asks whether that can go on."""


class ReplicaAccounts(ReplicaParts):
    """Knows what was computed, found and lost, and whether that brings requests forward."""

    # --- admissions

    def _admitted(self, now: int) -> None:
        """Note the first schedule of requests that joined running in this pass."""
        for request in self.state.admitted:
            life = self.lives[request]
            if self._cache is not None and request in self.state.found:
                self._note_cached(request, life)
            if life.first_scheduled_ns == NEVER:
                life.first_scheduled_ns = now
            if self._keeps_events:
                self._recorder.event(request.index, ADMITTED, now, self.place)
            if self._ledger is not None and request.seat >= 0:
                assert life.account is not None
                self._ledger.admitted(life.account, now)
                if life.preemptions:
                    self._recorder.preempted(request.index, ADMITTED_AGAIN, now)

    def _note_cached(self, request: Request, life: Lifetime) -> None:
        """What a request found: of its prompt when it first starts, later of what it had lost."""
        found = self.state.found[request]
        self.found_tokens += found
        self.asked_tokens += request.target_tokens
        if life.first_scheduled_ns == NEVER:
            life.cached_tokens = found
        else:
            life.recomputed_tokens -= min(found, life.lost_tokens)

    def _newly_lost(self) -> int:
        """Blocks that lost their content since this was last asked."""
        cache = self._cache
        if cache is None:
            return 0
        before, self._lost_before = self._lost_before, cache.lost_blocks
        return self._lost_before - before

    # --- iterations

    def _count(self, flight: Flight, n: int) -> None:
        """Add the first `n` iterations of a flight to the totals and the logs."""
        end = flight.ends_ns[n - 1]
        if self._notes_to is not None:
            flight.note(self._notes_to, self.iterations, n)
        self.iterations += n
        if self._changing is not None and self._changing.times_service:
            decoding = [r for r in self._on_board() if flight.ticks and r.group is flight.group]
            took_part = chain(decoding, (request for request, _ in flight.chunks))
            self._changing.served(took_part, end - flight.start_ns)
        self.busy_ns += end - flight.start_ns
        if flight.prefill_tokens:
            self.prefill_busy_ns += end - flight.start_ns
        self.prefill_tokens += flight.prefill_tokens * n
        self.decode_tokens += flight.decodes * n
        rows = flight.prefill_tokens + flight.decodes
        self.iterations_by_rows[rows] = self.iterations_by_rows.get(rows, 0) + n
        if flight.ticks:
            self._barren_steps = 0
        else:
            self._look_for_progress()
        if self._keeps_steps:
            start, used = flight.start_ns, self.kv.total_blocks - self.kv.free_blocks
            self._recorder.step(
                self.place, flight, n, start, end, used, len(self.state.waiting), 1, end - start
            )
        if flight.notes is not None:
            self._recorder.decisions += flight.notes.decisions(flight, n, self.place)

    def _on_board(self) -> Iterable[Request]:
        """At least those who may have taken part in a step that is over."""
        return self.state.running

    def _log_lost(self, flight: Flight, began_ns: int, now: int) -> None:
        """A step that was lost was busy, and computed nothing (rule 81)."""
        self.busy_ns += now - began_ns
        if flight.prefill_tokens:
            self.prefill_busy_ns += now - began_ns
        flight.ends_ns.append(now)
        if self._keeps_steps:
            used = self.kv.total_blocks - self.kv.free_blocks
            waiting, busy = len(self.state.waiting), now - began_ns
            self._recorder.step(self.place, flight, 0, began_ns, now, used, waiting, 1, busy)
        if flight.notes is not None:
            entry = flight.notes.decisions(flight, len(flight.ends_ns), self.place)[-1]
            self._recorder.decisions.append(entry._replace(lost=True))

    # --- progress

    def relieved(self) -> None:
        """Memory came back from outside: whoever only recomputed for want of it may go on."""
        self._barren_steps = 0

    @property
    def at_work(self) -> bool:
        """Whether something will happen by itself: a step ends, a pass, or a policy's timeout."""
        passes = self._bell.rung or not self._idle
        return passes or bool(self.in_flight) or self._timer_ns != NEVER

    @property
    def barren(self) -> bool:
        """It has worked for long without a token."""
        return self._barren_steps > _PATIENCE

    def _look_for_progress(self) -> None:
        """Stop a run that only recomputes: more steps without a token than tokens are here."""
        self._barren_steps += 1
        if not self.barren:
            return
        tokens = sum(request.known_tokens for request in self.lives)
        if self._barren_steps <= 4 * tokens + _PATIENCE:
            return
        # Two pools: blocks held for a slow transfer can make a replica recompute for a long time.
        # So can blocks held while a prefix is copied.
        lent = self.role != "both" or self.guests
        if lent and self._surroundings.may_help(self._this):
            return
        stuck = next(iter(self.lives))
        raise StuckError(
            f"policy {called(self.policy)} on replica {self.place}: {self._barren_steps} steps "
            f"without a token; stuck at {stuck}, {self.kv.free_blocks} of "
            f"{self.kv.total_blocks} blocks free"
        )

    # --- checks

    def verify(self) -> None:
        """Assert that blocks are conserved and that queues and counters agree."""
        state, kv = self.state, self.kv
        used = sum(kv.held(request) for request in self.lives)
        used += sum(kv.held(request) for request in (*self.expected, *self.reserved))
        used += sum(kv.held(guest) for guest in self.guests)
        if self._cache is not None:
            self._cache.verify()
            used -= self._cache.shared_blocks
        assert kv.free_blocks >= 0, f"replica {self.place} gave away blocks it does not have"
        assert kv.free_blocks + used + self.held_for_transfer == kv.total_blocks, (
            f"replica {self.place}: {kv.free_blocks} free + {used} used + "
            f"{self.held_for_transfer} held for transfers is not {kv.total_blocks}"
        )
        stay = [request for request in state.running if not self.lives[request].ended]
        if state.host is not None:
            assert state.host.free_blocks + sum(state.swapped.values()) == state.host.total_blocks
        decoding = [request for request in stay if not request.prefilling]
        assert len(decoding) == state.group.size + len(state.paused)
        context = sum(r.computed_tokens + 1 for r in self.lives if r.group is not None)
        assert context == sum(group.context_tokens for group in self._groups())
        known = sum(r.known_tokens for r, life in self.lives.items() if life.where is self)
        known += sum(r.known_tokens for r, a in self.expected.items() if not a.given_up)
        assert known == self._known_tokens + context
        seated = [request for request in self.lives if request.seat >= 0]
        for request in seated:
            assert request.emitted_tokens <= self.lives[request].goal
            room = kv.held(request) * kv.block_tokens
            assert request.computed_tokens <= room, f"{request} has {room} tokens of memory"
        for flight in self.in_flight:
            self._check_chunks(flight)

    def _check_chunks(self, flight: Flight) -> None:
        """Assert that what is computed has memory."""
        for request, tokens in flight.chunks:
            last = request.computed_then + tokens
            assert request.computed_then < last <= request.target_tokens, f"bad chunk {tokens}"
            room = self.kv.held(request) * self.kv.block_tokens
            assert last <= room, f"{request}: {room} tokens of memory for a chunk of {tokens}"
