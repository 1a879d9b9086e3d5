"""Whether the orderings that a paper claims come out, and its numbers beside ours."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from experiments.papers.block import Claim, Number
from experiments.papers.evaluate import Evaluated
from experiments.papers.values import Value, larger_is_better, number_said, value_of
from experiments.statistics.pairs import Difference, paired_difference

TIE = 0.1
"""Values that differ by at most so much hardly differ."""

Outcome = Literal["reproduced", "not separable", "not reproduced", "missing"]


@dataclass(frozen=True)
class Judged:
    """A claim and what came out.

    Attributes:
        claim: Of the paper.
        outcome: Reproduced if each variant is better than the next one beyond noise; not separable
            if none is worse beyond noise.
        ours: The numbers, best first as claimed.
    """

    claim: Claim
    outcome: Outcome
    ours: str

    @property
    def reason(self) -> str:
        """Why it did not come out; empty where it did."""
        if self.outcome == "reproduced":
            return ""
        return self.claim.missing or self.claim.if_not


@dataclass(frozen=True)
class Compared:
    """A number of the paper and ours.

    Attributes:
        number: Of the paper.
        ours: As text, with the unit.
    """

    number: Number
    ours: str


def judge(evaluated: Evaluated, claim: Claim) -> Judged:
    """Judge one claim on what was run."""
    if claim.missing or claim.measure is None:
        return Judged(claim, "missing", "")
    values = [value_of(evaluated, claim.measure, label) for label in claim.order]
    if claim.tie:
        said = ", ".join(
            f"{label} {value.said()}" for label, value in zip(claim.order, values, strict=True)
        )
        return Judged(claim, _tied([value.estimate for value in values]), said)
    more = larger_is_better(evaluated, claim.measure) if claim.more is None else claim.more
    signs = [
        sign_of(first, second) * (1 if more else -1) for first, second in itertools.pairwise(values)
    ]
    said = (" > " if more else " < ").join(
        f"{label} {value.said()}" for label, value in zip(claim.order, values, strict=True)
    )
    return Judged(claim, _outcome(signs), said)


def _tied(estimates: list[float]) -> Outcome:
    near = max(estimates) <= (1 + TIE) * min(estimates)
    return "reproduced" if near else "not reproduced"


def _outcome(signs: list[int]) -> Outcome:
    if all(sign > 0 for sign in signs):
        return "reproduced"
    return "not reproduced" if any(sign < 0 for sign in signs) else "not separable"


def sign_of(first: Value, second: Value) -> int:
    """1 if the first is larger beyond noise, -1 if smaller, 0 if noise or the grid leaves it open.

    Replications are compared in pairs (`experiments.statistics.pairs`). Where there is only one, or
    a search gave a bracket, the ranges must not overlap.
    """
    if math.isinf(first.estimate) or math.isinf(second.estimate):
        return (first.estimate > second.estimate) - (first.estimate < second.estimate)
    if len(first.runs) > 1 and len(first.runs) == len(second.runs):
        if first.high == second.high == math.inf or first.low == second.low == -math.inf:
            return 0
        found = paired_difference(second.runs, first.runs)
        if isinstance(found, Difference):
            return int(math.copysign(1, found.interval.estimate)) if found.separable else 0
    return (first.low >= second.high) - (first.high <= second.low) if first != second else 0


def compare(evaluated: Evaluated, number: Number) -> Compared:
    """Our number, for one of the paper's."""
    value = value_of(evaluated, number.measure, number.of)
    unit = f" {number.unit}" if number.unit else ""
    if number.over is None:
        return Compared(number, f"{value.said()}{unit}{_range(value.runs)}")
    other = value_of(evaluated, number.measure, number.over)
    if not all(other.runs) or math.isinf(other.estimate):
        return Compared(number, f"{value.said()} against {other.said()}")
    ratios = tuple(a / b for a, b in zip(value.runs, other.runs, strict=True))
    mark = _ratio_mark(value.mark, other.mark)
    mean = math.fsum(ratios) / len(ratios)
    return Compared(number, f"{mark}{number_said(mean)}{unit}{_range(ratios)}")


def _ratio_mark(of: str, over: str) -> str:
    """``> 3`` over ``< 1`` is more than 3; ``> 3`` over ``> 1`` is anything."""
    swapped = {"> ": "< ", "< ": "> ", "": ""}[over]
    if of and swapped and of != swapped:
        return "about "
    return of or swapped


def _range(runs: tuple[float, ...]) -> str:
    if len(runs) < 2 or not math.isfinite(sum(runs)):
        return ""
    low, high = number_said(min(runs)), number_said(max(runs))
    return f" ({low} to {high})" if low != high else ""
