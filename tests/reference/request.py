"""Requests with token identity, cancellation and sessions."""

from __future__ import annotations

from .loading import refsim


class Request(refsim.Req):
    """One request. Keys of its spec beside those of the base reference:

    block_ids, block_ids_tokens   ids of the trace's blocks of the prompt and their size in tokens
    content                       [[first, count], ..]: runs of integers that name the tokens
    cancel_at_ns, cancel_after_s  cancelled at an instant, or so long after its arrival
    session, turn, delay_ns       closed loop: whose turn, its place, and the think time before
    """

    def __init__(self, index: int, spec: dict):
        if "arrival_ns" not in spec and "arrival_s" not in spec:
            spec = dict(spec, arrival_ns=0)  # it has no arrival of its own (rules 52, 71)
        super().__init__(index, spec)
        self.previous: Request | None = None  # the turn before, if it continues a session
        self.following: Request | None = None  # the turn after
        self.content = None
        if spec.get("content") is not None:
            self.content = [first + k for first, count in spec["content"] for k in range(count)]
        self.arrived: int | None = None
        self.ended: int | None = None  # as the client sees it
        self.chain: dict[int, list[int]] = {}  # block size -> numbers of its blocks
        # on a replica with a block cache
        self.table: list = []  # blocks held where it runs
        self.source_table: list = []  # blocks held on the prefill replica
        # on a replica with a radix tree
        self.node = None  # the last node of its locked path
        self.prefix = 0  # tokens of that path
        self.private = 0  # slots of its own, not in the tree
        # swapped out to host memory
        self.host_blocks = 0
        # changing clusters
        self.rerouted = 0
        self.handed_again = 0
        self.visited: list = []
        self.prefill_order = 0
        self.had = 0  # `static`: token times it had when its batch began (77)
        self.prefill_ends: list = []  # on prefill replicas, in order of time (38)
        # push: its decode replica while it is prefilled, and what it reserved there
        self.push_target = None
        self.reserved_blocks = 0
        self.reserved_table: list = []
        self.reserved_cached = 0

    # --- failures

    def forget_kv(self) -> None:
        """What it had where it was is gone."""
        self.computed = self.target = self.blocks = self.host_blocks = 0
        self.table = []
        self.node, self.prefix, self.private = None, 0, 0

    def forget_reservation(self) -> None:
        self.reserved_blocks = self.reserved_cached = 0
        self.reserved_table = []

    # --- cancellation

    def cancel_time(self) -> int | None:
        """Absolute, or counted from the arrival (rule 74)."""
        if self.spec.get("cancel_at_ns") is not None:
            return self.spec["cancel_at_ns"]
        if self.spec.get("cancel_after_s") is not None and self.arrived is not None:
            return self.arrived + refsim.to_ns(self.spec["cancel_after_s"])
        return None

    # --- identity of tokens (rule 40)

    def token(self, position: int):
        """What names the token at this position: equal names, equal tokens."""
        if self.content is not None:
            if position < len(self.content):
                return self.content[position]
        elif self.spec.get("block_ids") is not None:
            size = self.spec["block_ids_tokens"]
            block = position // size
            if (block + 1) * size <= self.spec[
                "prompt_tokens"
            ]:  # only full blocks of the trace have a name
                return (self.spec["block_ids"][block], position % size)
        elif self.previous is not None:
            before = self.previous  # its prompt, then its output, cut to p
            if position < min(self.spec["prompt_tokens"], before.p + before.o):
                return before.token(position)
        return ("own", self.index, position)

    def tokens(self, count: int) -> list:
        return [self.token(position) for position in range(count)]


class Chains:
    """Numbers for blocks: the same number if and only if all tokens from the start are the same."""

    def __init__(self) -> None:
        self.numbers: dict[tuple, int] = {}

    def of(self, r: Request, blocks: int, size: int) -> list[int]:
        """The numbers of the request's first blocks, each of `size` tokens."""
        chain = r.chain.setdefault(size, [])
        while len(chain) < blocks:
            parent = chain[-1] if chain else None
            start = len(chain) * size
            block = tuple(r.token(start + k) for k in range(size))
            chain.append(self.numbers.setdefault((parent, block), len(self.numbers)))
        return chain[:blocks]
