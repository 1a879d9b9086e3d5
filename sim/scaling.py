"""The autoscaler of a pool at work: it looks, starts replicas and lets them drain.

The rules are those of `sim.autoscale`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from sim.autoscale import CoolDown, PoolView, ScalingSpec
from sim.clock import Instant, Phase, Tick, now_ns
from sim.pool import can_run
from sim.replica_spec import DRAINING, FAILED, STARTING, UP

if TYPE_CHECKING:
    from simpy.events import Event

    from sim.cluster import LiveCluster
    from sim.pool import Pool
    from sim.records import Lifetime
    from sim.replica import Replica

AFTER_EVENTS = 1 << 28
"""Within phase (2c): looks come after the events of the list and the ends of drains."""


class Watch:
    """Looks at a pool now and then.

    Args:
        live: The cluster.
        pool: The pool.
        keeps_ended: Requests that end are kept until the next look.
    """

    def __init__(self, live: LiveCluster, pool: Pool, *, keeps_ended: bool) -> None:
        self._live, self._pool = live, pool
        self._since_ns = self._arrived = 0
        self._busy_ns: dict[Replica, int] = {}
        self._ended: list[Lifetime] = []
        if keeps_ended:
            live.tell_ends(self._ended)

    def look(self) -> PoolView:
        """The pool as it is, and what happened since the last look."""
        live, replicas = self._live, self._pool.replicas
        up = [replica for replica in replicas if replica.condition == UP]
        present = {replica: replica.busy_by_now_ns for replica in up}
        conditions = [replica.condition for replica in replicas]
        now = now_ns(live.env)
        view = PoolView(
            now,
            self._since_ns,
            replicas[0].role,
            up,
            [busy - self._busy_ns.get(replica, 0) for replica, busy in present.items()],
            starting=conditions.count(STARTING),
            draining=conditions.count(DRAINING),
            failed=conditions.count(FAILED),
            without_replica=live.without_replica(self._pool),
            arrivals=live.arrived - self._arrived,
            live=live.live.values(),
            ended=tuple(self._ended),
        )
        self._since_ns, self._arrived, self._busy_ns = now, live.arrived, present
        self._ended.clear()
        return view


class Scaler:
    """Keeps the number of replicas of one pool where its autoscaler wants it.

    Args:
        live: The cluster.
        pool: The pool.
        spec: How it grows and shrinks.
    """

    def __init__(self, live: LiveCluster, pool: Pool, spec: ScalingSpec) -> None:
        self._live, self._pool, self._spec = live, pool, spec
        self._autoscaler = copy.deepcopy(spec.autoscaler)
        self._watch = Watch(live, pool, keeps_ended=self._autoscaler.sees_latencies)
        self._cool_down = CoolDown(spec, 0 if spec.from_zero else len(pool.replicas))
        self._like = pool.replicas[0].spec
        self._asked = False
        if spec.from_zero:
            for replica in pool.replicas:
                live.changes.never_there(pool, replica)
        self._arm()

    def _arm(self) -> None:
        rank = AFTER_EVENTS + (self._pool.replicas[0].role == "decode")
        tick = Tick(self._live.env, self._spec.interval_ns, Phase.CLUSTER_EVENT + rank)
        tick.callbacks.append(self._look)

    def _look(self, _: Event) -> None:
        view = self._watch.look()
        wanted = max(self._autoscaler.wanted(view), 1 if view.without_replica else 0)
        number = self._cool_down.number(view.now_ns, wanted, view.current)
        if number != view.current:
            self._live.stir()
            self._change(number - view.current)
        self._arm()

    # --- more and fewer

    def _change(self, by: int) -> None:
        for _ in range(by):
            self._one_more()
        if by < 0:
            self._fewer(-by)

    def _one_more(self) -> None:
        changes, pool = self._live.changes, self._pool
        if self._spec.take_back:
            back = next((x for x in pool.replicas if changes.may_come_back(x)), None)
            if back is not None:
                changes.take_back(pool, back)
                return
        changes.start(pool, self._like, max(1, self._spec.start_ns))

    def _fewer(self, number: int) -> None:
        changes, replicas = self._live.changes, self._pool.replicas
        starting = [x for x in reversed(replicas) if x.condition == STARTING]
        up = [x for x in replicas if x.condition == UP]
        up.sort(key=lambda replica: (replica.outstanding, -replica.index))
        for replica in [*starting, *up][:number]:
            if replica.condition == STARTING:
                changes.call_off(replica)
            else:
                changes.drain(self._pool, replica)

    # --- from zero

    def ask(self) -> None:
        """A request found no replica: between phases (3) and (4) one is asked for."""
        if not self._asked:
            self._asked = True
            Instant(self._live.env, 0, Phase.SCHEDULE - 1).callbacks.append(self._asked_for)

    def _asked_for(self, _: Event) -> None:
        self._asked = False
        live, pool = self._live, self._pool
        waiting = live.requests_without_replica(pool)
        there = [x for x in pool.replicas if x.condition in (UP, STARTING)]
        if there and pool.uniform:
            return
        if any(not any(can_run(x, request) for x in there) for request in waiting):
            live.stir()
            self._one_more()
            self._cool_down.note(now_ns(live.env), len(there) + 1)
