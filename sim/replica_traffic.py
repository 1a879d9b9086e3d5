"""Whatever reaches a replica from outside: requests, pushes, cancellations, its failure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from sim.attribution import LOADED
from sim.clock import now_ns
from sim.errors import ConfigError
from sim.flight import Flight
from sim.ledger import Ledger
from sim.pace import Pace
from sim.records import Ahead, Lifetime
from sim.replica_ends import ReplicaEnds
from sim.replica_present import by_seat
from sim.replica_spec import DRAINING
from sim.request import NEVER, Request
from sim.startup import WarmUp


class ReplicaTraffic(ReplicaEnds):
    """Knows who comes, who is expected, and who is taken out before the end."""

    # --- who comes

    def place_request(self, request: Request, life: Lifetime, goal: int) -> None:
        """Take charge of a request that leaves once it has emitted `goal` tokens in all."""
        life.request, life.where, life.goal = request, self._this, goal
        self.lives[request] = life
        if request in self.expected:  # it counts already, with what it knew before its prefill
            del self.expected[request]
            self._known_tokens += request.emitted_then
            return
        self.outstanding += 1
        self._known_tokens += request.prompt_tokens + request.emitted_then

    def enqueue(self, request: Request) -> None:
        """A request joins the waiting queue."""
        self._join_queue(request)
        if not (self.in_flight and self._is_deaf(self.in_flight[-1])):
            self.notify()

    def _join_queue(self, request: Request) -> None:
        if self._changing is not None:
            self.sync()
            self._changing.refresh(self.state.waiting, now_ns(self.env))
        self.state.waiting.join(request)
        if self._ledger is not None:
            account = self.lives[request].account
            assert account is not None
            self._ledger.queued(account, now_ns(self.env))

    def _is_deaf(self, flight: Flight) -> bool:
        """Whether who joins the queue now changes nothing while the decision holds."""
        return flight.batch.deaf and not self._makes_way

    # --- prefixes that are copied between caches

    def lodge(self, guest: Request, tokens: int) -> int | None:
        """Phase (3): hold blocks for a prefix that is copied from or to here.

        Returns:
            Tokens of it that are here; None, and nothing is held, if there are too few blocks.
        """
        self.notify()
        self.sync()
        found = self.kv.reserve(guest, tokens)
        if found is not None:
            self.guests[guest] = None
        return found

    def evict(self, guest: Request) -> None:
        """They are held no longer."""
        self.sync()
        del self.guests[guest]
        self._free(guest)

    def _free(self, request: Request) -> None:
        """Blocks that were held for a request that is not here are free."""
        self.kv.release(request)
        self.relieved()
        self.notify()
        self._tell_if_empty()

    # --- who is pushed here

    def expect(self, ahead: Ahead) -> None:
        """A request will be pushed here; it counts from now on."""
        self.expected[ahead.request] = ahead
        self.outstanding += 1
        self._known_tokens += ahead.request.known_tokens
        if self._watched and self._cache is not None and self.in_flight:
            self._cut()

    def gives_up(self, ahead: Ahead) -> None:
        """It ended before its prefill did, and counts no more."""
        ahead.given_up = True
        self.outstanding -= 1
        self._known_tokens -= ahead.request.known_tokens

    def expect_no_more(self, ahead: Ahead) -> None:
        """What was reserved for a request that will not come is free."""
        if ahead.request not in self.expected:  # the replica has failed since
            return
        if not ahead.given_up:
            self.gives_up(ahead)
        del self.expected[ahead.request]
        if ahead.found_tokens is None:
            self._tell_if_empty()
        else:
            self.sync()
            self._free(ahead.request)

    def reserve(self, ahead: Ahead) -> None:
        """Phase (4), the passes of this pool being over: take blocks for what will be pushed."""
        request = ahead.request
        self.sync(passed=True)
        tokens = self.policy.transfer_tokens(request, self.spec.max_model_len)
        ahead.found_tokens = self.kv.reserve(request, tokens, keep_free=self.watermark)
        if ahead.found_tokens is None:
            raise ConfigError(
                f"transfer.start: push: a policy admitted {request} although its decode replica "
                "has no room; a policy has to ask ReplicaState.can_go_on before it admits"
            )
        self._cut_after()

    def has_room(self, request: Request) -> bool:
        """Whether `reserve` may be called now (rule 70)."""
        if self.state.waiting:
            return False
        self.sync(passed=True)
        tokens = self.policy.transfer_tokens(request, self.spec.max_model_len)
        return self.kv.has_room(request, tokens, keep_free=self.watermark)

    def _may_find_more(self) -> bool:
        """Whether what runs here may help somebody for whom there is no room yet."""
        if self._watched and any(
            a.found_tokens is None and not a.given_up for a in self.expected.values()
        ):
            return True
        return self._surroundings.may_find_more(self._this)

    # --- who goes before the end

    def drop(self, request: Request) -> None:
        """A request that is not in flight leaves, whatever it was doing; its memory comes back."""
        state = self.state
        if request.group is not None:
            self._leave_group(request)
        if request.seat >= 0:
            del state.running[request]
            state.prefilling.pop(request, None)
            state.paused.pop(request, None)
        else:
            self._take_out(request)
        self.sign_off(request)
        self.forget(request)

    def give_up(self, request: Request) -> None:
        """Its client is gone: it counts no more here, and leaves once no step computes it.

        A step under way keeps its length and emits no token for it; its memory and its seat are
        free when that has left the last stage (rules 53 and 75). Under static batching its memory
        comes back with that of the batch (rule 77).
        """
        self.relieved()
        self.notify()
        self.sync()
        flight = next((x for x in reversed(self.in_flight) if x.carries(request)), None)
        if self._ledger is not None:
            self._settle_leaver(self._ledger, request, flight)
        if request.group is not None:
            self._leave_group(request)
        self.sign_off(request)
        self.lives[request].ended = True
        if flight is not None:
            flight.given_up += (request,)
        elif request in self.state.running:
            self._leave_early((request,))
        elif request.seat < 0:  # a row of a batch that waits for its end has a seat
            self._take_out(request)
            self.forget(request)

    def _settle_leaver(self, ledger: Ledger, request: Request, flight: Flight | None) -> None:
        """A client gives up: what its account needs to know, which is closed in this instant."""
        now = now_ns(self.env)
        if self.in_flight:
            self._catch_up(ledger, self.in_flight[-1])
        if flight is not None and request.group is None:
            ledger.bill(flight, flight.applied)
            self._abandon(ledger, flight, request, now)

    def _take_out(self, request: Request) -> None:
        """A request without a seat leaves the queue in which it is, if it is in one."""
        state = self.state
        if request in state.loaded:
            state.loaded.remove(request)
        elif state.host is not None and request in state.host.swapped:
            state.host.forget(request)
        elif request in self.fetching:
            del self.fetching[request]
        elif request in state.waiting:
            state.waiting.take_out(request)

    def keep(self, request: Request, life: Lifetime) -> None:
        """A request that leaves has its prompt's blocks kept for its transfer (rule 30)."""
        self.kept[request] = life
        self.held_for_transfer += self.kv.shrink(request, request.prompt_tokens)

    def free_held(self, request: Request) -> None:
        """Blocks of a request that has left, kept for its transfer, are free."""
        self.sync()
        del self.kept[request]
        again = self._surroundings.may_return
        self.held_for_transfer -= self.kv.release(request, again=again)
        self.relieved()
        if self.condition == DRAINING:
            self._tell_if_empty()

    def turn_back(self, request: Request) -> None:
        """A request whose KV will not come leaves, and gives back what it had reserved."""
        self.sync()
        if not self.lives[request].ended:
            self.sign_off(request)
        self.forget(request)
        self.relieved()
        self.notify()

    def load(self, request: Request, stored_tokens: int) -> bool:
        """Its KV is here: it joins running at the next pass (rule 33), if it has not ended.

        Args:
            request: It is this replica's already.
            stored_tokens: Whose keys and values have come.

        Returns:
            Whether it has not ended.
        """
        self.sync()
        self.kv.arrived(request)
        request.target_tokens = request.prompt_tokens
        request.computed_then = stored_tokens
        request.joined_ns = now_ns(self.env)
        self.lives[request].goes_to(LOADED, request.joined_ns)
        stays = not self.lives[request].ended
        if stays:
            self.state.loaded.append(request)
        else:
            self.forget(request)
        self.notify()
        return stays

    # --- its pace

    def slow_down(self, factor: Fraction) -> None:
        """Phase (2c): iterations that start from now on take so much longer (`sim.pace`)."""
        self._set_pace(replace(self._pace, factor=factor))
        if self.in_flight:
            self.notify()

    def begin_warm_up(self, warm_up: WarmUp) -> None:
        """It has started: its first iterations are slower (`sim.startup`)."""
        if warm_up:
            self._set_pace(Pace(warm_up=warm_up, first=self.iterations))

    # --- what is lost

    def void(self) -> None:
        """Lose the iteration in flight: those that are over stand, the rest never happened.

        The requests of the lost iteration stay as they were when it began; the replica schedules
        anew in this instant.
        """
        if not self.in_flight:
            return
        self.sync()
        flight = self.in_flight.pop()
        del flight.ends_ns[flight.applied :]
        self._advance(flight, flight.applied)
        if self._ledger is not None:
            self._bill_lost(self._ledger, flight)
        self._leave_early(flight.given_up)
        if flight.applied:
            self._count(flight, flight.applied)
        self._wake = self._wake.replace(0, self._turn)

    def fail(self) -> tuple[list[Lifetime], list[Lifetime]]:
        """Lose the step in flight and all that is here; be as new, and empty (rule 54).

        The cluster has taken out before whoever waits for KV or has it on its way.

        Returns:
            Those who were running, in order, then loaded; and those who waited, in order, swapped
            ones first. Whoever had ended is in neither.
        """
        self._lose_step()
        for request in list(self.state.running):
            if request.group is not None:
                self._leave_group(request)
        seated = sorted((request for request in self.lives if request.seat >= 0), key=by_seat)
        begun = self._lost_lives([*seated, *self.state.loaded])
        waiting = self._lost_lives([*self.state.swapped, *self.state.waiting, *self.fetching])
        moved_bytes = 0 if self.host_link is None else self.host_link.moved_bytes
        self.lost_blocks_then += self.kv.lost_blocks
        self._timer.call_off()
        self._timer_ns = NEVER
        self._set_pace(Pace())
        self._set_up()
        if self.host_link is not None:
            self.host_link.moved_bytes = moved_bytes
        return begun, waiting

    def _bill_lost(self, ledger: Ledger, flight: Flight) -> None:
        """The iteration under way of a flight never happened; those that are over did."""
        over, now = flight.applied, now_ns(self.env)
        began = flight.ends_ns[over - 1] if over else flight.start_ns
        self._catch_up(ledger, flight)
        ledger.bill(flight, over)
        ledger.lose(flight, began, now)

    def _lost_lives(self, requests: Iterable[Request]) -> list[Lifetime]:
        """What becomes of requests whose replica fails: they are nowhere, and their KV is lost."""
        lives = []
        for request in requests:
            life = self.lives[request]
            if not life.ended:
                life.lose(request.computed_then, now_ns(self.env))
                lives.append(life)
        return lives

    def _lose_step(self) -> None:
        """Iterations that are over stand; the one in flight is logged as lost, and ends now."""
        if not self.in_flight:
            return
        self.sync()
        flight, now = self.in_flight.pop(), now_ns(self.env)
        over = flight.applied
        del flight.ends_ns[over:]
        if over:
            self._count(flight, over)
        if self._ledger is not None:
            self._bill_lost(self._ledger, flight)
        began = flight.ends_ns[-1] if over else flight.start_ns
        if began < now:
            self._log_lost(flight, began, now)
        self._wake = self._wake.replace(0, self._turn)
