"""A replica of several pipeline stages: up to one batch in each (rules 55 and 85 to 87).

A scheduling pass is made when the first stage is free. It sees the requests that are in no batch
under way; the others keep their seats and blocks. Decoding requests of a batch are a decode group
of their own, which goes through the stages as a whole: an iteration costs nothing per request, as
on a replica of one stage. Groups that meet again, all their batches being over, become one.

A batch that is alone, with nobody waiting whom the next pass could admit, is advanced for many
iterations at once (fast-forward). Whatever reaches the replica meanwhile puts the batch into the
stage where it is by then. Several batches under way are stepped through.
"""

from __future__ import annotations

import copy
import itertools
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from simpy import Environment
from simpy.events import Event

from sim.batch import Cause
from sim.clock import Instant, now_ns
from sim.decode_group import DecodeGroup
from sim.errors import ConfigError, called
from sim.flight import DecisionNotes, Flight
from sim.host import HostMemory
from sim.host_side import HostTier
from sim.pace import Pace, PacedStepTime
from sim.policy import Riders
from sim.records import Lifetime, Recorder
from sim.replica import Replica
from sim.replica_parts import FIRST_RUN
from sim.replica_spec import ReplicaSpec, Surroundings
from sim.request import NEVER, Request
from sim.stages import PipelineStepTime
from sim.step_time import StepTimeModel, StepWork

_HOLDS_OUT = (Cause.NO_SEAT, Cause.NO_BLOCKS, Cause.BATCH_RUNNING)
"""Causes that keep the first waiting request out of the passes between two of the same batch as
well: these find as many seats, no more free blocks, and the same batch running."""


class Ride:
    """A batch on its way through the stages.

    Attributes:
        flight: The batch and its effects.
        riders: Its requests, out of sight of other passes.
        models: Step times of the stages, at the pace that the replica had when it entered them.
        iteration: Its number (of the first iteration, for a run).
        stage: Where it is, from 0.
        worked_ns: Time of the stages that it has entered so far.
        entered_ns: When it moved there.
        ready_ns: When it may move on.
        ready: The wake-up then.
        lengths: For a run: of each stage, the time of each iteration in it, ns.
    """

    __slots__ = (
        "entered_ns",
        "flight",
        "iteration",
        "lengths",
        "models",
        "ready",
        "ready_ns",
        "riders",
        "stage",
        "worked_ns",
    )

    def __init__(
        self, flight: Flight, riders: Riders, models: Sequence[StepTimeModel], iteration: int
    ) -> None:
        self.flight = flight
        self.riders = riders
        self.models = models
        self.iteration = iteration
        self.stage = self.worked_ns = 0
        self.entered_ns = self.ready_ns = flight.start_ns
        self.ready: Instant | None = None
        self.lengths: list[list[int]] = []

    @property
    def lengths_to_come(self) -> tuple[int, ...]:
        """Its time in the stages after the one where it is, ns."""
        models, work = self.models[self.stage + 1 :], self.flight.work
        return tuple(model.step_ns(work, self.iteration) for model in models)


class PipelineReplica(Replica):
    """One model instance over several stages; `ReplicaSpec.step_time` is a `PipelineStepTime`.

    With one stage it gives the very integers of `Replica`, which is quicker. `busy_ns` is the time
    in which any batch is under way.
    """

    def __init__(
        self,
        env: Environment,
        spec: ReplicaSpec,
        surroundings: Surroundings,
        recorder: Recorder,
        **options: Any,
    ) -> None:
        if not isinstance(spec.step_time, PipelineStepTime):
            name = type(spec.step_time).__name__
            raise ConfigError(f"a pipeline needs a step time for each stage, not one {name}")
        self._stages: list[Ride | None] = [None] * len(spec.step_time.stages)
        self._run_ahead: Ride | None = None
        self._last_run: Ride | None = None
        self._spare_groups: list[DecodeGroup] = []
        self._launched = 0
        self._busy_until_ns = 0
        self._landing = False
        super().__init__(env, spec, surroundings, recorder, **options)
        if self.policy.alone:
            name = called(self.policy)
            raise ConfigError(
                f"policy {name}: not modelled on a pipeline; try pipeline_parallel: 1"
            )
        self._logs_stages, self._keeps_steps = self._keeps_steps, False
        assert isinstance(self.step_time, PipelineStepTime)
        self._models: Sequence[StepTimeModel] = self.step_time.stages
        self.stage_busy_ns = [0] * len(self._models)
        if not self.step_time.counting:
            self._notes_to = None

    def _host_tier(self) -> HostTier | None:
        if super()._host_tier() is not None:
            raise ConfigError(
                "host_cache_blocks: not modelled on a pipeline; try pipeline_parallel: 1, or leave "
                "it out"
            )
        return None

    def _host_memory(self) -> HostMemory | None:
        if self.policy.host_memory_blocks:
            raise ConfigError(
                "preemption: swap: not modelled on a pipeline; try pipeline_parallel: 1, or "
                "preemption: recompute"
            )
        return None

    # --- what routers see, and what reaches the replica

    @property
    def outstanding_tokens(self) -> int:
        """Prompt and emitted tokens of all requests outstanding here, as of now."""
        self.sync()
        return self._known_tokens + sum(group.context_tokens for group in self._groups())

    def _begun(self) -> Iterable[Request]:
        rides = [ride for ride in (*self._stages, self._run_ahead) if ride is not None]
        away = (request for ride in rides for request in ride.riders.prefilling)
        return itertools.chain(self.state.prefilling, away)

    def _on_board(self) -> Iterable[Request]:
        return self.lives  # riders of a run that is cut are not in running

    def enqueue(self, request: Request) -> None:
        """A request joins the waiting queue."""
        self._join_queue(request)
        alone = self._run_ahead
        if alone is None or not self._is_deaf(alone.flight):
            self.notify()

    def notify(self) -> None:
        """Something reached the replica: it schedules now if the first stage is free."""
        if self._run_ahead is not None:
            self._cut()
        self._ring()

    def void(self) -> None:
        """Lose the iterations in flight, in every stage: see `Replica.void`."""
        if self._run_ahead is not None:
            self._void_run(self._run_ahead)
        for ride in self._stages:
            if ride is not None:
                ride.flight.ends_ns = []
                self._lose(ride)
        self._stages = [None] * len(self._stages)
        self._launched = self.iterations
        self._ring()

    def fail(self) -> tuple[list[Lifetime], list[Lifetime]]:
        """Lose all batches under way and all that is here: see `Replica.fail`."""
        lost = super().fail()
        self._stages = [None] * len(self._stages)
        self._spare_groups = []
        self._launched = self.iterations
        return lost

    def _lose_step(self) -> None:
        """Iterations that are over stand; every batch under way is logged as lost, oldest first."""
        if self._run_ahead is not None:
            self._cut()  # what is over is counted, and the rest is in its stage
        now = now_ns(self.env)
        rides = [ride for ride in self._stages if ride is not None]
        for ride in sorted(rides, key=lambda ride: ride.iteration):
            self._lose_ride(ride, now)

    def _lose_ride(self, ride: Ride, now: int) -> None:
        flight = ride.flight
        flight.ends_ns = []
        if ride.ready is not None:
            ride.ready.call_off()
        began = flight.start_ns
        if began < now:
            twice_ns = max(0, self._busy_until_ns - began)
            self._log_lost(flight, began, now)
            self.busy_ns -= twice_ns
            self.prefill_busy_ns -= twice_ns if flight.prefill_tokens else 0
            self._busy_until_ns = now
        if ride.entered_ns < now:
            busy = min(ride.ready_ns, now) - ride.entered_ns
            self.stage_busy_ns[ride.stage] += busy
            if self._logs_stages:
                self._log(ride, 0, ride.stage, ride.entered_ns, now, busy)
        if self._ledger is not None:
            self._bill_lost(self._ledger, flight)
        self.in_flight.remove(flight)
        self.state.bring_back(ride.riders)
        for request in [r for r in self.state.running if r.group is not None]:
            self._leave_group(request)

    def _set_pace(self, pace: Pace) -> None:
        self._pace = pace
        assert isinstance(self.step_time, PipelineStepTime)
        self._models = self.step_time.stages
        if pace:  # one stage has the longer first pass; moves between stages are not slowed
            later = replace(pace, warm_up=replace(pace.warm_up, first_pass_ns=0))
            paces = [pace, *[later] * (len(self._models) - 1)]
            models = map(PacedStepTime, self.step_time.models, paces)
            self._models = PipelineStepTime(list(models), self.step_time.link).stages

    # --- the iteration loop

    def _takes_turn(self, event: Event) -> None:
        self._idle = False
        if self._stages[0] is None and self._run_ahead is None and self._has_something():
            self._pass()
        self._rest()

    def _pass(self) -> bool:
        self.state.held_back = []
        return super()._pass()

    def _repeated_pass(self, now: int) -> None:
        super()._repeated_pass(now)
        self.state.held_back = []

    def _ring(self) -> None:
        if self._idle and self._stages[0] is None:
            self._bell.ring(self._turn)

    def _has_something(self) -> bool:
        state = self.state
        return bool(state.running or state.waiting or state.loaded or self.role == "decode")

    def _launch(self, flight: Flight) -> None:
        """The batch enters the first stage, or runs ahead if it is alone."""
        n = self._iterations_alone(flight) if self._fast_forward else 1
        flight.ends_ns = [flight.start_ns] * n  # the length counts; the times follow
        if self._keeps_decisions:
            flight.notes = DecisionNotes(flight, self.state, self._newly_lost())
        flight.number = self._launched
        flight.model = self.step_time if not self._pace else None
        group = self._empty_group() if flight.ticks else self.state.group
        leavers = self._leavers(flight)
        riders = self.state.send_away(leavers, decodes=flight.ticks, next_group=group)
        ride = Ride(flight, riders, self._models, self._launched)
        self.in_flight.append(flight)
        self._launched += n
        if n == 1:
            self._enter(ride, 0, flight.start_ns)
        else:
            self._start_run(ride, n)
        if self._check:
            self.verify()

    def _leavers(self, flight: Flight) -> list[Request]:
        """Of those whose prompts it computes, who is out of sight until it is over."""
        return [request for request, _ in flight.chunks]

    def _enter(self, ride: Ride, stage: int, now: int) -> None:
        """The batch occupies a stage from now on, for the time of that stage at least."""
        self._stages[stage] = ride
        length = ride.models[stage].step_ns(ride.flight.work, ride.iteration)
        ride.stage, ride.entered_ns, ride.ready_ns = stage, now, now + length
        ride.worked_ns += length
        ride.ready = Instant(self.env, length, self._step_end)
        ride.ready.callbacks.append(self._stage_ends)

    def _stage_ends(self, _: Event) -> None:
        """Phase (1): batches that are ready move on, from the last stage to the first."""
        stages, now = self._stages, now_ns(self.env)
        news = False
        for stage in range(len(stages) - 1, -1, -1):
            ride = stages[stage]
            if ride is None or ride.ready_ns > now:
                continue
            if stage == len(stages) - 1:
                self._log_stage(ride, now)
                ride.flight.ends_ns = [now]
                stages[stage] = None
                self._end(ride)
                news = True
            elif stages[stage + 1] is None:
                self._log_stage(ride, now)
                stages[stage] = None
                self._enter(ride, stage + 1, now)
                news = news or stage == 0
        if news:
            self._ring()

    def _end(self, ride: Ride) -> None:
        """The batch has left the last stage: only now do its effects exist."""
        self.state.bring_back(ride.riders)
        flight = ride.flight
        if not ride.lengths:  # a run is alone, and waits for no stage
            flight.idle_ns = flight.ends_ns[-1] - flight.start_ns - ride.worked_ns
        self._landing = True
        self._complete()
        self._landing = False
        self._reunite(ride.riders.group)
        if self._check:
            self.verify()

    # --- decode groups

    def _empty_group(self) -> DecodeGroup:
        if self._spare_groups:
            return self._spare_groups.pop()
        group = DecodeGroup(self.kv.block_tokens)
        self._keep_log(group)
        return group

    def _reunite(self, group: DecodeGroup | None) -> None:
        """A group is back: all that decode and are in no batch under way are one group."""
        if group is None:
            return
        state = self.state
        large, small = state.group, group
        if large.size < small.size:
            large, small = small, large
        state.group = large
        if small.size:
            for request in [r for r in state.running if r.group is small]:
                self._leave_group(request)
                state.join_group(request)
        self._spare_groups.append(small)

    def _groups(self) -> list[DecodeGroup]:
        away = [flight.group for flight in self.in_flight if flight.ticks]
        return [self.state.group, *away]

    # --- one batch alone, many iterations at once

    def _iterations_alone(self, flight: Flight) -> int:
        """For how many iterations the passes between them have nothing to decide."""
        state = self.state
        if self.in_flight or len(flight.chunks) + flight.decodes < len(state.running):
            return 1
        if state.loaded or (state.waiting and flight.batch.cause not in _HOLDS_OUT):
            return 1
        return self._steady_iterations(flight)

    def _is_deaf(self, flight: Flight) -> bool:
        """Whether who joins the queue now is kept out as those are who wait."""
        return super()._is_deaf(flight) and flight.batch.cause in _HOLDS_OUT

    def _start_run(self, ride: Ride, n: int) -> None:
        flight, start = ride.flight, ride.flight.start_ns
        for model in ride.models:
            if flight.chunks:
                ride.lengths.append(flight.chunk_steps_ns(model, n, ride.iteration))
            else:
                steps = model.steps_ns(flight.work, n, ride.iteration)
                ride.lengths.append(steps if isinstance(steps, list) else steps.tolist())
        ends = list(accumulate(map(sum, zip(*ride.lengths, strict=True)), initial=start))
        flight.ends_ns = ends[1:]
        self._run_ahead = self._last_run = ride
        self._wake = Instant(self.env, ends[-1] - start, self._step_end)
        self._wake.callbacks.append(self._run_ends)

    def _run_ends(self, _: Event) -> None:
        """Phase (1): a run is over, uncut or cut at a boundary of this instant."""
        ride = self._run_ahead
        assert ride is not None
        self._run_ahead = None
        self._log_run(ride, len(ride.flight.ends_ns))
        self._end(ride)
        self._ring()

    def _cut(self) -> None:
        """End the run ahead: its iteration of this moment goes on as one batch in its stage.

        What ends at this instant has ended, as phase (1) is past.
        """
        ride = self._run_ahead
        if ride is None:  # nothing runs ahead
            return
        ends, now = ride.flight.ends_ns, now_ns(self.env)
        over = bisect_left(ends, now)
        self._longest_run = max(FIRST_RUN, 2 * (over + 1))
        self._wake.callbacks.clear()
        if ends[over] == now:
            del ends[over + 1 :]
            self._launched = ride.iteration + over + 1
            self._run_ends(self._wake)
            return
        self._run_ahead = None
        lengths = [of_stage[over] for of_stage in ride.lengths]
        self._split(ride, over)
        self._place(ride, lengths, now)
        if self._check:
            self.verify()

    def _split(self, ride: Ride, over: int) -> None:
        """Count the iterations of a run that are over; the next one is left, as a single one."""
        flight = ride.flight
        self._advance(flight, over)
        if self._ledger is not None:
            self._bill(self._ledger, flight, over)
        start = flight.start_ns
        if over:
            start = flight.ends_ns[over - 1]
            self._log_run(ride, over)
            self._count(flight, over)
        flight.work = _work_after(flight, over)
        flight.start_ns, flight.ends_ns = start, [start]
        flight.pieces = flight.work.chunks if flight.pieces else ()
        flight.context_tokens += over * flight.decodes
        flight.number += over
        flight.applied = flight.ahead_blocks = flight.billed = 0
        if flight.notes is not None:
            flight.notes.drop(over)
        ride.lengths = []
        ride.iteration += over
        self._launched = ride.iteration + 1

    def _place(self, ride: Ride, lengths: list[int], now: int) -> None:
        """Put a batch that was alone into the stage where it is at this moment."""
        ride.stage, ride.entered_ns = 0, ride.flight.start_ns
        ride.ready_ns = ride.entered_ns + lengths[0]
        ride.worked_ns = lengths[0]
        while ride.ready_ns <= now:
            self._log_stage(ride, ride.ready_ns)
            ride.stage += 1
            ride.worked_ns += lengths[ride.stage]
            ride.entered_ns = ride.ready_ns
            ride.ready_ns += lengths[ride.stage]
        self._stages[ride.stage] = ride
        ride.ready = Instant(self.env, ride.ready_ns - now, self._step_end)
        ride.ready.callbacks.append(self._stage_ends)

    def _next_pass_ns(self, flight: Flight, instant_ns: int) -> int:
        """A pass is made when somebody comes while the first stage is free, or when that is."""
        ride = self._last_run
        ends, now = flight.ends_ns, now_ns(self.env)
        at = bisect_left(ends, instant_ns)
        if ride is None or ride.flight is not flight or not ride.lengths or at >= len(ends):
            return now
        begin = ends[at - 1] if at else flight.start_ns
        return max(instant_ns, begin + ride.lengths[0][at])

    def _void_run(self, ride: Ride) -> None:
        self.sync()
        self._run_ahead = None
        self._wake.callbacks.clear()
        over = ride.flight.applied
        del ride.flight.ends_ns[over:]
        if over:
            self._log_run(ride, over)
        self._lose(ride)
        if over:
            self._count(ride.flight, over)

    def _lose(self, ride: Ride) -> None:
        """The iteration under way never happened; its requests are as they were before it."""
        self._advance(ride.flight, ride.flight.applied)
        if ride.ready is not None:
            ride.ready.call_off()
        if self._ledger is not None:
            self._bill_lost(self._ledger, ride.flight)
        self.in_flight.remove(ride.flight)
        self.state.bring_back(ride.riders)
        self._leave_early(ride.flight.given_up)
        self._reunite(ride.riders.group)

    # --- bookkeeping

    def _count(self, flight: Flight, n: int) -> None:
        """As of one stage, but time in which two batches are under way counts once."""
        end = flight.ends_ns[n - 1]
        super()._count(flight, n)
        twice_ns = max(0, self._busy_until_ns - flight.start_ns)
        self.busy_ns -= twice_ns
        self.prefill_busy_ns -= twice_ns if flight.prefill_tokens else 0
        self._busy_until_ns = end

    @property
    def _counted_until_ns(self) -> int:
        return self._busy_until_ns

    def _log_stage(self, ride: Ride, now: int) -> None:
        busy = ride.ready_ns - ride.entered_ns
        self.stage_busy_ns[ride.stage] += busy
        if self._logs_stages:
            self._log(ride, 1, ride.stage, ride.entered_ns, now, busy)

    def _log_run(self, ride: Ride, n: int) -> None:
        """One row of each stage for the first `n` iterations of a run."""
        start = ride.flight.start_ns
        end = ride.flight.ends_ns[n - 1] - sum(of_stage[n - 1] for of_stage in ride.lengths)
        for stage, of_stage in enumerate(ride.lengths):
            busy = sum(of_stage[:n])
            self.stage_busy_ns[stage] += busy
            end += of_stage[n - 1]
            if self._logs_stages:
                self._log(ride, n, stage, start, end, busy)
            start += of_stage[0]

    def _under_way(self, now: int) -> Hashable:
        """See `ReplicaPresent`: of each batch its stage, and its time in that and in the others."""
        rides = [ride for ride in self._stages if ride is not None]
        return tuple(
            (ride.stage, max(0, ride.ready_ns - now), ride.lengths_to_come, ride.flight.cargo)
            for ride in rides
        )

    def _log(self, ride: Ride, n: int, stage: int, start: int, end: int, busy: int) -> None:
        used, waiting = self.kv.total_blocks - self.kv.free_blocks, len(self.state.waiting)
        self._recorder.step(self.place, ride.flight, n, start, end, used, waiting, stage + 1, busy)

    def _timer_rings(self, _: Event) -> None:
        self._timer_ns = NEVER
        self.notify()

    def verify(self) -> None:
        """As of one stage, where the group that has just come back is one with the others."""
        if not self._landing:
            super().verify()

    def settle(self) -> None:
        """Bring every request up to date when the run is stopped before it ended."""
        super().settle()
        for request in list(self.lives):
            if request.group is not None:
                self._leave_group(request)


def _work_after(flight: Flight, iterations: int) -> StepWork:
    """What the next iteration computes when some of a run are over and applied."""
    work = flight.work
    if flight.chunks:
        chunks = [(tokens, request.computed_then) for request, tokens in flight.chunks]
        context = work.context_tokens + iterations * flight.decodes
        return StepWork(chunks, flight.decodes, context, context_spread=work.context_spread)
    after = copy.copy(work)
    after.context_tokens += iterations * work.attending_rows
    return after
