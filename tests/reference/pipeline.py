"""A pipeline of S stages (rules 55, 81, 85 to 87): `orca`, `sarathi`, `vllm-*`, `static`.

Keys of a replica's configuration:

stages        list of S step time models; stage s takes the batch's step time by the s-th (85).
              Without it a replica is not a pipeline; `step_time` is not used with it.
activations   {"bytes_per_token", "bandwidth_bytes_per_s", "latency_s" [0]}: each move, [none]

`vllm-v1` with or without prefix cache, `vllm-v0` with preemption by recompute. `sglang`, swap and
tiers are not covered here.

An entry of the log has `stages`: for each stage it has entered [instant of entering, instant of
leaving, ns of its time there, the move included]; its `end_ns` is when it leaves the last stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cached import CachedVllmV1
from .loading import refsim
from .policies import Orca, Sarathi, Static, VllmV0, VllmV1


@dataclass(eq=False)
class Batch:
    """In flight: `stage` from 0 on, its time there is over at `until`."""

    pieces: list
    times: list  # of each stage, fixed when the batch was formed
    move: int  # ns of the activations' transfer
    stage: int = 0
    until: int = 0
    entry: object = None


class Piped:
    """Mixed in front of a policy."""

    def __init__(self, name, cfg, role):
        super().__init__(name, cfg, role)
        self.models = cfg["stages"]
        self.flying: list[Batch] = []  # the one that is farthest first

    # --- passes

    def in_stage(self, stage: int):
        return next((b for b in self.flying if b.stage == stage), None)

    def may_start(self):
        """Stage 1 is free, so fewer than S batches are in flight (55)."""
        return self.in_stage(0) is None

    def visible(self):
        return [r for r in self.running if not self.in_step(r)]

    def in_step(self, r):
        return any(x.req is r for b in self.flying for x in b.pieces)

    def must_stay(self, r):
        """While another batch is in flight nobody preempts itself (87)."""
        if self.flying:
            self.sim.note("stays instead of preempting itself")
        return bool(self.flying)

    def begin(self, now, pieces):
        sums = self.sums(pieces)
        times = [self.slowed(stage_ns(model, *sums)) for model in self.models]
        prefill, _, _, decodes, _ = sums
        batch = Batch(pieces, times, self.move_ns(prefill + decodes))
        batch.until = now + times[0]
        self.flying.append(batch)
        self.sim.note(f"{len(self.flying)} in flight" if len(self.flying) < 4 else "4+ in flight")
        return  # its end is not known yet

    def busy(self):
        return bool(self.flying)

    def logged(self, pieces):
        batch = self.flying[-1]
        batch.entry = self.entry
        self.entry.stages.append([self.sim.now, None, batch.times[0]])

    def move_ns(self, tokens: int) -> int:
        """Of the activations of so many tokens, rounded, may be 0 (85)."""
        wire = self.cfg.get("activations")
        if wire is None:
            return 0
        seconds = wire.get("latency_s", 0.0)
        return refsim.to_ns(
            seconds + tokens * wire["bytes_per_token"] / wire["bandwidth_bytes_per_s"]
        )

    # --- phase (1)

    def next_ends(self):
        """Instants to come at which the time of a stage is over."""
        return [b.until for b in self.flying if b.until > self.sim.now]

    def phase_one(self, now):
        """From the last stage to the first (85)."""
        moving = []
        for batch in self.advance(now):
            moving += self.ends(batch.pieces, now)
        return moving

    def advance(self, now: int) -> list[Batch]:
        """Moves batches; the one that left the last stage, if any."""
        left = []
        for stage in reversed(range(len(self.models))):
            batch = self.in_stage(stage)
            if batch is None or batch.until > now:
                continue
            if stage == len(self.models) - 1:
                self.flying.remove(batch)
                batch.entry.stages[-1][1] = batch.entry.end_ns = now
                left.append(batch)
            elif self.in_stage(stage + 1) is None:
                if batch.until < now:
                    self.sim.note("a batch had to wait for the next stage")
                batch.stage += 1
                takes = batch.move + batch.times[batch.stage]
                batch.until = now + takes
                batch.entry.stages[-1][1] = now
                batch.entry.stages.append([now, None, takes])
        return left

    def run_out(self) -> None:
        """The run is over: entries of batches in flight get the ends that they would have had."""
        now = self.sim.now
        while self.flying:
            now = min(b.until for b in self.flying if b.until > now)
            self.advance(now)

    # --- failures

    def lose_steps(self, now):
        entries = [b.entry for b in self.flying]
        for entry in entries:  # all that is in flight is lost, whatever its stage (54, 81)
            entry.end_ns = entry.stages[-1][1] = now
        if len(entries) > 1:
            self.sim.note("several batches lost")
        return entries

    def stop(self):
        super().stop()
        self.flying = []

    def flight_state(self, now):
        return tuple(
            (
                b.stage,
                max(0, b.until - now),
                b.move,
                *b.times,
                tuple((y.req.index, y.tokens, y.before) for y in b.pieces),
            )
            for b in self.flying
        )

    def check(self, reqs):
        super().check(reqs)
        stages = [b.stage for b in self.flying]
        assert stages == sorted(set(stages), reverse=True)
        assert all(0 <= s < len(self.models) for s in stages)
        parts = [x.req for b in self.flying for x in b.pieces]
        assert len(parts) == len(set(parts)), "a request in two batches"
        assert set(parts) <= set(self.running), "a seat was lost"
        for b in self.flying:  # nobody waits for a free stage
            assert b.until > self.sim.now or self.in_stage(b.stage + 1) is not None


def stage_ns(model, prefill: int, pairs: int, squares: int, decodes: int, context: int) -> int:
    """Rounded, at least 1 ns (85); of P, 2 Q, sum of c^2, D and C."""
    if callable(model):
        return max(1, model(prefill, pairs / 2, squares, decodes, context))
    return refsim.linear_step_ns(model, prefill, pairs, squares, decodes, context)


class PipedStatic(Piped, Static):
    """`static` in a pipeline: one batch at a time (86); pulls are tried while stage 1 is free."""


class PipedOrca(Piped, Orca):
    """`orca` in a pipeline."""


class PipedSarathi(Piped, Sarathi):
    """`sarathi` in a pipeline."""


class PipedVllmV0(Piped, VllmV0):
    """`vllm-v0` in a pipeline."""


class PipedVllmV1(Piped, VllmV1):
    """`vllm-v1` in a pipeline."""


class PipedCachedVllmV1(Piped, CachedVllmV1):
    """`vllm-v1` with its prefix cache in a pipeline."""


PIPED = {
    "static": PipedStatic,
    "orca": PipedOrca,
    "sarathi": PipedSarathi,
    "vllm-v0": PipedVllmV0,
    "vllm-v1": PipedVllmV1,
}


def piped_class(cfg: dict):
    assert not cfg.get("host_cache_blocks"), "not covered"
    assert cfg.get("preemption", "recompute") == "recompute", "not covered"
    if cfg["policy"] == "vllm-v1" and cfg.get("prefix_cache", False):
        return PipedCachedVllmV1
    return PIPED[cfg["policy"]]
