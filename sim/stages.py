"""Step times of a replica whose layers are spread over pipeline stages (rules 55 and 85)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from sim.errors import ConfigError
from sim.step_time import (
    Bools,
    Ints,
    ReplicaStepTime,
    StepTimeModel,
    StepTimeOrigin,
    StepWork,
    asks_spread,
    bound,
    quiet,
    without_host,
)


@dataclass(frozen=True)
class StageLink:
    """What it costs to send a batch's activations from one stage to the next.

    Attributes:
        bytes_per_token: Activations of one token, for each row of the batch, padding included.
        bandwidth_bytes_per_s: Of the link, one direction.
        latency_s: Paid once for each batch and move.
    """

    bytes_per_token: int
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0

    def transfer_ns(self, work: StepWork) -> int:
        """Length of one move, ns, rounded half to even; 0 is possible."""
        rows = work.prefill_tokens + work.decode_rows
        seconds = rows * self.bytes_per_token / self.bandwidth_bytes_per_s
        return round((self.latency_s + seconds) * 1e9)


@dataclass(frozen=True)
class _LaterStage:
    """A stage that receives activations first; they belong to its time."""

    model: StepTimeModel
    link: StageLink

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """Transfer, then the stage's own step."""
        return self.link.transfer_ns(work) + self.model.step_ns(work, iteration)

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int] | Ints:
        """The rows of a run stay the same, and so does the transfer."""
        transfer, steps = self.link.transfer_ns(work), self.model.steps_ns(work, n, first_iteration)
        return [transfer + step for step in steps] if isinstance(steps, list) else steps + transfer

    def describe(self) -> StepTimeOrigin:
        """That of the stage's step."""
        return self.model.describe()


class PipelineStepTime:
    """A `StepTimeModel` made of one for each stage, and the link between neighbours.

    As a whole it gives the time of a batch that is alone in the pipeline: the sum of the stages and
    of the moves between them. `PipelineReplica` asks its `stages` one by one.

    Args:
        models: Of each stage, first stage first; each gives the time of its own layers.
        link: Between a stage and the next.

    Attributes:
        models: As given.
        stages: Step-time models of the stages, the transfer into each included.
        counting: Those of the models that want to hear which of their steps were run.
    """

    def __init__(self, models: Sequence[StepTimeModel], link: StageLink) -> None:
        if not models:
            raise ConfigError("a pipeline without stages: give at least 1")
        self.link = link
        self.models = tuple(models)
        later = [_LaterStage(model, link) for model in models[1:]]
        self.stages: tuple[StepTimeModel, ...] = (models[0], *later)
        self.counting = [model for model in models if isinstance(model, ReplicaStepTime)]
        self._counts = dict.fromkeys(("steps", "ns", "outside_steps", "outside_ns"), 0)

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """See `StepTimeModel.step_ns`."""
        return sum(stage.step_ns(work, iteration) for stage in self.stages)

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int] | Ints:
        """See `StepTimeModel.steps_ns`."""
        total = np.zeros(n, np.int64)
        for stage in self.stages:
            total += np.asarray(stage.steps_ns(work, n, first_iteration), np.int64)
        return total

    @property
    def asks_spread(self) -> bool:
        """Whether a stage does."""
        return any(asks_spread(model) for model in self.models)

    def for_replica(self, seed: int, replication: int, place: int) -> PipelineStepTime:
        """The model of one replica: all stages have the noise of that replica."""
        models = [bound(model, seed, place, replication) for model in self.models]
        return PipelineStepTime(models, self.link)

    @property
    def noisy(self) -> bool:
        """Whether a stage's times differ from those of its kind."""
        return any(getattr(model, "noisy", False) for model in self.models)

    def quiet(self) -> PipelineStepTime:
        """See `sim.step_time.Dissectable`."""
        return PipelineStepTime([quiet(model) for model in self.models], self.link)

    def without_host(self) -> PipelineStepTime | None:
        """See `sim.step_time.Dissectable`."""
        parts = [without_host(model) for model in self.models]
        if not any(parts):
            return None
        models = [part or model for part, model in zip(parts, self.models, strict=True)]
        return PipelineStepTime(models, self.link)

    def note(
        self, work: StepWork, first_iteration: int, start_ns: int, ends_ns: Sequence[int]
    ) -> bool | Bools:
        """These iterations took place, in every stage.

        They are counted once, with the time that they were in a stage or on the way to one: where a
        batch waits for the next stage, it is not computed.
        """
        n = len(ends_ns)
        lengths = (
            self.steps_ns(work, n, first_iteration)
            if n > 1
            else [self.step_ns(work, first_iteration)]
        )
        ends = list(accumulate(map(int, lengths)))
        outside: bool | Bools = False
        for model in self.counting:
            outside = outside | model.note(work, first_iteration, 0, ends)
        flags = np.broadcast_to(outside, n)
        self._counts["steps"] += n
        self._counts["ns"] += ends[-1]
        self._counts["outside_steps"] += int(flags.sum())
        self._counts["outside_ns"] += int(np.diff(ends, prepend=0)[flags].sum())
        return outside

    def usage(self) -> Mapping[str, Any] | None:
        """Iterations and their time, and what each stage counted of them; None if nothing."""
        counted = [model.usage() for model in self.counting]
        return {**self._counts, "stages": counted} if counted else None

    def describe(self) -> StepTimeOrigin:
        """That of the first stage, what others say besides, and the number of stages."""
        told = self.stages[0].describe()
        if len(self.stages) == 1:
            return told
        said = dict.fromkeys(told.origin.split("; "))
        for stage in self.stages[1:]:
            said |= dict.fromkeys(stage.describe().origin.split("; "))
        origin = f"{'; '.join(said)}; sum of {len(self.stages)} pipeline stages"
        return StepTimeOrigin(told.model, origin, told.error)
