"""The parts of a replica and who is in it; the first layer of `sim.replica.Replica`."""

from __future__ import annotations

import copy
import heapq
from typing import TYPE_CHECKING, cast

from simpy import Environment
from simpy.events import Event

from sim import host_side
from sim.clock import Doorbell, Instant, Phase, now_ns
from sim.decode_group import DecodeGroup
from sim.flight import Flight
from sim.host import HostMemory
from sim.host_side import HostTier
from sim.kvcache import CachingPool
from sim.ledger import Ledger
from sim.pace import Pace, PacedStepTime
from sim.policy import ReplicaState
from sim.queue import ChangingOrder
from sim.records import PREEMPTED, RECOMPUTED, SWAPPED_OUT, Ahead, Lifetime, Recorder
from sim.replica_spec import UP, ReplicaSpec, Surroundings, refuse_company
from sim.request import NEVER, Request
from sim.step_time import ReplicaStepTime, StepWork, asks_spread, bound, varies

if TYPE_CHECKING:
    from sim.replica import Replica

FIRST_RUN = 16
"""Iterations computed ahead at first: doubled while runs are not cut, so that little is computed in
vain."""
_LATE = 1 << 31
"""Added to the place in phase (4) of a pool whose passes come after those of the other."""


class ReplicaParts:
    """Policy, memory, queue, link, bell and timer of a replica; who is here, and in which group.

    Attributes:
        place: Position among all replicas of the cluster: the order within a phase.
        index: Position in its pool.
        role: ``both``, ``prefill`` or ``decode``.
        outstanding: Requests placed here that have not ended or been handed over.
        in_flight: Batches under way, oldest first (one at most, without a pipeline).
        lives: The truth about each request that is here.
        expected: Of those that are to be pushed here and count here, but are still prefilled.
        reserved: Requests that run elsewhere and have blocks here, as they move (`sim.migration`).
        found_tokens: Found cached by all admissions here, those after a preemption included.
        asked_tokens: Known at these admissions: what could have been found, and a token of each.
        lost_blocks_then: Blocks that had lost their content when the replica last failed.
        kept: Requests that have left and whose KV is not yet fetched, as their prefills ended.
        held_for_transfer: Their blocks.
        fetching: Requests that wait for their prefix (`sim.prefix_fetch`), and the tokens that they
            will then compute.
        guests: Who holds blocks here while these are copied from one cache to another.
        condition: ``up``, ``draining``, ``failed``, ``gone`` or ``starting`` (`sim.changes`).
        joined_ns: When it joined its pool, up or not.
        left_ns: When it was gone; `NEVER` if it is still there.
        step_time: Length of iterations: the spec's model, bound to this replica, at its pace.
        stage_busy_ns: Of each pipeline stage, time in which it received activations and computed;
            empty without a pipeline.
    """

    # Python finds attributes of an object with many of them by hash, in slots at once; what classes
    # further down add is in a dict.
    __slots__ = (
        "__weakref__",
        "_asks_spread",
        "_barren_steps",
        "_bell",
        "_cache",
        "_changing",
        "_check",
        "_commits",
        "_fast_forward",
        "_finish_seq",
        "_has_sent",
        "_idle",
        "_keeps_decisions",
        "_keeps_events",
        "_keeps_steps",
        "_known_tokens",
        "_late",
        "_ledger",
        "_loads_alone",
        "_longest_run",
        "_lost_before",
        "_makes_way",
        "_notes_to",
        "_own_step_time",
        "_pace",
        "_prefills_too",
        "_recorder",
        "_step_end",
        "_steps_prefills",
        "_surroundings",
        "_tells_chunks",
        "_this",
        "_tier",
        "_timer",
        "_timer_ns",
        "_turn",
        "_waiting_share",
        "_wake",
        "_watched",
        "_withholds",
        "asked_tokens",
        "busy_ns",
        "condition",
        "decode_tokens",
        "env",
        "expected",
        "fetching",
        "found_tokens",
        "guests",
        "held_for_transfer",
        "host_link",
        "in_flight",
        "index",
        "iterations",
        "iterations_by_rows",
        "joined_ns",
        "kept",
        "kv",
        "left_ns",
        "lives",
        "lost_blocks_then",
        "outstanding",
        "place",
        "policy",
        "prefill_busy_ns",
        "prefill_tokens",
        "reserved",
        "role",
        "spec",
        "stage_busy_ns",
        "state",
        "step_time",
        "watermark",
    )

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
        tells_chunks: bool = False,
        prefills_too: bool = False,
        waiting_share: float | None = None,
        fast_forward: bool = True,
        check: bool = False,
        seed: int = 0,
    ) -> None:
        self.env = env
        self._this = cast("Replica", self)  # what others know of it is the class on top
        self.spec = spec
        self.step_time = self._own_step_time = bound(spec.step_time, seed, place)
        self._pace = Pace()
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
        self._tells_chunks = tells_chunks
        self._steps_prefills = False
        # Of this replica alone: who has moved away may be on the agenda of two replicas.
        self._finish_seq = place << 40
        self.condition = UP
        self.joined_ns, self.left_ns = now_ns(env), NEVER
        rank = place if rank is None else rank
        self._turn = Phase.SCHEDULE + rank + (_LATE if passes_late else 0)
        self._watched = watched
        self._prefills_too = prefills_too  # of a decode replica: not only who was preempted waits
        self._waiting_share = waiting_share
        self._has_sent = False  # in this pass, while somebody waits
        self._step_end = Phase.STEP_END + rank
        self._wake = self._timer = Instant(env, 0, Phase.STEP_END)
        self._timer_ns = NEVER
        self._rest()

    def _set_up(self) -> None:
        """An instance with nothing in it: as at the start, and after a failure."""
        spec = self.spec
        self.policy = copy.deepcopy(spec.policy)
        if self.policy.alone:
            refuse_company(spec, self.role)
        self.policy.check(spec.num_blocks, spec.block_tokens, spec.max_model_len)
        self.watermark = self.policy.watermark_blocks(spec.num_blocks)
        self.kv = self.policy.memory(spec.num_blocks, spec.block_tokens)
        self._cache = self.kv if isinstance(self.kv, CachingPool) else None
        self._commits = self._cache is not None and self._cache.commits
        self._lost_before = 0
        self.host_link = host_side.link_of(spec)
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
        self._keep_log(self.state.group)
        self.lives: dict[Request, Lifetime] = {}
        self.expected: dict[Request, Ahead] = {}
        self.reserved: dict[Request, None] = {}
        self.kept: dict[Request, Lifetime] = {}
        self.fetching: dict[Request, int] = {}
        self.guests: dict[Request, None] = {}
        self.held_for_transfer = self.outstanding = 0
        self._known_tokens = 0  # of outstanding requests that are not in the decode group
        self._ledger: Ledger | None = None
        if self._recorder.attributions is not None:
            own = self._own_step_time
            self._ledger = Ledger(
                self.lives,
                own,
                self._recorder.attributions.alone(spec.step_time),
                varying=varies(own, spec.step_time),
                now_ns=now_ns(self.env),
            )
        self.in_flight: list[Flight] = []
        self._longest_run = FIRST_RUN
        self._barren_steps = 0

    def _host_tier(self) -> HostTier | None:
        return host_side.tier_of(self.spec, self.kv, self.host_link)

    def _host_memory(self) -> HostMemory | None:
        return host_side.memory_of(self.spec, self.policy.host_memory_blocks, self.host_link)

    def _rest(self) -> None:
        """Wait for the bell."""
        self._idle = True
        self._bell = Doorbell(self.env)
        self._bell.callbacks.append(self._takes_turn)

    def _takes_turn(self, event: Event) -> None:
        """Phase (4): a pass, and rest if no step starts."""
        raise NotImplementedError

    def _keep_log(self, group: DecodeGroup) -> None:
        """Tokens refer to the ticks of the group that they came with."""
        group.log = self._recorder.add_log(group.ends_ns)
        if self._recorder.attributions is not None:
            self._recorder.attributions.follow(group, self.spec.step_time)

    def _alone_ns(self, tokens: int) -> int:
        """Length of a step that prefills so many tokens of one prompt from its start, ns."""
        return self.spec.step_time.step_ns(StepWork([(tokens, 0)]), 0)

    # --- its pace

    def _set_pace(self, pace: Pace) -> None:
        """Iterations that start from now on have this pace."""
        self._pace = pace
        own = self._own_step_time
        self.step_time = PacedStepTime(own, pace) if pace else own

    # --- the decode group

    def _joined_group(self, request: Request) -> None:
        """Put the tick with which a group member emits its last token here on the agenda."""
        life, group = self.lives[request], self.state.group
        self._known_tokens -= request.prompt_tokens + request.emitted_then
        self._finish_seq += 1
        life.finish_seq = self._finish_seq
        clock = group.clock + life.goal - request.emitted_then
        heapq.heappush(group.finish, (clock, self._finish_seq, life))
        if self._ledger is not None:
            assert life.account is not None
            stored, now = request.computed_then, now_ns(self.env)
            self._ledger.joined(life.account, group, stored, now, life.delivered)

    def _leave_group(self, request: Request) -> None:
        group, first = request.group, request.since
        assert group is not None
        self._note_ticks(request, group, first, group.leave(request))

    def _note_ticks(self, request: Request, group: DecodeGroup, first: int, ticks: int) -> None:
        """Record the tokens that a request got as a member of a decode group."""
        life = self.lives[request]
        if self._ledger is not None:
            self._bill_leaver(self._ledger, life, group, ticks)
        life.finish_seq = -1
        self._known_tokens += request.prompt_tokens + request.emitted_then
        if ticks and not self._late:
            self._recorder.span(request.index, group.log, first, ticks)
            life.decoded(ticks, group.ends_ns[first + ticks - 1])

    def _bill_leaver(self, ledger: Ledger, life: Lifetime, group: DecodeGroup, ticks: int) -> None:
        """Settle the account of a request that has left a decode group, in a step or not."""
        now, lost_ns = now_ns(self.env), 0
        for flight in self.in_flight:
            if flight.ticks and flight.group is group:
                over = flight.applied
                ledger.bill(flight, over)
                lost_ns = now - (flight.ends_ns[over - 1] if over else flight.start_ns)
        assert life.account is not None
        ledger.left(life.account, group, ticks, now, lost_ns)

    def _preempted(
        self, request: Request, lost_tokens: int, first_tick: int, ticks: int | None
    ) -> None:
        """Called by the state when the policy preempts; `ticks` are those in the decode group."""
        life = self.lives[request]
        if life.ahead is not None:
            self._surroundings.preempted(life)
        life.preemptions += 1
        life.recomputed_tokens += lost_tokens
        life.lost_tokens = lost_tokens
        if request in self.state.swapped:
            life.swap_outs += 1
            life.swapped_blocks += self.state.swapped[request]
        if ticks is not None:
            self._note_ticks(request, self.state.group, first_tick, ticks)
        if self._ledger is not None:
            assert life.account is not None
            swapped = request in self.state.swapped
            now, what = self.state.now_ns, SWAPPED_OUT if swapped else RECOMPUTED
            self._ledger.preempted(life.account, lost_tokens, now, swapped=swapped)
            self._recorder.preempted(request.index, what, now)
        if self._keeps_events:
            self._recorder.event(request.index, PREEMPTED, self.state.now_ns, self.place)

    def _groups(self) -> list[DecodeGroup]:
        """All decode groups with members."""
        return [self.state.group]
