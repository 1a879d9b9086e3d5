"""Memory of a replica's host: blocks swapped out to it, and the link over which KV moves.

Whatever moves KV says so to the link while a scheduling pass decides. The step that the pass starts
is longer by that; moves of a pass that starts none are paid by the next step (rule 20).
"""

from __future__ import annotations

from sim.request import Request


class Disk:
    """A disk behind the memory of the host, as an account of what moves and how long that takes.

    Attributes:
        read_bytes_per_s: Bandwidth from it.
        write_bytes_per_s: Bandwidth to it.
        read_bytes: Read so far.
        written_bytes: Written so far.
    """

    __slots__ = (
        "_pass_s",
        "read_bytes",
        "read_bytes_per_s",
        "write_bytes_per_s",
        "written_bytes",
    )

    def __init__(self, read_bytes_per_s: float, write_bytes_per_s: float) -> None:
        self.read_bytes_per_s = read_bytes_per_s
        self.write_bytes_per_s = write_bytes_per_s
        self.read_bytes = self.written_bytes = 0
        self._pass_s = 0.0

    def move(self, read_bytes: int, written_bytes: int) -> None:
        """KV is read and written by decisions of the pass now made; called once in each."""
        self.read_bytes += read_bytes
        self.written_bytes += written_bytes
        self._pass_s = read_bytes / self.read_bytes_per_s + written_bytes / self.write_bytes_per_s

    def end_pass(self) -> int:
        """The pass is over; returns what it takes, ns. Each pass is rounded on its own."""
        taken_s, self._pass_s = self._pass_s, 0.0
        return round(taken_s * 1e9)


class HostLink:
    """The way between the memory of a replica and that of its host.

    Attributes:
        bandwidth_bytes_per_s: Bytes per second, all GPUs of the replica together; both directions
            take turns.
        overlap: Copies run beside a step, which takes the longer of the two; else they come before
            it, and it takes the sum (rule 20).
        disk: Behind host memory, or None. It takes its time beside the link's and the step's, or
            before the step, after the link's (`sim.disk_cache`).
        moved_bytes: Moved so far.
    """

    __slots__ = (
        "_disk_owed_ns",
        "_owed_ns",
        "_pass_bytes",
        "bandwidth_bytes_per_s",
        "disk",
        "moved_bytes",
        "overlap",
    )

    def __init__(
        self, bandwidth_bytes_per_s: float, *, overlap: bool = False, disk: Disk | None = None
    ) -> None:
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self.overlap = overlap
        self.disk = disk
        self.moved_bytes = self._pass_bytes = self._owed_ns = self._disk_owed_ns = 0

    @property
    def owed_ns(self) -> tuple[int, int]:
        """What the next step pays for copies, and for the disk, ns."""
        return self._owed_ns, self._disk_owed_ns

    def move(self, num_bytes: int) -> None:
        """KV moves, in either direction, by a decision of the pass now made."""
        self._pass_bytes += num_bytes
        self.moved_bytes += num_bytes

    def end_pass(self) -> int:
        """The pass is over; returns what is owed now, ns. Each pass is rounded on its own."""
        self._owed_ns += round(self._pass_bytes / self.bandwidth_bytes_per_s * 1e9)
        self._pass_bytes = 0
        if self.disk is not None:
            self._disk_owed_ns += self.disk.end_pass()
        return self._owed_ns + self._disk_owed_ns

    def lengthened(self, step_ns: int) -> int:
        """Length of a step that also pays what is owed, ns."""
        copies_ns, self._owed_ns = self._owed_ns, 0
        disk_ns, self._disk_owed_ns = self._disk_owed_ns, 0
        if self.overlap:
            return max(step_ns, copies_ns, disk_ns)
        return step_ns + copies_ns + disk_ns


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
