"""A cluster during one run: places arrivals, and ends requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from simpy import Environment
from simpy.events import Event

from sim.admission import Admission, Gate
from sim.admission import check as check_admission
from sim.attribution import FETCH
from sim.changes import Changes, OnFailure
from sim.chunked_pipeline import ChunkedPipelineReplica
from sim.clock import Instant, Phase, now_ns
from sim.decode_load import DecodeLoad
from sim.errors import ConfigError, called
from sim.hand_over import HandOver
from sim.local_prefill import LocalPrefill
from sim.local_prefill import check as check_local_prefill
from sim.migration import Migrations, MigrationSpec
from sim.mixed_pool import MixedPool, Mixing
from sim.mixed_pool import check as check_mixed
from sim.network import Network
from sim.policy import Prefix, ReplicaView
from sim.pool import Pool, PoolSpec, named_generator
from sim.prefix_fetch import FetchSpec, PrefixFetch
from sim.prefix_fetch import check as check_fetch
from sim.records import (
    CANCELLED,
    ENDED,
    FAILED,
    FINISHED,
    QUEUED,
    REJECTED,
    Lifetime,
    Recorder,
    ReplicaInfo,
)
from sim.replica import Replica
from sim.replica_spec import DRAINING, STARTING, UP, ReplicaSpec
from sim.replica_spec import FAILED as DOWN
from sim.request import Arrival, Identity, Request
from sim.roles import RoleSpec, RoleSwitching
from sim.roles import check as check_roles
from sim.scaling import Scaler
from sim.snapshot import Snapshots
from sim.topology import Topology
from sim.transfer import TransferSpec

_TELL_EVERY = 256
"""Ends between two reports of progress."""

_DECODE_RANK = 1 << 24
"""More than a pool has replicas: those of the decode pool come later in a phase."""

_PLAIN = Arrival(0, 1, 1, 1)[5:]
"""What follows the index of an arrival that has nothing beside lengths."""


class Predictor(Protocol):
    """Guesses the output length of requests (rule 57).

    One with a true attribute ``is_static`` guesses by the request and the seed alone, whatever it
    was asked before (`sim.shards`).
    """

    def start(self, rng: np.random.Generator) -> None:
        """Begin a run; draws come from `rng`."""
        ...

    def predict(self, arrival: Arrival) -> int:
        """Predicted output tokens, at least 1. The same for a request whenever it is asked."""
        ...


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
        local_prefill: Which requests decode replicas prefill by themselves; None: none.
        prefix_fetch: How replicas of the entry pool fetch prefixes from each other's caches, or
            None: each has its own only.
        topology: Nodes on which the replicas lie and the links that transfers share, or None.
        migration: Which running requests move to other replicas of the pool that decodes, or None.
        roles: How replicas of two pools change their roles by themselves, or None.
        mixed_pool: When replicas of two pools run whole requests under load; None: never.
    """

    entry: PoolSpec
    decode: PoolSpec | None = None
    transfer: TransferSpec | None = None
    predictor: Predictor | None = None
    admission: Admission | None = None
    on_failure: OnFailure = "reroute"
    local_prefill: LocalPrefill | None = None
    topology: Topology | None = None
    migration: MigrationSpec | None = None
    prefix_fetch: FetchSpec | None = None
    roles: RoleSpec | None = None
    mixed_pool: MixedPool | None = None

    def __post_init__(self) -> None:
        if self.admission is not None:
            check_admission(self.admission, self.entry.snapshot_ns)
            early = self.admission.early_rejection
            if self.decode is None and early is not None and early.decode_load is not None:
                raise ConfigError("early_rejection.decode_load: there is no decode pool")
        if self.decode is not None and self.decode.router.places_prefills:
            raise ConfigError(
                f"decode_router: {called(self.decode.router)} chooses where to prefill, "
                "which says nothing of decode replicas; try least-kv"
            )
        _refuse_chunks_ahead(self.transfer, self.entry)
        if self.prefix_fetch is not None:
            check_fetch(self.entry.replicas)
        if (self.decode is None) != (self.transfer is None):
            raise ConfigError("a decode pool and its transfer go together: give both or neither")
        if self.local_prefill is not None:
            if self.decode is None:
                raise ConfigError("local_prefill: there is no decode pool; leave it out")
            check_local_prefill(self.decode)
        if self.topology is not None:
            _check_topology(self.transfer, self.entry, self.decode)
        elif self.transfer is not None and self.transfer.bandwidth_bytes_per_s is None:
            raise ConfigError("transfer: bandwidth_bytes_per_s: needed without a topology")
        if self.migration is not None:
            pool = self.decode or self.entry
            self.migration.check(pool, self.transfer, has_network=self.topology is not None)
        if self.mixed_pool is not None:
            check_mixed(self.entry, self.decode, self.transfer)
            for key in ("local_prefill", "roles"):
                if getattr(self, key) is not None:
                    said = {"roles": "role_switching"}.get(key, key)
                    raise ConfigError(f"mixed_pool and {said}: leave out one of them")
        if self.roles is not None:
            check_roles(self.entry, self.decode, self.transfer)
        links = self.transfer or (self.migration and self.migration.link)
        if self.topology is not None or not links or not links.shares_links:
            _refuse_nics(self.entry, self.decode)


def _refuse_chunks_ahead(transfer: TransferSpec | None, entry: PoolSpec) -> None:
    """What is under way in a chunked pipeline counts as computed, and would be sent too early."""
    ahead = any(issubclass(r.kind or Replica, ChunkedPipelineReplica) for r in entry.replicas)
    if ahead and transfer is not None and transfer.overlap == "chunked":
        raise ConfigError(
            "transfer.overlap: chunked: not modelled with chunked_pipeline; try overlap: layerwise"
        )


def _refuse_nics(*pools: PoolSpec | None) -> None:
    """Without shared links a NIC's own bandwidth would silently do nothing."""
    for pool in filter(None, pools):
        for replica in pool.replicas:
            if replica.nic_bytes_per_s is not None:
                raise ConfigError(
                    f"pool {pool.name}: nic_bytes_per_s {replica.nic_bytes_per_s:g}: counts where "
                    "transfers share links only, and without a topology; set transfer.sharing: "
                    "max-min, or leave it out"
                )


def _check_topology(transfer: TransferSpec | None, *pools: PoolSpec | None) -> None:
    """The links of a topology say what transfers get, and replicas say what they need of it."""
    if transfer is not None and transfer.bandwidth_bytes_per_s is not None:
        raise ConfigError(
            f"transfer: bandwidth_bytes_per_s {transfer.bandwidth_bytes_per_s:g}: the links of the "
            "topology have bandwidths of their own; leave it out"
        )
    if transfer is not None and transfer.message_bytes is not None:
        raise ConfigError(
            f"transfer: message_bytes {transfer.message_bytes}: with a topology the efficiency of "
            "its links says what messages cost; leave it out"
        )
    if transfer is not None and not transfer.shares_links:
        raise ConfigError("transfer: sharing none: transfers over a topology share its links")
    for pool in filter(None, pools):
        for spec in pool.replicas:
            if spec.seat is None or spec.seat.shards.gpus != spec.gpus:
                raise ConfigError(f"pool {pool.name}: replicas need a seat for all their GPUs")


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
        self.impatient = self.arriving = 0
        self.recorder = recorder
        self._on_end = on_end
        self._on_failed = on_failed
        self._progress = progress
        self._of_role: dict[str, dict[str, Any]] = {}
        self.changes = Changes(self)
        mixed = spec.mixed_pool
        self.mixing = None if mixed is None else Mixing(self, mixed)
        self._seed = seed
        self._snapshots: list[Snapshots] = []
        self._switches: dict[str, Any] = {
            "fast_forward": fast_forward,
            "check": check,
            "seed": seed,
        }
        transfer = spec.transfer
        moving = spec.migration
        link = transfer or (moving and moving.link)
        latency_ns = link.latency_ns if link else 0
        self.network = None if spec.topology is None else Network(env, spec.topology, latency_ns)
        self.between = None if transfer is None else HandOver(self, transfer)
        self.migrations = None if moving is None else Migrations(self, moving)
        local = spec.local_prefill
        self._decode_first = transfer is not None and (local is not None or transfer.decode_first)
        fetch = spec.prefix_fetch
        self.fetches = None if fetch is None else PrefixFetch(self, fetch)
        self._pushes = transfer is not None and transfer.push
        self._again = again = transfer is not None and transfer.recompute_last_token
        alone = transfer is not None and transfer.blocks_decode
        share = None if transfer is None else transfer.max_waiting_share
        role = "both" if spec.decode is None else "prefill"
        self.entry = self._build(
            spec.entry,
            role,
            "router",
            withholds_first_token=again,
            tells_chunks=transfer is not None and transfer.overlap == "chunked",
        )
        self.decode = (
            None
            if spec.decode is None
            else self._build(
                spec.decode, "decode", "decode_router", loads_alone=alone, waiting_share=share
            )
        )
        self._gate: Gate | None = None
        if spec.admission is not None:
            self._gate = Gate(
                spec.admission, self.entry.replicas, self.entry.views, self._decode_load()
            )
        self._told: list[list[Lifetime]] = []  # who keeps requests that have ended
        self._scale()
        self.predictor = copy.deepcopy(spec.predictor)
        if self.predictor is not None:
            self.predictor.start(named_generator(seed, "predictor"))

    def _decode_load(self) -> DecodeLoad | None:
        """The load of the decode pool, where admission judges it."""
        admission = self.spec.admission
        early = None if admission is None else admission.early_rejection
        if early is None or early.decode_load is None or self.decode is None:
            return None
        return DecodeLoad(early.decode_load, self.decode.replicas, self.live)

    def _build(self, pool: PoolSpec, role: str, purpose: str, **more: Any) -> Pool:
        self._of_role[role] = more
        replicas = [
            self._replica(replica_spec, role, index)
            for index, replica_spec in enumerate(pool.replicas)
        ]
        snapshots = None
        if pool.snapshot_ns:
            snapshots = Snapshots(self.env, pool.snapshot_ns, replicas, self.in_motion)
            self._snapshots.append(snapshots)
        return Pool(pool, replicas, named_generator(self._seed, purpose), snapshots)

    def _replica(
        self, spec: ReplicaSpec, role: str, index: int, instead_of: Replica | None = None
    ) -> Replica:
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
            prefills_too=role == "decode" and self.prefills_anywhere,
            **self._switches | self._of_role[role] | step_by_step,
        )
        self.replicas.append(replica)
        self.recorder.names.append(f"{self.pool_name(replica)}-{index}")
        if self.network is not None:
            assert spec.seat is not None
            name = f"{role} replica {index}"
            self.network.join(replica, spec.seat, name, instead_of=instead_of)
        if self.between is not None:
            self.between.join(replica)
        if self.migrations is not None:
            self.migrations.join(replica)
        return replica

    def _scale(self) -> None:
        """Let the pools grow and shrink that do so by themselves."""
        for pool in (self.entry, self.decode):
            if pool is not None and pool.spec.scaling is not None:
                pool.scaler = Scaler(self, pool, pool.spec.scaling)
        if self.spec.roles is not None:
            self.changes.expected = True
            RoleSwitching(self, self.spec.roles)

    def tell_ends(self, ended: list[Lifetime]) -> None:
        """Put requests there when they end."""
        self._told.append(ended)

    def requests_without_replica(self, pool: Pool) -> Iterable[Request]:
        """Requests that wait for a replica of the pool to come up, as it would see them."""
        if pool is self.entry:
            return (self.request_of(life, at_entry=True) for life in self.changes.at_router)
        return () if self.between is None else (pull.request for pull in self.between.stranded)

    def without_replica(self, pool: Pool) -> int:
        """How many these are."""
        if pool is self.entry:
            return len(self.changes.at_router)
        return 0 if self.between is None else len(self.between.stranded)

    def gauges(self, pool: Pool) -> tuple[int, ...]:
        """What a point of time holds of a pool, after time and pool: see `POOL_COLUMNS`."""
        conditions = [replica.condition for replica in pool.replicas]
        replicas = [conditions.count(each) for each in (UP, STARTING, DRAINING, DOWN)]
        between = sum(replica.neither_waits_nor_runs for replica in pool.replicas)
        if pool is self.decode and self.between is not None:
            between += self.between.not_there
        return (*replicas, self.without_replica(pool), between)

    @property
    def pools(self) -> Sequence[Pool]:
        """The pool that requests enter, then the decode pool if there is one."""
        return (self.entry,) if self.decode is None else (self.entry, self.decode)

    def add(
        self,
        pool: Pool,
        like: Replica,
        spec: ReplicaSpec | None = None,
        *,
        instead_of: Replica | None = None,
    ) -> Replica:
        """One more replica joins a pool, made as another there, or of a spec (rule 82).

        Args:
            pool: Which pool.
            like: A replica there.
            spec: Of the new one; None: that of `like`.
            instead_of: One that is gone from the other pool, and whose GPUs the new one has.
        """
        replica = self._replica(spec or like.spec, like.role, len(pool.replicas), instead_of)
        pool.join(replica)
        if pool is self.entry and self._gate is not None:
            self._gate.add(replica)
        for tell in self.changes.on_join:
            tell(replica)
        return replica

    def pool_of(self, replica: Replica) -> Pool:
        """The pool in which a replica is."""
        if replica.role != "decode":
            return self.entry
        assert self.decode is not None
        return self.decode

    def in_motion(self) -> bool:
        """Whether something goes on by itself, without an arrival, a cancellation or an event."""
        between, moving = self.between, self.migrations
        if between is not None and between.in_motion:
            return True
        if moving is not None and moving.under_way:
            return True
        if self.fetches is not None and self.fetches.under_way:
            return True
        return any(replica.at_work for replica in self.replicas)

    def stir(self) -> None:
        """Something is about to change from outside: an arrival, an end, an event."""
        for snapshots in self._snapshots:
            snapshots.wake()
        if self.migrations is not None:
            self.migrations.wake()

    # --- arrivals

    def arrive(self, arrival: Arrival) -> None:
        """Phase (3): reject, or route and let the request join a queue."""
        life = Lifetime(arrival, self.arrived)
        if self.recorder.attributions is not None:
            life.account = self.recorder.attributions.open(life.arrival.index, now_ns(self.env))
        self.arrived += 1
        if self._snapshots or self.migrations is not None:
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
            life.prefill_due_ns = self._gate.due_ns
        if self.predictor is not None:
            self._predict(life, request)
        self.live[arrival.index] = life
        if not self.place(life, request, offered):
            self.changes.wait(life)
        if patience_ns is not None:
            self.impatient += 1
            life.cancellation = Instant(self.env, patience_ns, Phase.CANCEL + arrival.index)
            life.cancellation.callbacks.append(_GivesUp(self, life))

    def more_room(self) -> None:
        """Something has changed on a decode replica for which prefill replicas may wait (push)."""
        for replica in self.entry.replicas:
            if replica.state.waiting:
                replica.notify()

    def place(
        self, life: Lifetime, request: Request, offered: Sequence[ReplicaView] | None = None
    ) -> bool:
        """Route a request, which joins a queue; False if nobody takes it now."""
        between, ahead = self.between, None
        if self._decode_first:
            assert between is not None
            ahead = between.choose(life)
            local = self.spec.local_prefill
            if ahead is not None and local is not None:
                later, target = ahead.request, ahead.target
                if local.stays(later, target, self.entry, request):
                    self.place_whole(life, later, target)
                    return True
        if self.mixing is not None:
            if self._placed_whole(life, request, self.mixing):
                return True
            offered = offered or self.mixing.offered(request)
        replica = self.entry.route(request, offered)
        if replica is None:
            return False
        life.replica = replica.place
        goal = 1 if self.decode else life.arrival.output_tokens - life.before
        replica.place_request(request, life, goal)
        self.note_event(life, QUEUED, replica)
        if between is not None and between.looks_ahead(life):
            between.look_ahead(life, ahead)
        if self.fetches is None or not self.fetches.awaited(life, request, replica):
            replica.enqueue(request)
        else:
            life.goes_to(FETCH, now_ns(self.env))
        return True

    def _placed_whole(self, life: Lifetime, seen: Request, mixing: Mixing) -> bool:
        """Whether a replica runs the request whole, since a pool is too full for its part of it."""
        whole = self.request_of(life, at_entry=False)
        oracle = life.arrival.output_tokens - life.before
        if self.entry.clairvoyant:  # its replicas are asked too whether they can run it
            whole.oracle_tokens = oracle
        target = mixing.target_of(life, seen, whole)
        if target is None:
            return False
        whole.oracle_tokens = oracle if self.pool_of(target).clairvoyant else None
        self.place_whole(life, whole, target)
        return True

    @property
    def prefills_anywhere(self) -> bool:
        """Whether decode replicas prefill requests that were placed there."""
        return self.spec.local_prefill is not None or self.spec.mixed_pool is not None

    def place_whole(self, life: Lifetime, request: Request, replica: Replica) -> None:
        """Let one replica prefill and decode a request, which joins its waiting queue.

        Args:
            life: Which request.
            request: As the decode pool sees it (`request_of`).
            replica: Up, and able to run it.
        """
        life.replica = life.decode_replica = replica.place
        goal = life.arrival.output_tokens - life.before
        replica.place_request(request, life, goal)
        self.note_event(life, QUEUED, replica)
        replica.enqueue(request)

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
        if self.migrations is not None and not self.live:
            self.migrations.rest()
        self.ended += 1
        for ended in self._told:
            ended.append(life)
        if self._progress is not None and self.ended % _TELL_EVERY == 0:
            self._progress(now_ns, self.ended)
        if self.recorder.record.events:
            self.recorder.event(life.arrival.index, ENDED, now_ns, life.last_place)
        if life.account is not None:
            life.account.close(now_ns)
        self.recorder.outcome(life, state, reason, now_ns, life.delivered)
        tell = self._on_failed if state in (REJECTED, FAILED) else self._on_end
        if tell is None:
            return
        for arrival in tell(life.arrival.index, now_ns):
            self.arriving += 1
            caused = Instant(self.env, max(0, arrival.arrival_ns - now_ns), Phase.CAUSED_ARRIVAL)
            caused.callbacks.append(_Arriving(self, arrival))

    def cancel(self, life: Lifetime) -> None:
        """Phase (2b): the client gives up, and the request ends (rules 53 and 75).

        What has it in hand goes on as planned, a step or a transfer, and frees its memory then.
        """
        self.stir()
        request, replica = life.request, life.where
        between = self.between
        if replica is None or request is None:  # it waits for a replica to come up, or its prefill
            if between is None or not between.withdraw(life):
                self.changes.withdraw(life)
            self.left_early(life)
        elif self.migrations is not None and self.migrations.cancel(life):
            pass  # its KV is on the way to another replica, and arrives there
        elif between is None or not between.cancel(life, request, replica):
            replica.give_up(request)
        self.end(life, CANCELLED, "", now_ns(self.env))

    # --- what replicas ask, between the pools

    def left_early(self, life: Lifetime) -> None:
        """A request that goes on elsewhere was given up, and has left its prefill replica."""
        if self.between is not None:
            self.between.left_early(life)

    def preempted(self, life: Lifetime) -> None:
        """A request that goes on elsewhere is preempted on its prefill replica."""
        if self.between is not None and self.between.streams is not None:
            self.between.streams.called_off(life)

    def computed(self, replica: Replica, request: Request, life: Lifetime) -> None:
        """A chunk of a prompt that goes on elsewhere is computed, and it is not the last."""
        assert self.between is not None
        assert self.between.streams is not None
        self.between.streams.computed(replica, request, life)

    def prefilled(self, replica: Replica, request: Request, life: Lifetime, now_ns: int) -> None:
        """The request has emitted all it emits here and moves to the decode pool."""
        assert self.between is not None
        self.between.prefilled(replica, request, life)

    def pull(self, replica: Replica) -> bool:
        """Start the transfers for which a decode replica has room now; whether any started."""
        assert self.between is not None
        return self.between.pull(replica)

    def loading(self, replica: Replica) -> bool:
        """Whether KV is on its way to the replica."""
        return self.between is not None and self.between.loading(replica)

    def awaits(self, replica: Replica) -> bool:
        """Whether the replica has yet to send for the KV of somebody."""
        return self.between is not None and bool(self.between.pulls[replica])

    def prefix(self, replica: Replica, request: Request) -> Prefix | None:
        """What a request would find cached or fetched there; None where nothing is fetched."""
        if self.fetches is None or replica.role == "decode":
            return None
        return self.fetches.prefix(replica, request)

    def unsent_blocks(self, replica: Replica) -> int:
        """Blocks that the replica will need for those whose KV it has not sent for."""
        return 0 if self.between is None else self.between.unsent_blocks(replica)

    def may_find_more(self, replica: Replica) -> bool:
        """Whether what runs on the replica may help the first request that waits for its KV."""
        return self.between is not None and self.between.may_find_more(replica)

    def may_help(self, replica: Replica) -> bool:
        """Whether KV is on its way, clients may give up, or others do more than recompute."""
        if self.between is not None and self.between.any_sent_whole():
            return True
        if self.migrations is not None and self.migrations.under_way:
            return True
        if self.fetches is not None and self.fetches.under_way:
            return True
        if self.impatient or self.changes.may_help():
            return True
        others = (other for other in self.replicas if other is not replica)
        return any(other.at_work and not other.barren for other in others)

    def emptied(self, replica: Replica) -> None:
        """A draining replica has nothing left (rule 82)."""
        self.changes.emptied(replica)

    @property
    def may_return(self) -> bool:
        """Whether a request that has left a replica may come back to it."""
        holds = self.between is not None and self.between.holds is not None
        return holds or self.changes.expected or self.migrations is not None

    def note_event(self, life: Lifetime, code: int, replica: Replica) -> None:
        """A change of a request's state, if these are recorded."""
        if self.recorder.record.events:
            self.recorder.event(life.arrival.index, code, now_ns(self.env), replica.place)

    def pool_name(self, replica: Replica) -> str:
        """Name of the pool that a replica belongs to, or has left."""
        pool = self.spec.decode if replica.role == "decode" else self.spec.entry
        assert pool is not None
        return pool.name

    def _staged(self, replica: Replica) -> dict[str, int]:
        if self.between is None or self.between.staging is None:
            return {}
        peak, staged = self.between.staging.facts_of(replica)
        return {"staging_peak_bytes": peak, "staged_bytes": staged}

    def info(self) -> list[ReplicaInfo]:
        """The replicas as they are now, those removed from their pool included."""
        return [
            ReplicaInfo(
                name=self.recorder.names[replica.place],
                pool=self.pool_name(replica),
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
                **self._staged(replica),
                joined_ns=replica.joined_ns,
                left_ns=replica.left_ns,
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
        self.cluster.arriving -= 1
        self.cluster.arrive(self.arrival)


@dataclass
class _GivesUp:
    """Callback: the client's patience is over."""

    cluster: LiveCluster
    life: Lifetime

    def __call__(self, _: Event) -> None:
        self.cluster.cancel(self.life)
