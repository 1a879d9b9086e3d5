"""Memory of a replica's host: blocks swapped out to it, and the link over which KV moves.

Whatever moves KV says so to the link while a scheduling pass decides. The step that the pass starts
is longer by that; moves of a pass that starts none are paid by the next step (rule 20).
"""

from __future__ import annotations

from sim.request import Request


class HostLink:
    """The way between the memory of a replica and that of its host.

    Attributes:
        bandwidth_bytes_per_s: Bytes per second, all GPUs of the replica together; both directions
            take turns.
        overlap: Copies run beside a step, which takes the longer of the two; else they come before
            it, and it takes the sum (rule 20).
        moved_bytes: Moved so far.
    """

    __slots__ = ("_owed_ns", "_pass_bytes", "bandwidth_bytes_per_s", "moved_bytes", "overlap")

    def __init__(self, bandwidth_bytes_per_s: float, *, overlap: bool = False) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.overlap = overlap
        self.moved_bytes = self._pass_bytes = self._owed_ns = 0

    def move(self, num_bytes: int) -> None:
        """KV moves, in either direction, by a decision of the pass now made."""
        self._pass_bytes += num_bytes
        self.moved_bytes += num_bytes

    def end_pass(self) -> int:
        """The pass is over; returns what is owed now, ns. Each pass is rounded on its own."""
        self._owed_ns += round(self._pass_bytes / self.bandwidth_bytes_per_s * 1e9)
        self._pass_bytes = 0
        return self._owed_ns

    def lengthened(self, step_ns: int) -> int:
        """Length of a step that also pays what is owed, ns."""
        copies_ns, self._owed_ns = self._owed_ns, 0
        return max(step_ns, copies_ns) if self.overlap else step_ns + copies_ns


class HostMemory:
    """Where victims wait with what they have computed, instead of computing it again.

    Attributes:
        total_blocks: Size, blocks of the replica's own size.
        free_blocks: Of these, those that nobody has.
        swapped: Requests swapped out and their blocks, in order of being swapped out.
        link: What moving them takes.
        block_bytes: Bytes of a block.
    """

    __slots__ = ("block_bytes", "free_blocks", "link", "swapped", "total_blocks")

    def __init__(self, total_blocks: int, link: HostLink, block_bytes: int) -> None:
        self.total_blocks = self.free_blocks = total_blocks
        self.link = link
        self.block_bytes = block_bytes
        self.swapped: dict[Request, int] = {}

    def take(self, request: Request, blocks: int) -> bool:
        """Move a request's blocks here; False, and nothing moved, if they do not fit."""
        if blocks > self.free_blocks:
            return False
        self.free_blocks -= blocks
        self.swapped[request] = blocks
        self.link.move(blocks * self.block_bytes)
        return True

    def give_back(self, request: Request) -> None:
        """Move a request's blocks to the replica."""
        self.link.move(self.forget(request) * self.block_bytes)

    def forget(self, request: Request) -> int:
        """Free a request's blocks, which nobody needs any more; returns how many."""
        blocks = self.swapped.pop(request)
        self.free_blocks += blocks
        return blocks
