"""A mixed pool: replicas of two pools run whole requests under load, and go back (Splitwise).

The rules, in the form of those they add to. With two pools, in phase (3), before a request is
routed:

- A replica is **mixed** while a request is outstanding on it that was placed there *whole*, to be
  prefilled and decoded. Mixed replicas are offered to no router of their pool, at arrival or at the
  hand-over (2d), unless all that take requests and can run the request are mixed; they finish what
  was routed or handed to them before. When its last whole request has ended, or has left it, a
  replica is what it was: it needs no drain, and its role and index never change.
- A replica is **long** for a request of p tokens if somebody waits in its queue and the tokens left
  to prefill there and p together are over `max_prompt_tokens`. It is **full** for it if the blocks
  that it needs (`ReplicaView.needed_blocks`) and those for p tokens together are over
  `max_kv_share` of all its blocks. This is the state as it is, whatever a router's snapshots say.
- If some prefill replica that is not mixed, is up and can run the request is not long, and some
  such decode replica is not full, the request goes its way as always: the prefill router chooses
  among those that are not long, the decode router later among all that are not mixed.
- Else it is placed whole on a replica that is up, can run it as the decode pool sees it, and is
  neither long nor full: on a mixed one, else on one of the pool that has room (a decode replica
  where prompts queue, a prefill replica where memory is full), which is mixed from now on. Of
  several it is that with the fewest tokens left to prefill (where only memory is full: with the
  smallest share of blocks needed), ties to the prefill pool, then to the lowest index. No router
  takes a turn for it.
- If there is none, it goes its way as always, among all prefill replicas that are not mixed. But
  where one of the pools has no replica at all that takes requests and can run it, it is placed
  whole on whichever can, long or full: that with the fewest tokens left to prefill, ties as above.
- A whole request counts with p, m and o as on a colocated replica (rule 29 does not apply), emits
  all its tokens there, and is preempted, cancelled and lost with its replica as there. On a decode
  replica it stands in one line with those handed over, as in `sim.local_prefill`. On a prefill
  replica it is one of the running, so that prompts and its decodes share steps as the policy says.

Source: Patel et al., Splitwise (ISCA 2024), on its cluster-level scheduler, and
``MixedPoolScheduler`` of its simulator (splitwise-sim, ``scheduler.py``): a prompt machine, then a
mixed one, whose pending prompt tokens are not over a limit where somebody is pending, else a token
machine that becomes mixed; a token machine, then a mixed one, with memory, else a prompt machine
that becomes mixed; if neither is found the least loaded machine of all runs both phases; a mixed
machine that is free goes back to the pool it came from. Differences: there the two phases of a
request may run on two machines of which one is mixed, here a mixed machine runs both; there memory
is counted with the true output length, here with the tokens known; there the token machine is
chosen at arrival, here so with `decode_first` or push only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from sim.errors import ConfigError, called
from sim.pool import can_run
from sim.replica_spec import UP

if TYPE_CHECKING:
    from sim.cluster import LiveCluster
    from sim.policy import ReplicaView
    from sim.pool import Pool, PoolSpec
    from sim.records import Lifetime
    from sim.replica import Replica
    from sim.request import Request
    from sim.transfer import TransferSpec


@dataclass(frozen=True)
class MixedPool:
    """When replicas take whole requests; see the text above.

    Attributes:
        max_prompt_tokens: Tokens to prefill above which a queue is long.
        max_kv_share: Share of the blocks of a replica above which it is full; exact.
    """

    max_prompt_tokens: int
    max_kv_share: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        if self.max_prompt_tokens < 1:
            raise ConfigError(f"max_prompt_tokens: {self.max_prompt_tokens}: expected at least 1")
        if not 0 < self.max_kv_share <= 1:
            raise ConfigError(
                f"max_kv_share: {float(self.max_kv_share):g}: expected over 0 and at most 1"
            )


def check(entry: PoolSpec, decode: PoolSpec | None, transfer: TransferSpec | None) -> None:
    """Refuse layouts in which a replica cannot do the work of the other side.

    Raises:
        ConfigError: One pool, a policy that does one thing only, or first tokens that are withheld.
    """
    if decode is None or transfer is None:
        raise ConfigError("mixed_pool: there is one pool, whose replicas do both; leave it out")
    for pool in (entry, decode):
        for replica in pool.replicas:
            if not replica.policy.prefills_who_waits:
                raise ConfigError(
                    f"mixed_pool: policy {called(replica.policy)} of pool {pool.name} forms "
                    "batches of requests of one phase; try vllm-v1"
                )
    if transfer.recompute_last_token:
        raise ConfigError(
            "mixed_pool: with recompute_last_token prefill replicas emit nothing to clients, and "
            "so can finish no request; leave out one of them"
        )


class Mixing:
    """The mixed replicas of one run.

    Args:
        live: The cluster, with two pools.
        spec: When replicas are mixed.
    """

    def __init__(self, live: LiveCluster, spec: MixedPool) -> None:
        self._live, self._spec = live, spec
        self._whole: dict[Replica, deque[tuple[Lifetime, Request]]] = {}

    def target_of(self, life: Lifetime, seen: Request, whole: Request) -> Replica | None:
        """Phase (3): the replica that runs the request whole; None: it goes its way as always.

        Args:
            life: Which request.
            seen: As the prefill pool sees it.
            whole: As a replica that runs it whole sees it.
        """
        self.look()
        live = self._live
        assert live.decode is not None
        tokens = whole.known_tokens
        late = not any(not self._long(x, tokens) for x in self._pure(live.entry, seen))
        full = not any(not self._full(x, tokens) for x in self._pure(live.decode, whole))
        if not late and not full:
            return None
        target = self._open(whole, live.decode if late else live.entry, late=late)
        if target is None and not (_able(live.entry, seen) and _able(live.decode, whole)):
            there = [*_able(live.entry, whole), *_able(live.decode, whole)]
            target = min(there, key=_tokens_left, default=None)
        if target is not None:
            self._whole.setdefault(target, deque()).append((life, whole))
            live.pool_of(target).aside.add(target)
        return target

    def offered(self, seen: Request) -> Sequence[ReplicaView] | None:
        """Views of the prefill replicas among which the router chooses; None: all that can."""
        pool, tokens = self._live.entry, seen.known_tokens
        short = [x.index for x in self._pure(pool, seen) if not self._long(x, tokens)]
        views = pool.views
        return [views[index] for index in short] or None

    def look(self) -> None:
        """Replicas whose last whole request has ended, or has left, are what they were."""
        for replica, placed in list(self._whole.items()):
            while placed and not _is_there(*placed[0], replica):
                placed.popleft()
            if not placed:
                del self._whole[replica]
                self._live.pool_of(replica).aside.remove(replica)

    def _pure(self, pool: Pool, request: Request) -> list[Replica]:
        return [x for x in _able(pool, request) if x not in self._whole]

    def _open(self, whole: Request, room: Pool, *, late: bool) -> Replica | None:
        """Where the request can run whole: on a mixed replica, else in the pool with room."""
        key: Callable[[Replica], Fraction | int] = _tokens_left if late else _share
        mixed = [x for x in self._whole if x.condition == UP and can_run(x, whole)]
        mixed.sort(key=lambda x: (x.role == "decode", x.index))
        tokens = whole.known_tokens
        for group in (mixed, self._pure(room, whole)):
            able = [x for x in group if not self._long(x, tokens) and not self._full(x, tokens)]
            if able:
                return min(able, key=key)
        return None

    def _long(self, replica: Replica, tokens: int) -> bool:
        if not replica.waiting:
            return False
        return replica.prefill_tokens_left + tokens > self._spec.max_prompt_tokens

    def _full(self, replica: Replica, tokens: int) -> bool:
        needed = replica.needed_blocks + replica.kv.blocks_for(tokens)
        return needed > self._spec.max_kv_share * replica.total_blocks


def _able(pool: Pool, request: Request) -> list[Replica]:
    """Replicas that take requests and can run this one."""
    return [x for x in pool.replicas if x.condition == UP and can_run(x, request)]


def _is_there(life: Lifetime, request: Request, replica: Replica) -> bool:
    """Whether a whole request is outstanding where it was placed."""
    return life.where is replica and life.request is request and not life.ended


def _tokens_left(replica: Replica) -> int:
    return replica.prefill_tokens_left


def _share(replica: Replica) -> Fraction:
    return Fraction(replica.needed_blocks, replica.total_blocks)
