"""Transfers of one source and target that go as one, and the cost of many small messages.

*Messages.* KV lies in blocks, layer by layer, so that a transfer is many messages of
`message_bytes` each, of which a sender posts one every `per_message_s` (rounded to ns, at least 1)
at most, while earlier ones are under way. So a transfer is never faster than `message_bytes` in
that time: on shared links this is one more link that it has to itself, else the smaller of both
bandwidths counts. With a topology the efficiency of its links says what messages cost.
Sources: the gap g between messages of LogGP (Alexandrov et al., SPAA 1995); FlowKV (Li et al.,
2025, arXiv 2504.03775), where a transfer sent block by block, layer by layer, takes 0.944 s, and
0.053 s in large pieces.

*Batches*, in the form of the rules:

B1. A transfer that could be sent now (its blocks on the target are reserved, and its prefill is
    over) joins the batch of its source and target, and with a topology of its group of GPUs there.
    From now on it counts as under way (rules 53, 75, 81 and 92).
B2. The batch is sent as soon as its bytes reach `batch_bytes`, else when `batch_wait_s`, rounded
    to ns, have passed since the first joined, at the very end of that instant, after all
    scheduling passes. So with 0 those of one instant go together.
B3. It is sent as one transfer: one latency, the sum of bytes. When its last byte has arrived all
    of them have, in order of joining. Its place in the order of starts (rule 1) is its own start.
B4. What is sent while its prefill goes on (`sim.streams`) joins no batch.

Source: an engine's transfer library takes a list of descriptors as one request, with one round
trip (NIXL: `make_prepped_xfer`, `transfer`; Mooncake Transfer Engine: `submitTransfer` of a
batch); which requests share a list, and for how long it stays open, is the deployment's choice,
given here.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from simpy.events import Event

from sim.clock import Instant, Phase, now_ns
from sim.transfer import Transfer

if TYPE_CHECKING:
    from fractions import Fraction

    from sim.hand_over import HandOver


@dataclass(eq=False)
class _Batch:
    """Transfers that wait to be sent as one.

    Attributes:
        key: Source, target and group.
        transfers: In order of joining.
        num_bytes: Of all of them.
        timer: When it is sent at the latest.
    """

    key: Hashable
    timer: Instant
    transfers: list[Transfer] = field(default_factory=list)
    num_bytes: int = 0


@dataclass(frozen=True)
class _Place:
    """The place of a transfer in a batch that has not been sent."""

    batch: _Batch
    transfer: Transfer

    def call_off(self) -> None:
        """It leaves the batch."""
        self.batch.transfers.remove(self.transfer)
        self.batch.num_bytes -= self.transfer.num_bytes

    def standing(self) -> Hashable:
        """While it waits no instant is like another."""
        return now_ns(self.batch.timer.env)

    def release(self, share: Fraction | None = None) -> None:
        """Nothing of it is withheld."""
        raise AssertionError("a transfer in a batch withholds nothing")


class Batches:
    """The batches of one run that have not been sent."""

    def __init__(self, between: HandOver) -> None:
        self._between = between
        self._wait_ns, self._most_bytes = between.spec.batch_wait_ns, between.spec.batch_bytes
        self._open: dict[Hashable, _Batch] = {}

    def join(self, transfer: Transfer) -> None:
        """Let a transfer wait for company, or go with those that waited for it."""
        key = self._between.pair_of(transfer)
        batch = self._open.get(key)
        if batch is None:
            timer = Instant(self._between.env, self._wait_ns, Phase.SEND)
            batch = self._open[key] = _Batch(key, timer)
            timer.callbacks.append(partial(self._time_is_up, batch))
        batch.transfers.append(transfer)
        batch.num_bytes += transfer.num_bytes
        transfer.end = _Place(batch, transfer)
        if self._most_bytes is not None and batch.num_bytes >= self._most_bytes:
            batch.timer.call_off()
            self._send(batch)

    def _time_is_up(self, batch: _Batch, _: Event) -> None:
        self._send(batch)

    def _send(self, batch: _Batch) -> None:
        del self._open[batch.key]
        if batch.transfers:  # else all have been called off
            self._between.start(batch.transfers)
