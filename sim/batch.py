"""`ScheduledBatch`: what a policy decided for the next iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from sim.request import Request
from sim.step_time import StepWork


class Cause(IntEnum):
    """Why the first waiting request was not admitted in a pass."""

    NONE = 0
    NO_SEAT = 1
    NO_BLOCKS = 2
    NO_BUDGET = 3
    BATCH_RUNNING = 4
    BATCH_FORMING = 5
    PREEMPTED = 6
    SWAPPED_OUT = 7


UNTIL_CHANGE: Final = 1 << 60
"""`ScheduledBatch.repeat`: the decision holds until something reaches or leaves the replica."""


@dataclass(frozen=True, slots=True)
class Padding:
    """Work that an iteration does beyond its real tokens (rule 14 of the static policy).

    Attributes:
        chunks: (tokens, tokens before) of each prefill row as attention computes it, or None.
        prefill_tokens: Rows through the linear layers in a prefill, or None for the real ones.
        idle_rows: Finished rows that still go through the linear layers.
        context_tokens: Context attended to beyond the real one, all rows together.
    """

    chunks: tuple[tuple[int, int], ...] | None = None
    prefill_tokens: int | None = None
    idle_rows: int = 0
    context_tokens: int = 0

    def work(
        self, chunks: Sequence[tuple[int, int]], decodes: int, context: int, spread: int = 0
    ) -> StepWork:
        """What an iteration with these real pieces computes, padding included.

        Contexts that are padded are padded to one length: they are equal.
        """
        return StepWork(
            self.chunks or chunks,
            decodes + self.idle_rows,
            context + self.context_tokens,
            prefill_tokens=self.prefill_tokens,
            attending_rows=decodes,
            context_spread=0 if self.context_tokens else spread,
        )


class ScheduledBatch:
    """Tokens that one iteration computes; names only what is new.

    Attributes:
        tokens: New tokens of each prefill chunk, in batch order. Decodes may be listed here as
            well, one by one; then only those listed run.
        all_decodes: Every decoding request computes one token, without being listed. Set by
            `ReplicaState.decode_all`, which takes the blocks.
        repeat: How many iterations the same decision holds for if nothing reaches the replica.
            This is about batches without prefill. The replica stops earlier where a request
            finishes or blocks run out.
        chunk_repeat: How many iterations with prefill chunks of these very sizes follow each other
            if nothing reaches the replica, none of which completes its prompt. Blocks beyond those
            allocated are taken chunk by chunk.
        spare_blocks: Blocks that must stay free in every repeated iteration.
        in_running_order: Requests that end in this iteration leave in order of `running`, not
            decodes before chunks.
        cause: Why the first waiting request was not admitted.
        deaf: A request that joins the waiting queue cannot change this decision while it holds.
        deaf_cause: Where it is deaf and nobody waited: what `cause` will be if somebody comes.
        padding: Work beyond the real tokens, or None.
        host_bytes: KV that this pass moves over the host link, beyond what `ReplicaState` moves by
            itself. The step takes longer by that, and does not repeat.
    """

    __slots__ = (
        "all_decodes",
        "cause",
        "chunk_repeat",
        "deaf",
        "deaf_cause",
        "host_bytes",
        "in_running_order",
        "padding",
        "repeat",
        "spare_blocks",
        "tokens",
    )

    def __init__(self, repeat: int = 1, spare_blocks: int = 0) -> None:
        self.tokens: dict[Request, int] = {}
        self.all_decodes = False
        self.repeat = repeat
        self.chunk_repeat = 1
        self.spare_blocks = spare_blocks
        self.in_running_order = False
        self.cause: int = Cause.NONE
        self.deaf = False
        self.deaf_cause: int = Cause.NONE
        self.padding: Padding | None = None
        self.host_bytes = 0

    def refuse(self, cause: Cause, *, first_come: bool) -> None:
        """Nobody waiting is admitted (any more) in this pass.

        Whoever joins a first-come queue stands behind the one refused, and without a seat it does
        not matter who comes: such a decision is deaf to arrivals.
        """
        self.cause = cause
        self.deaf = first_come or cause == Cause.NO_SEAT

    @property
    def num_tokens(self) -> int:
        """Tokens listed (the decodes of `all_decodes` are not)."""
        return sum(self.tokens.values())

    def __repr__(self) -> str:
        listed = {request.index: tokens for request, tokens in self.tokens.items()}
        rest = " + all decodes" if self.all_decodes else ""
        return f"ScheduledBatch({listed}{rest}, repeat={self.repeat})"


def repeat_chunk(batch: ScheduledBatch, budget_left: int) -> None:
    """Say for how long the one chunk of a token-budget batch is followed by others of its size.

    The budget is used up, or nobody else wants any, so that the next pass gives the same chunk to
    the same prompt until less than a chunk is left. With no budget left arrivals do not matter.
    """
    if budget_left <= 0:
        batch.deaf, batch.deaf_cause = True, Cause.NO_BUDGET
    if len(batch.tokens) == 1:
        ((request, tokens),) = batch.tokens.items()
        if request.prefilling:
            batch.chunk_repeat = max(1, (request.remaining_tokens - 1) // tokens)
