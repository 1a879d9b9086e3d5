"""One model instance: a SimPy process that asks its policy, sleeps for the step and applies it.

A *flight* is a decided batch under way: one iteration, or a run of iterations in which the same
decision would be made again. A run sleeps once. Whatever reaches the replica cuts the run at the
next boundary between iterations, so that tokens' times are those of stepping through all of them.
"""

from __future__ import annotations

import copy
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Protocol

from simpy import Environment
from simpy.events import Event

from sim.batch import Cause, ScheduledBatch
from sim.clock import Doorbell, Instant, Phase, now_ns
from sim.decode_group import DecodeGroup
from sim.disk_cache import DiskBackedCache
from sim.errors import ConfigError, StuckError
from sim.flight import DecisionNotes, Flight
from sim.host import Disk, HostLink, HostMemory
from sim.host_cache import TieredPrefixCache
from sim.kvcache import CachingPool
from sim.policy import Policy, ReplicaState
from sim.queue import ChangingOrder, FirstCome, QueueOrder
from sim.records import ADMITTED, PREEMPTED, PREFILLED, Ahead, Decision, Lifetime, Recorder
from sim.request import NEVER, Request
from sim.step_time import ReplicaStepTime, StepTimeModel, StepWork, asks_spread, bound

# Iterations computed ahead: doubled while runs are not cut, so that little is computed in vain.
FIRST_RUN = 16
_LONGEST_RUN = 4096
_PATIENCE = 1000
_LATE = 1 << 31
"""Added to the place in phase (4) of a pool whose passes come after those of the other."""

UP, DRAINING, FAILED, GONE = "up", "draining", "failed", "gone"
"""Conditions of a replica: only one that is up takes requests (rules 78 and 82)."""


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
    kind: type[Replica] | None = None


class Surroundings(Protocol):
    """What a replica asks of the cluster around it."""

    def pull(self, replica: Replica) -> None:
        """Start the transfers for which the replica has room now (decode role)."""
        ...

    def loading(self, replica: Replica) -> bool:
        """Whether KV is on its way to the replica."""
        ...

    def awaits(self, replica: Replica) -> bool:
        """Whether the replica has yet to send for the KV of somebody."""
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


class Replica:
    """One model instance and its iteration loop.

    Attributes:
        place: Position among all replicas of the cluster: the order within a phase.
        index: Position in its pool.
        role: ``both``, ``prefill`` or ``decode``.
        outstanding: Requests placed here that have not ended or been handed over.
        in_flight: Batches under way, oldest first (one at most, without a pipeline).
        lives: The truth about each request that is here.
        expected: Of those that are to be pushed here and count here, but are still prefilled.
        found_tokens: Found cached by all admissions here, those after a preemption included.
        asked_tokens: Known at these admissions: what could have been found, and a token of each.
        lost_blocks_then: Blocks that had lost their content when the replica last failed.
        kept: Requests that have left and whose KV is not yet fetched, as their prefills ended.
        held_for_transfer: Their blocks.
        condition: ``up``, ``draining``, ``failed`` or ``gone`` (`sim.changes`).
        step_time: Length of iterations: the spec's model, bound to this replica.
        stage_busy_ns: Of each pipeline stage, time in which it received activations and computed;
            empty without a pipeline.
    """

    def __init__(
        self,
        env: Environment,
        spec: ReplicaSpec,
        surroundings: Surroundings,
        recorder: Recorder,
        *,
        place: int,
        index: int,
        role: str,
        rank: int | None = None,
        withholds_first_token: bool = False,
        loads_alone: bool = False,
        passes_late: bool = False,
        watched: bool = False,
        fast_forward: bool = True,
        check: bool = False,
        seed: int = 0,
    ) -> None:
        self.env = env
        self.spec = spec
        self.step_time = bound(spec.step_time, seed, place)
        self._notes_to = self.step_time if isinstance(self.step_time, ReplicaStepTime) else None
        self._asks_spread = asks_spread(self.step_time)
        self.place, self.index, self.role = place, index, role
        self._recorder = recorder
        self._set_up()
        self.stage_busy_ns: list[int] = []
        self.found_tokens = self.asked_tokens = self.lost_blocks_then = 0
        self.iterations = self.busy_ns = self.prefill_tokens = self.decode_tokens = 0
        self.prefill_busy_ns = 0
        self.iterations_by_rows: dict[int, int] = {}
        self._surroundings = surroundings
        self._keeps_steps = recorder.record.steps
        self._keeps_events = recorder.record.events
        self._keeps_decisions = recorder.record.decisions
        self._fast_forward = fast_forward
        self._check = check
        self._late = self.policy.deliver_at_batch_end
        self._withholds = withholds_first_token
        self._loads_alone = loads_alone
        self._finish_seq = 0
        self.condition = UP
        rank = place if rank is None else rank
        self._turn = Phase.SCHEDULE + rank + (_LATE if passes_late else 0)
        self._watched = watched
        self._step_end = Phase.STEP_END + rank
        self._bell = Doorbell(env)
        self._wake = self._timer = Instant(env, 0, Phase.STEP_END)
        self._idle = False
        self._timer_ns = NEVER
        self.process = env.process(self._run())

    def _set_up(self) -> None:
        """An instance with nothing in it: as at the start, and after a failure."""
        spec = self.spec
        self.policy = copy.deepcopy(spec.policy)
        if self.policy.alone:
            _refuse_company(spec, self.role)
        self.policy.check(spec.num_blocks, spec.block_tokens, spec.max_model_len)
        self.watermark = self.policy.watermark_blocks(spec.num_blocks)
        self.kv = self.policy.memory(spec.num_blocks, spec.block_tokens)
        self._cache = self.kv if isinstance(self.kv, CachingPool) else None
        self._commits = self._cache is not None and self._cache.commits
        self._lost_before = 0
        self.host_link = _host_link(spec)
        self._tier = self._host_tier()
        order = copy.deepcopy(spec.order)
        if isinstance(order, ChangingOrder):
            order.begin(self._alone_ns)
        self.state = ReplicaState(
            self.kv,
            order,
            role=self.role,
            max_model_len=spec.max_model_len,
            watermark_blocks=self.watermark,
            host=self._host_memory(),
            on_preempt=self._preempted,
            on_join=self._joined_group,
            on_leave=self._leave_group,
        )
        self._changing = self.state.changing
        self._makes_way = (
            self._changing is not None and self._changing.preempts and self.policy.preemptible
        )
        self._keep_log(self.state.group, self._recorder)
        self.lives: dict[Request, Lifetime] = {}
        self.expected: dict[Request, Ahead] = {}
        self.kept: dict[Request, Lifetime] = {}
        self.held_for_transfer = self.outstanding = 0
        self._known_tokens = 0  # of outstanding requests that are not in the decode group
        self.in_flight: list[Flight] = []
        self._longest_run = FIRST_RUN
        self._barren_steps = 0

    def _host_tier(self) -> TieredPrefixCache | None:
        """The cache, if it has a tier in host memory, which has to be behind a link."""
        if not isinstance(self.kv, TieredPrefixCache):
            return None
        if self.host_link is None:
            raise ConfigError(
                f"{type(self.policy).__name__} keeps KV on the host, and its replica has no link "
                "to it; give host_bandwidth_bytes_per_s"
            )
        if isinstance(self.kv, DiskBackedCache) and self.host_link.disk is None:
            raise ConfigError(
                f"{type(self.policy).__name__} keeps KV on a disk, and its replica has none; give "
                "disk_read_bytes_per_s"
            )
        return self.kv

    def tier_facts(self) -> dict[str, int]:
        """What moved to and from host memory and a disk behind it, and what was found there."""
        link, tier = self.host_link, self._tier
        if link is None:
            return {}
        facts = {"host_bytes": link.moved_bytes}
        if link.disk is not None:
            facts["disk_read_bytes"] = link.disk.read_bytes
            facts["disk_written_bytes"] = link.disk.written_bytes
        if tier is not None:
            disk = tier.disk_read_blocks if isinstance(tier, DiskBackedCache) else 0
            facts["host_found_tokens"] = (tier.loaded_blocks - disk) * self.spec.block_tokens
            facts["disk_found_tokens"] = disk * self.spec.block_tokens
        return facts

    def _host_memory(self) -> HostMemory | None:
        """Host memory of the size that the policy asks for, behind the link."""
        blocks, name = self.policy.host_memory_blocks, type(self.policy).__name__
        if not blocks:
            return None
        if self.host_link is None:
            raise ConfigError(
                f"{name} swaps to the host, and its replica has no link to it; give "
                "host_bandwidth_bytes_per_s"
            )
        return HostMemory(
            blocks, self.host_link, self.spec.block_tokens * self.spec.kv_bytes_per_token
        )

    @staticmethod
    def _keep_log(group: DecodeGroup, recorder: Recorder) -> None:
        """Tokens refer to the ticks of the group that they came with."""
        group.log = recorder.add_log(group.ends_ns)

    # --- what routers see

    @property
    def as_of_ns(self) -> int:
        """The present: the numbers here are exact."""
        return now_ns(self.env)

    def serves(self, request: Request) -> bool:
        """Whether a request is outstanding here."""
        ahead = self.expected.get(request)
        if ahead is not None:
            return not ahead.given_up
        life = self.lives.get(request)
        return life is not None and life.where is self

    @property
    def outstanding_tokens(self) -> int:
        """Prompt and emitted tokens of all requests outstanding here, as of now."""
        self.sync()
        return self._known_tokens + self.state.group.context_tokens

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.state.waiting)

    @property
    def waiting_tokens(self) -> int:
        """Tokens known of the requests in the queue."""
        return self.state.waiting.tokens

    @property
    def prefill_tokens_left(self) -> int:
        """Tokens still to be prefilled here, as of now."""
        self.sync()
        queue = self.state.waiting
        begun = sum(r.target_tokens - r.computed_then for r in self._begun())
        return queue.tokens - queue.expected_cached + begun

    def _begun(self) -> Iterable[Request]:
        """Requests whose prefill has begun and is not complete."""
        return self.state.prefilling

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block."""
        return self.kv.block_tokens

    @property
    def total_blocks(self) -> int:
        """Size of the KV pool."""
        return self.kv.total_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks held or kept for a transfer, as of now."""
        self.sync()
        return self.kv.total_blocks - self.kv.free_blocks

    @property
    def needed_blocks(self) -> int:
        """Blocks used, as of now, and those that whoever holds none yet will need."""
        return self.used_blocks + self.state.waiting.blocks + self._surroundings.unsent_blocks(self)

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the request that would be found cached here now."""
        self.sync()
        return self.kv.peek(request)

    @property
    def step_time_usage(self) -> Mapping[str, Any] | None:
        """What its step-time model counted; None if it counts nothing."""
        return None if self._notes_to is None else self._notes_to.usage()

    def gauges(self) -> tuple[int, int, int, int, int]:
        """What the series holds of it, as of now: see `sim.records.SERIES_COLUMNS`."""
        self.sync(passed=True)
        kv, state = self.kv, self.state
        used = kv.total_blocks - kv.free_blocks
        lost = self.lost_blocks_then + kv.lost_blocks
        return len(state.waiting), state.num_running, used, kv.cached_blocks, lost

    # --- what reaches the replica

    def place_request(self, request: Request, life: Lifetime, goal: int) -> None:
        """Take charge of a request that leaves once it has emitted `goal` tokens in all."""
        life.request, life.where, life.goal = request, self, goal
        self.lives[request] = life
        if request in self.expected:  # it counts already, with what it knew before its prefill
            del self.expected[request]
            self._known_tokens += request.emitted_then
            return
        self.outstanding += 1
        self._known_tokens += request.known_tokens

    def expect(self, ahead: Ahead) -> None:
        """A request will be pushed here; it counts from now on."""
        self.expected[ahead.request] = ahead
        self.outstanding += 1
        self._known_tokens += ahead.request.known_tokens
        if self._cache is not None and self.in_flight:
            self._cut()

    def gives_up(self, ahead: Ahead) -> None:
        """It ended before its prefill did, and counts no more."""
        ahead.given_up = True
        self.outstanding -= 1
        self._known_tokens -= ahead.request.known_tokens

    def expect_no_more(self, ahead: Ahead) -> None:
        """What was reserved for a request that will not come is free."""
        if not ahead.given_up:
            self.gives_up(ahead)
        del self.expected[ahead.request]
        if ahead.found_tokens is not None:
            self.sync()
            self.kv.release(ahead.request)
            self.relieved()
            self.notify()

    def reserve(self, ahead: Ahead) -> None:
        """Phase (4), the passes of this pool being over: take blocks for what will be pushed."""
        request = ahead.request
        self.sync(passed=True)
        tokens = self.policy.transfer_tokens(request, self.spec.max_model_len)
        ahead.found_tokens = self.kv.reserve(request, tokens, keep_free=self.watermark)
        if ahead.found_tokens is None:
            raise ConfigError(
                f"transfer.start: push: a policy admitted {request} although its decode replica "
                "has no room; a policy has to ask ReplicaState.can_go_on before it admits"
            )
        self._cut_after()

    def has_room(self, request: Request) -> bool:
        """Whether `reserve` may be called now (rule 70)."""
        if self.state.waiting:
            return False
        self.sync(passed=True)
        tokens = self.policy.transfer_tokens(request, self.spec.max_model_len)
        return self.kv.has_room(request, tokens, keep_free=self.watermark)

    def _cut_after(self) -> None:
        """As `_cut`, but the pass of this instant was made: what it decided takes its time."""
        if not self.in_flight:
            return
        ends, now = self.in_flight[-1].ends_ns, now_ns(self.env)
        at = bisect_right(ends, now)
        self._longest_run = max(FIRST_RUN, 2 * (at + 1))
        if at + 1 < len(ends):
            del ends[at + 1 :]
            self._wake = self._wake.replace(ends[at] - now, self._step_end)

    def _may_find_more(self) -> bool:
        """Whether what runs here may help somebody for whom there is no room yet."""
        if any(a.found_tokens is None and not a.given_up for a in self.expected.values()):
            return True
        return self._surroundings.may_find_more(self)

    def enqueue(self, request: Request) -> None:
        """A request joins the waiting queue."""
        self._join_queue(request)
        if not (self.in_flight and self._is_deaf(self.in_flight[-1])):
            self.notify()

    def _join_queue(self, request: Request) -> None:
        if self._changing is not None:
            self.sync()
            self._changing.refresh(self.state.waiting, now_ns(self.env))
        self.state.waiting.join(request)

    def _is_deaf(self, flight: Flight) -> bool:
        """Whether who joins the queue now changes nothing while the decision holds."""
        return flight.batch.deaf and not self._makes_way

    def notify(self) -> None:
        """Something reached the replica: it schedules at the next boundary, or now if idle."""
        if self.in_flight:
            self._cut()
        elif self._idle:
            self._bell.ring(self._turn)

    def sync(self, *, passed: bool = False) -> None:
        """Apply the iterations that are over, so that whoever reads the state sees the present.

        Args:
            passed: The passes of this instant are over. Else an iteration of a run that would start
                at this instant has not started: the pass that decides so is still to come.
        """
        if not self.in_flight:
            return
        flight, now = self.in_flight[-1], self.env.now
        over = min(bisect_right(flight.ends_ns, now), len(flight.ends_ns) - 1)
        begun = passed or not over or flight.ends_ns[over - 1] < now
        if over > flight.applied or begun > flight.begun:
            self._advance(flight, over, begun=begun)

    def void(self) -> None:
        """Lose the iteration in flight: those that are over stand, the rest never happened.

        The requests of the lost iteration stay as they were when it began; the replica schedules
        anew in this instant.
        """
        if not self.in_flight:
            return
        self.sync()
        flight = self.in_flight.pop()
        del flight.ends_ns[flight.applied :]
        self._advance(flight, flight.applied)
        self._leave_early(flight.given_up)
        if flight.applied:
            self._count(flight, flight.applied)
        self._wake = self._wake.replace(0, self._turn)

    def drop(self, request: Request) -> None:
        """A request that is not in flight leaves, whatever it was doing; its memory comes back."""
        state = self.state
        if request.group is not None:
            self._leave_group(request)
        if request.seat >= 0:
            del state.running[request]
            state.prefilling.pop(request, None)
            state.paused.pop(request, None)
        else:
            self._take_out(request)
        self.sign_off(request)
        self.forget(request)

    def give_up(self, request: Request) -> None:
        """Its client is gone: it counts no more here, and leaves once no step computes it.

        A step under way keeps its length and emits no token for it; its memory and its seat are
        free when that has left the last stage (rules 53 and 75). Under static batching its memory
        comes back with that of the batch (rule 77).
        """
        self.relieved()
        self.notify()
        self.sync()
        flight = next((x for x in self.in_flight if x.carries(request)), None)
        if request.group is not None:
            self._leave_group(request)
        self.sign_off(request)
        self.lives[request].ended = True
        if flight is not None:
            flight.given_up += (request,)
        elif request in self.state.running:
            self._leave_early((request,))
        elif request.seat < 0:  # a row of a batch that waits for its end has a seat
            self._take_out(request)
            self.forget(request)

    def sign_off(self, request: Request) -> None:
        """The request is not outstanding here any more."""
        self.outstanding -= 1
        self._known_tokens -= request.known_tokens
        self.lives[request].where = None
        if self._changing is not None:
            self._changing.gone(request)

    def forget(self, request: Request) -> None:
        """The last of a request that has signed off: its memory comes back."""
        life = self.lives.pop(request)
        request.seat = -1
        self.kv.release(request)
        if life.ahead is not None:
            self._surroundings.left_early(life)
        if self._watched:
            self._surroundings.more_room()
        if self.condition == DRAINING and self.empty:
            self._surroundings.emptied(self)

    @property
    def empty(self) -> bool:
        """Whether nobody is here, and nobody's KV is kept."""
        return not (self.lives or self.kept)

    def keep(self, request: Request, life: Lifetime) -> None:
        """A request that leaves has its prompt's blocks kept for its transfer (rule 30)."""
        self.kept[request] = life
        self.held_for_transfer += self.kv.shrink(request, request.prompt_tokens)

    def free_held(self, request: Request) -> None:
        """Blocks of a request that has left, kept for its transfer, are free."""
        self.sync()
        del self.kept[request]
        again = self._surroundings.may_return
        self.held_for_transfer -= self.kv.release(request, again=again)
        self.relieved()
        if self.condition == DRAINING and self.empty:
            self._surroundings.emptied(self)

    def fail(self) -> tuple[list[Lifetime], list[Lifetime]]:
        """Lose the step in flight and all that is here; be as new, and empty (rule 54).

        The cluster has taken out before whoever waits for KV or has it on its way.

        Returns:
            Those who were running, in order, then loaded; and those who waited, in order, swapped
            ones first. Whoever had ended is in neither.
        """
        self._lose_step()
        for request in list(self.state.running):
            if request.group is not None:
                self._leave_group(request)
        seated = sorted((request for request in self.lives if request.seat >= 0), key=_by_seat)
        begun = self._lost_lives([*seated, *self.state.loaded])
        waiting = self._lost_lives([*self.state.swapped, *self.state.waiting])
        moved_bytes = 0 if self.host_link is None else self.host_link.moved_bytes
        self.lost_blocks_then += self.kv.lost_blocks
        self._timer.call_off()
        self._timer_ns = NEVER
        self._set_up()
        if self.host_link is not None:
            self.host_link.moved_bytes = moved_bytes
        return begun, waiting

    def _lost_lives(self, requests: Iterable[Request]) -> list[Lifetime]:
        """What becomes of requests whose replica fails: they are nowhere, and their KV is lost."""
        lives = []
        for request in requests:
            life = self.lives[request]
            if not life.ended:
                life.lose(request.computed_then)
                lives.append(life)
        return lives

    def _lose_step(self) -> None:
        """Iterations that are over stand; the one in flight is logged as lost, and ends now."""
        if not self.in_flight:
            return
        self.sync()
        flight, now = self.in_flight.pop(), now_ns(self.env)
        over = flight.applied
        del flight.ends_ns[over:]
        if over:
            self._count(flight, over)
        began = flight.ends_ns[-1] if over else flight.start_ns
        if began < now:
            self._log_lost(flight, began, now)
        self._wake = self._wake.replace(0, self._turn)

    def _log_lost(self, flight: Flight, began_ns: int, now: int) -> None:
        """A step that was lost was busy, and computed nothing (rule 81)."""
        self.busy_ns += now - began_ns
        if flight.prefill_tokens:
            self.prefill_busy_ns += now - began_ns
        flight.ends_ns.append(now)
        if self._keeps_steps:
            used = self.kv.total_blocks - self.kv.free_blocks
            waiting, busy = len(self.state.waiting), now - began_ns
            self._recorder.step(self.place, flight, 0, began_ns, now, used, waiting, 1, busy)
        if flight.notes is not None:
            entry = flight.notes.decisions(flight, len(flight.ends_ns), self.place)[-1]
            self._recorder.decisions.append(entry._replace(lost=True))

    def _take_out(self, request: Request) -> None:
        """A request without a seat leaves the queue in which it is, if it is in one."""
        state = self.state
        if request in state.loaded:
            state.loaded.remove(request)
        elif state.host is not None and request in state.host.swapped:
            state.host.forget(request)
        elif request in state.waiting:
            state.waiting.take_out(request)

    # --- the iteration loop

    def _run(self) -> Generator[Event, Any, None]:
        env = self.env
        while True:
            self._idle = True
            self._bell = Doorbell(env)
            yield self._bell
            self._idle = False
            while self._pass():
                yield self._wake
                if self.in_flight:  # else the run was cut at this very instant, or voided
                    self._complete()
                    if env.peek() <= env.now:  # other phases of this instant come first
                        self._wake = Instant(env, 0, self._turn)
                        yield self._wake

    def _pass(self) -> bool:
        """One scheduling pass; True if a step started."""
        state = self.state
        if self._cache is not None:
            self._newly_lost()
        now = state.now_ns = now_ns(self.env)
        if self._watched:
            self._surroundings.more_room()
        if self._loads_alone and self._loads_first(state, now):
            return False
        batch = self._decide(state, now)
        runs = batch.all_decodes or bool(batch.tokens)
        if state.admitted:
            self._admitted(now)
        flight = self._board(batch, now) if runs else None
        if self.role == "decode" and not (self._loads_alone or state.waiting or state.swapped):
            self._surroundings.pull(self)
        if state.wake_at_ns is not None:
            self._set_timer(state.wake_at_ns)
        elif self._timer_ns != NEVER:
            self._timer.call_off()
            self._timer_ns = NEVER
        if self._tier is not None:
            self._move_tier()
        if flight is not None:
            self._launch(flight)
        elif self._tier is not None and self.host_link is not None:
            self.host_link.end_pass()
        return flight is not None

    def _loads_first(self, state: ReplicaState, now: int) -> bool:
        """Where transfers block decoding: whether one is under way, or starts now (rule 92)."""
        if self._surroundings.loading(self):
            return True
        if state.loaded and self.policy.joins_loaded:
            state.admitted, state.found = [], {}
            state.join_loaded(self.policy.seats)
            self._admitted(now)
        if not (state.waiting or state.swapped):
            self._surroundings.pull(self)
        return self._surroundings.loading(self)

    def _move_tier(self) -> None:
        """What the pass loaded from the host or made the cache write there moves over the link."""
        if self._tier is not None and self.host_link is not None:
            block_bytes = self.spec.block_tokens * self.spec.kv_bytes_per_token
            self.host_link.move(self._tier.newly_moved() * block_bytes)
            if isinstance(self._tier, DiskBackedCache) and self.host_link.disk is not None:
                read, written = self._tier.newly_on_disk()
                self.host_link.disk.move(read * block_bytes, written * block_bytes)

    def _decide(self, state: ReplicaState, now: int) -> ScheduledBatch:
        """Ask the policy, again while it only preempts (rule 2)."""
        policy = self.policy
        state.wake_at_ns = None
        while True:
            if state.preempted:
                state.preempted = []
            if state.admitted:
                state.admitted, state.found = [], {}
            if state.loaded and policy.joins_loaded:
                state.join_loaded(policy.seats)
            if self._changing is not None and self._made_way(self._changing, now):
                continue
            batch = policy.schedule(state)
            if batch.host_bytes:
                assert self.host_link is not None
                self.host_link.move(batch.host_bytes)
            if batch.all_decodes or batch.tokens or not state.preempted:
                return batch
            self._repeated_pass(now)

    def _board(self, batch: ScheduledBatch, now: int) -> Flight:
        """Bring the decode group in line with the batch, and add up what it computes."""
        group, ticks = self.state.group, batch.all_decodes
        chunks: list[tuple[Request, int]] = []
        pieces: list[tuple[int, int]] = []
        prefill_tokens = 0
        if batch.tokens:
            if not ticks and self.state.num_decoding:
                ticks = self._select_decodes(batch)
            for item in batch.tokens.items():
                request, tokens = item
                if request.computed_then < request.target_tokens:
                    chunks.append(item)
                    pieces.append((tokens, request.computed_then))
                    prefill_tokens += tokens
        decodes, context = (group.size, group.context_tokens) if ticks else (0, 0)
        if batch.padding is None:
            work = StepWork(pieces, decodes, context)
            if ticks and self._asks_spread:
                work.context_spread = group.context_spread
        else:
            work = batch.padding.work(
                pieces, decodes, context, group.context_spread if ticks else 0
            )
        return Flight(batch, now, chunks, decodes, work, prefill_tokens, group)

    def _select_decodes(self, batch: ScheduledBatch) -> bool:
        """Let just the decodes that the batch lists take part in the next tick; False if none."""
        state, tokens = self.state, batch.tokens
        listed = [request for request in tokens if request.decoding]
        if not listed:
            return False
        if len(listed) < state.num_decoding:
            for request in state.running:
                if request.group is not None and request not in tokens:
                    self._leave_group(request)
                    state.paused[request] = None
        for request in listed:
            if request.group is None:
                del state.paused[request]
                state.join_group(request)
        if not self.kv.decode_all(state.group):
            name = type(self.policy).__name__
            raise AssertionError(f"{name} scheduled decodes without allocating their blocks")
        return True

    def _launch(self, flight: Flight) -> None:
        """Ask the step-time model how long the flight takes and go to sleep."""
        model, start, link = self.step_time, flight.start_ns, self.host_link
        n = self._steady_iterations(flight) if self._fast_forward else 1
        if link is not None and link.end_pass():
            ends = [start + link.lengthened(model.step_ns(flight.work, self.iterations))]
        elif n == 1:
            ends = [start + model.step_ns(flight.work, self.iterations)]
        else:
            if flight.chunks:
                lengths = flight.chunk_steps_ns(model, n, self.iterations)
            else:
                steps = model.steps_ns(flight.work, n, self.iterations)
                lengths = steps if isinstance(steps, list) else steps.tolist()
            ends = list(accumulate(lengths, initial=start))
            del ends[0]
        flight.ends_ns = ends
        if self._keeps_decisions:
            flight.notes = DecisionNotes(flight, self.state, self._newly_lost())
        self.in_flight.append(flight)
        self._wake = Instant(self.env, ends[-1] - start, self._step_end)
        if self._check:
            self.verify()

    def _steady_iterations(self, flight: Flight) -> int:
        """For how many iterations the decision holds: nobody finishes, and blocks suffice."""
        batch, group = flight.batch, flight.group
        n = batch.chunk_repeat if flight.chunks else batch.repeat
        if self._changing is not None and self.state.waiting and not self._no_turn(batch):
            return 1
        # A pass that preempted is not made again: its victims now wait, and may be admitted next.
        if n == 1 or self.state.preempted:
            return 1
        if self.role == "decode" and self._cache and self._may_find_more():
            return 1
        # Whoever waited was in the way of a transfer that the next pass may start first.
        if self._loads_alone and self.state.admitted and self._surroundings.awaits(self):
            return 1
        if n > self._longest_run:
            n = self._longest_run
        have = self.kv.free_blocks - batch.spare_blocks
        if self._tier is not None:  # what is lost is written, which lengthens the step
            have = min(have, self._tier.blocks_without_content())
        if flight.ticks:
            heap = group.finish
            while heap[0][1] != heap[0][2].finish_seq:
                heapq.heappop(heap)
            last = heap[0][0] - group.clock
            if n > last:
                n = last
            if group.late:
                n = group.steady_ticks(n)
            if n == 1:
                return 1
            have += group.needs[group.clock % group.block_tokens]  # those of the first are taken
        if not flight.chunks:
            return max(1, group.ticks_within(have, n))
        while n > 1 and flight.blocks_needed(n, self.kv) > have:
            n //= 2
        return n

    def _cut(self) -> None:
        """Let the run in flight end at the next boundary; a boundary at this instant is past."""
        flight = self.in_flight[-1]
        ends = flight.ends_ns
        if len(ends) == 1:
            return
        now = now_ns(self.env)
        at = bisect_left(ends, now)
        self._longest_run = max(FIRST_RUN, 2 * (at + 1))
        if at + 1 >= len(ends):
            return
        del ends[at + 1 :]
        if ends[at] == now:
            self._wake = self._wake.replace(0, self._turn)
            self._complete()
        else:
            self._wake = self._wake.replace(ends[at] - now, self._step_end)

    # --- an order that changes

    def _alone_ns(self, tokens: int) -> int:
        """Length of a step that prefills so many tokens of one prompt from its start, ns."""
        return self.spec.step_time.step_ns(StepWork([(tokens, 0)]), 0)

    def _made_way(self, order: ChangingOrder, now: int) -> bool:
        """A pass of the order's own before that of the policy, logged if it preempted (rule 2)."""
        state = self.state
        if not state.waiting:
            return False
        order.refresh(state.waiting, now)
        if not (self._makes_way and order.make_way(state, self.policy.seats)):
            return False
        self._repeated_pass(now)
        return True

    def _on_board(self) -> Iterable[Request]:
        """At least those who may have taken part in a step that is over."""
        return self.state.running

    def _no_turn(self, batch: ScheduledBatch) -> bool:
        """Whether those who wait have to, whatever their order."""
        return not self._makes_way and batch.cause in (Cause.NO_SEAT, Cause.BATCH_RUNNING)

    # --- the effects of iterations

    def _advance(self, flight: Flight, upto: int, *, begun: bool = True) -> None:
        """Apply the iterations of a run up to `upto`.

        If there is one more, and that has begun, its blocks are taken as well.
        """
        ends, group = flight.ends_ns, flight.group
        new = ends[flight.applied : upto] if flight.applied or upto < len(ends) else ends
        flight.applied = upto
        more = begun and upto < len(ends)
        had, flight.begun = flight.begun, begun
        if flight.chunks:
            flight.advance_chunks(len(new), self.kv, had=had, more=more)
        if not flight.ticks:
            return
        # The first tick ahead may have its blocks already. Of a run that was cut where it was last
        # synced, that tick never starts, and gives them back.
        started = len(new) + more
        if started != group.taken:
            self.kv.take_ticks(group, started)
        group.advance(new)
        group.taken = more

    def _apply_single(self, flight: Flight, now: int) -> None:
        """Apply a flight of one iteration: as `_advance`, but there is nothing to take ahead."""
        for request, tokens in flight.chunks:
            request.computed_then += tokens
        if flight.ticks:
            group = flight.group
            group.clock += 1
            group.ends_ns.append(now)
            group.taken = False
            if group.late:
                group.activate_late()

    def _complete(self) -> None:
        """The flight is over: tokens are emitted, requests leave, their memory is freed."""
        flight = self.in_flight.pop(0)
        n = len(flight.ends_ns)
        now = flight.ends_ns[-1]
        if n == self._longest_run:
            self._longest_run = min(2 * n, _LONGEST_RUN)
        if n == 1 and not flight.applied:
            self._apply_single(flight, now)
        else:
            self._advance(flight, n)
        done: list[Request] = []
        if flight.ticks and flight.group.finish[0][0] <= flight.group.clock:
            self._finish_decodes(flight.group, done)
        given_up = flight.given_up
        if given_up:
            self._stop_decodes(flight, done)
        self._count(flight, n)
        if self._watched:
            self._surroundings.more_room()
        if flight.chunks:
            self._end_chunks(flight, done, now)
        if done:
            if len(done) > 1 and flight.batch.in_running_order:
                done.sort(key=_by_seat)
            self._leave(done, now)
        if self._check:
            self.verify()

    def _end_chunks(self, flight: Flight, done: list[Request], now: int) -> None:
        """Prefill pieces are over. A cache that asks for it gets them one by one, in batch order.

        Whoever has emitted its last token joins `done`, or has left already where the cache asks.
        """
        given_up, commits = flight.given_up, self._commits
        for request, _ in flight.chunks:
            if given_up and request in given_up:
                del self.state.prefilling[request]
                leaves = True
            else:
                complete = request.computed_then == request.target_tokens
                leaves = complete and self._prefilled(request, now)
            if not commits:
                if leaves:
                    done.append(request)
            elif leaves:
                self._leave((request,), now)
            else:
                self.kv.commit(request, request.computed_then)

    def _finish_decodes(self, group: DecodeGroup, done: list[Request]) -> None:
        """Requests that emitted their last token here with the tick just completed."""
        clock, heap = group.clock, group.finish
        while heap and heap[0][0] <= clock:
            _, seq, life = heapq.heappop(heap)
            if life.finish_seq == seq and life.request is not None:
                done.append(life.request)
        if len(done) > 1:
            done.sort(key=_by_seat)
        for request in done:
            self._leave_group(request)

    def _stop_decodes(self, flight: Flight, done: list[Request]) -> None:
        """Decodes whose clients gave up leave with those that finish; a last token is stored."""
        chunks = {request for request, _ in flight.chunks}
        decodes = [request for request in flight.given_up if request not in chunks]
        for request in decodes:
            request.computed_then += 1
        done += decodes
        done.sort(key=_by_seat)

    def _prefilled(self, request: Request, now: int) -> bool:
        """A prefill is complete and emits a token. True if it was the last to be emitted here."""
        life = self.lives[request]
        del self.state.prefilling[request]
        request.emitted_then += 1
        self._known_tokens += 1
        if life.prefill_end_ns == NEVER:
            life.prefill_end_ns = now
        if self._keeps_events:
            self._recorder.event(request.index, PREFILLED, now, self.place)
        self._barren_steps = 0
        if not (self._withholds or self._late):
            self._recorder.token(request.index, now)
            life.deliver(1, now)
        if request.emitted_then == life.goal:
            return True
        self.state.join_group(request)
        return False

    def _leave(self, done: Sequence[Request], now: int) -> None:
        """Requests that emitted all they emit here: they end or move on, and memory comes back."""
        state, late = self.state, self._late
        for request in done:
            del state.running[request]
            if not late:
                self._part(request, now)
        for request in self.policy.leaving(done, state):
            if late:
                self._part(request, now)
            self._give_back(request, now)

    def _leave_early(self, given_up: Sequence[Request]) -> None:
        """Running requests whose clients gave up leave, no step being under way for them."""
        for request in given_up:
            self.state.prefilling.pop(request, None)
            self.state.paused.pop(request, None)
        if given_up:
            self.state.early = True
            self._leave(given_up, now_ns(self.env))
            self.state.early = False

    def _part(self, request: Request, now: int) -> None:
        """The client has its last token, or the last that this replica emits, or is gone."""
        life = self.lives[request]
        if life.ended:
            return
        if self._late and not self._withholds:
            self._deliver_all(request, now)
        self.sign_off(request)
        if life.delivered == life.arrival.output_tokens:
            self._surroundings.finished(life, now)

    def _give_back(self, request: Request, now: int) -> None:
        """Free the memory of a request that leaves, or keep it for its transfer."""
        life = self.lives[request]
        if life.ended:
            self.forget(request)
            return
        del self.lives[request]
        request.seat = -1
        self._surroundings.prefilled(self, request, life, now)

    def _deliver_all(self, request: Request, now: int) -> None:
        """The client gets, at once, all that the batch emitted for it."""
        life = self.lives[request]
        tokens = request.emitted_then - (life.delivered - life.before)
        self._recorder.token(request.index, now, tokens)
        life.deliver(tokens, now)

    def _joined_group(self, request: Request) -> None:
        """Put the tick with which a group member emits its last token here on the agenda."""
        life, group = self.lives[request], self.state.group
        self._known_tokens -= request.known_tokens
        self._finish_seq += 1
        life.finish_seq = self._finish_seq
        clock = group.clock + life.goal - request.emitted_then
        heapq.heappush(group.finish, (clock, self._finish_seq, life))

    def _leave_group(self, request: Request) -> None:
        group, first = request.group, request.since
        assert group is not None
        self._note_ticks(request, group, first, group.leave(request))

    def _note_ticks(self, request: Request, group: DecodeGroup, first: int, ticks: int) -> None:
        """Record the tokens that a request got as a member of a decode group."""
        life = self.lives[request]
        life.finish_seq = -1
        self._known_tokens += request.known_tokens
        if ticks and not self._late:
            self._recorder.span(request.index, group.log, first, ticks)
            life.deliver(ticks, group.ends_ns[first + ticks - 1])

    # --- bookkeeping

    def _admitted(self, now: int) -> None:
        """Note the first schedule of requests that joined running in this pass."""
        for request in self.state.admitted:
            life = self.lives[request]
            if self._cache is not None and request in self.state.found:
                self._note_cached(request, life)
            if life.first_scheduled_ns == NEVER:
                life.first_scheduled_ns = now
            if self._keeps_events:
                self._recorder.event(request.index, ADMITTED, now, self.place)

    def _note_cached(self, request: Request, life: Lifetime) -> None:
        """What a request found: of its prompt when it first starts, later of what it had lost."""
        found = self.state.found[request]
        self.found_tokens += found
        self.asked_tokens += request.target_tokens
        if life.first_scheduled_ns == NEVER:
            life.cached_tokens = found
        else:
            life.recomputed_tokens -= min(found, life.lost_tokens)

    def _newly_lost(self) -> int:
        """Blocks that lost their content since this was last asked."""
        cache = self._cache
        if cache is None:
            return 0
        before, self._lost_before = self._lost_before, cache.lost_blocks
        return self._lost_before - before

    def _preempted(
        self, request: Request, lost_tokens: int, first_tick: int, ticks: int | None
    ) -> None:
        """Called by the state when the policy preempts; `ticks` are those in the decode group."""
        life = self.lives[request]
        life.preemptions += 1
        life.recomputed_tokens += lost_tokens
        life.lost_tokens = lost_tokens
        if request in self.state.swapped:
            life.swap_outs += 1
            life.swapped_blocks += self.state.swapped[request]
        if ticks is not None:
            self._note_ticks(request, self.state.group, first_tick, ticks)
        if self._keeps_events:
            self._recorder.event(request.index, PREEMPTED, self.state.now_ns, self.place)

    def _count(self, flight: Flight, n: int) -> None:
        """Add the first `n` iterations of a flight to the totals and the logs."""
        end = flight.ends_ns[n - 1]
        if self._notes_to is not None:
            flight.note(self._notes_to, self.iterations, n)
        self.iterations += n
        if self._changing is not None and self._changing.times_service:
            decoding = [r for r in self._on_board() if flight.ticks and r.group is flight.group]
            took_part = chain(decoding, (request for request, _ in flight.chunks))
            self._changing.served(took_part, end - flight.start_ns)
        self.busy_ns += end - flight.start_ns
        if flight.prefill_tokens:
            self.prefill_busy_ns += end - flight.start_ns
        self.prefill_tokens += flight.prefill_tokens * n
        self.decode_tokens += flight.decodes * n
        rows = flight.prefill_tokens + flight.decodes
        self.iterations_by_rows[rows] = self.iterations_by_rows.get(rows, 0) + n
        if flight.ticks:
            self._barren_steps = 0
        else:
            self._look_for_progress()
        if self._keeps_steps:
            start, used = flight.start_ns, self.kv.total_blocks - self.kv.free_blocks
            self._recorder.step(
                self.place, flight, n, start, end, used, len(self.state.waiting), 1, end - start
            )
        if flight.notes is not None:
            self._recorder.decisions += flight.notes.decisions(flight, n, self.place)

    def _set_timer(self, when_ns: int) -> None:
        """The policy wants a pass at this instant although nothing may happen."""
        if self._timer_ns != when_ns:
            self._timer.call_off()
            self._timer_ns = when_ns
            self._timer = Instant(self.env, when_ns - now_ns(self.env), self._turn)
            self._timer.callbacks.append(self._timer_rings)

    def _timer_rings(self, _: Event) -> None:
        self._timer_ns = NEVER
        if self._idle:
            self._bell.ring(self._turn)

    def _repeated_pass(self, now: int) -> None:
        """A pass that only preempted: it takes no time and is made again."""
        if self.host_link is not None:
            self._move_tier()
            self.host_link.end_pass()
        if self._keeps_decisions:
            gone = [request.index for request in self.state.preempted]
            lost = self._newly_lost()
            entry = Decision(self.place, now, now, {}, gone, self.kv.free_blocks, {}, lost)
            self._recorder.decisions.append(entry)
        self._look_for_progress()

    def relieved(self) -> None:
        """Memory came back from outside: whoever only recomputed for want of it may go on."""
        self._barren_steps = 0

    @property
    def at_work(self) -> bool:
        """Whether something will happen by itself: a step ends, a pass, or a policy's timeout."""
        passes = self._bell.rung or not self._idle
        return passes or bool(self.in_flight) or self._timer_ns != NEVER

    @property
    def barren(self) -> bool:
        """It has worked for long without a token."""
        return self._barren_steps > _PATIENCE

    def _look_for_progress(self) -> None:
        """Stop a run that only recomputes: more steps without a token than tokens are here."""
        self._barren_steps += 1
        if not self.barren:
            return
        tokens = sum(request.known_tokens for request in self.lives)
        if self._barren_steps <= 4 * tokens + _PATIENCE:
            return
        # Two pools: blocks held for a slow transfer can make a replica recompute for a long time.
        if self.role != "both" and self._surroundings.may_help(self):
            return
        stuck = next(iter(self.lives))
        raise StuckError(
            f"{type(self.policy).__name__} on replica {self.place}: {self._barren_steps} steps "
            f"without a token; stuck at {stuck}, {self.kv.free_blocks} of "
            f"{self.kv.total_blocks} blocks free"
        )

    def settle(self) -> None:
        """Bring every request up to date when the run is stopped before it ended."""
        self.sync()
        for request in list(self.state.running):
            if request.group is not None:
                self._leave_group(request)

    def _groups(self) -> list[DecodeGroup]:
        """All decode groups with members."""
        return [self.state.group]

    def verify(self) -> None:
        """Assert that blocks are conserved and that queues and counters agree."""
        state, kv = self.state, self.kv
        used = sum(kv.held(request) for request in self.lives)
        used += sum(kv.held(request) for request in self.expected)
        if self._cache is not None:
            self._cache.verify()
            used -= self._cache.shared_blocks
        assert kv.free_blocks >= 0, f"replica {self.place} gave away blocks it does not have"
        assert kv.free_blocks + used + self.held_for_transfer == kv.total_blocks, (
            f"replica {self.place}: {kv.free_blocks} free + {used} used + "
            f"{self.held_for_transfer} held for transfers is not {kv.total_blocks}"
        )
        stay = [request for request in state.running if not self.lives[request].ended]
        if state.host is not None:
            assert state.host.free_blocks + sum(state.swapped.values()) == state.host.total_blocks
        decoding = [request for request in stay if not request.prefilling]
        assert len(decoding) == state.group.size + len(state.paused)
        context = sum(r.computed_tokens + 1 for r in self.lives if r.group is not None)
        assert context == sum(group.context_tokens for group in self._groups())
        known = sum(r.known_tokens for r, life in self.lives.items() if life.where is self)
        known += sum(r.known_tokens for r, a in self.expected.items() if not a.given_up)
        assert known == self._known_tokens + context
        seated = [request for request in self.lives if request.seat >= 0]
        for request in seated:
            assert request.emitted_tokens <= self.lives[request].goal
            room = kv.held(request) * kv.block_tokens
            assert request.computed_tokens <= room, f"{request} has {room} tokens of memory"
        for flight in self.in_flight:
            for request, tokens in flight.chunks:
                last = request.computed_then + tokens
                assert request.computed_then < last <= request.target_tokens, f"bad chunk {tokens}"
                room = kv.held(request) * kv.block_tokens
                assert last <= room, f"{request}: {room} tokens of memory for a chunk of {tokens}"


def _host_link(spec: ReplicaSpec) -> HostLink | None:
    bandwidth, read = spec.host_bandwidth_bytes_per_s, spec.disk_read_bytes_per_s
    if bandwidth is None:
        return None
    disk = None if read is None else Disk(read, spec.disk_write_bytes_per_s or read)
    return HostLink(bandwidth, overlap=spec.host_overlap, disk=disk)


def _refuse_company(spec: ReplicaSpec, role: str) -> None:
    """Raise `ConfigError` where a policy that is `alone` is given what it does not go with."""
    name = type(spec.policy).__name__
    if role != "both":
        raise ConfigError(
            f"policy {name}: not modelled on a {role} replica; try one pool whose replicas do both"
        )
    if not spec.order.first_come:
        raise ConfigError(
            f"order: policy {name} sorts its queue itself, by its own option order; "
            "leave the pool's order at fcfs"
        )


def _by_seat(request: Request) -> int:
    return request.seat
