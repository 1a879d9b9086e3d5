"""Orders of the waiting queue other than first-come (rules 50 and 90)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sim.errors import ConfigError
from sim.queue import FirstCome
from sim.request import Request


class _Sorted(FirstCome):
    """Sorted by a key; preempted requests stand in front, the last of running is the victim."""

    first_come = False


@dataclass(frozen=True)
class ShortestFirst(_Sorted):
    """Smallest predicted output first."""

    def key(self, request: Request) -> float:
        """Predicted output tokens."""
        return _predicted(request, "sjf")


@dataclass(frozen=True)
class ShortestRemaining(_Sorted):
    """Smallest predicted output still to come first."""

    def key(self, request: Request) -> float:
        """Predicted output tokens less all those emitted; may be negative."""
        emitted = request.emitted_before + request.emitted_tokens
        return _predicted(request, "srtf") - emitted


@dataclass(frozen=True)
class Deadline(_Sorted):
    """Earliest deadline first, requests without one last."""

    def key(self, request: Request) -> float:
        """Absolute deadline, ns."""
        return float("inf") if request.deadline_ns is None else request.deadline_ns


@dataclass(frozen=True)
class Priority(_Sorted):
    """Lower number first, then arrival, preempted requests among the others.

    Also chooses the victim: the worst priority, then the latest arrival, as in vLLM V1.
    """

    preempted_first = False
    tail_is_victim = False

    def key(self, request: Request) -> float | tuple[float, ...]:
        """Priority, then order of arrival."""
        return (request.priority, request.order)

    def victim(self, request: Request, later: deque[Request]) -> Request:
        """The worst of `request` and those not yet handled."""
        worst = max([request, *later], key=self.key)
        if worst is not request:
            later.remove(worst)
        return worst


def _predicted(request: Request, order: str) -> int:
    if request.predicted_tokens is None:
        raise ConfigError(f"order: {order} needs a predictor; choose one of bucket, noisy, oracle")
    return request.predicted_tokens
