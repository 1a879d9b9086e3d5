"""One model instance, which asks its policy, sleeps for the step and applies it, by SimPy events.

A *flight* is a decided batch under way: one iteration, or a run of iterations in which the same
decision would be made again. A run sleeps once. Whatever reaches the replica cuts the run at the
next boundary between iterations, so that tokens' times are those of stepping through all of them.

`Replica` is a chain of classes, each of which uses those before it: `ReplicaParts` (what it is made
of), `ReplicaAccounts` (what it counts), `ReplicaPresent` (what is over by now), `ReplicaEnds` (how
iterations end), `ReplicaTraffic` (what reaches it), `ReplicaMoves` (who moves while running), and
the iteration loop here.
"""

from __future__ import annotations

import heapq
from itertools import accumulate

from simpy.events import Event

from sim.batch import Cause, ScheduledBatch
from sim.clock import Instant, more_now, now_ns
from sim.errors import called
from sim.flight import DecisionNotes, Flight
from sim.ledger import Ledger
from sim.policy import ReplicaState
from sim.queue import ChangingOrder
from sim.records import Decision
from sim.replica_moves import ReplicaMoves
from sim.request import NEVER, Request
from sim.step_time import StepWork


class Replica(ReplicaMoves):
    """One model instance and its iteration loop; its attributes are those of `ReplicaParts`."""

    def _takes_turn(self, event: Event) -> None:
        self._idle = False
        if self._pass():
            self._wake.callbacks.append(self._step_over)
        else:
            self._rest()

    def _step_over(self, event: Event) -> None:
        """The flight has ended: it is applied, and the next pass is made."""
        if self.in_flight:  # else the run was cut at this very instant, or voided
            self._complete()
            if more_now(self.env):  # other phases of this instant come first
                self._wake = Instant(self.env, 0, self._turn)
                self._wake.callbacks.append(self._takes_turn)
                return
        self._takes_turn(event)

    def _pass(self) -> bool:
        """One scheduling pass; True if a step started."""
        state = self.state
        if self._cache is not None:
            self._newly_lost()
        now = state.now_ns = now_ns(self.env)
        if self._watched:
            self._surroundings.more_room()
        if self._loads_alone and self._loads_first(state, now):
            if self._ledger is not None:
                self._ledger.waits_for_kv(now)
            return False
        batch = self._decide(state, now)
        runs = batch.all_decodes or bool(batch.tokens)
        if state.admitted:
            self._admitted(now)
        if self._ledger is not None:
            self._note_pass(self._ledger, batch, now)
        flight = self._board(batch, now) if runs else None
        if self.role == "decode" and not self._loads_alone:
            self._pull(state)
        if state.wake_at_ns is not None:
            self._set_timer(state.wake_at_ns)
        elif self._timer_ns != NEVER:
            self._timer.call_off()
            self._timer_ns = NEVER
        if self._tier is not None:
            self._tier.move()
        if flight is not None:
            self._launch(flight)
        else:
            if self._tier is not None:
                self._tier.link.end_pass()
            if self._has_sent:
                Instant(self.env, 0, self._turn).callbacks.append(self._pass_again)
        return flight is not None

    def _note_pass(self, ledger: Ledger, batch: ScheduledBatch, now: int) -> None:
        """Those who wait know why, as of this pass."""
        held = self.state.refused_onward or (self.role == "prefill" and self.held_for_transfer > 0)
        cause = batch.cause or batch.deaf_cause
        if cause != ledger.cause or held or ledger.held or ledger.line.newcomers:
            ledger.passed(cause, now, held=held)

    def _pull(self, state: ReplicaState) -> None:
        """Send for KV: while nobody waits, or as far as the line goes (`sim.local_prefill`)."""
        self._has_sent = False
        if state.swapped or (state.waiting and not self._prefills_too):
            return
        self._has_sent = self._surroundings.pull(self) and bool(state.waiting)

    def _pass_again(self, _: Event) -> None:
        if self._idle:
            self._bell.ring(self._turn)

    def _loads_first(self, state: ReplicaState, now: int) -> bool:
        """Where transfers block decoding: whether one is under way, or starts now (rule 92)."""
        if self._surroundings.loading(self):
            return True
        if self._waiting_share is not None:
            return self._accepts(state, self._waiting_share)
        if state.loaded and self.policy.joins_loaded:
            state.admitted, state.found = [], {}
            state.join_loaded(self.policy.seats)
            self._admitted(now)
        self._pull(state)
        return self._surroundings.loading(self)

    def _accepts(self, state: ReplicaState, share: float) -> bool:
        """Whether one more request is sent for, those who have come not running yet."""
        waiting = sum(self.kv.blocks_for(request.prompt_tokens) for request in state.loaded)
        if waiting >= share * self.kv.total_blocks:
            return False
        if state.waiting and not self._prefills_too:
            return False
        return self._surroundings.pull(self)

    def _decide(self, state: ReplicaState, now: int) -> ScheduledBatch:
        """Ask the policy, again while it only preempts (rule 2)."""
        policy = self.policy
        state.wake_at_ns = None
        while True:
            state.refused_onward = False
            if state.preempted:
                state.preempted = []
            if state.admitted:
                state.admitted, state.found = [], {}
            if state.loaded and policy.joins_loaded:
                state.join_loaded(policy.seats)
            if self._changing is not None and self._made_way(self._changing, now):
                continue
            batch = policy.schedule(state)
            if batch.host_bytes:
                assert self.host_link is not None
                self.host_link.move(batch.host_bytes)
            if batch.all_decodes or batch.tokens or not state.preempted:
                return batch
            self._repeated_pass(now)

    def _repeated_pass(self, now: int) -> None:
        """A pass that only preempted: it takes no time and is made again."""
        if self._tier is not None:
            self._tier.move()
        if self.host_link is not None:
            self.host_link.end_pass()
        if self._keeps_decisions:
            gone = [request.index for request in self.state.preempted]
            lost = self._newly_lost()
            entry = Decision(self.place, now, now, {}, gone, self.kv.free_blocks, {}, lost)
            self._recorder.decisions.append(entry)
        self._look_for_progress()

    def _set_timer(self, when_ns: int) -> None:
        """The policy wants a pass at this instant although nothing may happen."""
        if self._timer_ns != when_ns:
            self._timer.call_off()
            self._timer_ns = when_ns
            self._timer = Instant(self.env, when_ns - now_ns(self.env), self._turn)
            self._timer.callbacks.append(self._timer_rings)

    def _timer_rings(self, _: Event) -> None:
        self._timer_ns = NEVER
        if self._idle:
            self._bell.ring(self._turn)

    # --- flights

    def _board(self, batch: ScheduledBatch, now: int) -> Flight:
        """Bring the decode group in line with the batch, and add up what it computes."""
        group, ticks = self.state.group, batch.all_decodes
        chunks: list[tuple[Request, int]] = []
        pieces: list[tuple[int, int]] = []
        prefill_tokens = 0
        if batch.tokens:
            if not ticks and self.state.num_decoding:
                ticks = self._select_decodes(batch)
            for item in batch.tokens.items():
                request, tokens = item
                if request.computed_then < request.target_tokens:
                    chunks.append(item)
                    pieces.append((tokens, request.computed_then))
                    prefill_tokens += tokens
        decodes, context = (group.size, group.context_tokens) if ticks else (0, 0)
        spread = group.context_spread if ticks and self._asks_spread else 0
        if batch.padding is None:
            work = StepWork(pieces, decodes, context)
            work.context_spread = spread
        else:
            work = batch.padding.work(pieces, decodes, context, spread)
        return Flight(
            batch, now, chunks, decodes, work, prefill_tokens, group, pieces, context, spread
        )

    def _select_decodes(self, batch: ScheduledBatch) -> bool:
        """Let just the decodes that the batch lists take part in the next tick; False if none."""
        state, tokens = self.state, batch.tokens
        listed = [request for request in tokens if request.decoding]
        if not listed:
            return False
        if len(listed) < state.num_decoding:
            for request in state.running:
                if request.group is not None and request not in tokens:
                    self._leave_group(request)
                    state.paused[request] = None
        for request in listed:
            if request.group is None:
                del state.paused[request]
                state.join_group(request)
        if not self.kv.decode_all(state.group):
            name = called(self.policy)
            raise AssertionError(f"policy {name} scheduled decodes without allocating their blocks")
        return True

    def _launch(self, flight: Flight) -> None:
        """Ask the step-time model how long the flight takes and go to sleep."""
        model, start, link = self.step_time, flight.start_ns, self.host_link
        n = self._steady_iterations(flight) if self._fast_forward else 1
        flight.model, flight.number = model, self.iterations
        if link is not None and link.end_pass():
            length = model.step_ns(flight.work, self.iterations)
            ends = [start + link.lengthened(length)]
            flight.copied_ns = ends[0] - start - length
        elif n == 1:
            ends = [start + model.step_ns(flight.work, self.iterations)]
        else:
            if flight.chunks:
                lengths = flight.chunk_steps_ns(model, n, self.iterations)
            else:
                steps = model.steps_ns(flight.work, n, self.iterations)
                lengths = steps if isinstance(steps, list) else steps.tolist()
            ends = list(accumulate(lengths, initial=start))
            del ends[0]
        flight.ends_ns = ends
        if self._keeps_decisions:
            flight.notes = DecisionNotes(flight, self.state, self._newly_lost())
        self.in_flight.append(flight)
        self._wake = Instant(self.env, ends[-1] - start, self._step_end)
        if self._check:
            self.verify()

    def _steady_iterations(self, flight: Flight) -> int:
        """For how many iterations the decision holds: nobody finishes, and blocks suffice."""
        batch, group = flight.batch, flight.group
        n = batch.chunk_repeat if flight.chunks else batch.repeat
        if self._changing is not None and self.state.waiting and not self._no_turn(batch):
            return 1
        # A pass that preempted is not made again: its victims now wait, and may be admitted next.
        if n == 1 or self.state.preempted:
            return 1
        if flight.chunks and (self._tells_chunks or (self._steps_prefills and not flight.ticks)):
            return 1
        if self.role == "decode" and self._cache and self._may_find_more():
            return 1
        # Whoever waited was in the way of a transfer that the next pass may start first.
        if self._loads_alone and self.state.admitted and self._surroundings.awaits(self):
            return 1
        if self._has_sent:  # whoever waited behind it may be next
            return 1
        if n > self._longest_run:
            n = self._longest_run
        have = self.kv.free_blocks - batch.spare_blocks
        if self._tier is not None:  # what is lost is written, which lengthens the step
            have = min(have, self._tier.cache.blocks_without_content())
        if flight.ticks:
            heap = group.finish
            while heap[0][1] != heap[0][2].finish_seq:
                heapq.heappop(heap)
            last = heap[0][0] - group.clock
            if n > last:
                n = last
            if group.late:
                n = group.steady_ticks(n)
            if n == 1:
                return 1
            have += group.needs[group.clock % group.block_tokens]  # those of the first are taken
        if not flight.chunks:
            return max(1, group.ticks_within(have, n))
        while n > 1 and flight.blocks_needed(n, self.kv) > have:
            n //= 2
        return n

    # --- an order that changes

    def _made_way(self, order: ChangingOrder, now: int) -> bool:
        """A pass of the order's own before that of the policy, logged if it preempted (rule 2)."""
        state = self.state
        if not state.waiting:
            return False
        order.refresh(state.waiting, now)
        if not (self._makes_way and order.make_way(state, self.policy.seats)):
            return False
        self._repeated_pass(now)
        return True

    def _no_turn(self, batch: ScheduledBatch) -> bool:
        """Whether those who wait have to, whatever their order."""
        return not self._makes_way and batch.cause in (Cause.NO_SEAT, Cause.BATCH_RUNNING)
