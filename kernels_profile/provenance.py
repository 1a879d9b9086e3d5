"""What a summary says of step times from tables: sources, gaps, options, and what is not known."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.step_time import StepTimeOrigin

if TYPE_CHECKING:
    from kernels_profile.lookup import Operator
    from kernels_profile.step_time import ProfiledStepTime

MOST_NAMED = 3
"""Shapes or operators that are named; the others are counted."""

OUTSIDE = {
    "roofline-scaled": "beyond the grid: nearest measured time x roofline ratio",
    "clamp": "beyond the grid: nearest measured time as it is",
    "error": "beyond the grid: refused",
}


def describe(model: ProfiledStepTime) -> StepTimeOrigin:
    """Origin and stated error of a model's times."""
    operators = model.composed.operators()
    parts = [f"measured tables of {_device(model)}: {_sources(model, operators)}"]
    for beyond, what in (False, "interpolated"), (True, "of a shape beyond the measured ones"):
        shapes = [op.between for op in operators if op.between and op.beyond == beyond]
        if shapes:
            parts.append(f"{what}: {_few(list(dict.fromkeys(shapes)))}")
    if model.filled:
        parts.append(f"filled from roofline: {_few(model.filled)}")
    parts += [
        str(model.layout),
        OUTSIDE[model.outside],
        str(model.graphs),
        _launches(model),
        _clock(model),
        _unequal(model),
        _mixed(model),
    ]
    parts += [f"{model.host}: {model.host.source}", _noise(model)]
    return StepTimeOrigin("profile", "; ".join(filter(None, parts)), _error(model))


def _device(model: ProfiledStepTime) -> str:
    if model.lender is None:
        return model.device.name
    own = f" although there are tables of {model.device.name}" if model.passed_over else ""
    return f"{model.lender.name}, scaled by data sheet to {model.device.name}{own}"


def _sources(model: ProfiledStepTime, operators: Sequence[Operator]) -> str:
    """The data sets in the order of their search; of several, which tables each gave."""
    given = [op for op in operators if op.folder is None and op.source]
    others = [f"{_tables(given)}: {given[0].source}"] if given else []
    if len(model.data) == 1:
        found = any(op.folder for op in operators)
        return "; ".join([model.data[0].meta.source if found else "none used", *others])
    said = []
    for number, data in enumerate(model.data, start=1):
        used = [op for op in operators if op.folder == data.folder]
        said.append(f"{number}. {data.folder.name}, {data.meta.source}: {_tables(used)}")
    return "; ".join([*said, *others]) or "none used"


def _tables(operators: Sequence[Operator]) -> str:
    """Such as ``linear (4), attention_decode``: tables, and how many of their operators."""
    counts = Counter(op.name.partition(" ")[0] for op in operators)
    parts = [name if number == 1 else f"{name} ({number})" for name, number in counts.items()]
    return ", ".join(parts) or "nothing used"


def _few(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _launches(model: ProfiledStepTime) -> str:
    """Without graphs Python launches each kernel, which takes time that few hosts here know of."""
    if model.host.eager_layer_us or (model.graphs.sizes and model.graphs.prefills):
        return ""
    which = "steps with prefills" if model.graphs.sizes else "all steps"
    return (
        f"{which} run without a graph, whose launch cost this host does not model "
        "(no eager_layer_us)"
    )


def _clock(model: ProfiledStepTime) -> str:
    if model.sustained_clock == 1:
        return ""
    return (
        f"compute-bound matrix products at {model.sustained_clock:g} of the clock of the tables "
        "(sustained_clock)"
    )


def _unequal(model: ProfiledStepTime) -> str:
    decode = model.composed.decode
    if decode.grid is None:
        return ""
    ratios, fixed = decode.unequal, decode.fixed
    if ratios is None:
        return "unequal contexts: measured for equal ones only, taken to second order"
    fewest, most = ratios.range(*fixed)
    skew = max(ratios.values(*fixed, batch)[-1] for batch in ratios.values(*fixed))
    return (
        f"unequal contexts: measured up to a variation of {skew:g} for {fewest:g} to {most:g} "
        "decodes, else taken to second order"
    )


def _mixed(model: ProfiledStepTime) -> str:
    if model.composed.mixed is not None:
        return "chunks and decodes of a step: one launch, as measured, at the mean context"
    return "chunks and decodes of a step: two launches"


def _noise(model: ProfiledStepTime) -> str:
    if not model.noise_cv:
        given = model.noise_given
        return "noise: off" if given else "noise: off, the tables have no repeats"
    origin = "given in the config" if model.noise_given else "median over the tables' repeats"
    return (
        f"noise: log-normal factor of mean 1, {model.noise_cv:.2%} ({origin}), drawn for each "
        "iteration of a replica: variants share it where these have the same numbers"
    )


def _error(model: ProfiledStepTime) -> str:
    errors: dict[str, list[float]] = {}
    for operator in model.composed.operators():
        if operator.grid is not None:
            kind = operator.name.partition(" ")[0]
            errors.setdefault(kind, []).extend(operator.grid.left_out_errors())
    parts = [f"{kind} {statistics.median(each):.1%}" for kind, each in errors.items() if each]
    said = f"interpolation, each point from its neighbours (median): {', '.join(parts)}; "
    return f"{said if parts else ''}{_against_steps(model)}"


def _against_steps(model: ProfiledStepTime) -> str:
    """How the sum of operators compares with whole steps of the model, where some were measured."""
    for data in model.data:
        table = data.table("step")
        rows = table and table.where(model=model.model.name, tp=model.tensor_parallel)
        if rows:
            ratios = (rows["operators_us"] / rows.time_us).tolist()
            return (
                f"sum of operators over {len(ratios)} whole steps: {statistics.median(ratios):.3f} "
                f"of their time (median; {min(ratios):.3f} to {max(ratios):.3f})"
            )
    return "the sum of operators was not held against whole steps"
