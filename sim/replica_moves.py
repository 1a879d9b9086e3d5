"""What a replica does for requests that move to another one of its pool while they run."""

from __future__ import annotations

from sim.attribution import LOADED, PREEMPTED
from sim.clock import now_ns
from sim.records import Lifetime
from sim.replica_traffic import ReplicaTraffic
from sim.request import Request


class ReplicaMoves(ReplicaTraffic):
    """Knows how a running request leaves, and how one that ran elsewhere is taken in."""

    # --- from here

    def end_of_step_with(self, request: Request) -> int | None:
        """When the step ends that computes the request, after which there is a pass; else None."""
        self.notify()
        self.sync()
        flight = next((x for x in self.in_flight if x.carries(request)), None)
        return None if flight is None else flight.ends_ns[-1]

    def part_with(self, request: Request) -> Lifetime:
        """A decoding request that no step computes leaves; all its blocks are kept for it."""
        life = self.lives[request]
        if request.group is not None:
            self._leave_group(request)
        del self.state.running[request]
        self.state.paused.pop(request, None)
        self.sign_off(request)
        del self.lives[request]
        request.seat = -1
        self.kept[request] = life
        self.held_for_transfer += self.kv.held(request)
        return life

    def take_back(self, request: Request) -> None:
        """A request whose blocks were kept comes back with them, as one that is loaded."""
        self.sync()
        life = self.kept.pop(request)
        self.held_for_transfer -= self.kv.held(request)
        self.place_request(request, life, life.goal)
        self.state.loaded.append(request)
        life.goes_to(LOADED, now_ns(self.env))
        self.notify()

    # --- to here

    def make_place(self, request: Request, tokens: int) -> int | None:
        """Reserve blocks above the watermark for so many tokens of a request still elsewhere.

        Args:
            request: As it will run here; it holds nothing, or what was reserved before.
            tokens: In all; more where the policy reserves the whole of a request.

        Returns:
            Leading tokens found cached here by the first reservation; None if there is no room.
        """
        self.sync()
        self.notify()
        whole = self.policy.transfer_tokens(request, self.spec.max_model_len)
        if whole != request.prompt_tokens:
            tokens = max(tokens, whole)
        if request in self.reserved:
            more = self.kv.reserve_more(request, tokens, keep_free=self.watermark)
            return 0 if more else None
        found = self.kv.reserve(request, tokens, keep_free=self.watermark)
        if found is not None:
            self.reserved[request] = None
        return found

    def clear_place(self, request: Request) -> None:
        """The request does not come: what was reserved for it is free."""
        self.sync()
        del self.reserved[request]
        self._free(request)

    def expect_kv(self, request: Request, life: Lifetime) -> None:
        """The request has stopped elsewhere: it is this replica's, and its last KV is coming."""
        del self.reserved[request]
        self.place_request(request, life, life.goal)

    def restart(self, request: Request, life: Lifetime) -> None:
        """It comes without KV, and waits before all that never ran, as if preempted here."""
        self.place_request(request, life, life.goal)
        if self._changing is not None:
            self.sync()
            self._changing.refresh(self.state.waiting, now_ns(self.env))
        self.state.waiting.put_back(request)
        life.goes_to(PREEMPTED, now_ns(self.env))
        self.notify()
