"""What the tokens of a request are: `Content`, runs of consecutive integers (rule 40).

Two requests share a token where their tokens are alike from the start up to it. A text told by a
trace's blocks, or said in the turns of a session, is one run or a few, however long it is: what
works on runs costs what a request adds, not its length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

LONGEST = 1 << 32
"""More tokens than any request has: texts that share nothing lie so far apart."""


class Content:
    """Identity of a request's tokens, in order from the start of its prompt.

    The token at a position is an integer, at least 0, of the run that the position lies in. Tokens
    past the last run are the request's own: see `own_tokens`.

    Attributes:
        firsts: First integer of each run.
        ends: Position after the last token of each run; ascending.

    Args:
        runs: (first integer, tokens) of each, in order; empty ones are left out, and a run that
            continues the one before is joined to it.
    """

    __slots__ = ("ends", "firsts")

    def __init__(self, runs: Iterable[tuple[int, int]]) -> None:
        firsts: list[int] = []
        ends: list[int] = []
        end = begin = 0
        for first, tokens in runs:
            if tokens <= 0:
                continue
            if firsts and first == firsts[-1] + end - begin:
                ends[-1] = end = end + tokens
                continue
            begin, end = end, end + tokens
            firsts.append(first)
            ends.append(end)
        self.firsts = tuple(firsts)
        self.ends = tuple(ends)

    @classmethod
    def of_blocks(
        cls, ids: Sequence[int] | npt.NDArray[np.int64], block_tokens: int, prompt_tokens: int
    ) -> Content:
        """What a trace's ids of blocks tell of a prompt: its full blocks (rules 40 and 41).

        Args:
            ids: One for each block, at least 0; the last may be that of a partial block.
            block_tokens: Tokens of a block.
            prompt_tokens: Length of the prompt.
        """
        told = np.asarray(ids[: prompt_tokens // block_tokens], dtype=np.int64)
        content = cls(())
        if len(told):
            begins = np.concatenate(([0], np.flatnonzero(np.diff(told) != 1) + 1))
            content.firsts = tuple((told[begins] * block_tokens).tolist())
            ends = np.concatenate((begins[1:], [len(told)]))
            content.ends = tuple((ends * block_tokens).tolist())
        return content

    @property
    def tokens(self) -> int:
        """Tokens that it names."""
        return self.ends[-1] if self.ends else 0

    def runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """(first integer, tokens) of the runs of the positions `start` to `stop`, exclusive."""
        at = bisect_right(self.ends, start)
        position = start
        while position < stop and at < len(self.ends):
            end = min(stop, self.ends[at])
            begin = self.ends[at - 1] if at else 0
            yield self.firsts[at] + position - begin, end - position
            position, at = end, at + 1

    def cut(self, tokens: int) -> Content:
        """The first `tokens` of it."""
        return Content(self.runs(0, tokens))

    def shared(self, other: Content) -> int:
        """Tokens that both begin with."""
        tokens = 0
        mine = zip(self.firsts, self.ends, strict=True)
        for (first, end), (others, others_end) in zip(
            mine, zip(other.firsts, other.ends, strict=True), strict=False
        ):
            if first != others:
                return tokens
            tokens = min(end, others_end)
            if end != others_end:
                return tokens
        return tokens

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Content):
            return NotImplemented
        return self.firsts == other.firsts and self.ends == other.ends

    def __hash__(self) -> int:
        return hash((self.firsts, self.ends))

    def __repr__(self) -> str:
        return f"Content({list(self.runs(0, self.tokens))})"


def own_tokens(index: int, position: int = 0) -> int:
    """The integer of the token at `position` that only request `index` has: below 0."""
    return position - (index + 1) * LONGEST


def token_runs(
    index: int, content: Content | None, start: int, stop: int
) -> Iterator[tuple[int, int]]:
    """(first integer, tokens) of a request's positions `start` to `stop`, its own ones included.

    Args:
        index: Of the request.
        content: What is known of its tokens.
        start: First position.
        stop: Position after the last.
    """
    told = 0 if content is None else content.tokens
    if content is not None and start < told:
        yield from content.runs(start, min(stop, told))
    if stop > max(start, told):
        begin = max(start, told)
        yield own_tokens(index, begin), stop - begin
