"""What a router knows of replicas that report now and then: `Snapshots` (rule 27).

With an interval of S ns, snapshot k (k = 0, 1, ...) is the state at k x S after the phases (1) to
(2c) of that instant: steps, transfers, cancellations and cluster events that end or happen there
are in it, hand-overs and arrivals of the instant are not. A decision at t sees snapshot floor(t/S),
so that decisions at k x S see the state of that very instant, without what was placed in it.

What the router knows by itself is not stale. `outstanding` and `serves` are exact at any time: it
has sent the requests, and answers pass through it. To the numbers of the snapshot it adds what it
has placed there since (at the instant of the snapshot included) and is still outstanding: each such
request counts as one that waits (`waiting` + 1), with the tokens it was placed with
(`outstanding_tokens`, `waiting_tokens`), those less what its router expects to be found cached
(`prefill_tokens_left`), and the blocks for its tokens (`needed_blocks`), which it does not hold
(`used_blocks`). What was there at the snapshot and has ended since counts until the next one; so do
the tokens and blocks that it held. So with ever shorter intervals a router sees the exact state.

A snapshot has no contents of caches: to look into a cache as it was, every loss since would have to
be undone. `cached_tokens` raises, and a router that `sees_contents` is refused with a snapshot
interval. (`prefix-aware` keeps an index of its own, of what it has routed, and needs none.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from sim.clock import Phase, Tick, now_ns
from sim.errors import ConfigError
from sim.policy import Prefix

if TYPE_CHECKING:
    from simpy import Environment
    from simpy.events import Event

    from sim.replica import Replica
    from sim.request import Request


class StaleView:
    """A replica as its last snapshot shows it, with what the router has placed there since.

    A `sim.policy.ReplicaView`; see there, and above for what each number is.

    Attributes:
        replica: What it is a view of.
        index: Position in its pool.
        as_of_ns: The instant of the snapshot.
    """

    __slots__ = (
        "_blocks",
        "_known",
        "_needed",
        "_prefill",
        "_since",
        "_waiting",
        "_waiting_tokens",
        "as_of_ns",
        "index",
        "replica",
    )

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.index = replica.index
        self._since: dict[Request, int] = {}  # what was placed since, with its tokens then
        self.take(0)

    def take(self, as_of_ns: int) -> None:
        """Make the present state the snapshot of that instant."""
        replica = self.replica
        self.as_of_ns = as_of_ns
        self._blocks = replica.used_blocks
        self._needed = replica.needed_blocks
        self._known = replica.outstanding_tokens
        self._prefill = replica.prefill_tokens_left
        self._waiting = replica.waiting
        self._waiting_tokens = replica.waiting_tokens
        self._since.clear()

    def place(self, request: Request) -> None:
        """The router has sent a request there."""
        self._since[request] = request.known_tokens

    def _in_flight(self) -> dict[Request, int]:
        """What was placed since the snapshot and is still outstanding; the rest is forgotten."""
        since = self._since
        for request in [r for r in since if not self.replica.serves(r)]:
            del since[request]
        return since

    @property
    def outstanding(self) -> int:
        """Requests outstanding there now."""
        return self.replica.outstanding

    def serves(self, request: Request) -> bool:
        """Whether a request is outstanding there now."""
        return self.replica.serves(request)

    @property
    def outstanding_tokens(self) -> int:
        """Prompt and emitted tokens, as of the snapshot, and of what was placed since."""
        return self._known + sum(self._in_flight().values())

    @property
    def waiting(self) -> int:
        """Requests in the queue at the snapshot, and those placed since."""
        return self._waiting + len(self._in_flight())

    @property
    def waiting_tokens(self) -> int:
        """Their tokens."""
        return self._waiting_tokens + sum(self._in_flight().values())

    @property
    def prefill_tokens_left(self) -> int:
        """Tokens to be prefilled at the snapshot, and of what was placed since."""
        since = self._in_flight().items()
        return self._prefill + sum(tokens - r.expected_cached_tokens for r, tokens in since)

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.replica.block_tokens

    @property
    def total_blocks(self) -> int:
        """Size of the KV pool."""
        return self.replica.total_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks used at the snapshot."""
        return self._blocks

    @property
    def needed_blocks(self) -> int:
        """Blocks needed at the snapshot, and those for what was placed since."""
        block = self.replica.block_tokens
        return self._needed + sum(-(-tokens // block) for tokens in self._in_flight().values())

    def cached_tokens(self, request: Request) -> int:
        """Not to be had from a snapshot."""
        raise ConfigError(
            "router_snapshot_s: a snapshot has no contents of caches; try router_snapshot_s: 0, "
            "or router prefix-aware, which keeps an index of its own"
        )

    def prefix(self, request: Request) -> Prefix:
        """Not to be had from a snapshot."""
        return Prefix(self.cached_tokens(request), 0)

    def prefill_ns(self, tokens: int, cached: int) -> int:
        """Time to prefill so many tokens alone there: the same at any time."""
        return self.replica.prefill_ns(tokens, cached)

    def decode_ns(self, requests: int, tokens: int) -> int:
        """Time of one step of decodes there: the same at any time."""
        return self.replica.decode_ns(requests, tokens)


class Snapshots:
    """Takes the snapshots of one pool while anything happens in the cluster.

    A snapshot at an instant between two of which nothing happened is the one before: so none is
    taken while the cluster is at rest, and the next arrival finds the state of the last multiple.

    Args:
        env: Keeps the time.
        interval_ns: Time between snapshots, at least 1.
        replicas: Those of the pool.
        in_motion: Whether anything is under way in the cluster that goes on by itself.
    """

    def __init__(
        self,
        env: Environment,
        interval_ns: int,
        replicas: Sequence[Replica],
        in_motion: Callable[[], bool],
    ) -> None:
        self._env = env
        self._interval_ns = interval_ns
        self._in_motion = in_motion
        self.views = [StaleView(replica) for replica in replicas]
        self._armed = False

    def add(self, replica: Replica) -> None:
        """One more replica, which is empty."""
        view = StaleView(replica)
        view.take(now_ns(self._env))
        self.views.append(view)

    def wake(self) -> None:
        """Something is about to change from outside: go on taking snapshots."""
        if self._armed:
            return
        now = now_ns(self._env)
        self._take(now - now % self._interval_ns)
        self._arm()

    def _arm(self) -> None:
        self._armed = True
        delay = self._interval_ns - now_ns(self._env) % self._interval_ns
        Tick(self._env, delay, Phase.SNAPSHOT).callbacks.append(self._ring)

    def _ring(self, _: Event) -> None:
        self._take(now_ns(self._env))
        self._armed = self._in_motion()
        if self._armed:
            self._arm()

    def _take(self, as_of_ns: int) -> None:
        for view in self.views:
            view.take(as_of_ns)
