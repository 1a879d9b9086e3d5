"""Live migration: a running request moves to another replica of its pool (Llumnix).

Source: Sun et al., OSDI 2024 (Llumnix), section 4.2, and its repository (AlibabaPAI/llumnix, files
``llumlet/migration_coordinator.py`` and ``backends/*/scheduler.py``). The rules, ours where the
paper is silent:

1. *Rounds.* The migrator is asked at every multiple of `interval_ns` at which anything is under way
   in the cluster, after the cluster events (2c) of that instant, before hand-overs (2d). It sees
   the state as of then; its orders are begun in their order. Requests move within one pool: the
   only one, or the decode pool.
2. *Who.* A request moves that runs on the source, has its prefill behind it, has emitted a token
   and moves nowhere yet, to a replica that is up and could ever run it.
3. *Stages.* At the start of a stage c tokens of it are stored at the source (steps that are over
   count), B are in a block there, and s of its blocks have been sent or were found cached at the
   target. If ceil(c / B) - s <= `last_stage_blocks`, or the mode is ``stop``, this is the last
   stage. Else floor(c / B) - s blocks are copied, those that are full, while it goes on decoding.
   The stage numbered `max_stages` has to be the last one, else the request stays. (Llumnix copies
   that one too, and then gives up.)
4. *Handshake.* A stage starts if the target, that being up, has room for what was sent and is to
   be sent: blocks for floor(c / B) x B tokens in all (last stage: c tokens), or for the whole
   request where its policy reserves that (orca); free - need >= watermark (rule 11), its queue
   and `max_num_seqs` not counting. They are taken there and then, in the middle of a step too. The
   first reservation matches a prefix cache there, as in rule 44: of the prompt, at most p - 1
   tokens; what is found is not copied. Without room the request stays.
5. *Last stage.* The request stops at the first instant, from the start of the stage on, at which no
   step computes it: in (2) of that instant, the step's token being emitted. It leaves running and
   keeps its blocks at the source; ceil(c / B) - s blocks are copied, c being as of then; and room
   is asked for then, so that a request that stays has never stopped. From then on it is outstanding
   at the target, and not at the source.
6. *A copy* takes the time of a KV hand-over of as many whole blocks of the source (rules 35, 39,
   63 to 65, `sim.topology`): on the links of `transfer` where there are two pools, else on
   those of `link`. Latency is paid by every stage; messages of the handshake take no time.
7. *Order in (2).* Ends of copies are transfers' ends. After all of these come the stops that were
   awaited, in the order in which that began, then what follows the copies that have just ended, in
   their order: next stages and stops. What an order of a round leads to at once happens in it.
8. *End.* When the last copy ends, the source's blocks are free (a cache keeps what they hold, as at
   an end), the target's full blocks of the prompt can be hit, and the request is loaded: it joins
   running at the start of the next pass, at the tail (rule 33).
9. *Nobody watches the copy.* If the request has ended or was preempted, or the target drains, that
   is seen when the stage in flight ends, or at the stop: it stays where it is, and what was
   reserved is free then. A client that gives up during the last stage is cancelled at once; the
   copy ends as planned, then both sides are free (rule 53). A target that drains then still gets
   the request, which is part of what is left there.
10. *Failures* (2c). Source fails: the copy is called off, the target's blocks are free; a request
    in its last stage is lost, and re-routed before those of rule 79 that waited, in the order in
    which moves were begun. Target fails: the copy is called off; a request in its last stage is
    loaded at its source again, with all its KV, and counts there.
11. *Mode* ``recompute`` copies nothing: the request stops as in 5, frees its memory and waits at
    the target at the front of the queue, as if it had been preempted there (rules 9, 10, 34).

Not modelled, and refused: static batches and ``sglang`` (rows and tree are tied to a replica),
pipelines (a request may be in a batch under way in each stage), and ``start: push``. A request that
waits never moves. So it is in the paper, where it makes others move away, as virtual usage (4.4),
and in the repository (``llumlet/local_migration_scheduler.py``), whose policies LCFS, SRF and LRF
choose among running requests that decode; EWF, which takes the first that waits, is left out here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from sim.attribution import MIGRATION as MIGRATED
from sim.attribution import PREEMPTED
from sim.carrier import Carrier, Nics, OnTheWay
from sim.clock import Instant, Phase, Tick, now_ns
from sim.errors import ConfigError, called
from sim.migrator import Migrator, Order, ReplicaLoad
from sim.records import LOADED, MIGRATING, OUTCOMES, QUEUED, STAYED, STOPPED, Lifetime
from sim.replica import Replica
from sim.replica_spec import DRAINING, UP
from sim.request import NEVER, Request
from sim.transfer import TransferSpec

if TYPE_CHECKING:
    from sim.cluster import LiveCluster
    from sim.pool import PoolSpec

Mode = Literal["live", "stop", "recompute"]

_AFTER_ENDS = Phase.TRANSFER_END + 1
"""In phase (2), after all ends of transfers of the instant."""


@dataclass(frozen=True)
class MigrationSpec:
    """Which requests move between replicas of a pool, and how.

    Attributes:
        migrator: Says who moves; each run works on a copy.
        interval_ns: Between two rounds. Llumnix's default polling interval is 50 ms.
        mode: ``live`` copies in stages while the request decodes; ``stop`` stops it for the whole
            copy; ``recompute`` lets the target prefill it again.
        link: How KV moves where there is one pool; with two, `Cluster.transfer` says so.
        last_stage_blocks: With at most so many blocks left the request stops (Llumnix: 16).
        max_stages: The last stage has to come by then (Llumnix: 3).
    """

    migrator: Migrator
    interval_ns: int = 50_000_000
    mode: Mode = "live"
    link: TransferSpec | None = None
    last_stage_blocks: int = 16
    max_stages: int = 3

    def check(self, pool: PoolSpec, transfer: TransferSpec | None, *, has_network: bool) -> None:
        """Raise `ConfigError` where requests cannot move so between the replicas of the pool."""
        for name in ("interval_ns", "last_stage_blocks", "max_stages"):
            if getattr(self, name) < 1:
                raise ConfigError(f"migration.{name}: {getattr(self, name)}: expected at least 1")
        if transfer is not None and transfer.push:
            raise ConfigError("migration: not modelled with transfer.start: push; try pull")
        if transfer is not None and self.link is not None:
            raise ConfigError("migration: KV moves as transfer says; leave its own link out")
        if transfer is None and self.link is None and self.mode != "recompute":
            raise ConfigError(f"migration.mode: {self.mode}: needs bandwidth_bytes_per_s")
        if self.link is not None and self.link.bandwidth_bytes_per_s is None and not has_network:
            raise ConfigError("migration.bandwidth_bytes_per_s: needed without a topology")
        for spec in pool.replicas:
            name = called(spec.policy)
            if spec.policy.alone or not spec.policy.joins_loaded:
                raise ConfigError(f"migration: not modelled with policy {name}; try another one")
            if spec.kind is not None:
                raise ConfigError("migration: not modelled in a pipeline; try one stage")


@dataclass(eq=False)
class Migration:
    """One request on the move.

    Attributes:
        life: Whose.
        held: The request as the source sees it.
        source: Where it runs, or ran.
        target: Where it goes.
        start_ns: When that was ordered.
        preemptions: Of `held` then: it stays if it has been preempted since.
        request: As the target sees it; None while nothing is reserved there.
        sent_blocks: Of the source's, that the target has, or will have when the stage is over.
        stages: That have started.
        num_bytes: Sent, those of the stage in flight included.
        stop_ns: When it stopped; `NEVER` before.
        way: What is awaited: the end of a copy, or of a step.
    """

    life: Lifetime
    held: Request
    source: Replica
    target: Replica
    start_ns: int
    preemptions: int
    request: Request | None = None
    sent_blocks: int = 0
    stages: int = 0
    num_bytes: int = 0
    stop_ns: int = NEVER
    way: Instant | OnTheWay | None = None

    @property
    def stopped(self) -> bool:
        """It is in its last stage."""
        return self.stop_ns != NEVER


class Migrations:
    """All requests on the move during one run, and the rounds in which that is decided.

    Attributes:
        spec: How they move.
        under_way: By the index of the request, in order of start.
    """

    def __init__(self, live: LiveCluster, spec: MigrationSpec) -> None:
        self._live, self.spec = live, spec
        self._migrator = copy.deepcopy(spec.migrator)
        self.under_way: dict[int, Migration] = {}
        self._round: Tick | None = None
        self._nics: Nics | None = None
        link = spec.link
        if link is not None and link.shares_links and live.network is None:
            self._nics = Nics(live.env, link)

    def join(self, replica: Replica) -> None:
        """One more replica."""
        if self._nics is not None:
            self._nics.join(replica)

    @property
    def _carrier(self) -> Carrier | None:
        between = self._live.between
        return (self._live.network or self._nics) if between is None else between.carrier

    @property
    def _link(self) -> TransferSpec:
        link = self.spec.link if self._live.between is None else self._live.between.spec
        assert link is not None
        return link

    # --- what migrators see

    def is_moving(self, request: Request) -> bool:
        """Whether it is on the move."""
        return request.index in self.under_way

    def count(self, *, source: Replica | None = None, target: Replica | None = None) -> int:
        """How many are on the move from a replica, or to one."""
        return sum(m.source is source or m.target is target for m in self.under_way.values())

    def unsent(self, replica: Replica) -> int:
        """Requests handed to a decode replica that has not sent for their KV."""
        between = self._live.between
        return 0 if between is None else len(between.pulls[replica])

    def head_of(self, replica: Replica) -> Request | None:
        """The first that waits on a replica: in its queue, else for its KV to be sent for."""
        if replica.state.waiting:
            return replica.state.waiting.head
        between = self._live.between
        pulls = None if between is None else between.pulls[replica]
        return pulls[0].request if pulls else None

    # --- rounds

    def wake(self) -> None:
        """Something is about to change from outside: rounds go on."""
        if self._round is None:
            interval = self.spec.interval_ns
            delay = interval - now_ns(self._live.env) % interval
            live = self._live
            self._round = Tick(live.env, delay, Phase.MIGRATION, live.in_motion)
            self._round.callbacks.append(self._ask)

    def rest(self) -> None:
        """Nobody is left in the cluster: there is no round before somebody arrives."""
        if self._round is not None:
            self._round.call_off()
            self._round = None

    def _ask(self, _: Any) -> None:
        self._round = None
        pool = self._live.decode or self._live.entry
        loads = [
            ReplicaLoad(replica, self)
            for replica in pool.replicas
            if replica.condition in (UP, DRAINING)
        ]
        for order in list(self._migrator.decide(loads, now_ns(self._live.env))):
            self._begin(order)
        if self._live.in_motion():
            self.wake()

    def _begin(self, order: Order) -> None:
        self._check(order)
        held, source, target = order.request, order.source.replica, order.target.replica
        life, now = source.lives[held], now_ns(self._live.env)
        migration = Migration(life, held, source, target, now, held.preemptions)
        self.under_way[held.index] = migration
        self._live.note_event(life, MIGRATING, source)
        self._go_on(migration)

    def _check(self, order: Order) -> None:
        """An order that cannot be carried out is a mistake of the migrator."""
        request, source, target = order
        if source.index == target.index:
            problem = "it is there already"
        elif not target.takes_requests:
            problem = f"replica {target.index} takes no requests"
        elif request not in source.movable:
            problem = "it is not one of movable"
        elif not target.could_run(request):
            problem = f"replica {target.index} could never run it"
        else:
            return
        raise ConfigError(
            f"migrator {called(self._migrator)} ordered {request} from replica "
            f"{source.index} to {target.index}: {problem}"
        )

    # --- stages

    def _trouble(self, m: Migration) -> str | None:
        """Why the request stays (rule 9), or None."""
        if m.life.ended:
            return "ended"
        if m.held.preemptions != m.preemptions:
            return "preempted"
        return None if m.target.condition == UP else "target_leaves"

    def _go_on(self, m: Migration, _: Any = None) -> None:
        """The next stage, if it is still wanted."""
        trouble = self._trouble(m)
        if trouble is not None:
            self._stay(m, trouble)
            return
        m.source.sync()
        block, stored = m.source.kv.block_tokens, m.held.computed_tokens
        left = -(-stored // block) - m.sent_blocks
        if self.spec.mode != "live" or left <= self.spec.last_stage_blocks:
            self._stop(m)
        elif m.stages + 1 == self.spec.max_stages:
            self._stay(m, "too_many_stages")
        elif not self._make_place(m, stored // block * block):
            self._stay(m, "no_room")
        else:
            self._send(m, stored // block, partial(self._copied, m))

    def _copied(self, m: Migration) -> None:
        """Phase (2): a stage that is not the last one is over."""
        m.way = Instant(self._live.env, 0, _AFTER_ENDS)
        m.way.callbacks.append(partial(self._go_on, m))

    def _make_place(self, m: Migration, tokens: int) -> bool:
        """Reserve blocks at the target for so many tokens; the first time, look what is there."""
        if m.request is not None:
            return m.target.make_place(m.request, tokens) is not None
        request = self._at_target(m)
        found = m.target.make_place(request, tokens)
        if found is None:
            return False
        m.request = request
        m.sent_blocks = found // m.source.kv.block_tokens
        return True

    def _at_target(self, m: Migration) -> Request:
        return self._live.request_of(m.life, at_entry=self._live.decode is None)

    def _send(self, m: Migration, upto: int, on_end: Callable[[], None]) -> None:
        """Copy the blocks of the source up to that number."""
        source, env = m.source, self._live.env
        blocks = max(0, upto - m.sent_blocks)
        size = blocks * source.kv.block_tokens * source.spec.kv_bytes_per_token
        m.stages += 1
        m.sent_blocks += blocks
        m.num_bytes += size
        carrier = self._carrier
        if carrier is not None:
            m.way = carrier.send(source, m.target, m.held.index, size, on_end)
            return
        m.way = Instant(env, self._link.duration_ns(size), Phase.TRANSFER_END)
        m.way.callbacks.append(lambda _: on_end())

    def _stop(self, m: Migration, _: Any = None) -> None:
        """The last stage: the request stops as soon as no step computes it."""
        trouble = self._trouble(m)
        if trouble is not None:
            self._stay(m, trouble)
            return
        now, ends_ns = now_ns(self._live.env), m.source.end_of_step_with(m.held)
        if ends_ns is not None:
            m.way = Instant(self._live.env, ends_ns - now, _AFTER_ENDS)
            m.way.callbacks.append(partial(self._stop, m))
        elif self.spec.mode == "recompute":
            self._restart(m)
        else:
            self._copy_rest(m)

    def _copy_rest(self, m: Migration) -> None:
        stored = m.held.computed_tokens
        if not self._make_place(m, stored):
            self._stay(m, "no_room")
            return
        request, source, target = m.request, m.source, m.target
        assert request is not None
        request.emitted_then = m.held.emitted_tokens
        m.stop_ns = now_ns(self._live.env)
        self._live.note_event(m.life, STOPPED, source)
        target.expect_kv(request, source.part_with(m.held))
        m.life.goes_to(MIGRATED, m.stop_ns)
        self._place(m, target)
        source.notify()
        self._send(m, -(-stored // source.kv.block_tokens), partial(self._moved, m))

    def _place(self, m: Migration, replica: Replica) -> None:
        """The replica that serves it, in the outcomes."""
        if replica.role == "decode":
            m.life.decode_replica = replica.place
        else:
            m.life.replica = replica.place

    def _moved(self, m: Migration) -> None:
        """Phase (2): the last copy is over."""
        request, life = m.request, m.life
        assert request is not None
        m.source.free_held(m.held)
        m.source.notify()
        m.target.load(request, m.held.computed_then)
        if not life.ended:
            life.migrations += 1
            self._live.note_event(life, LOADED, m.target)
        self._over(m, "ended" if life.ended else "moved")

    def _restart(self, m: Migration) -> None:
        """Mode ``recompute``: it stops, and its target prefills it again."""
        life, held, source, target = m.life, m.held, m.source, m.target
        request, stored = self._at_target(m), held.computed_tokens
        request.emitted_then = held.emitted_tokens
        m.stop_ns = now_ns(self._live.env)
        self._live.note_event(life, STOPPED, source)
        source.drop(held)
        source.relieved()
        source.notify()
        life.migrations += 1
        life.recomputed_tokens += stored
        life.lost_tokens = stored
        if life.account is not None:
            life.account.lose(stored, PREEMPTED, m.stop_ns)
        self._place(m, target)
        target.restart(request, life)
        self._live.note_event(life, QUEUED, target)
        self._over(m, "moved")

    # --- it does not move

    def _stay(self, m: Migration, outcome: str) -> None:
        """It runs on where it is, or has ended; what the target has reserved is free."""
        if m.request is not None:
            m.target.clear_place(m.request)
        self._live.note_event(m.life, STAYED, m.source)
        self._over(m, outcome)

    def _over(self, m: Migration, outcome: str) -> None:
        del self.under_way[m.held.index]
        now = now_ns(self._live.env)
        self._live.recorder.migrations.extend(
            (
                m.held.index,
                m.source.place,
                m.target.place,
                m.start_ns,
                m.stop_ns,
                now,
                m.stages,
                m.num_bytes,
                OUTCOMES.index(outcome),
            )
        )

    def cancel(self, life: Lifetime) -> bool:
        """Phase (2b): a client gives up; whether its request is in its last stage."""
        m = self.under_way.get(life.arrival.index)
        if m is None or not m.stopped:
            return False
        assert m.request is not None
        m.target.sign_off(m.request)
        return True

    def fail(self, replica: Replica) -> list[Lifetime]:
        """Phase (2c): a replica is about to fail.

        Returns:
            Whose request was in its last stage, its KV being kept there: that is lost.
        """
        lost = []
        for m in list(self.under_way.values()):
            if replica not in (m.source, m.target):
                continue
            if m.way is not None:
                m.way.call_off()
            outcome = "source_failed" if m.source is replica else "target_failed"
            if not m.stopped:
                self._stay(m, outcome)
                continue
            if m.source is replica:
                lost += self._lose(m)
            else:
                self._return(m)
            self._over(m, outcome)
        return lost

    def _lose(self, m: Migration) -> list[Lifetime]:
        """The source of a request in its last stage fails: the target gives back its blocks."""
        request, life = m.request, m.life
        assert request is not None
        m.target.turn_back(request)
        del m.source.kept[m.held]
        if life.ended:
            return []
        life.lose(m.held.computed_then, now_ns(self._live.env))
        return [life]

    def _return(self, m: Migration) -> None:
        """The target of a request in its last stage fails: it goes on at its source."""
        request, source = m.request, m.source
        assert request is not None
        del m.target.lives[request]
        if m.life.ended:
            source.free_held(m.held)
            source.notify()
            return
        source.take_back(m.held)
        self._place(m, source)
        self._live.note_event(m.life, LOADED, source)
