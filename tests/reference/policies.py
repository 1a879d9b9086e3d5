"""The base policies with cancellation (rules 53, 74 to 77), and what the main loop asks of them.

`Common` is mixed in front of a policy of the base reference. The main loop (simulation.py) sets
`replica.sim` to itself; a replica reports each end of a request there, in the order of ends.
"""

from __future__ import annotations

from .loading import refsim
from .request import Request


class Common:
    """Cancellation, the end of a step, and both sides of a transfer."""

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
            if all(x.req.status == "cancelled" for x in self.pieces):
                note("all of a step cancelled")
            return
        else:
            note("cancelled beside a step" if self.pieces else "cancelled between steps")
            self.running.remove(r)
            self.release(r)
        r.at = None

    # --- the end of a step

    def apply(self, now: int) -> list[Request]:
        """Requests leave in batch order (rule 42). Returns those that move to the decode pool."""
        pieces, self.pieces, self.step_end = self.pieces, None, None
        done = self.emit([x for x in pieces if x.req.status != "cancelled"], now)
        moving = []
        for x in pieces:
            r = x.req
            if r.status == "cancelled":  # nothing emitted; KV and seat are freed now
                r.computed += x.tokens
                self.running.remove(r)
                self.release(r)
                r.at = None
            elif r in done:
                self.running.remove(r)
                self.outstanding -= 1
                if self.leave(r):
                    moving.append(r)
            else:
                self.stays(r)
        return moving

    def stays(self, r: Request) -> None:
        """Called at the end of a step for a request of it that goes on."""

    def leave(self, r: Request) -> bool:
        moves = super().leave(r)
        if not moves:
            self.sim.end(r, "finished")
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


class Sarathi(Common, refsim.Sarathi):
    """As in the base rules."""


class VllmV1(Common, refsim.VllmV1):
    """As in the base rules, without a prefix cache."""

    def may_pull(self):
        return super().may_pull() and len(self.running) < self.max_seqs  # rule 32


class VllmV0(Common, refsim.VllmV0):
    """As in the base rules, preemption by recompute."""


class Static(Common, refsim.Static):
    """A cancelled row is from the end of the step on like a finished row (rule 77)."""

    def cancel(self, r):
        if r not in self.batch:
            super().cancel(r)
            return
        self.outstanding -= 1
        self.forget(r)
        self.sim.note("cancelled row" if self.pieces else "cancelled row between steps")
        if self.pieces is None:  # none in flight: the row is over at t
            if r in self.running:
                self.running.remove(r)
            if not self.running:
                self.sim.note("batch over by cancellation")
                self.close()

    def forget(self, r: Request) -> None:
        """Under batch_end nothing has been emitted before the batch ends (rule 77)."""
        if self.at_end:
            del r.times[self.first() :]

    def first(self) -> int:
        """Tokens that a request of the batch had when the batch began."""
        return 1 if self.role == "decode" else 0

    def apply(self, now):
        pieces, self.pieces, self.step_end = self.pieces, None, None
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
                    if r.emitted == r.o:
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
                continue
            if self.at_end:
                self.outstanding -= 1
                r.times[self.first() :] = [self.sim.now] * (len(r.times) - self.first())
            if self.leave(r):
                moving.append(r)
        return moving
