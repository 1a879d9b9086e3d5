"""What the end of an iteration does: tokens come out, requests leave, memory comes back."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import partial

from sim.attribution import BATCH_END
from sim.clock import now_ns
from sim.decode_group import DecodeGroup
from sim.flight import Flight
from sim.ledger import Ledger
from sim.records import PREFILLED
from sim.replica_parts import FIRST_RUN
from sim.replica_present import ReplicaPresent, by_seat
from sim.replica_spec import DRAINING
from sim.request import NEVER, Request

_LONGEST_RUN = 4096
"""Iterations computed ahead at most."""


class ReplicaEnds(ReplicaPresent):
    """Knows how a flight is cut or completed, and how requests leave."""

    # --- the end of a flight

    def notify(self) -> None:
        """Something reached the replica: it schedules at the next boundary, or now if idle."""
        if self.in_flight:
            self._cut()
        elif self._idle:
            self._bell.ring(self._turn)

    def step_prefills(self) -> None:
        """From now on iterations in which nobody decodes are made one by one (rule 84)."""
        self._steps_prefills = True
        if self.in_flight and not self.in_flight[-1].ticks:
            self._cut()

    def _cut(self) -> None:
        """Let the run in flight end at the next boundary; a boundary at this instant is past."""
        flight = self.in_flight[-1]
        ends = flight.ends_ns
        if len(ends) == 1:
            return
        now = now_ns(self.env)
        at = bisect_left(ends, now)
        self._longest_run = max(FIRST_RUN, 2 * (at + 1))
        if at + 1 >= len(ends):
            return
        del ends[at + 1 :]
        if ends[at] == now:
            self._wake = self._wake.replace(0, self._turn)
            self._complete()
        else:
            self._wake = self._wake.replace(ends[at] - now, self._step_end)

    def _cut_after(self) -> None:
        """As `_cut`, but the pass of this instant was made: what it decided takes its time."""
        if not self.in_flight:
            return
        ends, now = self.in_flight[-1].ends_ns, now_ns(self.env)
        at = bisect_right(ends, now)
        self._longest_run = max(FIRST_RUN, 2 * (at + 1))
        if at + 1 < len(ends):
            del ends[at + 1 :]
            self._wake = self._wake.replace(ends[at] - now, self._step_end)

    def _complete(self) -> None:
        """The flight is over: tokens are emitted, requests leave, their memory is freed."""
        flight = self.in_flight.pop(0)
        n = len(flight.ends_ns)
        now = flight.ends_ns[-1]
        if n == self._longest_run:
            self._longest_run = min(2 * n, _LONGEST_RUN)
        if n == 1 and not flight.applied:
            self._apply_single(flight, now)
        else:
            self._advance(flight, n)
        if self._ledger is not None:
            self._bill(self._ledger, flight, n)
        done: list[Request] = []
        if flight.ticks and flight.group.finish[0][0] <= flight.group.clock:
            self._finish_decodes(flight.group, done)
        given_up = flight.given_up
        if given_up:
            self._stop_decodes(flight, done)
        self._count(flight, n)
        if self._watched:
            self._surroundings.more_room()
        if flight.chunks:
            self._end_chunks(flight, done, now)
        if done:
            if len(done) > 1 and flight.batch.in_running_order:
                done.sort(key=by_seat)
            self._leave(done, now)
        if self._check:
            self.verify()

    def _bill(self, ledger: Ledger, flight: Flight, n: int) -> None:
        """The first `n` iterations of a flight are over: to whom their time belongs."""
        if ledger.line.newcomers and (n > 1 or self.stage_busy_ns):
            self._catch_up(ledger, flight)
        ledger.bill(flight, n)

    def _catch_up(self, ledger: Ledger, flight: Flight) -> None:
        """Those who came during a run of iterations know why they wait, as of now."""
        ledger.line.catch_up(partial(self._next_pass_ns, flight), now_ns(self.env))

    def _next_pass_ns(self, flight: Flight, instant_ns: int) -> int:
        """When the next pass would be made, if a run of iterations were stepped through."""
        ends = flight.ends_ns
        at = bisect_left(ends, instant_ns)
        return ends[at] if at < len(ends) else now_ns(self.env)

    def _apply_single(self, flight: Flight, now: int) -> None:
        """Apply a flight of one iteration: as `_advance`, but there is nothing to take ahead."""
        if flight.chunks:
            self._apply_chunks(flight)
        if flight.ticks:
            group = flight.group
            group.clock += 1
            group.ends_ns.append(now)
            group.taken = False
            if group.late:
                group.activate_late()

    def _apply_chunks(self, flight: Flight) -> None:
        for request, tokens in flight.chunks:
            request.computed_then += tokens

    def _finish_decodes(self, group: DecodeGroup, done: list[Request]) -> None:
        """Requests that emitted their last token here with the tick just completed."""
        clock, heap = group.clock, group.finish
        while heap and heap[0][0] <= clock:
            _, seq, life = heapq.heappop(heap)
            if life.finish_seq == seq and life.request is not None:
                done.append(life.request)
        if len(done) > 1:
            done.sort(key=by_seat)
        for request in done:
            self._leave_group(request)

    def _stop_decodes(self, flight: Flight, done: list[Request]) -> None:
        """Decodes whose clients gave up leave with those that finish; a last token is stored."""
        chunks = {request for request, _ in flight.chunks}
        decodes = [request for request in flight.given_up if request not in chunks]
        for request in decodes:
            request.computed_then += 1
        done += decodes
        done.sort(key=by_seat)

    def _end_chunks(self, flight: Flight, done: list[Request], now: int) -> None:
        """Prefill pieces are over. A cache that asks for it gets them one by one, in batch order.

        Whoever has emitted its last token joins `done`, or has left already where the cache asks.
        """
        given_up, commits = flight.given_up, self._commits
        for request, _ in flight.chunks:
            if given_up and request in given_up:
                del self.state.prefilling[request]
                leaves = True
            else:
                complete = request.computed_then == request.target_tokens
                complete = complete and request not in flight.goes_on
                leaves = complete and self._prefilled(request, now)
                if self._tells_chunks and not complete:
                    self._surroundings.computed(self._this, request, self.lives[request])
            if not commits:
                if leaves:
                    done.append(request)
            elif leaves:
                self._leave((request,), now)
            else:
                self.kv.commit(request, request.computed_then)

    def _prefilled(self, request: Request, now: int) -> bool:
        """A prefill is complete and emits a token. True if it was the last to be emitted here."""
        life = self.lives[request]
        del self.state.prefilling[request]
        request.emitted_then += 1
        self._known_tokens += 1
        if life.prefill_end_ns == NEVER:
            life.prefill_end_ns = now
        if self._keeps_events:
            self._recorder.event(request.index, PREFILLED, now, self.place)
        self._barren_steps = 0
        if not (self._withholds or self._late):
            self._recorder.token(request.index, now)
            life.deliver(1, now)
        if request.emitted_then == life.goal:
            return True
        self.state.join_group(request)
        return False

    # --- who leaves

    def _leave(self, done: Sequence[Request], now: int) -> None:
        """Requests that emitted all they emit here: they end or move on, and memory comes back."""
        state, late = self.state, self._late
        for request in done:
            del state.running[request]
            if not late:
                self._part(request, now)
            else:
                self.lives[request].goes_to(BATCH_END, now)
        for request in self.policy.leaving(done, state):
            if late:
                self._part(request, now)
            self._give_back(request, now)

    def _leave_early(self, given_up: Sequence[Request]) -> None:
        """Running requests whose clients gave up leave, no step being under way for them."""
        for request in given_up:
            self.state.prefilling.pop(request, None)
            self.state.paused.pop(request, None)
        if given_up:
            self.state.early = True
            self._leave(given_up, now_ns(self.env))
            self.state.early = False

    def _part(self, request: Request, now: int) -> None:
        """The client has its last token, or the last that this replica emits, or is gone."""
        life = self.lives[request]
        if life.ended:
            return
        if self._late and not self._withholds:
            self._deliver_all(request, now)
        self.sign_off(request)
        if life.delivered == life.arrival.output_tokens:
            self._surroundings.finished(life, now)

    def _deliver_all(self, request: Request, now: int) -> None:
        """The client gets, at once, all that the batch emitted for it."""
        life = self.lives[request]
        tokens = request.emitted_then - (life.delivered - life.before)
        self._recorder.token(request.index, now, tokens)
        life.deliver(tokens, now)

    def _give_back(self, request: Request, now: int) -> None:
        """Free the memory of a request that leaves, or keep it for its transfer."""
        life = self.lives[request]
        if life.ended:
            self.forget(request)
            return
        del self.lives[request]
        request.seat = -1
        self._surroundings.prefilled(self._this, request, life, now)

    def sign_off(self, request: Request) -> None:
        """The request is not outstanding here any more."""
        self.outstanding -= 1
        self._known_tokens -= request.known_tokens
        self.lives[request].where = None
        if self._changing is not None:
            self._changing.gone(request)

    def forget(self, request: Request) -> None:
        """The last of a request that has signed off: its memory comes back."""
        life = self.lives.pop(request)
        request.seat = -1
        self.kv.release(request)
        if life.ahead is not None:
            self._surroundings.left_early(life)
        if self._watched:
            self._surroundings.more_room()
        if self.condition == DRAINING:
            self._tell_if_empty()

    def _tell_if_empty(self) -> None:
        """Something has left a replica, which is gone if that was the last and it drains."""
        if self.condition == DRAINING and self.empty:
            self._surroundings.emptied(self._this)

    @property
    def empty(self) -> bool:
        """Whether nobody is here or expected, and nobody's KV is kept, copied or coming."""
        here = self.lives or self.kept or self.expected or self.guests
        return not (here or self.reserved)
