"""KV on its way from a prefill to a decode replica."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from sim.carrier import OnTheWay
from sim.clock import Instant, Phase
from sim.errors import ConfigError
from sim.records import Lifetime
from sim.replica import Replica
from sim.request import Request

Overlap = Literal["none", "layerwise", "chunked"]

OnHoldTimeout = Literal["reroute", "fail"]
"""What becomes of a request whose KV was not fetched in time."""


@dataclass(frozen=True)
class StagingSpec:
    """Memory at each prefill replica in which KV waits for its transfer (`sim.staging`).

    Attributes:
        num_bytes: Its size.
        bandwidth_bytes_per_s: At which KV is copied there.
    """

    num_bytes: int
    bandwidth_bytes_per_s: float

    def copy_ns(self, num_bytes: int) -> int:
        """Length of a copy, ns, rounded half to even, at least 1."""
        return max(1, round(num_bytes / self.bandwidth_bytes_per_s * 1e9))


@dataclass(frozen=True)
class TransferSpec:
    """How KV gets from a prefill to a decode replica, in whole blocks.

    Differences from the engines. vLLM with NIXL corresponds to `recompute_last_token`. It holds the
    source's blocks until the reader's notice or a timeout, and admits loaded requests in its
    waiting phase, in queue order, where ours join at the start of a pass (rule 33); there as here a
    pull that does not fit blocks later ones, and one already loading does not. DistServe is
    `blocks_decode` with `max_waiting_share` and policy ``distserve``; it also polls every 3 ms when
    idle. splitwise-sim's overlapped variants use ten times the bandwidth.
    Without `hold_timeout_s` a source holds its blocks for as long as it takes.

    Attributes:
        bandwidth_bytes_per_s: Bytes per second that each transfer has to itself; where links are
            shared, that of each direction of a replica's NIC which does not say its own. None with
            a topology, whose links say it.
        latency_s: Seconds before the first byte; with a topology, those of the path come after.
        recompute_last_token: The decode side computes the last prompt token again and its first
            step emits token 1, as in vLLM with NIXL (rule 38).
        shares_links: Transfers share the NICs of their replicas max-min fairly (`sim.links`): each
            crosses the source's outgoing and the target's incoming direction (rules 39 and 63), or
            with a topology the links between their GPUs (`sim.topology`).
        push: The decode replica is chosen on arrival, its blocks are reserved when the prefill is
            admitted, which waits for that, and the KV is sent when the prefill ends (rules 39, 69,
            70 and 76). Else the decode replica pulls (rule 32).
        blocks_decode: A decode replica to which KV is on its way makes no scheduling pass. Else it
            sends for the KV of one request, after those loaded have joined, before its policy
            decides; if that was sent, the policy decides nothing (rule 92, as in DistServe).
        max_waiting_share: With `blocks_decode`, how a decode replica accepts requests, in place of
            rule 92 (DistServe's ``waiting_block_prop_threshold``, 0.05). At a pass, before loaded
            requests join: while the blocks for the prompts of those who are loaded and do not run
            are under this share of the pool, it sends for the KV of the next one, if blocks for
            that are free, whether or not anybody is swapped out; the pass decides nothing then. So
            it goes on, one transfer after the other, and only then the policy has its turn.
        decode_first: The decode replica is chosen on arrival, before the prefill replica, as by the
            routers of llm-d and Dynamo, and not when the prefill ends (against rule 28): from then
            on the request counts on both sides (rule 69). Where none takes requests, or the chosen
            one fails before the prefill ends, one is chosen then (rule 83).
        overlap: What is sent while a prefill goes on (`sim.streams`): ``none``, ``layerwise`` (rule
            66) or ``chunked``; both go with push only.
        layers: Equal parts of a layer-wise transfer: the layers of the model.
        layerwise_above_tokens: Prompts up to this length are sent when their prefill has ended,
            longer ones layer by layer.
        message_bytes: A transfer is many messages of this size; None where that costs nothing.
        per_message_s: Between two of them, at least: see `sim.batches`.
        batch_wait_s: Transfers of one source and target wait so long for company, and go as one (0:
            those of one instant); None: each goes by itself. See `sim.batches`.
        batch_bytes: A batch of so much does not wait any more; None: it always does.
        staging: Memory at the source in which KV waits; None: it waits on the GPU.
        hold_timeout_s: For how long a prefill replica keeps KV that nobody fetches (`sim.holds`);
            None: for as long as it takes.
        on_hold_timeout: What becomes of the request then.
    """

    bandwidth_bytes_per_s: float | None
    latency_s: float = 0.0
    recompute_last_token: bool = False
    shares_links: bool = False
    blocks_decode: bool = False
    push: bool = False
    decode_first: bool = False
    max_waiting_share: float | None = None
    overlap: Overlap = "none"
    layers: int = 0
    layerwise_above_tokens: int = 0
    message_bytes: int | None = None
    per_message_s: float = 0.0
    batch_wait_s: float | None = None
    batch_bytes: int | None = None
    staging: StagingSpec | None = None
    hold_timeout_s: float | None = None
    on_hold_timeout: OnHoldTimeout = "reroute"

    def __post_init__(self) -> None:
        if self.staging is not None and self.push:
            raise ConfigError(
                "transfer.staging: with start: push the target's blocks are there before the "
                "prefill begins, and nothing waits; try start: pull, or leave it out"
            )
        if self.batch_wait_s is None and self.batch_bytes is not None:
            raise ConfigError(
                f"transfer.batch_bytes: {self.batch_bytes}: needs batch_wait_s, for how long a "
                "smaller batch waits; 0: those of one instant go together"
            )
        if (self.message_bytes is None) != (self.per_message_s == 0):
            raise ConfigError(
                "transfer.message_bytes and per_message_s say together how fast messages are sent; "
                "give both, or neither"
            )
        self._check_share()
        self._check_overlap()
        self._check_hold()

    def _check_overlap(self) -> None:
        if self.overlap == "none":
            return
        if self.batch_wait_s is not None:
            raise ConfigError(
                f"transfer.batch_wait_s: {self.batch_wait_s:g}: what is sent while its prefill "
                "goes on joins no batch; try overlap: none, or leave it out"
            )
        if not self.push:
            raise ConfigError(
                f"transfer.overlap: {self.overlap}: needs start: push, so that the decode side has "
                "its blocks before the prefill begins; try start: push, or overlap: none"
            )
        if self.blocks_decode:
            raise ConfigError(
                f"transfer.overlap: {self.overlap}: with blocks_decode: true a decode replica "
                "would stand still while prompts are computed; try blocks_decode: false"
            )
        if self.overlap == "layerwise" and self.layers < 1:
            raise ConfigError(f"transfer.layers: {self.layers}: layerwise needs at least 1")

    def _check_hold(self) -> None:
        hold_s = self.hold_timeout_s
        if hold_s is None:
            return
        if hold_s <= 0:
            raise ConfigError(f"transfer.hold_timeout_s: {hold_s:g}: expected more than 0")
        if self.push:
            raise ConfigError(
                f"transfer.hold_timeout_s: {hold_s:g}: with start: push KV is sent when its "
                "prefill has ended, and none is held; try start: pull, or leave it out"
            )
        if self.staging is not None:
            raise ConfigError(
                f"transfer.hold_timeout_s: {hold_s:g}: not modelled with staging, whose memory "
                "holds KV for as long as it takes; leave one of them out"
            )

    def _check_share(self) -> None:
        share = self.max_waiting_share
        if share is None:
            return
        if not 0 < share <= 1:
            raise ConfigError(f"max_waiting_share: {share}: expected a share, over 0 and at most 1")
        if self.push or not self.blocks_decode:
            raise ConfigError(
                f"max_waiting_share: {share}: is for a decode side that pulls, and decodes or "
                "loads; set blocks_decode: true and start: pull"
            )

    def duration_ns(self, num_bytes: Fraction | float) -> int:
        """Length of a transfer, ns, rounded half to even, at least 1."""
        rate = self.bandwidth_bytes_per_s
        assert rate is not None
        if self.message_rate is not None:
            rate = min(rate, float(self.message_rate))
        size = float(num_bytes) if isinstance(num_bytes, Fraction) else num_bytes
        return max(1, round((self.latency_s + size / rate) * 1e9))

    @property
    def message_rate(self) -> Fraction | None:
        """Bytes per second that messages allow; None where they cost nothing."""
        if self.message_bytes is None:
            return None
        return Fraction(self.message_bytes * 10**9, max(1, round(self.per_message_s * 1e9)))

    @property
    def batch_wait_ns(self) -> int:
        """For how long a batch waits, rounded half to even."""
        return round((self.batch_wait_s or 0.0) * 1e9)

    @property
    def hold_ns(self) -> int | None:
        """For how long KV is held that nobody fetches, rounded half to even, at least 1 ns."""
        return None if self.hold_timeout_s is None else max(1, round(self.hold_timeout_s * 1e9))

    @property
    def latency_ns(self) -> int:
        """The latency alone, as shared links count it: rounded half to even (rule 65)."""
        return round(self.latency_s * 1e9)


@dataclass
class Pull:
    """A request handed to a decode replica that has not reserved blocks for it yet.

    Attributes:
        request: As the decode replica sees it.
        life: Who it is.
        source: Prefill replica, which holds the blocks of `held`.
        held: As the prefill replica saw it.
        prefilled_ns: When its prefill had ended.
        rank: In the order in which prefills ended.
    """

    request: Request
    life: Lifetime
    source: Replica
    held: Request
    prefilled_ns: int
    rank: int


@dataclass
class Transfer:
    """KV on its way; its end can be moved or called off.

    Attributes:
        life: Whose KV.
        request: The request as the decode replica sees it.
        source: Prefill replica, which holds the blocks of `held` until the end.
        held: The request as the prefill replica saw it.
        target: Decode replica, which has reserved blocks.
        num_bytes: Whole blocks of the source, but those that the target has cached.
        start_ns: When it was sent, or the first part of it.
        prefilled_ns: When the prefill had ended whose KV it is; None while that goes on.
        end: The wake-up at its end; on shared links, what is on the way there.
        order: Rank in order of start.
        withheld: Share of its bytes that is yet to be computed; None once all may be sent.
        due_ns: Where it has its link to itself, the earliest end by what was released.
        rank: As of `Pull`.
    """

    life: Lifetime
    request: Request
    source: Replica
    held: Request
    target: Replica
    num_bytes: int
    start_ns: int
    prefilled_ns: int | None
    end: Instant | OnTheWay | None = None
    order: int = 0
    withheld: Fraction | None = None
    due_ns: int = 0
    rank: int = 0

    def move_end(self, delay_ns: int) -> None:
        """Let it end `delay_ns` from now instead; only where it has its link to itself."""
        assert isinstance(self.end, Instant), "on shared links the links say when it ends"
        self.end = self.end.replace(delay_ns, Phase.TRANSFER_END + self.order)

    def call_off(self) -> None:
        """It never ends. What both sides hold for it is the caller's to give back."""
        if self.end is not None:  # else it has its link to itself, and its prefill goes on
            self.end.call_off()
