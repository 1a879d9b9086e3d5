"""`vllm-v1` with its prefix cache (rules 40 to 44, 47 and "Prefix caching" of part 1).

Options beside those of `vllm-v1`: prefix_cache: True, uncached_first [False].
The log entry's facts: `cached`, tokens found cached for each request admitted in the pass, and
`lost`, blocks that lost their content in the pass, its pulls included (rule 48).
"""

from __future__ import annotations

from .loading import refsim
from .policies import VllmV1
from .request import Request


class Block:
    """A block of the pool: free if it has no users, cached if it has content."""

    def __init__(self, number: int):
        self.number = number
        self.users = 0
        self.content: int | None = None  # the number of a chain of full blocks


class BlockCache:
    """All blocks of a pool. Free ones, with content or without, stand in one queue."""

    def __init__(self, total: int, uncached_first: bool):
        self.blocks = [Block(i) for i in range(total)]
        self.queue = list(self.blocks)  # front first
        self.copies: dict[int, list[Block]] = {}  # content -> blocks, first registered first
        self.uncached_first = uncached_first
        self.lost = 0

    def find(self, chain: list[int]) -> list[Block]:
        """The longest run from the start; of several copies the first registered (rule 41)."""
        run = []
        for content in chain:
            if content not in self.copies:
                break
            run.append(self.copies[content][0])
        return run

    def hit(self, block: Block) -> None:
        """One more user. A free block leaves the queue."""
        if block.users == 0:
            self.queue.remove(block)
        block.users += 1

    def take(self) -> Block:
        """The block at the front; it loses its content now."""
        block = self.queue.pop(0)
        if block.content is not None:
            copies = self.copies[block.content]
            copies.remove(block)
            if not copies:
                del self.copies[block.content]
            block.content = None
            self.lost += 1  # also if a copy of it is left
        block.users = 1
        return block

    def register(self, block: Block, content: int) -> None:
        """The block is full from now on; it keeps content it already has (a hit)."""
        if block.content is None:
            block.content = content
            self.copies.setdefault(content, []).append(block)
        assert block.content == content

    def drop(self, block: Block) -> None:
        """One user less. The last one puts it at the back of the queue."""
        block.users -= 1
        assert block.users >= 0
        if block.users == 0:
            if self.uncached_first and block.content is None:
                self.queue.insert(0, block)
            else:
                self.queue.append(block)


class CachedVllmV1(VllmV1):
    """`vllm-v1`; blocks are objects in lists, and the counters of the base class follow them."""

    def __init__(self, name, cfg, role):
        super().__init__(name, cfg, role)
        self.cache = BlockCache(self.total, cfg.get("uncached_first", False))
        self.found: dict = {}
        self.lost_before = 0

    # --- blocks

    def count(self, r: Request) -> None:
        """Keeps the counters of the base class in step with the lists."""
        self.free = len(self.cache.queue)
        r.blocks = len(r.table)

    def grow(self, r, tokens):
        while len(r.table) < self.blocks_for(tokens):
            r.table.append(self.cache.take())
        self.count(r)

    def release(self, r):
        """Last block first (rule 42)."""
        while r.table:
            self.cache.drop(r.table.pop())
        self.count(r)

    def register(self, r: Request, tokens: int) -> None:
        """A full block can be hit from the moment its last token is scheduled (rule 44)."""
        full = tokens // self.block_tokens
        chain = self.sim.chains.of(r, full, self.block_tokens)
        for block, content in zip(r.table[:full], chain, strict=True):
            self.cache.register(block, content)

    def match(self, r: Request, tokens: int) -> list[Block]:
        """Cached full blocks; at least one of the tokens is left to compute (41, 44, 47)."""
        most = (tokens - 1) // self.block_tokens
        return self.cache.find(self.sim.chains.of(r, most, self.block_tokens))

    def more(self, r: Request, found: int) -> list[int]:
        """Contents that are to be had elsewhere, behind so many blocks found here."""
        return []

    def fetch(self, contents: list[int]) -> None:
        """They come into new blocks of the pool."""

    def take_hits(self, r: Request, hits: list[Block]) -> None:
        for block in hits:
            self.cache.hit(block)
        r.table = list(hits)
        self.count(r)

    # --- one pass

    def begin_pass(self):
        self.found = {}
        self.lost_before = self.cache.lost

    def facts(self):
        return {"cached": dict(self.found), "lost": self.cache.lost - self.lost_before}

    def schedule(self, now):
        self.join_loaded()
        pieces = []
        budget = self.budget
        visible = self.visible()
        i = 0
        while i < len(visible) and budget > 0:  # rule 45
            r = visible[i]
            n = self.want(r, r.computed, budget)
            while self.blocks_for(r.computed + n) - len(r.table) > self.free:  # rule 46
                victim = visible[-1]
                if victim is r and self.must_stay(r):
                    return pieces
                visible.pop()
                self.sim.note("preempted half-prefilled" if victim.prefilling else "preempted")
                self.preempt(victim)  # its content stays until blocks are taken
                if victim is r:
                    self.sim.note("preempted itself")
                    return pieces
            self.grow(r, r.computed + n)
            self.register(r, r.computed + n)
            pieces.append(self.piece(r, n))
            budget -= n
            i += 1
        if self.preempted_now:
            return pieces
        while self.waiting and budget > 0 and len(self.running) < self.max_seqs:  # rule 47
            r = self.waiting[0]
            hits = self.match(r, r.known)
            more = self.more(r, len(hits))
            cached = (len(hits) + len(more)) * self.block_tokens
            n = self.want(r, cached, budget)
            whole = r.known if self.reserve_full_prompt else cached + n
            new = self.blocks_for(whole) - len(hits)
            free_hits = sum(block.users == 0 for block in hits)
            if new + free_hits > self.free:
                self.sim.note("refused only for its free hits" if new <= self.free else "refused")
                break
            if not self.sim.target_has_room(r):
                break
            self.sim.admitted(r)
            self.waiting.pop(0)
            self.running.append(r)
            self.note_hits(r, hits, free_hits)
            self.take_hits(r, hits)  # before new ones are taken
            self.grow(r, cached + n)
            self.fetch(more)
            r.computed = cached
            r.target = r.known  # rule 44
            self.register(r, cached + n)
            self.found[r.id] = cached
            pieces.append(refsim.Piece(r, "prefill", n, cached))
            budget -= n
        return pieces

    def note_hits(self, r: Request, hits: list[Block], free_hits: int) -> None:
        """Counts corner cases only."""
        note = self.sim.note
        cached = len(hits) * self.block_tokens
        if hits:
            note("hit")
            note("hit of free blocks" if free_hits else "hit of blocks in use")
            if 0 < free_hits < len(hits):
                note("hit partly free")
            if r.preemptions:
                note("hit after a preemption")
            if cached > r.p:
                note("hit of generated tokens of its own")
        whole = self.sim.chains.of(r, r.known // self.block_tokens, self.block_tokens)
        if r.known % self.block_tokens == 0 and len(hits) < len(self.cache.find(whole)):
            note("hit capped")
        if any(len(self.cache.copies[block.content]) > 1 for block in hits):
            note("hit with two copies")

    # --- transfers (rule 44)

    def pull_need(self, r):
        hits = self.match(r, r.p)
        return self.blocks_for(r.p) - len(hits) + sum(block.users == 0 for block in hits)

    def reserve(self, r):
        hits = self.match(r, r.p)
        if hits:
            self.sim.note("hit on the decode side")
        self.take_hits(r, hits)
        self.grow(r, r.p)
        return len(r.table), len(hits) * self.block_tokens

    def load(self, r):
        self.register(r, r.p)  # what arrived can be hit from now on
        super().load(r)

    def leave(self, r):
        if r.emitted == r.o:
            return super().leave(r)
        assert len(r.table) == self.blocks_for(r.p)  # rule 30; hit blocks are among them
        r.source, r.source_table, r.table = self, r.table, []
        r.source_blocks, r.blocks, r.at = len(r.source_table), 0, None
        return True

    def release_source(self, r):
        while r.source_table:
            self.cache.drop(r.source_table.pop())
        r.source, r.source_blocks = None, 0
        self.free = len(self.cache.queue)

    # --- invariants

    def check(self, reqs):
        """Free + used = total; every user is known; content and its index agree."""
        assert self.free == len(self.cache.queue) == len(set(self.cache.queue))
        users = dict.fromkeys(self.cache.blocks, 0)
        for r in reqs:
            held = r.table if r.at is self else []
            held_here = r.source_table if r.source is self else []
            if r.push_target is self:
                held_here = held_here + r.reserved_table
                assert len(r.reserved_table) == r.reserved_blocks
            assert len(set(held)) == len(held)
            assert r.at is not self or r.blocks == len(held)
            for block in held + held_here:
                users[block] += 1
        waiting = set(self.cache.queue)
        for block in self.cache.blocks:
            assert block.users == users[block], (self.name, block.number)
            assert (block.users == 0) == (block in waiting)
            if block.content is not None:
                assert block in self.cache.copies[block.content]
        known = [block for copies in self.cache.copies.values() for block in copies]
        assert len(known) == len(set(known))
        assert set(known) == {block for block in self.cache.blocks if block.content is not None}
