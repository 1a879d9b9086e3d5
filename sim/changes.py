"""A cluster that changes: replicas fail, come back, drain, join or change role (54, 78 to 84).

Changes happen in phase (2c) of their instants, in the order in which they are given.

- ``fail``: the step in flight (of a pipeline, the batches in all stages, oldest first) is lost
  whole and logged as lost, up to now; the KV of the replica, its cache and its host memory are
  gone. Re-routed in phase (3) are, in this order: those running, loaded, those whose KV is kept for
  the decode side as their prefills ended, swapped out, waiting.
  (Rule 79 does not name swapped requests: they are the first of those that wait, as in rule 20.) Or
  they end there and then as ``failed``, with the reason ``replica_failed`` (`OnFailure`). KV on its
  way to the replica is called off, and its source hands it over again in (2d).
- ``restore``: a replica that failed takes requests again, empty, from (2d) on; if it has to load
  its weights first, once it is ``up`` (`sim.startup`): ``restored`` is then recorded when the
  machine is back, and ``up`` when the weights are loaded.
- ``drain``: it takes no more requests, and is gone in (2c) of the instant in which nothing is left,
  after the changes of that instant: also one that is empty as its drain begins may still fail then.
- ``add``: one more replica, like one that its pool has, with the next index, takes part from (2d),
  or once it is ``up``.
- ``role``: it drains, and when it is gone it joins the other of two pools, as a new replica with
  the next index there (rule 82), in the same (2c), after the changes and drains of that instant, so
  that it takes part from (2d); of several the prefill replicas come first, in order of index. It
  has the GPUs that it had, also on a topology, and nothing to load; it is made as the first replica
  of its new pool (policy, order, limits), is empty, and is not slow any more. One that fails while
  it drains is gone, and joins nothing.

A fail or restore of a replica that is gone by then, the last of its drain being over, changes
nothing and is not recorded. A lost iteration has no number: the next one of the replica has it.

A request that nobody takes who could run it waits at the router, in order of coming, and blocks no
other (rule 78); arriving so, it is not judged by admission control. Who is left when nothing more
can happen is ``unfinished``. So is whoever is left when a state returns, as replicas then only
recompute (rule 84): `sim.standstill`.

Of the routers none is told of changes: an index of what was sent where (``prefix-aware``) does not
know that a replica has lost its cache, as in the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Literal

from sim.attribution import QUEUE_NO_REPLICA
from sim.clock import Instant, Phase, Tick, now_ns
from sim.errors import ConfigError
from sim.records import CHANGES, FAILED, LOST, Lifetime
from sim.replica import Replica
from sim.replica_spec import DRAINING, GONE, STARTING, UP, ReplicaSpec
from sim.replica_spec import FAILED as DOWN
from sim.standstill import Standstill

if TYPE_CHECKING:
    from simpy.events import Event

    from sim.cluster import LiveCluster
    from sim.pool import Pool
    from sim.slow_down import Degrade, Slow

OnFailure = Literal["reroute", "fail"]
"""What becomes of the requests of a replica that fails."""

REPLICA_FAILED = "replica_failed"
_DECODE_RANK = 1 << 24
"""More than a pool has replicas: those of the decode pool change role later within (2c)."""


@dataclass(frozen=True)
class Change:
    """One change, to be given to `simulate` with its instant.

    Attributes:
        what: ``fail``, ``restore``, ``drain``, ``add`` or ``role``.
        index: Position of the replica in its pool; for ``add``, of one that the new one is like.
        decode: Of the decode pool, not of the pool that requests enter.
        keeps_spec: For ``role``: it keeps its policy, memory and step time as well.
    """

    what: Literal["fail", "restore", "drain", "add", "role"]
    index: int = 0
    decode: bool = False
    keeps_spec: bool = False

    def __call__(self, live: LiveCluster) -> None:
        """Make the change, in phase (2c).

        Raises:
            ConfigError: There is no such replica, or it is not in a condition to change so.
        """
        pool, replica = located(live, self.what, self.index, self.decode)
        if self.what == "role":
            live.changes.role(pool, replica, keeps_spec=self.keeps_spec)
        else:
            getattr(live.changes, self.what)(pool, replica)


def located(live: LiveCluster, what: str, index: int, decode: bool) -> tuple[Pool, Replica]:
    """The replica that is to change, and its pool.

    Raises:
        ConfigError: There is none.
    """
    pool = live.decode if decode else live.entry
    if pool is None:
        raise ConfigError(f"{what}: there is no decode pool")
    if not 0 <= index < len(pool.replicas):
        raise ConfigError(
            f"{what} of replica {index} of pool {pool.spec.name}: there is no such replica; choose "
            f"from 0 to {len(pool.replicas) - 1}"
        )
    return pool, pool.replicas[index]


class Changes:
    """What changes in a cluster, and who waits for it.

    Attributes:
        expected: Something changes in this run.
        to_come: Changes whose instant is still to come.
        all_arrived: No arrival of the trace is still to come.
        at_router: Requests that wait for a replica, in order of coming.
        on_join: Called with each replica that joins.
        slow: What slows each straggler (`sim.slow_down`).
        degraded: What slows the NIC of each replica that has such.
        standstill: Whether the run goes on without getting anywhere.
    """

    def __init__(self, live: LiveCluster) -> None:
        self._live = live
        self.expected = False
        self.to_come = 0
        self.all_arrived = False
        self.at_router: list[Lifetime] = []
        self.on_join: list[Callable[[Replica], None]] = []
        self.slow: dict[Replica, Slow] = {}
        self.degraded: dict[Replica, Degrade] = {}
        self.standstill = Standstill(live)
        # Whose replica has just failed, or whose KV was not fetched in time: why, and what then.
        self._lost: list[tuple[Lifetime, str, OnFailure]] = []
        self._coming = False
        self._becomes: dict[Replica, tuple[Pool, ReplicaSpec]] = {}  # who changes role, into what
        self._loading: dict[Replica, Instant] = {}  # who loads weights, and when that is over

    def expect(self, changes: int) -> None:
        """So many will be made."""
        transfer = self._live.spec.transfer
        if changes and transfer is not None and transfer.staging is not None:
            raise ConfigError(
                "transfer.staging: a cluster that changes is not modelled with it; leave it out"
            )
        self.to_come += changes
        self.expected = self.expected or changes > 0

    @property
    def closed(self) -> bool:
        """Whether nothing more comes from outside, so that who is left stays so (78, 84)."""
        return self.expected and not self.open

    @property
    def open(self) -> bool:
        """Whether an arrival, a cancellation or a change is to come."""
        live = self._live
        return bool(self.to_come or live.impatient or live.arriving or not self.all_arrived)

    def may_help(self) -> bool:
        """Whether memory may come back through changes still to come."""
        if self.to_come > 0 or (self._stranded and not self.all_arrived):
            return True
        return self.standstill.is_looked_for

    @property
    def _stranded(self) -> bool:
        between = self._live.between
        return between is not None and bool(between.stranded)

    # --- changes

    def fail(self, pool: Pool, replica: Replica) -> None:
        """Everything on the replica is lost; a draining one is gone."""
        if replica.condition == GONE:
            return
        if replica.condition == DOWN:
            raise refused("fail", pool, replica)
        if self._live.fetches is not None:
            self._live.fetches.fail(replica)
        lost = self._lose_all(replica)
        if replica.condition == UP:
            pool.missing += 1
        self._stop_loading(replica)
        self.slow.pop(replica, None)
        drained, replica.condition = replica.condition == DRAINING, DOWN
        self.note("failed", replica, lost=len(lost))
        if drained:
            self._becomes.pop(replica, None)
            self._is_gone(replica)
        for life in lost:
            self._live.note_event(life, LOST, replica)
        then = self._live.spec.on_failure
        self._lost += [(life, REPLICA_FAILED, then) for life in lost]
        self._call_arrivals()

    def _lose_all(self, replica: Replica) -> list[Lifetime]:
        """Whoever is on the replica, in the order of rule 79; what they have elsewhere is freed."""
        between, moving = self._live.between, self._live.migrations
        moved = [] if moving is None else moving.fail(replica)
        if between is None:
            begun, waiting = replica.fail()
            return [*begun, *moved, *waiting]
        between.lose_target(replica)
        held, ended = replica.kept, [life for life in replica.lives.values() if life.ended]
        begun, waiting = replica.fail()
        between.attach(replica)
        for life in begun:
            between.left_early(life)
        kept = between.lose_source(held)
        for life in (*waiting, *ended):
            between.left_early(life)
        return [*begun, *kept, *moved, *waiting]

    def restore(self, pool: Pool, replica: Replica) -> None:
        """A replica that failed is up again, and empty."""
        if replica.condition == GONE:
            return
        if replica.condition != DOWN:
            raise refused("restore", pool, replica)
        self.note("restored", replica)
        self._start(pool, replica)

    def drain(self, pool: Pool, replica: Replica) -> None:
        """It takes no more requests; one that has not come up yet never does."""
        if replica.condition not in (UP, STARTING):
            raise refused("drain", pool, replica)
        if replica.condition == UP:
            pool.missing += 1
        self._stop_loading(replica)
        replica.condition = DRAINING
        self.note("draining", replica)
        if replica.empty:
            self.emptied(replica)

    def role(self, pool: Pool, replica: Replica, *, keeps_spec: bool = False) -> None:
        """It drains, and joins the other pool, as a new replica, when it is gone (rule 82).

        Raises:
            ConfigError: It is not up, there is one pool, or one there has other GPUs.
        """
        live = self._live
        other = live.entry if pool is live.decode else live.decode
        if other is None:
            raise ConfigError(
                f"role of replica {replica.index} of pool {pool.spec.name}: there is one pool, "
                "whose replicas do both"
            )
        if replica.condition != UP:
            raise refused("role", pool, replica)
        spec = replica.spec if keeps_spec else other.replicas[0].spec
        if spec.gpus != replica.spec.gpus:
            raise ConfigError(
                f"role of replica {replica.index} of pool {pool.spec.name}: it has "
                f"{replica.spec.gpus} GPUs, and those of the other pool {spec.gpus}"
            )
        self._becomes[replica] = other, spec
        self.drain(pool, replica)

    def _join_other(self, replica: Replica) -> None:
        """It is gone from its pool, and stands in the other in this very phase (2c)."""
        pool, spec = self._becomes.pop(replica)

        def join(_: Event) -> None:
            joined = self._live.add(pool, pool.replicas[0], spec, instead_of=replica)
            self.note("changed_role", joined)
            self._came_up()

        rank = 1 + replica.index + (_DECODE_RANK if replica.role == "decode" else 0)
        Instant(self._live.env, 0, Phase.CLUSTER_EVENT + rank).callbacks.append(join)

    def add(self, pool: Pool, like: Replica) -> None:
        """One more replica."""
        replica = self._live.add(pool, like)
        pool.missing += 1
        self.note("added", replica)
        self._start(pool, replica)

    def _start(self, pool: Pool, replica: Replica, after_ns: int = 0) -> None:
        """It loads its weights, and is up; its first iterations are slower (`sim.startup`)."""
        startup, live = replica.spec.startup, self._live
        replica.begin_warm_up(startup.warm_up)
        after_ns += startup.load_ns
        if not after_ns:
            self._is_up(pool, replica)
            return
        replica.condition = STARTING
        self.to_come += 1
        # Where all requests have ended nobody waits for it any more.
        ready = Tick(live.env, after_ns, Phase.CLUSTER_EVENT, lambda: bool(live.live))
        ready.callbacks.append(partial(self._has_loaded, pool, replica))
        self._loading[replica] = ready

    def _has_loaded(self, pool: Pool, replica: Replica, _: Event) -> None:
        self._live.stir()
        self._stop_loading(replica)
        self.note("up", replica)
        self._is_up(pool, replica)

    def _stop_loading(self, replica: Replica) -> None:
        ready = self._loading.pop(replica, None)
        if ready is not None:
            ready.call_off()
            self.to_come -= 1

    def _is_up(self, pool: Pool, replica: Replica) -> None:
        replica.condition = UP
        pool.missing -= 1
        self._came_up()

    def start(self, pool: Pool, spec: ReplicaSpec, after_ns: int) -> None:
        """One more replica, which begins to load its weights after some time."""
        replica = self._live.add(pool, pool.replicas[0], spec)
        pool.missing += 1
        self.note("added", replica)
        self._start(pool, replica, after_ns)

    def call_off(self, replica: Replica) -> None:
        """A replica that is starting will not come up."""
        self._stop_loading(replica)
        self.note("called_off", replica)
        self._is_gone(replica)

    @property
    def changes_role(self) -> bool:
        """Whether a replica drains, or has just drained, to change its role."""
        return bool(self._becomes)

    def never_there(self, pool: Pool, replica: Replica) -> None:
        """A replica of a pool that begins at zero is gone before anything happens."""
        pool.missing += 1
        replica.condition = GONE
        replica.left_ns = now_ns(self._live.env)
        if self._live.network is not None:
            self._live.network.leave(replica)

    def may_come_back(self, replica: Replica) -> bool:
        """Whether a replica may be taken back."""
        return replica.condition == DRAINING and replica not in self._becomes

    def take_back(self, pool: Pool, replica: Replica) -> None:
        """A draining replica takes requests again."""
        self.note("taken_back", replica)
        self._is_up(pool, replica)

    def emptied(self, replica: Replica) -> None:
        """Nothing is left on a draining replica: in (2c) of this instant it is gone."""

        def look(_: Event) -> None:
            if replica.condition == DRAINING and replica.empty:
                self._is_gone(replica)

        Instant(self._live.env, 0, Phase.CLUSTER_EVENT).callbacks.append(look)

    def _is_gone(self, replica: Replica) -> None:
        replica.condition = GONE
        replica.left_ns = now_ns(self._live.env)
        self.note("gone", replica)
        if replica in self._becomes:
            self._join_other(replica)
        elif self._live.network is not None:
            self._live.network.leave(replica)

    def note(
        self, change: str, replica: Replica, factor: Fraction | None = None, *, lost: int = 0
    ) -> None:
        """Record what happens to a replica now."""
        millionths = -1 if factor is None else round(factor * 1_000_000)
        row = now_ns(self._live.env), replica.place, CHANGES.index(change), lost, millionths
        self._live.recorder.changes.extend(row)

    # --- who waits

    def wait(self, life: Lifetime) -> None:
        """Nobody takes the request now: it waits at the router, and asks for a replica."""
        self.at_router.append(life)
        life.goes_to(QUEUE_NO_REPLICA, now_ns(self._live.env))
        self.ask(self._live.entry)

    def ask(self, pool: Pool) -> None:
        """A request waits for a replica of this pool, which may start one for it."""
        if pool.scaler is not None:
            pool.scaler.ask()

    def withdraw(self, life: Lifetime) -> None:
        """Its client gives up while it waits for a replica to come up."""
        if life in self.at_router:
            self.at_router.remove(life)

    def _came_up(self) -> None:
        if self._live.between is not None:
            self._live.between.came_up()
        self._call_arrivals()

    def _call_arrivals(self) -> None:
        """Those who wait, and who are routed again, come before other arrivals of this instant."""
        if not self._coming:
            self._coming = True
            Instant(self._live.env, 0, Phase.ARRIVAL - 1).callbacks.append(self._route)

    def _route(self, _: Event) -> None:
        """Phase (3), first those who waited at the router, then those whose replica failed."""
        self._coming = False
        live = self._live
        waiting, self.at_router = self.at_router, []
        for life in waiting:
            if not live.place(life, live.request_of(life, at_entry=True)):
                self.wait(life)
        lost, self._lost = self._lost, []
        for life, reason, then in lost:
            self._route_again(life, reason, then)

    def route_again(self, life: Lifetime, reason: str, then: OnFailure) -> None:
        """What a request had is lost: it is routed anew in phase (3), or fails for this reason."""
        self._lost.append((life, reason, then))
        self._call_arrivals()

    def _route_again(self, life: Lifetime, reason: str, then: OnFailure) -> None:
        live = self._live
        if then == "reroute":
            request = live.request_of(life, at_entry=True)
            refused = live.refusal(life, request)
            if refused is None:
                life.rerouted += 1
                if not live.place(life, request):
                    self.wait(life)
                return
            reason = refused
        live.end(life, FAILED, reason, now_ns(live.env))


def refused(what: str, pool: Pool, replica: Replica) -> ConfigError:
    can = {
        UP: "fail, drain or change role",
        STARTING: "fail or drain",
        DRAINING: "fail",
        DOWN: "restore",
        GONE: "nothing",
    }
    return ConfigError(
        f"{what} of replica {replica.index} of pool {pool.spec.name}: it is {replica.condition}; "
        f"what can happen to it then: {can[replica.condition]}"
    )
