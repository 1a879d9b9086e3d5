"""Policies whose steps are prefills alone, or decodes."""

from __future__ import annotations

from abc import abstractmethod

from sim.batch import Cause, ScheduledBatch
from sim.policy import Policy, ReplicaState


class SeparateSteps(Policy):
    """A step that admits anybody is prefill only; else all running requests decode.

    While anybody is swapped out nobody is admitted (rule 20).
    """

    def schedule(self, state: ReplicaState) -> ScheduledBatch:
        """Prefills if anybody can be admitted, else decodes."""
        batch = ScheduledBatch()
        if state.swapped:
            batch.deaf, batch.deaf_cause = True, Cause.SWAPPED_OUT
            batch.cause = Cause.SWAPPED_OUT if state.waiting else Cause.NONE
        else:
            self._prefills(state, batch)
        if not batch.tokens:
            self._decodes(state, batch)
        return batch

    @abstractmethod
    def _prefills(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        """Admit who waits, with whole prompts; whom the first refusal leaves waits on."""

    @abstractmethod
    def _decodes(self, state: ReplicaState, batch: ScheduledBatch) -> None:
        """Let running requests decode, victims and swapped ones included."""
