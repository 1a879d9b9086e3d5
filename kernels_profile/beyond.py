"""Which iterations rest on times beyond the measured grid: counted, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kernels_profile.attention import Beyond, Bools, Mark
from kernels_profile.grid import Outside
from kernels_profile.usage import Usage
from sim.errors import BeyondTablesError

if TYPE_CHECKING:
    from kernels_profile.step_time import ProfiledStepTime
    from sim.step_time import StepWork


def count(
    model: ProfiledStepTime, usage: Usage, work: StepWork, start_ns: int, ends_ns: Sequence[int]
) -> bool | Bools:
    """Add iterations that took place to the counts of a replica.

    Args:
        model: Whose times they are.
        usage: Of the replica.
        work: Of the first iteration; the contexts of the others grow.
        start_ns: When it began.
        ends_ns: End of each.

    Returns:
        Which of them rest on times beyond the grid: all, none, or a flag for each, (n,).
    """
    n, ns = len(ends_ns), ends_ns[-1] - start_ns
    outside: bool | Bools = False
    marks, filled_ns = _steady(model, work)
    growing = _growing(model, work, n)
    usage.steps += n
    usage.ns += ns
    usage.filled_ns += filled_ns * n
    if model.composed.decode.filled and model.decodes_apart(work):
        curve, deviation = model.decode_curve(work)
        usage.filled_ns += float(curve.many(_contexts(work, n), deviation).sum())
    if marks:
        outside = True
        usage.outside_steps += n
        usage.outside_ns += ns
    elif growing:
        flags: Bools = np.logical_or.reduce([each.steps for each in growing])
        outside = flags
        usage.outside_steps += int(flags.sum())
        usage.outside_ns += int(np.diff(ends_ns, prepend=start_ns)[flags].sum())
    for mark in marks:
        usage.add(mark.name, mark.outside, n, mark.us * 1e3 * n)
    for each in growing:
        name = model.composed.decode.name
        usage.add(name, each.farthest, int(each.steps.sum()), each.ns)
    return outside


def refuse(model: ProfiledStepTime, work: StepWork, n: int = 1) -> None:
    """Refuse iterations that lie outside of the measured grid.

    Raises:
        BeyondTablesError: names the operator, what was asked for and what was measured.
    """
    marks, _ = _steady(model, work)
    if marks:
        raise BeyondTablesError(_refusal(model, marks[0].name, marks[0].outside))
    for each in _growing(model, work, n):
        raise BeyondTablesError(_refusal(model, model.composed.decode.name, each.farthest))


def _refusal(model: ProfiledStepTime, name: str, outside: Outside) -> str:
    return (
        f"profile: {model.device.name} (tensor_parallel {model.tensor_parallel}): {name}: "
        f"{outside.axis} {outside.value:,.6g} is outside of the measured grid, which ends at "
        f"{outside.edge:,.6g}; measure more, or scale (outside: roofline-scaled, not strict)"
    )


def _steady(model: ProfiledStepTime, work: StepWork) -> tuple[list[Mark], float]:
    """What is beyond the grid in every iteration of a run, and ns that are filled in each."""
    parts = model.steady_parts(work)
    marks = [mark for part in parts for mark in part.marks]
    filled_ns = sum(part.filled_ns for part in parts)
    layers = model.part.layers
    if work.chunks:
        us, found = model.prefill(work)
        marks += [Mark(each.name, each.outside, each.us * layers) for each in found]
        filled_ns += us * model.layers_ns if model.composed.prefill.filled else 0.0
    if model.decodes_apart(work):
        curve, deviation = model.decode_curve(work)
        if curve.batch_outside is not None:
            us = curve.at(work.context_tokens / work.attending_rows, deviation) / 1e3
            marks.append(Mark(model.composed.decode.name, curve.batch_outside, us))
    return marks, filled_ns


def _growing(model: ProfiledStepTime, work: StepWork, n: int) -> list[Beyond]:
    """How decode attention lies beyond the grid in some of `n` iterations, by their contexts."""
    if not model.decodes_apart(work) or model.composed.decode.filled:
        return []
    curve, deviation = model.decode_curve(work)
    first, rows = work.context_tokens, work.attending_rows
    last = first + (n - 1) * rows
    if curve.batch_outside is not None or curve.is_inside(first / rows, last / rows, deviation):
        return []
    return curve.beyond(_contexts(work, n), deviation)


def _contexts(work: StepWork, n: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Mean context of each of `n` iterations, (n,)."""
    first, rows = work.context_tokens, work.attending_rows
    return np.arange(first, first + n * rows, rows, dtype=np.float64) / rows
