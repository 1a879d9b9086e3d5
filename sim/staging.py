"""Staging memory at the source: KV leaves the GPU before its decode replica has room for it.

With pull a prefill replica keeps the blocks of a request until its transfer ends (rule 30), so
that a full decode pool holds back the prefill pool. With a staging buffer, in host memory or any
memory that the network reads, it is the buffer that holds the KV meanwhile. In the form of the
rules:

S1. Each prefill replica has a buffer of `num_bytes` and a copy engine of `bandwidth_bytes_per_s`,
    which copies the KV of one request after the other, beside the steps of the replica.
S2. When a prefill has ended, in phase (1), its KV, whole blocks (rule 35), stands in line for the
    buffer of its replica, by position in the batch. Who is first in line gets its room there as
    soon as so much is free; those behind wait. KV larger than the whole buffer never stands in
    line, and is kept and sent as without staging.
S3. With its room it is the copy engine's: its copy takes bytes / bandwidth, rounded as in rule 4,
    and begins now or when the copies before it have ended. When it ends, before phase (2), in
    order of replica, its blocks on the GPU are free.
S4. Decode replicas pull as ever (rule 32). If the KV is in the buffer, the transfer starts at
    once; if it has its room and the copy has not ended, when that ends; if it stands in line, it
    leaves the line, and is sent from the GPU's blocks, which are held until it has arrived.
S5. A transfer from the buffer gives its room back when it ends, in phase (2); then who is next in
    line gets its room.
S6. A request that gives up while it waits for its pull gives back its room and its blocks at that
    instant, but if its copy has not ended: then when it has. One whose transfer waits for the copy
    is in transfer: that starts and ends as planned (rule 53).
S7. Back-pressure is what is left: when the buffer is full the blocks stay on the GPU, and
    admissions of the prefill side wait for them as in rule 30.

Only pull: where KV is pushed its blocks are there before the prefill begins, and nothing waits. A
cluster that changes is not modelled with it. Sources: vLLM's NIXL connector with
`kv_buffer_device: cpu` copies finished blocks to a host buffer, which the decode side reads; in
Mooncake (Qin et al., FAST 2025, section 3) the prefill node's KV goes to its host memory and is
sent from there. (Both have no limit of this kind, or evict; a full buffer there is an error or a
miss, not a wait.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from simpy.events import Event

from sim.clock import Instant, Phase, now_ns
from sim.replica import Replica
from sim.transfer import Pull, Transfer

if TYPE_CHECKING:
    from sim.hand_over import HandOver
    from sim.request import Request

_LINE, _COPYING, _STAGED = range(3)


@dataclass(eq=False)
class _Kept:
    """The KV of one request, from its place in line to the end of its transfer.

    Attributes:
        pull: Whose.
        num_bytes: Its room in the buffer.
        stage: In line, with the copy engine, or in the buffer.
        transfer: What waits for the copy to end.
        given_up: Its client is gone: nothing waits for it.
    """

    pull: Pull
    num_bytes: int
    stage: int = _LINE
    transfer: Transfer | None = None
    given_up: bool = False


@dataclass(eq=False)
class _Buffer:
    """The buffer and the copy engine of one replica.

    Attributes:
        free_bytes: Room.
        line: Who waits for room.
        copied_until_ns: When the copy engine is done with what it has.
        peak_bytes: The most that it held.
        staged_bytes: Copied in all.
    """

    free_bytes: int
    line: deque[_Kept] = field(default_factory=deque)
    copied_until_ns: int = 0
    peak_bytes: int = 0
    staged_bytes: int = 0


class Staging:
    """The buffers of one run.

    Attributes:
        copying: Copies that have not ended.
    """

    def __init__(self, between: HandOver) -> None:
        spec = between.spec.staging
        assert spec is not None
        self._between, self.spec = between, spec
        self._buffers: dict[Replica, _Buffer] = {}
        self._kept: dict[Request, _Kept] = {}  # by the request as its source saw it
        self.copying = 0

    def join(self, replica: Replica) -> None:
        """One more prefill replica."""
        self._buffers[replica] = _Buffer(self.spec.num_bytes)

    def facts_of(self, replica: Replica) -> tuple[int, int]:
        """Most bytes held at once, and bytes copied in all."""
        buffer = self._buffers.get(replica)
        return (0, 0) if buffer is None else (buffer.peak_bytes, buffer.staged_bytes)

    # --- the way into the buffer

    def prefilled(self, pull: Pull) -> None:
        """Phase (1): the KV of a request stands in line (S2)."""
        source = pull.source
        size = pull.held.held_blocks * source.kv.block_tokens * source.spec.kv_bytes_per_token
        if size > self.spec.num_bytes:
            return
        kept = self._kept[pull.held] = _Kept(pull, size)
        self._buffers[source].line.append(kept)
        self._let_in(source)

    def _let_in(self, source: Replica) -> None:
        buffer, env = self._buffers[source], self._between.env
        while buffer.line and buffer.line[0].num_bytes <= buffer.free_bytes:
            kept = buffer.line.popleft()
            kept.stage = _COPYING
            self.copying += 1
            buffer.free_bytes -= kept.num_bytes
            buffer.peak_bytes = max(buffer.peak_bytes, self.spec.num_bytes - buffer.free_bytes)
            now = now_ns(env)
            begins_ns = max(now, buffer.copied_until_ns)
            buffer.copied_until_ns = begins_ns + self.spec.copy_ns(kept.num_bytes)
            copy = Instant(env, buffer.copied_until_ns - now, Phase.COPY_END + source.place)
            copy.callbacks.append(partial(self._copied, kept))

    def _copied(self, kept: _Kept, _: Event) -> None:
        """A copy has ended: the blocks on the GPU are free (S3)."""
        source = kept.pull.source
        self.copying -= 1
        kept.stage = _STAGED
        self._buffers[source].staged_bytes += kept.num_bytes
        source.free_held(kept.pull.held)
        source.notify()
        if kept.given_up:
            self._give_back(kept)
        elif kept.transfer is not None:
            self._between.dispatch(kept.transfer)

    # --- the way out

    def delays(self, transfer: Transfer) -> bool:
        """The target has reserved blocks; True if the transfer has to wait for the copy (S4)."""
        kept = self._kept.get(transfer.held)
        if kept is None:
            return False
        if kept.stage == _LINE:
            self._out_of_line(kept)
            return False
        if kept.stage == _COPYING:
            kept.transfer = transfer
            return True
        return False

    def transferred(self, transfer: Transfer) -> bool:
        """Phase (2): a transfer has ended; False if it was sent from the GPU's blocks (S5)."""
        kept = self._kept.get(transfer.held)
        if kept is None:
            return False
        self._give_back(kept)
        return True

    def given_up(self, pull: Pull) -> bool:
        """A request that waits for its pull gives up; False if its blocks are still held (S6)."""
        kept = self._kept.get(pull.held)
        if kept is None:
            return False
        if kept.stage == _LINE:
            self._out_of_line(kept)
            return False
        kept.given_up = True
        if kept.stage == _STAGED:
            self._give_back(kept)
        return True

    def _out_of_line(self, kept: _Kept) -> None:
        del self._kept[kept.pull.held]
        source = kept.pull.source
        self._buffers[source].line.remove(kept)
        self._let_in(source)

    def _give_back(self, kept: _Kept) -> None:
        del self._kept[kept.pull.held]
        source = kept.pull.source
        self._buffers[source].free_bytes += kept.num_bytes
        self._let_in(source)
