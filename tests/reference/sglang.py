"""`sglang` (rule 51): radix cache, extend steps alone and before decodes, retraction.

Options: total_blocks and block_tokens (slots are single tokens: their product), max_model_len,
step_time, order ["lpm"] | "fcfs", prefix_cache [True], chunked_prefill_size [8192],
max_prefill_tokens [16384], max_running_requests [no limit]. The log entry's facts: `cached` and
`lost` (tokens) as in cached.py, `ratio` (new_token_ratio after the pass), `full` (the mark) and
`waiting` (the queue as the pass left it).
"""

from __future__ import annotations

from .loading import refsim
from .policies import Common
from .radix import RadixTree, common
from .request import Request

FIRST_RATIO = 0.7
LEAST_RATIO = 0.098
DECAY = (0.7 - 0.098) / 600
CLIP = 4096  # of a request's expected growth
RETRACT_SLOTS = 20
SORTED_AT_MOST = 128  # waiting requests
IN_BATCH = 32  # tokens, both thresholds of in-batch caching


class Sglang(Common, refsim.Replica):
    """Memory is `free` slots, those of the tree's nodes, and those private to a request."""

    seqs_option = "max_running_requests"
    seqs_default = None

    def __init__(self, name, cfg, role):
        super().__init__(name, cfg, role)
        assert role == "both", "sglang in a disaggregated pool is a configuration error (rule 44)"
        assert not cfg.get("mixed_chunk", False), "mixed_chunk is not covered"
        self.total = self.free = self.total * self.block_tokens  # slots
        self.caching = cfg.get("prefix_cache", True)
        self.order = cfg.get("order", "lpm") if self.caching else "fcfs"
        assert self.order in ("lpm", "fcfs")
        self.chunk_size = cfg.get("chunked_prefill_size", 8192)
        self.prefill_size = cfg.get("max_prefill_tokens", 16384)
        self.tree = RadixTree()
        self.half: Request | None = None  # at most one half-prefilled request
        self.joining: list[Request] = []  # prefill ended, not yet running
        self.full = False  # the mark
        self.left_decode = False  # a request ended since the last decode pass
        self.extending = False  # what the step in flight is
        self.first_ratio = FIRST_RATIO  # r0, and j passes since
        self.passes = 0
        self.lost = 0
        self.lost_before = 0
        self.found: dict = {}

    def never_fits(self, p, m, o):
        if self.max_model_len is not None and p + m > self.max_model_len:
            return "over_model_len"
        return "over_pool" if p + m >= self.total else None  # rule 8

    # --- slots

    def want_slots(self, n: int) -> None:
        """Evicts at least n tokens, not n minus free, if fewer than n slots are free."""
        if self.free < n:
            out = self.tree.evict(n)
            self.free += out
            self.lost += out

    def take(self, r: Request, n: int) -> None:
        assert self.free >= n
        self.free -= n
        r.private += n

    def keep(self, r: Request) -> None:
        """An unfinished request at the end of its extend step: insertion, then a match."""
        if not self.caching:
            return
        self.insert(r)
        node, length = self.tree.match(r.tokens(r.computed))
        assert length == r.computed
        self.tree.lock(node)
        self.tree.unlock(r.node)
        r.node, r.prefix = node, length

    def insert(self, r: Request) -> None:
        """What is in the tree already is freed as a duplicate (rule 41)."""
        _, there = self.tree.insert(r.tokens(r.computed))
        assert there >= r.prefix
        assert r.prefix + r.private == r.computed
        if there > r.prefix:
            self.sim.note("duplicates freed")
        self.free += there - r.prefix
        r.private = 0

    def give_up(self, r: Request, inserted: bool) -> None:
        """A request that ends inserts prompt and output; a retracted one frees what is its own."""
        if self.caching:
            if inserted:
                self.insert(r)
            self.tree.unlock(r.node)
        self.free += r.private
        r.private, r.node, r.prefix = 0, None, 0

    # --- new_token_ratio and remaining

    def ratio(self) -> float:
        if self.passes == 0:
            return self.first_ratio
        return max(LEAST_RATIO, self.first_ratio - self.passes * DECAY)

    def set_ratio(self, value: float) -> None:
        if value == FIRST_RATIO and self.ratio() != FIRST_RATIO:
            self.sim.note("ratio reset")
        self.first_ratio, self.passes = value, 0

    def remaining(self, taken: int) -> float:
        growth = sum(min(r.m_seen - r.emitted, CLIP) for r in self.running)
        return (self.free + self.tree.evictable() - taken) - self.ratio() * growth

    # --- one pass

    def begin_pass(self):
        self.found = {}
        self.lost_before = self.lost

    def free_now(self):
        return self.free + self.tree.evictable()  # rule 48, in tokens

    def facts(self):
        return {
            "cached": dict(self.found),
            "lost": self.lost - self.lost_before,
            "ratio": self.ratio(),
            "full": self.full,
            "waiting": [r.id for r in self.waiting],
        }

    def schedule(self, now):
        if self.joining and not self.running:  # they join an empty running list
            self.clear("joined an empty list")
        self.running += self.joining
        self.joining = []
        if not self.running and self.half is None:  # a pass that finds nothing running
            if self.full or not self.waiting:  # it would schedule nothing
                self.left_decode = False
                self.set_ratio(FIRST_RATIO)
            self.clear("nothing running")
        pieces = self.extend()
        self.extending = bool(pieces)
        if not pieces and self.running:
            pieces = self.decode()
        return pieces

    def clear(self, why: str) -> None:
        if self.full:
            self.sim.note("mark cleared: " + why)
        self.full = False

    # --- extend

    def extend(self) -> list:
        pieces = []
        taken = 0  # off remaining, by this pass
        prefill_left, chunk_left = self.prefill_size, self.chunk_size
        if self.half is not None:  # the half-prefilled request goes first
            r, self.half = self.half, None
            left = r.target - r.computed
            n = min(left, chunk_left)
            pieces.append(self.piece(r, n))
            self.sim.note("chunk after chunk" if n < left else "last chunk")
            taken += n
            prefill_left -= n
            chunk_left -= n
            if n < left:
                self.half = r
            else:
                taken += min(r.m_seen, CLIP)
        if self.full and self.waiting:
            self.sim.note("waiting not considered: marked full")
        if not self.full:
            self.sort_waiting()
        while self.waiting and not self.full:
            r = self.waiting[0]
            if self.max_seqs is not None and len(self.running) + len(pieces) >= self.max_seqs:
                self.mark("max_running_requests")
                break
            node, length = self.match(r, r.known - 1)
            uncached = r.known - length
            need = uncached + min(r.m_seen - r.emitted, CLIP)
            if need >= self.remaining(taken):
                self.mark("remaining")
                break
            self.tree.lock(node)
            if need >= self.remaining(taken):
                self.tree.unlock(node)
                self.mark("remaining after locking")
                break
            if (pieces and uncached >= prefill_left) or chunk_left <= 0:
                self.tree.unlock(node)
                self.sim.note(
                    "refused for max_prefill_tokens" if chunk_left > 0 else "refused: chunk used up"
                )
                break
            n = min(uncached, chunk_left)
            self.waiting.pop(0)
            r.node, r.prefix, r.private = node, length, 0
            r.computed, r.target = length, r.known
            self.found[r.id] = length
            if length:
                self.sim.note("hit")
                if r.preemptions:
                    self.sim.note("hit after a retraction")
            pieces.append(refsim.Piece(r, "prefill", n, length))
            taken += n
            prefill_left -= n
            chunk_left -= n
            if n < uncached:
                self.half = r
                self.sim.note("cut")
            else:
                taken += min(r.m_seen, CLIP)
            if self.remaining(taken) <= 0:
                self.mark("remaining used up")
                break
            if prefill_left <= 0 or chunk_left <= 0:
                self.sim.note("a budget used up")
                break
        self.want_slots(sum(x.tokens for x in pieces))  # once, after admission
        for x in pieces:
            self.take(x.req, x.tokens)
        return pieces

    def mark(self, why: str) -> None:
        self.sim.note("mark set: " + why)
        self.full = True

    def match(self, r: Request, tokens: int):
        if not self.caching:
            return self.tree.root, 0
        return self.tree.match(r.tokens(tokens))

    def sort_waiting(self) -> None:
        """In place: the next pass starts from the order this one leaves."""
        if self.order == "fcfs":
            return
        if len(self.waiting) > SORTED_AT_MOST:
            self.sim.note("above 128 waiting")
            return
        earlier: list[list] = []  # tokens of those with a short match
        keys = {}
        for r in self.waiting:
            tokens = r.tokens(r.known)  # all known tokens, uncapped
            _, length = self.match(r, r.known)
            keys[r.id] = (0, -length)
            if length <= IN_BATCH:
                if any(common(tokens, other) >= IN_BATCH for other in earlier):
                    keys[r.id] = (1, 0)  # postponed: behind all others, not skipped
                    self.sim.note("postponed in batch")
                earlier.append(tokens)
        before = list(self.waiting)
        self.waiting.sort(key=lambda r: keys[r.id])  # stable
        if self.waiting != before:
            self.sim.note("order changed")

    # --- decode

    def decode(self) -> list:
        if self.left_decode:  # its own step still runs
            self.clear("after an end in a decode step")
            self.left_decode = False
        self.retract()
        self.want_slots(len(self.running))
        pieces = [self.piece(r, 1) for r in self.running]
        for r in self.running:
            self.take(r, 1)
        if not self.preempted_now:
            self.passes += 1
            if self.ratio() == LEAST_RATIO:
                self.sim.note("ratio at its floor")
        return pieces

    def retract(self) -> None:
        short = self.free + self.tree.evictable() < len(self.running)
        if not short or len(self.running) == 1:
            return
        self.running.sort(key=lambda r: (-r.emitted, r.p))  # stable; the last one goes first
        while len(self.running) > 1 and self.free + self.tree.evictable() < len(self.running):
            r = self.running.pop()
            self.give_up(r, inserted=False)
            r.computed = r.target = 0
            r.preemptions += 1
            self.preempted_now.append(r.id)
            self.waiting.append(r)  # to the end
            self.want_slots(RETRACT_SLOTS * len(self.running))
        if len(self.preempted_now) > 1:
            self.sim.note("several retracted")
        self.sim.note("retracted")
        emitted = sum(r.emitted for r in self.running)
        most = sum(r.m_seen for r in self.running)
        self.set_ratio(min(1, (emitted + RETRACT_SLOTS * len(self.running)) / (most + 1)))
        self.clear("retraction")

    # --- the end of a step

    def apply(self, now):
        pieces, self.pieces, self.step_end = self.pieces, None, None
        done = self.emit([x for x in pieces if x.req.status != "cancelled"], now)
        ended = False
        for x in pieces:  # in batch order
            r = x.req
            if r.status == "cancelled":
                r.computed += x.tokens
            if r.status == "cancelled" or r in done:
                ended = True
                self.drop(r)
            elif self.extending:
                self.keep(r)
                if r is not self.half:
                    self.joining.append(r)
        if not self.extending:
            self.left_decode = self.left_decode or ended
        elif ended or self.half is not None:
            self.clear("an end in an extend step" if ended else "a request was cut")
        return []

    def drop(self, r: Request) -> None:
        """A request that has ended leaves at once."""
        if r is self.half:
            self.half = None
        elif r in self.joining:
            self.joining.remove(r)
        elif r in self.running:
            self.running.remove(r)
        self.give_up(r, inserted=True)
        r.at = None
        if r.status != "cancelled":
            self.outstanding -= 1
            self.sim.end(r, "finished")

    def in_order(self):
        """Running; those that join it next; an extend step in batch order; half-prefilled (79)."""
        running = self.running + self.joining
        running += [x.req for x in self.pieces or [] if x.req not in running]
        if self.half is not None and self.half not in running:
            running.append(self.half)
        return running, list(self.waiting)

    # --- cancellation

    def cancel(self, r):
        self.outstanding -= 1
        if r in self.waiting:  # also a retracted one: it has nothing
            self.sim.note(
                "cancelled after a retraction" if r.preemptions else "cancelled while waiting"
            )
            self.waiting.remove(r)
            r.at = None
        elif self.in_step(r):
            self.sim.note(
                "cancelled in an extend step" if self.extending else "cancelled in a decode step"
            )
        else:
            self.sim.note("cancelled beside a step" if self.pieces else "cancelled between steps")
            if r in self.running:
                self.left_decode = True
            self.drop(r)

    # --- invariants

    def check(self, reqs):
        here = [r for r in reqs if r.at is self]
        private = sum(r.private for r in here)
        assert self.free >= 0
        assert self.free + self.tree.size() + private == self.total
        holders = [r for r in here if r.node is not None]
        self.tree.check([r.node for r in holders])
        active = self.running + self.joining + ([self.half] if self.half else [])
        active += [x.req for x in self.pieces or [] if x.req not in active]
        assert set(holders) == set(active)
        assert len(active) == len(set(active))
        for r in holders:
            if self.caching:
                assert self.tree.path(r.node) == r.tokens(r.prefix)
        assert not set(active) & set(self.waiting)
        assert all(r.private == 0 for r in self.waiting)
        if not self.caching:
            assert self.tree.size() == 0
