"""What a replica is made of, what it asks of the cluster around it, and what condition it is in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sim.errors import ConfigError, called
from sim.policy import Policy, Prefix
from sim.queue import FirstCome, QueueOrder
from sim.records import Lifetime
from sim.request import Request
from sim.startup import Startup
from sim.step_time import StepTimeModel

if TYPE_CHECKING:
    from sim.replica import Replica
    from sim.topology import Seat

UP, DRAINING, FAILED, GONE, STARTING = "up", "draining", "failed", "gone", "starting"
"""Conditions of a replica: only one that is up takes requests (rules 78 and 82, `sim.startup`)."""


@dataclass(frozen=True)
class ReplicaSpec:
    """What one replica is made of. Everything belongs to the replica, nothing to the run.

    Attributes:
        policy: Decides what runs next; each replica works on a copy.
        num_blocks: Size of the KV pool, blocks.
        step_time: Length of iterations.
        block_tokens: Tokens of a KV block.
        max_model_len: Longest prompt + max_tokens, or None for no limit.
        order: Order of the waiting queue.
        kv_bytes_per_token: KV of one token over all layers and all GPUs of the replica, bytes.
        gpus: GPUs that it occupies.
        host_bandwidth_bytes_per_s: Of the link to host memory, all GPUs together; None without one.
        host_overlap: Copies over it run beside a step instead of before it.
        disk_read_bytes_per_s: Of the disk behind host memory; None without one.
        disk_write_bytes_per_s: The other way; None: the same.
        nic_bytes_per_s: Of its network, each direction, where transfers share links; None: that of
            the transfer (rule 63).
        startup: What passes before it serves, where it starts during a run.
        seat: What it needs where the cluster has a topology; else None.
        kind: Class of the replica, for one that iterates in another way; None for `Replica`.
    """

    policy: Policy
    num_blocks: int
    step_time: StepTimeModel
    block_tokens: int = 16
    max_model_len: int | None = None
    order: QueueOrder = field(default_factory=FirstCome)
    kv_bytes_per_token: int = 0
    gpus: int = 1
    host_bandwidth_bytes_per_s: float | None = None
    host_overlap: bool = False
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    nic_bytes_per_s: float | None = None
    startup: Startup = field(default_factory=Startup)
    seat: Seat | None = None
    kind: type[Replica] | None = None


class Surroundings(Protocol):
    """What a replica asks of the cluster around it."""

    def pull(self, replica: Replica) -> bool:
        """Start the transfers for which the replica has room now (decode role); whether any did."""
        ...

    def loading(self, replica: Replica) -> bool:
        """Whether KV is on its way to the replica."""
        ...

    def awaits(self, replica: Replica) -> bool:
        """Whether the replica has yet to send for the KV of somebody."""
        ...

    def prefix(self, replica: Replica, request: Request) -> Prefix | None:
        """What a request would find cached or fetched there; None where nothing is fetched."""
        ...

    def unsent_blocks(self, replica: Replica) -> int:
        """Blocks that the replica will need for those whose KV it has not sent for."""
        ...

    def may_find_more(self, replica: Replica) -> bool:
        """Whether what runs on the replica may help a transfer for which there was no room."""
        ...

    def finished(self, life: Lifetime, now_ns: int) -> None:
        """The client has all tokens of the request."""
        ...

    def left_early(self, life: Lifetime) -> None:
        """A request that goes on elsewhere was given up, and has left its prefill replica."""
        ...

    def preempted(self, life: Lifetime) -> None:
        """A request that goes on elsewhere is preempted on its prefill replica."""
        ...

    def computed(self, replica: Replica, request: Request, life: Lifetime) -> None:
        """A chunk that is not the last of its prompt is computed, if a replica `tells_chunks`."""
        ...

    def more_room(self) -> None:
        """Something has changed on a decode replica for which prefill replicas may wait (push)."""
        ...

    def prefilled(self, replica: Replica, request: Request, life: Lifetime, now_ns: int) -> None:
        """The request has emitted all it emits here and moves to the decode pool."""
        ...

    def may_help(self, replica: Replica) -> bool:
        """Whether its memory may come back through others: a transfer, or their work."""
        ...

    @property
    def may_return(self) -> bool:
        """Whether a request that has left a replica may come back to it: others may fail."""
        ...

    def emptied(self, replica: Replica) -> None:
        """The last request has left a draining replica."""
        ...


def refuse_company(spec: ReplicaSpec, role: str) -> None:
    """Raise `ConfigError` where a policy that is `alone` is given what it does not go with."""
    name = called(spec.policy)
    if role != "both":
        raise ConfigError(
            f"policy {name}: not modelled on a {role} replica; try one pool whose replicas do both"
        )
    if not spec.order.first_come:
        raise ConfigError(
            f"order: policy {name} sorts its queue itself, by its own option order; "
            "leave the pool's order at fcfs"
        )
