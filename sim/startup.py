"""What passes before a replica that starts in the middle of a run serves at its full speed.

A replica starts when it is restored or added (`sim.changes`), also by whoever scales a pool. The
rules, with t the instant of that:

1. **Loading.** Its GPUs load their weights, each its own, all at once: from t to t + `load_ns` it
   is ``starting`` and takes no requests. It is up in phase (2c) of t + `load_ns`, after the changes
   given for that instant and in the order in which those that are ready then began to start, and
   takes part from (2d) on. With 0 it is up at t. A replica that fails while it starts has failed,
   and starts anew when it is restored; one that is drained is gone at once.
2. **Warm-up.** Of the iterations that it makes from then on, the first `WarmUp.iterations` take
   max(1, step ns x `WarmUp.factor`), rounded half to even, and the very first `first_pass_ns` more:
   the first requests pay. Iterations lost in a failure have no number, and the next start begins
   to count anew. Of a pipeline, the first stage alone has the longer first pass.
3. Replicas that are there from the start of the run are up and warm at 0.

By default nothing of this takes time: it depends on disk, network and engine, and no figure holds
in general. ServerlessLLM (Fu et al., OSDI 2024, arXiv 2401.14351, introduction) estimates loading
as here, the bytes of a checkpoint over the bandwidth that they are read with. What else a cold
start pays, allocator, CUDA graphs, compilation and first requests, is listed in vLLM's blog post
on its sleep mode of 26 October 2025: what an engine does before it serves belongs to `load_ns`,
what it does lazily to the warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from sim.errors import ConfigError


@dataclass(frozen=True)
class WarmUp:
    """The first iterations of a replica that has started.

    Attributes:
        iterations: How many are slower.
        factor: How much longer they take, exactly.
        first_pass_ns: What the very first takes in addition, ns.
    """

    iterations: int = 0
    factor: Fraction = Fraction(1)
    first_pass_ns: int = 0

    def __post_init__(self) -> None:
        if self.iterations < 0 or self.factor <= 0 or self.first_pass_ns < 0:
            raise ConfigError(f"{self}: expected a factor above 0, and nothing below 0")

    def __bool__(self) -> bool:
        return bool(self.first_pass_ns or (self.iterations and self.factor != 1))

    def lengthened(self, step_ns: int, iteration: int) -> int:
        """Length of an iteration that takes `step_ns` once warm; iterations count from 0."""
        if iteration < self.iterations:
            step_ns = max(1, round(step_ns * self.factor))
        return step_ns + self.first_pass_ns if iteration == 0 else step_ns


@dataclass(frozen=True)
class Startup:
    """How a replica starts.

    Attributes:
        load_ns: From its start until it is up, ns.
        warm_up: Its first iterations.
    """

    load_ns: int = 0
    warm_up: WarmUp = WarmUp()

    def __post_init__(self) -> None:
        if self.load_ns < 0:
            raise ConfigError(f"load_ns: {self.load_ns}: expected at least 0")


def load_ns(weight_bytes: float, bytes_per_s: float) -> int:
    """Time in which one GPU reads its weights, ns, rounded half to even, at least 1.

    Args:
        weight_bytes: Of the GPU that has most of them.
        bytes_per_s: With which each GPU reads; the exact value counts.
    """
    return max(1, round(Fraction(weight_bytes) * 10**9 / Fraction(bytes_per_s)))
