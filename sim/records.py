"""What a run leaves behind: outcomes as columns, token times by reference, step logs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sim.attribution import QUEUE_NO_REPLICA, REPREFILL_FAILURE, Account, Attributions, GapLog
from sim.batch import Cause
from sim.request import NEVER, Arrival, Ints, Request
from sim.step_time import StepTimeOrigin

if TYPE_CHECKING:
    from sim.clock import Instant
    from sim.flight import Flight
    from sim.gap_splits import GapSplits
    from sim.life_log import Stretch
    from sim.network import LinkUse
    from sim.replica import Replica
    from sim.transfer import Transfer

STATES = ("finished", "rejected", "cancelled", "failed", "unfinished")
FINISHED, REJECTED, CANCELLED, FAILED, UNFINISHED = range(5)

CAUSES = tuple(cause.name.lower() for cause in Cause)

EVENTS = (
    "queued",
    "admitted",
    "prefilled",
    "preempted",
    "handed_over",
    "transfer_started",
    "loaded",
    "ended",
    "lost",
    "migrating",
    "stopped",
    "stayed",
    "hold_ended",
)
QUEUED, ADMITTED, PREFILLED, PREEMPTED, HANDED_OVER, TRANSFER_STARTED, LOADED, ENDED, LOST = range(
    9
)
MIGRATING, STOPPED, STAYED, HOLD_ENDED = range(9, 13)

REQUEST_COLUMNS = (
    "index",
    "arrival_ns",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "state",
    "reason",
    "emitted_tokens",
    "replica",
    "decode_replica",
    "first_scheduled_ns",
    "prefill_end_ns",
    "first_token_ns",
    "last_token_ns",
    "end_ns",
    "preemptions",
    "recomputed_tokens",
    "cached_tokens",
    "swap_outs",
    "swapped_blocks",
    "rerouted",
    "migrations",
)

# Packing a row costs a third of `array.extend`, which takes its numbers one by one.
_OUTCOME_ROW = Struct(f"{len(REQUEST_COLUMNS)}q")
_SPAN_ROW = Struct("4q")

NARROW_COLUMNS = {
    "state": np.int8,
    "reason": np.int16,
    "replica": np.int32,
    "decode_replica": np.int32,
}


@dataclass
class Ahead:
    """Where a request goes on when its prefill is over, if that was chosen on arrival (push).

    Attributes:
        request: The request as the decode replica sees it.
        target: The decode replica.
        found_tokens: Tokens found cached there when blocks were reserved; None before.
        given_up: It has ended before its prefill did, and counts there no more.
        stream: Its KV that is already on the way, if some is sent while the prefill goes on.
    """

    request: Request
    target: Replica
    found_tokens: int | None = None
    given_up: bool = False
    stream: Transfer | None = None


class Lifetime:
    """One request through the whole cluster: the truth about it, and what has happened so far.

    Policies and routers see only its `request`, a fresh one on each replica that it visits.
    """

    __slots__ = (
        "account",
        "ahead",
        "arrival",
        "before",
        "cached_tokens",
        "cancellation",
        "decode_replica",
        "delivered",
        "ended",
        "finish_seq",
        "first_scheduled_ns",
        "first_token_ns",
        "goal",
        "last_token_ns",
        "lost_tokens",
        "migrations",
        "order",
        "predicted_tokens",
        "preemptions",
        "prefill_due_ns",
        "prefill_end_ns",
        "recomputed_tokens",
        "replica",
        "request",
        "rerouted",
        "swap_outs",
        "swapped_blocks",
        "where",
    )

    def __init__(self, arrival: Arrival, order: int, predicted_tokens: int | None = None) -> None:
        self.arrival = arrival
        self.account: Account | None = None  # of its time, where that is attributed
        self.ahead: Ahead | None = None  # its place in the decode pool while it is prefilled
        self.order = order
        self.predicted_tokens = predicted_tokens
        self.request: Request | None = None
        self.where: Replica | None = None  # the replica that serves it now
        self.goal = 0  # tokens emitted when it leaves that replica
        self.delivered = 0  # tokens that the client has
        self.before = 0  # of these, part of the prompt since a replica failed (rule 80)
        self.rerouted = self.migrations = 0
        self.ended = False
        self.cancellation: Instant | None = None  # when its client will give up
        self.finish_seq = -1
        self.replica = self.decode_replica = -1
        self.first_scheduled_ns = self.prefill_end_ns = NEVER
        self.prefill_due_ns = NEVER  # when it was predicted to be over, if it was
        self.first_token_ns = self.last_token_ns = NEVER
        self.preemptions = self.recomputed_tokens = self.cached_tokens = 0
        self.lost_tokens = 0  # in its last preemption
        self.swap_outs = self.swapped_blocks = 0  # preemptions whose KV moved to the host

    @property
    def last_place(self) -> int:
        """The replica it was sent to last, -1 if it was sent to none."""
        return self.replica if self.decode_replica < 0 else self.decode_replica

    def lose(self, computed_tokens: int, now_ns: int) -> None:
        """Its KV is lost: it is nowhere, and what was computed has to be again."""
        if self.account is not None:
            self.account.lose(computed_tokens, QUEUE_NO_REPLICA, now_ns, REPREFILL_FAILURE)
        self.request = self.where = None
        self.decode_replica = -1
        self.before = self.delivered
        self.recomputed_tokens += computed_tokens
        self.lost_tokens = computed_tokens

    def deliver(self, tokens: int, now_ns: int) -> None:
        """The client gets tokens now, all at this instant."""
        if self.account is not None:
            self.account.token(self.delivered, now_ns)
        self.delivered += tokens
        self.last_token_ns = now_ns
        if self.first_token_ns == NEVER:
            self.first_token_ns = now_ns

    def decoded(self, tokens: int, last_ns: int) -> None:
        """The client got a token with each tick of a decode group that it has left; not the first.

        (That comes with the end of its prefill.)
        """
        self.delivered += tokens
        if self.account is not None and self.delivered < self.arrival.output_tokens:
            self.account.decoded(last_ns)
        self.last_token_ns = last_ns

    def goes_to(self, phase: int, now_ns: int) -> None:
        """Its time belongs to another phase from now on (`sim.attribution`)."""
        if self.account is not None:
            self.account.to(phase, now_ns)


class Decision(NamedTuple):
    """One iteration, or a repeated pass of zero length (rule 48).

    Attributes:
        replica: Index into `SimulationResult.replicas`.
        start_ns: When it was decided.
        end_ns: When it ends; `start_ns` for a pass that only preempted.
        tokens: Request index to real (unpadded) tokens computed.
        preempted: Request indices in order of preemption.
        free_after: Free blocks while the step runs, those cached but unused included.
        cached: With a prefix cache: for each request admitted, the tokens that were found.
        lost_blocks: With a prefix cache: blocks taken that lost their content.
        lost: Its replica failed when it ended, and nothing of it happened (rule 81).
    """

    replica: int
    start_ns: int
    end_ns: int
    tokens: dict[int, int]
    preempted: list[int]
    free_after: int
    cached: Mapping[int, int] = MappingProxyType({})
    lost_blocks: int = 0
    lost: bool = False


@dataclass(frozen=True)
class Record:
    """What a run keeps beside the outcome of each request.

    Attributes:
        steps: One row per run of iterations.
        events: Each request's changes of state, as references into the log of steps (so with it).
        series_points: Points of the fixed grid of queue, running and KV; 0 for none.
        series_span_ns: Time that the grid divides: the arrival window. A run of more than four
            spans doubles the step.
        attribution: Where the time of each request went (`sim.attribution`).
        follow: Requests, by index, whose lives are kept as well (`sim.life_log`), where time is
            attributed.
        decisions: Every single decision, for comparison with other simulators (slow).
        on_steps: Called with the columns of the step log and the names of the replicas that there
            have been, whenever `STEP_CHUNK` rows are full, and with the rest at the end;
            `SimulationResult.steps` is then None. None keeps all rows.
        on_step: Called after each row of the step log.
    """

    steps: bool = False
    events: bool = False
    series_points: int = 0
    series_span_ns: int = 0
    decisions: bool = False
    attribution: bool = False
    follow: Collection[int] = ()
    on_steps: Callable[[dict[str, Ints], Sequence[str]], None] | None = None
    on_step: Callable[[], object] | None = None


STEP_CHUNK = 1 << 16
"""Rows of the step log that are handed over at a time."""


@dataclass(frozen=True)
class ReplicaInfo:
    """A replica as it was at the end of the run.

    Attributes:
        name: Pool and position.
        pool: Name of its pool.
        role: ``both``, ``prefill`` or ``decode``.
        gpus: GPUs it occupies.
        total_blocks: Size of its KV pool.
        block_tokens: Tokens of a block.
        busy_ns: Time with an iteration in flight.
        iterations: Iterations done.
        prefill_tokens: Prompt rows computed, recomputed ones included.
        decode_tokens: Decode rows computed.
        step_time: Origin of its step times.
        step_time_usage: What its step-time model counted (`ReplicaStepTime.usage`), or None.
        stage_busy_ns: Of each pipeline stage, time in which it received activations and computed;
            empty without a pipeline.
        host_bytes: KV moved over the host link, in either direction, bytes.
        disk_read_bytes: KV read from a disk behind host memory, bytes.
        disk_written_bytes: KV written to it.
        host_found_tokens: Of `found_tokens`, those that came from host memory.
        disk_found_tokens: Those that came from disk, through host memory.
        prefill_busy_ns: Of `busy_ns`, with an iteration that computes any prompt token, lost ones
            computed again included; of a pipeline, where batches overlap, the batch that began
            first counts.
        iterations_by_rows: How many iterations computed how many rows, prompts' and decodes', as
            (rows, iterations) in order of rows; empty where read back from files, which lack it.
        lost_blocks: Blocks of a prefix cache that lost their content; None without a cache.
        found_tokens: Found cached by all admissions, those after a preemption included.
        asked_tokens: Known at these admissions.
        staged_bytes: KV copied to its staging memory (`sim.staging`).
        staging_peak_bytes: The most that this held.
        joined_ns: When it joined its pool, up or still starting.
        left_ns: When it was gone, drained or called off; -1 if it was there at the end.
    """

    name: str
    pool: str
    role: str
    gpus: int
    total_blocks: int
    block_tokens: int
    busy_ns: int
    iterations: int
    prefill_tokens: int
    decode_tokens: int
    step_time: StepTimeOrigin
    step_time_usage: Mapping[str, Any] | None = None
    stage_busy_ns: tuple[int, ...] = ()
    host_bytes: int = 0
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0
    host_found_tokens: int = 0
    disk_found_tokens: int = 0
    prefill_busy_ns: int = 0
    iterations_by_rows: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    lost_blocks: int | None = None
    found_tokens: int = 0
    asked_tokens: int = 0
    staged_bytes: int = 0
    staging_peak_bytes: int = 0
    joined_ns: int = 0
    left_ns: int = NEVER


class Recorder:
    """Collects, compactly, what happens; `SimulationResult` is made of it at the end."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.requests = array("q")
        self.reasons: dict[str, int] = {"": 0}
        # (request, log or -1, first tick or time, tokens): a stretch of tokens by reference.
        self.spans = array("q")
        self.steps = array("q")
        self.step_rows = 0
        self.events = array("q")
        self.series = array("q")
        self.pools = array("q")
        self.transfers = array("q")
        self.changes = array("q")
        self.migrations = array("q")
        self.fetches = array("q")
        self.preemptions = array("q")
        self.decisions: list[Decision] = []
        self.attributions = Attributions(record.follow) if record.attribution else None
        self.names: list[str] = []  # of the replicas, by place
        self.logs: list[array[int]] = []

    def add_log(self, ends_ns: array[int]) -> int:
        """Ends of the ticks of one more decode group, which still grow; returns its number."""
        self.logs.append(ends_ns)
        return len(self.logs) - 1

    def span(self, index: int, log: int, first_tick: int, tokens: int) -> None:
        """Tokens of a request that ended with consecutive ticks of a decode group."""
        self.spans.frombytes(_SPAN_ROW.pack(index, log, first_tick, tokens))

    def token(self, index: int, now_ns: int, tokens: int = 1) -> None:
        """Tokens of a request that came at one instant."""
        self.spans.frombytes(_SPAN_ROW.pack(index, -1, now_ns, tokens))

    def step(
        self,
        replica: int,
        flight: Flight,
        n: int,
        start_ns: int,
        end_ns: int,
        used: int,
        waiting: int,
        stage: int,
        busy_ns: int,
    ) -> None:
        """A run of `n` iterations is over, or (with several stages) has left one of them."""
        self.step_rows += 1
        self.steps.extend(
            (
                replica,
                start_ns,
                end_ns,
                n,
                flight.prefill_tokens,
                flight.decodes,
                flight.work.context_tokens,
                used,
                waiting,
                int(flight.batch.cause),
                stage,
                busy_ns,
            )
        )
        if self.record.on_step is not None:
            self.record.on_step()
        if self.record.on_steps is not None and self.step_rows % STEP_CHUNK == 0:
            self.hand_over_steps()

    def hand_over_steps(self) -> None:
        """Give the rows of the step log so far to whoever wants them while running."""
        if self.record.on_steps is not None and self.steps:
            self.record.on_steps(columns(self.steps, STEP_COLUMNS), self.names)
            self.steps = array("q")

    def thin_series(self, step_ns: int) -> None:
        """Keep the points of the series that lie on a coarser grid."""
        self.series = _on_grid(self.series, len(SERIES_COLUMNS), step_ns)
        self.pools = _on_grid(self.pools, len(POOL_COLUMNS), step_ns)

    def event(self, index: int, code: int, now_ns: int, replica: int) -> None:
        """A change of a request's state; refers to the last row of the step log."""
        self.events.extend((index, code, now_ns, replica, self.step_rows - 1))

    def preempted(self, index: int, what: int, now_ns: int) -> None:
        """A request is preempted, or runs again: one of `PREEMPTIONS`."""
        self.preemptions.extend((index, what, now_ns))

    def outcome(self, life: Lifetime, state: int, reason: str, end_ns: int, emitted: int) -> None:
        """The request has ended, or the run has."""
        if self.attributions is not None and life.account is not None:
            self.attributions.add(life.account, life.arrival.index)
        code = self.reasons.setdefault(reason, len(self.reasons))
        arrival = life.arrival
        row = _OUTCOME_ROW.pack(
            arrival.index,
            arrival.arrival_ns,
            arrival.prompt_tokens,
            arrival.output_tokens,
            arrival.max_tokens,
            state,
            code,
            emitted,
            life.replica,
            life.decode_replica,
            life.first_scheduled_ns,
            life.prefill_end_ns,
            life.first_token_ns,
            life.last_token_ns,
            end_ns,
            life.preemptions,
            life.recomputed_tokens,
            life.cached_tokens,
            life.swap_outs,
            life.swapped_blocks,
            life.rerouted,
            life.migrations,
        )
        self.requests.frombytes(row)


def _on_grid(rows: array[int], width: int, step_ns: int) -> array[int]:
    table = np.frombuffer(rows, np.int64).reshape(-1, width)
    return array("q", table[table[:, 0] % step_ns == 0].tobytes())


# Prefill tokens and decodes are those of each iteration of the run, the rest is as of its first.
# A row of 0 iterations is a step that was lost in a failure, up to that.
# A replica of several stages has a row for each stage (from 1) that a batch, or run, has left: from
# when it entered to when it moved on; busy_ns of that it received activations and computed, the
# rest it waited for the next stage. Time of a stage in no row, or not busy in one, is a bubble.
STEP_COLUMNS = (
    "replica",
    "start_ns",
    "end_ns",
    "iterations",
    "prefill_tokens",
    "decodes",
    "first_context_tokens",
    "blocks_used",
    "waiting",
    "cause",
    "stage",
    "busy_ns",
)
EVENT_COLUMNS = ("request", "event", "time_ns", "replica", "step")
# Blocks in use, cached ones (content that nobody uses) and free ones, the rest, are all blocks.
# Lost blocks, which had content that a cache could have found again, are counted from the start.
SERIES_COLUMNS = (
    "time_ns",
    "replica",
    "waiting",
    "running",
    "used_blocks",
    "cached_blocks",
    "lost_blocks",
)
# Of each pool on the same grid: its replicas by condition; requests that wait for one of them to
# come up (at the router, or with their prefill ended); and those between the states of a replica:
# their KV or prefix is on its way, has come and they are not admitted yet, or is in host memory.
# With the queues and those running, these are all that are in the system.
POOL_COLUMNS = (
    "time_ns",
    "pool",
    "up",
    "starting",
    "draining",
    "failed",
    "without_replica",
    "between",
)
# `lost` requests had to leave because of the change.
# `factor_millionths` is that of a straggler or a slow NIC, -1 elsewhere.
CHANGES = (
    *("failed", "restored", "draining", "gone", "added", "up", "taken_back", "called_off"),
    "changed_role",
    *("slowed", "normal", "degraded", "mended"),
)
CHANGE_COLUMNS = ("time_ns", "replica", "change", "lost", "factor_millionths")
# How a migration ended (`sim.migration`): the request moved, or why it stayed.
OUTCOMES = (
    "moved",
    "no_room",
    "too_many_stages",
    "ended",
    "preempted",
    "target_leaves",
    "source_failed",
    "target_failed",
)
# `stop_ns` is when it stopped at its source, -1 if it never did. (`resumed_ns`, in results: its
# first token after that, -1 if there is none.)
MIGRATION_COLUMNS = (
    "request",
    "source",
    "target",
    "start_ns",
    "stop_ns",
    "end_ns",
    "stages",
    "bytes",
    "outcome",
)
# When requests were preempted, and when they were admitted again.
PREEMPTIONS = ("preempted", "swapped_out", "admitted_again")
RECOMPUTED, SWAPPED_OUT, ADMITTED_AGAIN = range(3)
PREEMPTION_COLUMNS = ("request", "what", "time_ns")
# Prefixes fetched from one replica's cache into another's, those called off left out.
FETCH_COLUMNS = ("request", "source", "target", "start_ns", "end_ns", "tokens", "bytes")
# `prefilled_ns`: when the prefill had ended whose KV it is; `alone_ns`: how long it would take with
# its links to itself, all bytes being there.
TRANSFER_COLUMNS = (
    "request",
    "source",
    "target",
    "start_ns",
    "end_ns",
    "bytes",
    "prefilled_ns",
    "alone_ns",
)


def columns(flat: array[int], names: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Rows stored one after the other, as one array per column."""
    table = np.frombuffer(flat, dtype=np.int64).reshape(-1, len(names)) if flat else None
    if table is None:
        return {name: np.zeros(0, np.int64) for name in names}
    return {name: table[:, i].copy() for i, name in enumerate(names)}


def in_time(table: dict[str, Ints]) -> dict[str, Ints]:
    """Rows in order of time, those of an instant in that of their requests."""
    order = np.lexsort((table["request"], table["time_ns"]))
    return {name: column[order] for name, column in table.items()}


@dataclass
class SimulationResult:
    """Outcomes of one run.

    Attributes:
        requests: One row per arrived request in trace order; see `REQUEST_COLUMNS`, and
            ``largest_itl_ns`` (-1 where fewer than two tokens came). int64 unless narrower. Where
            time is attributed, `sim.attribution.E2E_COLUMNS`, `TTFT_COLUMNS` and `ITL_COLUMNS`.
        reasons: Text of each code in the column ``reason``.
        replicas: The replicas, in the order of the indices used everywhere.
        end_ns: The last instant at which anything happened.
        steps: Columns `STEP_COLUMNS`, one row per run of iterations; None if not recorded, or
            handed over while running.
        events: Columns `EVENT_COLUMNS`, changes of state; None if not recorded.
        series: Columns `SERIES_COLUMNS` on a fixed grid.
        pools: Columns `POOL_COLUMNS` on the same grid; 0 is the pool that requests enter, 1 the
            decode pool.
        transfers: Columns `TRANSFER_COLUMNS`, those that ended.
        changes: Columns `CHANGE_COLUMNS`, what happened to replicas; codes are those of `CHANGES`.
        migrations: Columns `MIGRATION_COLUMNS` and ``resumed_ns``, those that ended; outcomes are
            those of `OUTCOMES`.
        fetches: Columns `FETCH_COLUMNS`, prefixes copied between caches.
        fetches_without_room: Those that were not made, as blocks were short.
        hold_timeouts: Requests whose KV was not fetched in time (`sim.holds`).
        links: What each link of a topology has carried.
        decisions: Every decision, if recorded.
        logs: Ends of the ticks of each decode group, ns (one of each replica; with several stages,
            one more than the batches that were under way at once).
        spans: Token times by reference, one row per stretch, in order of request, then time:
            request, log (-1: one instant), first tick (or time), tokens.
        lives: Of each request that was followed its life, in order of time.
        preemptions: Columns `PREEMPTION_COLUMNS`, in order of time, then request; codes are those
            of `PREEMPTIONS`. Empty where time is not attributed.
        gap_log: What single gaps between tokens are split by (`gap_splits`), where time is
            attributed.
    """

    requests: dict[str, npt.NDArray[np.integer]]
    reasons: list[str]
    replicas: list[ReplicaInfo]
    end_ns: int
    steps: dict[str, Ints] | None
    events: dict[str, Ints] | None
    series: dict[str, Ints]
    transfers: dict[str, Ints]
    changes: dict[str, Ints] = field(default_factory=dict)
    migrations: dict[str, Ints] = field(default_factory=dict)
    fetches: dict[str, Ints] = field(default_factory=dict)
    fetches_without_room: int = 0
    hold_timeouts: int = 0
    links: tuple[LinkUse, ...] = ()
    pools: dict[str, Ints] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    logs: list[Ints] = field(default_factory=list)
    spans: Ints = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    lives: dict[int, list[Stretch]] = field(default_factory=dict)
    preemptions: dict[str, Ints] = field(default_factory=dict)
    gap_log: GapLog | None = None

    def token_times_ns(self, index: int) -> Ints:
        """Times of all tokens of one request (by trace index), as its client saw them, ns."""
        first, last = np.searchsorted(self.spans[:, 0], [index, index + 1])
        parts = []
        for _, log, start, tokens in self.spans[first:last].tolist():
            if log < 0:
                parts.append(np.full(tokens, start, np.int64))
            else:
                parts.append(self.logs[log][start : start + tokens])
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def gap_splits(self) -> GapSplits | None:
        """Where the time of single gaps between tokens went; None where time is not attributed."""
        from sim.gap_splits import GapSplits

        if self.gap_log is None:
            return None
        index, prompt = (
            self.requests[name].astype(np.int64) for name in ("index", "prompt_tokens")
        )
        return GapSplits(self.gap_log, self.spans, self.logs, index, prompt)

    def itl(self, groups: npt.NDArray[np.integer]) -> dict[int, tuple[Ints, Ints]]:
        """Exact counts of the distinct gaps between consecutive tokens of a request.

        Args:
            groups: Group of each row of `requests`, shape (n,); negative rows are left out.

        Returns:
            For each group the distinct gaps in ns, ascending, and how often each occurred.
        """
        from sim.gaps import gap_counts

        return gap_counts(self, groups)
