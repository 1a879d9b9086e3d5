"""`vllm-v0` with `preemption: swap` (rule 20).

Options beside those of `vllm-v0`: preemption: "swap", host_blocks, host_bandwidth (bytes per
second) and kv_bytes_per_token. The log entry's facts: `swapped_out` and `swapped_in`, requests in
order.
"""

from __future__ import annotations

from .loading import refsim
from .policies import Common, VllmV0
from .request import Request


class SwappingVllmV0(VllmV0):
    """Blocks of the pool and of the host are free at once, in the same pass (rule 20)."""

    def __init__(self, name, cfg, role):
        super().__init__(name, dict(cfg, preemption="recompute"), role)  # the base knows no swap
        self.cfg = cfg
        self.host_total = cfg["host_blocks"]
        self.host_free = self.host_total
        self.swapped: list[Request] = []  # in order of being swapped out
        self.moved = 0  # blocks, this pass, both directions
        self.owed_ns = 0  # moved by passes that ran nothing
        self.out: list = []
        self.back: list = []

    def may_pull(self):
        return super().may_pull() and not self.swapped  # rule 44

    # --- swapping

    def evict(self, victim: Request) -> None:
        """Swap out, or recompute if the host has no room or it could never return."""
        returns = victim.blocks + 1 <= self.total - self.watermark
        if victim.blocks > self.host_free or not returns:
            self.sim.note("recomputed: host full" if returns else "recomputed: could not return")
            self.preempt(victim)
            return
        self.running.remove(victim)
        self.moved += victim.blocks
        self.host_free -= victim.blocks
        victim.host_blocks = victim.blocks
        self.release(victim)  # computed stays: nothing is computed again
        victim.preemptions += 1  # it counts as a preemption
        self.preempted_now.append(victim.id)
        self.swapped.append(victim)
        self.out.append(victim.id)
        self.sim.note("swapped out")

    def bring_back(self, r: Request) -> None:
        """Its old number of blocks; then, if it crosses a boundary, one more."""
        assert r is self.swapped.pop(0)
        self.running.append(r)
        self.moved += r.host_blocks
        self.host_free += r.host_blocks
        self.free -= r.host_blocks
        r.blocks, r.host_blocks = r.host_blocks, 0
        self.sim.note("swapped in")
        if self.blocks_for(r.known) > r.blocks:
            self.sim.note("swapped in across a boundary")
        self.grow(r, r.known)
        self.back.append(r.id)

    # --- one pass

    def begin_pass(self):
        self.out, self.back = [], []

    def facts(self):
        return {"swapped_out": list(self.out), "swapped_in": list(self.back)}

    def schedule(self, now):
        self.moved = 0
        pieces = self.decide()
        size = self.moved * self.block_tokens * self.cfg["kv_bytes_per_token"]
        self.owed_ns += refsim.to_ns(size / self.cfg["host_bandwidth"])  # rounded on its own
        return pieces

    def extra_ns(self):
        """Paid by this step: what its pass moved, and passes before it that ran nothing."""
        owed, self.owed_ns = self.owed_ns, 0
        return owed

    def decide(self) -> list:
        self.join_loaded()
        pieces = []
        if self.swapped and self.waiting:
            self.sim.note("no prefill while something is swapped out")
        if not self.swapped:  # else nobody is admitted
            pieces = self.prefills()
        if pieces:
            return pieces  # prefill only
        i = 0
        while i < len(self.running):
            r = self.running[i]
            while self.free == 0 and not r.prefilling:  # the last prompt token needs none (68)
                victim = self.running[-1]
                self.evict(victim)
                if victim is r:
                    self.sim.note("preempted itself")
                    return pieces
            self.grow(r, r.known)
            pieces.append(self.piece(r, 1))
            i += 1
        if self.preempted_now:
            return pieces
        while self.swapped and len(self.running) < self.max_seqs:
            r = self.swapped[0]
            if self.free - (r.host_blocks + 1) < self.watermark:
                self.sim.note("swap-in refused")
                break
            self.bring_back(r)
            pieces.append(self.piece(r, 1))
        return pieces

    def in_order(self):
        """Swapped ones stand in front of waiting (rules 20, 79)."""
        return list(self.running), self.swapped + self.waiting

    # --- cancellation

    def cancel(self, r):
        if r not in self.swapped:
            Common.cancel(self, r)
            return
        self.sim.note("cancelled while swapped out")
        self.outstanding -= 1
        self.swapped.remove(r)  # its host blocks are free at once
        self.host_free += r.host_blocks
        r.host_blocks = 0
        r.at = None

    def check(self, reqs):
        super().check(reqs)
        assert self.host_free + sum(r.host_blocks for r in self.swapped) == self.host_total
        assert all(r.blocks == 0 and r.at is self for r in self.swapped)
        assert not set(self.swapped) & set(self.running + self.waiting)
