"""Pools of replicas, routing, and the hand-over of KV from prefill to decode replicas."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from simpy import Environment
from simpy.events import Event

from sim.admission import Admission, Gate
from sim.admission import check as check_admission
from sim.changes import Changes, OnFailure
from sim.clock import Instant, Phase, now_ns
from sim.errors import ConfigError
from sim.links import Flow, Link, SharedLinks
from sim.policy import ReplicaView, Router
from sim.records import (
    CANCELLED,
    ENDED,
    FAILED,
    FINISHED,
    HANDED_OVER,
    LOADED,
    QUEUED,
    REJECTED,
    TRANSFER_STARTED,
    Ahead,
    Lifetime,
    Recorder,
    ReplicaInfo,
)
from sim.replica import Replica
from sim.replica_spec import UP, ReplicaSpec
from sim.request import Arrival, Identity, Request
from sim.snapshot import Snapshots, StaleView

_TELL_EVERY = 256
"""Ends between two reports of progress."""

_DECODE_RANK = 1 << 24
"""More than a pool has replicas: those of the decode pool come later in a phase."""

_PLAIN = Arrival(0, 1, 1, 1)[5:]
"""What follows the index of an arrival that has nothing beside lengths."""


class Predictor(Protocol):
    """Guesses the output length of requests (rule 57)."""

    def start(self, rng: np.random.Generator) -> None:
        """Begin a run; draws come from `rng`."""
        ...

    def predict(self, arrival: Arrival) -> int:
        """Predicted output tokens, at least 1. The same for a request whenever it is asked."""
        ...


@dataclass(frozen=True)
class PoolSpec:
    """Replicas with one role.

    Attributes:
        name: Used in outputs.
        replicas: One spec per replica.
        router: Chooses the replica of this pool for a request.
        snapshot_ns: The router sees the state at multiples of this (`sim.snapshot`); 0: as it is.
    """

    name: str
    replicas: Sequence[ReplicaSpec]
    router: Router
    snapshot_ns: int = 0

    def __post_init__(self) -> None:
        if not self.replicas:
            raise ConfigError(f"pool {self.name} has no replicas; give at least 1")
        self.router.check(len(self.replicas))
        if self.snapshot_ns < 0:
            raise ConfigError(f"router_snapshot_s: {self.snapshot_ns} ns: expected at least 0")
        if self.snapshot_ns and self.router.sees_contents:
            raise ConfigError(
                f"router_snapshot_s: router {type(self.router).__name__} looks into caches, of "
                "which a snapshot shows nothing; try router_snapshot_s: 0, or router prefix-aware, "
                "which keeps an index of its own"
            )


@dataclass(frozen=True)
class TransferSpec:
    """How KV gets from a prefill to a decode replica, in whole blocks.

    Differences from the engines. vLLM with NIXL corresponds to `recompute_last_token`. It holds the
    source's blocks until the reader's notice or a timeout, and admits loaded requests in its
    waiting phase, in queue order, where ours join at the start of a pass (rule 33); there as here a
    pull that does not fit blocks later ones, and one already loading does not. DistServe's decode
    side swaps out on shortage and bounds accepted prompts by 5 % of the pool, where ours goes by
    the replica's own policy and its free blocks (rules 32 and 34); it also polls every 3 ms when
    idle, and accepts before the next batch takes its blocks. splitwise-sim's overlapped variants
    use ten times the bandwidth.

    Attributes:
        bandwidth_bytes_per_s: Bytes per second that each transfer has to itself; where links are
            shared, that of each direction of a replica's NIC which does not say its own.
        latency_s: Seconds before the first byte.
        recompute_last_token: The decode side computes the last prompt token again and its first
            step emits token 1, as in vLLM with NIXL (rule 38).
        shares_links: Transfers share the NICs of their replicas max-min fairly (`sim.links`): each
            crosses the source's outgoing and the target's incoming direction (rules 39 and 63).
        push: The decode replica is chosen on arrival, its blocks are reserved when the prefill is
            admitted, which waits for that, and the KV is sent when the prefill ends (rules 39, 69,
            70 and 76). Else the decode replica pulls (rule 32).
        blocks_decode: A decode replica to which KV is on its way makes no scheduling pass. Else it
            sends for the KV of one request, after those loaded have joined, before its policy
            decides; if that was sent, the policy decides nothing (rule 92, as in DistServe).
    """

    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    recompute_last_token: bool = False
    shares_links: bool = False
    blocks_decode: bool = False
    push: bool = False

    def duration_ns(self, num_bytes: int) -> int:
        """Length of a transfer, ns, rounded half to even, at least 1."""
        return max(1, round((self.latency_s + num_bytes / self.bandwidth_bytes_per_s) * 1e9))

    @property
    def latency_ns(self) -> int:
        """The latency alone, as shared links count it: rounded half to even (rule 65)."""
        return round(self.latency_s * 1e9)


@dataclass(frozen=True)
class Cluster:
    """One pool in which every replica prefills and decodes, or a prefill and a decode pool.

    Attributes:
        entry: The pool that arrivals are routed to.
        decode: The decode pool, or None where replicas are colocated.
        transfer: How KV moves; given just when `decode` is.
        predictor: Guesses output lengths for queue orders, or None.
        admission: Who is turned away at the entry, or None.
        on_failure: Whether requests of a replica that fails are routed again, or fail with it.
    """

    entry: PoolSpec
    decode: PoolSpec | None = None
    transfer: TransferSpec | None = None
    predictor: Predictor | None = None
    admission: Admission | None = None
    on_failure: OnFailure = "reroute"

    def __post_init__(self) -> None:
        if self.admission is not None:
            check_admission(self.admission, self.entry.snapshot_ns)
        if (self.decode is None) != (self.transfer is None):
            raise ConfigError("a decode pool and its transfer go together: give both or neither")
        if self.transfer is None or not self.transfer.shares_links:
            _refuse_nics(self.entry, self.decode)


def _refuse_nics(*pools: PoolSpec | None) -> None:
    """Without shared links a NIC's own bandwidth would silently do nothing."""
    for pool in filter(None, pools):
        for replica in pool.replicas:
            if replica.nic_bytes_per_s is not None:
                raise ConfigError(
                    f"pool {pool.name}: nic_bytes_per_s {replica.nic_bytes_per_s:g}: counts where "
                    "transfers share links only; set transfer.sharing: max-min, or leave it out"
                )


def named_generator(seed: int, purpose: str) -> np.random.Generator:
    """The random generator of one purpose, derived from the seed of the experiment."""
    return np.random.default_rng([seed, crc32(purpose.encode())])


@dataclass
class Transfer:
    """KV on its way; its end can be moved or called off.

    Attributes:
        life: Whose KV.
        request: The request as the decode replica sees it.
        source: Prefill replica, which holds the blocks of `held` until the end.
        held: The request as the prefill replica saw it.
        target: Decode replica, which has reserved blocks.
        num_bytes: Whole blocks of the source, but those that the target has cached.
        start_ns: When it was sent.
        end: The wake-up at its end; on shared links, its flow.
    """

    life: Lifetime
    request: Request
    source: Replica
    held: Request
    target: Replica
    num_bytes: int
    start_ns: int
    end: Instant | Flow | None = None

    def move_end(self, delay_ns: int) -> None:
        """Let it end `delay_ns` from now instead; only where it has its link to itself."""
        assert isinstance(self.end, Instant), "on shared links the links say when it ends"
        self.end = self.end.replace(delay_ns, Phase.TRANSFER_END)

    def call_off(self) -> None:
        """It never ends. What both sides hold for it is the caller's to give back."""
        assert self.end is not None
        self.end.call_off()


class Pool:
    """A pool at work: its replicas and its router.

    Attributes:
        snapshots: What the router sees instead of the replicas themselves, or None.
    """

    def __init__(
        self,
        spec: PoolSpec,
        replicas: list[Replica],
        rng: np.random.Generator,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.spec = spec
        self.replicas = replicas
        self.snapshots = snapshots
        self.router = copy.deepcopy(spec.router)
        self.router.start(rng)
        self.missing = 0  # replicas that take no requests
        # Replicas of one spec accept the same requests, so one of them speaks for all.
        first = replicas[0].spec
        self.uniform = all(replica.spec is first for replica in replicas)
        self.clairvoyant = any(replica.policy.clairvoyant for replica in replicas)

    def refusal(self, probe: Request) -> str | None:
        """Why no replica here could ever run the request (the first one's reason), or None."""
        first = _refusal(self.replicas[0], probe)
        if first is None or self.uniform:
            return first
        rest = (_refusal(replica, probe) for replica in self.replicas[1:])
        return None if None in rest else first

    @property
    def views(self) -> Sequence[ReplicaView]:
        """The replicas as routers see them."""
        return self.replicas if self.snapshots is None else self.snapshots.views

    def able(self, request: Request) -> Sequence[ReplicaView]:
        """Those that can run the request and take requests (rule 78)."""
        views = self.views
        if self.uniform and not self.missing:
            return views
        able = [
            replica.index
            for replica in self.replicas
            if replica.condition == UP and _refusal(replica, request) is None
        ]
        return [views[index] for index in able]

    def route(
        self, request: Request, offered: Sequence[ReplicaView] | None = None
    ) -> Replica | None:
        """Let the router choose; None if nobody who could run the request takes any now.

        Args:
            request: To be placed.
            offered: Views to choose from, at least one; None: of all that can run the request.
        """
        views = offered or self.able(request)
        if not views:
            return None
        chosen = self.router.pick(request, views)
        if isinstance(chosen, Replica):
            return chosen
        if isinstance(chosen, StaleView):
            chosen.place(request)
            return chosen.replica
        name = type(self.router).__name__
        raise ConfigError(f"router {name} returned {chosen!r}, not a replica")


def _refusal(replica: Replica, probe: Request) -> str | None:
    return replica.policy.refuse(probe, replica.kv, replica.spec.max_model_len)


@dataclass
class Pull:
    """A request handed to a decode replica that has not reserved blocks for it yet."""

    request: Request
    life: Lifetime
    source: Replica
    held: Request


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


class LiveCluster:
    """A cluster during one run: places arrivals, moves KV, ends requests."""

    def __init__(
        self,
        env: Environment,
        spec: Cluster,
        recorder: Recorder,
        *,
        seed: int = 0,
        fast_forward: bool = True,
        check: bool = False,
        on_end: Callable[[int, int], Iterable[Arrival]] | None = None,
        on_failed: Callable[[int, int], Iterable[Arrival]] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.env = env
        self.spec = spec
        self.replicas: list[Replica] = []
        self.live: dict[int, Lifetime] = {}
        self.arrived = self.ended = 0
        self.impatient = 0
        self.recorder = recorder
        self._on_end = on_end
        self._on_failed = on_failed
        self._progress = progress
        self.pulls: dict[Replica, deque[Pull]] = {}
        self.hand_overs: list[Pull] = []
        self._handing_over = False
        self._of_role: dict[str, dict[str, bool]] = {}
        self.changes = Changes(self)
        self._seed = seed
        self.transfers: dict[int, Transfer] = {}
        self._snapshots: list[Snapshots] = []
        self._switches: dict[str, Any] = {
            "fast_forward": fast_forward,
            "check": check,
            "seed": seed,
        }
        self._nics: dict[Replica, tuple[Link, Link]] = {}
        self._links: SharedLinks | None = None
        self._pushes = spec.transfer is not None and spec.transfer.push
        self._one_by_one = spec.transfer is not None and spec.transfer.blocks_decode
        if spec.transfer is not None and spec.transfer.shares_links:
            self._links = SharedLinks(env)
        again = spec.transfer is not None and spec.transfer.recompute_last_token
        self._again = again
        role = "both" if spec.decode is None else "prefill"
        self.entry = self._build(spec.entry, role, "router", withholds_first_token=again)
        self.decode = (
            None
            if spec.decode is None
            else self._build(spec.decode, "decode", "decode_router", loads_alone=self._one_by_one)
        )
        self._gate: Gate | None = None
        if spec.admission is not None:
            self._gate = Gate(spec.admission, self.entry.replicas, self.entry.views)
        self.predictor = copy.deepcopy(spec.predictor)
        if self.predictor is not None:
            self.predictor.start(named_generator(seed, "predictor"))

    def _build(self, pool: PoolSpec, role: str, purpose: str, **more: bool) -> Pool:
        self._of_role[role] = more
        replicas = [
            self._replica(replica_spec, role, index)
            for index, replica_spec in enumerate(pool.replicas)
        ]
        snapshots = None
        if pool.snapshot_ns:
            snapshots = Snapshots(self.env, pool.snapshot_ns, replicas, self._in_motion)
            self._snapshots.append(snapshots)
        return Pool(pool, replicas, named_generator(self._seed, purpose), snapshots)

    def _replica(self, spec: ReplicaSpec, role: str, index: int) -> Replica:
        """One more replica; within a phase, the prefill pool goes before the decode pool."""
        # A run of a pipeline cannot be cut where blocks are taken from outside.
        step_by_step = {"fast_forward": False} if self._pushes and spec.kind is not None else {}
        replica = (spec.kind or Replica)(
            self.env,
            spec,
            self,
            self.recorder,
            place=len(self.replicas),
            index=index,
            role=role,
            rank=index + (_DECODE_RANK if role == "decode" else 0),
            passes_late=self._pushes and role == "prefill",
            watched=self._pushes and role == "decode",
            **self._switches | self._of_role[role] | step_by_step,
        )
        if self._pushes and role == "prefill":
            replica.state.onward = _Onward(replica)
        self.replicas.append(replica)
        self.pulls[replica] = deque()
        if self._links is not None and self.spec.transfer is not None:
            rate = spec.nic_bytes_per_s or self.spec.transfer.bandwidth_bytes_per_s
            self._nics[replica] = Link(rate), Link(rate)
        return replica

    def add(self, pool: Pool, like: Replica) -> Replica:
        """One more replica, made as another of the pool, joins it (rule 82)."""
        replica = self._replica(like.spec, like.role, len(pool.replicas))
        pool.replicas.append(replica)
        if pool.snapshots is not None:
            pool.snapshots.add(replica)
        if pool is self.entry and self._gate is not None:
            self._gate.add(replica)
        return replica

    def _in_motion(self) -> bool:
        """Whether something goes on by itself, without an arrival, a cancellation or an event."""
        if self.transfers or self.hand_overs:
            return True
        return any(replica.at_work for replica in self.replicas)

    def stir(self) -> None:
        """Something is about to change from outside: an arrival, an end, an event."""
        for snapshots in self._snapshots:
            snapshots.wake()

    # --- arrivals

    def arrive(self, arrival: Arrival) -> None:
        """Phase (3): reject, or route and let the request join a queue."""
        life = Lifetime(arrival, self.arrived)
        self.arrived += 1
        if self._snapshots:
            self.stir()
        patience_ns = arrival.cancel_after_ns
        if patience_ns is not None and patience_ns <= 0:
            self.end(life, CANCELLED, "", now_ns(self.env))
            return
        o = arrival.output_tokens
        reason: str | None = "empty"
        if arrival.prompt_tokens >= 1 and o >= 1:
            if o > arrival.max_tokens:
                raise ConfigError(
                    f"request {arrival.index}: output_tokens {o} is over its max_tokens "
                    f"{arrival.max_tokens}; cut it first"
                )
            request = self.request_of(life, at_entry=True)
            reason = self.refusal(life, request)
        if reason is not None:
            self.end(life, REJECTED, reason, now_ns(self.env))
            return
        offered = None
        if self._gate is not None:
            able = self.entry.able(request)
            if able:  # else it is not judged, and waits for a replica (`sim.changes`)
                offered, reason = self._gate.judge(request, able, now_ns(self.env))
            if reason:
                self.end(life, REJECTED, reason, now_ns(self.env))
                return
        if self.predictor is not None:
            self._predict(life, request)
        self.live[arrival.index] = life
        if not self.place(life, request, offered):
            self.changes.at_router.append(life)
        if patience_ns is not None:
            self.impatient += 1
            life.cancellation = Instant(self.env, patience_ns, Phase.CANCEL + arrival.index)
            life.cancellation.callbacks.append(_GivesUp(self, life))

    def _look_ahead(self, life: Lifetime) -> None:
        """Choose the decode replica of a request that will be pushed there (rule 69)."""
        assert self.decode is not None
        request = self.request_of(life, at_entry=False)
        target = self.decode.route(request)
        assert target is not None, "without changes every replica is up"
        life.ahead = Ahead(request, target)
        target.expect(life.ahead)

    def left_early(self, life: Lifetime) -> None:
        """A request that was to be pushed has left its prefill replica and ends (rules 70, 76)."""
        ahead, life.ahead = life.ahead, None
        if ahead is not None:
            ahead.target.expect_no_more(ahead)
            self.more_room()

    def more_room(self) -> None:
        """Something has changed on a decode replica for which prefill replicas may wait (push)."""
        for replica in self.entry.replicas:
            if replica.state.waiting:
                replica.notify()

    def place(
        self, life: Lifetime, request: Request, offered: Sequence[ReplicaView] | None = None
    ) -> bool:
        """Route a request, which joins a queue; False if nobody takes it now."""
        replica = self.entry.route(request, offered)
        if replica is None:
            return False
        life.replica = replica.place
        goal = 1 if self.decode else life.arrival.output_tokens - life.before
        replica.place_request(request, life, goal)
        self.note_event(life, QUEUED, replica)
        if self._pushes and (life.arrival.max_tokens > 1 or self._again):
            self._look_ahead(life)
        replica.enqueue(request)
        return True

    def refusal(self, life: Lifetime, request: Request) -> str | None:
        """Why no replica can run the request, in the order of rule 36, or None."""
        reason = self.entry.refusal(request)
        if reason is None and self.decode is not None:
            arrival, before = life.arrival, life.before
            m = arrival.max_tokens - before
            if m > 1 or self._again:
                o = arrival.output_tokens - before if self.decode.clairvoyant else None
                probe = Request(-1, arrival.prompt_tokens + before, m, oracle_tokens=o)
                reason = self.decode.refusal(probe)
        return reason

    def _predict(self, life: Lifetime, request: Request) -> None:
        """Guess the output length; on a prefill replica it is one token (rule 90)."""
        assert self.predictor is not None
        guess = self.predictor.predict(life.arrival)
        life.predicted_tokens = guess
        request.predicted_tokens = guess if self.decode is None else 1

    def request_of(self, life: Lifetime, *, at_entry: bool) -> Request:
        """The request as the policies of one pool see it.

        What its client had when its replica failed is part of the prompt (rule 80).
        """
        arrival, before = life.arrival, life.before
        pool = self.entry if at_entry else self.decode
        assert pool is not None
        first_only = at_entry and self.decode is not None  # rule 29
        request = Request(
            arrival.index,
            arrival.prompt_tokens + before,
            1 if first_only else arrival.max_tokens - before,
            life.order,
            now_ns(self.env),
        )
        if before and not first_only:
            request.emitted_before = before
        request.predicted_tokens = 1 if first_only and before else life.predicted_tokens
        if pool.clairvoyant:
            request.oracle_tokens = 1 if first_only else arrival.output_tokens - before
        if arrival[5:] != _PLAIN:
            request.priority = arrival.priority
            if arrival.deadline_ns is not None:
                request.deadline_ns = arrival.arrival_ns + arrival.deadline_ns
            request.identity = _identity(arrival)
        return request

    # --- ends

    def finished(self, life: Lifetime, now_ns: int) -> None:
        """The client has all tokens of the request."""
        self.end(life, FINISHED, "", now_ns)

    def end(self, life: Lifetime, state: int, reason: str, now_ns: int) -> None:
        """The one way in which a request ends; tells the source, which may let others arrive.

        Ended early, it leaves the replica where it is, which must not have it in flight.
        """
        life.ended = True
        if life.where is not None and life.request is not None:
            life.where.drop(life.request)
        if life.ahead is not None and not life.ahead.given_up:
            life.ahead.target.gives_up(life.ahead)
        if life.cancellation is not None:
            self.impatient -= 1
            life.cancellation.call_off()
        self.live.pop(life.arrival.index, None)
        self.ended += 1
        if self._progress is not None and self.ended % _TELL_EVERY == 0:
            self._progress(now_ns, self.ended)
        if self.recorder.record.events:
            self.recorder.event(life.arrival.index, ENDED, now_ns, life.last_place)
        self.recorder.outcome(life, state, reason, now_ns, life.delivered)
        tell = self._on_failed if state in (REJECTED, FAILED) else self._on_end
        if tell is None:
            return
        for arrival in tell(life.arrival.index, now_ns):
            caused = Instant(self.env, max(0, arrival.arrival_ns - now_ns), Phase.CAUSED_ARRIVAL)
            caused.callbacks.append(_Arriving(self, arrival))

    def cancel(self, life: Lifetime) -> None:
        """Phase (2b): the client gives up, and the request ends (rules 53 and 75).

        What has it in hand goes on as planned, a step or a transfer, and frees its memory then.
        """
        self.stir()
        request, replica = life.request, life.where
        if replica is None or request is None:  # it waits for a replica to come up, or its prefill
            if not self.not_sent(self.hand_overs, life):  # ended at this very instant
                self.changes.withdraw(life)
            self.left_early(life)
        elif life.arrival.index in self.transfers:
            replica.sign_off(request)
        elif self.not_sent(self.pulls[replica], life):
            replica.sign_off(request)
            replica.forget(request)
            replica.notify()
        else:
            replica.give_up(request)
        self.end(life, CANCELLED, "", now_ns(self.env))

    @staticmethod
    def not_sent(pulls: deque[Pull] | list[Pull], life: Lifetime) -> bool:
        """Take out a request that waits for its transfer, and free its KV; False if it does not."""
        pull = next((pull for pull in pulls if pull.life is life), None)
        if pull is None:
            return False
        pulls.remove(pull)
        pull.source.free_held(pull.held)
        pull.source.notify()
        return True

    # --- from prefill to decode

    def prefilled(self, replica: Replica, request: Request, life: Lifetime, now_ns: int) -> None:
        """Phase (1): the request leaves its prefill replica, which keeps the prompt's blocks."""
        replica.keep(request, life)
        self.call_hand_over()
        self.hand_overs.append(self.pull_of(life, replica, request))

    def pull_of(self, life: Lifetime, source: Replica, held: Request) -> Pull:
        """A request, whose KV its source keeps, as a decode replica will see it."""
        ahead = life.ahead
        later = self.request_of(life, at_entry=False) if ahead is None else ahead.request
        return Pull(later, life, source, held)

    def call_hand_over(self) -> None:
        """There will be a phase (2d) in this instant."""
        if not self._handing_over:
            self._handing_over = True
            Instant(self.env, 0, Phase.HAND_OVER).callbacks.append(self._hand_over)

    def _hand_over(self, _: Event) -> None:
        """Phase (2d): requests whose prefill has ended choose a decode replica."""
        assert self.decode is not None
        self._handing_over = False
        waiting, self.hand_overs = [*self.changes.to_hand_over(), *self.hand_overs], []
        for pull in waiting:
            request, life = pull.request, pull.life
            request.emitted_then = 0 if self._again else 1
            if life.ahead is not None:
                self._push(pull, life.ahead)
                continue
            replica = self.decode.route(request)
            if replica is None:
                self.changes.stranded.append(pull)
                continue
            life.decode_replica = replica.place
            goal = life.arrival.output_tokens - life.before
            replica.place_request(request, life, goal)
            self.pulls[replica].append(pull)
            self.note_event(life, HANDED_OVER, replica)
            replica.notify()

    def _push(self, pull: Pull, ahead: Ahead) -> None:
        """Send the KV of a request to where its blocks are reserved."""
        life, replica = pull.life, ahead.target
        assert ahead.found_tokens is not None
        replica.place_request(pull.request, life, life.arrival.output_tokens)
        life.ahead, life.decode_replica = None, replica.place
        self.note_event(life, HANDED_OVER, replica)
        self._send(pull, replica, ahead.found_tokens)
        if self._one_by_one:
            replica.notify()

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
            if self._one_by_one:
                return

    def loading(self, replica: Replica) -> bool:
        """Whether KV is on its way to the replica."""
        return any(transfer.target is replica for transfer in self.transfers.values())

    def awaits(self, replica: Replica) -> bool:
        """Whether the replica has yet to send for the KV of somebody."""
        return bool(self.pulls[replica])

    def unsent_blocks(self, replica: Replica) -> int:
        """Blocks that the replica will need for those whose KV it has not sent for."""
        blocks_for = replica.kv.blocks_for
        return sum(blocks_for(pull.request.known_tokens) for pull in self.pulls[replica])

    def may_find_more(self, replica: Replica) -> bool:
        """Whether what runs on the replica may help the first request that waits for its KV."""
        pulls = self.pulls[replica]
        return bool(pulls) and replica.kv.may_reserve_less(pulls[0].request)

    def _send(self, pull: Pull, target: Replica, found_tokens: int) -> None:
        """Send for the KV, but that of the leading blocks in which the target found its tokens."""
        transfer_spec = self.spec.transfer
        assert transfer_spec is not None
        source = pull.source
        now = now_ns(self.env)
        block_tokens = source.kv.block_tokens
        blocks = pull.held.held_blocks - found_tokens // block_tokens
        size = blocks * block_tokens * source.spec.kv_bytes_per_token
        transfer = Transfer(pull.life, pull.request, source, pull.held, target, size, now)
        if self._links is None:
            transfer.end = Instant(self.env, transfer_spec.duration_ns(size), Phase.TRANSFER_END)
            transfer.end.callbacks.append(_Arrived(self, transfer))
        else:
            path = self._nics[source][0], self._nics[target][1]
            arrived = partial(self.transferred, transfer)
            transfer.end = self._links.send(path, size, transfer_spec.latency_ns, arrived)
        self.transfers[pull.request.index] = transfer
        self.note_event(pull.life, TRANSFER_STARTED, target)

    def transferred(self, transfer: Transfer) -> None:
        """Phase (2): the source's blocks are free, the target's request is loaded."""
        request, source, target, now = (
            transfer.request,
            transfer.source,
            transfer.target,
            now_ns(self.env),
        )
        del self.transfers[request.index]
        source.free_held(transfer.held)
        target.sync()
        target.kv.arrived(request)
        request.target_tokens = request.prompt_tokens
        request.computed_then = request.prompt_tokens - (1 if self._again else 0)
        request.joined_ns = now
        self.recorder.transfers.extend(
            (request.index, source.place, target.place, transfer.start_ns, now, transfer.num_bytes)
        )
        if transfer.life.ended:  # cancelled meanwhile
            target.forget(request)
        else:
            target.state.loaded.append(request)
            self.note_event(transfer.life, LOADED, target)
        source.notify()
        target.notify()

    def may_help(self, replica: Replica) -> bool:
        """Whether KV is on its way, clients may give up, or others do more than recompute."""
        if self.transfers or self.impatient or self.changes.may_help():
            return True
        others = (other for other in self.replicas if other is not replica)
        return any(other.at_work and not other.barren for other in others)

    def emptied(self, replica: Replica) -> None:
        """A draining replica has nothing left (rule 82)."""
        self.changes.emptied(replica)

    @property
    def may_return(self) -> bool:
        """Whether a request that has left a replica may come back to it."""
        return self.changes.expected

    def note_event(self, life: Lifetime, code: int, replica: Replica) -> None:
        """A change of a request's state, if these are recorded."""
        if self.recorder.record.events:
            self.recorder.event(life.arrival.index, code, now_ns(self.env), replica.place)

    def info(self) -> list[ReplicaInfo]:
        """The replicas as they are now, those removed from their pool included."""
        names = [self.entry.spec.name, "" if self.decode is None else self.decode.spec.name]
        return [
            ReplicaInfo(
                name=f"{names[replica.role == 'decode']}-{replica.index}",
                pool=names[replica.role == "decode"],
                role=replica.role,
                gpus=replica.spec.gpus,
                total_blocks=replica.kv.total_blocks,
                block_tokens=replica.kv.block_tokens,
                busy_ns=replica.busy_ns,
                prefill_busy_ns=replica.prefill_busy_ns,
                iterations=replica.iterations,
                prefill_tokens=replica.prefill_tokens,
                decode_tokens=replica.decode_tokens,
                step_time=replica.step_time.describe(),
                step_time_usage=replica.step_time_usage,
                stage_busy_ns=tuple(replica.stage_busy_ns),
                **replica.tier_facts(),
                iterations_by_rows=tuple(sorted(replica.iterations_by_rows.items())),
                lost_blocks=(
                    replica.lost_blocks_then + replica.kv.lost_blocks
                    if replica.kv.has_cache
                    else None
                ),
                found_tokens=replica.found_tokens,
                asked_tokens=replica.asked_tokens,
            )
            for replica in self.replicas
        ]


def _identity(arrival: Arrival) -> Identity:
    return Identity(
        arrival.session,
        arrival.turn,
        arrival.request_class,
        arrival.tenant,
        arrival.content,
    )


@dataclass
class _Arriving:
    """Callback: an arrival caused by another request's end."""

    cluster: LiveCluster
    arrival: Arrival

    def __call__(self, _: Event) -> None:
        self.cluster.arrive(self.arrival)


@dataclass
class _GivesUp:
    """Callback: the client's patience is over."""

    cluster: LiveCluster
    life: Lifetime

    def __call__(self, _: Event) -> None:
        self.cluster.cancel(self.life)


@dataclass
class _Arrived:
    """Callback: the end of a transfer."""

    cluster: LiveCluster
    transfer: Transfer

    def __call__(self, _: Event) -> None:
        self.cluster.transferred(self.transfer)
