"""Contracts of the plug-ins: `Policy` (what one replica runs next) and `Router` (which replica).

A policy decides; it does not wait, keep time, draw random numbers or record metrics. It sees a
`ReplicaState` and answers with a `ScheduledBatch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from sim.batch import ScheduledBatch
from sim.decode_group import DecodeGroup
from sim.host import HostMemory
from sim.kvcache import BlockPool
from sim.queue import ChangingOrder, QueueOrder, WaitingQueue
from sim.request import Request


class Onward(Protocol):
    """Where requests go on after their prefill, if room for them is needed before it (push)."""

    def has_room(self, request: Request) -> bool:
        """Whether blocks can be reserved for the request where it goes on, or are already."""
        ...

    def reserve(self, request: Request) -> None:
        """Reserve them now, if they are not; there has to be room."""
        ...


class ReplicaState:
    """What the policy of one replica sees, and the few things it may do.

    Attributes:
        role: ``both``, ``prefill`` or ``decode``.
        kv: Memory to allocate from.
        order: Order of the queue; `changing` is the same if it changes while requests wait.
        waiting: Requests to be prefilled here, the next one at ``waiting[0]``.
        running: Admitted requests in order of admission (a dict used as an ordered set).
        prefilling: Those of `running` whose prefill is not complete, in the same order.
        away: Number of requests in batches under way on a replica with several stages: they keep
            their seats and blocks, and are neither scheduled nor preempted (rules 55 and 86).
        afoot: Of `running`, those with chunks in batches under way, and in how many, whose next
            chunk may be scheduled all the same (`sim.chunked_pipeline`); they are no victims.
        loaded: Decode role: requests whose KV has arrived and that do not run yet.
        group: The decoding requests as a whole: their number, context and needs of blocks.
        now_ns: The instant of this pass.
        wake_at_ns: A policy may set it: have a pass at this instant although nothing happens.
        preempted: Requests preempted in this pass, in order.
        early: Whoever is leaving does so between steps: their clients gave up.
        held_back: Requests that would have had to preempt themselves in this pass, and were spared
            since another batch is under way: they keep their blocks and are not scheduled (rule
            87). Who preempts admits nobody in a pass that has `preempted` or `held_back` anyone.
        found: Of the requests admitted in this pass, the tokens that were found cached.
        max_model_len: Longest prompt + max_tokens, or None.
        watermark_blocks: Blocks that the policy wants free after an admission (rule 11).
        host: Host memory for victims; None where they are recomputed.
        refused_onward: `can_go_on` has refused somebody in this pass.
        onward: Prefill role, where KV is pushed: the room on decode replicas. Decode role, where
            it prefills too: the line (`sim.local_prefill`). Else None.
    """

    def __init__(
        self,
        kv: BlockPool,
        order: QueueOrder,
        *,
        role: str = "both",
        max_model_len: int | None = None,
        watermark_blocks: int = 0,
        host: HostMemory | None = None,
        on_preempt: Callable[[Request, int, int, int | None], None] | None = None,
        on_join: Callable[[Request], None] | None = None,
        on_leave: Callable[[Request], None] | None = None,
    ) -> None:
        self.kv = kv
        self.order = order
        self.role = role
        self.max_model_len = max_model_len
        self.watermark_blocks = watermark_blocks
        self.host = host
        self.changing = order if isinstance(order, ChangingOrder) else None
        self.waiting = WaitingQueue(order) if self.changing is None else self.changing.queue()
        self.waiting.block_tokens = kv.block_tokens
        self.running: dict[Request, None] = {}
        self.prefilling: dict[Request, None] = {}
        self.away = 0
        self.afoot: dict[Request, int] = {}
        self.loaded: deque[Request] = deque()
        self.group = DecodeGroup(kv.block_tokens)
        self.paused: dict[Request, None] = {}
        self.now_ns = 0
        self.wake_at_ns: int | None = None
        self.preempted: list[Request] = []
        self.early = False
        self.held_back: list[Request] = []
        self.admitted: list[Request] = []
        self.found: dict[Request, int] = {}
        self.onward: Onward | None = None
        self.refused_onward = False
        self._on_preempt = on_preempt
        self._on_join = on_join
        self._on_leave = on_leave
        self._seats = 0

    @property
    def num_running(self) -> int:
        """Requests that have a seat, those in a batch under way included."""
        return len(self.running) + self.away

    @property
    def swapped(self) -> Mapping[Request, int]:
        """Requests swapped out and their blocks, in order of being swapped out."""
        return {} if self.host is None else self.host.swapped

    @property
    def num_decoding(self) -> int:
        """Running requests whose prefill is complete."""
        return len(self.running) - len(self.prefilling)

    def can_go_on(self, request: Request) -> bool:
        """Whether a waiting request may be admitted, as far as its decode replica goes (rule 70).

        False only where KV is pushed and there is no room for it, or where requests stand before it
        whose KV is to be pulled (`sim.local_prefill`); ask before its blocks are taken.
        """
        if self.onward is None or self.onward.has_room(request):
            return True
        self.refused_onward = True
        return False

    def admit(self, request: Request, cached_tokens: int = 0) -> None:
        """Move a waiting request to the tail of running; the caller has allocated its blocks.

        Its prefill target is fixed at its known tokens, of which `cached_tokens` need no computing.
        Where KV is pushed, its blocks on the decode replica are reserved (see `can_go_on`).
        """
        if self.onward is not None:
            self.onward.reserve(request)
        if self.waiting[0] is request:
            self.waiting.pop_head()
        else:
            self.waiting.take_out(request)
        if self.changing is not None:
            self.changing.admitted(request)
        self.admitted.append(request)
        self._seat(request)
        request.target_tokens = request.prompt_tokens + request.emitted_then
        request.computed_then = cached_tokens
        self.found[request] = cached_tokens
        self.prefilling[request] = None

    def start_loaded(self, request: Request) -> None:
        """Let a request whose KV was transferred join the tail of running."""
        self.loaded.remove(request)
        if self.changing is not None:
            self.changing.loaded(request)
        self.admitted.append(request)
        self._seat(request)
        if request.prefilling:
            self.prefilling[request] = None
        else:
            self.join_group(request)

    def send_away(
        self, chunks: Sequence[Request], *, decodes: bool, next_group: DecodeGroup
    ) -> Riders:
        """The requests of a batch leave sight, as passes are made while it is under way.

        Where that is all of running, nothing is done request by request.

        Args:
            chunks: Those that compute prefill pieces.
            decodes: Whether the decode group goes along.
            next_group: An empty one, which then takes its place.
        """
        running, prefilling = self.running, self.prefilling
        if len(chunks) + (self.group.size if decodes else 0) == len(running):
            riders = Riders(running, prefilling, self.group if decodes else None)
            self.running, self.prefilling = {}, {}
        elif decodes:
            gone = set(chunks)
            stay = [r for r in prefilling if r not in gone]
            riders = Riders(running, _in_order(chunks), self.group)
            self.prefilling = dict.fromkeys(stay)
            self.running = _in_order([*stay, *self.paused])
            for request in self.running:
                del running[request]
        else:
            riders = Riders(_in_order(chunks), _in_order(chunks), None)
            for request in chunks:
                del running[request], prefilling[request]
        if decodes:
            self.group = next_group
        self.away += len(riders.running)
        return riders

    def send_after(self, request: Request, riders: Riders) -> None:
        """One more request leaves sight, with a batch that is under way already."""
        for here, there in (
            (self.running, riders.running),
            (self.prefilling, riders.prefilling),
        ):
            del here[request]
            there[request] = None
            in_order = _in_order(there)
            there.clear()
            there.update(in_order)
        self.away += 1

    def bring_back(self, riders: Riders) -> None:
        """Their batch has left the last stage: they are running again, in their old places.

        (The decode group that went along is the replica's to merge.)
        """
        self.away -= len(riders.running)
        self.running = _merged(self.running, riders.running)
        self.prefilling = _merged(self.prefilling, riders.prefilling)

    def preempt(self, request: Request, *, to_end: bool = False) -> None:
        """Its KV is freed, and it waits.

        By recompute: at the front of the queue, and later it prefills all it knows. With host
        memory its KV moves there and it goes on from there (`return_swapped`), unless that is full
        or the request could never return (rule 20).

        Args:
            request: Running.
            to_end: To be recomputed it waits behind all others, not at the front.
        """
        first_tick = request.since
        ticks = None if request.group is None else request.group.leave(request)
        lost = request.computed_then
        self.running.pop(request)
        self.prefilling.pop(request, None)
        self.paused.pop(request, None)
        request.seat = -1
        request.preemptions += 1
        if self._swap_out(request):
            lost = 0
        else:
            self.kv.release(request, again=True)
            request.computed_then = request.target_tokens = 0
            if to_end:
                self.waiting.join(request)
            else:
                self.waiting.put_back(request)
        self.preempted.append(request)
        if self._on_preempt is not None:
            self._on_preempt(request, lost, first_tick, ticks)

    def rearrange(self, running: Sequence[Request]) -> None:
        """Give the running requests, all of them, another order; those to come stand behind."""
        for request in running:
            self._seats += 1
            request.seat = self._seats
        self.running = dict.fromkeys(running)
        self.prefilling = dict.fromkeys(r for r in running if r in self.prefilling)

    def _swap_out(self, request: Request) -> bool:
        """Move the KV of a victim to the host; False if it cannot stay there."""
        host, blocks = self.host, request.held_blocks
        if host is None or blocks + 1 > self.kv.total_blocks - self.watermark_blocks:
            return False
        if not host.take(request, blocks):
            return False
        self.kv.release(request)
        return True

    def return_swapped(self, batch: ScheduledBatch, seats: int, *, spare_blocks: int = 1) -> None:
        """Let swapped requests, in order, join the tail of running and decode in this very batch.

        Each needs a seat, and its old blocks and one more free above the watermark; the first that
        does not fit ends it. The decodes of the batch must have their blocks.

        Args:
            batch: What is decided.
            seats: Most requests that run.
            spare_blocks: Blocks beyond the old ones that must be free: 1, though it may not need
                it, or 0, for just what it needs.
        """
        if self.host is None:
            return
        swapped, kv = self.host.swapped, self.kv
        while swapped and self.num_running < seats:
            request, blocks = next(iter(swapped.items()))
            tokens = max(blocks * kv.block_tokens, request.computed_then + 1)
            need = max(blocks + spare_blocks, kv.blocks_for(tokens))
            if kv.free_blocks - need < self.watermark_blocks:
                return
            kv.allocate(request, tokens)
            self.host.give_back(request)
            self.admitted.append(request)
            self._seat(request)
            if request.prefilling:
                self.prefilling[request] = None
            else:
                self.join_group(request)
                self.group.taken = batch.all_decodes = True
            batch.repeat = 1

    def make_room(
        self, request: Request, later: deque[Request], *, spare_blocks: int = 0, tokens: int = 1
    ) -> bool:
        """Allocate `tokens` more for a running request, preempting until they fit.

        Args:
            request: Running; it computes `tokens` more tokens in this iteration.
            later: Possible victims, the last one first; victims are taken out of it. When it is
                empty, `request` itself is preempted, or held back while other batches are under
                way.
            spare_blocks: Blocks that must be free although it may not need one (vLLM's conservative
                check asks for 1).
            tokens: New tokens.

        Returns:
            Whether the request still runs and has its blocks.
        """
        total = request.computed_tokens + tokens
        need = max(0, self.kv.blocks_for(total) - self.kv.held(request))
        while self.kv.free_blocks < max(need, spare_blocks):
            victim = self._victim(request, later)
            if victim is request and (self.away or self.afoot):
                self.hold_back(request)
                return False
            self.preempt(victim)
            if victim is request:
                return False
        return self.kv.allocate(request, total)

    def _victim(self, request: Request, later: deque[Request]) -> Request:
        """Who gives up its memory: taken out of `later`, or `request` itself."""
        if not self.afoot:
            return self.order.victim(request, later)
        victim = self.order.victim(request, deque(r for r in later if r not in self.afoot))
        if victim is not request:
            later.remove(victim)
        return victim

    def hold_back(self, request: Request) -> None:
        """It stays as it is and is not scheduled in this pass, others of it being under way."""
        self.held_back.append(request)
        group = request.group
        if group is not None:
            if self._on_leave is None:
                group.leave(request)
            else:
                self._on_leave(request)
            self.paused[request] = None

    def make_room_for_decodes(self, spare_blocks: int = 0) -> None:
        """Preempt from the tail of running until each decode, in turn, has its next block.

        Half-prefilled requests that the walk meets are passed over and are no victims any more.

        Args:
            spare_blocks: Blocks that each decode must find free, needed or not (vLLM's check: 1).
        """
        later = deque(self.running)
        while later:
            request = later.popleft()
            if request.decoding:
                self.make_room(request, later, spare_blocks=spare_blocks)

    def decode_all(self, batch: ScheduledBatch, spare_blocks: int = 0) -> bool:
        """Let every decoding request compute one token, if their blocks are there.

        Takes the blocks and sets ``batch.all_decodes``; False, and nothing changed, if fewer than
        `spare_blocks` would stay free, or if some decode was paused by an earlier batch.
        """
        if self.paused:
            self.resume_all()
        if not self.group.size:
            return self.kv.free_blocks >= spare_blocks
        if not self.kv.decode_all(self.group, spare_blocks):
            return False
        batch.all_decodes = True
        return True

    def resume_all(self) -> None:
        """Let decodes that sat out an iteration take part again, but those held back just now."""
        for request in [r for r in self.paused if r not in self.held_back]:
            del self.paused[request]
            self.join_group(request)

    def join_group(self, request: Request) -> None:
        """Let a running request whose prefill is complete decode with the others."""
        self.group.join(request)
        if self._on_join is not None:
            self._on_join(request)

    def join_loaded(self, seats: int) -> None:
        """Loaded requests join running while there are seats (rule 33)."""
        while self.loaded and self.num_running < seats:
            self.start_loaded(self.loaded[0])

    def _seat(self, request: Request) -> None:
        self._seats += 1
        request.seat = self._seats
        self.running[request] = None


def _seat(request: Request) -> int:
    return request.seat


def _in_order(requests: Iterable[Request]) -> dict[Request, None]:
    return dict.fromkeys(sorted(requests, key=_seat))


def _merged(here: dict[Request, None], back: dict[Request, None]) -> dict[Request, None]:
    """Both in order of seats; one of the two is taken over where the other is empty."""
    if not here or not back:
        return here or back
    return _in_order([*here, *back])


@dataclass(frozen=True, slots=True)
class Riders:
    """Requests of a batch under way that other passes do not see (rule 55).

    Attributes:
        running: All of them, in order of seats.
        prefilling: Those whose prefill is not complete.
        group: The decoding ones among them as a whole, or None.
    """

    running: dict[Request, None]
    prefilling: dict[Request, None]
    group: DecodeGroup | None


class Policy:
    """What one replica runs next. Subclass, say the options as dataclass fields, write `schedule`.

    Class attributes:
        clairvoyant: The policy needs the true output length (`Request.oracle_tokens`).
        joins_loaded: Loaded requests join running at the start of a pass by themselves (rule 33).
        prefills_who_waits: On a decode replica, too, it admits those who wait.
        pulls_need_seat: A decode replica reserves for a transfer only while it has a free seat.
        preemptible: A queue order that preempts (`mlfq`) may do so before the policy decides.
        deliver_at_batch_end: Clients get all tokens when the batch is over.
        cuts_prompts: It may compute a prompt in chunks, over several iterations.
        alone: It runs only where replicas prefill and decode, in one stage, and sorts its queue
            itself: no prefill or decode pool, no pipeline, no queue order but first come.
    """

    clairvoyant: ClassVar[bool] = False
    cuts_prompts: ClassVar[bool] = False
    alone: ClassVar[bool] = False
    joins_loaded: ClassVar[bool] = True
    prefills_who_waits: ClassVar[bool] = True
    pulls_need_seat: ClassVar[bool] = False
    preemptible: ClassVar[bool] = False

    @property
    def seats(self) -> int:
        """Most requests that run at once."""
        return 1 << 60

    @property
    def most_chunk_tokens(self) -> int:
        """Most tokens of one prompt that an iteration computes."""
        return 1 << 60

    @property
    def deliver_at_batch_end(self) -> bool:
        """Whether clients get nothing before their whole batch is over."""
        return False

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """Decide the next iteration. An unchanged state must give the same decision again."""
        raise NotImplementedError(f"{type(self).__name__} must say what runs next: schedule(state)")

    @property
    def uses_host_link(self) -> bool:
        """Whether KV moves between the replica and its host."""
        return self.host_memory_blocks > 0

    @property
    def uses_disk(self) -> bool:
        """Whether KV moves between the host and a disk."""
        return False

    @property
    def host_memory_blocks(self) -> int:
        """Blocks of host memory to which victims are swapped out; 0 if they are recomputed."""
        return 0

    def watermark_blocks(self, total_blocks: int) -> int:
        """Blocks kept free at admission (rule 11)."""
        return 0

    def memory(self, total_blocks: int, block_tokens: int) -> BlockPool:
        """The KV memory of a replica: without sharing, unless the policy has a prefix cache."""
        return BlockPool(total_blocks, block_tokens)

    def check(self, total_blocks: int, block_tokens: int, max_model_len: int | None) -> None:
        """Raise `ConfigError` if these options cannot work on such a replica."""

    def refuse(self, request: Request, kv: BlockPool, max_model_len: int | None) -> str | None:
        """Why this replica could never run the request, or None (rules 6 to 8).

        The default is that of a policy which holds exactly the tokens stored.
        """
        if max_model_len is not None and request.prompt_tokens + request.max_tokens > max_model_len:
            return "over_model_len"
        most = kv.blocks_for(request.prompt_tokens + request.max_tokens - 1)
        if most > kv.total_blocks - self.watermark_blocks(kv.total_blocks):
            return "over_pool"
        return None

    def transfer_tokens(self, request: Request, max_model_len: int | None) -> int:
        """Tokens for which a decode replica reserves blocks before the transfer (rule 31)."""
        return request.prompt_tokens

    def leaving(self, done: Sequence[Request], state: ReplicaState) -> Sequence[Request]:
        """Of the requests that have emitted all they emit here, those that give up their memory."""
        return done


class Prefix(NamedTuple):
    """What a request need not compute on a replica.

    Attributes:
        tokens: Found in its cache, or fetched into it from another one (`sim.prefix_fetch`).
        wait_ns: How long what is fetched takes; 0 if nothing is.
    """

    tokens: int
    wait_ns: int


class ReplicaView(Protocol):
    """What a router sees of a replica, as of `as_of_ns`; numbers are worked out when asked for.

    By default that is the exact state after phases (1) and (2) of the present instant and its
    earlier arrivals (rule 27). With a snapshot interval it is what `sim.snapshot` says, except for
    `index`, `outstanding` and `serves`, which the router knows by itself.
    """

    @property
    def index(self) -> int:
        """Position in its pool."""
        ...

    @property
    def outstanding(self) -> int:
        """Requests routed there and not ended or handed over: always as of now."""
        ...

    def serves(self, request: Request) -> bool:
        """Whether a request that was routed there is outstanding there: always as of now."""
        ...

    @property
    def as_of_ns(self) -> int:
        """The instant that the other numbers belong to."""
        ...

    @property
    def outstanding_tokens(self) -> int:
        """Sum of prompt and emitted tokens of the outstanding requests."""
        ...

    @property
    def waiting(self) -> int:
        """Requests in the queue there, preempted ones included."""
        ...

    @property
    def prefill_tokens_left(self) -> int:
        """Tokens still to be prefilled there: of those that wait, and the rest of begun prompts.

        A request that waits counts with the tokens it knows, less the `expected_cached_tokens` that
        its router set; one that is being prefilled with what steps that are over left of it.
        """
        ...

    @property
    def waiting_tokens(self) -> int:
        """Tokens known of the requests in the queue: what they will hold when prefilled."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        ...

    @property
    def total_blocks(self) -> int:
        """Size of its KV pool."""
        ...

    @property
    def used_blocks(self) -> int:
        """Blocks that requests hold, or that are kept for a transfer; cached ones are free."""
        ...

    @property
    def needed_blocks(self) -> int:
        """Blocks used, and those that the requests which hold none yet will need.

        These are the requests in the queue there and, on a decode replica, those for whose KV it
        has not sent yet. Each counts with the blocks for the tokens that it knows, rounded up for
        itself, whatever is cached of them.
        """
        ...

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request that would be found cached there now; looking changes nothing.

        Raises:
            ConfigError: The state is a snapshot, which has no contents (`sim.snapshot`).
        """
        ...

    def prefix(self, request: Request) -> Prefix:
        """As `cached_tokens`, with what would be fetched from other replicas' caches."""
        ...

    def prefill_ns(self, tokens: int, cached: int) -> int:
        """Time to prefill so many tokens that follow `cached` ones, alone on the replica, ns."""
        ...

    def decode_ns(self, requests: int, tokens: int) -> int:
        """Time of one step of so many decodes, with so many tokens of context in all, ns; 0: 0."""
        ...


class Router:
    """Which replica of a pool gets a request.

    Subclass it as a dataclass, whose fields are its options, and write `pick`. It is called only
    with replicas that can run the request, at least one, in index order, and returns one of those
    very objects. Of the request a router sees what a policy sees, never the true output length, and
    its `identity`: session, turn, class, tenant and what its tokens are. Each pool of a run works
    on a copy, so that a router may keep counts and tables. What is drawn comes from the generator
    given to `start`, and nothing should be drawn where only one replica qualifies (rule 88).

    An option that is itself a router has the type `Router` and the metadata ``{"plugin":
    "router"}``; in a config it is a name, or a name with options.

    Class attributes:
        sees_contents: It asks for `ReplicaView.cached_tokens`, so it needs the exact state.
        sees_state: It asks for more than `index`, `outstanding` and `serves`, so that a snapshot
            interval makes a difference to it.
        places_prefills: It reckons with prefills alone, so it is no router of a decode pool.
        is_static: Of the replicas it asks for no more than `index`, so that its choices follow from
            the requests, in their order, and its draws (`sim.shards`).
    """

    sees_contents: ClassVar[bool] = False
    is_static: ClassVar[bool] = False
    sees_state: ClassVar[bool] = True
    places_prefills: ClassVar[bool] = False

    def check(self, replicas: int) -> None:
        """Raise `ConfigError` if these options cannot work on a pool of that many replicas."""

    def start(self, rng: np.random.Generator) -> None:
        """Begin a run: forget what an earlier one left; draw from `rng` only."""

    def pick(self, request: Request, replicas: Sequence[ReplicaView]) -> ReplicaView:
        """Choose one of `replicas`."""
        raise NotImplementedError(f"{type(self).__name__} must choose: pick(request, replicas)")
