"""How much of a run rests on times beyond what was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels_profile.grid import Outside

MOST_CAUSES = 4
"""Causes that a summary names; the others are counted."""


WARN_SHARE = 0.05
"""Above this share of simulated time that no table has, a run is warned of before all else."""


@dataclass
class Cause:
    """One way of being beyond the grid: an operator and an axis.

    Attributes:
        steps: Steps in which it was so.
        operator_ns: Time of that operator in them.
        ratio: The farthest: value over edge, or edge over value.
        value: What was asked for then.
        edge: What was measured nearest.
    """

    steps: int = 0
    operator_ns: float = 0.0
    ratio: float = 1.0
    value: float = 0.0
    edge: float = 0.0

    def reach(self, ratio: float, value: float, edge: float) -> None:
        """Note how far it went."""
        if ratio > self.ratio:
            self.ratio, self.value, self.edge = ratio, value, edge

    def add(self, other: Cause) -> None:
        """Add what another replica counted."""
        self.steps += other.steps
        self.operator_ns += other.operator_ns
        self.reach(other.ratio, other.value, other.edge)


@dataclass
class Usage:
    """Counts of one replica, or of several added up.

    Attributes:
        steps: Iterations run.
        ns: Their length.
        outside_steps: Of them, those that used a time beyond what was measured.
        outside_ns: Their length.
        filled_ns: Time of operators without a table, by the analytic model.
        causes: By operator and axis.
    """

    steps: int = 0
    ns: int = 0
    outside_steps: int = 0
    outside_ns: int = 0
    filled_ns: float = 0.0
    causes: dict[tuple[str, str], Cause] = field(default_factory=dict)

    def add(self, name: str, outside: Outside, steps: int, operator_ns: float) -> None:
        """Count steps in which an operator was beyond its grid, and its time in them."""
        cause = self.causes.setdefault((name, outside.axis), Cause())
        cause.steps += steps
        cause.operator_ns += operator_ns
        cause.reach(outside.ratio, outside.value, outside.edge)

    def plain(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        return {
            "steps": self.steps,
            "ns": self.ns,
            "outside_steps": self.outside_steps,
            "outside_ns": self.outside_ns,
            "filled_ns": self.filled_ns,
            "causes": [
                {"operator": name, "axis": axis, **vars(cause)}
                for (name, axis), cause in self.causes.items()
            ],
        }


def add_up(usages: Iterable[Mapping[str, Any]]) -> Usage:
    """The counts of several replicas as one."""
    total = Usage()
    for each in usages:
        total.steps += each["steps"]
        total.ns += each["ns"]
        total.outside_steps += each["outside_steps"]
        total.outside_ns += each["outside_ns"]
        stages = each.get("stages", [each])
        total.filled_ns += sum(stage["filled_ns"] for stage in stages)
        for found, cause in _causes_of(stages).items():
            total.causes.setdefault(found, Cause()).add(cause)
    return total


def _causes_of(stages: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Cause]:
    """Of one replica: an operator is beyond its grid in all stages that have it, or in none.

    So its steps are those of any of them, and its time is that in all.
    """
    found: dict[tuple[str, str], Cause] = {}
    for stage in stages:
        for said in stage["causes"]:
            cause = found.setdefault((said["operator"], said["axis"]), Cause())
            cause.steps = max(cause.steps, said["steps"])
            cause.operator_ns += said["operator_ns"]
            cause.reach(said["ratio"], said["value"], said["edge"])
    return found


def sentence(usage: Usage) -> str:
    """The line of a summary."""
    if not usage.steps:
        return "measured grid: no step was run"
    share = f"{_percent(usage.outside_steps, usage.steps)} of steps"
    text = f"outside the measured grid: {share}"
    if usage.outside_steps:
        text += f" and {_percent(usage.outside_ns, usage.ns)} of simulated time: {_causes(usage)}"
    if usage.filled_ns:
        text += f"; filled from roofline: {_percent(usage.filled_ns, usage.ns)} of simulated time"
    return text


def warning(usage: Usage) -> str:
    """The same in a few words, where more than `WARN_SHARE` of the time was not measured; or ""."""
    if not usage.ns or max(usage.outside_ns, usage.filled_ns) <= WARN_SHARE * usage.ns:
        return ""
    parts = []
    if usage.outside_steps:
        parts.append(
            f"{_percent(usage.outside_steps, usage.steps)} of steps and "
            f"{_percent(usage.outside_ns, usage.ns)} of simulated time are outside the measured "
            "grid"
        )
    if usage.filled_ns:
        parts.append(f"{_percent(usage.filled_ns, usage.ns)} of simulated time is the roofline's")
    return "; ".join(parts)


def _causes(usage: Usage) -> str:
    causes = sorted(usage.causes.items(), key=lambda item: -item[1].operator_ns)
    said = [_cause(name, axis, cause, usage) for (name, axis), cause in causes[:MOST_CAUSES]]
    if len(causes) > MOST_CAUSES:
        said.append(f"and {len(causes) - MOST_CAUSES} more")
    return "; ".join(said)


def _cause(name: str, axis: str, cause: Cause, usage: Usage) -> str:
    ratio = f"{cause.ratio:,.0f}" if cause.ratio >= 100 else f"{cause.ratio:.3g}"
    times = f"{ratio}x at most, " if cause.value and cause.edge else ""
    return (
        f"{name}, {axis} {cause.value:,.6g} where the nearest measured is {cause.edge:,.6g} "
        f"({times}{_percent(cause.steps, usage.steps)} of steps, itself "
        f"{_percent(cause.operator_ns, usage.ns)} of time)"
    )


def _percent(part: float, whole: float) -> str:
    share = part / whole if whole else 0.0
    return f"{share:.1%}" if share >= 0.0005 or not part else "under 0.1%"
