"""KV that is sent while its prefill goes on: layer by layer (rule 66), or chunk by chunk.

Both go with push only: the blocks on the decode replica are there before the prefill begins. A
request has one transfer, which is sent in parts; its blocks on the source are held until it ends.

`layerwise` is rule 66. Its start is the admission, in phase (4), that of the prefill's first step.

`chunked`, in the form of the rules:

C1. When a step with a chunk of the prompt has ended, in phase (1), the whole blocks of the source
    that are computed by then and were not released before are released; those that the target has
    found cached are not sent at all. Blocks that the source had found cached itself go with the
    first chunk. The step with the last chunk releases the rest, its partial block included.
C2. The transfer starts with the first release that has any bytes, in order of replica index, then
    position in the batch. If that would be the step of the last chunk, there is nothing to overlap:
    the KV is pushed as without `overlap`, in phase (2d).
C3. Each part pays the latency by itself, counted from its release, and uses no bandwidth then. A
    part that may flow waits for the parts before it; while nothing may flow the transfer takes no
    bandwidth.
C4. On shared links (rules 63 to 65) this is a flow of which parts are withheld. With a link to
    itself the transfer ends at the largest, over its releases, of the time of the release + latency
    + all bytes released then or later / bandwidth, each term rounded as in rule 4. That is the
    fluid's end, and rule 66 is the same sum with two releases.
C5. If the request is preempted on the prefill side its transfer is called off; it starts anew with
    the first chunk after the re-admission, from the first block. The target's blocks stay reserved.
C6. A request that gives up before its prefill has ended has its transfer called off when it leaves
    the prefill replica (rule 76); one that gives up when that has ended lets it end as planned.

Source of `chunked`: SGLang 0.5 (`srt/disaggregation/prefill.py`, `send_kv_chunk`) sends what a
chunked prefill has computed after each chunk, in whole pages, the last partial page with the last
chunk, to slots that the decode side allocated before the prefill. (It can also send a cached prefix
before the first chunk, an option that is off by default and not modelled.)
Source of `layerwise`: Splitwise (Patel et al., ISCA 2024, section IV-C) and Mooncake (Qin et al.,
FAST 2025), which send a layer's KV while the next layers are computed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from sim.attribution import TRANSFER
from sim.clock import now_ns
from sim.records import Lifetime
from sim.replica import Replica
from sim.request import Request
from sim.transfer import Transfer

if TYPE_CHECKING:
    from sim.hand_over import HandOver


class Streams:
    """The transfers of one run whose prefill goes on."""

    def __init__(self, between: HandOver) -> None:
        self._between, self.spec = between, between.spec

    # --- layer by layer

    def admitted(self, replica: Replica, request: Request, life: Lifetime) -> None:
        """Phase (4): the step with the first chunk of a prompt starts."""
        above = self.spec.layerwise_above_tokens
        if self.spec.overlap == "layerwise" and request.prompt_tokens > above:
            self._start(replica, request, life, Fraction(1, self.spec.layers))

    # --- chunk by chunk

    def computed(self, replica: Replica, request: Request, life: Lifetime) -> None:
        """Phase (1): a chunk that is not the last of its prompt is computed (C1)."""
        ahead = life.ahead
        if ahead is None:
            return
        ready = self._bytes(replica, request.computed_then // replica.kv.block_tokens, life)
        if not ready:
            return
        to_come = 1 - Fraction(ready, self._size(replica, request, life))
        stream = ahead.stream
        if stream is None:
            self._start(replica, request, life, to_come)
            return
        assert stream.withheld is not None
        if stream.withheld > to_come:
            self._between.release(stream, stream.withheld - to_come)

    # --- both

    def ended(self, replica: Replica, request: Request, life: Lifetime) -> bool:
        """Phase (1): a prefill has ended, and the rest may be sent; False if nothing has been."""
        ahead = life.ahead
        if ahead is None or ahead.stream is None:
            return False
        stream, ahead.stream = ahead.stream, None
        stream.prefilled_ns = now_ns(replica.env)
        self._between.at_target(life, ahead)
        life.goes_to(TRANSFER, stream.prefilled_ns)
        self._between.note_sent(stream)
        self._between.release(stream)
        return True

    def called_off(self, life: Lifetime) -> None:
        """A request is preempted, or leaves its prefill replica before the prefill has ended."""
        ahead = life.ahead
        if ahead is not None and ahead.stream is not None:
            stream, ahead.stream = ahead.stream, None
            stream.call_off()
            del self._between.transfers[stream.request.index]

    def _size(self, replica: Replica, request: Request, life: Lifetime) -> int:
        """All bytes that will be sent (rules 35 and 44)."""
        return self._bytes(replica, replica.kv.blocks_for(request.prompt_tokens), life)

    @staticmethod
    def _bytes(replica: Replica, blocks: int, life: Lifetime) -> int:
        """Of the first blocks of the source, those that the target has not found cached."""
        block, ahead = replica.kv.block_tokens, life.ahead
        assert ahead is not None
        assert ahead.found_tokens is not None
        missing = max(0, blocks - ahead.found_tokens // block)
        return missing * block * replica.spec.kv_bytes_per_token

    def _start(
        self, replica: Replica, request: Request, life: Lifetime, withheld: Fraction
    ) -> None:
        ahead = life.ahead
        assert ahead is not None
        size, now = self._size(replica, request, life), now_ns(replica.env)
        stream = Transfer(life, ahead.request, replica, request, ahead.target, size, now, None)
        ahead.stream = stream
        self._between.start([stream], withheld)
