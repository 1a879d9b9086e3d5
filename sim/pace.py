"""The pace of a replica: iterations that take longer than its step-time model says.

A straggler (``slow``): from phase (2c) of its instant on every iteration that starts on the replica
takes max(1, step ns x factor) ns, rounded half to even, the factor being an exact decimal, until
the change that ends it; the iteration in flight keeps its length. In a pipeline a batch has in all
stages the pace that the replica had when it entered the first. A replica has one such factor at a
time: a new one takes the place of the old one, whose end then ends nothing. A failure ends it.
Whatever else a replica waits for (host memory, links) is not slowed. A warm-up (`sim.startup`)
comes first: its longer iteration is what is multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from sim.startup import WarmUp
from sim.step_time import Ints, StepTimeModel, StepTimeOrigin, StepWork


@dataclass(frozen=True)
class Pace:
    """How iterations that start now are lengthened.

    Attributes:
        factor: Of a straggler, exact.
        warm_up: Of a replica that has started during the run, or an empty one.
        first: Number of the first iteration since it did.
    """

    factor: Fraction = Fraction(1)
    warm_up: WarmUp = field(default_factory=WarmUp)
    first: int = 0

    def __bool__(self) -> bool:
        return self.factor != 1 or bool(self.warm_up)

    def standing(self, iteration: int) -> tuple[Fraction, int]:
        """The factor, and how many iterations from that with this number on are a warm-up's."""
        longest = max(1, self.warm_up.iterations) if self.warm_up else 0
        return self.factor, max(0, longest + self.first - iteration)

    def lengthened(self, step_ns: int, iteration: int) -> int:
        """Length of an iteration by its number, ns."""
        if self.warm_up:
            step_ns = self.warm_up.lengthened(step_ns, iteration - self.first)
        return step_ns if self.factor == 1 else max(1, round(step_ns * self.factor))


@dataclass(frozen=True)
class PacedStepTime:
    """A `StepTimeModel`: another one's iterations at a pace."""

    model: StepTimeModel
    pace: Pace

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """See `StepTimeModel.step_ns`."""
        return self.pace.lengthened(self.model.step_ns(work, iteration), iteration)

    def steps_ns(self, work: StepWork, n: int, first_iteration: int) -> list[int] | Ints:
        """See `StepTimeModel.steps_ns`."""
        steps = self.model.steps_ns(work, n, first_iteration)
        lengths = steps if isinstance(steps, list) else steps.tolist()
        paced = self.pace.lengthened
        return [paced(length, first_iteration + i) for i, length in enumerate(lengths)]

    def describe(self) -> StepTimeOrigin:
        """That of the model: the pace is not its."""
        return self.model.describe()
