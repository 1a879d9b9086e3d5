"""The hand-over of requests and of their KV, from prefill to decode replicas (rules 28 to 39)."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from sim.attribution import QUEUE_NO_REPLICA, TRANSFER, TRANSFER_QUEUE
from sim.batches import Batches
from sim.carrier import Carrier, Nics
from sim.clock import Instant, Phase, now_ns
from sim.holds import HOLD_TIMEOUT, Holds
from sim.local_prefill import InLine, head_comes_first
from sim.records import HANDED_OVER, HOLD_ENDED, LOADED, TRANSFER_STARTED, Ahead, Lifetime
from sim.replica import Replica
from sim.request import Request
from sim.staging import Staging
from sim.streams import Streams
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
        self._live, self.env, self.spec = live, live.env, spec
        self.pulls: dict[Replica, deque[Pull]] = {}
        self.waiting: list[Pull] = []
        self.stranded: list[Pull] = []
        self._again: list[Pull] = []  # their decode replica has just failed
        self.transfers: dict[int, Transfer] = {}
        self._called = False
        self._sent = self._prefilled = 0
        self.streams = None if spec.overlap == "none" else Streams(self)
        self._batches = None if spec.batch_wait_s is None else Batches(self)
        self.staging = None if spec.staging is None else Staging(self)
        self.holds = None if spec.hold_ns is None else Holds(live.env, spec.hold_ns)
        self._nics = Nics(live.env, spec) if spec.shares_links and live.network is None else None
        self.carrier: Carrier | None = live.network or self._nics
        local = live.spec.local_prefill is not None
        self._chooses_early = spec.push or spec.decode_first or local

    @property
    def not_there(self) -> int:
        """Requests whose prefill has ended and whose KV has not come to their decode replica."""
        sent = sum(
            each.prefilled_ns is not None and not each.life.ended
            for each in self.transfers.values()
        )
        waiting = sum(map(len, self.pulls.values()))
        return sent + waiting + len(self.waiting) + len(self._again)

    def join(self, replica: Replica) -> None:
        """One more replica, of either pool."""
        self.pulls[replica] = deque()
        if self._nics is not None:
            self._nics.join(replica)
        if self.staging is not None and replica.role == "prefill":
            self.staging.join(replica)
        self.attach(replica)

    def attach(self, replica: Replica) -> None:
        """A replica is new, or new after a failure: tell its policy of what admissions wait for."""
        if self.spec.push and replica.role == "prefill":
            replica.state.onward = _Onward(replica, self.streams)
        elif self._live.prefills_anywhere and replica.role == "decode":
            replica.state.onward = InLine(self, replica)

    # --- before the prefill ends: push, or the decode replica chosen first

    def looks_ahead(self, life: Lifetime) -> bool:
        """Whether the decode replica of a request is chosen when it arrives (rule 69)."""
        spec, m = self.spec, life.arrival.max_tokens - life.before
        return self._chooses_early and (m > 1 or spec.recompute_last_token)

    def choose(self, life: Lifetime) -> Ahead | None:
        """Choose the decode replica of a request; None if none that can run it takes requests.

        Then it is handed over when its prefill has ended, as under pull (rule 83).
        """
        decode = self._live.decode
        assert decode is not None
        request = self._live.request_of(life, at_entry=False)
        if not self.looks_ahead(life) and decode.refusal(request) is not None:
            return None
        target = decode.route(request)
        return None if target is None else Ahead(request, target)

    def look_ahead(self, life: Lifetime, ahead: Ahead | None) -> None:
        """Let the decode replica of a request count it; it is chosen now if it was not before."""
        life.ahead = ahead or self.choose(life)
        if life.ahead is not None:
            life.ahead.target.expect(life.ahead)

    def left_early(self, life: Lifetime) -> None:
        """A request that was to go on has left its prefill replica and does not (70, 76, 83)."""
        if self.streams is not None:
            self.streams.called_off(life)
        ahead, life.ahead = life.ahead, None
        if ahead is not None:
            ahead.target.expect_no_more(ahead)
            if self.spec.push:
                self._live.more_room()

    # --- the prefill has ended

    def prefilled(self, replica: Replica, request: Request, life: Lifetime) -> None:
        """Phase (1): the request leaves its prefill replica, which keeps the prompt's blocks."""
        replica.keep(request, life)
        self._note_prefilled(request, life)
        if self.streams is not None and self.streams.ended(replica, request, life):
            return
        self.call()
        self._prefilled += 1
        pull = self.pull_of(life, replica, request, now_ns(self.env), self._prefilled)
        self.waiting.append(pull)
        if self.holds is not None:
            self._hold(self.holds, pull)
        if self.staging is not None:
            self.staging.prefilled(pull)

    def _note_prefilled(self, request: Request, life: Lifetime) -> None:
        """Its time belongs to its transfer from now on; its last token may be computed again."""
        if life.account is not None:
            again = request.prompt_tokens if self.spec.recompute_last_token else 0
            life.account.lose(again, TRANSFER_QUEUE, now_ns(self.env))

    def _hold(self, holds: Holds, pull: Pull) -> None:
        """The source keeps the KV for so long only (H1)."""
        over = partial(self._not_fetched, holds, pull.source, pull.held, pull.life)
        holds.begin(pull, over)

    def _not_fetched(self, holds: Holds, source: Replica, held: Request, life: Lifetime) -> None:
        """The source does not keep the KV any longer, and the request is nowhere (H3, H4)."""
        holds.end(life.arrival.index, life.delivered, goes_on=self._goes_on)
        self._call_off(life)
        source.free_held(held)
        source.notify()
        life.lose(held.computed_then, now_ns(self.env))
        self._live.note_event(life, HOLD_ENDED, source)
        self._live.changes.route_again(life, HOLD_TIMEOUT, self.spec.on_hold_timeout)

    @property
    def _goes_on(self) -> bool:
        """Whether anybody decodes or is sent for, or anything is to come from outside."""
        live = self._live
        decoding = any(x.ticks for replica in live.replicas for x in replica.in_flight)
        return decoding or bool(self.transfers) or live.changes.open

    def pull_of(
        self, life: Lifetime, source: Replica, held: Request, prefilled_ns: int, rank: int
    ) -> Pull:
        """A request, whose KV its source keeps, as a decode replica will see it."""
        ahead = life.ahead
        later = self._live.request_of(life, at_entry=False) if ahead is None else ahead.request
        return Pull(later, life, source, held, prefilled_ns, rank)

    def call(self) -> None:
        """There will be a phase (2d) in this instant."""
        if not self._called:
            self._called = True
            Instant(self.env, 0, Phase.HAND_OVER).callbacks.append(self._hand_over)

    def _hand_over(self, _: Event) -> None:
        """Phase (2d): requests whose prefill has ended choose a decode replica."""
        live = self._live
        assert live.decode is not None
        self._called = False
        if live.mixing is not None:
            live.mixing.look()
        pulls = [*self.stranded, *self._again, *self.waiting]
        self.stranded, self._again, self.waiting = [], [], []
        for pull in pulls:
            request, life = pull.request, pull.life
            if life.ahead is not None and self.spec.push:
                self._push(pull, life.ahead)
                continue
            request.emitted_then = self._emitted
            if live.decode.clairvoyant:  # who needs it may have joined since the prefill ended
                request.oracle_tokens = life.arrival.output_tokens - life.before
            ahead, life.ahead = life.ahead, None
            replica = live.decode.route(request) if ahead is None else ahead.target
            if replica is None:
                self.stranded.append(pull)
                life.goes_to(QUEUE_NO_REPLICA, now_ns(self.env))
                live.changes.ask(live.decode)
                continue
            request.joined_ns = now_ns(live.env)
            life.goes_to(TRANSFER_QUEUE, request.joined_ns)
            life.decode_replica = replica.place
            goal = life.arrival.output_tokens - life.before
            replica.place_request(request, life, goal)
            self.pulls[replica].append(pull)
            live.note_event(life, HANDED_OVER, replica)
            replica.notify()

    def _push(self, pull: Pull, ahead: Ahead) -> None:
        """Send the KV of a request to where its blocks are reserved."""
        assert ahead.found_tokens is not None
        self.at_target(pull.life, ahead)
        self._send(pull, ahead.target, ahead.found_tokens)
        if self.spec.blocks_decode:
            ahead.target.notify()

    def at_target(self, life: Lifetime, ahead: Ahead) -> None:
        """A request whose prefill has ended is at the replica that expects it (push)."""
        request, replica = ahead.request, ahead.target
        request.emitted_then = self._emitted
        replica.place_request(request, life, life.arrival.output_tokens - life.before)
        life.ahead, life.decode_replica = None, replica.place
        self._live.note_event(life, HANDED_OVER, replica)

    @property
    def _emitted(self) -> int:
        """Tokens that a request has emitted before its decode replica goes on (rules 38, 67)."""
        return 0 if self.spec.recompute_last_token else 1

    # --- on a decode replica

    def pull(self, replica: Replica) -> bool:
        """Reserve blocks for requests handed over, in order, and send for their KV (rule 32).

        Returns:
            Whether any was sent for.
        """
        pulls, policy, kv = self.pulls[replica], replica.policy, replica.kv
        before = len(pulls)
        if policy.pulls_need_seat and replica.state.num_running >= policy.seats:
            return False
        while pulls:
            pull = pulls[0]
            if head_comes_first(replica.state.waiting, pull.request):
                break
            tokens = policy.transfer_tokens(pull.request, replica.spec.max_model_len)
            found = kv.reserve(pull.request, tokens, keep_free=replica.watermark)
            if found is None:
                break
            pulls.popleft()
            self._send(pull, replica, found)
            if self.spec.blocks_decode:
                break
        return len(pulls) < before

    def loading(self, replica: Replica) -> bool:
        """Whether KV is on its way to the replica."""
        return any(transfer.target is replica for transfer in self.transfers.values())

    @property
    def in_motion(self) -> bool:
        """Whether KV is on its way or is copied, or a request is about to be handed over."""
        copying = self.staging is not None and self.staging.copying > 0
        held = self.holds is not None and self.holds.pending
        return copying or held or bool(self.transfers or self.waiting)

    def any_sent_whole(self) -> bool:
        """Whether any KV leaves its source whose prefill is over: there will be room."""
        if self.holds is not None and self.holds.pending:
            return True
        if self.staging is not None and self.staging.copying:
            return True
        return any(transfer.prefilled_ns is not None for transfer in self.transfers.values())

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
        if self.holds is not None:
            self.holds.stop(pull.held)
        block_tokens = source.kv.block_tokens
        blocks = source.kv.blocks_for(pull.held.prompt_tokens) - found_tokens // block_tokens
        size = blocks * block_tokens * source.spec.kv_bytes_per_token
        now = now_ns(self.env)
        transfer = Transfer(
            pull.life, pull.request, source, pull.held, target, size, now, pull.prefilled_ns
        )
        transfer.rank = pull.rank
        self.transfers[pull.request.index] = transfer
        if self.staging is None or not self.staging.delays(transfer):
            self.dispatch(transfer)

    def dispatch(self, transfer: Transfer) -> None:
        """Send KV that is there, at once or as soon as its batch is sent."""
        if self._batches is None:
            self.start([transfer])
        else:
            self._batches.join(transfer)
        self.note_sent(transfer)

    def note_sent(self, transfer: Transfer) -> None:
        """The request, whose prefill has ended, is on its way."""
        self._live.note_event(transfer.life, TRANSFER_STARTED, transfer.target)

    def pair_of(self, transfer: Transfer) -> Hashable:
        """What transfers have in common that can be sent as one."""
        source, target = transfer.source, transfer.target
        if self.carrier is None:
            return source, target
        return self.carrier.pair(source, target, transfer.request.index)

    def start(self, transfers: Sequence[Transfer], withheld: Fraction | None = None) -> None:
        """Send KV from now on.

        Args:
            transfers: New ones, which go as one, between the same replicas.
            withheld: Share of the bytes that waits for `release`; None: it waits for none.
        """
        now = now_ns(self.env)
        for transfer in transfers:
            self._sent += 1
            transfer.order, transfer.start_ns, transfer.withheld = self._sent, now, withheld
            if withheld is None:
                transfer.life.goes_to(TRANSFER, now)
            self.transfers.pop(transfer.request.index, None)  # in order of start
            self.transfers[transfer.request.index] = transfer
        first, size = transfers[0], sum(transfer.num_bytes for transfer in transfers)
        if self.carrier is None:
            first.due_ns = now + self.spec.duration_ns(size)
            if withheld is None:
                self._end_when_due(transfers)
            return
        arrived, index = partial(self._arrived, transfers), first.request.index
        end = self.carrier.send(first.source, first.target, index, size, arrived, withheld=withheld)
        for transfer in transfers:
            transfer.end = end

    def release(self, transfer: Transfer, share: Fraction | None = None) -> None:
        """More bytes may be sent, a latency from now.

        Args:
            transfer: Of which something is withheld.
            share: Of all its bytes; None: all that is left, and then it can end.
        """
        assert transfer.withheld is not None
        if self.carrier is None:
            left = transfer.num_bytes * transfer.withheld
            due_ns = now_ns(self.env) + self.spec.duration_ns(left)
            transfer.due_ns = max(transfer.due_ns, due_ns)
            if share is None:
                self._end_when_due([transfer])
        else:
            assert not isinstance(transfer.end, Instant | None)
            transfer.end.release(share)
        transfer.withheld = None if share is None else transfer.withheld - share

    def _end_when_due(self, transfers: Sequence[Transfer]) -> None:
        """Ends of one instant are applied in order of start (rule 1)."""
        first = transfers[0]
        end = Instant(self.env, first.due_ns - now_ns(self.env), Phase.TRANSFER_END + first.order)
        end.callbacks.append(lambda _: self._arrived(transfers))
        for transfer in transfers:
            transfer.end = end

    def _arrived(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            self.transferred(transfer)

    def _row(self, transfer: Transfer, now: int) -> tuple[int, ...]:
        """What is recorded of a transfer that ends now: `sim.records.TRANSFER_COLUMNS`."""
        source, target, size = transfer.source, transfer.target, transfer.num_bytes
        assert transfer.prefilled_ns is not None
        if self.carrier is None:
            alone_ns = self.spec.duration_ns(size)
        else:
            alone_ns = self.carrier.alone_ns(source, target, transfer.request.index, size)
        places = (transfer.request.index, source.place, target.place)
        return (*places, transfer.start_ns, now, size, transfer.prefilled_ns, alone_ns)

    def transferred(self, transfer: Transfer) -> None:
        """Phase (2): the source's blocks are free, the target's request is loaded."""
        request, source, target = transfer.request, transfer.source, transfer.target
        live = self._live
        del self.transfers[request.index]
        if self.staging is None or not self.staging.transferred(transfer):
            source.free_held(transfer.held)
        live.recorder.transfers.extend(self._row(transfer, now_ns(self.env)))
        last = 1 if self.spec.recompute_last_token else 0
        if target.load(request, request.prompt_tokens - last):  # else cancelled meanwhile
            live.note_event(transfer.life, LOADED, target)
        source.notify()
        if self.spec.push and target.kv.has_cache:  # what has come can be found (rule 44)
            live.more_room()

    # --- the state as a whole

    def standing(self) -> Hashable:
        """All that decides what happens next between the pools, counted from now (rule 84)."""
        pulls = tuple(tuple(p.request.index for p in queue) for queue in self.pulls.values())
        stranded = tuple(pull.request.index for pull in self.stranded)
        held = None if self.holds is None else self.holds.standing()
        return pulls, stranded, held, tuple(map(self._standing_of, self.transfers.values()))

    def _standing_of(self, transfer: Transfer) -> Hashable:
        now, end = now_ns(self.env), transfer.end
        if end is None or isinstance(end, Instant):
            staged = end is None and transfer.withheld is None
            rest: Hashable = now if staged else max(0, transfer.due_ns - now)
        else:
            rest = end.standing()
        places = transfer.request.index, transfer.source.place, transfer.target.place
        return places, transfer.prefilled_ns is None, transfer.withheld, rest

    # --- a client gives up, a replica fails or comes up

    def cancel(self, life: Lifetime, request: Request, replica: Replica) -> bool:
        """It gives up a request that a decode replica has; False if no KV is to come any more."""
        transfer = self.transfers.get(life.arrival.index)
        if transfer is not None and transfer.prefilled_ns is not None:  # it ends as planned
            replica.sign_off(request)
            return True
        if not self._not_sent(self.pulls[replica], life):
            return False
        replica.sign_off(request)
        replica.forget(request)
        replica.notify()
        return True

    def withdraw(self, life: Lifetime) -> bool:
        """It gives up a request that is in neither pool; False if none here is."""
        return self._not_sent(self.waiting, life) or self._not_sent(self.stranded, life)

    def _not_sent(self, pulls: deque[Pull] | list[Pull], life: Lifetime) -> bool:
        """Take out a request that waits for its transfer, and free its KV; False if it does not."""
        pull = next((pull for pull in pulls if pull.life is life), None)
        if pull is None:
            return False
        pulls.remove(pull)
        if self.holds is not None:
            self.holds.stop(pull.held)
        if self.staging is None or not self.staging.given_up(pull):
            pull.source.free_held(pull.held)
            pull.source.notify()
        return True

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
            if transfer.prefilled_ns is None:  # its prefill goes on, without a target (rule 83)
                assert transfer.life.ahead is not None
                transfer.life.ahead.stream = None
                continue
            if transfer.life.ended:
                transfer.source.free_held(transfer.held)
                transfer.source.notify()
            else:
                replica.sign_off(transfer.request)
                self._hand_over_again(transfer)
            replica.forget(transfer.request)
        for pull in self.pulls[replica]:
            replica.sign_off(pull.request)
            self._hand_over_again(pull)
            replica.forget(pull.request)
        self.pulls[replica].clear()
        if replica.expected:
            self._expected_no_more(replica)

    def _expected_no_more(self, replica: Replica) -> None:
        """Nobody goes on there any more, and no admission waits for room there (rule 83)."""
        for source in self._live.entry.replicas:
            for life in source.lives.values():
                if life.ahead is not None and life.ahead.target is replica:
                    life.ahead = None
        for pull in self.waiting:
            if pull.life.ahead is not None and pull.life.ahead.target is replica:
                pull.life.ahead = None
                pull.request = self._live.request_of(pull.life, at_entry=False)
        if self.spec.push:
            self._live.more_room()

    def _hand_over_again(self, before: Pull | Transfer) -> None:
        life = before.life
        life.request = life.where = None
        life.goes_to(TRANSFER_QUEUE, now_ns(self.env))
        life.decode_replica = -1
        assert before.prefilled_ns is not None
        source, held = before.source, before.held
        again = self.pull_of(life, source, held, before.prefilled_ns, before.rank)
        holds = self.holds
        if holds is not None and isinstance(before, Transfer):
            if holds.is_over(again.prefilled_ns):
                self._not_fetched(holds, source, held, life)
                return
            self._hold(holds, again)
        self._again.append(again)
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
            if self.holds is not None:
                self.holds.stop(held)
            self._call_off(life)
            self.left_early(life)
            if not life.ended:
                life.lose(held.computed_then, now_ns(self.env))
                kept.append(life)
        return kept

    def _call_off(self, life: Lifetime) -> None:
        """A request between the pools loses its source: its target gives back what it reserved."""
        transfer = self.transfers.pop(life.arrival.index, None)
        if transfer is not None:
            transfer.call_off()
            transfer.target.turn_back(transfer.request)
            return
        queues = [self.waiting, self._again, self.stranded, *self.pulls.values()]
        for queue in queues:
            pull = next((pull for pull in queue if pull.life is life), None)
            if pull is not None:
                queue.remove(pull)
                break
        if life.where is not None:
            assert life.request is not None
            life.where.turn_back(life.request)


@dataclass
class _Onward:
    """The room on decode replicas, as the policy of a prefill replica asks for it."""

    replica: Replica
    streams: Streams | None

    def has_room(self, request: Request) -> bool:
        """See `sim.policy.Onward`."""
        ahead = self.replica.lives[request].ahead
        if ahead is None or ahead.found_tokens is not None:
            return True
        return ahead.target.has_room(ahead.request)

    def reserve(self, request: Request) -> None:
        """See `sim.policy.Onward`."""
        life = self.replica.lives[request]
        ahead = life.ahead
        if ahead is None:
            return
        if ahead.found_tokens is None:
            ahead.target.reserve(ahead)
        if self.streams is not None and ahead.stream is None:
            self.streams.admitted(self.replica, request, life)
