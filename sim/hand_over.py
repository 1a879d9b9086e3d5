"""The hand-over of requests and of their KV, from prefill to decode replicas (rules 28 to 39)."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sim.carrier import Carrier, Nics
from sim.clock import Instant, Phase, now_ns
from sim.records import HANDED_OVER, LOADED, TRANSFER_STARTED, Ahead, Lifetime
from sim.replica import Replica
from sim.request import Request
from sim.transfer import Pull, Transfer, TransferSpec

if TYPE_CHECKING:
    from simpy.events import Event

    from sim.cluster import LiveCluster


class HandOver:
    """What goes on between the prefill and the decode pool during one run.

    Attributes:
        spec: How KV moves.
        pulls: Of each replica, requests handed to it that have reserved no blocks yet, in order.
        waiting: Requests whose prefill has ended in this instant.
        stranded: Requests whose prefill has ended and that wait for a replica to come up.
        transfers: KV on its way, by the index of the request, in order of start.
        carrier: The links that transfers share, or None where each has the bandwidth to itself.
    """

    def __init__(self, live: LiveCluster, spec: TransferSpec) -> None:
        self._live, self.spec = live, spec
        self.pulls: dict[Replica, deque[Pull]] = {}
        self.waiting: list[Pull] = []
        self.stranded: list[Pull] = []
        self._again: list[Pull] = []  # their decode replica has just failed
        self.transfers: dict[int, Transfer] = {}
        self._called = False
        self._nics = Nics(live.env, spec) if spec.shares_links and live.network is None else None
        self.carrier: Carrier | None = live.network or self._nics

    def join(self, replica: Replica) -> None:
        """One more replica, of either pool."""
        self.pulls[replica] = deque()
        if self._nics is not None:
            self._nics.join(replica)
        if self.spec.push and replica.role == "prefill":
            replica.state.onward = _Onward(replica)

    # --- before the prefill ends: push

    def looks_ahead(self, life: Lifetime) -> bool:
        """Whether the decode replica of a request is chosen when it arrives (rule 69)."""
        left = life.arrival.max_tokens - life.before
        return self.spec.push and (left > 1 or self.spec.recompute_last_token)

    def look_ahead(self, life: Lifetime) -> None:
        """Choose the decode replica of a request that will be pushed there (rule 69).

        Where none is up that could run it, it is handed over as under pull (rule 83).
        """
        decode = self._live.decode
        assert decode is not None
        request = self._live.request_of(life, at_entry=False)
        target = decode.route(request)
        if target is not None:
            life.ahead = Ahead(request, target)
            target.expect(life.ahead)

    def left_early(self, life: Lifetime) -> None:
        """A request that was to be pushed has left its prefill replica (rules 70, 76 and 83)."""
        ahead, life.ahead = life.ahead, None
        if ahead is not None:
            ahead.target.expect_no_more(ahead)
            self._live.more_room()

    # --- the prefill has ended

    def prefilled(self, replica: Replica, request: Request, life: Lifetime) -> None:
        """Phase (1): the request leaves its prefill replica, which keeps the prompt's blocks."""
        replica.keep(request, life)
        self.call()
        self.waiting.append(self.pull_of(life, replica, request))

    def pull_of(self, life: Lifetime, source: Replica, held: Request) -> Pull:
        """A request, whose KV its source keeps, as a decode replica will see it."""
        ahead = life.ahead
        later = self._live.request_of(life, at_entry=False) if ahead is None else ahead.request
        return Pull(later, life, source, held)

    def call(self) -> None:
        """There will be a phase (2d) in this instant."""
        if not self._called:
            self._called = True
            Instant(self._live.env, 0, Phase.HAND_OVER).callbacks.append(self._hand_over)

    def _hand_over(self, _: Event) -> None:
        """Phase (2d): requests whose prefill has ended choose a decode replica."""
        live = self._live
        assert live.decode is not None
        self._called = False
        pulls = [*self.stranded, *self._again, *self.waiting]
        self.stranded, self._again, self.waiting = [], [], []
        for pull in pulls:
            request, life = pull.request, pull.life
            request.emitted_then = 0 if self.spec.recompute_last_token else 1
            if life.ahead is not None:
                self._push(pull, life.ahead)
                continue
            replica = live.decode.route(request)
            if replica is None:
                self.stranded.append(pull)
                continue
            life.decode_replica = replica.place
            goal = life.arrival.output_tokens - life.before
            replica.place_request(request, life, goal)
            self.pulls[replica].append(pull)
            live.note_event(life, HANDED_OVER, replica)
            replica.notify()

    def _push(self, pull: Pull, ahead: Ahead) -> None:
        """Send the KV of a request to where its blocks are reserved."""
        life, replica = pull.life, ahead.target
        assert ahead.found_tokens is not None
        replica.place_request(pull.request, life, life.arrival.output_tokens - life.before)
        life.ahead, life.decode_replica = None, replica.place
        self._live.note_event(life, HANDED_OVER, replica)
        self._send(pull, replica, ahead.found_tokens)
        if self.spec.blocks_decode:
            replica.notify()

    # --- on a decode replica

    def pull(self, replica: Replica) -> None:
        """Reserve blocks for requests handed over, in order, and send for their KV (rule 32)."""
        pulls, policy, kv = self.pulls[replica], replica.policy, replica.kv
        if policy.pulls_need_seat and replica.state.num_running >= policy.seats:
            return
        while pulls:
            pull = pulls[0]
            tokens = policy.transfer_tokens(pull.request, replica.spec.max_model_len)
            found = kv.reserve(pull.request, tokens, keep_free=replica.watermark)
            if found is None:
                return
            pulls.popleft()
            self._send(pull, replica, found)
            if self.spec.blocks_decode:
                return

    def loading(self, replica: Replica) -> bool:
        """Whether KV is on its way to the replica."""
        return any(transfer.target is replica for transfer in self.transfers.values())

    def unsent_blocks(self, replica: Replica) -> int:
        """Blocks that the replica will need for those whose KV it has not sent for."""
        blocks_for = replica.kv.blocks_for
        return sum(blocks_for(pull.request.known_tokens) for pull in self.pulls[replica])

    def may_find_more(self, replica: Replica) -> bool:
        """Whether what runs on the replica may help the first request that waits for its KV."""
        pulls = self.pulls[replica]
        return bool(pulls) and replica.kv.may_reserve_less(pulls[0].request)

    # --- on the way

    def _send(self, pull: Pull, target: Replica, found_tokens: int) -> None:
        """Send for the KV, but that of the leading blocks in which the target found its tokens."""
        source = pull.source
        block_tokens = source.kv.block_tokens
        blocks = pull.held.held_blocks - found_tokens // block_tokens
        size = blocks * block_tokens * source.spec.kv_bytes_per_token
        now = now_ns(self._live.env)
        transfer = Transfer(pull.life, pull.request, source, pull.held, target, size, now)
        if self.carrier is None:
            transfer.end = Instant(self._live.env, self.spec.duration_ns(size), Phase.TRANSFER_END)
            transfer.end.callbacks.append(_Arrived(self, transfer))
        else:
            arrived = partial(self.transferred, transfer)
            transfer.end = self.carrier.send(source, target, pull.request.index, size, arrived)
        self.transfers[pull.request.index] = transfer
        self._live.note_event(pull.life, TRANSFER_STARTED, target)

    def transferred(self, transfer: Transfer) -> None:
        """Phase (2): the source's blocks are free, the target's request is loaded."""
        request, source, target = transfer.request, transfer.source, transfer.target
        live, now = self._live, now_ns(self._live.env)
        del self.transfers[request.index]
        source.free_held(transfer.held)
        target.sync()
        target.kv.arrived(request)
        again = self.spec.recompute_last_token
        request.target_tokens = request.prompt_tokens
        request.computed_then = request.prompt_tokens - (1 if again else 0)
        request.joined_ns = now
        live.recorder.transfers.extend(
            (request.index, source.place, target.place, transfer.start_ns, now, transfer.num_bytes)
        )
        if transfer.life.ended:  # cancelled meanwhile
            target.forget(request)
        else:
            target.state.loaded.append(request)
            live.note_event(transfer.life, LOADED, target)
        source.notify()
        target.notify()

    # --- a client gives up, a replica fails or comes up

    def cancel(self, life: Lifetime, request: Request, replica: Replica) -> bool:
        """It gives up a request that a decode replica has; False if no KV is to come any more."""
        if life.arrival.index in self.transfers:  # the transfer ends as planned
            replica.sign_off(request)
            return True
        if not not_sent(self.pulls[replica], life):
            return False
        replica.sign_off(request)
        replica.forget(request)
        replica.notify()
        return True

    def withdraw(self, life: Lifetime) -> bool:
        """It gives up a request that is in neither pool; False if none here is."""
        return not_sent(self.waiting, life) or not_sent(self.stranded, life)

    def came_up(self) -> None:
        """Some replica takes requests again: those who wait for one try, in phase (2d)."""
        if self.stranded:
            self.call()

    def lose_target(self, replica: Replica) -> None:
        """Phase (2c): whoever has KV on its way to a replica that fails, or waits for it, is handed
        over again (rule 81); whoever is still prefilled will be as under pull (rule 83)."""
        for transfer in [t for t in self.transfers.values() if t.target is replica]:
            transfer.call_off()
            del self.transfers[transfer.request.index]
            if transfer.life.ended:
                transfer.source.free_held(transfer.held)
                transfer.source.notify()
            else:
                self._hand_over_again(transfer)
            del replica.lives[transfer.request]
        for pull in self.pulls[replica]:
            self._hand_over_again(pull)
            del replica.lives[pull.request]
        self.pulls[replica].clear()
        if self.spec.push:
            self._expected_no_more(replica)

    def _expected_no_more(self, replica: Replica) -> None:
        """Nobody is pushed there any more, and no admission waits for room there (rule 83)."""
        for source in self._live.entry.replicas:
            for life in source.lives.values():
                if life.ahead is not None and life.ahead.target is replica:
                    life.ahead = None
        for pull in self.waiting:
            if pull.life.ahead is not None and pull.life.ahead.target is replica:
                pull.life.ahead = None
                pull.request = self._live.request_of(pull.life, at_entry=False)
        self._live.more_room()

    def _hand_over_again(self, before: Pull | Transfer) -> None:
        life = before.life
        life.request = life.where = None
        life.decode_replica = -1
        self._again.append(self.pull_of(life, before.source, before.held))
        self.call()

    def lose_source(self, kept_there: Mapping[Request, Lifetime]) -> list[Lifetime]:
        """Phase (2c): a replica has failed that kept KV; transfers of it are called off.

        Args:
            kept_there: Whose KV, in the order in which their prefills ended.

        Returns:
            Those of them that have not ended: they are lost.
        """
        kept = []
        for held, life in kept_there.items():
            self._call_off(life)
            self.left_early(life)
            if not life.ended:
                life.lose(held.computed_then)
                kept.append(life)
        return kept

    def _call_off(self, life: Lifetime) -> None:
        """A request between the pools loses its source: its target gives back what it reserved."""
        transfer = self.transfers.pop(life.arrival.index, None)
        if transfer is not None:
            transfer.call_off()
            self._forget(life, transfer.target)
            return
        queues = [self.waiting, self._again, self.stranded, *self.pulls.values()]
        for queue in queues:
            pull = next((pull for pull in queue if pull.life is life), None)
            if pull is not None:
                queue.remove(pull)
                break
        if life.where is not None:
            self._forget(life, life.where)

    def _forget(self, life: Lifetime, target: Replica) -> None:
        request = life.request
        assert request is not None
        target.sync()
        if not life.ended:
            target.sign_off(request)
        target.forget(request)
        target.relieved()
        target.notify()


def not_sent(pulls: deque[Pull] | list[Pull], life: Lifetime) -> bool:
    """Take out a request that waits for its transfer, and free its KV; False if it does not."""
    pull = next((pull for pull in pulls if pull.life is life), None)
    if pull is None:
        return False
    pulls.remove(pull)
    pull.source.free_held(pull.held)
    pull.source.notify()
    return True


@dataclass
class _Onward:
    """The room on decode replicas, as the policy of a prefill replica asks for it."""

    replica: Replica

    def has_room(self, request: Request) -> bool:
        """See `sim.policy.Onward`."""
        ahead = self.replica.lives[request].ahead
        if ahead is None or ahead.found_tokens is not None:
            return True
        return ahead.target.has_room(ahead.request)

    def reserve(self, request: Request) -> None:
        """See `sim.policy.Onward`."""
        ahead = self.replica.lives[request].ahead
        if ahead is not None and ahead.found_tokens is None:
            ahead.target.reserve(ahead)


@dataclass
class _Arrived:
    """Callback: the end of a transfer."""

    between: HandOver
    transfer: Transfer

    def __call__(self, _: Event) -> None:
        self.between.transferred(self.transfer)
