"""The base policies with cancellation (rules 53, 74 to 77), and what the main loop asks of them.

`Common` is mixed in front of a policy of the base reference. The main loop (simulation.py) sets
`replica.sim` to itself; a replica reports each end of a request there, in the order of ends.
"""

from __future__ import annotations

from fractions import Fraction

from .loading import refsim
from .request import Request


class Common:
    """Cancellation, the end of a step, and both sides of a transfer."""

    state = "up"  # | "draining" | "failed" | "gone" (changes.py)
    becomes = None  # the pool it joins when drained
    entry = None  # of the log, of the last pass

    # --- the step in flight (pipeline.py has several)

    def may_start(self) -> bool:
        """Phase (4): no step is in flight, or stage 1 is free (86)."""
        return self.step_end is None

    def next_ends(self) -> list[int]:
        return [] if self.step_end is None else [self.step_end]

    def phase_one(self, now: int) -> list[Request]:
        return self.apply(now) if self.step_end == now else []

    def begin(self, now: int, pieces: list) -> int | None:
        """The step starts. Its end, if it is known."""
        self.pieces = pieces
        self.step_end = now + self.step_ns(pieces) + self.extra_ns()
        return self.step_end

    def busy(self) -> bool:
        return self.pieces is not None

    def logged(self, pieces: list) -> None:
        """The entry of the step just begun is `entry`."""

    def lose_steps(self, now: int) -> list:
        """It fails: the entries of what was in flight, ended now (81)."""
        if self.pieces is None:
            return []
        self.entry.end_ns = now
        return [self.entry]

    def stop(self) -> None:
        self.pieces = self.step_end = self.timer = None

    def visible(self) -> list[Request]:
        """Running and not in flight, in order (55)."""
        return list(self.running)

    def must_stay(self, r: Request) -> bool:
        """It would preempt itself, but may not (87)."""
        return False

    def flight_state(self, now: int) -> tuple:
        pieces = self.pieces and tuple((y.req.index, y.tokens, y.before) for y in self.pieces)
        return (pieces, *(None if t is None else t - now for t in (self.step_end, self.timer)))

    # --- slow-downs

    factor = Fraction(1)
    slow = None  # the event

    def step_ns(self, pieces):
        """What starts while the replica is slow takes longer; rounded half to even."""
        return self.slowed(super().step_ns(pieces))

    def slowed(self, ns: int) -> int:
        return max(1, round(ns * self.factor))

    # --- failure (rule 79)

    def in_order(self) -> tuple[list, list]:
        """Running in order, and waiting in order."""
        return list(self.running), list(self.waiting)

    def forget(self, r: Request) -> None:
        """What had not been emitted though computed."""

    # --- push (70)

    def admit(self, r: Request, tokens: int):
        self.sim.admitted(r)
        return super().admit(r, tokens)

    def preempt(self, r: Request) -> None:
        super().preempt(r)
        self.sim.preempted(r)

    def check(self, reqs: list[Request]) -> None:
        """As in the base reference; a pushed request holds blocks on both sides."""
        used = sum(r.blocks for r in reqs if r.at is self)
        held = sum(r.source_blocks for r in reqs if r.source is self)
        reserved = sum(r.reserved_blocks for r in reqs if r.push_target is self)
        assert self.free >= 0
        assert self.free + used + held + reserved == self.total, (self.name, self.free, used, held)

    # --- the decode side of a transfer

    def may_pull(self) -> bool:
        """Pulls are tried only if no preempted request waits here (rule 32)."""
        return not self.waiting

    def pull_need(self, r: Request) -> int:
        """Free blocks that reserving for this request takes (rule 31)."""
        return self.pull_blocks(r)

    def reserve(self, r: Request) -> tuple[int, int]:
        """Reserves. Returns blocks of the request here, and prompt tokens that need no transfer."""
        need = self.pull_blocks(r)
        self.free -= need
        r.blocks = need
        return need, 0

    def load(self, r: Request) -> None:
        """The KV of its prompt has arrived (rule 33)."""
        r.computed = r.target = r.p
        if self.sim.recompute:  # its last prompt token is computed again (38, 68)
            r.computed -= 1
        r.joined = self.sim.now
        if r.status == "cancelled":  # ended as planned, then freed (rule 53)
            self.release(r)
            r.at = None
        else:
            self.loaded.append(r)

    # --- the prefill side of a transfer

    def release_source(self, r: Request) -> None:
        self.free += r.source_blocks
        r.source, r.source_blocks = None, 0

    # --- cancellation

    def in_step(self, r: Request) -> bool:
        return self.pieces is not None and any(x.req is r for x in self.pieces)

    def cancel(self, r: Request) -> None:
        """Phase (2b), for a request that is at this replica (rules 53, 75)."""
        self.outstanding -= 1  # it has ended for the router's counts too
        if r.push_target is not None:
            r.push_target.outstanding -= 1
        note = self.sim.note
        if r in self.pulls:  # waiting for a pull: the source is freed
            note("cancelled before its pull")
            self.pulls.remove(r)
            r.source.release_source(r)
        elif r.source is not None:  # its transfer ends as planned
            note("cancelled in transfer")
            return
        elif r in self.waiting:
            note("cancelled after a preemption" if r.preemptions else "cancelled while waiting")
            self.waiting.remove(r)
        elif r in self.loaded:
            note("cancelled when loaded")
            self.loaded.remove(r)
            self.release(r)
        elif self.in_step(r):  # the step keeps its length
            note("cancelled in a step")
            if self.pieces and all(x.req.status == "cancelled" for x in self.pieces):
                note("all of a step cancelled")
            return
        else:
            note("cancelled beside a step" if self.busy() else "cancelled between steps")
            self.running.remove(r)
            self.release(r)
        r.at = None
        self.sim.left(r)

    # --- the end of a step

    def apply(self, now: int) -> list[Request]:
        """Requests leave in batch order (rule 42). Returns those that move to the decode pool."""
        pieces, self.pieces, self.step_end = self.pieces, None, None
        return self.ends(pieces, now)

    def ends(self, pieces: list, now: int) -> list[Request]:
        done = self.emit([x for x in pieces if x.req.status != "cancelled"], now)
        moving = []
        for x in pieces:
            r = x.req
            if r.status == "cancelled":  # nothing emitted; KV and seat are freed now
                r.computed += x.tokens
                self.running.remove(r)
                self.release(r)
                r.at = None
                self.sim.left(r)
            elif r in done:
                self.running.remove(r)
                self.outstanding -= 1
                self.prefill_over(r)
                if self.leave(r):
                    moving.append(r)
            else:
                self.stays(r)
        return moving

    def prefill_over(self, r: Request) -> None:
        """On a prefill replica. Token 1 counts as not emitted if it is computed again (67)."""
        if self.role == "prefill":
            r.prefill_ends.append(self.sim.now)
            if self.sim.recompute:
                r.emitted -= 1
                r.times.pop()

    def stays(self, r: Request) -> None:
        """Called at the end of a step for a request of it that goes on."""

    def leave(self, r: Request) -> bool:
        moves = super().leave(r)
        if not moves:
            self.sim.end(r, "finished")
            self.sim.left(r)
        return moves

    # --- what the log adds

    def free_now(self) -> int:
        """Free blocks as the log counts them (rule 48)."""
        return self.free

    def begin_pass(self) -> None:
        """Called before each scheduling pass."""

    def end_pass(self) -> None:
        """Called after each scheduling pass, pulls included."""

    def extra_ns(self) -> int:
        """Time the pass adds to its step."""
        return 0


class Orca(Common, refsim.Orca):
    """As in the base rules."""

    def schedule(self, now):
        self.join_loaded()
        pieces = [self.piece(r, 1) for r in self.visible()]
        while self.waiting and len(self.running) < self.max_seqs:
            r = self.waiting[0]
            need = self.reservation(r.p, r.m_seen, r.goal)
            if need > self.free or not self.sim.target_has_room(r):
                break
            pieces.append(self.admit(r, r.p))
            self.free -= need
            r.blocks = need
        return pieces


class Sarathi(Common, refsim.Sarathi):
    """As in the base rules."""

    def schedule(self, now):
        self.join_loaded()
        pieces = []
        left = self.cfg.get("budget_tokens", 512)
        half = []
        pending = self.visible()
        stays = False
        while pending:  # (1) decodes
            r = pending.pop(0)
            if r.prefilling:
                half.append(r)  # passed over: no longer a victim (rule 21)
                continue
            victim = None
            while self.free == 0 and victim is not r:
                victim = pending.pop() if pending else r
                stays = victim is r and self.must_stay(r)
                if not stays:
                    self.preempt(victim)
            if victim is r:
                break
            self.grow(r, r.known)
            pieces.append(self.piece(r, 1))
            left -= 1
        left = max(0, left)
        for r in half:  # (2) half-prefilled
            n = min(r.target - r.computed, left)
            if n > 0:
                pieces.append(self.piece(r, n))
                left -= n
        if self.preempted_now or stays:
            return pieces
        while self.waiting and left > 0 and len(self.running) < self.max_seqs:  # (3) waiting
            r = self.waiting[0]
            whole = r.known
            if self.free - self.blocks_for(whole) < self.watermark:
                break
            if not self.sim.target_has_room(r):
                break
            n = min(whole, left)
            pieces.append(self.admit(r, n))
            self.grow(r, whole)
            left -= n
        return pieces


class VllmV1(Common, refsim.VllmV1):
    """As in the base rules, without a prefix cache."""

    def may_pull(self):
        return super().may_pull() and len(self.running) < self.max_seqs  # rule 32

    def schedule(self, now):
        self.join_loaded()
        pieces = []
        budget = self.budget
        visible = self.visible()
        i = 0
        while i < len(visible) and budget > 0:
            r = visible[i]
            n = self.want(r, r.computed, budget)
            while self.blocks_for(r.computed + n) - r.blocks > self.free:
                victim = visible[-1]
                if victim is r and self.must_stay(r):
                    return pieces
                self.preempt(visible.pop())
                if victim is r:
                    return pieces
            self.grow(r, r.computed + n)
            pieces.append(self.piece(r, n))
            budget -= n
            i += 1
        if self.preempted_now:
            return pieces
        while self.waiting and budget > 0 and len(self.running) < self.max_seqs:
            r = self.waiting[0]
            n = self.want(r, 0, budget)
            if self.blocks_for(r.known if self.reserve_full_prompt else n) > self.free:
                break
            if not self.sim.target_has_room(r):
                break
            pieces.append(self.admit(r, n))
            self.grow(r, n)
            budget -= n
        return pieces


class VllmV0(Common, refsim.VllmV0):
    """As in the base rules, preemption by recompute."""

    def prefills(self) -> list:
        """Admission."""
        pieces = []
        batch_tokens = 0
        while self.waiting and len(self.running) < self.max_seqs:
            r = self.waiting[0]
            n = r.known  # a re-prefill counts in full (rule 10)
            if batch_tokens + n > self.budget:
                break
            if self.free - self.blocks_for(n) < self.watermark:
                break
            if not self.sim.target_has_room(r):
                break
            pieces.append(self.admit(r, n))
            self.grow(r, n)
            batch_tokens += n
        return pieces

    def schedule(self, now):
        self.join_loaded()
        pieces = self.prefills()
        if pieces:
            return pieces  # prefill only
        visible = self.visible()
        i = 0
        while i < len(visible):
            r = visible[i]
            while self.free == 0 and not r.prefilling:  # the last prompt token needs none (68)
                victim = visible[-1]
                if victim is r and self.must_stay(r):
                    return pieces
                self.preempt(visible.pop())
                if victim is r:
                    return pieces
            self.grow(r, r.known)
            pieces.append(self.piece(r, 1))
            i += 1
        return pieces


class Static(Common, refsim.Static):
    """A cancelled row is from the end of the step on like a finished row (rule 77)."""

    def join_loaded(self) -> None:
        """They join when a batch is formed only (rule 37)."""

    def cancel(self, r):
        if r not in self.batch:
            super().cancel(r)
            return
        self.outstanding -= 1
        if r.push_target is not None:
            r.push_target.outstanding -= 1
        self.forget(r)
        self.sim.note("cancelled row" if self.busy() else "cancelled row between steps")
        if not self.busy():  # none in flight: the row is over at t
            if r in self.running:
                self.running.remove(r)
            if not self.running:
                self.sim.note("batch over by cancellation")
                self.close()

    def forget(self, r: Request) -> None:
        """Under batch_end nothing has been emitted before the batch ends (rule 77)."""
        if self.at_end and r in self.batch:
            r.emitted -= len(r.times) - r.had
            del r.times[r.had :]

    def in_order(self):
        """A batch: its rows in order (79). Those that have ended are not counted."""
        return [r for r in self.batch if r.ended is None], list(self.waiting)

    def schedule(self, now):
        self.timer = None
        if self.batch:  # one at a time, also in a pipeline (86)
            return [] if self.busy() else [self.piece(r, 1) for r in self.running]
        queue = self.loaded if self.role == "decode" else self.waiting
        if not queue:
            return []
        fires = queue[0].joined + self.timeout  # rule 13
        if self.timeout > 0 and len(queue) < self.max_seqs and now < fires:
            self.timer = fires
            return []
        rows, slot = [], 0
        for r in queue[: self.max_seqs]:
            more = [*rows, r]
            blocks = self.blocks_for(max(x.p for x in more) + max(x.m_seen for x in more))
            if blocks * len(more) - sum(x.blocks for x in more) > self.free:
                break
            if self.role == "prefill":  # the longest prefix for which both sides fit (70)
                if not self.sim.target_has_room(r):
                    break
                self.sim.admitted(r)
            rows, slot = more, blocks
        if not rows:
            return []
        del queue[: len(rows)]
        for r in rows:
            self.free -= slot - r.blocks
            r.blocks = slot
            r.target = r.p
            r.had = len(r.times)  # when the batch began (77)
        self.batch, self.running = rows, list(rows)
        if self.role == "decode":
            return [self.piece(r, 1) for r in rows]
        return [refsim.Piece(r, "prefill", r.p, 0) for r in rows]

    def sums(self, pieces):
        if self.role == "decode" and pieces[0].kind == "prefill":  # last prompt tokens (68)
            longest = max(r.p for r in self.batch)
            contexts = sum(longest if self.pad_context else r.p for r in self.batch)
            return len(self.batch), 2 * contexts, len(self.batch), 0, 0
        return super().sums(pieces)

    def ends(self, pieces, now):
        done = self.emit([x for x in pieces if x.req.status != "cancelled"], now)
        for x in pieces:
            r = x.req
            if r.status == "cancelled":
                if r in self.running:
                    self.running.remove(r)
            elif r in done:
                self.running.remove(r)
                if not self.at_end:  # delivered, though its slot stays (rule 15)
                    self.outstanding -= 1
                    if r.emitted == r.o and not (self.role == "prefill" and self.sim.recompute):
                        self.sim.end(r, "finished")
        return [] if self.running else self.close()

    def close(self) -> list[Request]:
        """The batch is over: all its reservations are freed together (rule 15)."""
        rows, self.batch = self.batch, []
        moving = []
        for r in rows:
            if r.status == "cancelled":
                self.release(r)
                r.at = None
                self.sim.left(r)
                continue
            if self.at_end:
                self.outstanding -= 1
                r.times[r.had :] = [self.sim.now] * (len(r.times) - r.had)
            self.prefill_over(r)
            if self.leave(r):
                moving.append(r)
        return moving
