"""Role switching: what a role switcher sees of two pools, what it says, and the rules that follow.

A cluster with a `RoleSpec` is looked at every `interval_ns`, at the multiples k = 1, 2, ... of it,
in phase (2c) of the instant: after the events of the list, the ends of drains and whoever joins by
them. Nothing is looked at any more when nothing else is left to happen.

- At every look the switcher is asked which pool **needs** one more replica, or none
  (`RoleSwitcher.needs`). It sees both pools as an autoscaler sees its own (`sim.autoscale`).
- Nothing follows while a replica drains to change its role; nor if the last one was ordered less
  than `cool_down_ns` ago; nor if the other pool has no more replicas up than `min_prefill` or
  `min_decode` says.
- Else, of the other pool's replicas that are up, that with the fewest outstanding requests, ties to
  the highest index, changes its role (`sim.changes`): it drains, keeps and finishes what was routed
  or handed to it, and then stands in the pool that needs it, on the same GPUs, with nothing to load
  (rule 82).

So a switch from decode takes as long as the longest answer that still runs there; `migration` with
evacuation shortens that. Arrow (arXiv 2505.11916) needs no drain: its instances are stateless, so
that one that has changed its role finishes old work beside the new.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from sim.autoscale import PoolView
from sim.clock import Phase, Tick, now_ns
from sim.errors import ConfigError
from sim.replica_spec import UP
from sim.scaling import AFTER_EVENTS, Watch

if TYPE_CHECKING:
    from simpy.events import Event

    from sim.cluster import LiveCluster
    from sim.pool import PoolSpec
    from sim.transfer import TransferSpec

Side = Literal["prefill", "decode"]


class RoleSwitcher:
    """Which pool needs a replica of the other.

    Subclass it as a dataclass, whose fields are its options, and write `needs`. A run works on a
    copy, so that it may keep what it saw. It draws nothing, and sees no output lengths but those of
    requests that have ended.

    Class attributes:
        sees_latencies: It asks for `PoolView.tpots_ns` or `ttfts_ns`, so that requests that end
            are kept until the next look.
    """

    sees_latencies: ClassVar[bool] = False

    def check(self) -> None:
        """Raise `ConfigError` if these options cannot work."""

    def needs(self, prefill: PoolView, decode: PoolView) -> Side | None:
        """The pool that needs one more replica, which the other one gives; None: neither."""
        raise NotImplementedError(f"{type(self).__name__} must say: needs(prefill, decode)")


@dataclass(frozen=True)
class RoleSpec:
    """How replicas change their roles by themselves; the rules are above.

    Attributes:
        switcher: Says which pool needs one more.
        interval_ns: Time between looks.
        cool_down_ns: From one order to the next, at least.
        min_prefill: Prefill replicas that stay up.
        min_decode: Decode replicas that stay up.
    """

    switcher: RoleSwitcher
    interval_ns: int = 1_000_000_000
    cool_down_ns: int = 0
    min_prefill: int = 1
    min_decode: int = 1

    def __post_init__(self) -> None:
        if self.interval_ns < 1:
            raise ConfigError(f"interval_s: {self.interval_ns} ns: expected more than 0")
        if self.cool_down_ns < 0:
            raise ConfigError(f"cool_down_s: {self.cool_down_ns} ns: expected at least 0")
        if min(self.min_prefill, self.min_decode) < 1:
            raise ConfigError(
                f"min_prefill {self.min_prefill}, min_decode {self.min_decode}: expected at least "
                "1 of each, since requests need both"
            )
        self.switcher.check()


def check(entry: PoolSpec, decode: PoolSpec | None, transfer: TransferSpec | None) -> None:
    """Refuse layouts whose replicas cannot change roles.

    Raises:
        ConfigError: There is one pool, they differ in GPUs, or something else rules their numbers.
    """
    if decode is None or transfer is None:
        raise ConfigError("role_switching: there is one pool, whose replicas do both; leave it out")
    sizes = {replica.gpus for pool in (entry, decode) for replica in pool.replicas}
    if len(sizes) > 1:
        raise ConfigError(
            f"role_switching: replicas of {min(sizes)} and of {max(sizes)} GPUs cannot stand in "
            "for each other; let all have as many"
        )
    if entry.scaling is not None or decode.scaling is not None:
        raise ConfigError(
            "role_switching: a pool that scales by itself would undo it; leave out one of them"
        )
    if transfer.staging is not None:
        raise ConfigError(
            "transfer.staging: is not modelled where replicas change; leave it out, or "
            "role_switching"
        )


class RoleSwitching:
    """Looks at both pools of a run, and lets replicas change their role.

    Args:
        live: The cluster, with two pools.
        spec: How they do so.
    """

    def __init__(self, live: LiveCluster, spec: RoleSpec) -> None:
        assert live.decode is not None
        self._live, self._spec = live, spec
        self._switcher = copy.deepcopy(spec.switcher)
        self._pools = {"prefill": live.entry, "decode": live.decode}
        keeps = self._switcher.sees_latencies
        self._watches = {
            side: Watch(live, pool, keeps_ended=keeps) for side, pool in self._pools.items()
        }
        self._ordered_ns: int | None = None
        self._arm()

    def _arm(self) -> None:
        tick = Tick(self._live.env, self._spec.interval_ns, Phase.CLUSTER_EVENT + AFTER_EVENTS)
        tick.callbacks.append(self._look)

    def _look(self, _: Event) -> None:
        views = {side: watch.look() for side, watch in self._watches.items()}
        needs = self._switcher.needs(views["prefill"], views["decode"])
        if needs is not None and self._may_order():
            self._order("prefill" if needs == "decode" else "decode")
        self._arm()

    def _may_order(self) -> bool:
        if self._live.changes.changes_role:
            return False
        before, now = self._ordered_ns, now_ns(self._live.env)
        return before is None or now - before >= self._spec.cool_down_ns

    def _order(self, gives: Side) -> None:
        """One of the pool that gives drains, if that has any to spare."""
        live, spec, pool = self._live, self._spec, self._pools[gives]
        up = [replica for replica in pool.replicas if replica.condition == UP]
        if len(up) <= (spec.min_prefill if gives == "prefill" else spec.min_decode):
            return
        chosen = min(up, key=lambda replica: (replica.outstanding, -replica.index))
        self._ordered_ns = now_ns(live.env)
        live.stir()
        live.changes.role(pool, chosen)
