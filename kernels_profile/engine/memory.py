"""Which blocks of the card's KV memory each request has: ids behind the simulator's counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.kvcache import KVCache
    from sim.request import Request


class BlockTables:
    """Block ids of the requests on the card.

    The simulator's `BlockPool` says how many blocks a request holds; here it gets that many ids,
    and gives them back when it holds none.

    Args:
        num_blocks: Blocks of the pool, ids 0 to num_blocks - 1.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ids: dict[int, list[int]] = {}

    def __getitem__(self, request: Request) -> list[int]:
        """Ids of a request's blocks, in the order of its tokens."""
        return self._ids[request.index]

    def follow(self, kv: KVCache, requests: Iterable[Request]) -> None:
        """Bring the tables in line with what the pool says that each of `requests` holds.

        Args:
            kv: The pool of the replica.
            requests: All requests of the replica; who is not among them has left.
        """
        wanted = {request.index: kv.held(request) for request in requests}
        for index in [index for index in self._ids if wanted.get(index, 0) < len(self._ids[index])]:
            ids, keep = self._ids[index], wanted.get(index, 0)
            self._free.extend(reversed(ids[keep:]))
            del ids[keep:]
            if not ids:
                del self._ids[index]
        for index, blocks in wanted.items():
            missing = blocks - len(self._ids.get(index, ()))
            if missing > 0:
                taken = self._free[-missing:]
                assert len(taken) == missing, "the pool counts more blocks than the card has"
                del self._free[-missing:]
                self._ids.setdefault(index, []).extend(reversed(taken))
