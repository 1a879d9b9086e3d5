"""A `ProfiledStepTime` at work on one replica: its noise, and what it used beyond the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kernels_profile.attention import Bools
from kernels_profile.noise import Noise
from kernels_profile.step_time import ProfiledStepTime, rounded
from kernels_profile.usage import Usage

if TYPE_CHECKING:
    from sim.step_time import StepTimeOrigin, StepWork


class ProfiledReplica:
    """Step times of one replica; a `sim.step_time.ReplicaStepTime`.

    Args:
        shared: What all replicas of a pool look up.
        noise: Factors of this replica's iterations, or None.
    """

    asks_spread = True

    def __init__(self, shared: ProfiledStepTime, noise: Noise | None) -> None:
        self.shared = shared
        self._noise = noise
        self._usage = Usage()

    @property
    def noisy(self) -> bool:
        """Whether its times differ from those of `shared`."""
        return self._noise is not None

    def step_ns(self, work: StepWork, iteration: int) -> int:
        """Length of one iteration, ns."""
        ns = self.shared.exact_ns(work)
        if self._noise is not None:
            ns *= self._noise.factor(iteration)
        return max(1, round(ns))

    def steps_ns(
        self, work: StepWork, n: int, first_iteration: int
    ) -> list[int] | npt.NDArray[np.int64]:
        """Lengths of `n` iterations, ns, shape (n,)."""
        exact = self.shared.exact_many_ns(work, n)
        if self._noise is None:
            return rounded(exact)
        if isinstance(exact, list):
            factor = self._noise.factor
            return [
                max(1, round(ns * factor(i))) for i, ns in enumerate(exact, start=first_iteration)
            ]
        return rounded(exact * self._noise.factors(first_iteration, n))

    def describe(self) -> StepTimeOrigin:
        """As of all replicas."""
        return self.shared.describe()

    def flops_and_bytes(self, work: StepWork) -> tuple[float, float]:
        """FLOPs and bytes of memory traffic of one iteration on each GPU."""
        return self.shared.flops_and_bytes(work)

    def note(
        self, work: StepWork, first_iteration: int, start_ns: int, ends_ns: Sequence[int]
    ) -> bool | Bools:
        """Count iterations that took place.

        Returns:
            Which of them rest on times beyond the grid: all, none, or a flag for each, (n,).

        Raises:
            ProfileError: they lie outside of the measured grid, and the config refuses that.
        """
        if self.shared.outside == "error":
            self.shared.refuse(work, len(ends_ns))
        return self.shared.count(self._usage, work, start_ns, ends_ns)

    def usage(self) -> Mapping[str, Any]:
        """What was counted, as plain values."""
        return self._usage.plain()
