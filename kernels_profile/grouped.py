"""Step times from tables where groups of GPUs attend different requests: `GroupedStepTime`.

The busiest group sets the pace of everything but the routed experts, which get the rows of all
groups. Chunks go to groups longest first, each to the one with fewest tokens (Graham, SIAM Journal
on Applied Mathematics 17, 1969); decodes are spread evenly.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kernels_profile.attention import Bools, Mark
from kernels_profile.composition import NOTHING, Summed, summed
from kernels_profile.groups import share
from kernels_profile.links import Collectives
from kernels_profile.step_time import MEMO, ProfiledStepTime
from kernels_profile.usage import Usage
from sim.step_time import StepWork


class GroupStep(StepWork):
    """What the busiest group computes of a step.

    Attributes:
        all_rows: Rows of all groups.
    """

    __slots__ = ("all_rows",)
    all_rows: int


def busiest_step(work: StepWork, groups: int) -> GroupStep:
    """The busiest group's part of a step.

    In a run of steps its contexts grow by its attending rows, as those of all do.
    """
    chunks, rows = _most_tokens(work.chunks, groups), work.attending_rows
    attending = share(rows, groups)
    padding = work.prefill_tokens - sum(tokens for tokens, _ in work.chunks)
    step = GroupStep(
        chunks,
        share(work.decode_rows, groups),
        -(-work.context_tokens * attending // rows) if rows else 0,
        prefill_tokens=sum(tokens for tokens, _ in chunks) + share(padding, groups),
        attending_rows=attending,
        sampled_rows=share(work.sampled_rows, groups),
    )
    if rows and work.context_spread:
        step.context_spread = work.context_spread * attending * attending // (rows * rows)
    step.all_rows = work.prefill_tokens + work.decode_rows
    return step


def _most_tokens(chunks: Sequence[tuple[int, int]], groups: int) -> list[tuple[int, int]]:
    """The chunks of the group that gets most tokens."""
    given: list[list[tuple[int, int]]] = [[] for _ in range(min(groups, len(chunks)))]
    tokens = [0] * len(given)
    for chunk in sorted(chunks, reverse=True):
        fewest = tokens.index(min(tokens))
        given[fewest].append(chunk)
        tokens[fewest] += chunk[0]
    return given[tokens.index(max(tokens))] if given else []


class GroupedStepTime(ProfiledStepTime):
    """`ProfiledStepTime` with ``data_parallel_attention`` groups of GPUs; see there."""

    def _compose(self, collectives: Collectives) -> None:
        self._everyone = {(0, 0): NOTHING}
        super()._compose(collectives)

    def exact_ns(self, work: StepWork) -> float:
        """Time of one iteration, ns."""
        return super().exact_ns(self._of_group(work))

    def exact_many_ns(self, work: StepWork, n: int) -> list[float] | npt.NDArray[np.float64]:
        """Times of `n` iterations, ns."""
        return super().exact_many_ns(self._of_group(work), n)

    def count(
        self, usage: Usage, work: StepWork, start_ns: int, ends_ns: Sequence[int]
    ) -> bool | Bools:
        """Add iterations that took place to the counts of a replica."""
        return super().count(usage, self._of_group(work), start_ns, ends_ns)

    def refuse(self, work: StepWork, n: int = 1) -> None:
        """Refuse iterations that lie outside of the measured grid."""
        super().refuse(self._of_group(work), n)

    def _of_group(self, work: StepWork) -> GroupStep:
        if isinstance(work, GroupStep):
            return work
        return busiest_step(work, self.layout.data_attention)

    def _before_decodes(self, work: StepWork) -> float:
        assert isinstance(work, GroupStep)
        return super()._before_decodes(work) + self._of_everyone(work).ns

    def steady_parts(self, work: StepWork) -> list[Summed]:
        """As of a group, and what all of them share."""
        assert isinstance(work, GroupStep)
        return [*super().steady_parts(work), self._of_everyone(work)]

    def _of_everyone(self, work: GroupStep) -> Summed:
        """Routed experts with the rows of all groups, and what is sent to them and back."""
        rows = work.prefill_tokens + work.decode_rows
        key = (rows, work.all_rows)
        found = self._everyone.get(key)
        if found is None:
            if len(self._everyone) >= MEMO:
                self._everyone = {(0, 0): NOTHING}
            experts = summed(self.composed.everyone, work.all_rows)
            found = self._everyone[key] = experts + self._exchanged(*key)
        return found

    def _exchanged(self, rows: int, all_rows: int) -> Summed:
        exchange = self.composed.exchange
        assert exchange is not None
        times = 2 * self.composed.stage.expert_layers
        us, found = exchange.at(self.composed.exchanged_bytes(rows, all_rows))
        us *= times
        marks = tuple(Mark(exchange.name, outside, us) for outside in found)
        return Summed(us * 1e3, us * 1e3 if exchange.filled else 0.0, marks)
