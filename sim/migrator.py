"""`Migrator`, the plug-in that says which running requests move to other replicas, and its view.

It is asked in rounds (`sim.migration`), sees a `ReplicaLoad` of each replica of one pool, and
answers with `Order`s. Of requests it sees what policies see, never the true output length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sim.replica_spec import DRAINING, UP
from sim.request import Request

if TYPE_CHECKING:
    from sim.migration import Migrations
    from sim.replica import Replica


class ReplicaLoad:
    """A replica as a migrator sees it, as of now; numbers are worked out when asked for.

    Attributes:
        replica: What it is a view of.
        index: Position in its pool.
    """

    def __init__(self, replica: Replica, migrations: Migrations) -> None:
        self.replica, self._migrations = replica, migrations
        self.index = replica.index

    @property
    def takes_requests(self) -> bool:
        """It is up, so that requests may move there."""
        return self.replica.condition == UP

    @property
    def draining(self) -> bool:
        """It takes no more requests, and is gone when it has none."""
        return self.replica.condition == DRAINING

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.replica.block_tokens

    @property
    def total_blocks(self) -> int:
        """Size of its KV pool."""
        return self.replica.total_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that can be had now, those cached and unused included, above its watermark.

        Blocks reserved for requests on their way to it are not free.
        """
        replica = self.replica
        return replica.total_blocks - replica.used_blocks - replica.watermark

    @property
    def running(self) -> Sequence[Request]:
        """Those that run there, half-prefilled ones included, in order of joining."""
        self.replica.sync()
        return list(self.replica.state.running)

    @property
    def waiting(self) -> int:
        """Requests that wait there, for their prefill or to have their KV sent for."""
        return self.replica.waiting + self._migrations.unsent(self.replica)

    @property
    def head_blocks(self) -> int:
        """Blocks for the tokens known of the first one that waits there; 0 if none does."""
        head = self._migrations.head_of(self.replica)
        return 0 if head is None else self.replica.kv.blocks_for(head.known_tokens)

    @property
    def waiting_blocks(self) -> int:
        """Blocks for the tokens known of all that wait there, each for itself."""
        return self.replica.needed_blocks - self.replica.used_blocks

    @property
    def movable(self) -> Sequence[Request]:
        """Of those that run there, the decoding ones that are not on the move already."""
        moving = self._migrations.is_moving
        return [r for r in self.running if r.decoding and r.emitted_tokens and not moving(r)]

    @property
    def leaving(self) -> int:
        """Requests whose KV is being copied from there to another replica."""
        return self._migrations.count(source=self.replica)

    @property
    def coming(self) -> int:
        """Requests whose KV is being copied there."""
        return self._migrations.count(target=self.replica)

    def blocks_of(self, request: Request) -> int:
        """Blocks for the KV of a request."""
        return self.replica.kv.blocks_for(request.computed_tokens)

    def could_run(self, request: Request) -> bool:
        """Whether the request, with all it may still emit, fits the empty replica."""
        replica = self.replica
        return replica.policy.refuse(request, replica.kv, replica.spec.max_model_len) is None


class Order(NamedTuple):
    """Move a request.

    Attributes:
        request: One of `ReplicaLoad.movable` of the source.
        source: Where it runs.
        target: Where it goes; it takes requests.
    """

    request: Request
    source: ReplicaLoad
    target: ReplicaLoad


class Migrator:
    """Which running requests move where. Subclass it as a dataclass, whose fields are its options.

    Each run works on a copy. It draws nothing, and decides by what it sees.
    """

    def decide(self, replicas: Sequence[ReplicaLoad], now_ns: int) -> Iterable[Order]:
        """The orders of one round, which are then begun in this order.

        Args:
            replicas: Those of the pool that are up or draining, in index order.
            now_ns: The instant of the round.
        """
        raise NotImplementedError(f"{type(self).__name__} must say who moves: decide(replicas)")
