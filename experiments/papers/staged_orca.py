"""Orca on several pipeline stages, with a largest batch for each of them."""

from __future__ import annotations

from dataclasses import dataclass

from policies.orca import Orca
from sim.batch import Cause, ScheduledBatch
from sim.policy import ReplicaState


@dataclass
class StagedOrca(Orca):
    """`Orca` whose `max_batch_size` is that of one batch, of which each stage has one.

    The rule: all decoding requests that are in no batch under way decode, and waiting ones join in
    order while the batch of this pass has fewer than `max_batch_size` requests and their memory is
    free. (The policy `orca` counts those of all batches together.) Nobody is refused a seat for
    longer than this pass: the next one, of another batch, may have room.

    Source: Yu et al., OSDI 2022, section 4.2 and algorithm 1: as many batches are under way as
    there are workers, each of at most max_bs requests out of those that no other one runs. It lives
    here and not among the policies, since the public ports of Orca have one largest batch for all.

    Args:
        max_batch_size: Most requests in one batch.
        reserve: What is reserved at admission, as `Orca` has it.
        stages: Of the pipeline.
    """

    stages: int = 1

    @property
    def seats(self) -> int:
        """Most requests running at once: one batch in each stage."""
        return self.stages * self.max_batch_size

    def _full(self, state: ReplicaState, batch: ScheduledBatch) -> Cause:
        size = state.num_decoding + len(batch.tokens)
        return Cause.NO_BUDGET if size >= self.max_batch_size else Cause.NONE
